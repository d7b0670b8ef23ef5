"""Where relevance is lost on its way down: through the blocks, and at every norm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from wherefrom.errors import ModelError
from wherefrom.methods.intercept import intercepted_forward
from wherefrom.methods.propagation import layer_of
from wherefrom.rules.catalogue import live
from wherefrom.rules.mode import Table
from wherefrom.rules.tables import AH_LN, CONSERVATIVE, PLAIN
from wherefrom.studies.base import Group, Record, Rows, Study
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

TABLES: dict[str, Table] = {"lrp": CONSERVATIVE, "lrp_ah_ln": AH_LN, "gradient_x_input": PLAIN}


@dataclass
class Watch:
    """Keeps what goes through the blocks and norms of one forward pass.

    A block is a module with the first number in its name (`encoder.layer.3`) that gives a row for
    each place. A norm is a module named so that gives, for one tensor, another of its shape.
    """

    names: dict[int, str]  # of modules, by id
    blocks: dict[str, Tensor] = field(default_factory=dict)  # outputs
    norms: list[tuple[str, Tensor, Tensor, Tensor | None]] = field(default_factory=list)
    _entered: list[Tensor] = field(default_factory=list)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Sees every module of this thread until it is closed; leaves nothing behind."""
        thread = threading.get_ident()

        def before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != thread or not self._is_norm(module, args):
                return None
            x = args[0].view_as(args[0])  # what goes around the norm is not its input's
            self._entered.append(x)
            return (x, *args[1:])

        def after(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
            if threading.get_ident() != thread:
                return
            if self._is_norm(module, args):
                self._note(module, self._entered.pop(), out)
            name = self.names.get(id(module), "")
            first = out[0] if isinstance(out, (tuple, list)) and out else out
            first = getattr(first, "last_hidden_state", first)
            numbered = name.rpartition(".")[2].isdigit() and layer_of(name) == name
            if numbered and isinstance(first, Tensor) and live(first) and first.ndim == 3:
                self.blocks[name] = first

        hooks = (
            register_module_forward_pre_hook(before),  # type: ignore[arg-type]
            register_module_forward_hook(after),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _is_norm(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        return "norm" in type(module).__name__.lower() and bool(args) and live(args[0])

    def _note(self, module: nn.Module, x: Tensor, y: Any) -> None:
        if isinstance(y, Tensor) and y.shape == x.shape:
            bias = getattr(module, "bias", None)
            name = self.names.get(id(module), "")
            self.norms.append((name, x, y, bias if isinstance(bias, Tensor) else None))


@dataclass(frozen=True)
class Course:
    """Σ gradient × activation of one sample on its way from the output down to the input."""

    output: float
    blocks: dict[str, float]  # at the input, and at the output of each block
    norms: list[tuple[str, float, float]]  # name, Σ at its input, Σ at its output without its bias


def course(subject: Subject, inputs: Inputs, target: Target, table: Table) -> Course:
    """Follows the relevance of one sample under a table."""
    watch = Watch({id(part): name for name, part in subject.model.named_modules()})
    with watch.open(), intercepted_forward(table, subject, inputs, target) as forward:
        sources = [source.leaf for source in forward.view.sources.entered]
        through = [t for _, x, y, _ in watch.norms for t in (x, y)]
        wanted = [*sources, *watch.blocks.values(), *through]
        gradients = forward.gradients(wanted)
    sums = [_sum(g, t) for g, t in zip(gradients, wanted, strict=True)]
    first = len(sources)
    blocks = {"input": sum(sums[:first])}
    blocks |= zip(watch.blocks, sums[first:], strict=False)
    norms = []
    at = first + len(watch.blocks)
    for name, _, _, bias in watch.norms:
        added = 0.0 if bias is None else _sum(gradients[at + 1], bias.expand_as(gradients[at + 1]))
        norms.append((name, sums[at], sums[at + 1] - added))
        at += 2
    return Course(float(forward.output.detach().sum()), blocks, norms)


def _sum(gradient: Tensor, value: Tensor) -> float:
    return float((gradient.double() * value.detach().double()).sum())


class Layers(Study):
    """Σ relevance after each block and around each norm, for `lrp`, `lrp_ah_ln` and GI.

    On few samples, one by one. GI collapses at every LayerNorm (Ali et al. 2022, figure 2 and
    proposition 2); with the LN rule what comes out of a norm is what went in.
    """

    name = "layers"
    limit = 32

    def records(self, group: Group, tick: Callable[[], None]) -> list[Record]:
        found: list[Record] = []
        for i in range(len(group)):
            inputs, target = group.make([i]), group.asked([i])
            courses = {
                name: course(group.subject, inputs, target, table) for name, table in TABLES.items()
            }
            if any(len(each.blocks) < 2 and not each.norms for each in courses.values()):
                raise ModelError(
                    f"{group.subject.name} has neither numbered blocks nor norms to look at."
                )
            found.append(
                {
                    "output": courses["lrp"].output,
                    "blocks": {name: each.blocks for name, each in courses.items()},
                    "norms": {name: list(map(list, c.norms)) for name, c in courses.items()},
                }
            )
            tick()
        return found

    def summary(self, records: Sequence[Record]) -> Record:
        return {"samples": len(records), "blocks": profile(records), "norms": collapse(records)}

    def tables(self, records: Sequence[Record]) -> dict[str, Rows]:
        return {
            "layers": [
                {"method": method, "block": block, **shares}
                for method, blocks in profile(records).items()
                for block, shares in blocks.items()
            ],
            "collapse": [
                {"method": method, **norm}
                for method, norms in collapse(records).items()
                for norm in norms
            ],
        }


def profile(records: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """By method and block: the share of the output that is there, its median and quartiles.

    Quantiles, since an output near zero makes a share of any size.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for method in records[0]["blocks"] if records else ():
        met = [record["blocks"][method] for record in records]
        for block in (name for name in met[0] if all(name in each for each in met)):
            shares = _shares(records, [each[block] for each in met])
            low, middle, high = np.quantile(shares, [0.25, 0.5, 0.75]).tolist()
            found.setdefault(method, {})[block] = {"share": middle, "low": low, "high": high}
    return found


def collapse(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """By method, for each norm in its order: the median share before and after it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for method in records[0]["norms"] if records else ():
        norms = [r["norms"][method] for r in records]
        for at in range(min(map(len, norms))):
            found.setdefault(method, []).append(
                {
                    "norm": norms[0][at][0],
                    "before": float(np.median(_shares(records, [n[at][1] for n in norms]))),
                    "after": float(np.median(_shares(records, [n[at][2] for n in norms]))),
                }
            )
    return found


def _shares(records: Sequence[Record], sums: Sequence[float]) -> Any:
    outputs = np.array([record["output"] for record in records])
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.array(sums) / outputs
    return shares[np.isfinite(shares)] if np.isfinite(shares).any() else np.zeros(1)
