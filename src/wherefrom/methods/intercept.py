"""One pass of the model under a table: what every method but the control stands on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from wherefrom.errors import NothingIntercepted
from wherefrom.rules.calls import set_stream, stream_of
from wherefrom.rules.maps import Maps
from wherefrom.rules.mode import LocallyLinear, Table, describe
from wherefrom.rules.sources import Change, Sources
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target


class MixedRows(Exception):
    """In this model a row does not belong to one sample: samples are to be run alone."""


@dataclass(frozen=True)
class Pass:
    """A forward pass that has been run, its mode still open."""

    view: LocallyLinear
    subject: Subject
    logits: Tensor
    output: Tensor  # (B,)

    def gradients(self, of: Sequence[Tensor]) -> list[Tensor]:
        """∂ output / ∂ each tensor; zero where the output does not depend on it."""
        if not self.output.requires_grad:
            return [torch.zeros_like(each) for each in of]
        ones = torch.ones_like(self.output)
        found = torch.autograd.grad(self.output, list(of), ones, allow_unused=True)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, of, strict=True)]

    def at_sources(self) -> list[Tensor]:
        """∂ output / ∂ each embedded input, (B, T, D) each."""
        found = self.view.sources.found
        gradients = self.gradients([source.leaf for source in found])
        batch = len(self.output)
        return [s.by_sample(g, batch) for s, g in zip(found, gradients, strict=True)]

    def need(self, kind: str) -> None:
        """Refuses a model in which no call of this kind was seen."""
        if not self.view.touched[kind]:
            raise NothingIntercepted(
                f"no {kind} call was seen in {type(self.subject.model).__name__} "
                f"(saw {describe(self.view.seen)}). This method needs {kind}; "
                'try method="lrp" or "integrated_gradients".'
            )


@contextmanager
def intercepted_forward(
    table: Table,
    subject: Subject,
    inputs: Inputs,
    target: Target,
    *,
    change: Change | None = None,
    maps: Maps | None = None,
    ledger: bool = False,
    gradients: bool = True,
) -> Iterator[Pass]:
    """Runs the model under the table and keeps the mode open for the backward pass."""
    # tensors of our own to mark and to take gradients at: the user's stay as they are
    with torch.inference_mode(False):
        tensors = {name: tensor.detach().clone() for name, tensor in inputs.tensors.items()}
    sources = Sources([tensors[name] for name in inputs.fields], change)
    start = 0
    with subject.evaluating():  # a leaf of the caller's inference mode would carry no gradient
        for name in inputs.fields:
            width = tensors[name].shape[1]
            if tensors[name].is_floating_point():
                entered = sources.enter(tensors[name], start=start)
                tensors[name] = set_stream(inputs.whole(name, entered), stream_of(entered) or 0)
            start += width
    with (
        subject.evaluating(),
        torch.set_grad_enabled(gradients),
        LocallyLinear(table, sources, model=subject.model, ledger=ledger, maps=maps) as view,
    ):
        logits = subject.run(tensors)
        if not sources.found:
            raise NothingIntercepted(
                f"{subject.name} looked its input up nowhere (saw {describe(view.seen)}). "
                "Units are found where the model embeds its ids; give it the ids of a text, or "
                "a float tensor with a row for each unit."
            )
        with torch._C.DisableTorchFunction():  # what is asked of the logits is no call of the model
            output = target(logits)
        yield Pass(view, subject, logits, output)


def run(subject: Subject, inputs: Inputs) -> Tensor:
    """The model's logits, with nothing looked at."""
    with subject.evaluating(), torch.no_grad():
        return subject.run(inputs.model_tensors())
