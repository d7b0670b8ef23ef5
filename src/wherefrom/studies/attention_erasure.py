"""Whether attention weights decide the prediction, by erasing them (Serrano & Smith 2019)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import rel_entr
from torch import Tensor

from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case, OutputNames, Target
from wherefrom.errors import ModelError
from wherefrom.inputs.text import has_padding
from wherefrom.methods.attention_maps import CapturedAttention, capture
from wherefrom.methods.forward_pass import intercepted_forward, run
from wherefrom.methods.propagation import PLAIN
from wherefrom.studies import Record, Study, StudySamples, TableRows
from wherefrom.tracing.observers.attention_maps import Maps

Array = NDArray[np.float64]
_POSITIONS = 2048  # approximate number of positions in one batch


@dataclass(frozen=True)
class WeightErasure:
    """The highest attention weight and a random other one, each erased alone."""

    delta_weight: float  # α of the highest minus α of the random one
    delta_js: float  # output change from erasing the highest minus that from the random one
    flips_highest: bool
    flips_random: bool


class AttentionErasure(Study):
    """Whether attention weights of the last layer decide the prediction (Serrano & Smith 2019).

    Compares erasing the highest weight with erasing a random one, and measures the share of
    weights erased before the prediction flips, ranked at random, by attention, by its gradient, by
    their product and by each method. These shares are measured only if the predicted class is
    explained: a ranking for another class is not expected to flip the prediction.
    """

    name = "attention_erasure"

    def records(self, samples: StudySamples, progress: Callable[[], None]) -> list[Record]:
        _check_classes(samples)
        records: list[Record] = [{} for _ in range(len(samples))]
        by_length: dict[
            int, list[int]
        ] = {}  # samples of equal length share a batch, without padding
        for i in range(len(samples)):
            by_length.setdefault(samples.length(i), []).append(i)
        for length, indices in sorted(by_length.items()):
            size = max(1, _POSITIONS // length)
            for start in range(0, len(indices), size):
                batch = indices[start : start + size]
                for i, record in zip(batch, _batch_records(samples, batch), strict=True):
                    records[i] = record
                progress()
        return records

    def summary(self, records: Sequence[Record]) -> Record:
        singles = _singles(records)
        return {
            "samples": len(records),
            "flips": flip_table(singles),
            # if larger weights matter more, erasing one changes the output more
            "highest_changes_more": sum(s.delta_js > 0 for s in singles) / max(1, len(singles)),
            "to_flip": {
                name: {
                    "mean": float(np.mean(shares)),
                    "median": float(np.median(shares)),
                    "flipped": float(np.mean(np.array(shares) < 1)),
                    "samples": len(shares),
                }
                for name, shares in _shares_to_flip(records).items()
            },
        }

    def tables(self, records: Sequence[Record]) -> dict[str, TableRows]:
        singles = _singles(records)
        return {
            "attention_erasure_weights": [asdict(single) for single in singles],
            "attention_erasure_flips": [
                {"flipped by": name, "share": share} for name, share in flip_table(singles).items()
            ],
            "attention_erasure_to_flip": [
                {"ranking": name, "sample": i, "share": share}
                for name, shares in _shares_to_flip(records).items()
                for i, share in enumerate(shares)
            ],
        }


def _batch_records(samples: StudySamples, batch: list[int]) -> list[Record]:
    """The records of samples of the same length."""
    runner, inputs, targets = samples.runner, samples.batch(batch), samples.targets(batch)
    rankings = attention_rankings(runner, inputs, targets)
    rankings["random"] = np.stack(
        [sample_rng(inputs, i, 1).random(inputs.mask.shape[1]) for i in range(len(batch))]
    )
    for label, explanations in samples.explanations.items():
        if label != "random":
            rankings[label] = np.stack([explanations[i].scores for i in batch]).astype(float)
    predicted = targets.row(run(Case(runner, inputs))).argmax(-1).tolist()
    explained = [samples.target(i).index for i in batch]
    rows = [
        (name, i) for name in rankings for i in range(len(batch)) if predicted[i] == explained[i]
    ]
    shares = fraction_to_flip(
        runner, inputs, [rankings[name][i] for name, i in rows], rows=[i for _, i in rows]
    )
    singles = single_weights(runner, inputs, targets)
    records: list[Record] = [
        {"single": asdict(singles[i]) if singles else None, "to_flip": {}}
        for i in range(len(batch))
    ]
    for (name, i), share in zip(rows, shares, strict=True):
        records[i]["to_flip"][name] = share
    return records


def _shares_to_flip(records: Sequence[Record]) -> dict[str, list[float]]:
    """The shares of weights erased before a flip, by ranking."""
    names = dict.fromkeys(name for record in records for name in record["to_flip"])
    return {name: [r["to_flip"][name] for r in records if name in r["to_flip"]] for name in names}


def _singles(records: Sequence[Record]) -> list[WeightErasure]:
    return [WeightErasure(**r["single"]) for r in records if r["single"] is not None]


def _check_classes(samples: StudySamples) -> None:
    """Refuses a model that does not predict one of several classes."""
    runner = samples.runner
    outputs = Target().row(run(Case(runner, samples.batch([0])))).shape[-1]
    if OutputNames(runner).to_probability(outputs) != "softmax":
        raise ModelError(f"{runner.name} does not predict one of several classes.")


def js_divergence(p: Array, q: Array) -> float:
    """The Jensen–Shannon divergence of two distributions, in nats.

    The square of SciPy's `jensenshannon`, which returns NaN if rounding makes it negative.

    >>> round(js_divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])), 4)
    0.6931
    """
    mixture = (p + q) / 2
    return max(0.0, float(rel_entr(p, mixture).sum() + rel_entr(q, mixture).sum()) / 2)


def erase_attention(
    runner: ModelRunner,
    inputs: Batch,
    rows: Sequence[int],
    erased: Tensor,
    positions: int = _POSITIONS,
) -> Array:
    """Output distributions with the attention to some positions set to zero in the last layer.

    Row r runs sample `rows[r]` without the keys `erased[r]` (bool); the remaining weights are
    divided by their sum. Equal erasures run once, in batches of about `positions` positions.
    """
    keys = [(sample, erased[r].numpy().tobytes()) for r, sample in enumerate(rows)]
    first: dict[tuple[int, bytes], int] = {}
    for r, key in enumerate(keys):
        first.setdefault(key, r)
    distinct = list(first.values())
    layer = _count_maps(runner, inputs.take([0])) - 1
    size = max(1, positions // inputs.mask.shape[1]) if has_padding(runner) else 1
    outputs: dict[tuple[int, bytes], Array] = {}
    for start in range(0, len(distinct), size):
        batch = distinct[start : start + size]
        probabilities = _without(
            runner, inputs.take([rows[r] for r in batch]), erased[batch], layer
        )
        outputs.update(zip([keys[r] for r in batch], probabilities, strict=True))
    return np.stack([outputs[key] for key in keys])


@restores_state
def _without(runner: ModelRunner, inputs: Batch, erased: Tensor, layer: int) -> Array:
    def replace(index: int, weights: Tensor) -> Tensor:
        if index != layer:
            return weights
        present = (~erased[:, : weights.shape[-1]]).to(weights)[:, None, None, :]
        remaining = weights * present
        total = remaining.sum(-1, keepdim=True)
        return torch.where(total > 0, remaining / total.clamp_min(1e-30), remaining)

    maps = Maps(len(inputs), replace)
    with intercepted_forward(PLAIN, Case(runner, inputs), maps=maps) as forward:
        row = Target().row(forward.logits)
    return row.detach().double().softmax(-1).cpu().numpy()


@restores_state
def _count_maps(runner: ModelRunner, sample: Batch) -> int:
    maps = Maps(1)
    with intercepted_forward(PLAIN, Case(runner, sample), maps=maps) as forward:
        forward.need("attention")
    if not maps.seen:
        raise ModelError(f"{runner.name} has attention, but no attention map could be recorded.")
    return len(maps.seen)


def attention_rankings(runner: ModelRunner, inputs: Batch, target: Target) -> dict[str, Array]:
    """Three scores for each position from the last layer's attention map α, (B, keys) each.

    The attention from the rows that the classifier reads (mean over heads); the gradient of the
    target with respect to α, and its product with α (sums over heads and rows: to first order, the
    effect of erasing a position).
    """
    attention = capture(Case(runner, inputs, target), gradients=True, of=[-1])
    weights, gradient = attention.maps[-1], attention.gradients[0]
    if weights.shape[-1] != inputs.mask.shape[1]:
        raise ModelError(
            f"the attention of {runner.name} has {weights.shape[-1]} keys, but the input has "
            f"{inputs.mask.shape[1]} units, so weights cannot be assigned to units."
        )
    scores = {
        "attention": _readout(attention),
        "attention_gradient": gradient.sum((1, 2)),
        "attention_x_gradient": (weights * gradient).sum((1, 2)),
    }
    return {name: tensor.double().cpu().numpy() for name, tensor in scores.items()}


def _readout(attention: CapturedAttention) -> Tensor:
    """The attention from the rows that the classifier reads, mean over heads, (B, keys)."""
    rows = attention.start("auto")[attention.streams[-1][0]]
    return torch.einsum("bq,bqk->bk", rows, attention.maps[-1].mean(1).to(rows))


def sample_rng(inputs: Batch, sample: int, seed: int) -> np.random.Generator:
    """A generator seeded by the sample's content, so that it does not depend on the batch."""
    values = inputs.tensors[inputs.fields[0]][sample].cpu().numpy()
    valid = inputs.mask[sample, : len(values)].cpu().numpy()
    content = np.ascontiguousarray(values[valid]).tobytes()
    return np.random.default_rng([seed, zlib.crc32(content)])


def single_weights(runner: ModelRunner, inputs: Batch, target: Target) -> list[WeightErasure]:
    """Erases the highest and a random other weight of each sample with at least two units."""
    attention = capture(Case(runner, inputs, target), gradients=False)
    weights = _readout(attention).double().cpu().numpy()
    rows, masks, picks = [], [], []
    for i in range(len(inputs)):
        length = int(inputs.mask[i].sum())
        if length < 2:
            continue
        highest = int(weights[i, :length].argmax())
        others = [j for j in range(length) if j != highest]
        other = int(sample_rng(inputs, i, 0).choice(others))
        picks.append((i, highest, other))
        for positions in ((), (highest,), (other,)):
            mask = torch.zeros(inputs.mask.shape[1], dtype=torch.bool)
            mask[list(positions)] = True
            rows.append(i)
            masks.append(mask)
    if not picks:
        return []
    outputs = erase_attention(runner, inputs, rows, torch.stack(masks))
    singles = []
    for k, (i, highest, other) in enumerate(picks):
        whole, without_highest, without_other = outputs[3 * k : 3 * k + 3]
        singles.append(
            WeightErasure(
                float(weights[i, highest] - weights[i, other]),
                js_divergence(whole, without_highest) - js_divergence(whole, without_other),
                bool(whole.argmax() != without_highest.argmax()),
                bool(whole.argmax() != without_other.argmax()),
            )
        )
    return singles


def flip_table(singles: Sequence[WeightErasure]) -> dict[str, float]:
    """The 2 × 2 table of prediction flips, as shares of the samples."""
    names = {
        (True, True): "both",
        (True, False): "only highest",
        (False, True): "only random",
        (False, False): "neither",
    }
    table = dict.fromkeys(names.values(), 0.0)
    for single in singles:
        table[names[single.flips_highest, single.flips_random]] += 1 / len(singles)
    return table


def fraction_to_flip(
    runner: ModelRunner,
    inputs: Batch,
    scores: Sequence[Array],
    rows: Sequence[int] | None = None,
) -> list[float]:
    """The share of attention weights erased by descending score before the prediction flips.

    `scores[r]` ranks the positions of sample `rows[r]`, by default of sample r. The share is 1 if
    the prediction never flips.
    """
    samples = range(len(scores)) if rows is None else rows
    masks, runs = [], []
    for ranking, sample in zip(scores, samples, strict=True):
        order = np.argsort(-np.asarray(ranking), kind="stable")
        steps = torch.zeros(len(order) + 1, inputs.mask.shape[1], dtype=torch.bool)
        for count in range(1, len(order) + 1):
            steps[count, order[:count]] = True
        masks.append(steps)
        runs += [sample] * len(steps)
    if not masks:
        return []
    predictions = erase_attention(runner, inputs, runs, torch.cat(masks)).argmax(1)
    shares, start = [], 0
    for steps in masks:
        predicted = predictions[start : start + len(steps)]
        start += len(steps)
        changed = np.nonzero(predicted != predicted[0])[0]
        shares.append(float(changed[0] / (len(steps) - 1)) if len(changed) else 1.0)
    return shares
