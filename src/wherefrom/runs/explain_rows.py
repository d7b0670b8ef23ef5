"""Rows in, rows out: texts explained in batches by tokens; a bad row becomes a rejected one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wherefrom.core.explanation import Explanation
from wherefrom.errors import InputError, NotEnoughMemory, NotFinite, SamplesRunAlone, TextCut
from wherefrom.explainer import Explainer
from wherefrom.inputs.text import Encoded, like_lengths
from wherefrom.methods import Method
from wherefrom.runs.rows import Row, explained_row, rejected_row

_OF_ONE_ROW = (InputError, NotFinite, NotEnoughMemory)  # others are of the model or the method


@dataclass(frozen=True)
class RowExplainer:
    """Explains rows; the same rows give the same result, whoever calls it.

    Texts of like length share a batch of at most `batch_size` texts and `batch_tokens` tokens.
    """

    explainer: Explainer
    method: Method
    target: str | int | None = None
    against: str | int | None = None
    batch_size: int = 128
    batch_tokens: int = 4096
    truncate: bool = False

    def __call__(
        self, ids: Sequence[str], texts: Sequence[Any], labels: Sequence[str | int | None]
    ) -> tuple[list[Row], list[Row]]:
        """The explained rows and the rejected ones, each in the order of the input."""
        rows = self.in_order(ids, texts, labels)
        explained = [row for row in rows if "reason" not in row]
        return explained, [row for row in rows if "reason" in row]

    def in_order(
        self, ids: Sequence[str], texts: Sequence[Any], labels: Sequence[str | int | None]
    ) -> list[Row]:
        """A row for each text: an explained one, or a rejected one with the reason."""
        results = self._results(texts)
        return [
            explained_row(id, label, result)
            if isinstance(result, Explanation)
            else rejected_row(id, None if text is result else text, str(result))
            for id, text, label, result in zip(ids, texts, labels, results, strict=True)
        ]

    def _results(self, texts: Sequence[Any]) -> Iterator[Explanation | Exception]:
        """An explanation of each text, or the reason why there is none."""
        results: dict[int, Explanation | Exception] = {}
        readable: list[int] = []
        for i, text in enumerate(texts):
            if isinstance(text, str):
                readable.append(i)
            else:
                results[i] = text if isinstance(text, Exception) else _no_text(text)
        encoded = self._encoded([texts[i] for i in readable])
        usable: dict[int, Encoded] = {}
        for i, item in zip(readable, encoded, strict=True):
            if isinstance(item, InputError):
                results[i] = item
            elif all(unit.special for unit in item.units):
                results[i] = InputError("the text has special tokens only.")
            else:
                usable[i] = item
        order, lengths = list(usable), [len(item.ids) for item in usable.values()]
        for chunk in like_lengths(lengths, self.batch_size, self.batch_tokens):
            numbers = [order[k] for k in chunk]
            batch = self._explain_each([usable[i] for i in numbers])
            results.update(zip(numbers, batch, strict=True))
        return (results[i] for i in range(len(texts)))

    def _encoded(self, texts: list[str]) -> list[Encoded | InputError]:
        if not texts:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextCut)  # asked for, and in the tokens
            return self.explainer.encode(texts, self.truncate)

    def _explain_each(self, items: list[Encoded]) -> list[Explanation | Exception]:
        """All at once; one by one if one of them makes that fail."""
        try:
            return list(self._explain(items))
        except _OF_ONE_ROW as error:
            if len(items) == 1:
                return [error]
        return [result for item in items for result in self._explain_each([item])]

    @cached_property
    def _for_many(self) -> Explainer:
        return self.explainer

    def _explain(self, items: list[Encoded]) -> list[Explanation]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SamplesRunAlone)  # the same for every batch
            explanations: list[Explanation] = self._for_many(
                items,
                self.method,
                target=self.target,
                against=self.against,
                batch_size=len(items),
            )
        return explanations


def _no_text(value: Any) -> InputError:
    if value is None:
        return InputError("there is no text.")
    return InputError(f"not a text, but a value of type {type(value).__name__}.")
