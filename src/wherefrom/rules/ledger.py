"""The books of one pass: what each constant of the model added to the output, per sample."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from wherefrom.rules.sources import Sources


@dataclass
class Entry:
    """What the constants of one kind added in one module."""

    total: Tensor  # (B,)
    places: Tensor | None = None  # (B, T) where the constant differs from place to place


@dataclass
class LedgerRecorder:
    """Collects the entries in the backward pass; `mixed` if samples could not be told apart."""

    sources: Sources
    open: bool = True
    mixed: bool = False
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Samples in the batch."""
        return self.sources.batch

    @property
    def length(self) -> int:
        """Places in the sequence that the model runs on."""
        return self.sources.extent

    def post(self, out: Tensor, part: Tensor | float, where: str, kind: str) -> None:
        """Notes, when the gradient g of `out` is known, that g · part entered there."""
        if not self.open:
            return
        constant = (
            part.detach().to(out)
            if isinstance(part, Tensor)
            else torch.tensor(part, dtype=out.dtype, device=out.device)  # not by way of float32
        )
        if kind == "bias" and constant.ndim > 1 and _same_rows(constant):
            constant = constant[..., :1, :]
        # on the node, not the tensor, and of a whole view on its base's: a model may go on to
        # write into what it got, and the graph then forgets the tensor and the view
        held, shape = _whole(out), out.shape
        node = held.grad_fn
        if node is None:  # the input itself: nothing was added to it
            return
        at = held.output_nr

        def enter(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[at]
            if gradient is not None:
                with torch.no_grad(), torch._C.DisableTorchFunction():
                    self._enter(gradient.reshape(shape), constant, where, kind)

        node.register_prehook(enter)

    def _enter(self, gradient: Tensor, part: Tensor, where: str, kind: str) -> None:
        amounts = _along_last(gradient, part)
        rows = amounts.numel() // self.batch
        first = amounts.shape[0] if amounts.ndim else 1
        whole = [self.batch, *(self.batch * n for n in self.sources.widths)]
        if self.batch > 1 and first not in (whole if amounts.ndim == 1 else whole[:1]):
            self.mixed = True
            return
        if self.batch > 1 and self.batch == self.length:
            self.mixed = True  # samples and places have the same number: told apart alone only
            return
        by_row = amounts.reshape(self.batch, rows).double()
        # a constant with a row for each place is a position; one row for all is a bias, and so
        # is one number for each channel
        rowed = part.ndim > 1 and part.shape[-1] == gradient.shape[-1]
        ahead = rows - self.length
        known = 0 <= ahead <= self.sources.ahead.get(0, 0)
        placed = known and rowed and part.shape[-2] % rows == 0 and kind != "token"
        # units of another size than the model's places, as pixels, cannot have it each
        table = rowed and self.sources.fields[0].is_floating_point() and gradient.ndim == 3
        kind = "position" if (placed or (table and part.shape[-2] > 1)) and kind == "bias" else kind
        entry = self.entries.setdefault((where, kind), Entry(by_row.new_zeros(self.batch)))
        entry.total += by_row.sum(1)
        if placed:
            own = by_row[:, ahead:]
            entry.places = own if entry.places is None else entry.places + own


def _same_rows(part: Tensor) -> bool:
    """Whether a constant is the same at every place, however large it was made: a bias."""
    return part.shape[-2] > 1 and bool((part == part[..., :1, :]).all())


def _whole(out: Tensor) -> Tensor:
    base = out._base if out._is_view() else None
    if base is None or base.numel() != out.numel():
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
