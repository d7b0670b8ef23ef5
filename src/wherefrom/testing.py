"""The conformance suite for methods, including your own.

from wherefrom.testing import check_method
check_method(MyMethod())
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.core.explanation import Explanation
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Case, OutputNames, Target
from wherefrom.core.torch_internals import global_hook_registries, version_of
from wherefrom.errors import NotFinite
from wherefrom.explainer import Explainer
from wherefrom.explaining.request import explain_batch
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods import Method, Scores
from wherefrom.methods.forward_pass import run

_ROWS = ([5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2], [6, 2])


def tiny_classifier(seed: int = 0) -> nn.Module:
    """A BERT of two small layers with random weights, in float64."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=32, num_labels=3, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # the caller's random state is unchanged
        torch.default_generator.manual_seed(seed)
        model: nn.Module = BertForSequenceClassification(config).double().eval()
    return model


def check_method(method: Method, model: nn.Module | None = None) -> None:
    """Raises AssertionError, which names the failed claim, unless the method keeps the contract.

    A method is a frozen dataclass with a name, a docstring and JSON-serialisable settings. Scores
    are finite, and zero for padding; a sample has the same scores alone and in a batch, and the
    same in a second run; the model stays unchanged; and explanations survive a round trip
    through JSON.
    """
    _check_class(method)
    runner = Explainer(tiny_classifier() if model is None else model).runner
    rows = [from_ids(None, ids) for ids in _ROWS]
    inputs = batch(runner, None, rows, None)
    target = Target(torch.tensor([0, 1, 0], device=runner.device))
    with untouched(runner.model):
        try:
            scores = method(Case(runner, inputs, target))
        except NotFinite:
            claim(False, "every score is finite")
            raise
        _check_scores(scores, inputs)
        again = method(Case(runner, inputs, target))
        claim(
            isinstance(again, Scores) and torch.equal(scores.values, again.values),
            "a second run gives the same scores",
        )
        scale = max(float(scores.values.abs().max()), 1e-8)
        for i, row in enumerate(rows):
            alone = method(Case(runner, batch(runner, None, [row], None), target.take([i])))
            together = scores.values[i, inputs.mask[i]]
            gap = float((together - alone.values[0]).abs().max())
            claim(
                gap <= 1e-5 * scale,
                f"a sample has the same scores alone and in a batch (difference {gap:g})",
            )
        if scores.logits is not None:
            claim(
                torch.allclose(scores.logits, run(Case(runner, inputs))),
                "the returned logits are the model's logits of the input",
            )
        _check_json(method, runner, inputs, target)


def _check_class(method: Method) -> None:
    kind: Any = type(method)
    claim(isinstance(method, Method), f"{kind.__name__} is derived from wherefrom.Method")
    claim(is_dataclass(kind), f"{kind.__name__} is a dataclass")
    claim(kind.__dataclass_params__.frozen, f"{kind.__name__} is frozen: @dataclass(frozen=True)")
    claim(bool(getattr(kind, "name", "")), f"{kind.__name__} has a name")
    # a dataclass without a docstring gets its signature as one
    described = (kind.__doc__ or "").strip()
    claim(
        bool(described) and not described.startswith(f"{kind.__name__}("),
        f"{kind.__name__} has a docstring",
    )
    try:
        json.dumps(method.settings(), allow_nan=False)
    except (TypeError, ValueError) as error:
        claim(False, f"its settings are JSON-serialisable ({error})")


def _check_scores(scores: Scores, inputs: Batch) -> None:
    claim(isinstance(scores, Scores), f"scores() returns Scores, not {type(scores).__name__}")
    shape, expected = tuple(scores.values.shape), tuple(inputs.mask.shape)
    claim(shape == expected, f"values have the shape (batch, units) = {expected}, not {shape}")
    claim(bool(torch.isfinite(scores.values).all()), "every score is finite")
    claim(not scores.values.cpu()[~inputs.mask.cpu()].any(), "padding scores zero")
    for name, part in scores.parts.items():
        claim(tuple(part.shape) == expected, f"the part {name!r} has the shape {expected}")
    for key, values in (scores.lines or {}).items():
        claim(tuple(values.shape) == expected[:1], f"the line {key!r} has a value for each sample")


def _check_json(method: Method, runner: ModelRunner, inputs: Batch, target: Target) -> None:
    for explanation in explain_batch(Case(runner, inputs, target), method, OutputNames(runner)):
        try:
            text = explanation.to_json()
            again = Explanation.from_json(text).to_json()
        except (TypeError, ValueError) as error:
            raise AssertionError(
                f"wherefrom: the method breaks its contract: an explanation is JSON ({error})"
            ) from error
        claim(text == again, "an explanation survives a round trip through JSON")


def claim(holds: bool, what: str) -> None:
    """Raises AssertionError, naming the claim, unless it holds."""
    if not holds:
        raise AssertionError(f"wherefrom: the method breaks its contract: {what}")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Raises AssertionError if the model changes within this context."""
    before = snapshot(model)
    try:
        yield
    finally:
        for name in differences(before, snapshot(model)):
            claim(False, f"the model's {name} are as they were")


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that an explanation must not change."""
    modules, weights = dict(model.named_modules()), model.state_dict()
    parameters = dict(model.named_parameters())
    config = getattr(model, "config", None)
    return {
        "weights": {name: tensor.clone() for name, tensor in weights.items()},
        "addresses of weights": {name: tensor.data_ptr() for name, tensor in weights.items()},
        "counts of writes": {name: version_of(p) for name, p in parameters.items()},
        "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in parameters.items()},
        "requires_grad flags": {name: p.requires_grad for name, p in parameters.items()},
        "attributes of parameters": {name: _by_identity(vars(p)) for name, p in parameters.items()},
        "training flags": {name: part.training for name, part in modules.items()},
        "hooks": {name: _hooks(part) for name, part in modules.items()},
        "attributes": {name: _by_identity(vars(part)) for name, part in modules.items()},
        "config entries": copy.deepcopy(getattr(config, "__dict__", config)),
        "global hooks": {name: copy.copy(r) for name, r in global_hook_registries().items()},
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What differs between two snapshots."""
    return [name for name, was in before.items() if not _same(was, after[name])]


@dataclass(frozen=True, eq=False)
class _ByIdentity:
    """An object compared by identity; the reference prevents reuse of its address."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.value is other.value


def _by_identity(attributes: Mapping[str, Any]) -> dict[str, _ByIdentity]:
    return {name: _ByIdentity(value) for name, value in attributes.items()}


def _hooks(module: nn.Module) -> dict[str, dict[str, _ByIdentity]]:
    registries = {key: value for key, value in vars(module).items() if "_hooks" in key}
    return {
        key: _by_identity(value) for key, value in registries.items() if isinstance(value, dict)
    }


def _same(was: Any, now: Any) -> bool:
    if isinstance(was, Tensor):
        return isinstance(now, Tensor) and torch.equal(was, now)
    if isinstance(was, dict):
        same_keys = isinstance(now, dict) and was.keys() == now.keys()
        return same_keys and all(_same(was[key], now[key]) for key in was)
    return bool(was == now)
