"""Relevance between output and input: after each block, around each norm, and by unit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.scope import Hooks, Scope, restores_state
from wherefrom.core.target import Case, Target
from wherefrom.errors import ModelError
from wherefrom.methods.forward_graph import layer_of
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import GradientXInput, Lrp, LrpAhLn, Propagation
from wherefrom.studies import Record, Study, StudySamples, TableRows
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.observers.entry_points import stream_of
from wherefrom.tracing.tags import like
from wherefrom.tracing.tracer import Rule, Table, Tracer

METHODS: tuple[Propagation, ...] = (Lrp(), LrpAhLn(), GradientXInput())
_NORMS = (
    Kind.LAYER_NORM, Kind.RMS_NORM, Kind.GROUP_NORM, Kind.INSTANCE_NORM, Kind.NORMALIZE,
)  # fmt: skip


@dataclass(frozen=True)
class NormCall:
    """The input and output of a norm; `bias` is included in `y`."""

    name: str  # of its module
    x: Tensor
    y: Tensor
    bias: Tensor | None


@dataclass
class _Running:
    """A running module, with its input if it may be a norm written in primitive calls."""

    x: Tensor | None = None
    has_root: bool = False


@dataclass
class ActivationRecorder:
    """Records the activations of the blocks and norms during one forward pass.

    A block is a module whose name ends at its first number (`encoder.layer.3`) and that outputs a
    row for each position. A norm is a call of one of torch's norms, or a module without submodules
    and matrices that takes a root of its input and keeps its shape.
    """

    names: dict[int, str]  # of modules, by id
    blocks: dict[str, Tensor] = field(default_factory=dict)  # outputs
    norms: list[NormCall] = field(default_factory=list)
    _running: list[_Running] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module) -> ActivationRecorder:
        """A recorder for the modules of a model."""
        return cls({id(module): name for name, module in model.named_modules()})

    def open(self) -> Scope:
        """Hooks every module that runs in this thread, until the scope ends."""
        thread = threading.get_ident()

        def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != thread:
                return None
            running = _Running()
            self._running.append(running)
            if not _may_be_norm(module) or not args or not depends_on_input(args[0]):
                return None
            running.x = args[0].view_as(
                args[0]
            )  # a view, to distinguish it from a residual around the norm
            return (running.x, *args[1:])

        def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if threading.get_ident() != thread:
                return
            out = rest[-1]
            name = self.names.get(id(module), "")
            running = self._running.pop()
            x = running.x
            is_norm = running.has_root and isinstance(out, Tensor)
            if is_norm and x is not None and out.shape == x.shape:
                bias = getattr(module, "bias", None)
                bias = bias if isinstance(bias, Tensor) else None
                self.norms.append(NormCall(name, x, out, bias))
            first = out[0] if isinstance(out, (tuple, list)) and out else out
            first = getattr(first, "last_hidden_state", first)
            is_block = name.rpartition(".")[2].isdigit() and layer_of(name) == name
            if not (is_block and isinstance(first, Tensor) and depends_on_input(first)):
                return
            if first.ndim == 3:
                self.blocks[name] = first

        return Scope(hooks=Hooks(before, after))

    def watching(self, table: Table) -> Table:
        """The table, with rules that also record the norms."""
        rules = dict(table)
        rules |= {kind: self._norm_rule(table.get(kind)) for kind in _NORMS}
        rules |= {kind: self._root_rule(table.get(kind)) for kind in (Kind.ROOT, Kind.POWER)}
        return rules

    def _norm_rule(self, rule: Rule | None) -> Rule:
        def norm(tracer: Tracer, call: TorchCall) -> Any:
            x, bias = call["input"], call.get("bias")
            if not depends_on_input(x):
                return call.run() if rule is None else rule(tracer, call)
            x = like(x.view_as(x), x)  # a view, to distinguish it from a residual around the norm
            call = call.with_(input=x)
            y = call.run() if rule is None else rule(tracer, call)
            if bias is not None and call.kind is not Kind.LAYER_NORM:  # per channel
                bias = bias.reshape(-1, *(1,) * (x.ndim - 2))
            self.norms.append(NormCall(tracer.where, x, y, bias))
            return y

        return norm

    def _root_rule(self, rule: Rule | None) -> Rule:
        def root(tracer: Tracer, call: TorchCall) -> Any:
            is_root = call.kind is Kind.ROOT or call["exponent"] in (0.5, -0.5)
            if is_root and depends_on_input(call.args[0]) and self._running:
                self._running[-1].has_root = True
            return call.run() if rule is None else rule(tracer, call)

        return root


def _may_be_norm(module: nn.Module) -> bool:
    is_leaf = next(module.children(), None) is None
    return is_leaf and all(p.ndim < 2 for p in module.parameters(recurse=False))


@dataclass(frozen=True)
class RelevanceSums:
    """Σ gradient × activation of one sample, from the output down to the input."""

    output: float
    blocks: dict[str, float]  # at the input, and at the output of each block
    norms: list[tuple[str, float, float]]  # name, Σ at its input, Σ at its output without its bias


@restores_state
def relevance_sums(
    runner: ModelRunner, inputs: Batch, target: Target, table: Table
) -> RelevanceSums:
    """Σ relevance of one sample at each block and norm, under the rules of a table."""
    recorder = ActivationRecorder.of(runner.model)
    rules = recorder.watching(table)
    with (
        recorder.open(),
        intercepted_forward(rules, Case(runner, inputs, target), recompute=False) as forward,
    ):
        sources = [source.leaf for source in forward.tracer.entry_points.entered]
        around_norms = [tensor for norm in recorder.norms for tensor in (norm.x, norm.y)]
        activations = [*sources, *recorder.blocks.values(), *around_norms]
        gradients = forward.gradients(activations)
    sums = [_product_sum(g, a) for g, a in zip(gradients, activations, strict=True)]
    first_norm = len(sources) + len(recorder.blocks)
    blocks = {"input": sum(sums[: len(sources)])}
    blocks |= zip(recorder.blocks, sums[len(sources) : first_norm], strict=True)
    norms = []
    for i, norm in enumerate(recorder.norms):
        before, after = first_norm + 2 * i, first_norm + 2 * i + 1
        of_bias = 0.0
        if norm.bias is not None:
            of_bias = _product_sum(gradients[after], norm.bias.expand_as(norm.y))
        norms.append((norm.name, sums[before], sums[after] - of_bias))
    return RelevanceSums(float(forward.output.detach().sum()), blocks, norms)


def _product_sum(gradient: Tensor, value: Tensor) -> float:
    return float((gradient.double() * value.detach().double()).sum())


@dataclass(frozen=True)
class UnitProfile:
    """Σ gradient × activation of one sample, for each unit after each block.

    `others` is the relevance at positions without a unit, such as a class token that the model
    prepends.
    """

    output: float
    units: dict[str, NDArray[np.float64]]  # each (units,)
    others: dict[str, float]


@restores_state
def unit_profile(runner: ModelRunner, inputs: Batch, target: Target, table: Table) -> UnitProfile:
    """Relevance of one sample by unit and block, under the rules of a table."""
    recorder = ActivationRecorder.of(runner.model)
    with recorder.open(), intercepted_forward(table, Case(runner, inputs, target)) as forward:
        gradients = forward.gradients(list(recorder.blocks.values()))
    sources = forward.tracer.entry_points
    units: dict[str, NDArray[np.float64]] = {}
    others: dict[str, float] = {}
    for (name, value), gradient in zip(recorder.blocks.items(), gradients, strict=True):
        rows = (gradient.double() * value.detach().double()).sum(-1).cpu().numpy()
        rows = rows[0] if len(rows) == 1 else rows[:, 0]  # some models have the sequence axis first
        span = sources.span_in(stream_of(value)) or sources.span_in(0)
        if span is None or len(rows) < span.shift + span.width:
            continue
        row = np.zeros(sources.units)
        row[span.start : span.start + span.width] = rows[span.shift : span.shift + span.width]
        units[name] = row
        others[name] = float(rows.sum() - row.sum())
    if not units:
        raise ModelError(f"{runner.name} has no numbered blocks with a row for each position.")
    return UnitProfile(float(forward.output.detach().sum()), units, others)


class LayerProfile(Study):
    """Σ relevance after each block and around each norm, for `lrp`, `lrp_ah_ln` and GI.

    Runs on few samples, one at a time. GI collapses at every LayerNorm (Ali et al. 2022,
    figure 2 and proposition 2); with the LN rule the sums before and after a norm are equal.
    """

    name = "layers"
    limit = 32

    def records(self, samples: StudySamples, progress: Callable[[], None]) -> list[Record]:
        records: list[Record] = []
        for i in range(len(samples)):
            inputs, target = samples.batch([i]), samples.targets([i])
            sums = {
                method.name: relevance_sums(
                    samples.runner, inputs, target, method.resolved(inputs).table()
                )
                for method in METHODS
            }
            if any(len(s.blocks) < 2 and not s.norms for s in sums.values()):
                raise ModelError(
                    f"{samples.runner.name} has neither numbered blocks nor norms to record."
                )
            records.append(
                {
                    "output": sums["lrp"].output,
                    "blocks": {method: s.blocks for method, s in sums.items()},
                    "norms": {method: list(map(list, s.norms)) for method, s in sums.items()},
                }
            )
            progress()
        return records

    def summary(self, records: Sequence[Record]) -> Record:
        return {
            "samples": len(records),
            "blocks": block_shares(records),
            "norms": norm_shares(records),
        }

    def tables(self, records: Sequence[Record]) -> dict[str, TableRows]:
        return {
            "layers": [
                {"method": method, "block": block, **shares}
                for method, blocks in block_shares(records).items()
                for block, shares in blocks.items()
            ],
            "collapse": [
                {"method": method, **norm}
                for method, norms in norm_shares(records).items()
                for norm in norms
            ],
        }


def block_shares(records: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """By method and block: Σ relevance as a share of the output, median and quartiles.

    Not means, since an output near zero makes shares arbitrarily large.
    """
    table: dict[str, dict[str, dict[str, float]]] = {}
    for method in records[0]["blocks"] if records else ():
        sums = [record["blocks"][method] for record in records]
        for block in (name for name in sums[0] if all(name in s for s in sums)):
            shares = _shares(records, [s[block] for s in sums])
            low, median, high = np.quantile(shares, [0.25, 0.5, 0.75]).tolist()
            table.setdefault(method, {})[block] = {"share": median, "low": low, "high": high}
    return table


def norm_shares(records: Sequence[Record]) -> dict[str, TableRows]:
    """By method, for each norm in order: the median share before and after it."""
    table: dict[str, TableRows] = {}
    for method in records[0]["norms"] if records else ():
        norms = [record["norms"][method] for record in records]
        for i in range(min(map(len, norms))):
            table.setdefault(method, []).append(
                {
                    "norm": norms[0][i][0],
                    "before": float(np.median(_shares(records, [n[i][1] for n in norms]))),
                    "after": float(np.median(_shares(records, [n[i][2] for n in norms]))),
                }
            )
    return table


def _shares(records: Sequence[Record], sums: Sequence[float]) -> Any:
    outputs = np.array([record["output"] for record in records])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.array(sums) / outputs
    return shares[np.isfinite(shares)] if np.isfinite(shares).any() else np.zeros(1)
