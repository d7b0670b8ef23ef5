"""A table of pandas in, a table of explanations out: what Spark and Dask call on their parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wherefrom.errors import InputError
from wherefrom.explainer import Explainer
from wherefrom.inputs.records import find_columns
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.runs.engine import ModelSource
from wherefrom.runs.explain_rows import RowExplainer
from wherefrom.runs.rows import FRAME, columns
from wherefrom.storage.tables import pandas


def explain_frame(
    frame: Any,
    explainer: Explainer | str | Path = "sentiment",
    method: str | Method = "lrp",
    target: str | int | None = None,
    against: str | int | None = None,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    batch_size: int = 128,
    batch_tokens: int = 4096,
    truncate: bool = False,
) -> Any:
    """Explains every row of a pandas table: a row for each, in its order, under its index.

    The columns are those of `wherefrom.runs.rows.FRAME`; a row that cannot be explained has
    the reason in the last of them and null in the others. A model given by what `load` takes is
    loaded once in a process. An iterator of tables gives one too, which is what Spark's
    `mapInPandas` passes; Dask's `map_partitions` passes a table.
    """
    rows = _FrameExplainer(
        ModelSource(explainer),
        (text_column, label_column, id_column),
        {
            "method": find_method(method), "target": target, "against": against,
            "batch_size": batch_size, "batch_tokens": batch_tokens, "truncate": truncate,
        },
    )  # fmt: skip
    return rows(frame) if hasattr(frame, "columns") else map(rows, frame)


class _FrameExplainer:
    def __init__(
        self,
        model: ModelSource,
        names: tuple[str | None, str | None, str | None],
        options: dict[str, Any],
    ) -> None:
        self.model, self.names, self.options = model, names, options

    def __call__(self, frame: Any) -> Any:
        library = pandas("explain_frame")
        text_name, label_name, id_name = self.names
        if id_name is not None and id_name not in frame.columns:
            raise InputError(f'there is no column "{id_name}".')
        text, label = find_columns([str(name) for name in frame.columns], text_name, label_name)
        texts = _without_gaps(frame[text])
        ids = frame.index if id_name is None else frame[id_name]
        labels = _without_gaps(frame[label]) if label else [None] * len(texts)
        results: list[dict[str, Any]] = []
        if texts:
            explain = RowExplainer(self.model.explainer(), **self.options)
            results = explain.rows([str(id) for id in ids.tolist()], texts, labels)
        return library.DataFrame(
            {
                name: library.Series(values, dtype=_dtype(FRAME[name]), index=frame.index)
                for name, values in columns(results, FRAME).items()
            }
        )


def _without_gaps(column: Any) -> list[Any]:
    """The values of a column; None for NaN and the like."""
    values = zip(column.tolist(), column.isna().tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in values]


def _dtype(kind: str) -> Any:
    """A type with nulls, the same for every table: an empty one too."""
    return {"double": "float64", "int": "Int64"}.get(kind, object)
