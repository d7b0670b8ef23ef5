"""Transformer attribution (Chefer et al. 2021b) layer by layer, for BERT and for ViT."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F


def over(r: Tensor, z: Tensor) -> Tensor:
    """R / Z, zero where Z is."""
    return torch.where(z == 0, torch.zeros_like(z), r / z)


def through_linear(r: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Z = x⁺W⁺ᵀ + x⁻W⁻ᵀ and R_in = x⁺(S W⁺) + x⁻(S W⁻)."""
    up, down = weight * (weight > 0), weight * (weight < 0)
    high, low = x * (x > 0), x * (x < 0)
    s = over(r, high @ up.T + low @ down.T)
    return high * (s @ up) + low * (s @ down)


def rescaled(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two shares, made to add up to |Σa| / (|Σa| + |Σb|) of ΣR, and the rest of it."""
    size = a.sum().abs() + b.sum().abs()
    return (
        a * (a.sum().abs() / size * r.sum() / a.sum()),
        b * (b.sum().abs() / size * r.sum() / b.sum()),
    )


def through_sum(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    s = over(r, a + b)
    return rescaled(r, a * s, b * s)


def through_product(r: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The relevance of both operands of a @ b, head by head, rescaled over all heads."""
    to_a, to_b = torch.zeros_like(a), torch.zeros_like(b)
    for head in range(len(a)):
        s = over(r[head], a[head] @ b[head])
        to_a[head] = a[head] * (s @ b[head].T)
        to_b[head] = b[head] * (a[head].T @ s)
    return rescaled(r, to_a, to_b)


@dataclass
class Result:
    """What came of it: the output, a map's relevance and gradient for every block, from the first.

    `sums` has the total relevance at the input of every block, from the first.
    """

    output: float
    relevance: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)

    def scores(self, normalise=False, start_layer=0, every=False) -> Tensor:
        """The readout row, or the sum of all, of the product of I + E_h (∇A ∘ R)⁺."""
        size = self.gradients[0].shape[-1]
        whole = torch.eye(size).double()
        for g, r in list(zip(self.gradients, self.relevance, strict=True))[start_layer:]:
            step = torch.relu(g * r).mean(0)
            block = torch.eye(size).double() + step
            if normalise:
                block = block / block.sum(-1, keepdim=True)
            whole = block @ whole
        if every:
            return whole.sum(0)
        row = whole[0].clone()
        row[0] = 0.0  # the readout's own entry is dropped
        return row


class Pass:
    """A forward pass whose every step leaves a note of how relevance goes back through it."""

    def __init__(self, model):
        self.w = {name: t.detach() for name, t in model.state_dict().items()}
        self.heads = model.config.num_attention_heads
        self.eps = model.config.layer_norm_eps

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        size = (x.shape[-1],)
        return F.layer_norm(x, size, self.w[f"{name}.weight"], self.w[f"{name}.bias"], self.eps)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (heads, places, d)

    def attend(self, x: Tensor, names) -> dict:
        q, k, v = (self.split(self.linear(x, name)) for name in names[:3])
        scaled = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scaled, -1)
        joined = (weights @ v).transpose(0, 1).flatten(1)
        out = self.linear(joined, names[3])
        return {"x": x, "q": q, "k": k, "v": v, "weights": weights, "joined": joined, "out": out}

    def attend_back(self, r: Tensor, saw: dict, names) -> tuple[Tensor, Tensor]:
        """The relevance of what went in, and of the map."""
        saw = {name: t.detach() for name, t in saw.items()}
        r = self.split(through_linear(r, saw["joined"], self.w[f"{names[3]}.weight"]))
        of_map, of_v = through_product(r, saw["weights"], saw["v"])
        of_q, of_k = through_product(of_map, saw["q"], saw["k"].transpose(1, 2))
        total = torch.zeros_like(saw["x"])
        for name, part in zip(names, (of_q, of_k.transpose(1, 2), of_v), strict=False):
            joined = part.transpose(0, 1).flatten(1)
            total += through_linear(joined, saw["x"], self.w[f"{name}.weight"])
        return total, of_map

    def feed_back(self, r: Tensor, x: Tensor, inner: str, outer: str) -> Tensor:
        """Through a feed-forward net; its activation is the identity to relevance."""
        activated = F.gelu(self.linear(x, inner))
        r = through_linear(r, activated, self.w[f"{outer}.weight"])
        return through_linear(r, x, self.w[f"{inner}.weight"])


def bert(model, ids: list[int], target: int) -> Result:
    """A BERT classifier: norms after the sums, the head reads the first place."""
    run = Pass(model)
    names = [
        [f"bert.encoder.layer.{i}.attention.{part}" for part in
         ("self.query", "self.key", "self.value", "output.dense")]
        for i in range(model.config.num_hidden_layers)
    ]  # fmt: skip
    embedded = run.w["bert.embeddings.word_embeddings.weight"][ids]
    embedded = embedded + run.w["bert.embeddings.position_embeddings.weight"][: len(ids)]
    embedded = embedded + run.w["bert.embeddings.token_type_embeddings.weight"][0]
    x = run.norm(embedded, "bert.embeddings.LayerNorm").requires_grad_()
    blocks = []
    for i, parts in enumerate(names):
        layer = f"bert.encoder.layer.{i}"
        saw = run.attend(x, parts)
        middle = run.norm(saw["out"] + x, f"{layer}.attention.output.LayerNorm")
        inner = F.gelu(run.linear(middle, f"{layer}.intermediate.dense"))
        fed = run.linear(inner, f"{layer}.output.dense")
        blocks.append((x, saw, middle, fed))
        x = run.norm(fed + middle, f"{layer}.output.LayerNorm")
    pooled = torch.tanh(run.linear(x[0], "bert.pooler.dense"))
    out = run.linear(pooled, "classifier")[target]
    result = Result(float(out.detach()))
    result.gradients = list(torch.autograd.grad(out, [saw["weights"] for _, saw, _, _ in blocks]))
    start = torch.eye(model.config.num_labels).double()[target]
    r = through_linear(start, pooled.detach(), run.w["classifier.weight"])
    first = through_linear(r, x[0].detach(), run.w["bert.pooler.dense.weight"])
    r = torch.zeros_like(x.detach())
    r[0] = first
    for i in reversed(range(len(blocks))):
        x, saw, middle, fed = blocks[i]
        x, middle, fed = x.detach(), middle.detach(), fed.detach()
        layer = f"bert.encoder.layer.{i}"
        of_fed, of_middle = through_sum(r, fed, middle)
        of_middle = of_middle + run.feed_back(
            of_fed, middle, f"{layer}.intermediate.dense", f"{layer}.output.dense"
        )
        of_out, of_x = through_sum(of_middle, saw["out"].detach(), x)
        through, of_map = run.attend_back(of_out, saw, names[i])
        r = of_x + through
        result.relevance.insert(0, of_map)
        result.sums.insert(0, float(r.sum()))
    return result


def vit(model, x: Tensor, target: int) -> Result:
    """A ViT on what its embeddings give, (places, D): norms before, the head reads the first."""
    run = Pass(model)
    names = [
        [f"vit.layers.{i}.attention.{part}_proj" for part in "qkvo"]
        for i in range(model.config.num_hidden_layers)
    ]
    x = x.detach().clone().requires_grad_()
    blocks = []
    for i, parts in enumerate(names):
        layer = f"vit.layers.{i}"
        saw = run.attend(run.norm(x, f"{layer}.layernorm_before"), parts)
        middle = saw["out"] + x
        normed = run.norm(middle, f"{layer}.layernorm_after")
        fed = run.linear(F.gelu(run.linear(normed, f"{layer}.mlp.fc1")), f"{layer}.mlp.fc2")
        blocks.append((x, saw, middle, normed, fed))
        x = fed + middle
    last = run.norm(x, "vit.layernorm")
    out = run.linear(last[0], "classifier")[target]
    result = Result(float(out.detach()))
    result.gradients = list(torch.autograd.grad(out, [block[1]["weights"] for block in blocks]))
    start = torch.eye(model.config.num_labels).double()[target]
    r = torch.zeros_like(x.detach())
    r[0] = through_linear(start, last[0].detach(), run.w["classifier.weight"])
    for i in reversed(range(len(blocks))):
        x, saw, middle, normed, fed = blocks[i]
        x, middle, normed, fed = (t.detach() for t in (x, middle, normed, fed))
        of_fed, of_middle = through_sum(r, fed, middle)
        layer = f"vit.layers.{i}.mlp"
        of_middle = of_middle + run.feed_back(of_fed, normed, f"{layer}.fc1", f"{layer}.fc2")
        of_out, of_x = through_sum(of_middle, saw["out"].detach(), x)
        through, of_map = run.attend_back(of_out, saw, names[i])
        r = of_x + through
        result.relevance.insert(0, of_map)
        result.sums.insert(0, float(r.sum()))
    return result
