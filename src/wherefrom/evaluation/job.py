"""The work of an evaluation, window by window: explain, erase, run, measure, keep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from wherefrom.errors import InputError, ModelError
from wherefrom.evaluation.checkpoint import Store
from wherefrom.evaluation.explain_samples import Explaining, Explains, check_kind, why
from wherefrom.evaluation.forward_cache import Pool
from wherefrom.evaluation.metrics import Metric, Sample, correlations
from wherefrom.evaluation.results import Evaluation
from wherefrom.explanation import Explanation
from wherefrom.inputs.table import Rows
from wherefrom.methods import Method
from wherefrom.studies.base import Group, Study


@dataclass
class Job:
    """One evaluation: what it runs on, and what it has found so far."""

    explainer: Explains
    rows: Rows
    methods: list[Method]
    tests: list[Metric]
    blank: str | int | None
    keep_special: bool
    every: bool
    truncate: bool
    store: Store
    skipped: dict[str, int] = field(default_factory=dict)
    studying: float = 0.0
    unable: dict[str, str] = field(default_factory=dict)
    studies: dict[Study, set[int]] = field(default_factory=dict)  # and the rows they look at
    told: Callable[[float, str], None] | None = None

    def __post_init__(self) -> None:
        check_kind(self.explainer.subject)
        self.reader = self.explainer.reader(self.rows.texts[0])
        self.skipped.update(self.rows.skipped)
        self.labels = (
            None
            if self.rows.labels is None
            else [self.explainer.index_of(label) for label in self.rows.labels]
        )
        self.explaining = Explaining(self.explainer, self.methods, self.truncate, self.unable)
        self.pool = Pool(self.reader)
        if self.store.done:  # what could not be run before is not tried again
            known = next(iter(self.store.done.values()))["sums"]
            missing = [each.name for each in self.methods if each.name not in known]
            self.unable.update(dict.fromkeys(missing, "could not be run before"))
            self.explaining.able.update(known)

    def tell(self, size: int, phase: float, doing: str) -> None:
        """Says how far a window is: each method is a phase, each metric, each study."""
        phases = len(self.methods) + len(self.tests) + len(self.studies)
        if self.told is not None:
            self.told(size * phase / max(1, phases), doing)

    def do(self, part: list[int]) -> None:
        """Explains some samples by all methods, runs what the metrics ask, and keeps the values."""
        read = self.reader.read_each([self.rows.texts[i] for i in part], self.truncate)
        kept: list[int] = []
        bases: list[Any] = []
        for i, row in zip(part, read, strict=True):
            if isinstance(row, InputError):
                self._skip(why(row))
            elif all(unit.special for unit in self.reader.units_of(row)):
                self._skip("only special tokens")
            else:
                kept.append(i)
                bases.append(row)
        if not kept:
            return
        found, failed = self.explaining(
            bases,  # read once, not by every method again
            None if self.labels is None else [self.labels[i] for i in kept],
            sorted(range(len(kept)), key=lambda at: self.reader.size(bases[at])),
            partial(self.tell, len(part)),
        )
        for error in failed.values():
            self._skip(why(error))
        there = [at for at in range(len(kept)) if at not in failed]
        kept, bases = [kept[at] for at in there], [bases[at] for at in there]
        asked: list[tuple[int, str, Metric, Sample, list[int]]] = []
        for at, i in enumerate(kept):
            for name, explanations in found.items():
                sample = self._sample(explanations[at])
                for test in self.tests:
                    masks = test.masks(sample)
                    numbers = self.pool.ask(self.reader.erased(bases[at], masks, self.blank))
                    asked.append((i, name, test, sample, numbers))
        phase = len(self.methods)
        self.pool.run(
            lambda share: self.tell(len(part), phase + share * len(self.tests), "perturbed inputs")
        )
        records = {i: self._record(i, at, found) for at, i in enumerate(kept)}
        for i, name, test, sample, numbers in asked:
            logits = self.pool.logits(numbers).astype(np.float64) if numbers else np.zeros((0, 0))
            if not np.isfinite(logits).all():
                records.pop(i, None)
                continue
            if i not in records:
                continue
            value, curve = test.value(sample, logits)
            records[i]["values"].setdefault(name, {})[test.name] = value
            if curve is not None:
                records[i]["series"].setdefault(name, {})[test.name] = curve.tolist()
        for _ in range(len(kept) - len(records)):
            self._skip("not finite when perturbed")
        self._study(kept, bases, found, records, len(part))
        for record in records.values():
            self.store.add(record)
        self.pool.forget()

    def _study(
        self,
        kept: list[int],
        bases: list[Any],
        found: dict[str, list[Explanation]],
        records: dict[int, dict[str, Any]],
        size: int,
    ) -> None:
        """Makes the studies on those samples that they look at."""
        began = time.perf_counter()
        phase = len(self.methods) + len(self.tests)
        for place, (study, looked_at) in enumerate(self.studies.items()):
            chosen = [at for at, i in enumerate(kept) if i in looked_at and i in records]
            if not chosen or study.name in self.unable:
                continue
            group = Group(
                self.reader.subject,
                lambda some, of=chosen: self.reader.batch(  # type: ignore[misc]
                    [bases[of[at]] for at in some]
                ),
                {name: [each[at] for at in chosen] for name, each in found.items()},
            )
            try:
                self.tell(size, phase + place, study.name)
                made = study.records(group, partial(self.tell, size, phase + place, study.name))
            except ModelError as error:
                self.unable[study.name] = str(error)
                continue
            for at, record in zip(chosen, made, strict=True):
                records[kept[at]].setdefault("studies", {})[study.name] = record
        self.studying += time.perf_counter() - began

    def _sample(self, explanation: Explanation) -> Sample:
        free = np.array([not (self.keep_special and u.special) for u in explanation.units])
        return Sample(explanation, free, explanation.target.index, self.every)

    def _record(self, i: int, at: int, found: dict[str, list[Explanation]]) -> dict[str, Any]:
        sums = {
            name: [
                each[at].ledger.total if each[at].ledger else float(each[at].scores.sum()),  # type: ignore[union-attr]
                each[at].output,
            ]
            for name, each in found.items()
        }
        names = list(found)
        alike = correlations(np.stack([found[name][at].scores for name in names]).astype(float))
        agree = {
            f"{a}|{b}": float(alike[x, y])
            for x, a in enumerate(names)
            for y, b in enumerate(names)
            if x < y
        }
        return {"sample": i, "values": {}, "series": {}, "sums": sums, "agreement": agree}

    def _skip(self, why: str) -> None:
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def _notes(self, done: list[dict[str, Any]]) -> list[str]:
        """What a reader should know of the data before trusting the numbers."""
        notes = [f"{name} was left out: {why}" for name, why in self.unable.items()]
        if self.labels is not None and len({self.labels[r["sample"]] for r in done}) == 1:
            label = (self.rows.labels or [""])[done[0]["sample"]]
            notes.append(f"every sample has the label {label}: nothing is said of other classes")
        if len(done) < 10:
            notes.append(f"{len(done)} sample(s) are too few for the intervals to mean much")
        return notes

    def result(self, order: list[int], complete: bool, seconds: float) -> Evaluation:
        """All finished samples as one evaluation."""
        done = [self.store.done[i] for i in order if i in self.store.done]
        names = [each.name for each in self.methods if each.name in done[0]["sums"]]
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
        around = max(seconds - self.explaining.seconds - self.studying, 1e-9)
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
            studies={
                each.name: [
                    r["studies"][each.name] for r in done if each.name in r.get("studies", {})
                ]
                for each in self.studies
                if each.name not in self.unable
            },
            notes=self._notes(done),
            timing={
                "seconds": seconds,
                "studying": self.studying,
                "explaining": self.explaining.seconds,
                "forward": self.pool.forward_seconds,
                "efficiency": self.pool.forward_seconds / around,
                "asked": self.pool.asked,
                "ran": self.pool.ran,
            },
            complete=complete,
        )
