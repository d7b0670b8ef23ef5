"""A BERT classifier written out from its weights, with `.detach()` where the rules say."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Weights = dict[str, Tensor]


def kept(x: Tensor) -> Tensor:
    """No rule: the value stays in the graph."""
    return x


def frozen(x: Tensor) -> Tensor:
    """The value is a constant."""
    return x.detach()


def secant(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """x · [f(x) / x] with the bracket a constant; f(0) = 0 and no x is 0."""
    return lambda x: x * (f(x) / x).detach()


class Bert:
    """The forward pass of one sequence; `attention` and `scale` are `kept` or `frozen`."""

    def __init__(self, model, attention=kept, scale=kept, activation=kept):
        self.weights: Weights = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }
        self.config = model.config
        self.attention, self.scale = attention, scale
        linearised = activation is frozen
        self.gelu = secant(F.gelu) if linearised else F.gelu
        self.tanh = secant(torch.tanh) if linearised else torch.tanh

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].detach().T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = centred.pow(2).mean(-1, keepdim=True)
        one_over = self.scale(1 / torch.sqrt(spread + self.config.layer_norm_eps))
        weight = self.weights[f"{name}.weight"].detach()
        return centred * one_over * weight + self.weights[f"{name}.bias"]

    def attend(self, x: Tensor, name: str) -> Tensor:
        heads = self.config.num_attention_heads
        q, k, v = (
            self.linear(x, f"{name}.self.{part}").unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in ("query", "key", "value")
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1)
        joined = (self.attention(weights) @ v).transpose(0, 1).flatten(1)
        return self.norm(
            x + self.linear(joined, f"{name}.output.dense"), f"{name}.output.LayerNorm"
        )

    def embedded(self, ids: list[int]) -> list[Tensor]:
        """What the words, their positions and their types are embedded as, each (T, D)."""
        table = {
            part: self.weights[f"bert.embeddings.{part}_embeddings.weight"].detach()
            for part in ("word", "position", "token_type")
        }
        return [
            table["word"][ids],
            table["position"][: len(ids)],
            table["token_type"][[0] * len(ids)],
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of one embedded sequence, (T, D)."""
        x = self.norm(x, "bert.embeddings.LayerNorm")
        for number in range(self.config.num_hidden_layers):
            name = f"bert.encoder.layer.{number}"
            x = self.attend(x, f"{name}.attention")
            inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
            outer = x + self.linear(inner, f"{name}.output.dense")
            x = self.norm(outer, f"{name}.output.LayerNorm")
        pooled = self.tanh(self.linear(x[0], "bert.pooler.dense"))
        return self.linear(pooled, "classifier")

    def parts(self, ids: list[int], target: int) -> tuple[Tensor, list[Tensor]]:
        """The logit, and gradient × input of words, positions and types, each (T,)."""
        parts = self.embedded(ids)
        x = sum(parts).requires_grad_()
        out = self(x)[target]
        (gradient,) = torch.autograd.grad(out, x)
        return out.detach(), [(part * gradient).sum(-1) for part in parts]

    def biases(self, ids: list[int], target: int) -> dict[str, float]:
        """Gradient · bias of every bias, by the name of its layer."""
        named = {name: w for name, w in self.weights.items() if name.endswith(".bias")}
        out = self(sum(self.embedded(ids)))[target]
        found = torch.autograd.grad(out, list(named.values()), allow_unused=True)
        amounts: dict[str, float] = {}
        for (name, bias), gradient in zip(named.items(), found, strict=True):
            path = name.removesuffix(".bias").split(".")
            size = 4 if path[1:2] == ["encoder"] else 2
            layer = ".".join(path[:size]) if len(path) > 1 else path[0]
            amount = 0.0 if gradient is None else float((gradient * bias.detach()).sum())
            amounts[layer] = amounts.get(layer, 0.0) + amount
        return amounts
