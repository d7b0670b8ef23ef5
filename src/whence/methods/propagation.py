"""Gradient × input through a model whose calls are made locally linear by a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from whence.errors import NothingIntercepted
from whence.methods.method import Method, Scores
from whence.rules.books import Books
from whence.rules.mode import LocallyLinear, Table, describe
from whence.rules.sources import Sources
from whence.rules.tables import TABLES
from whence.subject import Inputs, Subject
from whence.target import Target

PLACED = ("position", "type")


def open_view(
    table: Table, subject: Subject, inputs: Inputs, **settings: object
) -> tuple[LocallyLinear, dict[str, Tensor]]:
    """A mode for this model and batch, and the tensors to run it on within."""
    tensors = dict(inputs.tensors)
    # a tensor of our own to mark and to take gradients at: the user's stays as it is
    for name in inputs.fields:
        tensors[name] = tensors[name].detach().clone()
    sources = Sources([tensors[name] for name in inputs.fields])
    view = LocallyLinear(table, sources, model=subject.model, **settings)  # type: ignore[arg-type]
    for name in inputs.fields:
        if tensors[name].is_floating_point():
            tensors[name] = sources.enter(tensors[name], start=0)
    return view, tensors


def gradients_at_sources(view: LocallyLinear, output: Tensor, subject: Subject) -> list[Tensor]:
    """∂ output / ∂ each embedded input; zero where the output does not depend on it."""
    leaves = [source.leaf for source in view.sources.found]
    if not leaves:
        raise NothingIntercepted(
            f"{subject.name} looked its input up nowhere (saw {describe(view.seen)}). "
            "Units are found where the model embeds its ids; give it the ids of a text, or "
            "a float tensor with a row for each unit."
        )
    if not output.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(output.sum(), leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)
    ]


def propagate(
    table: Table,
    subject: Subject,
    inputs: Inputs,
    target: Target,
    needs: str | None = None,
    ledger: bool = True,
) -> Scores:
    """One forward and one backward pass; scores with their parts and the ledger's lines."""
    with subject.steady():
        view, tensors = open_view(table, subject, inputs, ledger=ledger)
        with view:
            logits = subject.run(tensors)
            gradients = gradients_at_sources(view, target(logits), subject)
    if needs and not view.touched[needs]:
        raise NothingIntercepted(
            f"no {needs} call was seen in {type(subject.model).__name__} "
            f"(saw {describe(view.seen)}). This method needs {needs}; "
            'try method="lrp" or "integrated_gradients".'
        )
    if (view.books.mixed or view.sources.mixed) and len(inputs) > 1:
        # somewhere in this model a row does not belong to one sample: alone, it does
        alone = (
            propagate(table, subject, inputs.take([i]), target.take([i]), needs, ledger)
            for i in range(len(inputs))
        )
        return Scores.joined(list(alone))
    return _collect(view.books, view.sources, gradients, logits.detach(), inputs.mask)


def _collect(
    books: Books, sources: Sources, gradients: list[Tensor], logits: Tensor, mask: Tensor
) -> Scores:
    words, padding = sources.relevance(gradients)
    parts = {"word": words}
    lines: dict[tuple[str, str], Tensor] = {}
    width = sources.length
    for (where, kind), entry in books.entries.items():
        rest = entry.total.cpu()
        if entry.places is not None:
            part = parts.setdefault(kind, torch.zeros_like(words))
            placed = entry.places.cpu()[:, :width]
            part[:, :width] += placed
            rest = rest - placed.sum(1)
        if entry.places is None or sources.extent > width:
            key = (layer_of(where), kind)
            lines[key] = lines.get(key, 0) + rest
    totals: dict[tuple[str, str], Tensor] = {}
    for kind, part in parts.items():
        padding += (part * ~mask).sum(1)
        part *= mask
        totals[f"{kind}s", kind] = part.sum(1)
    if bool(padding.any()):
        totals["places of no unit", "padding"] = padding
    return Scores(
        values=torch.stack(list(parts.values())).sum(0),
        logits=logits,
        parts=parts,
        lines={**totals, **dict(sorted(lines.items(), key=lambda item: _place(item[0][0])))}
        if books.open
        else None,
    )


def layer_of(where: str) -> str:
    """The block that a module belongs to, by its number.

    >>> layer_of("bert.encoder.layer.3.output.dense"), layer_of("bert.pooler.dense")
    ('bert.encoder.layer.3', 'bert.pooler')
    """
    path = where.split(".")
    for i, part in enumerate(path):
        if part.isdigit():
            return ".".join(path[: i + 1])
    return ".".join(path[:2]) or "model"


def _place(label: str) -> tuple[object, ...]:
    """Sorts blocks by number and leaves the rest in the order of the alphabet."""
    stem, _, number = label.rpartition(".")
    return (1, stem, int(number)) if number.isdigit() else (0, label, 0)


class Propagation(Method):
    """Gradient × input under a table."""

    needs: ClassVar[str | None] = None

    def table(self) -> Table:
        """The table of this method."""
        raise NotImplementedError

    def scores(self, subject: Subject, inputs: Inputs, target: Target) -> Scores:
        return propagate(self.table(), subject, inputs, target, self.needs)


@dataclass(frozen=True)
class GradientXInput(Propagation):
    """Gradient × input: the first-order guess at what each unit contributes."""

    name: ClassVar[str] = "gradient_x_input"
    paper: ClassVar[str] = "Shrikumar et al. 2017"

    def table(self) -> Table:
        return TABLES["plain"]


@dataclass(frozen=True)
class LrpAh(Propagation):
    """Gradient × input with attention weights held constant (AH rule)."""

    name: ClassVar[str] = "lrp_ah"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["ah"]


@dataclass(frozen=True)
class LrpAhLn(Propagation):
    """Gradient × input with attention weights and norm scales held constant (AH and LN rules)."""

    name: ClassVar[str] = "lrp_ah_ln"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["ah_ln"]


@dataclass(frozen=True)
class Lrp(Propagation):
    """Conservative propagation: AH and LN rules, secant activations, frozen gates; it adds up."""

    name: ClassVar[str] = "lrp"
    paper: ClassVar[str] = "Ali et al. 2022, closed"
    gate: Literal["frozen", "shared"] = "frozen"

    def table(self) -> Table:
        return TABLES["conservative" if self.gate == "frozen" else "conservative_shared"]


@dataclass(frozen=True)
class AttnLrp(Propagation):
    """AttnLRP: relevance through the softmax as well, products shared."""

    name: ClassVar[str] = "attn_lrp"
    paper: ClassVar[str] = "Achtibat et al. 2024"
    needs: ClassVar[str | None] = "attention"

    def table(self) -> Table:
        return TABLES["attn_lrp"]
