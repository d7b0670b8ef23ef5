"""A model whose exact explanation is known, and methods with scores of our choice."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from wherefrom import Explainer
from wherefrom.methods import Method
from wherefrom.methods.base import Scores


class Additive(nn.Module):
    """Two classes; the second's logit is the sum of a weight for each token."""

    def __init__(self, weights):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.tensor(weights)[:, None])

    def forward(self, input_ids, attention_mask=None):
        weights = self.table(input_ids)[..., 0] * attention_mask
        return torch.stack([torch.zeros_like(weights[:, 0]), weights.sum(1)], 1)


def additive_explainer(weights, tokenizer, labels=("no", "yes")):
    def run(model, tensors):
        return model(tensors["input_ids"], tensors["attention_mask"])

    return Explainer(Additive(weights), tokenizer, labels=labels, forward=run)


@dataclass(frozen=True)
class FixedScores(Method):
    """The score of a token is its number in a list."""

    name: ClassVar[str] = "fixed"
    by_token: tuple[float, ...] = ()

    def scores(self, case):
        by_token = torch.tensor(self.by_token, dtype=torch.float64)
        return Scores(by_token[case.batch.tensors["input_ids"]] * case.batch.mask)
