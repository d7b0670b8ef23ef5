"""Tables in memory: data frames, data sets, lists of dicts and dicts of columns.

They are recognised by their attributes, so no table library is imported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from wherefrom.core.tensors import is_tensor
from wherefrom.errors import InputError, nearest

TableRecord = Mapping[str, Any]

FILES = ("image", "file", "path")
TEXT = ("text", "sentence", "review", "content", "tweet", "utterance", "smiles", *FILES)
LABEL = ("label", "class", "target", "y", "sentiment")
PAIRS = (
    ("question", "context"),
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("query", "passage"),
    ("text", "text_pair"),
    ("text1", "text2"),
)
"""Pairs of columns that together form one input if a table has both."""


@dataclass(frozen=True)
class TextPair:
    """Two texts that a model reads as one input: premise and hypothesis, question and context.

    `fields` are the names of the two texts, and the `field` of their units.
    """

    first: str
    second: str
    fields: tuple[str, str] = ("first", "second")

    @property
    def text(self) -> str:
        """Both texts, one per line; the spans of the units refer to it."""
        return f"{self.first}\n{self.second}"


def column(
    columns: Sequence[str],
    requested: str | None,
    usual: tuple[str, ...],
    what: str,
    needed: bool = True,
) -> str:
    """The column named by the caller, else the first with a usual name."""
    if requested is not None:
        if requested not in columns:
            raise InputError(f'there is no column "{requested}"; {nearest(requested, columns)}')
        return requested
    by_name = {str(name).lower(): name for name in columns}
    for name in usual:
        if name in by_name:
            return by_name[name]
    if needed:
        listed = ", ".join(map(str, columns))
        read = f", or read with wherefrom.read_table(data, {what}_column=…)"
        raise InputError(
            f"no column looks like the {what} ({listed}).",
            f"Name it: {what}_column=…{read if usual is TEXT or usual is LABEL else ''}.",
            command=f"Name it with --{what}-column.",
        )
    return ""


def find_columns(columns: Sequence[str], text: str | None, label: str | None) -> tuple[str, str]:
    """The columns of texts and of labels; "" for no labels. Refuses a table of pairs of texts."""
    pair = pair_columns(columns, text, None)
    if pair is not None:
        raise InputError(
            f'these are rows of pairs ("{pair[0]}" and "{pair[1]}"), but single texts are '
            "explained here.",
            "Name one column, text_column=…, or explain pairs as explainer(wherefrom.read_table("
            "…).texts).",
            command="Name one of the columns with --text-column.",
        )
    return (
        column(columns, text, TEXT, "text"),
        column(columns, label, LABEL, "label", needed=label is not None),
    )


def columns_of(records: Iterable[TableRecord]) -> list[str]:
    """The columns that any of these rows has, in the order of their first use."""
    return list(dict.fromkeys(name for record in records for name in record))


def pair_columns(
    columns: Sequence[str], text_column: str | None, pair_column: str | None
) -> tuple[str, str] | None:
    """The two columns of pairs: as the caller names them, else two with usual names."""
    if pair_column is not None:
        text = column(columns, text_column, TEXT + tuple(first for first, _ in PAIRS), "text")
        return text, column(columns, pair_column, (), "pair")
    if text_column is not None:
        return None
    by_name = {str(name).lower(): name for name in columns}
    return next(((by_name[a], by_name[b]) for a, b in PAIRS if a in by_name and b in by_name), None)


def records_of(data: Any) -> list[TableRecord] | None:
    """The rows of a table in memory as dicts; None if the data is not a table.

    A table is a data frame, a data set, a list of dicts, or a dict of columns of one length.
    """
    if isinstance(data, Mapping):
        return _of_columns(data)
    if _has_columns(data):
        if hasattr(data, "to_pylist"):  # of pyarrow
            return list(data.to_pylist())
        if hasattr(data, "to_dicts"):  # of polars
            return list(data.to_dicts())
        if hasattr(data, "iloc"):  # of pandas
            return list(data.to_dict("records"))
        return list(data) if isinstance(data, Iterable) else None  # of datasets
    rows = data if isinstance(data, (list, tuple)) else ()
    are_dicts = bool(rows) and all(isinstance(row, Mapping) for row in rows)
    return list(rows) if are_dicts and not any("input_ids" in row for row in rows) else None


def _has_columns(data: Any) -> bool:
    names = getattr(data, "column_names", None)
    names = getattr(data, "columns", None) if names is None else names
    return names is not None and not callable(names) and not isinstance(data, type)


def _of_columns(data: Mapping[Any, Any]) -> list[TableRecord] | None:
    """A dict of columns as rows; None for a single row and for the output of a tokenizer."""
    columns = [value for value in data.values() if isinstance(value, (list, tuple, np.ndarray))]
    if not columns or len(columns) < len(data) or "input_ids" in data:
        return None
    if len({len(values) for values in columns}) > 1:
        lengths = ", ".join(f"{name} {len(values)}" for name, values in data.items())
        raise InputError(f"the columns of this table have several lengths: {lengths}.")
    return [dict(zip(data, values, strict=True)) for values in zip(*columns, strict=True)]


def source_of(record: TableRecord, text: str, pair: tuple[str, str] | None) -> Any:
    """The input in a row: a text, a pair of texts or an image; None if it is missing."""
    if pair is not None:
        halves = [record.get(name) for name in pair]
        if not all(isinstance(half, str) and half.strip() for half in halves):
            return None
        return TextPair(str(halves[0]), str(halves[1]), pair)
    value = record.get(text)
    if isinstance(value, str):
        return value if value.strip() else None
    is_picture = text.lower() in FILES and not is_missing(value)
    return value if is_picture else None


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, NaN, or the NA and NaT of pandas."""
    missing = isinstance(value, float) and math.isnan(value)
    return value is None or missing or type(value).__name__ in ("NAType", "NaTType")


def collected(data: Any) -> Any:
    """Generators, columns of data sets and similar iterables as a list; other data unchanged."""
    plain = isinstance(data, _UNCHANGED) or is_tensor(data)
    plain = plain or _has_columns(data) or _is_series(data)
    return list(data) if isinstance(data, Iterable) and not plain else data


def as_inputs(inputs: Any) -> Any:
    """Tables and arrays of texts as a list of inputs; a dict with a text as that text.

    Other inputs are returned unchanged; those that would be misread are refused.
    """
    inputs = collected(inputs)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "UTO":
        return _of_array(inputs)
    if isinstance(inputs, np.ndarray) and inputs.dtype.kind == "S":
        raise InputError(
            "cannot explain an array of bytes.", "Decode it: array.astype(str).", command=""
        )
    if isinstance(inputs, Set):
        raise InputError("cannot explain a set: it has no order for the explanations. Pass a list.")
    if isinstance(inputs, Mapping) and "input_ids" not in inputs:
        _check_splits(inputs)
        _check_tensors(inputs)
        if _of_columns(inputs) is None:
            return _sources([inputs])[0]
    if _are_messages(inputs):
        raise InputError(
            "these are chat messages.",
            'Explain an answer to them: explainer.answer(messages, "…") or '
            "explainer.generate(messages).",
            command="Explain an answer to them: wherefrom answer.",
        )
    records = records_of(inputs)
    if records is not None:
        return _sources(records)
    if _is_series(inputs):
        return _of_array(np.array(inputs.tolist(), dtype=object))
    return inputs


_UNCHANGED = (str, bytes, bytearray, list, tuple, Mapping, Set, np.ndarray)


def _is_series(inputs: Any) -> bool:
    """A column of pandas: values with an index."""
    return hasattr(inputs, "iloc") and hasattr(inputs, "tolist") and not _has_columns(inputs)


def _of_array(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.ndim != 1:
        raise InputError(
            f"an array of texts must have one axis, got shape {array.shape}.",
            "A pair of texts is a tuple: list(zip(first, second)).",
            command="",
        )
    missing = [i for i, value in enumerate(array) if is_missing(value)]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(array)} elements have no text, first at index {missing[0]}. "
            "Leave them out, with dropna() for example."
        )
    return list(array.tolist())


def _check_splits(inputs: Mapping[Any, Any]) -> None:
    """Refuses a data set of several splits, and other dicts of tables."""
    splits = [str(name) for name, value in inputs.items() if _has_columns(value)]
    if splits:
        raise InputError(
            f"cannot explain a {type(inputs).__name__} of several tables ({', '.join(splits)}).",
            f'Pass one of them, data["{splits[0]}"].',
            command="",
        )


def _check_tensors(inputs: Mapping[Any, Any]) -> None:
    """Refuses a dict of tensors: only a tensor passed alone defines the units."""
    names = [str(name) for name, value in inputs.items() if is_tensor(value)]
    if names:
        raise InputError(
            f"cannot explain a dict of tensors ({', '.join(names)}) without input_ids.",
            "Pass the one with a row for each unit, (units, features), by itself. "
            'Your forward= gets it as inputs["x"].',
            command="",
        )


def _are_messages(inputs: Any) -> bool:
    rows = inputs if isinstance(inputs, (list, tuple)) else ()
    return bool(rows) and all(isinstance(row, Mapping) and "role" in row for row in rows)


def _sources(records: Sequence[TableRecord]) -> list[Any]:
    """The input of each row; an error if a row has none."""
    if not records:
        raise InputError("the table has no rows: there is nothing to explain.")
    columns = columns_of(records)
    pair = pair_columns(columns, None, None)
    text = "" if pair else column(columns, None, TEXT, "text")
    sources = [source_of(record, text, pair) for record in records]
    missing = [number for number, source in enumerate(sources) if source is None]
    if missing:
        names = " or ".join(f'"{name}"' for name in (pair or (text,)))
        raise InputError(
            f"there is no text in {names} of {len(missing)} of {len(records)} rows, first in row "
            f"{missing[0]} (counted from 0). Leave them out, with dropna() for example."
        )
    return sources


def paired(first: Any, second: Any) -> Any:
    """Pairs each text with its second text: one pair, or a list of pairs."""
    if isinstance(first, str) and isinstance(second, str):
        return TextPair(first, second)
    firsts, seconds = as_inputs(first), as_inputs(second)
    if (
        isinstance(first, str)
        or isinstance(second, str)
        or not (isinstance(firsts, (list, tuple)) and isinstance(seconds, (list, tuple)))
    ):
        raise InputError("text_pair must be a text if the input is a text, else a list of texts.")
    if len(firsts) != len(seconds):
        raise InputError(f"there are {len(firsts)} texts, but {len(seconds)} in text_pair.")
    if not all(isinstance(text, str) for text in (*firsts, *seconds)):
        raise InputError("a second text (text pair) applies only to texts.")
    return [TextPair(a, b) for a, b in zip(firsts, seconds, strict=True)]
