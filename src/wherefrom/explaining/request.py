"""Splits inputs into batches and explains each input, with its target, by one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from wherefrom.explaining.predicted_spans import explain_answer, explain_entity
from wherefrom.inputs.reader import Reader
from wherefrom.methods import Method


def has_spans(runner: ModelRunner) -> bool:
    """Whether the model predicts spans of its input."""
    return runner.forward is None and runner.task in ("QuestionAnswering", "TokenClassification")


@dataclass(frozen=True)
class Request:
    """How inputs are explained, and by which method: see `Explainer.__call__`."""

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

    def explain(
        self, reader: Reader[Any, Any], sources: Sequence[Any], output_names: OutputNames
    ) -> list[Explanation | Rejected]:
        """Reads the sources and explains them batch by batch, in the order of the sources.

        A source that cannot be explained raises its error, or with `reject` gives a `Rejected`.
        """
        results: dict[int, Explanation | Rejected] = {}
        read = reader.read_each if self.reject else reader.read_all
        items = dict(enumerate(read(sources, self.truncate)))
        for i, item in list(items.items()):
            if isinstance(item, InputError):
                results[i] = Rejected(i, items.pop(i))
        runner = replace(reader.runner, memory=self.memory)
        predicts_spans = reader.name == "text" and has_spans(runner)
        if self.entity is not None and not (
            predicts_spans and runner.task == "TokenClassification"
        ):
            raise TargetError("entity applies only to models that classify every token.")
        one_by_one = predicts_spans and (
            self.position is None or runner.task == "QuestionAnswering"
        )
        targets, contrasts = (
            _spec_of_each(specs, len(sources)) for specs in (self.target, self.against)
        )

        def explain_indices(indices: Sequence[int]) -> list[Explanation]:
            batch = reader.batch([items[i] for i in indices])
            chosen, against = ([specs[i] for i in indices] for specs in (targets, contrasts))
            if one_by_one:
                explained = [self._explain_span(runner, batch, chosen[0], against[0], output_names)]
            else:
                explained = self._explain_batch(
                    runner,
                    reader,
                    batch,
                    chosen,
                    against,
                    output_names,
                    lambda i: reader.batch([items[indices[i]]]),
                )
            notes = (reader.warnings_of(items[i]) for i in indices)
            return [
                replace(explanation, warnings=(*explanation.warnings, *more))
                if more
                else explanation
                for explanation, more in zip(explained, notes, strict=True)
            ]

        order = list(items)
        size = 1 if one_by_one else self.batch_size
        chunks = reader.chunks(list(items.values()), size, self.batch_tokens)
        with shown("explaining", None if len(chunks) > 1 else False) as report:
            for chunk in chunks:
                report(len(results), len(sources), self.method.name)
                indices = [order[k] for k in chunk]
                results.update(
                    split_on_failure(
                        indices, explain_indices, reject=self.reject, device=runner.device
                    )
                )
        return [results[i] for i in range(len(sources))]

    def _explain_batch(
        self,
        runner: ModelRunner,
        reader: Reader[Any, Any],
        batch: Batch,
        targets: list[TargetSpec],
        contrasts: list[TargetSpec],
        output_names: OutputNames,
        alone: Callable[[int], Batch],
    ) -> list[Explanation]:
        indices, against = (
            None if specs[0] is None
            else torch.tensor([output_names.index(spec) for spec in specs], device=runner.device)
            for specs in (targets, contrasts)
        )  # fmt: skip
        _check_contrast(output_names, indices, against)
        target = Target(indices, against, reader.positions(batch, self.position))
        results = explain_batch(runner, batch, self.method, target, output_names, alone)
        predicted = torch.tensor([result.target.index for result in results])
        _check_contrast(output_names, predicted, against)
        per_token = results[0].target.position is not None
        if self.position is not None and not per_token:
            raise TargetError("position applies only to models with an output for every token.")
        if self.position is None and per_token:
            reader.check_position(batch)
        if per_token and not output_names.generates:
            results = [_with_token(explanation) for explanation in results]
        return results

    def _explain_span(
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


def _spec_of_each(specs: Any, count: int) -> list[TargetSpec]:
    """The target of each input, from a single one or a list."""
    if isinstance(specs, (Tensor, np.ndarray)):
        specs = specs.tolist()
    if not isinstance(specs, (list, tuple)):
        return [specs] * count
    if len(specs) != count:
        raise TargetError(f"there are {len(specs)} targets for {count} inputs.")
    if None in specs and any(spec is not None for spec in specs):
        raise TargetError("pass a target for every input, or for none.")
    return list(specs)


def _check_contrast(
    output_names: OutputNames, index: Tensor | None, against: Tensor | None
) -> None:
    """Refuses a contrast of an output with itself."""
    if index is None or against is None:
        return
    same = index[index == against.to(index.device)]
    if len(same):
        raise TargetError(
            f'target and against are the same output, "{output_names.name(int(same[0]))}": '
            "their difference is always 0."
        )


def _with_token(explanation: Explanation) -> Explanation:
    """The explanation with a description of the token whose output is explained."""
    target = explanation.target
    assert target.position is not None
    text = explanation.units[target.position].text
    return replace(explanation, target=replace(target, place=f'token {target.position}, "{text}"'))
