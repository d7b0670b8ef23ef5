"""The intermediate form between an explanation and its output as text or HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wherefrom.core.explanation import RUNNERS_UP, Explanation, TargetInfo

LONGEST_LABEL = 24  # characters of a method's label on one line


@dataclass(frozen=True)
class Mark:
    """A piece of text with its strength from −1 (against) to 1 (for)."""

    gap: str  # the text between the previous piece and this one
    text: str
    score: float
    strength: float
    tint: str
    special: bool
    parts: tuple[tuple[str, float], ...] = ()
    error: float | None = None  # the standard error of an estimated score


def marks(explanation: Explanation) -> list[Mark]:
    """The units in text order, with the text between them; each text of a pair starts a line.

    Scores are divided by the largest |score| outside special tokens, and clipped to ±1.
    """
    text, units = explanation.text or "", explanation.units
    scale = largest_score(explanation) or 1.0
    pieces: list[Mark] = []
    position: int | None = None  # where the previous unit ended
    field = ""  # of the last unit that has one
    for i, unit in enumerate(units):
        if field and unit.field and unit.field != field:
            gap = "\n"
        elif unit.start is None or position is None or unit.start < position:
            gap = " " if pieces else ""
        else:
            gap = text[position : unit.start]
        score = float(explanation.scores[i])
        pieces.append(
            Mark(
                gap=gap,
                text=unit.text,
                score=score,
                strength=max(-1.0, min(1.0, score / scale)),
                tint=tint(score, explanation.signed),
                special=unit.special,
                parts=tuple((name, float(v[i])) for name, v in explanation.parts.items()),
                error=None if explanation.errors is None else float(explanation.errors[i]),
            )
        )
        position, field = unit.end, unit.field or field
    return pieces


def tint(score: float, is_signed: bool = True) -> str:
    """The hue of a score: one per sign, and a third for unsigned scores."""
    return "strength" if not is_signed else "for" if score > 0 else "against"


def wrapped_label(explanation: Explanation) -> str:
    """The method's label, its settings on a second line if it is long."""
    label = explanation.method_label
    return label if len(label) <= LONGEST_LABEL else label.replace("(", "\n(", 1)


def largest_score(explanation: Explanation) -> float:
    """The largest |score| outside special tokens, which is the scale of the colours."""
    pairs = zip(explanation.units, explanation.scores.tolist(), strict=True)
    plain = [abs(score) for unit, score in pairs if not unit.special]
    return float(max(plain, default=0.0) or max(map(abs, explanation.scores), default=0.0))


def heading(explanation: Explanation) -> str:
    """The target with its probability and output, in one line.

    A contrast is a difference of two outputs and has no probability; so has a part of an output.
    """
    target, label = explanation.target, target_name(explanation)
    if target.through is not None:
        return f"{label}  through {target.through} {explanation.output:+.3f}"
    if explanation.probability is None or target.against is not None:
        return f"{label}  output {explanation.output:+.3f}"
    return f"{label}  {percent(explanation.probability)}  output {explanation.output:+.3f}"


def target_name(explanation: Explanation) -> str:
    """The name of the target: a label, or the difference of two."""
    target = explanation.target
    names = [target.label, *([] if target.against_label is None else [target.against_label])]
    return " − ".join(label_name(target, name) for name in names)


def label_name(target: TargetInfo, label: str) -> str:
    """The name of an output; tokens are quoted, since spaces are part of them."""
    is_token = target.position is not None and target.place is None
    return quoted(label) if is_token and label != RUNNERS_UP else label


def quoted(token: str) -> str:
    r"""A token in quotation marks, with invisible characters escaped.

    >>> quoted(" banana"), quoted("\n")
    ('“ banana”', '“\\n”')
    """
    return f"“{''.join(c if c.isprintable() else repr(c)[1:-1] for c in token)}”"


def percent(share: float) -> str:
    """A probability as text, rounded so that only certainty reads 100 %.

    >>> percent(0.9984), percent(0.99999), percent(1.0), percent(0.0001)
    ('99.8 %', '>99.9 %', '100.0 %', '<0.1 %')
    """
    value = 100 * share
    if 99.95 < value < 100:
        return ">99.9 %"
    return "<0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def whole_percent(share: float) -> str:
    """A share of a sum without decimals.

    >>> whole_percent(0.784), whole_percent(-0.06)
    ('78 %', '-6 %')
    """
    return f"{100 * share:.0f} %"


def signed(value: float) -> str:
    """A number in the format of the ledger.

    >>> signed(0.41234), signed(-0.0000001), signed(1234.5)
    ('+0.412', '-1e-07', '+1234.5')
    """
    size = abs(value)
    if size >= 1000:
        return f"{value:+.1f}"
    return f"{value:+.3f}" if size >= 0.0005 or size == 0 else f"{value:+.0e}"


def score_text(score: float, tint: str) -> str:
    """A score in the format of `signed`; scores of unsigned methods have no sign.

    >>> score_text(0.41234, "for"), score_text(0.41234, "strength")
    ('+0.412', '0.412')
    """
    return signed(score).lstrip("+") if tint == "strength" else signed(score)


def short_number(score: float, tint: str, digits: int = 2) -> str:
    """A score with few digits, as shown next to a unit; the minus sign prevents line breaks.

    >>> short_number(0.5217, "for"), short_number(-1.06e-05, "against")
    ('+0.52', '−1.1e-05')
    """
    text = f"{score:{'' if tint == 'strength' else '+'}.{digits}g}"
    return text.replace("-", "\u2212", 1) if score < 0 else text


def with_error(value: float, error: float | None) -> str:
    """A number with its standard error, if it has one.

    >>> with_error(0.41234, 0.0123), with_error(0.41234, None)
    ('+0.412 ± 0.012', '+0.412')
    """
    return signed(value) if error is None else f"{signed(value)} ± {error:.2g}"


def error_note(explanation: Explanation) -> str:
    """The size of the standard errors; empty for scores that are not estimates."""
    if explanation.errors is None:
        return ""
    largest = float(explanation.errors.max(initial=0.0))
    if not largest:
        return "standard errors 0: all subsets were run, so the scores are exact"
    return f"standard errors up to {largest:.2g}"


def is_mixed(explanation: Explanation) -> bool:
    """Whether the input is a text with images."""
    return (explanation.scene or {}).get("kind") == "images"


def pictures(explanation: Explanation) -> list[Explanation]:
    """An explanation of each image, with its patches as units."""
    scenes = (explanation.scene or {}).get("images", ())
    explanations = []
    for number, scene in enumerate(scenes, 1):
        patches = [
            i
            for i, unit in enumerate(explanation.units)
            if unit.field == f"image {number}" and unit.box is not None
        ]
        explanations.append(replace(_taken(explanation, patches), scene=scene, text=None))
    return explanations


def text_part(explanation: Explanation) -> Explanation:
    """The explanation of the tokens alone, without image tokens."""
    tokens = [i for i, unit in enumerate(explanation.units) if unit.start is not None]
    return replace(_taken(explanation, tokens), scene=None)


def _taken(explanation: Explanation, units: Sequence[int]) -> Explanation:
    return replace(
        explanation,
        units=tuple(explanation.units[i] for i in units),
        scores=explanation.scores[list(units)],
        parts={name: part[list(units)] for name, part in explanation.parts.items()},
        errors=None if explanation.errors is None else explanation.errors[list(units)],
    )
