"""Results that can be written as JSON and read back, and shown in a notebook or as a page."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, overload

from wherefrom.errors import FileError
from wherefrom.storage.tables import pandas
from wherefrom.storage.text_file import parsed
from wherefrom.storage.writing import write_text


class Record(ABC):
    """A result that converts to plain data: `schema` names the format, `noun` the result in errors.

    `json_options` are passed to `json.dumps`.
    """

    schema: ClassVar[str]
    noun: ClassVar[str]
    json_options: ClassVar[Mapping[str, Any]] = {"indent": 1}

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; "schema" is the first key."""

    @classmethod
    @abstractmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        """Restores the result of `to_dict`; wrong data raises KeyError, TypeError or ValueError."""

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Restores the result of `to_dict`."""
        if not isinstance(data, dict) or data.get("schema") != cls.schema:
            schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise FileError(f"expected an {cls.noun} of schema {cls.schema}, got {schema!r}.")
        try:
            return cls._of_data(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"the {cls.noun} is damaged: {error!r}") from error

    def to_json(self, path: str | Path | None = None) -> str:
        """The result as JSON; with `path` also written there."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, **self.json_options)
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Self:
        """Reads JSON: a path, or the JSON text itself."""
        data = _read_json(source)
        if isinstance(data, list):
            raise FileError(
                f"{_name_of(source)} is a list of {len(data)} results: read it with "
                f"{cls.__name__}.list_from_json."
            )
        return cls._from_source(data, source)

    @classmethod
    def list_from_json(cls, source: str | Path) -> list[Self]:
        """Reads the JSON of one or several results: a path, or the JSON text itself."""
        data = _read_json(source)
        entries = data if isinstance(data, list) else [data]
        return [cls._from_source(entry, source) for entry in entries]

    @classmethod
    def _from_source(cls, data: Any, source: str | Path) -> Self:
        """Restores a result; an error names the file."""
        try:
            return cls.from_dict(data)
        except FileError as error:
            if _is_text(source):
                raise
            raise FileError(f"{source}: {error}") from error


def _read_json(source: str | Path) -> Any:
    text = str(source)
    if not _is_text(source):
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or not a path
            raise FileError(f"cannot read {source}: {error}") from error
    return parsed(text, _name_of(source))


def _is_text(source: str | Path) -> bool:
    """Whether this is JSON text, not a path."""
    return isinstance(source, str) and source.lstrip().startswith(("{", "["))


def _name_of(source: str | Path) -> str:
    return "this" if _is_text(source) else str(source)


class Displayable:
    """A result that can be shown: subclasses define its page and its rows."""

    @abstractmethod
    def _html(self, whole_page: bool) -> str:
        """A self-contained page, or the part of it that a notebook embeds."""

    @abstractmethod
    def _rows(self) -> list[dict[str, Any]]:
        """The result as rows of a table."""

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """What draws each kind of figure, the default first."""
        return {}

    def _repr_html_(self) -> str:
        return self._html(whole_page=False)

    @overload
    def to_html(self, path: None = None, *, fragment: bool = ...) -> str: ...
    @overload
    def to_html(self, path: str | Path, *, fragment: bool = ...) -> Path: ...

    def to_html(self, path: str | Path | None = None, *, fragment: bool = False) -> str | Path:
        """A self-contained page as text; with `path`, writes it and returns the path.

        A `fragment` is what a notebook shows, for pages of other apps: one element, no scripts.
        """
        page = self._html(whole_page=not fragment)
        if path is None:
            return page
        write_text(path, page)
        return Path(path)

    def plot(
        self,
        kind: str | None = None,
        path: str | Path | None = None,
        *,
        figsize: tuple[float, float] | None = None,
        dpi: float | None = None,
        ax: Any = None,
        **options: Any,
    ) -> Any:
        """A matplotlib figure; with `path` a PNG, PDF or SVG file; with `ax` on axes of yours.

        Returns the figure, the path or the axes. An unknown `kind` raises an error that lists the
        kinds of this result.
        """
        draw = import_module("wherefrom.show.plot_style").plot
        return draw(self._figures(), kind, path, figsize, dpi, ax, options)

    def plots(self, folder: str | Path, suffix: str = ".png") -> list[Path]:
        """Writes all figures of this result, named after their kinds."""
        return [self.plot(kind, Path(folder) / f"{kind}{suffix}") for kind in self._figures()]

    def to_frame(self) -> Any:
        """The result as a pandas `DataFrame`."""
        return pandas("a data frame").DataFrame(self._rows())
