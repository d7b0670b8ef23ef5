"""Calls methods on padded ids or float tensors, in float64."""

from contextlib import contextmanager
from functools import cache

import torch

from benchmarks.tiny import model as tiny
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner, split_on_failure
from wherefrom.core.target import Case, Target
from wherefrom.inputs.text import batch, encode, from_ids
from wherefrom.methods import Scores, method

ROWS = [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 2], [7, 8, 2]]


@cache
def family(name, task, **changes):
    """A tiny model that several tests may share."""
    return tiny(name, task, **changes)


def of_ids(model, rows, prefix=None):
    """Ids padded into one batch, with the decoder's ids if it has some."""
    openings = None if prefix is None else [from_ids(None, prefix)] * len(rows)
    return batch(ModelRunner(model), None, [from_ids(None, row) for row in rows], openings)


def of_texts(model, tokenizer, texts):
    return batch(ModelRunner(model), tokenizer, [encode(tokenizer, text) for text in texts], None)


def of_tensor(x):
    """A float tensor (batch, units, features)."""
    return Batch(
        {"x": x},
        ("x",),
        (tuple(Unit(str(i)) for i in range(x.shape[1])),) * len(x),
        torch.ones(x.shape[:2], dtype=torch.bool),
        (None,) * len(x),
    )


def asked(inputs, target):
    """The class or token at the last position that is not padding."""
    width = inputs.tensors[inputs.fields[-1]].shape[1]
    index = None if target is None else torch.full((len(inputs),), target)
    return Target(index, position=inputs.mask[:, -width:].sum(1) - 1)


def runner_of(model, inputs):
    plain = inputs.tensors.keys() == {"x"}
    return ModelRunner(model, (lambda model, given: model(given["x"])) if plain else None)


def found(model, inputs, name, target=None, **settings):
    """The result of a method."""
    case = Case(runner_of(model, inputs), inputs, asked(inputs, target))
    return in_parts(method(name, **settings), case)


def in_parts(method, case):
    """The result for a batch, which is split if it fails as an explainer splits it."""
    pieces = []

    def work(rows):
        pieces.append(method(case if len(rows) == len(case.batch) else case.take(list(rows))))
        return rows

    for _ in split_on_failure(range(len(case.batch)), work):
        pass
    first, *others = pieces
    if not others:
        return first

    def joined(of):
        return {key: torch.cat([of(piece)[key] for piece in pieces]) for key in of(first) or ()}

    return Scores(
        torch.cat([piece.values for piece in pieces]),
        None if first.logits is None else torch.cat([piece.logits for piece in pieces]),
        joined(lambda piece: piece.parts),
        None if first.lines is None else joined(lambda piece: piece.lines),
    )


def scores(model, inputs, name, target=None, **settings):
    """The scores, (batch, units) in float64."""
    return found(model, inputs, name, target, **settings).values


def same(actual, expected, tol=1e-8):
    """Equal relative to the largest of the expected numbers, which is not zero."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    actual = torch.as_tensor(actual, dtype=torch.float64)
    assert actual.shape == expected.shape
    assert torch.isfinite(expected).all()
    size = float(expected.abs().max())
    assert size > 0
    worst = float((actual - expected).abs().max())
    assert worst <= tol * size, f"{worst / size:.2g} of the largest, {actual} for {expected}"


def different(a, b, tol=1e-3):
    """Not equal by a wide margin."""
    assert float((a - b).abs().max()) > tol * float(torch.maximum(a.abs(), b.abs()).max())


@contextmanager
def rows_run(model):
    """Counts the rows of every pass through the model."""
    counts = []

    def count(_module, _args, out):
        logits = out if isinstance(out, torch.Tensor) else out.logits
        counts.append(len(logits))

    handle = model.register_forward_hook(count)
    try:
        yield counts
    finally:
        handle.remove()
