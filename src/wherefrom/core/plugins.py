"""Tables of classes by name: built-in ones, and those of installed packages (entry points)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from wherefrom.errors import PluginError, PluginWarning

Kind = TypeVar("Kind", bound=type)


class PluginTable(Mapping[str, Kind]):
    """Built-in classes, then those from an entry point group and from `add`.

    Entry points are loaded once, when a name is not built in or all names are listed. An unusable
    entry point is skipped with a warning that names its package.
    """

    def __init__(
        self, group: str, builtin: Mapping[str, Kind], problem: Callable[[str, Any], str | None]
    ) -> None:
        """`problem(name, object)` says why an object cannot have this name, or None."""
        self.group = group
        self.builtin = dict(builtin)
        self._problem = problem
        self._added: dict[str, Kind] = {}
        self._plugins: dict[str, Kind] | None = None
        self._lock = threading.RLock()

    def __getitem__(self, name: str) -> Kind:
        if name in self.builtin:
            return self.builtin[name]
        return self.extras()[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*self.builtin, *self.extras()])

    def __len__(self) -> int:
        return len(self.builtin) + len(self.extras())

    def __repr__(self) -> str:
        return f"<{self.group}: {', '.join(self)}>"

    def add(self, name: str, kind: Kind) -> None:
        """Adds a class for this process, replacing one added under the same name."""
        problem = f"{name!r} is built in" if name in self.builtin else self._problem(name, kind)
        if problem is not None:
            raise PluginError(f"cannot add {kind!r} to {self.group}: {problem}.")
        self._added[name] = kind

    def remove(self, name: str) -> None:
        """Removes a class that `add` added."""
        del self._added[name]

    def extras(self) -> dict[str, Kind]:
        """The classes that are not built in."""
        with self._lock:
            if self._plugins is None:
                self._plugins = {}  # a package may list this table while it is imported
                self._plugins = self._load()
            return {**self._plugins, **self._added}

    def _load(self) -> dict[str, Kind]:
        plugins: dict[str, Kind] = {}
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            problem: str | None
            try:
                kind = point.load()
                if point.name in self.builtin or point.name in plugins:
                    problem = f'the name "{point.name}" is taken'
                else:
                    problem = self._problem(point.name, kind)
            except Exception as error:  # the import of a package can raise anything
                problem = f"{type(error).__name__}: {error}"
            if problem is None:
                plugins[point.name] = kind
            else:
                warnings.warn(
                    _skipped_message(point, self.group, problem), PluginWarning, stacklevel=4
                )
        return plugins


def _skipped_message(point: EntryPoint, group: str, problem: str) -> str:
    package = "a package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return (
        f"{package} adds {point.name!r} to {group} ({point.value}), which cannot be used: {problem}"
    )
