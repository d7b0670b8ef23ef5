"""The kinds of lines that a ledger has: what they are called, and what they are, in words."""

from __future__ import annotations

from typing import NamedTuple

from wherefrom.core.explanation import Line, plural


class LineKind(NamedTuple):
    """The name of all lines of a kind, and what they are."""

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
    "bias": LineKind("biases", "constants of the model, the same for any input"),
    "prototype": LineKind("prototypes", "vectors of the model that the input is compared with"),
    "root": LineKind("root", "what the root adds, a neutral input in place of this one"),
    "baseline": LineKind("baseline", "the output for the baseline"),
    "padding": LineKind("other positions", "places without a token"),
    "token": LineKind("extra tokens", "tokens that the model adds by itself, such as [CLS]"),
    "softmax": LineKind("softmax", "what the derivative of the softmax leaves"),
    "attention": LineKind("attention", "what attention adds at the root"),
    "quantisation": LineKind("quantisation", "what rounding adds"),
    "detached": LineKind("without a gradient", "what depends on the input without a gradient"),
    "entropy": LineKind("softmax entropy", "of the softmax at the output"),
    "image": LineKind("images", "what the patches of the images add"),
    "prompt": LineKind("prompt", "what the parts of the prompt add"),
    "first token": LineKind("first token", "on which attention rests that needs no other token"),
    "template": LineKind("template", "what the marks of the chat format add"),
    "answer": LineKind("earlier answer", "what the tokens of the answer before this one add"),
    "normaliser": LineKind("normaliser", "by which a logit becomes a log-probability"),
    "residual": LineKind("residual of earlier tokens", "what their own lines do not account for"),
}


def group_name(kind: str) -> str:
    """What the lines of a kind are called together.

    >>> group_name("word"), group_name("latent")
    ('tokens', 'latents')
    """
    return LINE_KINDS[kind].name if kind in LINE_KINDS else plural(kind)


def line_name(line: Line) -> str:
    """A line by its label; the line of all units by the name of its kind."""
    return group_name(line.kind) if line.label == plural(line.kind) else line.label
