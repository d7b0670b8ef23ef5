"""What the tokens of an answer are to a model that gives each token a type."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from wherefrom.answers.tokens import PromptTokens
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Case, same_logits
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import SpanTarget
from wherefrom.errors import ModelError
from wherefrom.inputs.image_text_processor import EncodedImages
from wherefrom.inputs.text import Encoded
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods.forward_pass import run


@restores_state
def with_types(reader: TextReader, prompt: PromptTokens) -> PromptTokens:
    """The prompt, with the type that the tokens of an answer have.

    By some types a model reads what follows as a part of the prompt, in both directions. Those of
    an answer leave the output before it as it is: they are found by trying.
    """
    images = prompt.seen
    if images is None or not images.types:
        return prompt
    with Scope(inference=False):
        expected = _last_logits(reader, prompt, images, [])
        lasts = [int(values[0, -1]) for values in images.types.values()]
        for fill in dict.fromkeys([*lasts, 0, 1]):
            images = replace(images, fill=fill)
            logits = _last_logits(reader, prompt, images, [prompt.ids[-1]])
            if same_logits(expected, logits):
                return replace(prompt, images=images)
    raise ModelError(
        f"{reader.runner.name} does not read an answer from the left to the right, whatever the "
        f"{' or '.join(images.types)} of its tokens."
    )


def _last_logits(
    reader: TextReader, prompt: PromptTokens, images: EncodedImages, following: list[int]
) -> Tensor:
    """The logits after the prompt, though more follows."""
    ids = [*prompt.ids, *following]
    inputs = images.joined(reader.batch([Encoded(ids, (Unit(""),) * len(ids), None)]))
    place = torch.tensor([[len(prompt.ids) - 1]])
    logits = run(Case(reader.runner, inputs, SpanTarget(position=place)))
    return SpanTarget(position=place).rows(logits)[0, 0].double().cpu()
