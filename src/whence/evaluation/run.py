"""Runs any list of methods and metrics over any data, in one stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from whence.errors import InputError, ModelError
from whence.evaluation.metrics import Metric, Sample, correlation, metric
from whence.evaluation.pool import Item, Pool
from whence.evaluation.result import Evaluation
from whence.evaluation.store import Store
from whence.explanation import Explanation
from whence.inputs.table import Rows
from whence.inputs.text import Encoded, batch
from whence.methods import METHODS, Method
from whence.methods import method as find_method
from whence.subject import Subject

DEFAULT_METRICS = ("activation", "pruning")
Progress = Callable[[int, int, str], None]


class Explains(Protocol):
    """What an evaluation needs of an explainer."""

    subject: Subject
    tokenizer: Any

    def __call__(self, inputs: Any, method: Any = ..., **options: Any) -> Any: ...
    def encode(self, texts: Sequence[str], truncate: bool = ...) -> list[Encoded | InputError]: ...
    def index_of(self, label: str | int) -> int: ...


def evaluate(
    explainer: Explains,
    data: Rows | Iterable[str] | Iterable[tuple[str, str | int]],
    methods: Sequence[str | Method] | None = None,
    metrics: Sequence[str | Metric] = DEFAULT_METRICS,
    *,
    sample: int | None = None,
    seed: int = 0,
    blank: str | int = "unk",
    keep_special: bool = False,
    every: bool = False,
    truncate: bool = False,
    window: int = 64,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Tests methods on texts (or pairs of text and label).

    The class explained is the label where one is given, else the prediction. Erased units become
    `blank`. By default special tokens are erased like any other and curves have ten steps, as in
    Ali et al. 2022; `keep_special` and `every` change that. With `out`, finished samples are kept
    in a file there, and `resume` goes on from them. Ctrl-C gives back what was done.
    """
    rows = _as_rows(data)
    chosen = [find_method(each) for each in methods or METHODS]
    tests = [metric(each) for each in metrics]
    order = _drawn(len(rows), sample, seed)
    store = Store(
        Path(out) / "samples.jsonl" if out is not None else None,
        {
            "model": explainer.subject.name,
            "methods": [[each.name, each.settings()] for each in chosen],
            "metrics": [each.name for each in tests],
            "rows": len(rows),
            "sample": sample,
            "seed": seed,
            "blank": blank,
            "keep_special": keep_special,
            "every": every,
        },
    )
    if resume:
        store.load()
    store.start()
    job = _Job(explainer, rows, chosen, tests, blank, keep_special, every, truncate, store)
    began = time.perf_counter()
    try:
        for start in range(0, len(order), window):
            part = [i for i in order[start : start + window] if i not in store.done]
            job.do(part)
            if progress is not None:
                progress(min(start + window, len(order)), len(order), "")
        complete = True
    except KeyboardInterrupt:
        complete = False
    total = time.perf_counter() - began
    if not store.done:
        reasons = ", ".join(f"{n} {why}" for why, n in job.skipped.items()) or "interrupted"
        raise InputError(f"no sample could be evaluated ({reasons}).")
    return job.result(order, complete, total)


@dataclass
class _Job:
    explainer: Explains
    rows: Rows
    methods: list[Method]
    tests: list[Metric]
    blank: str | int
    keep_special: bool
    every: bool
    truncate: bool
    store: Store
    skipped: dict[str, int] = field(default_factory=dict)
    explaining: float = 0.0
    unable: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        subject, tokenizer = self.explainer.subject, self.explainer.tokenizer
        self.skipped.update(self.rows.skipped)
        self.labels = (
            None
            if self.rows.labels is None
            else [self.explainer.index_of(label) for label in self.rows.labels]
        )

        def collate(items: Sequence[Item]) -> dict[str, Any]:
            width = max(map(len, items))
            if all(len(item) == width for item in items):
                import torch

                ids = torch.from_numpy(np.stack(items))
                made = {"input_ids": ids}
                if subject.forward is not None or subject.takes("attention_mask"):
                    made["attention_mask"] = torch.ones_like(ids)
                return made
            encoded = [Encoded(item.tolist(), (), None) for item in items]
            return dict(batch(subject, tokenizer, encoded, None).tensors)

        self.pool = Pool(subject, collate)

    def do(self, part: list[int]) -> None:
        """Explains some samples by all methods, runs what the metrics ask, and keeps the values."""
        encoded = self.explainer.encode([self.rows.texts[i] for i in part], self.truncate)
        kept: list[int] = []
        bases: list[Encoded] = []
        for i, row in zip(part, encoded, strict=True):
            if isinstance(row, InputError):
                self._skip(str(type(row).__name__))
            elif not any(not unit.special for unit in row.units):
                self._skip("only special tokens")
            else:
                kept.append(i)
                bases.append(row)
        if not kept:
            return
        found = self._explained(kept, bases)
        asked: list[tuple[int, str, Metric, Sample, list[int]]] = []
        for at, i in enumerate(kept):
            base = np.array(bases[at].ids, dtype=np.int64)
            for name, explanations in found.items():
                sample = self._sample(explanations[at])
                for test in self.tests:
                    numbers = self.pool.ask(self._perturbed(base, test.masks(sample)))
                    asked.append((i, name, test, sample, numbers))
        self.pool.run()
        records = {i: self._record(i, at, found) for at, i in enumerate(kept)}
        for i, name, test, sample, numbers in asked:
            logits = self.pool.logits(numbers).astype(np.float64) if numbers else np.zeros((0, 0))
            value, curve = test.value(sample, logits)
            records[i]["values"].setdefault(name, {})[test.name] = value
            if curve is not None:
                records[i]["series"].setdefault(name, {})[test.name] = curve.tolist()
        for record in records.values():
            self.store.add(record)
        self.pool.forget()

    def _explained(self, kept: list[int], bases: list[Encoded]) -> dict[str, list[Explanation]]:
        target = None if self.labels is None else [self.labels[i] for i in kept]
        found: dict[str, list[Explanation]] = {}
        began = time.perf_counter()
        texts = [self.rows.texts[i] for i in kept]
        for each in self.methods:
            if each.name in self.unable:
                continue
            try:
                found[each.name] = self.explainer(
                    texts, each, target=target, truncate=self.truncate
                )
            except ModelError as error:
                if not self.unable and not found and len(self.methods) == 1:
                    raise
                self.unable[each.name] = str(error)
        self.explaining += time.perf_counter() - began
        if not found:
            raise ModelError(f"no method works on this model: {next(iter(self.unable.values()))}")
        return found

    def _sample(self, explanation: Explanation) -> Sample:
        free = np.array([not (self.keep_special and u.special) for u in explanation.units])
        return Sample(explanation, free, explanation.target.index, self.every)

    def _perturbed(self, base: Item, masks: NDArray[np.bool_]) -> list[Item]:
        if not len(masks):
            return []
        made = np.where(masks[:, : len(base)], base, self._blank_id())
        return list(made)

    def _blank_id(self) -> int:
        if not hasattr(self, "_blank"):
            row = Encoded([0], (), None)
            inputs = batch(self.explainer.subject, self.explainer.tokenizer, [row], None)
            self._blank = inputs.token_id(self.blank)
        return self._blank

    def _record(self, i: int, at: int, found: dict[str, list[Explanation]]) -> dict[str, Any]:
        sums = {
            name: [
                each[at].ledger.total if each[at].ledger else float(each[at].scores.sum()),  # type: ignore[union-attr]
                each[at].output,
            ]
            for name, each in found.items()
        }
        names = list(found)
        scores = [found[name][at].scores.astype(np.float64) for name in names]
        agree = {
            f"{a}|{b}": correlation(scores[x], scores[y])
            for x, a in enumerate(names)
            for y, b in enumerate(names)
            if x < y
        }
        return {"sample": i, "values": {}, "series": {}, "sums": sums, "agreement": agree}

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def result(self, order: list[int], complete: bool, seconds: float) -> Evaluation:
        """All finished samples as one evaluation."""
        done = [self.store.done[i] for i in order if i in self.store.done]
        names = [each.name for each in self.methods if each.name in done[0]["values"]]
        tests = [each.name for each in self.tests]
        agreement = {
            a: {
                b: 1.0
                if a == b
                else float(
                    np.mean(
                        [
                            r["agreement"].get(f"{a}|{b}", r["agreement"].get(f"{b}|{a}"))
                            for r in done
                        ]
                    )
                )
                for b in names
            }
            for a in names
        }
        around = max(seconds - self.explaining, 1e-9)
        return Evaluation(
            model=self.explainer.subject.name,
            methods=names,
            metrics=tests,
            values={m: {t: [r["values"][m][t] for r in done] for t in tests} for m in names},
            series={
                m: {
                    t: [r["series"][m][t] for r in done]
                    for t in tests
                    if t in done[0]["series"].get(m, {})
                }
                for m in names
            },
            sums={m: [tuple(r["sums"][m]) for r in done] for m in names},
            agreement=agreement,
            skipped=self.skipped,
            settings=self.store.settings | {"unable": self.unable},
            timing={
                "seconds": seconds,
                "explaining": self.explaining,
                "forward": self.pool.forward_seconds,
                "efficiency": self.pool.forward_seconds / around,
                "asked": self.pool.asked,
                "ran": self.pool.ran,
            },
            complete=complete,
        )


def _as_rows(data: Any) -> Rows:
    if isinstance(data, Rows):
        return data
    if isinstance(data, str):
        raise InputError("give a list of texts, or whence.read_table(path).")
    given = list(data)
    if not given:
        raise InputError("there are no texts to evaluate on.")
    if all(isinstance(each, str) for each in given):
        return Rows(given, None)
    if all(isinstance(each, (tuple, list)) and len(each) == 2 for each in given):
        return Rows([text for text, _ in given], [label for _, label in given])
    raise InputError("give texts, or pairs of a text and its label.")


def _drawn(count: int, sample: int | None, seed: int) -> list[int]:
    if sample is None or sample >= count:
        return list(range(count))
    return sorted(np.random.default_rng(seed).choice(count, sample, replace=False).tolist())
