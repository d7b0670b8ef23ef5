"""Explains answers to several prompts in batches: one forward and one backward pass each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.answers.attribution import AnswerAttribution, Measured, batch_of
from wherefrom.answers.multi_hop import RelevanceRow
from wherefrom.core.progress import shown
from wherefrom.core.runner import split_on_failure
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case, SpanTarget
from wherefrom.inputs.text import by_length
from wherefrom.methods.base import release_graph
from wherefrom.methods.forward_pass import run

MOST = 16
"""The default number of answers in a batch."""
# tokens per batch, padding included: on a CPU, batches of longer prompts are no faster
_TOKENS = {"cpu": 256}
_TOKENS_ON_GPU = 4096


@dataclass(frozen=True)
class Task:
    """An answer to be explained; `against` maps an index to the token to compare with there."""

    attribution: AnswerAttribution
    against: Mapping[int, int]
    finished: bool | None = None  # as in `Answer`

    @property
    def span(self) -> tuple[int, int]:
        """The whole answer, or the token at which it differs from another: first, last + 1."""
        indices = list(self.against)
        return (indices[0], indices[0] + 1) if indices else (0, self.count)

    @property
    def count(self) -> int:
        """The number of the answer's tokens."""
        return len(self.attribution.answer.ids)


class Explained(NamedTuple):
    """The results for an answer: its probabilities, and the relevance for its span."""

    measured: Measured
    row: RelevanceRow


def explained(tasks: Sequence[Task], size: int | None) -> list[Explained]:
    """Explains the span of each task in batches of up to `size`; None chooses the size."""
    attributions = [task.attribution for task in tasks]
    device = attributions[0].reader.runner.device
    results: dict[int, Any] = {}

    def work(indices: Sequence[int]) -> list[Explained]:
        batch = [tasks[i] for i in indices]
        return _together(batch) if len(batch) > 1 else [_alone(batch[0])]

    chunks = list(_chunks(attributions, size))
    with shown("explaining", None if len(chunks) > 1 else False) as report:
        for chunk in chunks:
            report(len(results), len(tasks), attributions[0].method.name)
            results.update(split_on_failure(chunk, work, device=device))
    return [results[i] for i in range(len(tasks))]


def _chunks(attributions: Sequence[AnswerAttribution], size: int | None) -> Iterator[list[int]]:
    """Batches of answers of similar length; answers to images, whose sizes differ, run alone."""
    reader, most = attributions[0].reader, size or MOST
    tokens = _TOKENS.get(reader.runner.device.type, _TOKENS_ON_GPU) if size is None else None
    groups: dict[str, list[int]] = {}
    for i, attribution in enumerate(attributions):
        if attribution.prompt.encoded_images is not None:
            yield [i]
        else:
            groups.setdefault(attribution.of, []).append(i)
    for indices in groups.values():
        items = [attributions[i].read(len(attributions[i].answer.ids)) for i in indices]
        for chunk in reader.chunks([text for text, _ in items], most):
            lengths = [max(len(item.ids) for item in items[k] if item is not None) for k in chunk]
            for part in by_length(lengths, most, tokens):
                yield [indices[chunk[k]] for k in part]


def _alone(task: Task) -> Explained:
    attribution = task.attribution
    measured = attribution.measured(task.against)
    row = attribution.span(measured, *task.span)
    attribution.graph_cache.release()  # the next answer needs its memory
    return Explained(measured, row)


@restores_state
def _together(tasks: Sequence[Task]) -> list[Explained]:
    first = tasks[0].attribution
    reader, method, runner = first.reader, first.method, first.reader.runner
    with Scope(inference=False):
        release_graph(runner.model)
        inputs = batch_of(reader, [task.attribution.read(task.count) for task in tasks])
        positions = _positions(tasks, inputs.places)
        read_target = SpanTarget(index=torch.zeros_like(positions), position=positions)
        graph = method.graph(Case(runner, inputs, read_target))
        logits = run(Case(runner, inputs, read_target)) if graph is None else graph.logits
        rows = read_target.rows(logits)  # (B, R, vocabulary)
        measured = [
            Measured.of(
                rows[sample, : task.count], task.attribution.answer, task.against, reader.tokenizer
            )
            for sample, task in enumerate(tasks)
        ]
        lengths = [len(task.attribution.prompt.ids) + task.count for task in tasks]
        shortest = lengths.index(min(lengths))
        differs = tasks[shortest].attribution.warn_of_difference(
            rows[shortest, : tasks[shortest].count], inputs.mask.shape[1]
        )
        measured = [
            replace(values, warnings=(*task.attribution.notes, *differs))
            for task, values in zip(tasks, measured, strict=True)
        ]
        target = _target(tasks, measured, positions)
        scores = method(Case(runner, inputs, target)) if graph is None else graph.scores(target)
        outputs = [
            float(values.outputs(task.attribution.of)[slice(*task.span)].sum())
            for task, values in zip(tasks, measured, strict=True)
        ]
        if scores.logits is not None:  # the output of the explained pass
            outputs = target(scores.logits.detach()).double().tolist()
    masks = inputs.mask.cpu().numpy()
    return [
        Explained(
            values,
            RelevanceRow.of(
                scores,
                outputs[sample],
                task.attribution.start + task.count,
                sample=sample,
                mask=masks[sample],
            ),
        )
        for sample, (task, values) in enumerate(zip(tasks, measured, strict=True))
    ]


def _positions(tasks: Sequence[Task], width: int) -> Tensor:
    """The positions of the logits that predict each answer's tokens, (B, R), the last repeated.

    `SpanTarget` reads R = N (all positions) as rows in order, so R is enlarged by one if they are
    not.
    """
    starts = torch.tensor([task.attribution.first_position for task in tasks]).unsqueeze(1)
    count = max(task.count for task in tasks)
    if count == width and bool(starts.any()):
        count += 1
    return (starts + torch.arange(count)).clamp(max=width - 1)


def _target(tasks: Sequence[Task], measured: Sequence[Measured], positions: Tensor) -> SpanTarget:
    """The span of each task, with weights that are zero outside it."""
    of, device = tasks[0].attribution.of, tasks[0].attribution.reader.runner.device
    index, others = torch.zeros_like(positions), torch.zeros_like(positions)
    weights = torch.zeros(positions.shape, dtype=torch.float64)
    for sample, (task, values) in enumerate(zip(tasks, measured, strict=True)):
        index[sample, : task.count] = torch.tensor(task.attribution.answer.ids)
        others[sample, : task.count] = torch.tensor(values.others)
        weights[sample, slice(*task.span)] = 1.0
    return SpanTarget(
        index=index.to(device),
        against=others.to(device) if of == "contrast" else None,
        position=positions,
        weights=weights,
        log=of == "logprob",
    )
