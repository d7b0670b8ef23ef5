"""Measures axioms of attribution and conservation for methods on a model and its inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from wherefrom.audits.altered_models import in_float64, on_copy, ordinary_units, scores_at_input
from wherefrom.audits.axioms import (
    Share,
    completeness,
    dummy,
    effects,
    score_change,
    sensitivity,
    symmetry,
)
from wherefrom.audits.propositions import Conserved, propositions
from wherefrom.audits.rewrites import KINDS, Rewrite, rewrites
from wherefrom.core.explanation import plural
from wherefrom.core.progress import Progress, shown
from wherefrom.core.runner import Batch
from wherefrom.core.target import Case, Target
from wherefrom.errors import InputError, ModelError, WherefromError, counted
from wherefrom.inputs.reader import Reader
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method, default_methods
from wherefrom.methods import method as find_method
from wherefrom.methods.forward_pass import run
from wherefrom.storage.record import Displayable, Record

TEXTS = (
    "The plot is thin, but the leads are charming.",
    "Nothing here is worth your time.",
    "It was not as bad as they said.",
)
CLOSE = 0.01
"""Scores add up if their sum is within this share of the expected sum."""
EQUAL = 1e-4
"""Scores are equal, or zero, if they differ by at most this share of the largest score."""
NONZERO = 1e-10
"""A score is nonzero if it exceeds this share of the largest score, in float64.

Parts of a score may cancel by chance to a millionth, which is small but not zero.
"""
Verdict = tuple[bool | None, float | None, str]  # holds, value, sentence


@dataclass(frozen=True)
class Finding:
    """One axiom and one method: whether it holds (None: undecided), its value, and a sentence."""

    method: str
    axiom: str
    holds: bool | None
    value: float | None
    words: str


@dataclass(frozen=True)
class Audit(Displayable, Record):
    """The findings on each method, and the measurements on the model."""

    schema: ClassVar[str] = "wherefrom/audit/1"
    noun: ClassVar[str] = "audit"
    json_options: ClassVar[Mapping[str, Any]] = {"indent": 1, "allow_nan": False}

    model: str
    inputs: tuple[str, ...]
    methods: tuple[str, ...]
    findings: tuple[Finding, ...]
    rewrites: dict[str, dict[str, Any]]  # kind: name, places, dropped, output_change
    conservation: tuple[str, ...]
    seconds: float

    def of(self, method: str) -> list[Finding]:
        """The findings on one method."""
        return [finding for finding in self.findings if finding.method == method]

    def sound(self) -> list[str]:
        """The methods that pass all tested axioms."""
        failed = {finding.method for finding in self.findings if finding.holds is False}
        unable = {finding.method for finding in self.findings if finding.axiom == "run"}
        return [name for name in self.methods if name not in failed | unable]

    def __str__(self) -> str:
        return str(import_module("wherefrom.show.audit").text(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"schema": self.schema, **asdict(self), "sound": self.sound()}

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        derived = ("schema", "sound")
        values = {name: value for name, value in data.items() if name not in derived}
        tuples = {name: tuple(values[name]) for name in ("inputs", "methods", "conservation")}
        findings = tuple(Finding(**finding) for finding in values["findings"])
        return cls(**{**values, **tuples, "findings": findings})

    def _html(self, whole_page: bool) -> str:
        return str(import_module("wherefrom.show.audit").render(self, whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each finding."""
        return [asdict(finding) for finding in self.findings]


class Explains(Protocol):
    """The parts of an explainer that an audit uses."""

    def _reader(self, inputs: Any, /) -> Reader[Any, Any]: ...
    def _prepared(self, item: Any, truncate: bool, /) -> tuple[Batch, Target]: ...


def audit(
    explainer: Explains,
    inputs: Any = None,
    methods: Sequence[str | Method] | None = None,
    *,
    truncate: bool = False,
    progress: Progress | bool | None = None,
) -> Audit:
    """Measures the axioms and conservation for methods on a model and some inputs.

    `inputs` is one input or a list: texts, images, graphs, rows of numbers; by default a few
    English texts.

    Sums are measured on the model itself. All other tests run on a float64 copy, whose weights are
    rewritten and restored; the model itself is never changed.
    """
    started = time.perf_counter()
    reader = explainer._reader(TEXTS if inputs is None else inputs)
    if inputs is None and not isinstance(reader, TextReader):
        raise InputError(f"{reader.runner.name} does not read texts: pass inputs to audit.")
    items, _ = reader.listed(TEXTS if inputs is None else inputs)
    if not items:
        raise InputError("the list of inputs is empty: there is nothing to audit.")
    cases = [Case(reader.runner, *explainer._prepared(item, truncate)) for item in items]
    audit_run = _AuditRun.prepared(
        cases, [find_method(entry) for entry in methods or default_methods()]
    )
    with shown("auditing", progress) as report:
        audit_run.run(report)
    return Audit(
        model=reader.runner.name,
        inputs=tuple(_name(case.batch, i + 1) for i, case in enumerate(cases)),
        methods=tuple(method.label for method in audit_run.methods),
        findings=tuple(audit_run.findings),
        rewrites={
            rewrite.kind: {
                "name": KINDS[rewrite.kind],
                "places": len(rewrite.sites),
                "dropped": rewrite.dropped,
                "output_change": rewrite.output_change,
            }
            for rewrite in audit_run.rewrites
        },
        conservation=tuple(audit_run.notes),
        seconds=time.perf_counter() - started,
    )


def _name(inputs: Batch, number: int) -> str:
    """The text, file name or SMILES of an input; else its number and size."""
    scene = inputs.scenes[0] if inputs.scenes else None
    name = inputs.texts[0] or (scene or {}).get("name")
    size = len(inputs.units[0])
    noun = inputs.noun if size == 1 else plural(inputs.noun)
    return str(name) if name else f"input {number} ({size} {noun})"


@dataclass
class _AuditRun:
    methods: list[Method]
    cases: list[Case]  # on the model itself
    copies: list[Case]  # in float64
    rewrites: list[Rewrite]
    effects: list[Tensor]  # per copy: the drop of the output without each unit
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # about the model

    @staticmethod
    def prepared(cases: list[Case], methods: list[Method]) -> _AuditRun:
        float64_copy = in_float64(cases[0].runner)
        copies = [on_copy(case, float64_copy) for case in cases]
        try:
            run(copies[0])
        except RuntimeError as error:
            raise ModelError(
                f"a copy of {float64_copy.name} does not run in float64: {error}"
            ) from error
        return _AuditRun(
            methods,
            cases,
            copies,
            rewrites(float64_copy, [case.batch for case in copies]),
            [effects(case) for case in copies],
        )

    @property
    def noun(self) -> str:
        """The name of a unit of these inputs."""
        return self.copies[0].batch.noun

    def run(self, progress: Progress) -> None:
        usable = [rewrite for rewrite in self.rewrites if rewrite.sites]
        total = len(self.methods) * (2 + len(usable))
        done = 0
        before: dict[str, list[Tensor]] = {}  # method: its scores of each input
        changes: dict[str, dict[str, float]] = {}  # method: rewrite: largest change of a score
        for rewrite in (None, *usable):
            with rewrite.applied() if rewrite else nullcontext():
                for method in self.methods:
                    note = f"{method.label}{f', {rewrite.kind}' if rewrite else ''}"
                    progress(done, total, note)
                    done += 1
                    if rewrite is None:
                        before |= self._scores(method)
                    elif method.label in before:
                        pairs = zip(self.copies, before[method.label], strict=True)
                        change = max(score_change(method, case, scores) for case, scores in pairs)
                        changes.setdefault(method.label, {})[rewrite.kind] = change
        conserved = self._conservation()
        for method in self.methods:
            progress(done, total, method.label)
            done += 1
            if method.label in before:
                self._axioms(method, changes.get(method.label, {}))
                self._through_norms(method, conserved)
        progress(total, total, "")

    def _scores(self, method: Method) -> dict[str, list[Tensor]]:
        try:
            return {method.label: [scores_at_input(case, method).values for case in self.copies]}
        except ModelError as error:
            words = f"not applicable to this model: {error}"
            self.findings.append(Finding(method.label, "run", None, None, words))
            return {}

    def _axioms(self, method: Method, changes: dict[str, float]) -> None:
        tests: tuple[tuple[str, Callable[[Method], Verdict]], ...] = (
            ("completeness", self._completeness),
            ("sensitivity", self._sensitivity),
            ("dummy", self._dummy),
            ("symmetry", self._symmetry),
        )
        for axiom, test in tests:
            try:
                verdict = test(method)
            except WherefromError as error:
                verdict = (None, None, f"{axiom} not tested: {error}")
            self.findings.append(Finding(method.label, axiom, *verdict))
        self.findings.append(Finding(method.label, "invariance", *_invariance(changes)))

    def _completeness(self, method: Method) -> Verdict:
        sums = [completeness(method, case) for case in self.cases]
        worst = max(sums, key=lambda scores: scores.gap)
        expected = "the output minus the baseline's" if worst.baseline else "the output"
        gap = f"largest gap {share(worst.gap)}"
        if worst.claimed and worst.gap <= CLOSE:
            return True, worst.gap, f"adds up to {expected} ({gap})"
        if worst.claimed:
            return False, worst.gap, f"claims to add up to {expected}, but does not ({gap})"
        if worst.ledger and worst.gap <= CLOSE:
            return True, worst.gap, f"adds up to {expected} here, biases included ({gap})"
        if worst.ledger:
            return False, worst.gap, f"does not add up to {expected}, biases included ({gap})"
        return None, worst.gap, f"does not claim to add up to {expected} ({gap})"

    def _sensitivity(self, method: Method) -> Verdict:
        least, case = min(
            (
                (sensitivity(method, case, lost), case)
                for case, lost in zip(self.copies, self.effects, strict=True)
            ),
            key=lambda pair: pair[0].share,
        )
        name = case.batch.units[0][least.unit].text
        if least.share > NONZERO:
            words = f"every {self.noun} that changes the output scores nonzero"
            return True, least.share, f"{words} (the smallest, “{name}”, {share(least.share)})"
        words = f"scores “{name}” zero, but the output changes by {abs(least.effect):.2g} without"
        return False, least.share, f"{words} it"

    def _dummy(self, method: Method) -> Verdict:
        shares = [
            dummy(method, case, _strongest(case, lost)[0])
            for case, lost in zip(self.copies, self.effects, strict=True)
        ]
        article = "an" if self.noun[0] in "aeiou" else "a"
        words = f"{article} {self.noun} that the output does not depend on scores"
        return _by_value(shares, words, "with its position")

    def _symmetry(self, method: Method) -> Verdict:
        pairs = [
            (case, _strongest(case, lost)[:2])
            for case, lost in zip(self.copies, self.effects, strict=True)
        ]
        shares = [symmetry(method, case, *pair) for case, pair in pairs if len(pair) == 2]
        if not shares:
            return None, None, f"symmetry not tested: no input has two {plural(self.noun)}"
        words = f"equal {plural(self.noun)} with equal effect differ by"
        return _by_value(shares, words, "with their positions")

    def _conservation(self) -> list[Conserved]:
        conserved = [propositions(case) for case in self.copies]
        heads, norms = conserved[0].heads, len(conserved[0].collapse)
        if heads:
            error = max(entry.attention_error for entry in conserved)
            excess = max(abs(e) for entry in conserved for e in entry.attention_excess)
            self.notes.append(
                f"Attention ({counted(heads, 'call')}): plain gradients create or lose up to "
                f"{excess:.2g} of relevance in one call, as proposition 1 of Ali et al. 2022 "
                f"predicts (error {share(error)})."
            )
        else:
            self.notes.append("Attention: no call could be split into queries, keys and values.")
        if norms:
            error = max(entry.norm_error for entry in conserved)
            self.notes.append(
                f"LayerNorm ({counted(norms, 'call')}): plain gradients pass at most "
                f"{share(_passed(conserved))} of the relevance at its output on to its input, as "
                f"proposition 2 predicts (error {share(error)})."
            )
        else:
            self.notes.append("LayerNorm: no call was seen.")
        return conserved

    def _through_norms(self, method: Method, conserved: list[Conserved]) -> None:
        """The relevance that gradient × input and AH+LN pass through LayerNorms."""
        norms = len(conserved[0].collapse)
        if not norms:
            return
        count = counted(norms, "LayerNorm")
        if method.name == "gradient_x_input":
            passed = _passed(conserved)
            words = f"passes at most {share(passed)} of its relevance through each of {count}"
            lost = 1 - passed
            self.findings.append(Finding(method.label, "conservation", lost <= CLOSE, lost, words))
        elif method.name == "lrp_ah_ln":
            gap = max(entry.conserved_by_rules for entry in conserved)
            words = f"conserves its relevance through {count} (largest gap {share(gap)})"
            self.findings.append(Finding(method.label, "conservation", gap <= CLOSE, gap, words))


def _by_value(shares: Sequence[Share], words: str, with_position: str) -> Verdict:
    """The verdict on a share that should be zero; the share with the position is in brackets."""
    value, total = max(s.value for s in shares), max(s.total for s in shares)
    words = f"{words} {share(value)}"
    if value > EQUAL:
        return False, value, words
    return True, value, f"{words} ({share(total)} {with_position})" if total > EQUAL else words


def _invariance(changes: dict[str, float]) -> Verdict:
    if not changes:
        return None, None, "invariance not tested: no rewrite of this model was found"
    kind = max(changes, key=lambda name: changes[name])
    words = f"other weights for the same function change scores by {share(changes[kind])}"
    if changes[kind] <= EQUAL:
        return True, changes[kind], words
    return False, changes[kind], f"{words} ({KINDS[kind]})"


def _passed(conserved: Sequence[Conserved]) -> float:
    """The largest share of relevance that passes a LayerNorm."""
    return max(norm.factor for entry in conserved for norm in entry.collapse)


def _strongest(case: Case, lost: Tensor) -> list[int]:
    """The units except special tokens, by descending effect on the output."""
    units = ordinary_units(case) or list(range(len(lost)))
    return sorted(units, key=lambda i: -abs(float(lost[i])))


def share(value: float) -> str:
    """Formats a share.

    >>> share(0), share(3.1e-16), share(0.0042), share(0.874), share(2.31), share(142.0)
    ('0', '3e-16', '0.42 %', '87 %', '231 %', '142×')
    """
    if math.isnan(value):
        return "undefined"
    if value < 1e-3:
        return f"{value:.0e}" if value else "0"
    if value >= 10:
        return f"{value:.0f}×"
    return f"{100 * value:.0f} %" if value >= 0.0995 else f"{100 * value:.2g} %"
