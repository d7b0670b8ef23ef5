"""The table of readers: add a new built-in one here.

Other packages register theirs in the entry point group `wherefrom.readers`: name = "module:Class".
"""

from __future__ import annotations

from typing import Any, TypeVar

from wherefrom.core.plugins import PluginTable
from wherefrom.inputs.graph_reader import GraphReader
from wherefrom.inputs.image import ImageReader
from wherefrom.inputs.reader import Reader, ReaderContext, first_of
from wherefrom.inputs.rows import RowsReader
from wherefrom.inputs.signal import SignalReader
from wherefrom.inputs.text_reader import TextReader

AnyReader = TypeVar("AnyReader", bound=type[Reader[Any, Any]])

# tried in this order; the last one accepts everything
_BUILTIN: tuple[type[Reader[Any, Any]], ...] = (
    GraphReader, SignalReader, ImageReader, RowsReader, TextReader,
)  # fmt: skip


def _problem(name: str, kind: Any) -> str | None:
    """Why an object cannot be a reader with this name; None if it can."""
    if not (isinstance(kind, type) and issubclass(kind, Reader)):
        return f"{kind!r} is not derived from wherefrom.Reader"
    if getattr(kind, "name", None) != name:
        return f"its name is {getattr(kind, 'name', None)!r}, not {name!r}"
    missing = sorted(kind.__abstractmethods__)
    return f"it does not define {', '.join(missing)}" if missing else None


READERS: PluginTable[type[Reader[Any, Any]]] = PluginTable(
    "wherefrom.readers", {kind.name: kind for kind in _BUILTIN}, _problem
)


def register_reader(kind: AnyReader) -> AnyReader:
    """Adds a reader for this process, tried before the built-in ones; usable as a decorator."""
    READERS.add(kind.name, kind)
    return kind


def find_reader(context: ReaderContext, inputs: Any) -> type[Reader[Any, Any]]:
    """The first reader that accepts these inputs; plugins are tried first."""
    plugins = READERS.extras().values()
    if isinstance(inputs, str) and not plugins and context.reads_only_texts:
        return TextReader
    return next(
        kind for kind in (*plugins, *READERS.builtin.values()) if kind.accepts(context, inputs)
    )


__all__ = ["READERS", "Reader", "ReaderContext", "find_reader", "first_of", "register_reader"]
