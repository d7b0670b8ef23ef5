"""One pass of the model under a table: what every method but the random one stands on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Target
from wherefrom.core.torch_internals import without_function_modes
from wherefrom.errors import ModelError, NoBlock, NothingIntercepted, use_method
from wherefrom.rules.needed_rows import NeededRows
from wherefrom.tracing.call_mode import describe
from wherefrom.tracing.observers.attention_maps import Maps
from wherefrom.tracing.observers.checkpointing import SavedTensors
from wherefrom.tracing.observers.entry_points import Change, EntryPoints, Place
from wherefrom.tracing.observers.gradient_breaks import gradient_break_of
from wherefrom.tracing.observers.output_rows import Projection
from wherefrom.tracing.precision import Float64
from wherefrom.tracing.root_activations import RootActivations
from wherefrom.tracing.tags import like
from wherefrom.tracing.tracer import Table, Tracer

At = Literal["auto", "first_block", "embeddings"]
"""Where a method reads the input: as the state that enters the first block, or as it enters.

"auto" is the block for tokens and nodes, and the pixels of an image; where a model has no block
whose rows are the units, it is where the input enters.
"""
Result = TypeVar("Result")
_CHECKPOINTED = (
    "{} calls torch.utils.checkpoint, which runs parts of it a second time in the backward pass. "
    "Switch that off, or call it only where self.training is true."
)


def read_at(at: At, inputs: Batch, run: Callable[[Place], Result]) -> Result:
    """What `run` gives at the place that `at` means for these inputs."""
    if at != "auto":
        return run(at)
    if inputs.layout is not None:
        return run("embeddings")
    try:
        return run("first_block")
    except NoBlock:
        return run("embeddings")


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass that has been run, its mode still open for the backward pass."""

    tracer: Tracer
    runner: ModelRunner
    logits: Tensor
    output: Tensor  # (B,)
    paths: list[tuple[int, ...]] | None = None  # from where each field enters to its first block

    def gradients(
        self, tensors: Sequence[Tensor], retain: bool = False, seed: Tensor | None = None
    ) -> list[Tensor]:
        """∂ output / ∂ each tensor; zero where the output does not depend on it.

        With `retain` the graph is kept for a further backward pass. `seed` has a weight for each
        of the outputs; None: all one.
        """
        if not self.output.requires_grad:  # a pass without gradients
            return [torch.zeros_like(tensor) for tensor in tensors]
        with without_function_modes():  # no call of the model
            # with a seed, torch imports sympy
            total = self.output.sum() if seed is None else self.output
        try:
            gradients = torch.autograd.grad(
                total, list(tensors), seed, retain_graph=retain, allow_unused=True
            )
        except RuntimeError as error:
            if "checkpoint" in str(error):
                raise ModelError(_CHECKPOINTED.format(self.runner.name)) from error
            raise
        return [
            torch.zeros_like(tensor) if gradient is None else gradient
            for gradient, tensor in zip(gradients, tensors, strict=True)
        ]

    def at_sources(self, retain: bool = False, seed: Tensor | None = None) -> list[Tensor]:
        """∂ output / ∂ each embedded input, (B, T, D) each."""
        sources, batch = self.tracer.sources.entered, self.tracer.sources.batch
        leaves = [source.leaf for source in sources]
        known = set(map(id, self.tracer.sources.leaves))
        # constants that the model itself wants a gradient for
        own = [
            (leaf, where)
            for leaf, where in self.tracer.leaves
            if leaf.is_leaf and id(leaf) not in known  # a Function's result was one for a while
        ]
        leaves += [leaf for leaf, _ in own]
        gradients = self.gradients(leaves, retain, seed)
        for (leaf, where), gradient in zip(own, gradients[len(sources) :], strict=True):
            self.tracer.ledger.enter(leaf, gradient, where)
        gradients = gradients[: len(sources)]
        return [s.by_sample(g, batch) for s, g in zip(sources, gradients, strict=True)]

    def need(self, kind: str) -> None:
        """Refuses a model in which no call of this kind was seen."""
        if not self.tracer.touched[kind]:
            raise NothingIntercepted(
                f"no {kind} call was seen in {type(self.runner.model).__name__} (saw "
                f"{describe(self.tracer.seen)}). This method needs {kind}.",
                **use_method("lrp", "integrated_gradients", verb="Try"),
            )


@contextmanager
def intercepted_forward(
    table: Table,
    runner: ModelRunner,
    inputs: Batch,
    target: Target,
    *,
    at: Place = "embeddings",
    change: Change | None = None,
    paths: Sequence[tuple[int, ...]] | None = None,
    maps: Maps | None = None,
    root_activations: RootActivations | None = None,
    ledger: bool = False,
    gradients: bool = True,
    mode: type[Tracer] = Tracer,
    float64: bool = False,
    recompute: bool = True,
    narrow: bool = False,
) -> Iterator[ForwardPass]:
    """Runs the model under the table and keeps the mode open for the backward pass.

    `at` says where the input is read; `change` replaces what enters the model, or, with the
    `paths` that a pass without a change took (`ForwardPass.paths`), what enters the first block.
    `root_activations` link a pass at the root with one at the input. `float64` makes the pass in
    float64, whatever the model's precision. `recompute` lets blocks run a second time in the
    backward pass where memory is short; maps, tapes and other modes need them as they were.
    `narrow` leaves rows out that nothing reads; it raises `RowsRead` where one is read after all.
    """
    with runner.evaluating():  # a leaf of the caller's inference mode would carry no gradient
        # tensors of our own to tag and to take gradients at: the user's stay as they are
        tensors = {name: tensor.detach().clone() for name, tensor in inputs.tensors.items()}
        sources = EntryPoints([tensors[name] for name in inputs.fields], change, at, paths)
        for number, name in enumerate(inputs.fields):
            if tensors[name].is_floating_point():
                entered = sources.enter(tensors[name], sources.span_of(number))
                tensors[name] = like(inputs.whole(name, entered), entered)
                sources.begin(tensors[name], sources.span_of(number))
    projection = None
    if target.position is not None and not runner.keeps_rows:
        projection = Projection(runner.model, target.position, inputs.places)
    saved = SavedTensors(
        runner.model,
        runner.allowed_memory,
        runner.device,
        recompute=recompute and maps is None and root_activations is None and mode is Tracer,
        alone=len(inputs) == 1,
    )
    with (
        runner.evaluating(gradients=gradients),
        mode(
            table,
            sources,
            model=runner.model,
            ledger=ledger,
            maps=maps,
            root_activations=root_activations,
            projection=projection,
            saved=saved,
            rows=NeededRows(runner.model, target.position, runner.many) if narrow else None,
        ) as tracer,
    ):
        with Float64() if float64 else Scope(), saved.forward_pass():
            logits = runner.run(tensors, target.position)
        if projection is not None:
            projection.learn(logits)
        if tracer.rows is not None:
            tracer.rows.end(logits)
        if not sources.entered:
            raise NothingIntercepted(
                f"found no embedding lookup of the input in {runner.name} "
                f"(saw {describe(tracer.seen)}). Units are found where the model embeds its ids: "
                "give it the ids of a text, or a float tensor with a row for each unit."
            )
        block_paths = sources.read_at_block() if at == "first_block" else None
        with without_function_modes():  # choosing a logit is no call of the model
            output = target(logits)
        if gradients and (not output.requires_grad or gradient_break_of(logits) is not None):
            raise _disconnected(runner, logits)
        yield ForwardPass(tracer, runner, logits, output, block_paths)


def _disconnected(runner: ModelRunner, logits: Tensor) -> ModelError:
    """The error of an output that does not depend on the input through the graph."""
    cut = gradient_break_of(logits)
    if cut is None:
        return ModelError(
            f"the output of {runner.name} does not depend on the input through torch's graph: "
            "all scores would be zero.",
            **use_method("occlusion", verb="Check its forward, or use"),
        )
    remedy = (
        "Use a method without that rule"
        if cut.by_rule
        else "Let gradients pass there (weights may stay frozen with requires_grad_(False))"
    )
    return ModelError(
        f"the gradient of {runner.name} ends {cut}: all scores would be zero.",
        **use_method("occlusion", verb=f"{remedy}, or use"),
    )


@restores_state
def run(runner: ModelRunner, inputs: Batch, positions: Tensor | None = None) -> Tensor:
    """The model's logits, nothing intercepted; at these positions alone if it can do so."""
    with runner.evaluating(gradients=False):
        return runner.run(inputs.model_tensors(), positions)
