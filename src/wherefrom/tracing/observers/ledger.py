"""The ledger of one pass: what each constant of the model added to the output, per sample."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.core.torch_internals import view_base, without_function_modes
from wherefrom.tracing.observers.entry_points import EntryPoints
from wherefrom.tracing.tags import Tag, tag_of, widened

_OF_PLACES = ("bias", "position", "type")  # kinds that a unit may have a row of


@dataclass
class Entry:
    """What the constants of one kind added in one module."""

    total: Tensor  # (B,)
    places: Tensor | None = None  # (B, T) where the constant differs from place to place


@dataclass
class LedgerRecorder:
    """Records g · c for every constant c, when its gradient g is known in the backward pass.

    `unclear` says where rows could not be told apart by sample: the amounts of a batch are then
    incomplete, and its samples have to be run one by one.
    """

    sources: EntryPoints
    enabled: bool = True
    unclear: str | None = None
    count: int = 0  # of constants that were noted
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    def record(
        self, out: Tensor, part: Tensor | float, where: str, kind: str, *, written: bool = True
    ) -> None:
        """Notes that `part` was added to get `out`, which the model may go on to write into."""
        if not self.enabled:
            return
        self.count += 1
        constant = (
            part.detach().to(out)
            if isinstance(part, Tensor)
            else torch.tensor(part, dtype=out.dtype, device=out.device)  # not by way of float32
        )
        if kind == "bias" and constant.ndim > 1 and _same_rows(constant):
            constant = constant[..., :1, :]
        # on the node, not the tensor, and of a whole view on its base's: a model may go on to
        # write into what it got, and the graph then forgets the tensor and the view
        whole, shape = _whole(out) if written else out, out.shape
        node = whole.grad_fn
        if node is None:  # the input itself: nothing was added to it
            return
        output, tag = whole.output_nr, tag_of(out)
        # the sources may have tensors of the graph: with them a node would never be freed
        reference = weakref.ref(self)

        def enter(gradients: tuple[Tensor | None, ...]) -> None:
            gradient, recorder = gradients[output], reference()
            if gradient is not None and recorder is not None:
                with torch.no_grad(), without_function_modes():
                    recorder._enter(gradient.reshape(shape), constant, where, kind, tag)

        node.register_prehook(enter)

    def record_rounding(self, out: Tensor, x: Tensor, value: Tensor, where: str) -> None:
        """Notes what a Function adds to W x to get `value`: Σ gradient · value − Σ gradient · x.

        Nothing is noted unless the Function that gave `out` took x itself.
        """
        node, source = out.grad_fn, x.grad_fn
        if not self.enabled or node is None or source is None:
            return
        indices = [i for i, (before, _) in enumerate(node.next_functions) if before is source]
        if len(indices) != 1:
            return
        output, tag = out.output_nr, tag_of(out)
        x, value = x.detach(), value.detach()
        reference = weakref.ref(self)

        def enter(inputs: tuple[Tensor | None, ...], outputs: tuple[Tensor | None, ...]) -> None:
            entering, leaving, recorder = inputs[indices[0]], outputs[output], reference()
            if entering is not None and leaving is not None and recorder is not None:
                with torch.no_grad(), without_function_modes():
                    rows = (widened(leaving) * widened(value)).sum(-1, dtype=torch.float64)
                    rows -= (widened(entering) * widened(x)).sum(-1, dtype=torch.float64)
                    one = torch.ones((), dtype=torch.float64, device=rows.device)
                    recorder._enter(rows.unsqueeze(-1), one, where, "quantisation", tag)

        node.register_hook(enter)

    def enter(self, leaf: Tensor, gradient: Tensor, where: str) -> None:
        """Enters what a constant that the model has a gradient for added, once that is known."""
        if self.enabled:
            with torch.no_grad(), without_function_modes():
                part = leaf.detach()
                part = part[..., :1, :] if part.ndim > 1 and _same_rows(part) else part
                self._enter(gradient, part, where, "bias", tag_of(leaf))

    def lose_track(self, where: str) -> None:
        """Notes that rows could not be told apart by sample in a module."""
        place = f"in {where}" if where else "in the model itself"
        self.unclear = self.unclear or f"it is not clear which sample each row belongs to {place}"

    def _enter(self, gradient: Tensor, part: Tensor, where: str, kind: str, tag: Tag) -> None:
        samples = tag.samples
        if gradient.numel() == 0:  # an expert that no row was sent to
            return
        gradient, part = widened(gradient), widened(part)
        batch = self.sources.batch
        axis = -1 if samples is None or batch == 1 else samples.axis
        if axis == gradient.ndim - 1:  # no axis of features to sum over
            amounts = (gradient * part).nan_to_num(nan=0.0)
        else:
            amounts = _along_last(gradient, part)
        if batch == 1:
            by_row = amounts.reshape(1, -1)
        elif samples is None or bool((samples.ids < 0).any()):
            self.lose_track(where)
            return
        else:
            even = samples.by_sample(amounts, batch)
            if even is None:  # samples of several sizes, as at an expert: they have no places
                self._add(where, kind, samples.totals(amounts.double(), batch), None)
                return
            by_row = even
        by_row = by_row.double()
        rows = by_row.shape[1]
        # a constant with a row for each place is a position; one row for all is a bias, and so
        # is one number for each channel
        rowed = part.ndim > 1 and part.shape[-1] == gradient.shape[-1]
        ahead = rows - self.sources.extent
        # a decoder's places are not those of the source, though there may be as many
        known = not tag.stream and 0 <= ahead <= self.sources.rows_ahead.get(0, 0)
        placed = (
            known and rowed and kind in _OF_PLACES and _rows_of(part, gradient, axis, batch) == rows
        )
        # units of another size than the model's places, as pixels, cannot have it each
        table = rowed and self.sources.fields[0].is_floating_point() and gradient.ndim == 3
        if kind == "bias" and (placed or (table and part.shape[-2] > 1)):
            kind = "position"
        self._add(where, kind, by_row.sum(1), by_row[:, ahead:] if placed else None)

    def _add(self, where: str, kind: str, total: Tensor, places: Tensor | None) -> None:
        entry = self.entries.setdefault((where, kind), Entry(torch.zeros_like(total)))
        entry.total += total
        if places is not None:
            entry.places = places if entry.places is None else entry.places + places


def _rows_of(part: Tensor, gradient: Tensor, axis: int, batch: int) -> int:
    """The number of rows that a constant has for one sample."""
    rows = 1
    for back in range(2, part.ndim + 1):
        size = part.shape[-back]
        rows *= max(1, size // batch) if gradient.ndim - back == axis else size
    return rows


def _same_rows(part: Tensor) -> bool:
    """Whether a constant is the same at every place, however large it was made: a bias."""
    return part.shape[-2] > 1 and bool((part == part[..., :1, :]).all())


def _whole(out: Tensor) -> Tensor:
    base = view_base(out)
    if base is None or base.grad_fn is None or base.numel() != out.numel():
        return out
    return base if base.is_contiguous() and out.is_contiguous() else out


def _along_last(gradient: Tensor, part: Tensor) -> Tensor:
    """The sum over the last axis of gradient · part; 0 · ∞, as of a mask, is 0."""
    if gradient.ndim < 2:
        return (gradient * part).nan_to_num(nan=0.0)
    if part.numel() == 1:
        return gradient.sum(-1) * part.reshape(())
    if part.ndim == 1 and bool(part.isfinite().all()):
        return gradient @ part
    return (gradient * part).nan_to_num(nan=0.0).sum(-1)
