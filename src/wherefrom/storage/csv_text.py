"""Tables as CSV that a spreadsheet shows and does not run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    r"""A table as CSV; text that a spreadsheet would take for a formula gets a leading '.

    >>> csv_text(["word", "mean"], [{"word": "=1+1", "mean": -2.5}])
    "word,mean\r\n'=1+1,-2.5\r\n"
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_plain(name) for name in columns])
    writer.writerows([_plain(row[name]) for name in columns] for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
