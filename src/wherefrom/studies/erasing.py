"""Attention taken away (Serrano & Smith 2019): whether a large weight is a reason."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.errors import ModelError
from wherefrom.inputs.text import has_padding
from wherefrom.methods.attention_maps import CapturedAttention as Captured
from wherefrom.methods.attention_maps import capture
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.rules.maps import Maps
from wherefrom.rules.tables import PLAIN
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Single:
    """One weight against another: the highest and a random one, each erased alone."""

    delta_weight: float  # α of the highest less α of the random one
    delta_js: float  # change of the output by the one less that by the other
    flips_highest: bool
    flips_random: bool


def js_divergence(p: Floats, q: Floats) -> float:
    """The Jensen–Shannon divergence of two distributions, in nats.

    >>> round(js_divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])), 4)
    0.6931
    """
    middle = (p + q) / 2

    def towards(a: Floats) -> float:
        held = a > 0
        return float((a[held] * np.log(a[held] / middle[held])).sum())

    return max(0.0, (towards(p) + towards(q)) / 2)


def erased(
    subject: Subject,
    inputs: Inputs,
    rows: Sequence[int],
    gone: Tensor,
    layer: int = -1,
    renormalise: bool = True,
    places: int = 2048,
) -> Floats:
    """Output distributions with attention to some places of a layer put to zero.

    Row r runs sample `rows[r]` with the places `gone[r]` (bool, keys) erased from the map of
    `layer`, its rows made to sum to one again unless told otherwise. The same erasure is run
    once, and about `places` places at a time.
    """
    wanted = range(_count_maps(subject, inputs.take([0])))[layer]
    known: dict[tuple[int, bytes], int] = {}
    for at, sample in enumerate(rows):
        known.setdefault((sample, gone[at].numpy().tobytes()), at)
    distinct = list(known.values())
    size = max(1, places // inputs.mask.shape[1]) if has_padding(subject) else 1
    found: dict[int, Floats] = {}
    for start in range(0, len(distinct), size):
        chunk = distinct[start : start + size]
        chosen = inputs.take([rows[at] for at in chunk])
        out = _without(subject, chosen, gone[chunk], wanted, renormalise)
        found.update(zip(chunk, out, strict=True))
    return np.stack([found[known[s, gone[at].numpy().tobytes()]] for at, s in enumerate(rows)])


def _without(
    subject: Subject, inputs: Inputs, gone: Tensor, wanted: int, renormalise: bool
) -> Floats:
    def replace(index: int, weights: Tensor) -> Tensor:
        if index != wanted:
            return weights
        keep = (~gone[:, : weights.shape[-1]]).to(weights)[:, None, None, :]
        left = weights * keep
        if not renormalise:
            return left
        total = left.sum(-1, keepdim=True)
        return torch.where(total > 0, left / total.clamp_min(1e-30), left)

    maps = Maps(len(inputs), replace)
    with intercepted_forward(PLAIN, subject, inputs, Target(), maps=maps) as forward:
        row = Target().row(forward.logits)
    return row.detach().double().softmax(-1).cpu().numpy()


def _count_maps(subject: Subject, one: Inputs) -> int:
    maps = Maps(1)
    with intercepted_forward(PLAIN, subject, one, Target(), maps=maps) as forward:
        forward.need("attention")
    if not maps.seen:
        raise ModelError("attention was seen, but no map of it.")
    return len(maps.seen)


def attention_rankings(
    subject: Subject, inputs: Inputs, target: Target, layer: int = -1
) -> dict[str, Floats]:
    """Three ways to rank the places of a layer by its map α, (B, keys) each.

    The attention that the rows which are read pay (mean over heads), and the gradient of the
    target by α and its product with α (sums over heads and rows: what erasing a place does, to
    first order).
    """
    seen = capture(subject, inputs, target, gradients=True, of=[layer])
    weights, slope = seen.maps[layer], seen.gradients[0]
    if weights.shape[-1] != inputs.mask.shape[1]:
        raise ModelError(
            f"the attention erased runs over {weights.shape[-1]} places, the input has "
            f"{inputs.mask.shape[1]} units: places cannot be told apart."
        )
    found = {
        "attention": _read(seen, layer),
        "attention_gradient": slope.sum((1, 2)),
        "attention_x_gradient": (weights * slope).sum((1, 2)),
    }
    return {name: each.double().cpu().numpy() for name, each in found.items()}


def _read(seen: Captured, layer: int) -> Tensor:
    rows = seen.start("auto")[seen.streams[layer][0]]
    return torch.einsum("bq,bqk->bk", rows, seen.maps[layer].mean(1))


def weights_read(subject: Subject, inputs: Inputs, target: Target, layer: int = -1) -> Floats:
    """The attention that the rows which are read pay to each place, mean over heads, (B, keys)."""
    seen = capture(subject, inputs, target, gradients=False)
    found: Floats = _read(seen, layer).double().cpu().numpy()
    return found


def chance_of(inputs: Inputs, sample: int, seed: int) -> np.random.Generator:
    """A generator that is the same for the same text, alone or in any batch."""
    first = inputs.tensors[inputs.fields[0]][sample].cpu().numpy()
    held = inputs.mask[sample, : len(first)].numpy()
    return np.random.default_rng([seed, zlib.crc32(np.ascontiguousarray(first[held]).tobytes())])


def single_weights(
    subject: Subject,
    inputs: Inputs,
    target: Target,
    layer: int = -1,
    renormalise: bool = True,
    seed: int = 0,
) -> list[Single]:
    """For each sample of two places or more: erase the highest weight, then a random other one."""
    weights = weights_read(subject, inputs, target, layer)
    samples, gone, picks = [], [], []
    for i in range(len(inputs)):
        length = int(inputs.mask[i].sum())
        if length < 2:
            continue
        top = int(weights[i, :length].argmax())
        others = [j for j in range(length) if j != top]
        other = int(chance_of(inputs, i, seed).choice(others))
        picks.append((i, top, other))
        for places in ((), (top,), (other,)):
            mask = torch.zeros(inputs.mask.shape[1], dtype=torch.bool)
            mask[list(places)] = True
            samples.append(i)
            gone.append(mask)
    if not picks:
        return []
    outputs = erased(subject, inputs, samples, torch.stack(gone), layer, renormalise)
    found = []
    for at, (i, top, other) in enumerate(picks):
        whole, without_top, without_other = outputs[3 * at : 3 * at + 3]
        found.append(
            Single(
                float(weights[i, top] - weights[i, other]),
                js_divergence(whole, without_top) - js_divergence(whole, without_other),
                bool(whole.argmax() != without_top.argmax()),
                bool(whole.argmax() != without_other.argmax()),
            )
        )
    return found


def flip_table(found: Sequence[Single]) -> dict[str, float]:
    """The 2 × 2 table of decision flips, in shares of the samples."""
    count = max(1, len(found))
    table = {"both": 0.0, "only highest": 0.0, "only random": 0.0, "neither": 0.0}
    for each in found:
        if each.flips_highest:
            key = "both" if each.flips_random else "only highest"
        else:
            key = "only random" if each.flips_random else "neither"
        table[key] += 1 / count
    return table


def fraction_to_flip(
    subject: Subject,
    inputs: Inputs,
    scores: Sequence[Floats],
    layer: int = -1,
    renormalise: bool = True,
    rows: Sequence[int] | None = None,
) -> list[float]:
    """The share of attention weights erased, the highest score first, before the decision flips.

    `scores[r]` ranks the places of sample `rows[r]`, by default of sample r; 1 where the decision
    never changes.
    """
    samples = range(len(scores)) if rows is None else rows
    gone, runs = [], []
    for ranking, sample in zip(scores, samples, strict=True):
        order = np.argsort(-np.asarray(ranking), kind="stable")
        masks = torch.zeros(len(order) + 1, inputs.mask.shape[1], dtype=torch.bool)
        for count in range(1, len(order) + 1):
            masks[count, order[:count]] = True
        gone.append(masks)
        runs += [sample] * len(masks)
    if not gone:
        return []
    decided = erased(subject, inputs, runs, torch.cat(gone), layer, renormalise).argmax(1)
    found, at = [], 0
    for masks in gone:
        own = decided[at : at + len(masks)]
        at += len(masks)
        changed = np.nonzero(own != own[0])[0]
        found.append(float(changed[0] / (len(masks) - 1)) if len(changed) else 1.0)
    return found
