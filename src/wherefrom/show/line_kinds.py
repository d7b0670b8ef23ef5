"""The kinds of ledger lines: their names and meanings."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from wherefrom.core.explanation import Explanation, Ledger, Line, plural


class LineKind(NamedTuple):
    """The name and meaning of a kind of lines."""

    name: str
    meaning: str


LINE_KINDS = {
    "word": LineKind("tokens", "what the tokens themselves add"),
    "patch": LineKind("patches", "what the patches add"),
    "pixel": LineKind("pixels", "what the pixels add"),
    "atom": LineKind("atoms", "what the atoms add"),
    "node": LineKind("nodes", "what the nodes of the graph add"),
    "superpixel": LineKind("superpixels", "what the regions of the image add"),
    "unit": LineKind("units", "what the tokens and the patches of images add"),
    "position": LineKind("positions", "what the position embeddings add"),
    "type": LineKind("types", "what the token types (segments) add"),
    "norm": LineKind("embedding norm", "what the norm after the embeddings adds"),
    "bias": LineKind("biases", "what the model's constants add at this input"),
    "prototype": LineKind("prototypes", "what comparisons with the model's prototype vectors add"),
    "root": LineKind(
        "offset at the reference",
        "gradient · reference (such as [UNK] at each position), not the model's output there",
    ),
    "reference": LineKind(
        "the reference input",
        "the model's output if every unit is missing (such as [UNK] in each place)",
    ),
    "route": LineKind(
        "the input's route at the reference",
        "what the reference adds if the model's choices, such as experts, are those of the input",
    ),
    "baseline": LineKind("baseline", "the model's output for the baseline"),
    "padding": LineKind("other positions", "what positions without a token add"),
    "token": LineKind("extra tokens", "what inserted tokens such as [CLS] add"),
    "softmax": LineKind("softmax", "what the derivative of the softmax leaves out"),
    "quantisation": LineKind("quantisation", "what rounding adds"),
    "detached": LineKind(
        "without a gradient", "what input-dependent values without a gradient add"
    ),
    "entropy": LineKind("softmax entropy", "what the entropy of the softmax at the output adds"),
    "image": LineKind("images", "what the patches of the images add"),
    "prompt": LineKind("prompt", "what the parts of the prompt add"),
    "first token": LineKind("first token", "what the first token, an attention sink, adds"),
    "template": LineKind("template", "what the markup of the chat template adds"),
    "answer": LineKind("earlier answer", "what the tokens of the answer before this one add"),
    "normaliser": LineKind(
        "normaliser", "the log-sum-exp that turns a logit into a log-probability"
    ),
    "residual": LineKind(
        "residual of earlier tokens", "what the ledgers of earlier tokens do not account for"
    ),
}
_ANSWER_UNITS = ("image", "prompt", "first token", "template", "answer")
"""Lines of an answer's ledger that together contain the scores of all units."""


def group_name(kind: str) -> str:
    """The common name of the lines of a kind.

    >>> group_name("word"), group_name("latent")
    ('tokens', 'latents')
    """
    return LINE_KINDS[kind].name if kind in LINE_KINDS else plural(kind)


def line_name(line: Line) -> str:
    """A line's label; the name of its kind if the label is just the kind.

    >>> line_name(Line("root", "root", 1.0)), line_name(Line("encoder.layer.3", "bias", 1.0))
    ('offset at the reference', 'encoder.layer.3')
    """
    bare = (line.kind, plural(line.kind))
    return group_name(line.kind) if line.label in bare else line.label


def named_ledger(explanation: Explanation) -> Ledger:
    """The ledger, with the reference named after the kind of input."""
    assert explanation.ledger is not None
    ledger, name = explanation.ledger, reference_name(explanation)
    lines = tuple(
        replace(line, label=name) if (line.kind, line.label) == ("reference", "reference") else line
        for line in ledger.lines
    )
    return replace(ledger, lines=lines)


def reference_name(explanation: Explanation) -> str:
    """The name of the reference input."""
    if (explanation.scene or {}).get("kind") in ("image", "superpixels"):
        return "a blank image"
    settings = explanation.settings
    is_unknown = settings.get("baseline", settings.get("root", "unk")) == "unk"
    if explanation.text is not None and not explanation.scene and is_unknown:
        return "a text of unknown words"
    return LINE_KINDS["reference"].name


def summary(ledger: Ledger) -> list[Line]:
    """The ledger in few lines: one for each kind, all biases as one."""
    totals: dict[tuple[str, str], float] = {}
    kinds = {line.kind for line in ledger.lines}
    # with a reference, neither line is part of the scores
    joined = {"position", "type"} <= kinds and bool({"root", "reference"} & kinds)
    for line in ledger.lines:
        name, kind = group_name(line.kind), line.kind
        if joined and kind in ("position", "type"):
            name, kind = "positions, types", "position"
        elif kind == "reference":
            name = line_name(line)
        totals[name, kind] = totals.get((name, kind), 0.0) + line.value
    return [Line(name, kind, value) for (name, kind), value in totals.items()]


def lines_beyond_units(explanation: Explanation) -> list[Line]:
    """The ledger in few lines, without the parts that the scores of units contain."""
    ledger = named_ledger(explanation)
    scored = {kind: float(values.sum()) for kind, values in explanation.parts.items()}
    if not scored and ledger.lines:
        first = ledger.lines[0].kind
        scored = {first: float(explanation.scores.sum())}
        if first in _ANSWER_UNITS:
            scored = {kind: ledger.of(kind) for kind in _ANSWER_UNITS}
    labels = {line.kind: line.label for line in ledger.lines if line.kind == "reference"}
    beyond = [
        Line(labels.get(kind, kind), kind, ledger.of(kind) - scored.get(kind, 0.0))
        for kind in dict.fromkeys(line.kind for line in ledger.lines)
    ]
    tiny = 1e-5 * sum(abs(line.value) for line in ledger.lines)
    others = summary(Ledger(tuple(beyond), ledger.output))
    return [line for line in others if abs(line.value) > tiny]
