"""Splits inputs into batches and explains each input, with its target, by one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wherefrom import __version__
from wherefrom.core.explanation import Explanation, Ledger, Line, Output, TargetInfo
from wherefrom.core.progress import shown
from wherefrom.core.runner import Batch, ModelRunner, Rejected, split_on_failure
from wherefrom.core.target import Case, OutputNames, SpanTarget, Target, TargetSpec
from wherefrom.errors import InputError, TargetError
from wherefrom.explaining.predicted_spans import explain_answer, explain_entity
from wherefrom.inputs.reader import Reader
from wherefrom.methods import Method, Scores
from wherefrom.methods.forward_pass import ends_in_probabilities, run, warn_of_difference


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
            case = Case(runner, reader.batch([items[i] for i in indices]))
            chosen, against = ([specs[i] for i in indices] for specs in (targets, contrasts))
            if one_by_one:
                explained = [self._explain_span(case, chosen[0], against[0], output_names)]
            else:
                case = case.with_target(self._target(case, reader, chosen, against, output_names))
                explained = explain_batch(
                    case,
                    self.method,
                    output_names,
                    alone=lambda i: reader.batch([items[indices[i]]]),
                )
                explained = self._checked(explained, case, reader, output_names)
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

    def case_of(self, reader: Reader[Any, Any], source: Any, output_names: OutputNames) -> Case:
        """The case of a single source."""
        case = Case(
            replace(reader.runner, memory=self.memory),
            reader.batch([reader.read(source, self.truncate)]),
        )
        targets, contrasts = (_spec_of_each(specs, 1) for specs in (self.target, self.against))
        return case.with_target(self._target(case, reader, targets, contrasts, output_names))

    def _target(
        self,
        case: Case,
        reader: Reader[Any, Any],
        targets: list[TargetSpec],
        contrasts: list[TargetSpec],
        output_names: OutputNames,
    ) -> Target:
        device = case.runner.device
        indices, against = (
            None if specs[0] is None
            else torch.tensor([output_names.index(spec) for spec in specs], device=device)
            for specs in (targets, contrasts)
        )  # fmt: skip
        _check_contrast(output_names, indices, against)
        return Target(indices, against, reader.positions(case.batch, self.position))

    def _checked(
        self,
        results: list[Explanation],
        case: Case,
        reader: Reader[Any, Any],
        output_names: OutputNames,
    ) -> list[Explanation]:
        """The explanations; raises TargetError for a target that the model's output refutes."""
        predicted = torch.tensor([result.target.index for result in results])
        _check_contrast(output_names, predicted, case.target.against)
        per_token = results[0].target.position is not None
        if self.position is not None and not per_token:
            raise TargetError("position applies only to models with an output for every token.")
        if self.position is None and per_token:
            reader.check_position(case.batch)
        if per_token and not output_names.generates:
            results = [_with_token(explanation) for explanation in results]
        return results

    def _explain_span(
        self, case: Case, target: TargetSpec, against: TargetSpec, output_names: OutputNames
    ) -> Explanation:
        """An answer in its context, or an entity."""

        def explain(span: SpanTarget) -> list[Explanation]:
            return explain_batch(case.with_target(span), self.method, output_names)

        if case.runner.task == "QuestionAnswering":
            return explain_answer(case, explain, target, against, self.position)
        return explain_entity(case, explain, output_names, target, against, self.entity)


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


def explain_batch(
    case: Case,
    method: Method,
    output_names: OutputNames,
    alone: Callable[[int], Batch] | None = None,
) -> list[Explanation]:
    """Scores a batch and builds an explanation for each sample.

    `alone` gives a sample without the padding and the other samples of the batch.
    """
    inputs, method = case.batch, method.resolved(case.batch)
    scores = method(case)
    logits = (run(case) if scores.logits is None else scores.logits).detach()
    case = case.resolved(logits)
    caveat = _caveat(method.name, case, logits, alone or (lambda i: inputs.take([i])))
    return explanations(case, method, scores, logits, output_names, caveat)


def explanations(
    case: Case,
    method: Method,
    scores: Scores,
    logits: Tensor,
    output_names: OutputNames,
    caveat: tuple[str, ...] = (),
) -> list[Explanation]:
    """An explanation for each sample of a resolved case, from its scores and logits."""
    inputs, resolved = case.batch, case.target
    rows = resolved.row(logits).cpu().double()  # (B, classes)
    output_names.learn(rows, lambda: ends_in_probabilities(case))
    probabilities = output_names.probabilities(rows, per_position=logits.ndim == 3)
    targets = _target_infos(resolved, output_names, logits.ndim == 3, rows.shape[1])
    outputs = resolved(logits).double().tolist()
    largest = _largest(rows, probabilities, output_names)
    # one transfer per batch: with small models, transfers per sample would dominate
    values, mask = _as_numpy(scores.values), inputs.mask.cpu().numpy()
    parts = {name: _as_numpy(part) for name, part in scores.parts.items()}
    errors = None if scores.errors is None else _as_numpy(scores.errors)
    ledgers = _ledgers(scores, outputs)
    versions, settings, label = library_versions(), method.settings(), method.short_label
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
            model=case.runner.name,
            versions=dict(versions),
            warnings=(*(scores.warnings[i] if scores.warnings else ()), *caveat),
            errors=None if errors is None else errors[i][mask[i]],
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
