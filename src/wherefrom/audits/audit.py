"""What holds and what does not, in words: the axioms and conservation on a model and some texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from wherefrom.audits.altered_models import Case, in_float64, on_copy
from wherefrom.audits.axioms import completeness, dummy, effects, moved, sensitivity, symmetry
from wherefrom.audits.propositions import Conserved, propositions
from wherefrom.audits.report import Audit, Finding, share
from wherefrom.audits.rewrites import KINDS, Rewrite, rewrites
from wherefrom.errors import InputError, ModelError, WherefromError
from wherefrom.methods import METHODS, Method
from wherefrom.methods import method as find_method
from wherefrom.methods.intercept import run
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

TEXTS = (
    "The plot is thin, but the leads are charming.",
    "Nothing here is worth your time.",
    "It was not as bad as they said.",
)
CLOSE = 0.01
"""Scores add up if they miss what they should add up to by no more than this share of it."""
EQUAL = 1e-4
"""Scores are equal, or zero, if no more than this share of the largest is between them."""
Progress = Callable[[int, int, str], None]


class Explains(Protocol):
    """What an audit needs of an explainer."""

    subject: Subject

    def prepare(self, inputs: Any, /, truncate: bool = ...) -> tuple[Inputs, Target]: ...


def audit(
    explainer: Explains,
    texts: Sequence[Any] = TEXTS,
    methods: Sequence[str | Method] | None = None,
    *,
    truncate: bool = False,
    progress: Progress | None = None,
) -> Audit:
    """Measures the axioms and conservation for methods on a model and some texts.

    Sums are taken on the model as it is. All else runs on a copy in float64, which is rewritten
    and put back; the model itself is never changed.
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    if not given:
        raise InputError("there are no texts to audit on.")
    began = time.perf_counter()
    chosen = [find_method(each) for each in methods or METHODS]
    job = _Job.prepared(explainer, [explainer.prepare(each, truncate) for each in given], chosen)
    job.run(progress or (lambda done, total, note: None))
    return Audit(
        model=explainer.subject.name,
        texts=tuple(map(str, given)),
        methods=tuple(each.name for each in job.methods),
        findings=tuple(job.findings),
        rewrites={
            each.kind: {
                "words": KINDS[each.kind],
                "found": len(each.sites),
                "dropped": each.dropped,
                "moved": each.moved,
            }
            for each in job.rewrites
        },
        conservation=tuple(job.about_model),
        seconds=time.perf_counter() - began,
    )


@dataclass
class _Job:
    methods: list[Method]
    cases: list[Case]  # on the model as it is
    copies: list[Case]  # in float64
    rewrites: list[Rewrite]
    lost: list[Tensor]
    findings: list[Finding] = field(default_factory=list)
    about_model: list[str] = field(default_factory=list)

    @staticmethod
    def prepared(
        explainer: Explains, given: Sequence[tuple[Inputs, Target]], methods: list[Method]
    ) -> _Job:
        cases = [Case(explainer.subject, *each) for each in given]
        twin = in_float64(explainer.subject)
        copies = [on_copy(case, twin) for case in cases]
        try:
            run(twin, copies[0].inputs)
        except RuntimeError as error:
            raise ModelError(f"a copy of {twin.name} does not run in float64: {error}") from error
        found = rewrites(twin, [case.inputs for case in copies])
        return _Job(methods, cases, copies, found, [effects(case) for case in copies])

    def run(self, progress: Progress) -> None:
        total = len(self.methods) * (2 + len(self.rewrites))
        done = 0
        moves: dict[str, dict[str, float]] = {}
        before: dict[str, list[Tensor]] = {}
        for rewrite in (None, *(each for each in self.rewrites if each.sites)):
            with rewrite.applied() if rewrite else nullcontext():
                for each in self.methods:
                    progress(done, total, f"{each.name}{f', {rewrite.kind}' if rewrite else ''}")
                    done += 1
                    if rewrite is None:
                        before |= self._scores(each)
                    elif each.name in before:
                        pairs = zip(self.copies, before[each.name], strict=True)
                        changes = [moved(each, case, was) for case, was in pairs]
                        moves.setdefault(each.name, {})[rewrite.kind] = max(changes)
        conserved = self._conservation()
        for each in self.methods:
            progress(done, total, each.name)
            done += 1
            if each.name in before:
                self._axioms(each, moves.get(each.name, {}))
                self._through_norms(each, conserved)
        progress(total, total, "")

    def _scores(self, method: Method) -> dict[str, list[Tensor]]:
        try:
            return {method.name: [case.scores(method).values for case in self.copies]}
        except ModelError as error:
            words = f"cannot be used on this model: {error}"
            self.findings.append(Finding(method.name, "run", None, None, words))
            return {}

    def _axioms(self, method: Method, moves: dict[str, float]) -> None:
        parts = (
            ("completeness", self._completeness),
            ("sensitivity", self._sensitivity),
            ("dummy", self._dummy),
            ("symmetry", self._symmetry),
        )
        for axiom, measure in parts:
            try:
                found = measure(method)
            except WherefromError as error:
                found = (None, None, f"{axiom} not tested: {error}")
            self.findings.append(Finding(method.name, axiom, *found))
        self.findings.append(Finding(method.name, "invariance", *_invariance(moves)))

    def _completeness(self, method: Method) -> tuple[bool | None, float | None, str]:
        sums = [completeness(method, case) for case in self.cases]
        worst = max(sums, key=lambda each: each.gap)
        what = "the output less that of its baseline" if worst.baseline else "the output"
        gap = share(worst.gap)
        if worst.claimed and worst.gap <= CLOSE:
            return True, worst.gap, f"adds up to {what} (largest gap {gap} of it)"
        if worst.claimed:
            return False, worst.gap, f"should add up to {what}, but is off by up to {gap} of it"
        if worst.ledger and worst.gap <= CLOSE:
            words = f"adds up to {what} here, biases counted (largest gap {gap} of it)"
            return True, worst.gap, words
        if worst.ledger:
            words = f"does not add up, even with biases counted: off by up to {gap} of {what}"
            return False, worst.gap, words
        return None, worst.gap, f"makes no claim to add up (off by up to {gap} of {what})"

    def _sensitivity(self, method: Method) -> tuple[bool | None, float | None, str]:
        found = [
            (sensitivity(method, case, lost), case)
            for case, lost in zip(self.copies, self.lost, strict=True)
        ]
        least, case = min(found, key=lambda each: each[0].share)
        name = case.inputs.units[0][least.unit].text
        if least.share > EQUAL / 100:
            words = f"no unit that matters scores zero (the least, “{name}”, {share(least.share)})"
            return True, least.share, words
        words = f"scores “{name}” zero, though the output moves by {abs(least.effect):.2g} without"
        return False, least.share, words + " it"

    def _dummy(self, method: Method) -> tuple[bool | None, float | None, str]:
        found = []
        for case, lost in zip(self.copies, self.lost, strict=True):
            unit = _strongest(case, lost)[0]
            found.append(dummy(method, case, unit))
        own, place = max(own for _, own in found), max(whole for whole, _ in found)
        if own > EQUAL:
            return False, own, f"a word that the output cannot depend on scores {share(own)}"
        rest = f" ({share(place)} with its position)" if place > EQUAL else ""
        return True, own, f"a word that the output cannot depend on scores {share(own)}{rest}"

    def _symmetry(self, method: Method) -> tuple[bool | None, float | None, str]:
        found = []
        for case, lost in zip(self.copies, self.lost, strict=True):
            pair = _strongest(case, lost)[:2]
            if len(pair) == 2:
                found.append(symmetry(method, case, *pair))
        if not found:
            return None, None, "symmetry not tested: no text has two words"
        own, place = max(own for _, own in found), max(whole for whole, _ in found)
        if own > EQUAL:
            return False, own, f"equal words that count alike differ by {share(own)}"
        rest = f" ({share(place)} with their positions)" if place > EQUAL else ""
        return True, own, f"equal words that count alike differ by {share(own)}{rest}"

    def _conservation(self) -> list[Conserved]:
        found = [propositions(case.subject, case.inputs, case.target) for case in self.copies]
        first = found[0]
        if first.heads:
            error = max(each.attention_error for each in found)
            gained = max(abs(e) for each in found for e in each.attention_excess)
            self.about_model.append(
                f"Attention, {first.heads} calls: true gradients create or lose up to {gained:.2g} "
                f"of relevance in one, as proposition 1 says (error {share(error)})."
            )
        else:
            self.about_model.append(
                "Attention: no call that could be split into its parts was seen."
            )
        if first.collapse:
            error = max(each.norm_error for each in found)
            left = max(norm.factor for each in found for norm in each.collapse)
            self.about_model.append(
                f"LayerNorm, {len(first.collapse)} of them: of the relevance at its output, true "
                f"gradients leave at most {share(left)} at its input, as proposition 2 says "
                f"(error {share(error)})."
            )
        else:
            self.about_model.append("LayerNorm: none was seen.")
        return found

    def _through_norms(self, method: Method, found: list[Conserved]) -> None:
        """What the two methods that the propositions speak of do at LayerNorms."""
        count = len(found[0].collapse)
        if not count:
            return
        if method.name == "gradient_x_input":
            left = max(norm.factor for each in found for norm in each.collapse)
            words = f"of its relevance at most {share(left)} passes a LayerNorm ({count} of them)"
            lost = 1 - left
            self.findings.append(Finding(method.name, "conservation", lost <= CLOSE, lost, words))
        elif method.name == "lrp_ah_ln":
            gap = max(each.conserved_by_rules for each in found)
            words = f"keeps its relevance through {count} LayerNorms (largest gap {share(gap)})"
            self.findings.append(Finding(method.name, "conservation", gap <= CLOSE, gap, words))


def _invariance(moves: dict[str, float]) -> tuple[bool | None, float | None, str]:
    if not moves:
        return None, None, "invariance not tested: no rewrite of this model was found"
    kind = max(moves, key=lambda each: moves[each])
    if moves[kind] <= EQUAL:
        words = f"other weights for the same function change it by at most {share(moves[kind])}"
        return True, moves[kind], words
    words = f"other weights for the same function change it by {share(moves[kind])} ({KINDS[kind]})"
    return False, moves[kind], words


def _strongest(case: Case, lost: Tensor) -> list[int]:
    """The units that are no special tokens, those that move the output most first."""
    plain = case.plain() or list(range(len(lost)))
    return sorted(plain, key=lambda i: -abs(float(lost[i])))
