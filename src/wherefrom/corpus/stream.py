"""Explains a corpus window by window, in batches of similar length, and can resume."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wherefrom.core.explanation import Explanation, TargetInfo
from wherefrom.core.progress import Progress, shown
from wherefrom.core.runner import ModelRunner
from wherefrom.corpus.checkpoint import Checkpoint, Window
from wherefrom.corpus.corpus import NO_LABEL, Corpus, Ints, concatenated, word_sums
from wherefrom.errors import InputError, TargetError, TextCut, TooLong
from wherefrom.inputs.records import TextPair
from wherefrom.inputs.table import Rows, as_rows
from wherefrom.inputs.text import Encoded, batch, like_lengths
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.methods.forward_pass import run
from wherefrom.storage.fingerprint import digest, explainer_fingerprint
from wherefrom.storage.folder_lock import locked

ClassName = int | str | None


class Explains(Protocol):
    """The part of an explainer that a corpus uses."""

    runner: ModelRunner
    tokenizer: Any

    def __call__(self, inputs: Any, method: Any = ..., **options: Any) -> Any: ...
    def encode(self, texts: Sequence[str], truncate: bool = ...) -> list[Encoded | InputError]: ...
    def index_of(self, label: str | int) -> int: ...
    def labels(self) -> list[str]: ...


def explain_corpus(
    explainer: Explains,
    data: Rows | Iterable[str],
    method: str | Method = "lrp",
    target: ClassName = None,
    against: ClassName = None,
    *,
    batch_size: int = 128,
    tokens: int = 4096,
    window: int = 1024,
    truncate: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | bool | None = None,
    may_be_empty: bool = False,
) -> Corpus:
    """Explains every text and keeps the relevance of its words.

    With two classes, the difference of their outputs is explained: the second minus the first,
    unless `target` says otherwise. With more classes, the predicted one is explained, or `target`
    (minus `against`). A batch has at most `batch_size` texts and `tokens` tokens; lower them to
    save memory. With `out`, finished windows are saved there, and `resume` continues from them to
    the same result: it refuses other weights, texts, settings or versions, and only one run at a
    time may use a folder. Without `resume` a folder with finished windows is refused. Ctrl-C
    returns what is finished; before the first window is, it is a KeyboardInterrupt. That no text
    can be explained is an error, unless the result `may_be_empty`.
    """
    rows = _texts(data)
    for name, value in (("batch_size", batch_size), ("tokens", tokens), ("window", window)):
        if value < 1:
            raise InputError(f"{name} must be 1 or more, got {value}.")
    question = common_target(explainer, target, against)
    explaining = find_method(method)
    labels = _label_numbers(explainer, rows)
    settings = {
        "model": explainer.runner.name,
        "method": [explaining.name, explaining.settings()],
        "target": question and [question.index, question.against],
        "batches": [batch_size, tokens, window],
        "truncate": truncate,
    }
    folder = None if out is None else Path(out)
    if folder is not None:
        settings |= explainer_fingerprint(explainer) | {"texts": digest(rows.texts)}
    job = _Job(explainer, rows, explaining, question, batch_size, tokens, truncate)
    with locked(folder, of="a corpus study"), shown("reading", progress) as report:
        checkpoint = Checkpoint(folder and folder / "checkpoint", settings)
        checkpoint.open(resume)
        try:
            for number, start in enumerate(range(0, len(rows), window)):
                end = min(start + window, len(rows))
                if number not in checkpoint.windows:
                    checkpoint.add(number, job.explain_window(range(start, end)))
                report(end, len(rows), "")
        except KeyboardInterrupt:
            if not checkpoint.windows:
                size = min(window, len(rows))
                raise KeyboardInterrupt(
                    f"interrupted before the first {size:,} of {len(rows):,} texts were read"
                ) from None
    done = sum(min(window, len(rows) - number * window) for number in checkpoint.windows)
    return _collect(job, checkpoint, labels, done, may_be_empty)


def common_target(explainer: Explains, target: ClassName, against: ClassName) -> TargetInfo | None:
    """The target that all texts share; None means the class predicted for each."""
    classes = explainer.labels()
    if target is None and against is not None and len(classes) != 2:
        raise TargetError("against= needs a target.")
    if target is None and len(classes) != 2:
        return None
    other = None if against is None else explainer.index_of(against)
    default = 1 if other is None else 1 - other
    index = default if target is None else explainer.index_of(target)
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

    def explain_window(self, numbers: Sequence[int]) -> Window:
        """Explains some rows; rows that cannot be explained are counted by reason."""
        skipped: Counter[str] = Counter()
        usable: dict[int, Encoded] = {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TextCut)  # one for each truncated text
            encoded = self.explainer.encode([self.rows.texts[i] for i in numbers], self.truncate)
        cut = 0
        for warning in caught:
            if issubclass(warning.category, TextCut):
                cut += 1  # counted, not shown
            else:
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )
        for i, row in zip(numbers, encoded, strict=True):
            if isinstance(row, InputError):
                skipped["too long" if isinstance(row, TooLong) else "no token"] += 1
            elif all(unit.special for unit in row.units):
                skipped["only special tokens"] += 1
            else:
                usable[i] = row
        results: dict[int, tuple[Explanation, int]] = {}  # row: explanation, predicted class
        order, lengths = list(usable), [len(row.ids) for row in usable.values()]
        for chunk in like_lengths(lengths, self.batch_size, self.tokens):
            texts = [usable[order[k]] for k in chunk]
            explanations = self._explain(texts)
            classes = self._predict(texts, explanations)
            for k, explanation, index in zip(chunk, explanations, classes, strict=True):
                results[order[k]] = (explanation, index)
        words = [word_sums(results[i][0]) for i in order]
        if words and not any(ends for _, ends, _ in words):
            raise InputError(
                "the tokenizer does not give the positions of its tokens in the text, so they "
                "cannot be joined to words. A corpus needs a fast tokenizer."
            )
        return {
            "rows": np.array(order, dtype=np.int64),
            "outputs": np.array([results[i][0].output for i in order], dtype=np.float64),
            "predicted": np.array([results[i][1] for i in order], dtype=np.int64),
            "counts": np.array([len(starts) for starts, _, _ in words], dtype=np.int64),
            "starts": np.array([a for starts, _, _ in words for a in starts], dtype=np.int64),
            "ends": np.array([b for _, ends, _ in words for b in ends], dtype=np.int64),
            "scores": concatenated([sums for _, _, sums in words], np.float32),
            "reasons": np.array(list(skipped), dtype=str),
            "times": np.array(list(skipped.values()), dtype=np.int64),
            "cut": np.array(cut),
        }

    @cached_property
    def _for_many(self) -> Explains:
        return self.explainer

    def _explain(self, texts: Sequence[Encoded]) -> list[Explanation]:
        explanations: list[Explanation] = self._for_many(
            list(texts),
            self.method,
            target=None if self.question is None else self.question.index,
            against=None if self.question is None else self.question.against,
            batch_size=len(texts),
        )
        return explanations

    def _predict(self, texts: Sequence[Encoded], explanations: Sequence[Explanation]) -> list[int]:
        """The predicted class of each text; a contrast among more than two needs another pass."""
        question = self.question
        if question is None:
            return [explanation.target.index for explanation in explanations]
        if len(self.explainer.labels()) > 2:
            runner, tokenizer = self.explainer.runner, self.explainer.tokenizer
            logits = run(runner, batch(runner, tokenizer, texts, None))
            if logits.ndim == 2:
                classes: list[int] = logits.argmax(-1).tolist()
                return classes
        other = NO_LABEL if question.against is None else question.against
        return [question.index if each.output > 0 else other for each in explanations]


def _label_numbers(explainer: Explains, rows: Rows) -> Ints:
    """The true classes as numbers; every label must be a class of the model."""
    if rows.labels is None:
        return np.full(len(rows), NO_LABEL, dtype=np.int64)
    numbers: dict[str | int, int] = {}
    unknown: list[str] = []
    for label in dict.fromkeys(rows.labels):
        try:
            numbers[label] = explainer.index_of(label)
        except TargetError:
            unknown.append(repr(label))
    if unknown:
        one = len(unknown) == 1
        are_not = "1 label is not a class" if one else f"{len(unknown)} labels are not classes"
        raise InputError(
            f"{are_not} of the model: {', '.join(unknown[:5])}. Its "
            f"classes are {', '.join(explainer.labels()) or 'not named'}. Choose another label "
            "column, or ignore the labels (--no-labels)."
        )
    return np.array([numbers[label] for label in rows.labels], dtype=np.int64)


def _collect(
    job: _Job, checkpoint: Checkpoint, labels: Ints, rows_read: int, may_be_empty: bool
) -> Corpus:
    windows = [checkpoint.windows[number] for number in sorted(checkpoint.windows)]

    def column(name: str, dtype: type) -> Any:
        return concatenated([window[name] for window in windows], dtype)

    rows = column("rows", np.int64)
    skipped = Counter(job.rows.skipped)
    for window in windows:
        counts = zip(window["reasons"].tolist(), window["times"].tolist(), strict=True)
        skipped.update(dict(counts))
    if not len(rows) and not may_be_empty:
        reasons = ", ".join(f"{n} {reason}" for reason, n in skipped.items())
        raise InputError(f"no text could be explained ({reasons}).")
    return Corpus(
        texts=tuple(job.rows.texts[i] for i in rows.tolist()),
        rows=rows,
        labels=labels[rows],
        predicted=column("predicted", np.int64),
        outputs=column("outputs", np.float64),
        bounds=np.concatenate([[0], np.cumsum(column("counts", np.int64))]),
        starts=column("starts", np.int64),
        ends=column("ends", np.int64),
        scores=column("scores", np.float32),
        classes=tuple(job.explainer.labels()),
        target=job.question,
        method=job.method.name,
        model=job.explainer.runner.name,
        settings=job.method.settings(),
        skipped=dict(skipped),
        cut=sum(int(window["cut"]) for window in windows),
        complete=rows_read == len(job.rows),
        rows_read=rows_read,
        rows_total=len(job.rows),
    )


def _texts(data: Any) -> Rows:
    rows = as_rows(data)
    if any(isinstance(text, TextPair) for text in rows.texts):
        raise InputError(
            "a corpus is of single texts, and these are pairs: name one column of them "
            '(--text-column, read_table(…, text_column="…")).'
        )
    if not all(isinstance(text, str) for text in rows.texts):
        raise InputError("not a corpus: give a list of texts, or wherefrom.read_table(path).")
    return rows
