"""The conformance suite: what every method must do, for a user's own as well.

from wherefrom.testing import check_method
check_method(MyMethod())
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.explain import Explainer
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods import Method
from wherefrom.methods.intercept import run
from wherefrom.target import Target

_ROWS = ([5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2], [6, 2])


def tiny_classifier(seed: int = 0) -> nn.Module:
    """A BERT of two small layers with random weights, in float64."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    model: nn.Module = BertForSequenceClassification(
        BertConfig(
            vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=32, num_labels=3,
            initializer_range=0.3,
        )
    ).double().eval()  # fmt: skip
    return model


def check_method(method: Method, model: nn.Module | None = None) -> None:
    """Raises AssertionError, with the claim that fails, unless the method keeps the contract.

    It is a frozen dataclass with settings that JSON can hold; gives each unit a finite score and
    padding zero; gives a sample the same scores alone as in a batch, and again when asked again;
    and leaves the model as it was.
    """
    subject = Explainer(model or tiny_classifier()).subject
    _check_form(method)
    rows = [from_ids(None, ids) for ids in _ROWS]
    together = batch(subject, None, rows, None)
    target = Target(torch.tensor([0, 1, 0]))
    with untouched(subject.model):
        found = method(subject, together, target)
        again = method(subject, together, target)
        alone = [
            method(subject, batch(subject, None, [row], None), target.take([i]))
            for i, row in enumerate(rows)
        ]
    values = found.values
    claim(values.shape == together.mask.shape, f"one score for each place, not {values.shape}")
    claim(bool(torch.isfinite(values).all()), "every score is finite")
    claim(not values[~together.mask].any(), "padding scores zero")
    claim(torch.equal(values, again.values), "the same input gives the same scores again")
    scale = float(values.abs().max())
    for i, one in enumerate(alone):
        gap = float((values[i, together.mask[i]] - one.values[0]).abs().max())
        claim(gap <= 1e-5 * max(scale, 1e-8), f"alone as in a batch (sample {i} is off by {gap:g})")
    if found.logits is not None:
        claim(
            torch.allclose(found.logits, run(subject, together)),
            "the logits it hands on are those of the input itself",
        )


def _check_form(method: Method) -> None:
    kind: Any = type(method)
    claim(is_dataclass(kind), f"{kind.__name__} is a dataclass")
    claim(bool(getattr(kind, "name", "")), f"{kind.__name__} has a name")
    claim(bool((kind.__doc__ or "").strip()), f"{kind.__name__} says in its docstring what it is")
    for each in fields(kind):
        try:
            setattr(method, each.name, getattr(method, each.name))
        except FrozenInstanceError:
            continue
        raise AssertionError(f"wherefrom: {kind.__name__} is not frozen")
    json.dumps(method.settings(), default=str)


def claim(holds: bool, what: str) -> None:
    """Raises AssertionError unless it holds."""
    if not holds:
        raise AssertionError(f"wherefrom: the method breaks its contract: {what}")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Raises AssertionError if the model is not, afterwards, what it was before."""
    before = snapshot(model)
    try:
        yield
    finally:
        after = snapshot(model)
        for name, was in before.items():
            now = after[name]
            same = _same(was, now)
            claim(same, f"the model's {name} are as they were")


def snapshot(model: nn.Module) -> dict[str, Any]:
    """All of a model that an explanation must leave alone."""
    registries = nn.modules.module
    return {
        "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "gradients": {n: p.grad is None for n, p in model.named_parameters()},
        "requires_grad": {n: p.requires_grad for n, p in model.named_parameters()},
        "training flags": {name: part.training for name, part in model.named_modules()},
        "hooks": {
            name: (
                len(part._forward_hooks),
                len(part._forward_pre_hooks),
                len(part._backward_hooks),
            )
            for name, part in model.named_modules()
        },
        "global hooks": (
            len(registries._global_forward_hooks),
            len(registries._global_forward_pre_hooks),
        ),
        "config": copy.deepcopy(vars(model.config)) if hasattr(model, "config") else None,
    }


def _same(was: Any, now: Any) -> bool:
    if isinstance(was, Tensor):
        return torch.equal(was, now)
    if isinstance(was, dict):
        return was.keys() == now.keys() and all(_same(was[k], now[k]) for k in was)
    return bool(was == now)
