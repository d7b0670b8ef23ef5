"""Root points: what the input is compared with when relevance is gradient × (input − root)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wherefrom.core.memory import storage_of
from wherefrom.core.runner import Batch
from wherefrom.core.target import Case, Target
from wherefrom.core.torch_internals import version_of
from wherefrom.errors import MethodError
from wherefrom.inputs.image import FILLS, filled
from wherefrom.methods.forward_pass import ForwardPass, intercepted_forward
from wherefrom.tracing.observers import Observer
from wherefrom.tracing.observers.entry_points import Change, EmbeddedInput, Place
from wherefrom.tracing.tracer import RootActivations, Table

Root = str | int | Tensor | None
"""What a missing unit looks like: "unk", "mask", "pad" or the id of a token; "mean", the mean
embedding, or colour; "blur"; "zero"; a tensor of embeddings; None for none."""


@dataclass(frozen=True)
class Rooted:
    """A root and, for secants, the units that are present at the two points they connect."""

    root: str | int | Tensor
    secants: bool = False
    first: Tensor | None = None  # (B, units); None: no unit
    second: Tensor | None = None  # None: all units

    def end(self, inputs: Batch) -> Change | None:
        """Moves what enters to the second point, unless that is the input."""
        return None if self.second is None else root_change(inputs, self.root, self.second)


def root_change(inputs: Batch, root: str | int | Tensor, present: Tensor | None = None) -> Change:
    """Replaces what enters by the root, but for special tokens, padding and `present` units."""
    moved = inputs.mask.cpu() & ~inputs.special()
    if present is not None:
        moved &= ~present

    def change(entering: EmbeddedInput) -> Tensor:
        rows = entering.rows
        blank = _blank(inputs, root, entering).to(rows)
        places = torch.zeros(rows.shape[:2], dtype=torch.bool)
        places = entering.span.rows_of(moved, places).to(rows.device)
        return torch.where(places.unsqueeze(-1), blank, rows)

    return change


def _blank(inputs: Batch, root: str | int | Tensor, entering: EmbeddedInput) -> Tensor:
    rows = entering.rows
    if isinstance(root, Tensor):
        try:
            return root.detach().expand_as(rows)
        except RuntimeError:
            raise MethodError(
                f"a root of shape {tuple(root.shape)} does not fit what enters the model, "
                f"{tuple(rows.shape)} (batch, units, features)."
            ) from None
    if root == "zero":
        return torch.zeros_like(rows)
    images = entering.table is None and inputs.layout is not None and inputs.layout.stacked
    if images and root in FILLS:
        return _of_images(inputs, lambda pixels: filled(pixels, str(root)))
    if entering.table is not None:
        if root == "mean":
            return _mean_row(entering.table.detach()).expand_as(rows)
        return entering.table.detach()[inputs.token_id(root)].expand_as(rows)
    # a row of a table of hashed ids is not that of a token
    if root == "mean" or not inputs.tensors[inputs.fields[entering.span.field]].is_floating_point():
        valid = entering.span.rows_of(inputs.mask.cpu(), torch.zeros(rows.shape[:2]).bool())
        weights = valid.to(rows).unsqueeze(-1)
        mean = (rows * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        return mean.expand_as(rows)
    raise MethodError(f'a root of "{root}" is for {_USE.get(str(root), "texts")}.')


_USE = {"blur": "images"}
# by the storage of a table: its state, and its mean
_MEANS: weakref.WeakKeyDictionary[torch.UntypedStorage, tuple[tuple[Any, ...], Tensor]]
_MEANS = weakref.WeakKeyDictionary()


def _mean_row(table: Tensor) -> Tensor:
    """The mean of a table's rows: large tables are read once, until something is written there."""
    reference = storage_of(table)
    storage = None if isinstance(reference, int) else reference()
    if storage is None:  # it has none
        return table.mean(0)
    # a write by way of `.data` is not counted: it shows in the numbers of some rows
    sample = float(table[:: max(1, len(table) // 256)].sum())
    layout = (table.dtype, table.shape, table.stride(), table.storage_offset())
    state = (version_of(table), *layout, sample)
    known = _MEANS.get(storage)
    if known is not None and known[0] == state:
        return known[1]
    mean = table.mean(0)
    _MEANS[storage] = (state, mean)
    return mean


def _of_images(inputs: Batch, fill: Callable[[Tensor], Tensor]) -> Tensor:
    """The rows of the images that `fill` makes of these."""
    name = inputs.fields[0]
    images = inputs.whole(name, inputs.tensors[name].detach())
    assert inputs.layout is not None
    return inputs.layout.split(torch.stack([fill(image) for image in images]))


@dataclass(frozen=True)
class RootPass:
    """What is known of the root before the pass at the input."""

    change: Change
    leaves: list[Tensor] | None = None  # what is read at the root, if it was run
    logits: Tensor | None = None
    root_activations: RootActivations | None = None
    own_route: RootPass | None = None  # the root's, if this pass was held to that of the input

    @staticmethod
    def of(
        rooted: Rooted,
        table: Table,
        case: Case,
        at: Place,
        own_route: RootPass | None = None,
        observer: Callable[[RootActivations | None], Observer] | None = None,
    ) -> RootPass:
        """Runs the root, if need be; on the input's route, if that on its own is given."""
        change = root_change(case.batch, rooted.root, rooted.first)
        if not rooted.secants and at == "embeddings":
            return RootPass(change)
        own = None if own_route is None else own_route.root_activations
        held = None if own is None else own.route
        root_activations = RootActivations(held) if rooted.secants else None
        observers = [] if observer is None else [observer(root_activations)]
        with intercepted_forward(
            table,
            case,
            at=at,
            change=change,
            root_activations=root_activations,
            observers=observers,
        ) as forward:
            sources = forward.tracer.entry_points.entered
            leaves = [s.by_sample(s.leaf.detach(), len(case.batch)) for s in sources]
        if root_activations is not None:
            root_activations.finish_root()
        return RootPass(change, leaves, forward.logits.detach(), root_activations, own_route)

    @property
    def left_route(self) -> bool:
        """Whether the pass at the input took another route than the root."""
        return self.root_activations is not None and self.root_activations.left_route

    def output(self, target: Target) -> Tensor:
        """The target at the root, (B,)."""
        assert self.logits is not None
        return target(self.logits).double().cpu()

    def values(self, forward: ForwardPass) -> list[Tensor]:
        """The root at each place where the input is read, (B, T, D) each."""
        if self.leaves is not None:
            return self.leaves
        batch = len(forward.output)
        return [
            self.change(EmbeddedInput(s.by_sample(s.leaf.detach(), batch), s.span, s.table))
            for s in forward.tracer.entry_points.entered
        ]
