"""Explains a corpus window by window, in batches of like length, and can go on after a stop."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wherefrom.corpus.checkpoint import Part, Parts
from wherefrom.corpus.corpus import NONE, Corpus, Ints, joined, word_sums
from wherefrom.errors import FileError, InputError, TargetError
from wherefrom.explanation import Explanation, TargetInfo
from wherefrom.inputs.table import Rows, as_rows
from wherefrom.inputs.text import Encoded, batch, like_lengths
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.methods.intercept import run
from wherefrom.subject import Subject

Progress = Callable[[int, int, str], None]
Asked = int | str | None


class Explains(Protocol):
    """What a corpus needs of an explainer."""

    subject: Subject
    tokenizer: Any

    def __call__(self, inputs: Any, method: Any = ..., **options: Any) -> Any: ...
    def encode(self, texts: Sequence[str], truncate: bool = ...) -> list[Encoded | InputError]: ...
    def index_of(self, label: str | int) -> int: ...
    def labels(self) -> list[str]: ...


def explain_corpus(
    explainer: Explains,
    data: Rows | Iterable[str],
    method: str | Method = "lrp",
    target: Asked = None,
    against: Asked = None,
    *,
    batch_size: int = 128,
    tokens: int = 4096,
    window: int = 1024,
    truncate: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """Explains every text and keeps the relevance of its words.

    A model of two classes is asked about the difference of its outputs, the second minus the first
    unless `target` says otherwise; one of more classes about the one predicted, or `target` and
    `against`. A batch has at most `batch_size` texts and `tokens` tokens: lower them where memory
    is short. With `out`, finished windows are kept in a folder there, and `resume` goes on from
    them to the very same result. Ctrl-C gives back what was done.
    """
    rows = _texts(data)
    question = ask(explainer, target, against)
    chosen = find_method(method)
    labels = _labels(explainer, rows)
    parts = Parts(
        None if out is None else Path(out) / "parts",
        {
            "model": explainer.subject.name,
            "method": [chosen.name, chosen.settings()],
            "target": question and [question.index, question.against],
            "texts": hashlib.sha256("\0".join(rows.texts).encode()).hexdigest(),
            "batches": [batch_size, tokens, window],
            "truncate": truncate,
        },
    )
    job = _Job(explainer, rows, chosen, question, batch_size, tokens, truncate)
    if resume:
        parts.load()
        job.check(parts.done)
    parts.start()
    complete = True
    try:
        for number, start in enumerate(range(0, len(rows), window)):
            if number not in parts.done:
                parts.add(number, job.do(range(start, min(start + window, len(rows)))))
            if progress is not None:
                progress(min(start + window, len(rows)), len(rows), "")
    except KeyboardInterrupt:
        complete = False
    return _gathered(job, parts, labels, complete)


def ask(explainer: Explains, target: Asked, against: Asked) -> TargetInfo | None:
    """What is explained in all texts; None means the class predicted for each."""
    classes = explainer.labels()
    if target is None and against is not None and len(classes) != 2:
        raise TargetError("against= needs a target.")
    if target is None and len(classes) != 2:
        return None
    other = None if against is None else explainer.index_of(against)
    second = 1 if other is None else 1 - other
    index = second if target is None else explainer.index_of(target)
    if other is None and len(classes) == 2:
        other = 1 - index
    if other == index:
        raise TargetError(f"target and against are the same class, {index}.")

    def name(number: int) -> str:
        return classes[number] if number < len(classes) else str(number)

    return TargetInfo(index, name(index), other, None if other is None else name(other))


@dataclass
class _Job:
    explainer: Explains
    rows: Rows
    method: Method
    question: TargetInfo | None
    batch_size: int
    tokens: int
    truncate: bool

    def do(self, numbers: Sequence[int]) -> Part:
        """Explains some rows; the skipped ones are counted by reason."""
        skipped: dict[str, int] = {}
        kept: dict[int, Encoded] = {}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")  # one for each text that is cut: counted, not shown
            encoded = self.explainer.encode([self.rows.texts[i] for i in numbers], self.truncate)
        cut = sum("was cut" in str(each.message) for each in told)
        for i, row in zip(numbers, encoded, strict=True):
            reason = _unusable(row)
            if reason:
                skipped[reason] = skipped.get(reason, 0) + 1
            else:
                assert isinstance(row, Encoded)
                kept[i] = row
        found: dict[int, tuple[Explanation, int]] = {}
        order, lengths = list(kept), [len(row.ids) for row in kept.values()]
        for chunk in like_lengths(lengths, self.batch_size, self.tokens):
            several = [kept[order[k]] for k in chunk]
            explanations = self._explained(several)
            classes = self._predicted(several, explanations)
            for k, each, index in zip(chunk, explanations, classes, strict=True):
                found[order[k]] = (each, index)
        words = [word_sums(found[i][0]) for i in order]
        if words and not any(ends for _, ends, _ in words):
            raise InputError(
                "the tokenizer does not say where its tokens lie in the text, so they cannot be "
                "joined to words. A corpus needs a fast tokenizer."
            )
        return {
            "rows": np.array(order, dtype=np.int64),
            "outputs": np.array([found[i][0].output for i in order], dtype=np.float64),
            "predicted": np.array([found[i][1] for i in order], dtype=np.int64),
            "counts": np.array([len(starts) for starts, _, _ in words], dtype=np.int64),
            "starts": np.array([a for starts, _, _ in words for a in starts], dtype=np.int64),
            "ends": np.array([b for _, ends, _ in words for b in ends], dtype=np.int64),
            "scores": joined([sums for _, _, sums in words], np.float32),
            "reasons": np.array(list(skipped), dtype=str),
            "times": np.array(list(skipped.values()), dtype=np.int64),
            "cut": np.array(cut),
        }

    def check(self, done: dict[int, Part]) -> None:
        """Refuses to go on with another model of the same name: its first text is done again."""
        for part in done.values():
            if len(part["rows"]):
                again = self._explained([self._encode(int(part["rows"][0]))])[0]
                before = part["scores"][: int(part["counts"][0])]
                sums = word_sums(again)[2]
                scale = float(np.abs(before).max(initial=1e-6))
                if sums.shape != before.shape or np.abs(sums - before).max() > 1e-2 * scale:
                    raise FileError(
                        f"{again.model} explains its first text otherwise than before: the model "
                        "has changed. Start anew without resuming."
                    )
                return

    def _encode(self, i: int) -> Encoded:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            row = self.explainer.encode([self.rows.texts[i]], self.truncate)[0]
        if isinstance(row, InputError):
            raise row
        return row

    def _explained(self, several: Sequence[Encoded]) -> list[Explanation]:
        asked = self.question
        found: list[Explanation] = self.explainer(
            list(several),
            self.method,
            target=None if asked is None else asked.index,
            against=None if asked is None else asked.against,
            batch_size=len(several),
        )
        return found

    def _predicted(
        self, several: Sequence[Encoded], explanations: Sequence[Explanation]
    ) -> list[int]:
        """The class of each text; a contrast within more than two needs a pass of its own."""
        asked = self.question
        if asked is None:
            return [each.target.index for each in explanations]
        if len(self.explainer.labels()) > 2:
            subject, tokenizer = self.explainer.subject, self.explainer.tokenizer
            logits = run(subject, batch(subject, tokenizer, several, None))
            if logits.ndim == 2:
                classes: list[int] = logits.argmax(-1).tolist()
                return classes
        other = NONE if asked.against is None else asked.against
        return [asked.index if each.output > 0 else other for each in explanations]


def _unusable(row: Encoded | InputError) -> str:
    if isinstance(row, InputError):
        return {"TooLong": "too long", "InputError": "no token"}.get(type(row).__name__, "unusable")
    return "" if any(not unit.special for unit in row.units) else "only special tokens"


def _labels(explainer: Explains, rows: Rows) -> Ints:
    """The true classes by number; all labels must be some of the model's."""
    if rows.labels is None:
        return np.full(len(rows), NONE, dtype=np.int64)
    numbers: dict[str | int, int] = {}
    unknown: list[str] = []
    for label in dict.fromkeys(rows.labels):
        try:
            numbers[label] = explainer.index_of(label)
        except TargetError:
            unknown.append(repr(label))
    if unknown:
        raise InputError(
            f"{len(unknown)} of the labels are none of the model's classes: "
            f"{', '.join(unknown[:5])}. It has {', '.join(explainer.labels()) or 'no labels'}. "
            "Name another label column, or leave the labels aside (--no-labels)."
        )
    return np.array([numbers[label] for label in rows.labels], dtype=np.int64)


def _gathered(job: _Job, parts: Parts, labels: Ints, complete: bool) -> Corpus:
    held = [parts.done[number] for number in sorted(parts.done)]
    rows = joined([part["rows"] for part in held], np.int64)
    skipped = dict(job.rows.skipped)
    for part in held:
        for reason, times in zip(part["reasons"].tolist(), part["times"].tolist(), strict=True):
            skipped[reason] = skipped.get(reason, 0) + int(times)
    cut = sum(int(part["cut"]) for part in held)
    if not len(rows):
        reasons = ", ".join(f"{n} {why}" for why, n in skipped.items()) or "interrupted"
        raise InputError(f"no text could be explained ({reasons}).")
    counts = joined([part["counts"] for part in held], np.int64)
    return Corpus(
        texts=tuple(job.rows.texts[i] for i in rows.tolist()),
        rows=rows,
        labels=labels[rows],
        predicted=joined([part["predicted"] for part in held], np.int64),
        outputs=joined([part["outputs"] for part in held], np.float64),
        bounds=np.concatenate([[0], np.cumsum(counts)]),
        starts=joined([part["starts"] for part in held], np.int64),
        ends=joined([part["ends"] for part in held], np.int64),
        scores=joined([part["scores"] for part in held], np.float32),
        classes=tuple(job.explainer.labels()),
        target=job.question,
        method=job.method.name,
        model=job.explainer.subject.name,
        settings=job.method.settings(),
        skipped=skipped,
        cut=cut,
        complete=complete,
    )


def _texts(data: Any) -> Rows:
    rows = as_rows(data)
    if not all(isinstance(each, str) for each in rows.texts):
        raise InputError("this is no corpus: give a list of texts, or wherefrom.read_table(path).")
    return rows
