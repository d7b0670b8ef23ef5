"""Every kind of input. `readers` is the one place where a new reader is entered.

Its names are imported when they are first used: tables of texts are read without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wherefrom.inputs.readers import (
        READERS,
        Reader,
        ReaderContext,
        find_reader,
        first_of,
        register_reader,
    )

__all__ = ["READERS", "Reader", "ReaderContext", "find_reader", "first_of", "register_reader"]


def __getattr__(name: str) -> Any:
    """Imports a name of `readers` at its first use."""
    if name not in __all__:
        raise AttributeError(f"module 'wherefrom.inputs' has no attribute {name!r}")
    from wherefrom.inputs import readers

    return getattr(readers, name)
