"""Inputs in batches, each with its target, and what a method says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.explanation import Explanation
from wherefrom.core.output_names import OutputNames, TargetSpec
from wherefrom.core.progress import shown
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Target
from wherefrom.errors import TargetError
from wherefrom.explaining.assemble import explain_batch
from wherefrom.explaining.predicted_spans import explain_answer, explain_entity, has_spans
from wherefrom.inputs import Reader
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method


@dataclass(frozen=True)
class Request:
    """What is explained of inputs, and by which method: see `Explainer.__call__`."""

    method: Method
    target: TargetSpec | Sequence[TargetSpec]
    against: TargetSpec | Sequence[TargetSpec]
    position: int | None
    entity: str | None
    batch_size: int

    def explained(
        self,
        runner: ModelRunner,
        reader: Reader[Any, Any],
        items: Sequence[Any],
        output_names: OutputNames,
    ) -> list[Explanation]:
        """An explanation of each item, found batch by batch."""
        of_spans = isinstance(reader, TextReader) and has_spans(runner)
        if self.entity is not None and not (of_spans and runner.task == "TokenClassification"):
            raise TargetError("entity= is for models that classify every token.")
        one_by_one = of_spans and (self.position is None or runner.task == "QuestionAnswering")
        explanations: dict[int, Explanation] = {}
        chunks = list(reader.chunks(items, self.batch_size))
        with shown("explaining", None if len(chunks) > 1 else False) as report:
            for chunk in chunks:
                report(len(explanations), len(items), self.method.name)
                targets, others = (
                    _spec_of_each(specs, chunk, len(items)) for specs in (self.target, self.against)
                )
                if one_by_one:
                    for i, target, other in zip(chunk, targets, others, strict=True):
                        batch = reader.batch([items[i]])
                        explanations[i] = self._of_span(runner, batch, target, other, output_names)
                    continue
                batch = reader.batch([items[i] for i in chunk])
                results = self._of_batch(runner, reader, batch, targets, others, output_names)
                explanations.update(zip(chunk, results, strict=True))
        return [explanations[i] for i in range(len(items))]

    def _of_batch(
        self,
        runner: ModelRunner,
        reader: Reader[Any, Any],
        batch: Batch,
        targets: list[TargetSpec],
        others: list[TargetSpec],
        output_names: OutputNames,
    ) -> list[Explanation]:
        indices, against = (_indices(output_names, specs, runner) for specs in (targets, others))
        _check_contrast(output_names, indices, against)
        target = Target(indices, against, reader.positions(batch, self.position))
        results = explain_batch(runner, batch, self.method, target, output_names)
        predicted = torch.tensor([result.target.index for result in results])
        _check_contrast(output_names, predicted, against)
        per_token = results[0].target.position is not None
        if self.position is not None and not per_token:
            raise TargetError("position= is for models with an output for every token.")
        if self.position is None and per_token:
            reader.check_position(batch)
        if per_token and not output_names.generates:
            results = [_placed(explanation) for explanation in results]
        return results

    def _of_span(
        self,
        runner: ModelRunner,
        inputs: Batch,
        target: TargetSpec,
        against: TargetSpec,
        output_names: OutputNames,
    ) -> Explanation:
        """An answer in its context, or an entity."""
        method, position = self.method, self.position
        if runner.task == "QuestionAnswering":
            return explain_answer(runner, inputs, method, output_names, target, against, position)
        return explain_entity(runner, inputs, method, output_names, target, against, self.entity)


def _indices(
    output_names: OutputNames, specs: list[TargetSpec], runner: ModelRunner
) -> Tensor | None:
    if all(spec is None for spec in specs):
        return None
    if any(spec is None for spec in specs):
        raise TargetError("pass a target for every input, or for none.")
    return torch.tensor([output_names.index(spec) for spec in specs], device=runner.device)


def _check_contrast(
    output_names: OutputNames, index: Tensor | None, against: Tensor | None
) -> None:
    """Refuses the difference of an output to itself, also of the most likely one."""
    if index is None or against is None:
        return
    same = index[index == against.to(index.device)]
    if len(same):
        raise TargetError(
            f'target and against are the same output, "{output_names.name(int(same[0]))}": '
            "their difference is always 0."
        )


def _spec_of_each(specs: Any, chunk: list[int], count: int) -> list[TargetSpec]:
    """The target of each sample of a chunk, from one for all or one for each."""
    if isinstance(specs, (Tensor, np.ndarray)):
        specs = specs.tolist()
    if not isinstance(specs, (list, tuple)):
        return [specs] * len(chunk)
    if len(specs) != count:
        raise TargetError(f"there are {len(specs)} targets for {count} inputs.")
    return [specs[i] for i in chunk]


def _placed(explanation: Explanation) -> Explanation:
    """The explanation, saying in words which token's output it is of."""
    target = explanation.target
    assert target.position is not None
    text = explanation.units[target.position].text
    return replace(explanation, target=replace(target, place=f'token {target.position}, "{text}"'))
