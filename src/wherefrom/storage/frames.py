"""Tables of pandas. The only file that imports it."""

from __future__ import annotations

from typing import Any

from wherefrom.errors import MissingExtra


def pandas(purpose: str) -> Any:
    """The library, or an error that says how to install it."""
    try:
        import pandas as library
    except ImportError as error:
        raise MissingExtra("pandas", "frame", purpose) from error
    return library
