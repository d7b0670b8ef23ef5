"""The inside of one explanation: relevance of layers, heads, neurons and experts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Explanation, Unit
from wherefrom.core.target import Case, OutputNames
from wherefrom.errors import InputError, MethodError, counted, use_method
from wherefrom.explaining.request import explanations
from wherefrom.inside.circuit import Circuit, circuit
from wherefrom.inside.component import Component
from wherefrom.inside.cuts import Crossing, Cuts, Moment, Tap
from wherefrom.inside.sites import Site
from wherefrom.methods import Method
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.propagation import Propagation
from wherefrom.rules.attention import dot_product_of, explicit_attention
from wherefrom.storage.record import Displayable
from wherefrom.storage.writing import write_text
from wherefrom.tracing.catalogue import Kind, TorchCall
from wherefrom.tracing.tags import widened
from wherefrom.tracing.tracer import RootActivations

Numbers = NDArray[np.float64]
Part = Literal["attention", "head", "mlp", "neuron", "expert"]
SCHEMA = "wherefrom/inside/1"
_STORED_NEURONS = 100  # in JSON


@dataclass(frozen=True)
class Cut:
    """All that crosses a moment: its relevance and what is added later sum to the output."""

    moment: Moment
    relevance: float
    later: float  # of constants, and of fields of the input that enter after the moment
    units: Numbers  # the part of `relevance` in rows of units

    @property
    def total(self) -> float:
        """The output, if relevance is conserved."""
        return self.relevance + self.later


class Inside(Displayable):
    """Where relevance flows within the model, for one input and one output.

    Made by `Explainer.inside`. It holds the graph of its pass, so `through`, `edges` and `neurons`
    need only backward passes.
    """

    def __init__(
        self, graph: ForwardGraph, cuts: Cuts, method: Method, output_names: OutputNames
    ) -> None:
        self._graph, self._cuts, self._method = graph, cuts, method
        self._names = output_names
        case = graph.case.resolved(graph.logits)
        self._case = case
        self._entering = _Entering(graph)
        scores = graph.scores(case.target, retain=True)
        self._entering.close()
        self._constants = {
            moment: float(total[0])
            for moment, total in graph.forward.tracer.ledger.by_moment.items()
        }
        cuts.gate.records = False
        (self.explanation,) = explanations(case, method, scores, graph.logits, output_names)

    @staticmethod
    def of(case: Case, method: Method, output_names: OutputNames) -> Inside:
        """Runs the model once forwards and once backwards."""
        method = method.resolved(case.batch)
        if not isinstance(method, Propagation) or getattr(method, "splits", False):
            raise MethodError(
                f"{method.short_label} has no relevance inside the model: that takes a method of "
                "one backward pass.",
                **use_method("lrp", "secant", "attn_lrp", "gradient_x_input"),
            )
        made: list[Cuts] = []

        def observer(root: RootActivations | None) -> Cuts:
            compares = root is not None and not root.recording
            made.append(Cuts(case.runner.model, made[-1].taps if compares else None))
            return made[-1]

        graph = ForwardGraph.of(
            method.table(), case, closes=method.closes, label=method.label,
            rooted=method.rooted(), observer=observer,
        )  # fmt: skip
        return Inside(graph, made[-1], method, output_names)

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of the input."""
        return self.explanation.units

    @property
    def output(self) -> float:
        """The explained output."""
        return self.explanation.output

    # Sums of one backward pass

    @cached_property
    def cuts(self) -> tuple[Cut, ...]:
        """The cuts through the pass, in its order."""
        return tuple(self._cut(number) for number in range(1, len(self._cuts.moments) + 1))

    def _cut(self, number: int) -> Cut:
        units, total = np.zeros(len(self.units)), 0.0
        for tap in self._taps(number):
            if tap.crossing.rows is not None:
                total += float(tap.crossing.rows.sum())
                units += self._by_unit_of(tap.crossing)
        later = self._entering.relevance[self._cuts.entered[number - 1] :]
        later += [value for moment, value in self._constants.items() if moment >= number]
        return Cut(self._cuts.moments[number - 1], total, sum(later), units)

    def _taps(self, number: int) -> list[Tap]:
        return [tap for tap in self._cuts.taps if tap.crossing.made < number <= tap.crossing.used]

    def _by_unit_of(self, crossing: Crossing) -> Numbers:
        """The relevance of rows that hold units; of heads, of their queries."""
        rows, units = crossing.rows, np.zeros(len(self.units))
        if rows is None:
            return units
        if crossing.site is not None and crossing.site.heads:
            rows = rows.reshape(crossing.site.heads, -1).sum(0)
        places = self._rows_of_units(crossing.stream, len(rows))
        for unit, row in enumerate(places or ()):
            if row is not None:
                units[unit] = float(rows[row])
        return units

    def _rows_of_units(self, stream: int | None, rows: int) -> list[int | None] | None:
        """The row of each unit in a tensor of a stream; None if its rows are not units."""
        sources, mask = self._graph.forward.tracer.entry_points, self._case.batch.mask[0]
        span = None if stream is None else sources.span_in(stream)
        if span is None:
            return None
        sizes = {span.width, sources.extent}
        if not span.shift + min(sizes) <= rows <= span.shift + max(sizes):
            return None
        return [span.row_of(int(place)) for place in mask.nonzero().flatten()]

    @staticmethod
    def _by_head(crossing: Crossing) -> Tensor | None:
        """The relevance of each head and query, (heads, queries)."""
        site = crossing.site
        if site is None or not site.heads or crossing.rows is None:
            return None
        return crossing.rows.reshape(site.heads, -1)

    @property
    def layers(self) -> Numbers:
        """Relevance of the residual stream by layer and unit, (layers + 1, units).

        Row l is what enters block l; the last row is what leaves the last block.
        """
        streams = [cut for cut in self.cuts if cut.moment.place in ("block", "end")]
        last = max((i for i, cut in enumerate(streams) if cut.moment.place == "end"), default=0)
        rows = [
            cut.units for i, cut in enumerate(streams) if cut.moment.place == "block" or i == last
        ]
        return np.array(rows).reshape(-1, len(self.units))

    def _sites(self, place: str, layer: int | None = None) -> list[tuple[Site, list[Tap]]]:
        """The sites of a place, and the uses of the tensor of each."""
        sites: dict[Site, list[Tap]] = {}
        for moment in self._cuts.moments:
            site = moment.site
            if site is not None and site.place == place and layer in (None, site.layer):
                sites[site] = []
        for tap in self._cuts.taps:
            if tap.crossing.site in sites:
                sites[tap.crossing.site].append(tap)
        return list(sites.items())

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return 1 + max((moment.layer for moment in self._cuts.moments), default=-1)

    @cached_property
    def heads(self) -> Numbers:
        """Relevance that each attention head carries, (layers, heads); NaN where there is none."""
        rows: list[list[float]] = [[] for _ in range(self.depth)]
        for site, taps in self._sites("heads"):
            if site.heads:
                parts = [t.crossing.rows for t in taps if t.crossing.rows is not None]
                by_head = [part.reshape(site.heads, -1).sum(1).cpu().numpy() for part in parts]
                rows[site.layer] += list(sum(by_head, np.zeros(site.heads)))
        return _padded(rows)

    @cached_property
    def attention(self) -> Numbers:
        """Relevance that attention carries by layer and unit, its query."""
        return self._by_layer("heads")

    @cached_property
    def mlps(self) -> Numbers:
        """Relevance that the neurons of MLPs carry, by layer and unit."""
        return self._by_layer("neurons")

    def _by_layer(self, place: str) -> Numbers:
        units = np.zeros((self.depth, len(self.units)))
        for site, taps in self._sites(place):
            for tap in taps:
                units[site.layer] += self._by_unit_of(tap.crossing)
        return units

    @cached_property
    def experts(self) -> Numbers:
        """Relevance that each expert carries, (layers, experts); NaN for those that got no row."""
        rows: list[dict[int, float]] = [{} for _ in range(self.depth)]
        for site, taps in self._sites("neurons"):
            if site.expert is not None:
                total = sum(
                    float(t.crossing.rows.sum()) for t in taps if t.crossing.rows is not None
                )
                rows[site.layer][site.expert] = rows[site.layer].get(site.expert, 0.0) + total
        most = 1 + max((max(row) for row in rows if row), default=-1)
        return np.array([[row.get(i, np.nan) for i in range(most)] for row in rows])

    def top(self, kind: Part = "head", count: int = 10) -> list[tuple[str, float]]:
        """The components of a kind that carry the most relevance by size, with their names.

        A neuron has a name if a single linear layer of its block reads neurons.
        """
        if kind not in get_args(Part):
            raise InputError(f"kind must be one of {', '.join(get_args(Part))}, got {kind!r}.")
        if count < 1:
            raise InputError(f"count must be 1 or more, got {count}.")
        parts = sorted(self._parts(kind), key=lambda part: -abs(part[1]))
        return [(str(component), value) for component, value in parts[:count]]

    def _parts(self, kind: Part) -> list[tuple[Component, float]]:
        """All components of a kind with their relevance."""
        if kind in ("head", "expert"):
            table = self.heads if kind == "head" else self.experts
            cells = [(index, float(value)) for index, value in np.ndenumerate(table)]
            return [(Component(i[0], kind, i[1]), value) for i, value in cells if value == value]
        parts: list[tuple[Component, float]] = []
        for layer in range(self.depth):
            sites = self._sites("heads" if kind == "attention" else "neurons", layer)
            crossings = [tap.crossing for _, taps in sites for tap in taps]
            if kind != "neuron":
                rows = [crossing.rows for crossing in crossings if crossing.rows is not None]
                total = sum(float(row.sum()) for row in rows)
                parts += [(Component(layer, kind), total)] if sites else []
            elif len(sites) == 1:
                features = [c.features for c in crossings if c.features is not None]
                numbers = torch.stack(features).sum(0).tolist() if features else []
                parts += [(Component(layer, kind, i), value) for i, value in enumerate(numbers)]
        return parts

    def relevance(self, component: str | Component) -> float:
        """The relevance that a component carries."""
        own = Component.parse(component)
        total = 0.0
        for tap, gradient in self._at(self._moments_of(own)):
            part = widened(gradient) * widened(tap.value) * self._mask(tap, own)
            total += float(part.sum(dtype=torch.float64))
        return total

    # Further backward passes

    def neurons(self, layer: int) -> Numbers:
        """Relevance of each row and neuron of a block, (rows, neurons), for one site of neurons."""
        sites = self._sites("neurons", layer)
        if len(sites) != 1:
            raise InputError(
                f"layer {layer} has {len(sites)} linear layers that read neurons, not one."
            )
        ((_, taps),) = sites
        parts = zip(taps, self._gradients([tap.tensor for tap in taps]), strict=True)
        products = [(widened(gradient) * widened(tap.value)).double() for tap, gradient in parts]
        total = torch.stack(products).sum(0)
        return total.reshape(-1, total.shape[-1]).cpu().numpy()

    def edges(self, layer: int) -> list[Numbers]:
        """Relevance from each key to each query through each head of a block, (Q, K).

        The sum over keys is the relevance that the head carries at the query.
        """
        if self._graph.root is not None and self._graph.root.root_activations is not None:
            raise MethodError("secant has no edges of attention.", **use_method("lrp"))
        heads: list[Numbers] = []
        for site, taps in self._sites("heads", layer):
            call = self._cuts.attended[site]
            if not site.heads or call.kind is Kind.EINSUM:
                raise MethodError(f"the heads of {site.where} are not known from their call.")
            weights, values = _weights_and_values(call)
            gradient = torch.stack(self._gradients([tap.tensor for tap in taps])).sum(0)
            through = (weights * (gradient @ values.mT)).double().cpu().numpy()
            heads += list(through.reshape(site.heads, *through.shape[-2:]))
        if not heads:
            raise InputError(f"there is no attention in layer {layer} of {self.depth}.")
        return heads

    def moved(self, layer: int) -> Numbers:
        """Relevance that the attention of a block moves from unit to unit, (from, to).

        It is the sum of `edges` over heads. The last row and column are of rows that hold no unit,
        such as an extra token; a column sums to what attention carries at its unit.
        """
        heads = self.edges(layer)
        length = len(heads[0])
        streams = {tap.crossing.stream for _, taps in self._sites("heads", layer) for tap in taps}
        rows = self._rows_of_units(next(iter(streams)), length) if len(streams) == 1 else None
        if rows is None or any(edges.shape != (length, length) for edges in heads):
            raise MethodError(f"the attention of layer {layer} is not between units of the input.")
        groups = np.zeros((length, len(self.units) + 1))
        groups[:, -1] = 1.0
        for unit, row in enumerate(rows):
            if row is not None:
                groups[row, [unit, -1]] = 1.0, 0.0
        moved: Numbers = groups.T @ np.sum(heads, 0).T @ groups
        return moved

    def through(self, *components: str | Component) -> Explanation:
        """Explains the part of the output that flows through these components only.

        Components of one layer and kind are taken together; with several of them, relevance flows
        through each in turn. The output of the explanation is the relevance of the components.
        """
        if not components:
            raise InputError("name at least one component, such as layer.5.head.3.")
        groups: dict[tuple[int, ...], list[Component]] = {}
        for component in map(Component.parse, components):
            groups.setdefault(self._moments_of(component), []).append(component)
        output, relevance = None, 0.0
        for numbers in sorted(groups, reverse=True):
            parts, relevance = [], 0.0
            for tap, gradient in self._at(numbers, output):
                mask = torch.stack([self._mask(tap, own) for own in groups[numbers]]).any(0)
                seed = gradient * mask
                relevance += float((widened(seed) * widened(tap.value)).sum(dtype=torch.float64))
                with torch.enable_grad():
                    parts.append((tap.tensor * seed).sum())
            with torch.enable_grad():
                output = torch.stack(parts).sum()
        assert output is not None
        return self._explained(output, relevance, components)

    # For circuits

    def circuit(self, share: float = 0.9) -> Circuit:
        """The smallest circuit found that carries `share` of the output, or misses it by as much.

        Each head and MLP of it takes a backward pass, at each threshold that is tried.
        """
        return circuit(self, share)

    @property
    def flow(self) -> float:
        """What is divided: the output, or for secants its difference to the reference."""
        return self.cuts[0].total if self.cuts else self.output

    @property
    def scalar(self) -> Tensor:
        """The output in the graph."""
        forward = self._graph.forward
        with forward.runner.evaluating():
            return self._case.target(forward.logits).sum()

    @property
    def taps(self) -> list[Tap]:
        """What crosses the moments of the pass."""
        return self._cuts.taps

    @property
    def sites(self) -> list[Site]:
        """The sites of the pass, in its order."""
        return [moment.site for moment in self._cuts.moments if moment.site is not None]

    def direct(
        self, output: Tensor, taps: Sequence[Tap], passing: Collection[Tap]
    ) -> tuple[list[Tensor], float, float]:
        """What flows from an output through no other component: to taps, input and constants."""
        forward, gate = self._graph.forward, self._cuts.gate
        recorder = forward.tracer.ledger
        recorder.entries = {}
        gate.closed, gate.passing = True, frozenset(tap.crossing for tap in passing)
        entering = _Entering(self._graph)
        try:
            leaves = [source.leaf for source in forward.tracer.entry_points.entered]
            gradients = self._gradients([*(tap.tensor for tap in taps), *leaves], output)
        finally:
            entering.close()
            gate.closed, gate.passing = False, frozenset()
        constants = sum(float(entry.total.sum()) for entry in recorder.entries.values())
        return gradients[: len(taps)], sum(entering.relevance), constants

    def _at(self, numbers: Sequence[int], output: Tensor | None = None) -> list[tuple[Tap, Tensor]]:
        """What crosses these moments as components, with its gradient."""
        taps = []
        for number in numbers:
            site = self._cuts.moments[number - 1].site
            taps += [tap for tap in self._taps(number) if site is None or tap.crossing.site == site]
        return list(zip(taps, self._gradients([tap.tensor for tap in taps], output), strict=True))

    def _gradients(self, tensors: list[Tensor], output: Tensor | None = None) -> list[Tensor]:
        """The gradients of the output, or of another tensor of the graph, at some tensors."""
        forward = self._graph.forward
        with forward.runner.evaluating():
            logits = forward.logits
            forward = replace(
                forward, output=self._case.target(logits) if output is None else output
            )
            return forward.gradients(tensors, retain=True)

    def _explained(
        self, output: Tensor, relevance: float, components: Sequence[str | Component]
    ) -> Explanation:
        """The explanation of a part of the output."""
        graph, recorder = self._graph, self._graph.forward.tracer.ledger
        recorder.entries = {}  # those of earlier passes
        with graph.forward.runner.evaluating():
            forward = replace(graph.forward, output=output.unsqueeze(0))
            scores = graph.scores_of(forward, forward.at_sources(retain=True))
        (explained,) = explanations(self._case, self._method, scores, graph.logits, self._names)
        assert explained.ledger is not None
        return replace(
            explained,
            output=relevance,
            probability=None,
            ledger=replace(explained.ledger, output=relevance),
            target=replace(explained.target, through=" → ".join(map(str, components))),
            warnings=self.explanation.warnings,
        )

    def _moments_of(self, component: Component) -> tuple[int, ...]:
        """The numbers of the moments at which a component is complete."""
        found = []
        for number, (place, layer, _, site) in enumerate(self._cuts.moments, 1):
            if component.kind == "stream":
                matches = place == "block" and layer == component.layer
            else:
                matches = site is not None and component.is_at(site)
            if matches:
                found.append(number)
        if not found:
            raise InputError(f"there is no {component}: {self._overview()}")
        if len(found) > 1 and component.kind in ("attention", "neuron"):
            raise InputError(
                f"{component} is at {len(found)} calls of its block: name its heads or experts."
            )
        return tuple(found)

    def _overview(self) -> str:
        heads = self.heads
        return f"the model has {self.depth} blocks, with {heads.shape[1]} heads at most."

    def _mask(self, tap: Tap, component: Component) -> Tensor:
        """Which numbers of a tap belong to a component; it broadcasts to the tap."""
        shape, site = tap.value.shape, tap.crossing.site
        if site is None:
            mask = torch.ones(shape, dtype=torch.bool, device=tap.value.device)
        else:
            mask = component.mask(site, tap.value)
        if component.unit is not None:
            size = mask[..., 0].numel() // (site.heads or 1 if site else 1)
            places = self._rows_of_units(tap.crossing.stream, size)
            row = (
                None if places is None or component.unit >= len(places) else places[component.unit]
            )
            if row is None:
                raise InputError(f"there is no {component}: its rows are not units of the input.")
            rows = torch.zeros(size, dtype=torch.bool, device=mask.device)
            rows[row] = True
            whole = rows if site is not None and site.heads else rows.reshape(shape[:-1])
            mask &= whole.unsqueeze(-1)
        return mask

    # JSON and rendering, by modules of a higher layer, which are imported when needed

    def __repr__(self) -> str:
        return f"<Inside {self.explanation!r}, {counted(self.depth, 'layer')}>"

    def __str__(self) -> str:
        return str(import_module("wherefrom.show.inside").text(self))

    def _html(self, whole_page: bool) -> str:
        return str(import_module("wherefrom.show.inside_page").render(self, whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each component with relevance, except neurons."""
        kinds: tuple[Part, ...] = ("attention", "head", "mlp", "expert")
        return [
            {"name": str(c), "layer": c.layer, "kind": c.kind, "number": c.number, "relevance": r}
            for kind in kinds
            for c, r in self._parts(kind)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; None where a layer has no such head or expert."""
        return {
            "schema": SCHEMA,
            "explanation": self.explanation.to_dict(),
            "cuts": [
                {
                    "place": cut.moment.place,
                    "layer": cut.moment.layer,
                    "module": cut.moment.where,
                    "relevance": cut.relevance,
                    "later": cut.later,
                }
                for cut in self.cuts
            ],
            "layers": self.layers.tolist(),
            "attention": self.attention.tolist(),
            "mlps": self.mlps.tolist(),
            "heads": _plain(self.heads),
            "experts": _plain(self.experts),
            "neurons": dict(self.top("neuron", _STORED_NEURONS)),  # the strongest
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The result as JSON; with `path` also written there."""
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        if path is not None:
            write_text(path, text)
        return text

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """`units` of "flow" is the number of units that are shown by name."""
        figures: Mapping[str, Callable[..., Any]]
        figures = import_module("wherefrom.show.inside_figure").drawings(self)
        return figures


class _Entering:
    """The relevance of each field of the input where it enters the model."""

    def __init__(self, graph: ForwardGraph) -> None:
        entered = graph.forward.tracer.entry_points.entered
        secants = graph.root is not None and graph.root.root_activations is not None
        self.relevance = [0.0] * len(entered)
        self._hooks = []
        for i, source in enumerate(entered):
            value = source.leaf.detach()
            if secants:
                assert graph.root is not None
                assert graph.root.leaves is not None
                value = value - graph.root.leaves[i].reshape(value.shape)
            self._hooks.append(source.leaf.register_hook(partial(self._record, i, value)))

    def _record(self, i: int, value: Tensor, gradient: Tensor) -> None:
        self.relevance[i] = float((widened(gradient) * widened(value)).sum(dtype=torch.float64))

    def close(self) -> None:
        """Stops recording."""
        for hook in self._hooks:
            hook.remove()


def _weights_and_values(call: TorchCall) -> tuple[Tensor, Tensor]:
    """The weights (…, heads, Q, K) and values (…, K, d) of an attention call."""
    if call.kind is Kind.ATTENTION:
        query, key, value, settings = dot_product_of(call)
        return explicit_attention(query, key, value, **settings)
    return call["left"], call["right"]


def _plain(table: Numbers) -> list[list[float | None]]:
    """A table for JSON: None for NaN."""
    return [[None if value != value else value for value in row] for row in table.tolist()]


def _padded(rows: Sequence[Sequence[float]]) -> Numbers:
    """Rows of different lengths as an array, NaN where they end."""
    array = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        array[i, : len(row)] = row
    return array
