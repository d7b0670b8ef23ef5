"""Models that compare images with texts: the texts are their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from wherefrom.core.runner import Forward, ModelRunner
from wherefrom.errors import InputError, TargetError


def compares_with_texts(runner: ModelRunner) -> bool:
    """Whether the model takes an image together with texts."""
    return runner.forward is None and runner.takes("pixel_values", "input_ids")


def no_class_texts(runner: ModelRunner) -> TargetError:
    """The error for a model that compares images with texts and got no text."""
    return TargetError(
        f"{runner.name} compares images with texts.",
        'Name the texts, as in target="a photo of a cat", or pass Explainer(…, labels=[…]).',
        command='Name the text: --target "a photo of a cat".',
    )


def compare_with(tokenizer: Any, texts: Sequence[str]) -> Forward:
    """Runs such a model on images, with these texts as its classes."""
    if tokenizer is None:
        raise InputError(
            "texts as classes need a tokenizer.",
            "Pass it: Explainer(model, tokenizer).",
            command="",
        )
    encoded = tokenizer(list(texts), return_tensors="pt", padding=True)
    names = [name for name in ("input_ids", "attention_mask") if name in encoded]

    def forward(model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        device = tensors["pixel_values"].device
        return model(**tensors, **{name: encoded[name].to(device) for name in names})

    return forward
