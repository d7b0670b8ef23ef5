"""Builds explanations from the scores of a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from wherefrom import __version__
from wherefrom.core.explanation import Explanation, Ledger, Line, Output, TargetInfo
from wherefrom.core.output_names import OutputNames
from wherefrom.core.runner import Batch, Case, ModelRunner
from wherefrom.core.target import SpanTarget, Target
from wherefrom.methods import Method, Scores
from wherefrom.methods.forward_pass import run
from wherefrom.methods.plain_pass import ends_in_probabilities, warn_of_difference


def explain_batch(
    runner: ModelRunner,
    inputs: Batch,
    method: Method,
    target: Target,
    output_names: OutputNames,
    alone: Callable[[int], Batch] | None = None,
) -> list[Explanation]:
    """Scores a batch and builds an explanation for each sample.

    `alone` gives a sample without the padding and the other samples of the batch.
    """
    scores = method(Case(runner, inputs, target))
    logits = (
        run(Case(runner, inputs, target)) if scores.logits is None else scores.logits
    ).detach()
    resolved = target.resolved(logits)
    caveat = _caveat(
        method.name,
        Case(runner, inputs, resolved),
        logits,
        alone or (lambda i: inputs.take([i])),
    )
    rows = resolved.row(logits).cpu().double()  # (B, classes)
    output_names.learn(rows, lambda: ends_in_probabilities(Case(runner, inputs, resolved)))
    probabilities = output_names.probabilities(rows, per_position=logits.ndim == 3)
    targets = _target_infos(resolved, output_names, logits.ndim == 3, rows.shape[1])
    outputs = resolved(logits).double().tolist()
    largest = _largest(rows, probabilities, output_names)
    # one transfer per batch: with small models, transfers per sample would dominate
    values, mask = _as_numpy(scores.values), inputs.mask.cpu().numpy()
    parts = {name: _as_numpy(part) for name, part in scores.parts.items()}
    ledgers = _ledgers(scores, outputs)
    method, versions = method.resolved(inputs), library_versions()
    settings, label = method.settings(), method.short_label
    return [
        Explanation(
            units=inputs.units[i],
            scores=values[i][mask[i]],
            target=info,
            output=outputs[i],
            probability=None if probabilities is None else float(probabilities[i, info.index]),
            method=method.name,
            settings=settings,
            label=label,
            largest=largest[i],
            ledger=ledgers[i],
            parts={name: part[i][mask[i]] for name, part in parts.items()},
            text=inputs.texts[i],
            scene=inputs.scenes[i] if inputs.scenes else None,
            model=runner.name,
            versions=dict(versions),
            warnings=((scores.warnings[i] if scores.warnings else ()) + caveat),
        )
        for i, info in enumerate(targets)
    ]


def _caveat(
    method: str, case: Case, logits: Tensor, alone: Callable[[int], Batch]
) -> tuple[str, ...]:
    """A warning if the explained outputs are not those of a plain pass.

    The shortest sample, which has the most padding, is compared.
    """
    inputs, layout = case.batch, case.batch.layout
    sizes = [len(units) for units in inputs.units]
    shortest = sizes.index(min(sizes))
    target = case.target.take([shortest])

    def plain() -> Tensor:
        return target.row(run(Case(case.runner, alone(shortest), target)))

    return warn_of_difference(
        case.runner,
        (method, sizes[shortest], inputs.mask.shape[1], layout and layout.shape),
        case.target.row(logits)[[shortest]],
        plain,
        in_batch=len(inputs) > 1,
    )


def _target_infos(
    target: Target, output_names: OutputNames, has_positions: bool, outputs: int
) -> list[TargetInfo]:
    """The index and name of each sample's explained output."""
    name = cache(partial(output_names.name, outputs=outputs))
    target = target.first if isinstance(target, SpanTarget) else target
    assert target.index is not None
    indices = target.index.tolist()
    position = target.position if has_positions else None
    against, positions = (
        [None] * len(indices) if values is None else values.tolist()
        for values in (target.against, position)
    )
    return [
        TargetInfo(index, name(index), other, None if other is None else name(other), position)
        for index, other, position in zip(indices, against, positions, strict=True)
    ]


def _largest(
    rows: Tensor, probabilities: Tensor | None, output_names: OutputNames
) -> list[tuple[Output, ...]]:
    """The two largest outputs of each sample, the prediction first."""
    name = cache(partial(output_names.name, outputs=rows.shape[1]))
    indices = rows.topk(min(2, rows.shape[1])).indices.tolist()
    shares = [None] * len(rows) if probabilities is None else probabilities.tolist()
    return [
        tuple(Output(name(k), row[k], None if chances is None else chances[k]) for k in chosen)
        for row, chances, chosen in zip(rows.tolist(), shares, indices, strict=True)
    ]


def _ledgers(scores: Scores, outputs: list[float]) -> list[Ledger | None]:
    if scores.lines is None:
        return [None] * len(outputs)
    lines = [(label, kind, values.tolist()) for (label, kind), values in scores.lines.items()]
    return [
        Ledger(tuple(Line(label, kind, values[i]) for label, kind, values in lines), output)
        for i, output in enumerate(outputs)
    ]


def _as_numpy(values: Tensor) -> Any:
    return values.detach().cpu().to(torch.float32).numpy()


@cache  # reading them takes longer than explaining a sentence
def library_versions() -> dict[str, str]:
    """The versions of the libraries that compute explanations."""
    return {
        "wherefrom": __version__,
        **{name: version(name) for name in ("torch", "transformers")},
    }
