"""Graphs as inputs: nodes with features, which are the units, joined by edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from wherefrom.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Hashable

from wherefrom.errors import MissingExtra, TooLong

UNREACHABLE = 255  # the distance without a path, or with one of 255 edges or more


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features, joined by undirected edges that may have features too.

    An edge may occur in both directions, with the same features.

    >>> chain = Graph([[1.0], [2.0], [3.0]], [(0, 1), (1, 2)])
    >>> chain.degree.tolist(), chain.distance[0].tolist()
    ([1, 2, 1], [0, 1, 2])
    """

    x: NDArray[np.float32]  # (nodes, features)
    edges: NDArray[np.int64]  # (edges, 2), the smaller node first
    edge_features: NDArray[np.float32] = None  # type: ignore[assignment]  # (edges, features)
    names: tuple[str, ...] = ()
    positions: NDArray[np.float32] | None = None  # (nodes, 2): across, down
    source: str | NDArray[Any] | None = None  # a SMILES, or an image
    regions: NDArray[np.int64] | None = None  # the node that each pixel of the image belongs to

    def __post_init__(self) -> None:
        x = np.asarray(self.x, dtype=np.float32)
        if x.ndim != 2 or not x.shape[0]:
            raise InputError(
                "node features must have the shape (nodes, features) with at least one node, "
                f"got shape {x.shape}."
            )
        if not np.isfinite(x).all():
            raise InputError("node features must be finite, got NaN or infinite numbers.")
        edges, features = _undirected(self.edges, self.edge_features, len(x))
        names = self.names or tuple(str(i) for i in range(len(x)))
        if len(names) != len(x):
            raise InputError(f"there are {len(names)} names for {len(x)} nodes.")
        fixed = {"x": x, "edges": edges, "edge_features": features, "names": tuple(names)}
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.x)

    @classmethod
    def from_smiles(cls, smiles: str, max_atoms: int | None = None) -> Graph:
        """The heavy atoms and bonds of a molecule, read by RDKit."""
        from wherefrom.inputs.molecule import molecule

        return molecule(smiles, max_atoms)

    @classmethod
    def superpixels(cls, image: ArrayLike, n: int = 75, nearest: int | None = None) -> Graph:
        """About `n` superpixels of an image, joined where they touch or to the nearest ones."""
        return superpixels(image, n, nearest)

    @classmethod
    def from_networkx(
        cls, graph: Any, features: str = "x", edge_features: str | None = None
    ) -> Graph:
        """Converts a networkx graph; nodes and edges hold their features in one attribute each."""
        index: dict[Hashable, int] = {node: i for i, node in enumerate(graph.nodes)}
        pairs = [(index[a], index[b]) for a, b in graph.edges()]
        return cls(
            np.array([_attribute(data, features, n) for n, data in graph.nodes(data=True)]),
            np.array(pairs).reshape(-1, 2),
            np.array([_attribute(d, edge_features, (a, b)) for a, b, d in graph.edges(data=True)])
            if edge_features and pairs
            else None,  # type: ignore[arg-type]
            names=tuple(map(str, graph.nodes)),
        )

    @classmethod
    def from_pyg(cls, data: Any) -> Graph:
        """A `Data` of PyTorch Geometric: `x`, `edge_index`, `edge_attr` and `pos` if present."""
        x, attributes, places = (
            None if value is None else torch.as_tensor(value).detach().cpu().numpy()
            for value in (getattr(data, name, None) for name in ("x", "edge_attr", "pos"))
        )
        if x is None:
            raise InputError("the data has no node features (x is None).")
        edges = torch.as_tensor(data.edge_index).cpu().numpy().T
        return cls(x, edges, attributes, positions=places)  # type: ignore[arg-type]

    @cached_property
    def degree(self) -> NDArray[np.int64]:
        """The number of edges at each node."""
        return np.bincount(self.edges.ravel(), minlength=len(self))

    @cached_property
    def distance(self) -> NDArray[np.uint8]:
        """The length of a shortest path between any two nodes, (nodes, nodes)."""
        from scipy.sparse import coo_array  # here, since scipy takes long to import
        from scipy.sparse.csgraph import shortest_path

        a, b = self.edges.T
        joined = coo_array((np.ones(len(a)), (a, b)), shape=(len(self), len(self))).tocsr()
        steps = shortest_path(joined, directed=False, unweighted=True)
        distance: NDArray[np.uint8] = np.minimum(steps, UNREACHABLE).astype(np.uint8)
        return distance

    @cached_property
    def kinds(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The distinct edge features, (kinds, features), and the kind of each edge."""
        kinds, kind = np.unique(self.edge_features, axis=0, return_inverse=True)
        return kinds, kind.reshape(-1)

    def paths(self, length: int) -> NDArray[np.int16]:
        """The kinds of the first `length` edges of each shortest path, −1 beyond its end.

        Of several shortest paths, the one whose features sort first counts, so the result,
        (nodes, nodes, length), does not depend on the order of the nodes.
        """
        if length not in self._paths:
            self._paths[length] = self._find_paths(length)
        return self._paths[length]

    @cached_property
    def _paths(self) -> dict[int, NDArray[np.int16]]:
        return {}

    def _find_paths(self, length: int) -> NDArray[np.int16]:
        n, (kinds, kind) = len(self), self.kinds
        tail, head = np.concatenate([self.edges, self.edges[:, ::-1]]).T
        kind = np.concatenate([kind, kind])
        paths = np.full((n, n, length), -1, dtype=np.int16)
        rank = np.zeros((n, n), dtype=np.int64)  # the sort order of the paths from each node so far
        hops = self.distance.astype(np.int64)
        hops[hops == UNREACHABLE] = -2
        for step in range(1, hops.max() + 1):
            start, edge = np.nonzero((hops[:, tail] == step - 1) & (hops[:, head] == step))
            key = rank[start, tail[edge]] * len(kinds) + kind[edge]
            order = np.lexsort((key, head[edge], start))
            start, edge, key = start[order], edge[order], key[order]
            same = (np.diff(start) == 0) & (np.diff(head[edge]) == 0)
            first = np.concatenate([[True], ~same])
            start, edge, key = start[first], edge[first], key[first]
            paths[start, head[edge]] = paths[start, tail[edge]]
            if step <= length:
                paths[start, head[edge], step - 1] = kind[edge]
            rank[start, head[edge]] = np.unique(key, return_inverse=True)[1].reshape(-1)
        return paths


def batch(graphs: Sequence[Graph], path_length: int = 0) -> dict[str, Tensor]:
    """Graphs padded to one number of nodes, as the arguments of a Graphormer.

    `path_length` is how many edges of a shortest path the model looks at; with 0, edges count
    only through degrees and distances.
    """
    if not graphs:
        raise InputError("there is no graph to explain.")
    widths = {graph.x.shape[1] for graph in graphs}
    if len(widths) > 1:
        raise InputError(f"the graphs have different numbers of node features: {sorted(widths)}.")
    size = max(len(graph) for graph in graphs)
    shape = (len(graphs), size)
    out = {
        "x": torch.zeros(*shape, widths.pop()),
        "degree": torch.zeros(shape, dtype=torch.long),
        "distance": torch.full((*shape, size), UNREACHABLE, dtype=torch.uint8),
        "mask": torch.zeros(shape, dtype=torch.bool),
    }
    for i, graph in enumerate(graphs):
        n = len(graph)
        out["x"][i, :n] = torch.from_numpy(graph.x)
        out["degree"][i, :n] = torch.from_numpy(graph.degree)
        out["distance"][i, :n, :n] = torch.from_numpy(graph.distance)
        out["mask"][i, :n] = True
    return out | (_edges(graphs, size, path_length) if path_length else {})


def _edges(graphs: Sequence[Graph], size: int, length: int) -> dict[str, Tensor]:
    features = {graph.edge_features.shape[1] for graph in graphs if len(graph.edges)}
    features = features or {graph.edge_features.shape[1] for graph in graphs}
    if len(features) > 1:
        raise InputError(f"the graphs have different numbers of edge features: {sorted(features)}.")
    most = max(len(graph.kinds[0]) for graph in graphs)
    edges = torch.zeros(len(graphs), most, features.pop())
    paths = torch.full((len(graphs), size, size, length), -1, dtype=torch.int16)
    for i, graph in enumerate(graphs):
        n, kinds = len(graph), graph.kinds[0]
        edges[i, : len(kinds), : kinds.shape[1]] = torch.from_numpy(kinds)
        paths[i, :n, :n] = torch.from_numpy(graph.paths(length))
    return {"edges": edges, "paths": paths}


def _undirected(
    edges: ArrayLike, features: ArrayLike | None, nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Each edge once, in order, with its features."""
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    values = np.zeros((len(pairs), 0)) if features is None else np.asarray(features)
    values = values.astype(np.float32) if values.ndim == 2 else _column(values)
    if len(values) != len(pairs):
        raise InputError(f"the graph has {len(pairs)} edges, but features for {len(values)}.")
    beyond = pairs[(pairs < 0) | (pairs >= nodes)]
    if beyond.size:
        raise InputError(f"an edge names the node {beyond[0]}; the nodes are 0 to {nodes - 1}.")
    loops = pairs[pairs[:, 0] == pairs[:, 1]]
    if loops.size:
        raise InputError(f"an edge joins the node {loops[0, 0]} with itself: leave it out.")
    unique, first, inverse = np.unique(
        np.sort(pairs, axis=1), axis=0, return_index=True, return_inverse=True
    )
    if not np.array_equal(values[first][inverse.reshape(-1)], values):
        raise InputError("an edge occurs twice with different features: edges are undirected.")
    return unique, values[first]


def _column(values: NDArray[Any]) -> NDArray[np.float32]:
    """One number for each edge, as a column of features."""
    if values.ndim != 1:
        raise InputError(
            f"edge features must have the shape (edges, features), got shape {values.shape}."
        )
    return values.astype(np.float32)[:, None]


def _attribute(data: dict[str, Any], name: str, owner: object) -> Any:
    if name not in data:
        raise InputError(
            f'{owner!r} has no attribute "{name}" (it has: {", ".join(map(str, data)) or "none"}).'
        )
    return np.atleast_1d(np.asarray(data[name], dtype=np.float32))


COMPACTNESS = 0.25  # n = 75 gives close to 75 regions on images of 28 × 28
WAVES = 6
MOST_PIXELS = 1 << 20


def superpixels(image: ArrayLike, n: int = 75, nearest: int | None = None) -> Graph:
    """About `n` regions with their mean intensity and position as node features.

    A position is the centre (across, down) in [0, 1] and the sines and cosines of its multiples
    by π: from the two coordinates alone, a linear layer cannot distinguish positions.

    SLIC chooses the exact number. Regions are joined where they touch, or each to its `nearest`
    others if that number is set.
    """
    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3) or min(pixels.shape[:2], default=0) < 2:
        raise InputError(
            "an image must have the shape (height, width) or (height, width, channels), "
            f"got shape {pixels.shape}."
        )
    height, width = pixels.shape[:2]
    if height * width > MOST_PIXELS:
        raise TooLong(
            f"an image of {height} × {width} is too large for superpixels: at most "
            f"{MOST_PIXELS:,} pixels are split. Make it smaller."
        )
    scale = 255.0 if pixels.dtype == np.uint8 else 1.0
    values = pixels.reshape(*pixels.shape[:2], -1) / scale
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InputError("an image must have uint8 values, or values from 0 to 1.")
    return of_regions(values, segment(values, n), nearest, pixels)


def segment(values: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The region index of each pixel of an image (height, width, channels)."""
    try:
        from skimage.segmentation import slic
    except ImportError as error:
        raise MissingExtra("scikit-image", "graph", "superpixels") from error
    colour = values.shape[2] == 3
    regions = slic(
        values if values.shape[2] > 1 else values[..., 0],
        n_segments=n,
        compactness=COMPACTNESS * (100 if colour else 1),  # Lab lightness goes to 100
        channel_axis=-1 if values.shape[2] > 1 else None,
        start_label=0,
    )
    return np.unique(regions, return_inverse=True)[1].reshape(regions.shape)


def of_regions(
    values: NDArray[np.float64],
    regions: NDArray[np.int64],
    nearest: int | None = None,
    image: NDArray[np.generic] | None = None,
) -> Graph:
    """The graph of an image that is already split into regions."""
    height, width, channels = values.shape
    flat, count = regions.reshape(-1), int(regions.max()) + 1
    size = np.bincount(flat, minlength=count)
    down, across = (np.indices((height, width)).reshape(2, -1) + 0.5) / [[height], [width]]
    columns = [*values.reshape(-1, channels).T, across, down]
    x = np.stack([np.bincount(flat, column, count) / size for column in columns], axis=1)
    centres = x[:, -2:]
    return Graph(
        np.concatenate([x, waves(centres)], axis=1).astype(np.float32),
        _touching(regions) if nearest is None else _nearest(centres, nearest),
        positions=centres.astype(np.float32),
        source=image,
        regions=regions,
    )


def waves(centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """sin kπc and cos kπc of each coordinate c, (nodes, 2), for k up to `WAVES`."""
    angles = np.pi * np.arange(1, WAVES + 1)[:, None] * centres[:, None, :]
    both = np.stack([np.sin(angles), np.cos(angles)], axis=2)  # (nodes, waves, 2, coordinates)
    return both.reshape(len(centres), -1)


def _touching(regions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of regions with adjacent pixels."""
    across = np.stack([regions[:, :-1], regions[:, 1:]], axis=-1).reshape(-1, 2)
    down = np.stack([regions[:-1], regions[1:]], axis=-1).reshape(-1, 2)
    pairs = np.concatenate([across, down])
    borders: NDArray[np.int64] = pairs[pairs[:, 0] != pairs[:, 1]]
    return borders


def _nearest(centres: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Pairs of each region with the `k` regions whose centres are nearest."""
    distances = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.stack([np.repeat(np.arange(len(near)), near.shape[1]), near.ravel()], axis=1)
