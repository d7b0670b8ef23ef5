"""Inputs in batches, each with its target, and what a method says of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.batching import Rejected, split_on_failure
from wherefrom.core.explanation import Explanation
from wherefrom.core.output_names import OutputNames, TargetSpec
from wherefrom.core.progress import shown
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import Target
from wherefrom.errors import InputError, TargetError
from wherefrom.explaining.assemble import explain_batch
from wherefrom.explaining.predicted_spans import explain_answer, explain_entity, has_spans
from wherefrom.inputs import Reader
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method


@dataclass(frozen=True)
class Request:
    """What is explained of inputs, and by which method: see `Explainer.__call__`."""

    method: Method
    target: TargetSpec | Sequence[TargetSpec] = None
    against: TargetSpec | Sequence[TargetSpec] = None
    position: int | None = None
    entity: str | None = None
    batch_size: int = 16
    batch_tokens: int | None = None
    truncate: bool = False
    memory: float | None = None
    reject: bool = False

    def explained(
        self, reader: Reader[Any, Any], sources: Sequence[Any], output_names: OutputNames
    ) -> list[Explanation | Rejected]:
        """Reads the sources and explains them batch by batch, in the order of the sources.

        A source that cannot be explained is an error, or with `reject` a `Rejected`.
        """
        results: dict[int, Explanation | Rejected] = {}
        if self.reject:
            items = dict(enumerate(reader.read_each(sources, self.truncate)))
            for i, item in list(items.items()):
                if isinstance(item, InputError):
                    results[i] = Rejected(i, items.pop(i))
        else:
            items = dict(enumerate(reader.read_all(sources, self.truncate)))
        runner = replace(reader.runner, memory=self.memory)
        of_spans = isinstance(reader, TextReader) and has_spans(runner)
        if self.entity is not None and not (of_spans and runner.task == "TokenClassification"):
            raise TargetError("an entity is for models that classify every token.")
        one_by_one = of_spans and (self.position is None or runner.task == "QuestionAnswering")

        def explain(indices: Sequence[int]) -> list[Explanation]:
            targets, others = (
                _spec_of_each(specs, indices, len(sources)) for specs in (self.target, self.against)
            )
            batch = reader.batch([items[i] for i in indices])
            if one_by_one:
                return [self._of_span(runner, batch, targets[0], others[0], output_names)]
            return self._of_batch(runner, reader, batch, targets, others, output_names)

        order = list(items)
        size = 1 if one_by_one else self.batch_size
        chunks = reader.chunks(list(items.values()), size, self.batch_tokens)
        with shown("explaining", None if len(chunks) > 1 else False) as report:
            for chunk in chunks:
                report(len(results), len(sources), self.method.name)
                indices = [order[k] for k in chunk]
                results.update(
                    split_on_failure(indices, explain, reject=self.reject, device=runner.device)
                )
        return [results[i] for i in range(len(sources))]

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
            raise TargetError("a position is for models with an output for every token.")
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


def _spec_of_each(specs: Any, chunk: Sequence[int], count: int) -> list[TargetSpec]:
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
