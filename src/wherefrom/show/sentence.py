"""An explanation in one plain sentence: what the model says, why, and what speaks against it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from wherefrom.core.explanation import Explanation, Output
from wherefrom.show.text_marks import label_name, percent, signed, target_name

Kind = Literal["", "label", "for", "against"]
Piece = tuple[Kind, str]  # what a piece of the sentence is, and its text
_MOST = 3  # units that are named on a side
_CLOSE = 0.3  # of the strongest unit on its side: what is weaker is not named
_WORTH = 0.1  # of the strongest unit at all: a side that is weaker is not mentioned
_LONGEST = 30  # characters of a unit
_WITH_SIGN = frozenset(
    "lrp attn_lrp lrp_ah_ln lrp_ah gradient_x_input integrated_gradients path_gradients "
    "occlusion".split()
)
"""Methods whose scores speak for or against, also where there is no ledger beside them."""
_SIZES = frozenset(
    "attention_last attention_rollout attention_flow gae transformer_attribution gradient "
    "smoothgrad".split()
)
"""Methods whose scores are sizes, never negative: weights of attention, lengths of gradients."""
_REGION = "the "  # begins the name of a region
_ROWS, _COLUMNS = ("top", "", "bottom"), ("left", "", "right")


def sentence(explanation: Explanation) -> str:
    """The sentence as plain text.

    "The model says POSITIVE (99.8 %), mostly because of “best” and “virtues”; “his” speaks
    against it."
    """
    quoted = "{}" if explanation.scene else "“{}”"  # a region or an atom is no quotation
    forms = {"for": quoted, "against": quoted, "label": "{}", "": "{}"}
    return "".join(forms[kind].format(text) for kind, text in pieces(explanation))


def pieces(explanation: Explanation) -> list[Piece]:
    """The sentence in pieces: labels, units that speak for or against, and the words between."""
    reasons, doubts = _sides(explanation)
    target = explanation.target
    if not are_shares(explanation):
        best = _listed(reasons, "for")
        if not best:
            return [*_says(explanation), ("", ".")]
        ranks = f". {explanation.method} ranks "
        return [*_says(explanation), ("", ranks), *best, ("", " highest.")]
    if target.against_label is not None:
        return _preferred(explanation, reasons, doubts)
    opening = _says(explanation)
    name: Piece = ("label", target_name(explanation))
    if not _is_prediction(explanation):
        return [*opening, ("", ". "), *_speak(name, reasons, doubts)]
    if _has_classes(explanation) and explanation.output < 0:
        return [*opening, *_low(explanation), ("", " "), *_speak(name, reasons, doubts)]
    if not reasons:
        return [*opening, ("", ". "), *_speak(name, reasons, doubts)]
    return [*opening, ("", ", mostly because of "), *_listed(reasons, "for"), *_doubts(doubts)]


def named_units(explanation: Explanation) -> set[str]:
    """The units that the sentence names, by those names."""
    return {text for kind, text in pieces(explanation) if kind in ("for", "against")}


def unit_name(explanation: Explanation, index: int) -> str:
    """A unit as the sentence names it: atoms are numbered, words are cut."""
    unit = explanation.units[index]
    is_atom = (explanation.scene or {}).get("kind") == "molecule"
    return f"{unit.text}{index + 1}" if is_atom else _short(unit.text)


def explained(explanation: Explanation) -> str:
    """Which number of the model the scores are of."""
    target, output = explanation.target, signed(explanation.output)
    name = target_name(explanation)
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
    """By which method, and on which model: as it is called here, or by its own name."""
    return f"By {explanation.method_label} on {model or explanation.model}."


def sides(explanation: Explanation) -> tuple[str, str]:
    """What positive and what negative scores mean; nothing, where none can be negative."""
    target = explanation.target
    if is_unsigned(explanation):
        return f"ranked high by {explanation.method}, which does not say for or against", ""
    if not are_shares(explanation):
        return f"ranked high by {explanation.method}", "negative score"
    if target.against_label is not None:
        first, second = target.label, target.against_label
        return f"speaks for {label_name(target, first)}", f"for {label_name(target, second)}"
    return f"speaks for {target_name(explanation)}", "against it"


def are_shares(explanation: Explanation) -> bool:
    """Whether the scores are shares of the output, with a sign that means something."""
    return explanation.ledger is not None or explanation.method in _WITH_SIGN


def is_unsigned(explanation: Explanation) -> bool:
    """Whether the scores are sizes only: the method does not say what speaks for or against."""
    is_sum = explanation.settings.get("reduce") == "sum"  # of gradients, which has a sign
    return explanation.method in _SIZES and not is_sum


def for_legend(explanations: Sequence[Explanation]) -> Explanation:
    """Of one input by many methods, the one whose signs a legend for all of them explains."""
    return max(explanations, key=lambda one: (are_shares(one), not is_unsigned(one)))


def _says(explanation: Explanation) -> list[Piece]:
    """What the model says: its prediction, and the explained class if it is another."""
    name = target_name(explanation)
    if explanation.target.against_label is not None or explanation.probability is None:
        return [
            ("", "The model's output for "), ("label", name),
            ("", f" is {signed(explanation.output)}"),
        ]  # fmt: skip
    chance = f" ({percent(explanation.probability)})"
    if _is_prediction(explanation):
        return [("", "The model says "), ("label", name), ("", chance)]
    if not explanation.largest:
        return [("", "The model gives "), ("label", name), ("", chance)]
    first = explanation.largest[0]
    label = label_name(explanation.target, first.label)
    said = "" if first.probability is None else f" ({percent(first.probability)})"
    return [
        ("", "The model says "), ("label", label), ("", f"{said}, not "), ("label", name),
        ("", chance),
    ]  # fmt: skip


def _is_prediction(explanation: Explanation) -> bool:
    """Whether the explained class is the model's own choice."""
    if explanation.largest:
        return explanation.largest[0].label == explanation.target.label
    return explanation.probability is None or explanation.probability > 0.5


def _has_classes(explanation: Explanation) -> bool:
    return len(explanation.largest) > 1 and explanation.probability is not None


def _low(explanation: Explanation) -> list[Piece]:
    """Why a class with a negative logit is predicted: that of the next one is lower still."""
    second: Output = explanation.largest[1]
    return [
        ("", f": its logit is negative, {signed(explanation.output)}, but that of "),
        ("label", label_name(explanation.target, second.label)),
        ("", f" is lower, {signed(second.value)}."),
    ]


def _preferred(
    explanation: Explanation, reasons: Sequence[str], doubts: Sequence[str]
) -> list[Piece]:
    """The sentence for the difference of two outputs."""
    target = explanation.target
    first, second = (
        label_name(target, label) for label in (target.label, target.against_label or "")
    )
    kinds: tuple[Kind, Kind] = ("for", "against")
    if explanation.output < 0:
        first, second, reasons, doubts = second, first, doubts, reasons
        kinds = ("against", "for")
    opening: list[Piece] = [
        ("", "The model prefers "), ("label", first), ("", " to "), ("label", second),
        ("", f" (difference of the logits {signed(abs(explanation.output))})"),
    ]  # fmt: skip
    if reasons:
        opening += [("", ", mostly because of "), *_listed(reasons, kinds[0])]
    if not doubts:
        return [*opening, ("", ".")]
    verb = " speaks for " if len(doubts) == 1 else " speak for "
    return [*opening, ("", "; "), *_listed(doubts, kinds[1]), ("", verb), ("label", second),
            ("", ".")]  # fmt: skip


def _speak(name: Piece, reasons: Sequence[str], doubts: Sequence[str]) -> list[Piece]:
    """“best” speaks for POSITIVE; “his” against it."""
    if not reasons and not doubts:
        return [("", "Nothing speaks for or against "), name, ("", ".")]
    if not reasons:
        verb = "speaks" if len(doubts) == 1 else "speak"
        return [
            ("", "Nothing speaks for "), name, ("", "; "), *_listed(doubts, "against"),
            ("", f" {verb} against it."),
        ]  # fmt: skip
    verb = "speaks" if len(reasons) == 1 else "speak"
    if reasons[0].startswith(_REGION):  # a region begins the sentence
        reasons = [reasons[0].capitalize(), *reasons[1:]]
    speaking: list[Piece] = [*_listed(reasons, "for"), ("", f" {verb} for "), name]
    if not doubts:
        return [*speaking, ("", ".")]
    return [*speaking, ("", "; "), *_listed(doubts, "against"), ("", " against it.")]


def _doubts(doubts: Sequence[str]) -> list[Piece]:
    if not doubts:
        return [("", ".")]
    verb = " speaks against it." if len(doubts) == 1 else " speak against it."
    return [("", "; "), *_listed(doubts, "against"), ("", verb)]


def _listed(names: Sequence[str], kind: Kind) -> list[Piece]:
    """“a”, “b” and “c”."""
    listed: list[Piece] = []
    for position, name in enumerate(names):
        if position:
            listed.append(("", " and " if position == len(names) - 1 else ", "))
        listed.append((kind, name))
    return listed


def _sides(explanation: Explanation) -> tuple[list[str], list[str]]:
    """The names of the units that speak for and against, the strongest first."""
    named = list(_named(explanation))
    largest = max((abs(score) for _, score in named), default=0.0)

    def strongest(sign: int) -> list[str]:
        side = sorted(((sign * s, name) for name, s in named if sign * s > 0), reverse=True)
        if not side or side[0][0] < _WORTH * largest:
            return []
        close = [name for score, name in side if score >= _CLOSE * side[0][0]]
        return list(dict.fromkeys(close))[:_MOST]

    return strongest(1), strongest(-1)


def _named(explanation: Explanation) -> Iterable[tuple[str, float]]:
    """Words, atoms or regions of an image with their scores, as a person would name them."""
    kind = str((explanation.scene or {}).get("kind", ""))
    if kind in ("image", "superpixels"):
        return _regions(explanation)
    if explanation.text is not None and any(unit.word is not None for unit in explanation.units):
        explanation = explanation.words()
    pairs = zip(explanation.units, explanation.scores.tolist(), strict=True)
    return [
        (unit_name(explanation, i), float(score))
        for i, (unit, score) in enumerate(pairs)
        if not unit.special and re.search(r"\w", unit.text)
    ]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _regions(explanation: Explanation) -> list[tuple[str, float]]:
    """The nine regions of an image with the sums of their scores."""
    scene = explanation.scene or {}
    totals: dict[str, float] = {}
    for i, (unit, score) in enumerate(
        zip(explanation.units, explanation.scores.tolist(), strict=True)
    ):
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
            min(2, int(3 * at / float(scene[side]))) for at, side in ((y, "height"), (x, "width"))
        )
        place = " ".join(filter(None, (_ROWS[row], _COLUMNS[column]))) or "centre"
        totals[place] = totals.get(place, 0.0) + float(score)
    return [(f"{_REGION}{place}", total) for place, total in totals.items()]
