"""Explains rows of data in batches; a row that cannot be explained is rejected with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wherefrom.core.explanation import Explanation
from wherefrom.core.memory import keep_heap, set_objects_aside
from wherefrom.errors import InputError, SamplesRunAlone, TextCut, WherefromError
from wherefrom.explainer import Explainer
from wherefrom.inputs.records import find_columns
from wherefrom.inputs.text import Encoded, by_length
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.runs.crash_isolation import Attempts
from wherefrom.runs.engine import ModelSource
from wherefrom.runs.parts import DataPart
from wherefrom.runs.rows import (
    FRAME,
    REJECTED,
    TYPES,
    ResultRow,
    columns,
    explained_row,
    rejected_row,
)
from wherefrom.storage.fingerprint import explainer_fingerprint
from wherefrom.storage.store import PartRecord, Store, StoredTable
from wherefrom.storage.tables import pandas

Result = Explanation | WherefromError


def prepare_for_many_rows() -> None:
    """Speeds up every batch; only for our own processes: commands and workers."""
    keep_heap()
    set_objects_aside()


def encode(
    explainer: Any, texts: Sequence[Any], truncate: bool
) -> tuple[list[Encoded | WherefromError], int]:
    """Tokenizes each text, or returns its error; also returns the number of truncated texts."""
    results: list[Any] = [_not_a_text(text) for text in texts]
    readable = [i for i, error in enumerate(results) if error is None]
    cut = 0
    if readable:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TextCut)
            encoded = explainer.encode([texts[i] for i in readable], truncate)
        for warning in caught:
            if issubclass(warning.category, TextCut):
                cut += 1  # one for each text
            else:
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
        for i, item in zip(readable, encoded, strict=True):
            if isinstance(item, Encoded) and all(unit.special for unit in item.units):
                item = InputError("the text has only special tokens.")
            results[i] = item
    return results, cut


def _not_a_text(value: Any) -> WherefromError | None:
    if isinstance(value, (str, WherefromError)):
        return None if isinstance(value, str) else value
    if value is None:
        return InputError("there is no text.")
    return InputError(f"not a text, but a value of type {type(value).__name__}.")


@dataclass(frozen=True)
class RowExplainer:
    """Explains rows; the result depends only on the rows, not on the process.

    Texts of similar length share a batch of at most `batch_size` texts and `batch_tokens` tokens.
    """

    explainer: Explainer
    method: Method
    target: str | int | None = None
    against: str | int | None = None
    batch_size: int = 128
    batch_tokens: int = 4096
    truncate: bool = False

    def rows(
        self, ids: Sequence[str], texts: Sequence[Any], labels: Sequence[str | int | None]
    ) -> list[ResultRow]:
        """A row for each text, in order: explained, or rejected with the reason."""
        items, _ = encode(self.explainer, texts, self.truncate)
        results: list[Any] = list(items)
        for chunk, explanations in self.batches(items):
            for i, result in zip(chunk, explanations, strict=True):
                results[i] = result
        return [
            explained_row(id, label, result)
            if isinstance(result, Explanation)
            else rejected_row(id, None if text is result else text, str(result))
            for id, text, label, result in zip(ids, texts, labels, results, strict=True)
        ]

    def batches(
        self, items: Sequence[Encoded | WherefromError]
    ) -> Iterator[tuple[list[int], list[Result]]]:
        """The explanations of the encoded texts, batch by batch, with the items' indices."""
        usable = {i: item for i, item in enumerate(items) if isinstance(item, Encoded)}
        order, lengths = list(usable), [len(item.ids) for item in usable.values()]
        for chunk in by_length(lengths, self.batch_size, self.batch_tokens):
            indices = [order[k] for k in chunk]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SamplesRunAlone)  # the same for every batch
                results = self.explainer.each(
                    [usable[i] for i in indices], self.method, self.target, self.against,
                    batch_size=len(indices),
                )  # fmt: skip
            yield indices, [r if isinstance(r, Explanation) else r.error for r in results]


@dataclass(frozen=True)
class Explaining:
    """How rows are explained: the model, and the arguments of `RowExplainer`."""

    model: ModelSource
    options: dict[str, Any]
    name: str
    fingerprint: dict[str, Any]

    @staticmethod
    def checked(model: ModelSource, options: dict[str, Any]) -> Explaining:
        """Loads the model; raises if the target or the method does not exist."""
        explainer = model.explainer()
        for name in ("target", "against"):
            if options[name] is not None:
                explainer.index_of(options[name])
        options = options | {"method": find_method(options["method"])}
        return Explaining(model, options, explainer.runner.name, explainer_fingerprint(explainer))

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the results depend on."""
        method = self.options["method"]
        return {
            "model": self.name,
            "method": [method.name, method.settings()],
            "target": [self.options["target"], self.options["against"]],
            "truncate": self.options["truncate"],
            **self.fingerprint,
        }


@dataclass
class ExplainPart:
    """Explains a part, writes its rows and returns its record."""

    explaining: Explaining
    on_gpu: bool
    store: Store
    _explain: RowExplainer | None = None

    def __call__(self, part: DataPart) -> PartRecord:
        if self._explain is None:
            explainer = self.explaining.model.verified(self.explaining.fingerprint, self.on_gpu)
            self._explain = RowExplainer(explainer, **self.explaining.options)
        explain = self._explain
        rows: list[ResultRow] = []
        for indices, result in Attempts.at(self.store, part.name).results(
            len(part.ids),
            lambda rows: explain.rows(part.ids[rows], part.texts[rows], part.labels[rows]),
        ):
            if isinstance(result, str):
                result = [rejected_row(part.ids[indices.start], part.texts[indices.start], result)]
            rows += result
        explained = [row for row in rows if "reason" not in row]
        rejected = [row for row in rows if "reason" in row]
        tables = [
            StoredTable("results", columns(explained, TYPES), TYPES),
            StoredTable("rejected", columns(rejected, REJECTED), REJECTED),
        ]
        counts = {
            "read": len(part.ids), "explained": len(explained), "rejected": len(rejected),
            "size": part.size,
        }  # fmt: skip
        return self.store.add(part.name, tables, counts)


def explain_frame(
    frame: Any,
    explainer: Explainer | str | Path = "sentiment",
    method: str | Method = "auto",
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
    """Explains every row of a pandas table; the result has the same order and index.

    The columns are those of `wherefrom.runs.rows.FRAME`; for a row that cannot be explained, the
    last one has the reason and the others are null. A model that is named as for `load` is loaded
    once per process. An iterator of tables, as from Spark's `mapInPandas`, gives an iterator;
    Dask's `map_partitions` passes a table.
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
        texts = _with_none(frame[text])
        ids = frame.index if id_name is None else frame[id_name]
        labels = _with_none(frame[label]) if label else [None] * len(texts)
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


def _with_none(column: Any) -> list[Any]:
    """The values of a column, with None for NaN and other missing values."""
    values = zip(column.tolist(), column.isna().tolist(), strict=True)
    return [None if is_missing else value for value, is_missing in values]


def _dtype(kind: str) -> Any:
    """A nullable pandas type, the same for every table, including empty ones."""
    return {"double": "float64", "int": "Int64"}.get(kind, object)
