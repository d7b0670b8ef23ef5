"""Whether citations and verdicts can be relied on, measured on answers whose support is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from wherefrom.core.progress import Progress, shown
from wherefrom.errors import counted
from wherefrom.evaluation.metrics import Floats
from wherefrom.evaluation.recommendation import FEWEST, mean_interval
from wherefrom.storage.record import Record

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer

_BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
WELL_CALIBRATED = 0.1
"""The largest mean gap of a calibrated probability."""


@dataclass(frozen=True)
class LabelledAnswer:
    """What an answer gave: the labelled passages, the cited ones, and the sentences' verdicts."""

    supporting: tuple[str, ...]  # empty: no passage supports the answer
    first: tuple[str, ...]  # by relevance, as many as there are labelled ones
    cited: tuple[str, ...]
    verdicts: tuple[str, ...]
    probabilities: tuple[float, ...]  # one for each sentence
    seconds: float  # of processor time


def measured(explain: Callable[[], Answer], supporting: Sequence[int]) -> LabelledAnswer:
    """Explains an answer and compares it with its labels: numbers of passages, from 1 on."""
    began = time.process_time()
    answer = explain()
    verdicts = answer.verdicts()
    names = {part.name for part in answer.parts if part.kind == "passage"}
    ranking = [source.name for source in answer.sources("passage") if source.name in names]
    cited = {support.passage for verdict in verdicts for support in verdict.passages}
    return LabelledAnswer(
        tuple(f"passage {number}" for number in supporting),
        tuple(ranking[: len(supporting)]),
        tuple(sorted(cited)),
        tuple(verdict.verdict for verdict in verdicts),
        tuple(verdict.probability for verdict in verdicts),
        time.process_time() - began,
    )


@dataclass(frozen=True)
class AnswerEvaluation(Record):
    """Recall, precision of citations and calibration of verdicts over labelled answers."""

    schema: ClassVar[str] = "wherefrom/answer-evaluation/1"
    noun: ClassVar[str] = "evaluation of answers"
    model: str
    answers: tuple[LabelledAnswer, ...] = field(repr=False)

    @property
    def recall(self) -> float:
        """The mean share of the supporting passages among the first ones by relevance."""
        return _mean([_share(a.supporting, a.first) for a in self.answers if a.supporting])

    @property
    def citation_recall(self) -> float:
        """The mean share of the supporting passages that are cited."""
        return _mean([_share(a.supporting, a.cited) for a in self.answers if a.supporting])

    @property
    def citation_precision(self) -> float:
        """The share of the cited passages that support the answer."""
        return _mean([float(name in a.supporting) for a in self.answers for name in a.cited])

    @property
    def sentences(self) -> tuple[Floats, Floats]:
        """The probability of each sentence, and 1 if the answer that it belongs to is supported."""
        pairs = [(p, float(bool(a.supporting))) for a in self.answers for p in a.probabilities]
        values = np.array(pairs).reshape(-1, 2)
        return values[:, 0], values[:, 1]

    @property
    def area(self) -> float:
        """The chance that a supported sentence has a higher probability than another one."""
        p, supported = self.sentences
        pairs = np.sign(p[supported == 1][:, None] - p[supported == 0][None])
        return float((pairs.mean() + 1) / 2) if pairs.size else float("nan")

    @property
    def calibration(self) -> list[tuple[float, float, int]]:
        """Mean probability, share of supported sentences, and count, for each fifth of [0, 1]."""
        p, supported = self.sentences
        bins = np.clip(np.digitize(p, _BINS) - 1, 0, len(_BINS) - 2)
        return [
            (float(p[bins == i].mean()), float(supported[bins == i].mean()), int((bins == i).sum()))
            for i in range(len(_BINS) - 1)
            if (bins == i).any()
        ]

    @property
    def gap(self) -> float:
        """The mean distance of the probabilities from the shares of supported sentences."""
        counts = [count for *_, count in self.calibration]
        gaps = [abs(p - share) * count for p, share, count in self.calibration]
        return sum(gaps) / sum(counts) if counts else float("nan")

    @property
    def seconds(self) -> float:
        """The mean processor time of an answer with its verdicts."""
        return _mean([a.seconds for a in self.answers])

    @property
    def recommendation(self) -> str:
        """What the figures allow: to show verdicts, to rank by them, or neither."""
        supported = sum(bool(a.supporting) for a in self.answers)
        others = len(self.answers) - supported
        if min(supported, others) < FEWEST // 2:
            return (
                f"No recommendation: it takes {FEWEST // 2} supported and {FEWEST // 2} "
                f"unsupported answers, and there are {supported} and {others}."
            )
        low = self._area_low()
        if low <= 0.5:
            return (
                "Do not show verdicts for this model: that supported sentences get a higher "
                f"probability is not shown (ROC AUC {self.area:.2f}, from {low:.2f} on)."
            )
        if self.gap > WELL_CALIBRATED:
            return (
                "Sort sentences by the probability, but do not show it: it is off by "
                f"{self.gap:.2f} on average (ROC AUC {self.area:.2f}, from {low:.2f} on)."
            )
        return (
            f"Show verdicts: the probabilities are off by {self.gap:.2f} on average (ROC AUC "
            f"{self.area:.2f}, from {low:.2f} on)."
        )

    def _area_low(self) -> float:
        """The lower end of the area's 95 % interval, over the supported sentences."""
        p, supported = self.sentences
        others = p[supported == 0][None]
        ranks = (np.sign(p[supported == 1][:, None] - others).mean(1) + 1) / 2
        return mean_interval(ranks)[0]

    def __str__(self) -> str:
        p, supported = self.sentences
        counts = f"{counted(len(self.answers), 'answer')}, {counted(len(p), 'sentence')}"
        lines = [
            f"{counts}, {int(supported.sum())} in supported answers",
            f"recall of the supporting passages, first by relevance: {self.recall:.0%}",
            f"recall of the citations: {self.citation_recall:.0%}",
            f"precision of the citations: {self.citation_precision:.0%}",
            f"ROC AUC of the verdicts: {self.area:.2f}",
            "calibration, probability → share that is supported: "
            + ", ".join(f"{a:.2f} → {b:.2f} ({n})" for a, b, n in self.calibration),
            f"processor time: {self.seconds:.1f} s an answer",
            self.recommendation,
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "schema": self.schema,
            "model": self.model,
            "answers": [asdict(answer) for answer in self.answers],
            "recall": self.recall,
            "citation_recall": self.citation_recall,
            "citation_precision": self.citation_precision,
            "roc_auc": self.area,
            "calibration": self.calibration,
            "calibration_gap": self.gap,
            "seconds": self.seconds,
            "recommendation": self.recommendation,
        }

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        rows: list[dict[str, Any]] = [
            {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
            for row in data["answers"]
        ]
        return cls(data["model"], tuple(LabelledAnswer(**row) for row in rows))


def evaluate_answers(
    explainer: Any,
    prompts: Sequence[Any],
    answers: Sequence[str],
    supporting: Sequence[Sequence[int]],
    progress: Progress | None = None,
) -> AnswerEvaluation:
    """Explains labelled answers and measures their citations and verdicts.

    `supporting`: the numbers of the passages that support each answer, from 1 on; none if no
    passage does.
    """
    results = []
    with shown("evaluating", progress) as report:
        for i, (prompt, text, numbers) in enumerate(zip(prompts, answers, supporting, strict=True)):
            report(i, len(prompts), "answers")
            results.append(
                measured(lambda p=prompt, t=text: explainer.answer(p, t), numbers)  # type: ignore[misc]
            )
    return AnswerEvaluation(explainer.runner.name, tuple(results))


def _share(wanted: Sequence[str], found: Sequence[str]) -> float:
    return len(set(wanted) & set(found)) / len(wanted)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
