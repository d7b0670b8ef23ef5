"""The embedded inputs of a batch, and passes on many changed copies of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from wherefrom.core.memory import SavedBytes, free_memory, is_out_of_memory, release_memory
from wherefrom.core.runner import Batch
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case
from wherefrom.errors import MethodError
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.methods.propagation import PLAIN
from wherefrom.methods.root import root_change
from wherefrom.tracing.observers.entry_points import Change, EmbeddedInput, Place, Span
from wherefrom.tracing.tracer import Table

Pair = tuple[int, int]  # a sample and the number of its copy
Point = Callable[[int, int, int], Tensor]  # source, sample, copy -> embedded input (T, D)
Item = TypeVar("Item")
Result = TypeVar("Result")
_TOKENS_A_PASS = 2048
_SHARE = 0.4  # of the free memory


@dataclass(frozen=True)
class EmbeddedInputs:
    """The embedded inputs of a batch; runs the model on other embedded inputs."""

    case: Case  # with the most likely class as its target, if it had none
    logits: Tensor
    values: list[Tensor]  # (B, T, D) for each entry point
    spans: list[Span]  # the units that each of them holds
    paths: list[tuple[int, ...]] | None = None  # to the first blocks, if the input is read there

    @staticmethod
    def of(forward: ForwardPass, case: Case) -> EmbeddedInputs:
        """From a finished pass."""
        sources, logits = forward.tracer.entry_points.entered, forward.logits.detach()
        return EmbeddedInputs(
            case.resolved(logits),
            logits,
            [s.by_sample(s.leaf.detach(), len(case.batch)).cpu() for s in sources],
            [s.span for s in sources],
            forward.paths,
        )

    @staticmethod
    @restores_state
    def capture(
        case: Case, at: Place = "embeddings", change: Change | None = None
    ) -> EmbeddedInputs:
        """Runs the model once to record the embedded inputs.

        `change` replaces what enters the model.
        """
        # the path to the block is found from tensors that require a gradient
        gradients = at == "first_block"
        with intercepted_forward(PLAIN, case, at=at, gradients=gradients, change=change) as forward:
            return EmbeddedInputs.of(forward, case)

    @property
    def place(self) -> Place:
        """Where the input is read."""
        return "embeddings" if self.paths is None else "first_block"

    def valid_mask(self, k: int) -> Tensor:
        """Which rows of the k-th entry point hold a unit, (B, T)."""
        valid = torch.zeros(self.values[k].shape[:2], dtype=torch.bool)
        return self.spans[k].rows_of(self.case.batch.mask, valid)

    def gradients(
        self, pairs: Sequence[Pair], point: Point, table: Table = PLAIN
    ) -> Iterator[tuple[list[Pair], list[Tensor]]]:
        """∂ target / ∂ embedded input at each point, chunk by chunk."""

        def read(forward: ForwardPass) -> list[Tensor]:
            return [gradient.cpu() for gradient in forward.at_sources()]

        return self._passes(pairs, point, table, read)

    def outputs(
        self, pairs: Sequence[Pair], point: Point, table: Table = PLAIN
    ) -> Iterator[tuple[list[Pair], Tensor]]:
        """The target at each point, chunk by chunk."""

        def read(forward: ForwardPass) -> Tensor:
            return forward.output.detach().double().cpu()

        return self._passes(pairs, point, table, read, gradients=False)

    def _passes(
        self,
        pairs: Sequence[Pair],
        point: Point,
        table: Table,
        read: Callable[[ForwardPass], Result],
        gradients: bool = True,
    ) -> Iterator[tuple[list[Pair], Result]]:
        """What `read` returns for each pass."""

        def run(rows: list[Pair]) -> Result:
            with intercepted_forward(
                table,
                self.case.take([i for i, _ in rows]),
                at=self.place,
                change=partial(_placed, iter(range(len(self.values))), rows, point),
                paths=self.paths,
                gradients=gradients or self.paths is not None,
            ) as forward:
                return read(forward)

        return Budget(self.case, gradients).chunks(pairs, run)


def _placed(
    entered: Iterator[int], rows: list[Pair], point: Point, entering: EmbeddedInput
) -> Tensor:
    """What enters at the next entry point: for each row its own point."""
    k = next(entered)
    return torch.stack([point(k, i, copy) for i, copy in rows]).to(entering.rows)


def over_sources(embedded: EmbeddedInputs, amounts: Sequence[Tensor]) -> Tensor:
    """Values at the entry points, (B, T) each, as values of the units, (B, units)."""
    total = torch.zeros(embedded.case.batch.mask.shape, dtype=torch.float64)
    for amount, span in zip(amounts, embedded.spans, strict=True):
        span.add_to(total, amount)
    return total


class Budget:
    """How many rows a pass may have, from the bytes that autograd saves in the first pass."""

    def __init__(self, case: Case, gradients: bool = True) -> None:
        runner, (batch, length) = case.runner, case.batch.mask.shape
        self._device = runner.device
        # by default part of the free memory: the results need some too
        self.bytes = runner.memory or _SHARE * free_memory(runner.device)
        self.most = max(1, batch, _TOKENS_A_PASS // max(1, length))
        # without gradients nothing is saved, so the first pass need not be small
        self._known = not gradients
        self.rows = self.most if self._known else min(self.most, batch)

    def limit(self, rows: int) -> None:
        """Limits the rows of all further passes."""
        self.most = rows
        self.rows = min(self.rows, rows)

    def chunks(
        self, items: Sequence[Item], run: Callable[[list[Item]], Result]
    ) -> Iterator[tuple[list[Item], Result]]:
        """The results of `run` for all items, chunk by chunk; each item is a row.

        A pass that runs out of memory is repeated with half as many rows.
        """
        at = 0
        while at < len(items):
            rows = list(items[at : at + self.rows])
            try:
                with self.measured(len(rows)):
                    result = run(rows)
            except Exception as error:
                if len(rows) == 1 or not is_out_of_memory(error):
                    raise
                self.limit(len(rows) // 2)
            else:
                at += len(rows)
                yield rows, result
                continue
            release_memory(
                self._device
            )  # here the error no longer refers to the tensors of the pass

    def measured(self, rows: int) -> Scope:
        """A context that counts in the first pass what autograd saves."""
        if self._known:
            return Scope()
        self._known = True
        return Scope(saved=_RowBytes(self, rows))


class _RowBytes(SavedBytes):
    """Counts the bytes of a pass with this number of rows, and updates the budget."""

    def __init__(self, budget: Budget, rows: int) -> None:
        super().__init__()
        self._budget, self._rows = budget, rows

    def count(self, tensor: Tensor) -> int:
        size = super().count(tensor)
        if size:
            row_bytes = 2 * self.total / self._rows  # twice, for the gradients
            budget = self._budget
            budget.rows = int(min(budget.most, max(1, budget.bytes // row_bytes)))
        return size


def baseline_values(embedded: EmbeddedInputs, baseline: str | int | Tensor) -> list[Tensor]:
    """The baseline embeddings.

    "zero": zero vectors. "pad", "unk", "mask", or a token id: that token instead of every unit
    that is not a special token. "mean": the mean embedding instead, except for the first token of
    a language model. A tensor: the embedded baseline, or a tensor that broadcasts to it.
    """
    case = embedded.case
    if isinstance(baseline, Tensor):
        blank = [baseline.detach().cpu().to(v.dtype).expand_as(v) for v in embedded.values]
    elif baseline == "zero":
        blank = [torch.zeros_like(value) for value in embedded.values]
    elif baseline == "mean":
        change = root_change(_first_kept(case.batch), "mean")
        blank = EmbeddedInputs.capture(case, embedded.place, change).values
    else:
        blank_case = replace(case, batch=replaced_units(case.batch, baseline))
        blank = EmbeddedInputs.capture(blank_case, embedded.place).values
    # padding and rows of no unit stay unchanged
    return [
        torch.where(embedded.valid_mask(k).unsqueeze(-1), b, v)
        for k, (b, v) in enumerate(zip(blank, embedded.values, strict=True))
    ]


def _first_kept(inputs: Batch) -> Batch:
    """The inputs with the first token of a language model marked as special.

    Attention heads that have nothing to attend to attend to it, so replacing it changes the whole
    model, and no path from such a baseline is smooth.
    """
    if inputs.missing != "mean":
        return inputs
    ids = [name for name in inputs.fields if not inputs.tensors[name].is_floating_point()]
    before = sum(inputs.tensors[name].shape[1] for name in ids[:-1])
    units = []
    for mask, row in zip(inputs.mask, inputs.units, strict=True):
        first = int(mask[:before].sum())
        units.append((*row[:first], replace(row[first], special=True), *row[first + 1 :]))
    return replace(inputs, units=tuple(units))


def replaced_units(inputs: Batch, token: str | int) -> Batch:
    """The inputs with one token instead of every unit that is not a special token."""
    fields = {name: inputs.tensors[name].clone() for name in inputs.fields}
    if any(ids.is_floating_point() for ids in fields.values()):
        raise MethodError(
            f'the baseline "{token}" is for texts: use "zero", or pass the baseline as a tensor.'
        )
    number = inputs.token_id(token)
    replaced = inputs.mask.cpu() & ~inputs.special()
    start = 0  # of the units of a field: a decoder's come after those of its source
    for ids in fields.values():
        width = ids.shape[1]
        ids[replaced[:, start : start + width].to(ids.device)] = number
        start += width
    return inputs.with_tensors(fields)
