"""Where relevance is lost between output and input: after each block, and at every norm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from wherefrom.core.runner import Batch, Case, ModelRunner
from wherefrom.core.scope import Hooks, Scope, restores_state
from wherefrom.core.target import Target
from wherefrom.errors import ModelError
from wherefrom.methods.forward_graph import layer_of
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import GradientXInput, Lrp, LrpAhLn, Propagation
from wherefrom.studies.base import Record, Study, StudySamples, TableRows
from wherefrom.tracing.catalogue import depends_on_input
from wherefrom.tracing.tracer import Table

METHODS: tuple[Propagation, ...] = (Lrp(), LrpAhLn(), GradientXInput())


@dataclass
class ActivationRecorder:
    """Records the activations of the blocks and norms during one forward pass.

    A block is a module with the first number in its name (`encoder.layer.3`) that outputs a row
    for each position. A norm is a module with "norm" in its class name whose output has the shape
    of its input.
    """

    names: dict[int, str]  # of modules, by id
    blocks: dict[str, Tensor] = field(default_factory=dict)  # outputs
    # name, input, output and bias
    norms: list[tuple[str, Tensor, Tensor, Tensor | None]] = field(default_factory=list)
    _entered: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module) -> ActivationRecorder:
        """A recorder for the modules of a model."""
        return cls({id(module): name for name, module in model.named_modules()})

    def open(self) -> Scope:
        """Watches every module that runs in this thread; removes its hooks at the end."""
        thread = threading.get_ident()

        def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != thread or not self._is_norm(module, args):
                return None
            x = args[0].view_as(args[0])  # a residual around the norm does not use this view
            self._entered.append(x)
            return (x, *args[1:])

        def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if threading.get_ident() != thread:
                return
            out = rest[-1]
            if self._is_norm(module, args):
                self._add_norm(module, self._entered.pop(), out)
            name = self.names.get(id(module), "")
            first = out[0] if isinstance(out, (tuple, list)) and out else out
            first = getattr(first, "last_hidden_state", first)
            numbered = name.rpartition(".")[2].isdigit() and layer_of(name) == name
            if (
                numbered
                and isinstance(first, Tensor)
                and depends_on_input(first)
                and first.ndim == 3
            ):
                self.blocks[name] = first

        return Scope(hooks=Hooks(before, after))

    def _is_norm(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        return "norm" in type(module).__name__.lower() and bool(args) and depends_on_input(args[0])

    def _add_norm(self, module: nn.Module, x: Tensor, y: Any) -> None:
        if isinstance(y, Tensor) and y.shape == x.shape:
            bias = getattr(module, "bias", None)
            name = self.names.get(id(module), "")
            self.norms.append((name, x, y, bias if isinstance(bias, Tensor) else None))


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
    with (
        recorder.open(),
        intercepted_forward(table, Case(runner, inputs, target), recompute=False) as forward,
    ):
        sources = [source.leaf for source in forward.tracer.entry_points.entered]
        around_norms = [t for _, x, y, _ in recorder.norms for t in (x, y)]
        activations = [*sources, *recorder.blocks.values(), *around_norms]
        gradients = forward.gradients(activations)
    sums = [_product_sum(g, a) for g, a in zip(gradients, activations, strict=True)]
    first_block = len(sources)
    blocks = {"input": sum(sums[:first_block])}
    blocks |= zip(recorder.blocks, sums[first_block:], strict=False)
    norms = []
    at = first_block + len(recorder.blocks)
    for name, _, y, bias in recorder.norms:
        of_bias = 0.0 if bias is None else _product_sum(gradients[at + 1], bias.expand_as(y))
        norms.append((name, sums[at], sums[at + 1] - of_bias))
        at += 2
    return RelevanceSums(float(forward.output.detach().sum()), blocks, norms)


def _product_sum(gradient: Tensor, value: Tensor) -> float:
    return float((gradient.double() * value.detach().double()).sum())


class LayerProfile(Study):
    """Σ relevance after each block and around each norm, for `lrp`, `lrp_ah_ln` and GI.

    On few samples, one by one. GI collapses at every LayerNorm (Ali et al. 2022, figure 2 and
    proposition 2); with the LN rule the sums before and after a norm are equal.
    """

    name = "layers"
    limit = 32

    def records(self, samples: StudySamples, progress: Callable[[], None]) -> list[Record]:
        records: list[Record] = []
        for i in range(len(samples)):
            inputs, target = samples.batch([i]), samples.targets([i])
            sums = {
                method.name: relevance_sums(
                    samples.runner, inputs, target, method.table_for(inputs)
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

    Quantiles, since an output near zero makes shares arbitrarily large.
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
    """By method, for each norm in its order: the median share before and after it."""
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
