"""The common base of results: a view in a notebook, a page, a table."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, overload

from wherefrom.storage.tables import pandas
from wherefrom.storage.writing import write_text


class Displayable:
    """A result that can be shown: subclasses define its page and its rows."""

    @abstractmethod
    def _html(self, whole_page: bool) -> str:
        """A self-contained page, or the part of it that a notebook embeds."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """The result as rows of a table."""

    def _repr_html_(self) -> str:
        return self._html(whole_page=False)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | Path) -> Path: ...

    def to_html(self, path: str | Path | None = None) -> str | Path:
        """A self-contained page as text; with `path`, writes it and returns the path."""
        page = self._html(whole_page=True)
        if path is None:
            return page
        write_text(path, page)
        return Path(path)

    def to_frame(self) -> Any:
        """The result as a pandas `DataFrame`."""
        return pandas("a data frame").DataFrame(self._rows())
