"""The headline of an explanation: the prediction, the words' share, and the strongest words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wherefrom.core.explanation import Explanation, plural
from wherefrom.show.line_kinds import LINE_KINDS, group_name, lines_beyond_units
from wherefrom.show.text_marks import label_name, percent, signed, target_name, whole_percent

PieceKind = Literal["", "label", "for", "against", "strength"]
Piece = tuple[PieceKind, str]  # the kind and the text of a piece of the headline
Goal = Literal["class", "other class", "number", "contrast", "part"]
_MOST = 3  # units named per sign
_CLOSE = 0.3  # of the strongest unit with the same sign: weaker units are not named
_WORTH = 0.1  # of the strongest unit: a weaker sign is not mentioned
_LONGEST = 30  # characters of a unit
_OPEN = 0.05  # of the output: with a larger residual, the scores do not add up
_HALF = 0.5  # of the output: units that account for less are not called the reason
_TOO_MUCH = 1.5  # of the output: nor are units whose sum is larger
_ALIKE, _PARTLY = 0.9, 0.5  # least correlation with Shapley values
_NEAR = 0.25  # largest mean difference from Shapley values, as a share of their mean
_FEW = 2  # numbers of which a correlation says nothing
_EQUAL = 0.1  # of the rest: a line that differs by less is called the rest
_WITH_SIGN = frozenset(
    "secant lrp attn_lrp lrp_ah_ln lrp_ah gradient_x_input integrated_gradients path_gradients "
    "occlusion shapley".split()
)
"""Methods whose scores count for or against, even without a ledger."""
# the verbs of each sign, by explained quantity: alone or first, and second
_VERBS = {
    "class": (("count~ most for {0}", ""), ("count~ most against {0}", "against it")),
    "number": (("raise~ {0} most", ""), ("lower~ {0} most", "lower~ it")),
    "contrast": (("count~ most for {0}", ""), ("count~ most for {1}", "for {1}")),
    "part": (("add~ most to it", ""), ("lower~ it most", "lower~ it")),
}
_OTHER_LINES = {
    "root": "the offset at the reference",
    "baseline": "the model's output for the baseline",
    "bias": "what the model's constants add at this input",
    "position": "what the position embeddings add",
    "special": "what special tokens add",
}
_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")
_NOUNS = {
    "image": "regions", "superpixels": "regions", "molecule": "atoms", "images": "words and images",
}  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """The numbers that a headline makes claims about: output = units + Σ others + residual."""

    output: float
    units: float  # the sum of the scores of words, atoms, …
    others: tuple[tuple[str, float], ...]  # phrases and values of the other ledger lines
    top: tuple[tuple[str, float], ...]  # the units that can be named, with their scores
    goal: Goal = "class"
    noun: str = "words"
    has_ledger: bool = True

    @property
    def residual(self) -> float:
        """The part of the output without units and lines."""
        return self.output - self.units - sum(value for _, value in self.others)

    @property
    def is_open(self) -> bool:
        """Whether the residual is more than rounding, and a notable share of the output."""
        size = abs(self.units) + sum(abs(value) for _, value in self.others)
        return abs(self.residual) > max(_OPEN * abs(self.output), 1e-3 * size)

    def side(self, sign: int) -> dict[str, float]:
        """The units with this sign to name, the strongest first; equal names are added up."""
        largest = max((abs(score) for _, score in self.top), default=0.0)
        scores = sorted(((sign * s, name) for name, s in self.top if sign * s > 0), reverse=True)
        if not scores or scores[0][0] < _WORTH * largest:
            return {}
        totals: dict[str, float] = {}
        for score, name in scores:
            if score >= _CLOSE * scores[0][0] and (name in totals or len(totals) < _MOST):
                totals[name] = totals.get(name, 0.0) + sign * score
        return totals

    @property
    def is_reason(self) -> bool:
        """Whether the named units are most of the output, and all units together close to it."""
        sign = 1 if self.output > 0 else -1
        if not self.has_ledger or self.is_open or self.goal not in ("class", "contrast"):
            return False
        if self.goal == "class" and sign < 0:
            return False
        size, named = abs(self.output), sign * sum(self.side(sign).values())
        return _HALF * size <= sign * self.units <= _TOO_MUCH * size and named >= _HALF * size > 0


def headline(numbers: Numbers, names: Sequence[str]) -> list[Piece]:
    """The continuation of "The model says POSITIVE (99.8 %)", in which the numbers back each claim.

    `names` has the name of the class or output; both names for a contrast.
    """
    if not numbers.is_reason:
        return [("", f". {_account(numbers)}"), *_ranking(numbers, names)]
    sides: list[tuple[PieceKind, dict[str, float]]] = [
        ("for", numbers.side(1)), ("against", numbers.side(-1)),
    ]  # fmt: skip
    if numbers.output < 0:
        sides.reverse()
        names = names[::-1]
    (kind, reasons), (other, doubts) = sides
    because: list[Piece] = [("", ", mostly because of "), *_listed(list(reasons), kind)]
    if doubts:
        verb = "count~ for {1}" if numbers.goal == "contrast" else "count~ against it"
        because += [("", "; "), *_listed(list(doubts), other), *_verb(verb, names, len(doubts))]
    return [*because, ("", f". {_account(numbers)}".rstrip())]


def _account(numbers: Numbers) -> str:
    """The share of the output that the units account for, and the largest other part."""
    if not numbers.has_ledger:
        return ""
    whole = {"contrast": "difference", "part": "part"}.get(numbers.goal, "output")
    output, total = signed(numbers.output), signed(numbers.units)
    subject = f"The {numbers.noun}"
    if numbers.is_open:
        sizes = f"the residual is {signed(numbers.residual)}, the {whole} {output}"
        return f"The scores do not add up to the {whole}: {sizes}. "
    if numbers.output == 0:
        return f"{subject} sum to {total}, the {whole} is 0. "
    share = numbers.units / numbers.output
    if share < 0:
        text = f"{subject} point the other way: they sum to {total}, the {whole} is {output}"
    elif share > _TOO_MUCH:
        text = f"{subject} sum to {total}, which is more than the {whole}, {output}"
    else:
        text = f"{subject} account for {whole_percent(share)} of the {whole}"
        if share >= _HALF:
            return f"{text}. "
    rest = numbers.output - numbers.units
    phrase, value = max(numbers.others, key=lambda line: abs(line[1]), default=("", 0.0))
    if not value:
        return f"{text}. "
    if abs(value - rest) <= _EQUAL * abs(rest):
        return f"{text}; the rest is {phrase}, {signed(value)}. "
    return f"{text}; the largest other part is {phrase}, {signed(value)}. "


def _ranking(numbers: Numbers, names: Sequence[str]) -> list[Piece]:
    """Among the words, “best” counts most for POSITIVE, “his” against it."""
    goal = "class" if numbers.goal == "other class" else numbers.goal
    sides = (list(numbers.side(1)), list(numbers.side(-1)))
    if not any(sides):
        ends = "for {0} or {1}" if goal == "contrast" else "for or against {0}"
        return _filled(f"None of the {numbers.noun} counts {ends}.", names)
    pieces: list[Piece] = [("", f"Among the {numbers.noun}, ")]
    kinds: tuple[PieceKind, PieceKind] = ("for", "against")
    for kind, units, (alone, second) in zip(kinds, sides, _VERBS[goal], strict=True):
        if units:
            is_second = len(pieces) > 1
            pieces += [("", ", ")] * is_second
            verb = second if is_second else alone
            pieces += [*_listed(units, kind), *_verb(verb, names, len(units))]
    return [*pieces, ("", ".")]


def _filled(template: str, names: Sequence[str]) -> list[Piece]:
    """A template as pieces, with {0} and {1} replaced by labels."""
    return [
        ("label", names[int(text)]) if i % 2 else ("", text)
        for i, text in enumerate(re.split(r"\{(\d)\}", template))
        if text
    ]


def _verb(template: str, names: Sequence[str], count: int) -> list[Piece]:
    """A verb phrase whose subject is `count` units."""
    return _filled(f" {template}".replace("~", "s" if count == 1 else ""), names)


def _listed(names: Sequence[str], kind: PieceKind) -> list[Piece]:
    """“a”, “b” and “c”."""
    pieces: list[Piece] = []
    for position, name in enumerate(names):
        if position:
            pieces.append(("", " and " if position == len(names) - 1 else ", "))
        pieces.append((kind, name))
    return pieces


def sentence(explanation: Explanation) -> str:
    """The headline as plain text.

    "The model says POSITIVE (99.8 %), mostly because of “best” and “virtues”; “his” counts
    against it. The words account for 84 % of the output."
    """
    quoted = "{}" if explanation.scene else "“{}”"  # regions and atoms are not quoted
    forms = {"label": "{}", "": "{}"}
    return "".join(forms.get(kind, quoted).format(text) for kind, text in pieces(explanation))


def pieces(explanation: Explanation) -> list[Piece]:
    """The headline in pieces: labels, units that count for or against, and the words between."""
    target, numbers = explanation.target, numbers_of(explanation)
    opening = _opening(explanation)
    if not has_direction(explanation):
        kind: PieceKind = "for" if explanation.signed else "strength"
        best = _listed(list(numbers.side(1)), kind)
        ranks = [("", f". {explanation.method} ranks "), *best, ("", " highest")] if best else []
        return [*opening, *ranks, ("", ".")]
    names = [target_name(explanation)]
    if target.against_label is not None:
        names = [label_name(target, label) for label in (target.label, target.against_label)]
    return _merged([*opening, *headline(numbers, names)])


def numbers_of(explanation: Explanation) -> Numbers:
    """The numbers from which the headline of an explanation is built."""
    ledger = explanation.ledger
    kind = str((explanation.scene or {}).get("kind", ""))
    plain = [not unit.special for unit in explanation.units]
    scores = explanation.scores.astype(float)
    units, others = float(scores[plain].sum()), []
    noun = _NOUNS.get(kind, "words" if explanation.text is not None else "units")
    if ledger is not None:
        special = float(scores.sum()) - units
        others = [(_OTHER_LINES["special"], special)] * bool(special)
        for line in lines_beyond_units(explanation):
            phrase = _OTHER_LINES.get(line.kind, f"the line “{line.label}”")
            if line.kind == "reference":
                phrase = f"the model's output for {line.label}"
            others.append((phrase, line.value))
        first = ledger.lines[0].kind if ledger.lines else "unit"
        noun = noun if noun != "units" or first not in LINE_KINDS else group_name(first)
    return Numbers(
        explanation.output, units, tuple(others), tuple(_named(explanation)), _goal(explanation),
        noun, ledger is not None,
    )  # fmt: skip


def _goal(explanation: Explanation) -> Goal:
    if explanation.target.through is not None:
        return "part"
    if explanation.target.against_label is not None:
        return "contrast"
    if explanation.probability is None:
        return "number"
    return "class" if _is_prediction(explanation) else "other class"


def named_units(explanation: Explanation) -> set[str]:
    """The names of the units in the headline."""
    return {text for kind, text in pieces(explanation) if kind not in ("", "label")}


def unit_name(explanation: Explanation, index: int) -> str:
    """The name of a unit in the headline: atoms are numbered, long words are cut."""
    unit = explanation.units[index]
    is_atom = (explanation.scene or {}).get("kind") == "molecule"
    return f"{unit.text}{index + 1}" if is_atom else _short(unit.text)


def explained(explanation: Explanation) -> str:
    """The output of the model that the scores explain."""
    target, output = explanation.target, signed(explanation.output)
    name = target_name(explanation)
    if target.through is not None:
        return f"Explained: the part of {name} that flows through {target.through}, {output}."
    if target.against_label is not None:
        return f"Explained: the difference of two logits, {name}, {output}."
    if explanation.probability is None:
        return f"Explained: the model's output {name}, {output}."
    place = "" if target.position is None else f" at position {target.position}"
    if target.place is not None:
        place = f" ({target.place})"
    chance = percent(explanation.probability)
    return f"Explained: the logit of {name}{place}, {output}; its probability is {chance}."


def source(explanation: Explanation, model: str | None = None) -> str:
    """The method and the model; `model` overrides its name."""
    return f"By {explanation.method_label} on {model or explanation.model}."


def sides(explanation: Explanation) -> tuple[str, str]:
    """The meanings of positive and negative scores; empty if scores cannot be negative."""
    target = explanation.target
    if not explanation.signed:
        return f"strength by {explanation.method}, without a sign", ""
    if not has_direction(explanation):
        return f"ranked high by {explanation.method}", "negative score"
    if target.through is not None:
        return "adds to the part", "lowers it"
    if target.against_label is not None:
        first, second = target.label, target.against_label
        return f"counts for {label_name(target, first)}", f"for {label_name(target, second)}"
    if explanation.probability is None:
        return f"raises {target_name(explanation)}", "lowers it"
    return f"counts for {target_name(explanation)}", "against it"


def has_direction(explanation: Explanation) -> bool:
    """Whether the sign of a score says if the unit counts for or against the target."""
    return explanation.ledger is not None or explanation.method in _WITH_SIGN


@dataclass(frozen=True)
class Check:
    """The numbers of a check of scores against Shapley values.

    `error` is mean |score − Shapley value| / mean |Shapley value|, NaN if all of these are 0, and
    `sampling` the mean standard error / mean |Shapley value|. Scores that are no shares of the
    output (not `are_shares`) can have the order of Shapley values, but not their size.
    """

    method: str
    r: float
    error: float
    sampling: float
    count: int
    noun: str = "word"
    are_shares: bool = True


def check_sentence(check: Check) -> str:
    """Whether scores agree with Shapley values, by their correlation and their difference."""
    if math.isnan(check.error):
        return f"All Shapley values are 0: no set of {plural(check.noun)} changes the output."
    name = f"The scores by {check.method}"
    if not check.are_shares:
        size = "are no shares of the output, so their size is not compared"
        return f"{name} {size}. Their correlation with the Shapley values is r = {check.r:.2f}."
    is_near = check.error <= _NEAR
    figures = f"the mean difference is {whole_percent(check.error)} of their mean size"
    verdict = "agree with the Shapley values" if is_near else "differ from the Shapley values"
    if check.count > _FEW:
        figures = f"r = {check.r:.2f}, and {figures}"
        if check.r < _PARTLY:
            verdict = "do not agree with the Shapley values"
        elif check.r < _ALIKE:
            verdict = "agree only in part with the Shapley values"
        elif not is_near:
            verdict = "correlate with the Shapley values, but differ in size"
    return f"{name} {verdict}: {figures}. {_sampling(check)}"


def _sampling(check: Check) -> str:
    if not check.sampling:
        return f"The Shapley values are exact: every subset of the {plural(check.noun)} was run."
    note = f"Their mean standard error is {whole_percent(check.sampling)} of that size"
    if check.sampling >= check.error:
        note += ", so sampling alone may explain the difference"
    return f"{note}."


def for_legend(explanations: Sequence[Explanation]) -> Explanation:
    """The explanation whose signs the common legend of several methods describes."""
    return max(explanations, key=lambda e: (has_direction(e), e.signed))


def _opening(explanation: Explanation) -> list[Piece]:
    """The prediction, and the explained class if that is a different one."""
    target, output = explanation.target, explanation.output
    if target.through is not None:
        whole: Piece = ("label", target_name(explanation))
        size = f" that flows through {target.through} is {signed(output)}"
        return [("", "The part of "), whole, ("", size)]
    names = [label_name(target, label) for label in (target.label, target.against_label or "")]
    if target.against_label is not None and has_direction(explanation):
        first, second = names if output >= 0 else names[::-1]
        size = f" (difference of the logits {signed(abs(output))})"
        return [
            ("", "The model prefers "), ("label", first), ("", " to "), ("label", second),
            ("", size),
        ]  # fmt: skip
    name: Piece = ("label", target_name(explanation))
    if target.against_label is not None or explanation.probability is None:
        return [("", "The model's output for "), name, ("", f" is {signed(output)}")]
    chance = f" ({percent(explanation.probability)})"
    if not _is_prediction(explanation):
        if not explanation.largest:
            return [("", "The model gives "), name, ("", chance)]
        first_output = explanation.largest[0]
        share = first_output.probability
        said = "" if share is None else f" ({percent(share)})"
        label = label_name(target, first_output.label)
        return [
            ("", "The model says "), ("label", label), ("", f"{said}, not "), name, ("", chance),
        ]  # fmt: skip
    opening: list[Piece] = [("", "The model says "), name, ("", chance)]
    if len(explanation.largest) > 1 and output < 0 and has_direction(explanation):
        second_output = explanation.largest[1]
        opening += [
            ("", f": its logit is negative, {signed(output)}, but that of "),
            ("label", label_name(target, second_output.label)),
            ("", f" is lower, {signed(second_output.value)}"),
        ]
    return opening


def _is_prediction(explanation: Explanation) -> bool:
    """Whether the explained class is the prediction."""
    if explanation.largest:
        return explanation.largest[0].label == explanation.target.label
    return explanation.probability is None or explanation.probability > 0.5


def _merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Merges adjacent pieces of plain text."""
    merged: list[Piece] = []
    for kind, text in pieces:
        if merged and not kind and not merged[-1][0]:
            merged[-1] = ("", merged[-1][1] + text)
        elif text:
            merged.append((kind, text))
    return merged


def _named(explanation: Explanation) -> list[tuple[str, float]]:
    """Words, atoms or image regions with their scores, as a person would name them."""
    kind = str((explanation.scene or {}).get("kind", ""))
    if kind in ("image", "superpixels"):
        return _regions(explanation)
    if explanation.text is not None and any(unit.word is not None for unit in explanation.units):
        explanation = explanation.words()
    named: list[tuple[str, float]] = []
    images: dict[str, float] = {}
    scores = explanation.scores.astype(float).tolist()
    for i, (unit, score) in enumerate(zip(explanation.units, scores, strict=True)):
        if kind == "images" and unit.box is not None:
            images[unit.field] = images.get(unit.field, 0.0) + score
        elif not unit.special and re.search(r"\w", unit.text):
            named.append((unit_name(explanation, i), score))
    return [*images.items(), *named]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _regions(explanation: Explanation) -> list[tuple[str, float]]:
    """The nine regions of an image with the sums of their scores."""
    scene = explanation.scene or {}
    totals: dict[str, float] = {}
    scores = explanation.scores.astype(float).tolist()
    for i, (unit, score) in enumerate(zip(explanation.units, scores, strict=True)):
        if unit.box is not None:
            left, top, right, bottom = unit.box
            x, y = (left + right) / 2, (top + bottom) / 2
        elif "paths" in scene:
            runs = re.findall(r"M(\d+) (\d+)h(\d+)", str(scene["paths"][i])) or [(0, 0, 0)]
            x = sum(int(start) + int(length) / 2 for start, _, length in runs) / len(runs)
            y = sum(int(row) for _, row, _ in runs) / len(runs)
        else:
            continue
        row, column = (
            min(2, int(3 * middle / float(scene[side])))
            for middle, side in ((y, "height"), (x, "width"))
        )
        place = " ".join(filter(None, (_ROWS[row], _COLUMNS[column]))) or "centre"
        totals[f"the {place}"] = totals.get(f"the {place}", 0.0) + score
    return list(totals.items())
