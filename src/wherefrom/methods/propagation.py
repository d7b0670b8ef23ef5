"""Gradient × input through a model that a table of rules makes locally linear."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from wherefrom.core.runner import Batch, Case
from wherefrom.core.scope import restores_state
from wherefrom.errors import MethodError
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.reading import At, read_at, require_samples_as_rows
from wherefrom.methods.root import Root, Rooted
from wherefrom.rules.tables import AH, AH_LN, ATTN_LRP, PLAIN, conservative
from wherefrom.tracing.observers.entry_points import Place
from wherefrom.tracing.tracer import Table


class Propagation(Method):
    """Gradient × (input − root) under a table."""

    needs: ClassVar[str | None] = None
    closes: ClassVar[bool] = False  # whether its ledger must add up
    at: At

    @abstractmethod
    def table(self) -> Table:
        """The table of this method."""

    def table_for(self, inputs: Batch) -> Table:
        """The table for inputs of this kind, with "auto" settings resolved."""
        method = self.resolved(inputs)
        assert isinstance(method, Propagation)
        return method.table()

    def rooted(self) -> Rooted | None:
        """The root of this method, if it has one."""
        root: Root = getattr(self, "root", None)
        return None if root is None else Rooted(root)

    def scores(self, case: Case) -> Scores:
        if not self.closes:
            require_samples_as_rows(case)
        return self._forward_graph(case).scores(case.target)

    @restores_state
    def graph(self, case: Case) -> ForwardGraph | None:
        with self.naming_memory(case):
            return self._forward_graph(case)

    def _forward_graph(self, case: Case, rooted: Rooted | None = None) -> ForwardGraph:
        method = self.resolved(case.batch)
        assert isinstance(method, Propagation)
        rooted = rooted or method.rooted()

        def run(place: Place) -> ForwardGraph:
            return ForwardGraph.of(
                method.table(),
                case,
                needs=self.needs,
                closes=self.closes,
                at=place,
                label=self.label,
                rooted=rooted,
            )

        return read_at(self.at, case, run)


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

    def resolved(self, inputs: Batch) -> Lrp:
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
