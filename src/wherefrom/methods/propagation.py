"""Gradient × input through a model that a table of rules makes locally linear.

There is a table for each published variant; a method reads the input at its embeddings or as the
state that enters the first block.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, TypeVar

from torch import nn
from torch.nn import functional as F

from wherefrom.core.runner import Batch, RowsUnclear
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case
from wherefrom.errors import MethodError, NoBlock
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.forward_graph import ConservationCheck, ForwardGraph
from wherefrom.methods.root import Root, Rooted
from wherefrom.rules.activation import SECANT
from wherefrom.rules.attention import SOFTMAX
from wherefrom.rules.linear import AFFINE, NORM, NORM_BIAS
from wherefrom.rules.offsets import OFFSETS
from wherefrom.rules.product import Policy, Products
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.observers.entry_points import Place
from wherefrom.tracing.tracer import Table, Tracer

_RECORDED: Table = {**AFFINE, **NORM_BIAS, **SOFTMAX}

PLAIN: Table = {**_RECORDED, **Products().table()}
"""The true gradient."""

AH: Table = {**_RECORDED, **Products(attention="frozen").table()}
"""Attention weights are constants (Ali et al. 2022)."""

AH_LN: Table = {**AH, **NORM}
"""The scale of every norm is a constant too (Ali et al. 2022)."""


def conservative(gate: Literal["frozen", "shared"], to_weights: float = 0.0) -> Table:
    """As AH_LN, with secants for activations, and frozen or shared gates: relevance is conserved.

    The weights of an attention layer get `to_weights` of its relevance, through the softmax.
    """
    attention: Policy = "shared" if to_weights else "frozen"
    products = Products(attention, gate, to_weights)
    return {**_RECORDED, **NORM, **SECANT, **OFFSETS, **products.table()}


CONSERVATIVE: Table = conservative("frozen")
CONSERVATIVE_SHARED: Table = conservative("shared")
ATTN_LRP: Table = conservative("shared", 0.5)
"""Relevance also passes through the softmax, and gates are shared (Achtibat et al. 2024)."""


def plain_table(softplus: float | None = None) -> Table:
    """The true gradient; with `softplus` = β, that of the network with softplus instead of ReLU.

    softplus_β(x) = log(1 + exp(β x)) / β has no kink.
    """
    if softplus is None:
        return PLAIN

    def smooth_relu(tracer: Tracer, call: TorchCall) -> Any:
        if call.name != "relu":
            return call.run()
        x = call["input"]
        out = F.softplus(x.clone() if call.in_place else x, beta=softplus)
        return x.copy_(out) if call.in_place else out

    return {**PLAIN, Kind.HOMOGENEOUS: smooth_relu}


At = Literal["auto", "first_block", "embeddings"]
"""Where a method reads the input: at its embeddings, or as the state that enters the first block.

"auto" is the first block for tokens and nodes if its rows are the units, else the embeddings; for
images it is the pixels.
"""
Result = TypeVar("Result")


def read_at(at: At, case: Case, run: Callable[[Case, Place], Result]) -> Result:
    """The result of `run` for the place that `at` means for these inputs."""
    if at == "embeddings" or (at == "auto" and case.batch.layout is not None):
        return run(case, "embeddings")
    require_samples_as_rows(case)
    try:
        return run(case, "first_block")
    except NoBlock:
        if at != "auto":
            raise
        return run(case, "embeddings")


_SAMPLES_ARE_ROWS: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def samples_are_rows(case: Case) -> bool:
    """Whether the model's tensors have the samples of a batch on the first axis, in order.

    They do if the ledger of `lrp` adds up for each of two samples. Methods without such a ledger
    check this once per model.
    """
    model = case.runner.model
    if model not in _SAMPLES_ARE_ROWS:
        two = case.take([0, 1])
        try:
            graph = ForwardGraph.of(CONSERVATIVE, two)
            scores, output = graph.scores(two.target), two.target(graph.logits).double().cpu()
            ConservationCheck(CONSERVATIVE, two, "lrp").messages(scores, output, graph.forward)
            _SAMPLES_ARE_ROWS[model] = True
        except RowsUnclear:
            _SAMPLES_ARE_ROWS[model] = False
    return _SAMPLES_ARE_ROWS[model]


def require_samples_as_rows(case: Case) -> None:
    """Raises `RowsUnclear` for a batch of a model that mixes the rows of its samples."""
    if len(case.batch) > 1 and not samples_are_rows(case):
        raise RowsUnclear("it is not clear which sample each row belongs to")


class Propagation(Method):
    """Gradient × (input − root) under a table."""

    needs: ClassVar[str | None] = None
    closes: ClassVar[bool] = False  # whether its ledger must add up
    at: At

    def resolved(self, inputs: Batch) -> Self:
        return self

    @abstractmethod
    def table(self) -> Table:
        """The table of this method."""

    def rooted(self) -> Rooted | None:
        """The root of this method, if it has one."""
        root: Root = getattr(self, "root", None)
        return None if root is None else Rooted(root)

    def scores(self, case: Case) -> Scores:
        if not self.closes:
            require_samples_as_rows(case)
        return read_at(self.at, case, self._forward_graph).scores(case.target)

    @restores_state
    def graph(self, case: Case) -> ForwardGraph | None:
        with self.naming_memory(case):
            return read_at(self.at, case, self._forward_graph)

    def _forward_graph(
        self, case: Case, place: Place, rooted: Rooted | None = None
    ) -> ForwardGraph:
        method = self.resolved(case.batch)
        return ForwardGraph.of(
            method.table(),
            case,
            needs=self.needs,
            closes=self.closes,
            at=place,
            label=self.label,
            rooted=rooted or method.rooted(),
        )


@dataclass(frozen=True)
class GradientXInput(Propagation):
    """Gradient × input: the first-order estimate of what each unit contributes."""

    name: ClassVar[str] = "gradient_x_input"
    paper: ClassVar[str] = "Shrikumar et al. 2017"
    at: At = "auto"
    root: Root = None

    def table(self) -> Table:
        return PLAIN


@dataclass(frozen=True)
class LrpAh(Propagation):
    """Gradient × input with attention weights held constant (AH rule)."""

    name: ClassVar[str] = "lrp_ah"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"
    at: At = "auto"

    def table(self) -> Table:
        return AH


@dataclass(frozen=True)
class LrpAhLn(Propagation):
    """Gradient × input with attention weights and norm scales held constant (AH and LN rules)."""

    name: ClassVar[str] = "lrp_ah_ln"
    paper: ClassVar[str] = "Ali et al. 2022"
    needs: ClassVar[str | None] = "attention"
    at: At = "auto"
    root: Root = None

    def table(self) -> Table:
        return AH_LN


@dataclass(frozen=True)
class Lrp(Propagation):
    """Conservative propagation: AH and LN rules, secant activations, shared gates; it adds up.

    `attention` is the share of an attention layer's relevance that its weights get: 0 is the AH
    rule, ½ that of AttnLRP. "auto" depends on the kind of input, by measured faithfulness: for
    tokens, with or without images, the AH rule and the root that their reader names; for pixels
    and nodes alone a share of ¼ and no root.
    """

    name: ClassVar[str] = "lrp"
    paper: ClassVar[str] = "Ali et al. 2022, extended so that it adds up"
    closes: ClassVar[bool] = True
    gate: Literal["frozen", "shared"] = "shared"
    attention: float | Literal["auto"] = "auto"
    at: At = "embeddings"
    root: Root = "auto"

    def __post_init__(self) -> None:
        share = self.attention
        if share != "auto" and not (isinstance(share, (int, float)) and 0 <= share <= 1):
            raise MethodError(f'attention must be "auto" or from 0 to 1, got {share!r}.')

    def resolved(self, inputs: Batch) -> Self:
        attention = self.attention
        if attention == "auto":
            numbers = all(inputs.tensors[name].is_floating_point() for name in inputs.fields)
            attention = 0.25 if numbers else 0.0
        root = inputs.missing if isinstance(self.root, str) and self.root == "auto" else self.root
        return replace(self, attention=attention, root=root)

    def table(self) -> Table:
        assert self.attention != "auto"
        return conservative(self.gate, self.attention)


@dataclass(frozen=True)
class AttnLrp(Propagation):
    """AttnLRP: relevance through the softmax as well, products shared; it adds up."""

    name: ClassVar[str] = "attn_lrp"
    paper: ClassVar[str] = "Achtibat et al. 2024"
    needs: ClassVar[str | None] = "attention"
    closes: ClassVar[bool] = True
    at: At = "embeddings"
    root: Root = None

    def table(self) -> Table:
        return ATTN_LRP
