"""The reader of graphs, of molecules as SMILES, and of images as superpixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.errors import InputError, TooLong
from wherefrom.inputs.graph import Graph, batch
from wherefrom.inputs.pictures import opened, png_of
from wherefrom.inputs.reader import Present, Reader, ReaderContext, Replacement, first_of

_NOUNS = {"molecule": "atom", "superpixels": "superpixel"}


@dataclass(frozen=True)
class ErasedGraph:
    """A graph with some of its nodes removed."""

    graph: Graph
    present: NDArray[np.bool_]


@dataclass(frozen=True)
class GraphReader(Reader[Graph, ErasedGraph]):
    """Reads graphs, or the molecules or images that the model takes as graphs."""

    name: ClassVar[str] = "graph"
    runner: ModelRunner

    @classmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        """Accepts graphs, and every input to a graph model."""
        config = getattr(context.runner.model, "config", None)
        return isinstance(first_of(inputs), Graph) or hasattr(config, "reads")

    @classmethod
    def build(cls, context: ReaderContext) -> GraphReader:
        return cls(context.runner)

    @property
    def _config(self) -> Any:
        return getattr(self.runner.model, "config", None)

    @property
    def _reads(self) -> str:
        return str(getattr(self._config, "reads", ""))

    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        if isinstance(inputs, (list, tuple)):
            if not inputs:
                raise InputError("the list of graphs is empty: there is nothing to explain.")
            return list(inputs), False
        return [inputs], True

    def read(self, source: Any, truncate: bool = False) -> Graph:
        graph = self._graph(source)
        limit = getattr(self._config, "max_nodes", None)
        if limit is not None and len(graph) > limit:
            raise TooLong(f"the graph has {len(graph)} nodes, but the model takes {limit}.")
        return graph

    def _graph(self, source: Any) -> Graph:
        if isinstance(source, Graph):
            return source
        if hasattr(source, "edge_index"):
            return Graph.from_pyg(source)
        if hasattr(source, "nodes") and hasattr(source, "edges"):
            return Graph.from_networkx(source)
        if self._reads == "molecule" and isinstance(source, str):
            return Graph.from_smiles(source, getattr(self._config, "max_nodes", None))
        if self._reads == "superpixels":
            image, _ = opened(source)
            return Graph.superpixels(np.asarray(image.convert("L")))
        also = {"molecule": "a SMILES, ", "superpixels": "an image, "}.get(self._reads, "")
        raise InputError(
            f"cannot read a {type(source).__name__} as a graph: pass {also}a Graph, a networkx "
            "graph, or a Data of PyTorch Geometric."
        )

    def size(self, item: Graph) -> int:
        return len(item)

    def chunks(
        self, items: Sequence[Graph], size: int, tokens: int | None = None
    ) -> list[list[int]]:
        """Batches of graphs of similar size: the model masks padding."""
        order = sorted(range(len(items)), key=lambda i: len(items[i]))
        return [order[start : start + size] for start in range(0, len(order), size)]

    def units_of(self, item: Graph) -> tuple[Unit, ...]:
        return tuple(Unit(name) for name in item.names)

    def batch(self, items: Sequence[Graph]) -> Batch:
        tensors = self._tensors(items)
        return Batch(
            tensors=tensors,
            fields=("x",),
            units=tuple(self.units_of(item) for item in items),
            mask=tensors["mask"].cpu(),
            texts=(None,) * len(items),
            noun=_NOUNS.get(self._reads, "node"),
            scenes=tuple(_scene(item) for item in items),
        )

    def _tensors(self, graphs: Sequence[Graph]) -> dict[str, Tensor]:
        first = next(self.runner.model.parameters())
        tensors = batch(graphs, getattr(self._config, "max_path", 0))
        return {
            name: t.to(first.device, first.dtype if t.is_floating_point() else t.dtype)
            for name, t in tensors.items()
        }

    def erased(self, item: Graph, present: Present, replacement: Replacement) -> list[ErasedGraph]:
        if replacement is not None:
            raise InputError("graphs have no replacement for erased nodes: nodes are removed.")
        return [ErasedGraph(item, row) for row in present]

    def key(self, form: ErasedGraph) -> bytes:
        return id(form.graph).to_bytes(8) + np.packbits(form.present).tobytes()

    def length(self, form: ErasedGraph) -> int:
        return len(form.graph)

    def collate(self, forms: Sequence[ErasedGraph]) -> dict[str, Tensor]:
        tensors = self._tensors([form.graph for form in forms])
        mask = tensors["mask"]
        for row, form in enumerate(forms):
            mask[row, : len(form.graph)] &= torch.from_numpy(form.present).to(mask.device)
        return tensors


def _scene(graph: Graph) -> dict[str, Any]:
    """The background of the nodes: the structure of a molecule, an image, or the edges."""
    if isinstance(graph.source, str):
        from wherefrom.inputs.molecule import drawing

        return {"kind": "molecule", "name": graph.source, **drawing(graph.source)}
    if graph.regions is not None and graph.source is not None:
        height, width = graph.regions.shape
        return {
            "kind": "superpixels",
            "png": png_of(np.asarray(graph.source)),
            "width": width,
            "height": height,
            "paths": [_outline(graph.regions == node) for node in range(len(graph))],
        }
    return {"kind": "graph", "edges": graph.edges.tolist()}


def _outline(inside: NDArray[np.bool_]) -> str:
    """The pixels of a region as runs of an SVG path."""
    runs = []
    for row in np.nonzero(inside.any(1))[0].tolist():
        edges = np.diff(inside[row].astype(np.int8), prepend=0, append=0)
        starts, ends = np.nonzero(edges == 1)[0], np.nonzero(edges == -1)[0]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            runs.append(f"M{start} {row}h{end - start}v1h{start - end}z")
    return "".join(runs)
