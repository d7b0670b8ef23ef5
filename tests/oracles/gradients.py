"""Gradients and paths by plain autograd, one point at a time."""

import zlib

import torch
from torch import Tensor


def gradient(f, x: Tensor) -> Tensor:
    """∂f/∂x at x (units, features); f takes a batch and gives one number for each sample."""
    point = x.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(f(point[None])[0], point)
    return found


def reduced(g: Tensor, x: Tensor, how: str) -> Tensor:
    return {"norm": g.norm(dim=-1), "sum": g.sum(-1), "x_input": (g * x).sum(-1)}[how]


def noise(texts: list[str], x: Tensor, samples: int, share: float, seed: int) -> Tensor:
    """What is added in each sample: a share of the range, drawn unit by unit from the content."""
    content = zlib.crc32("\x1f".join(texts).encode())
    chance = torch.Generator().manual_seed(content + seed)
    drawn = [
        torch.randn(samples, x.shape[1], generator=chance, dtype=x.dtype) for _ in range(len(x))
    ]
    return share * (x.max() - x.min()) * torch.stack(drawn, 1)  # (samples, units, features)


def smoothgrad(f, x: Tensor, added: Tensor, how: str) -> Tensor:
    total = torch.zeros_like(x)
    for each in added:
        total += gradient(f, x + each)
    return reduced(total / len(added), x, how)


def along(f, points: list[Tensor], between: list[Tensor]) -> Tensor:
    """Σ gradient(γ(middle)) · (γ(next) − γ(this)), the points given and those between them."""
    total = torch.zeros(len(points[0]), dtype=torch.float64)
    for k, middle in enumerate(between):
        total += (gradient(f, middle) * (points[k + 1] - points[k])).sum(-1)
    return total


def occlusion(f, x: Tensor, blank: Tensor) -> Tensor:
    """F(x) − f(x with the unit's row blank), unit by unit."""
    found = []
    for unit in range(len(x)):
        without = x.clone()
        without[unit] = blank[unit]
        found.append(float((f(x[None]) - f(without[None]))[0].detach()))
    return torch.tensor(found, dtype=torch.float64)


def integrated(f, x: Tensor, blank: Tensor, places, weights) -> Tensor:
    """(x − x′) · Σ w_k gradient(x′ + a_k (x − x′)), point by point."""
    total = torch.zeros_like(x)
    for a, w in zip(places, weights, strict=True):
        total += w * gradient(f, blank + a * (x - blank))
    return ((x - blank) * total).sum(-1)
