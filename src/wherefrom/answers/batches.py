"""Answers to several prompts: the first span of each from one forward and one backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from wherefrom.answers.attribution import AnswerAttribution, Measured, batch_of
from wherefrom.answers.rows import Row
from wherefrom.core.batching import RowsUnclear
from wherefrom.core.memory import is_out_of_memory, release_memory
from wherefrom.core.progress import shown
from wherefrom.core.runner import Case
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import SpanTarget
from wherefrom.errors import SamplesRunAlone
from wherefrom.inputs.text import like_lengths
from wherefrom.methods.forward_pass import run
from wherefrom.methods.graph_cache import release_graph

MOST = 16
"""Answers in a batch, where a caller says nothing."""
# tokens of a batch with its padding: on a processor longer prompts are no faster together
_TOKENS = {"cpu": 256}
_TOKENS_ELSEWHERE = 4096


class FirstSpan(NamedTuple):
    """The span that is explained of an answer before any other is asked for."""

    first: int
    last: int


@dataclass(frozen=True)
class Task:
    """An answer to be explained; `against` has the tokens that replace runners-up by place."""

    attribution: AnswerAttribution
    against: Mapping[int, int]

    @property
    def span(self) -> FirstSpan:
        """The whole answer, or the token at which it differs from another."""
        places = list(self.against)
        return FirstSpan(places[0], places[0] + 1) if places else FirstSpan(0, self.count)

    @property
    def count(self) -> int:
        """The number of the answer's tokens."""
        return len(self.attribution.answer.ids)


class Explained(NamedTuple):
    """What a pass says of an answer: its probabilities, and the relevance of its first span."""

    measured: Measured
    row: Row


def explained(tasks: Sequence[Task], size: int | None) -> list[Explained]:
    """The first span of each answer, up to `size` of them in a batch; None: as many as pay."""
    results: dict[int, Explained] = {}
    chunks = list(_chunks([task.attribution for task in tasks], size))
    with shown("explaining", None if len(chunks) > 1 else False) as report:
        for chunk in chunks:
            report(len(results), len(tasks), tasks[0].attribution.method.name)
            results.update(zip(chunk, _within_memory([tasks[i] for i in chunk]), strict=True))
    return [results[i] for i in range(len(tasks))]


def _chunks(runners: Sequence[AnswerAttribution], size: int | None) -> Iterator[list[int]]:
    """Answers of like length together; those to images, which have sizes of their own, alone."""
    reader, most = runners[0].reader, size or MOST
    tokens = _TOKENS.get(reader.runner.device.type, _TOKENS_ELSEWHERE) if size is None else None
    groups: dict[str, list[int]] = {}
    for i, attribution in enumerate(runners):
        if attribution.prompt.seen is not None:
            yield [i]
        else:
            groups.setdefault(attribution.of, []).append(i)
    for numbers in groups.values():
        items = [runners[i].read(len(runners[i].answer.ids)) for i in numbers]
        for chunk in reader.chunks([text for text, _ in items], most):
            lengths = [max(len(item.ids) for item in items[k] if item is not None) for k in chunk]
            for part in like_lengths(lengths, most, tokens):
                yield [numbers[chunk[k]] for k in part]


def _within_memory(tasks: Sequence[Task]) -> list[Explained]:
    """A batch in one pass; in halves where memory is short, one by one where it must be."""
    runner = tasks[0].attribution.reader.runner
    try:
        return _alone(tasks[0]) if len(tasks) == 1 else _together(tasks)
    except RowsUnclear as reason:
        warnings.warn(
            f"{runner.name}: {reason}; the {len(tasks)} answers of this batch are explained one "
            "by one, which takes as many passes. The scores are the same.",
            SamplesRunAlone,
            stacklevel=5,
        )
        parts = [[task] for task in tasks]
    except Exception as error:
        if len(tasks) == 1 or not is_out_of_memory(error):
            raise
        parts = [list(tasks[: len(tasks) // 2]), list(tasks[len(tasks) // 2 :])]
    # here, where the error no longer holds what the pass has allocated
    release_memory(runner.device)
    return list(chain.from_iterable(map(_within_memory, parts)))


def _alone(task: Task) -> list[Explained]:
    attribution = task.attribution
    measured = attribution.measured(task.against)
    row = attribution.span(measured, *task.span)
    attribution.kept.release()  # the next of the list needs its memory
    return [Explained(measured, row)]


@restores_state
def _together(tasks: Sequence[Task]) -> list[Explained]:
    runners = [task.attribution for task in tasks]
    reader, method, runner = runners[0].reader, runners[0].method, runners[0].reader.runner
    with Scope(inference=False):
        release_graph(runner.model)
        inputs = batch_of(reader, [task.attribution.read(task.count) for task in tasks])
        positions = _positions(tasks, inputs.places)
        places = SpanTarget(index=torch.zeros_like(positions), position=positions)
        graph = method.graph(Case(runner, inputs, places))
        logits = run(Case(runner, inputs, places)) if graph is None else graph.logits
        rows = places.rows(logits)  # (B, R, vocabulary)
        measured = [
            Measured.of(rows[sample, : task.count], task.attribution.answer, task.against)
            for sample, task in enumerate(tasks)
        ]
        target = _target(tasks, measured, positions)
        scores = method(Case(runner, inputs, target)) if graph is None else graph.scores(target)
        outputs = [
            float(one.outputs(task.attribution.of)[slice(*task.span)].sum())
            for task, one in zip(tasks, measured, strict=True)
        ]
        if scores.logits is not None:  # that of the explained pass
            outputs = target(scores.logits.detach()).double().tolist()
    masks = inputs.mask.cpu().numpy()
    return [
        Explained(
            one,
            Row.of(
                scores,
                outputs[sample],
                task.attribution.start + task.count,
                sample=sample,
                mask=masks[sample],
            ),
        )
        for sample, (task, one) in enumerate(zip(tasks, measured, strict=True))
    ]


def _positions(tasks: Sequence[Task], width: int) -> Tensor:
    """The places of the logits that give each answer's tokens, (B, R), the last one repeated.

    R is never the number of all places unless these are meant: `SpanTarget` tells by it.
    """
    starts = torch.tensor([task.attribution.place for task in tasks]).unsqueeze(1)
    count = max(task.count for task in tasks)
    if count == width and bool(starts.any()):
        count += 1
    return (starts + torch.arange(count)).clamp(max=width - 1)


def _target(tasks: Sequence[Task], measured: Sequence[Measured], positions: Tensor) -> SpanTarget:
    """The first spans, each with weights that are zero beside it."""
    of, device = tasks[0].attribution.of, tasks[0].attribution.reader.runner.device
    index, others = torch.zeros_like(positions), torch.zeros_like(positions)
    weights = torch.zeros(positions.shape, dtype=torch.float64)
    for sample, (task, one) in enumerate(zip(tasks, measured, strict=True)):
        index[sample, : task.count] = torch.tensor(task.attribution.answer.ids)
        others[sample, : task.count] = torch.tensor(one.others)
        weights[sample, slice(*task.span)] = 1.0
    return SpanTarget(
        index=index.to(device),
        against=others.to(device) if of == "contrast" else None,
        position=positions,
        weights=weights,
        log=of == "logprob",
    )
