"""A ViT classifier written out from its weights, with `.detach()` where the rules say."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.oracles.attended import Seen, one_hot
from tests.oracles.bert import frozen, kept, secant


class Vit:
    """The forward pass of one image; each setting is `kept` or `frozen`."""

    def __init__(self, model, attention=kept, scale=kept, activation=kept):
        self.w = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in model.state_dict().items()
        }
        self.config = model.config
        self.attention, self.scale = attention, scale
        self.gelu = secant(F.gelu) if activation is frozen else F.gelu

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[f"{name}.weight"].detach().T + self.w[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = centred.pow(2).mean(-1, keepdim=True)
        one_over = self.scale(1 / torch.sqrt(spread + self.config.layer_norm_eps))
        return centred * one_over * self.w[f"{name}.weight"].detach() + self.w[f"{name}.bias"]

    def embedded(self, image: Tensor) -> Tensor:
        """Patch by patch: its numbers times the kernel's; then the class token, the positions."""
        size = self.config.patch_size
        kernel = self.w["vit.embeddings.patch_embeddings.projection.weight"].detach().flatten(1)
        bias = self.w["vit.embeddings.patch_embeddings.projection.bias"]
        rows = [
            kernel @ image[:, top : top + size, left : left + size].flatten() + bias
            for top in range(0, image.shape[1], size)
            for left in range(0, image.shape[2], size)
        ]
        token = self.w["vit.embeddings.cls_token"][0, 0]
        return torch.stack([token, *rows]) + self.w["vit.embeddings.position_embeddings"][0]

    def attend(self, x: Tensor, name: str) -> Tensor:
        heads = self.config.num_attention_heads
        q, k, v = (
            self.linear(x, f"{name}.{part}_proj").unflatten(-1, (heads, -1)).transpose(0, 1)
            for part in "qkv"
        )
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1)
        joined = (self.attention(weights) @ v).transpose(0, 1).flatten(1)
        return self.linear(joined, f"{name}.o_proj")

    def __call__(self, image: Tensor) -> Tensor:
        """The logits of one image, (C, H, W)."""
        x = self.embedded(image)
        for number in range(self.config.num_hidden_layers):
            name = f"vit.layers.{number}"
            x = x + self.attend(self.norm(x, f"{name}.layernorm_before"), f"{name}.attention")
            inner = self.linear(self.norm(x, f"{name}.layernorm_after"), f"{name}.mlp.fc1")
            x = x + self.linear(self.gelu(inner), f"{name}.mlp.fc2")
        return self.linear(self.norm(x, "vit.layernorm")[0], "classifier")

    def pixels(self, image: Tensor, target: int) -> Tensor:
        """Gradient × input of each pixel, its channels added, (H, W)."""
        image = image.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self(image)[target], image)
        return (gradient * image.detach()).sum(0)

    def positions(self, image: Tensor, target: int) -> Tensor:
        """Gradient × position of the class token and each patch, (1 + patches,)."""
        table = self.w["vit.embeddings.position_embeddings"]
        (gradient,) = torch.autograd.grad(self(image)[target], table)
        return (gradient * table.detach())[0].sum(-1)

    def constant(self, image: Tensor, target: int, name: str) -> float:
        """Gradient · value of one parameter that is added: a bias, the class token."""
        (gradient,) = torch.autograd.grad(self(image)[target], self.w[name])
        return float((gradient * self.w[name].detach()).sum())


def by_patch(pixels: Tensor, size: int) -> Tensor:
    """The sums over square patches, row by row, (patches,)."""
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    return torch.stack([
        pixels[i * size : (i + 1) * size, j * size : (j + 1) * size].sum()
        for i in range(rows)
        for j in range(columns)
    ])  # fmt: skip


def seen(model, image: Tensor, target: int) -> Seen:
    """The attention maps of one image and their gradients; the class token's row is read."""
    taken: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        taken.append(weights)
        return weights

    out = Vit(model, attention=keep)(image)[target]
    gradients = torch.autograd.grad(out, taken)
    places = taken[0].shape[-1]
    maps = [each.detach() for each in taken]
    return Seen(maps, list(gradients), [(0, 0)] * len(maps), [places], one_hot(0, places))
