"""Graphormer (Ying et al., Do Transformers Really Perform Bad for Graph Representation?, 2021)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from wherefrom.errors import FileError, InputError, TooLong
from wherefrom.models.weights import CONFIG, WEIGHTS, load_weights

KIND = "graphormer"


@dataclass(frozen=True)
class GraphormerConfig:
    """The architecture of a Graphormer; `reads` is what its graphs represent."""

    features: int
    labels: tuple[str, ...]
    edge_features: int = 0  # 0: no edge encoding
    width: int = 128
    layers: int = 2
    heads: int = 8
    hidden: int = 128
    max_degree: int = 8  # higher degrees count as this
    max_distance: int = 20  # farther nodes count as unreachable
    max_path: int = 0  # edges of a shortest path that the edge encoding uses
    max_nodes: int = 512
    dropout: float = 0.1
    reads: str = ""  # "molecule", "superpixels" or "": any graph

    @property
    def id2label(self) -> dict[int, str]:
        """The name of each class."""
        return dict(enumerate(self.labels))

    def save(self, folder: Path) -> None:
        """Writes config.json."""
        text = json.dumps({"model_type": KIND, **asdict(self)}, indent=1)
        (folder / CONFIG).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> GraphormerConfig:
        """Reads config.json."""
        path = folder / CONFIG
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            kind = data.pop("model_type")
            if kind != KIND:
                raise FileError(f"{path} describes a {kind}, not a {KIND}.")
            return cls(**{**data, "labels": tuple(data["labels"])})
        except FileNotFoundError as error:
            raise FileError(f"there is no model in {folder}: {CONFIG} is missing.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            names = ", ".join(field.name for field in fields(cls))
            raise FileError(f"{path} is not the config of a {KIND} ({names}).") from error


def is_graphormer(folder: Path) -> bool:
    """Whether a folder holds a model of this kind."""
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and data.get("model_type") == KIND


class Block(nn.Module):
    """A pre-norm block: attention, then a feed-forward network."""

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.rate = config.heads, config.dropout
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.network_norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, config.hidden), nn.GELU(), nn.Linear(config.hidden, width)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, h: Tensor, bias: Tensor) -> Tensor:
        """h (B, N, D) under the attention bias (B, H, N, N)."""
        normed = self.attention_norm(h)
        query, key, value = (
            part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, D/H)
            for part in (self.query, self.key, self.value)
        )
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=rate)
        h = h + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        out: Tensor = h + self.dropout(self.network(self.network_norm(h)))
        return out


class Graphormer(nn.Module):
    """Classifies graphs by a virtual node, the first, which is connected to all others.

    The attention logits are Q Kᵀ/√d + b(distance) + c(path): b is a learned number for each head
    and distance, c the mean over the edges of a shortest path of (edge features · weights of that
    position in the path). A node is embedded as W x + z(degree).

    Nothing attends to a node whose mask is False, so padding and removing nodes are the same.
    The degrees and distances of the other nodes stay as passed. The virtual node always remains:
    without other nodes the output is that of the empty graph.
    """

    def __init__(self, config: GraphormerConfig) -> None:
        super().__init__()
        self.config = config
        self.name_or_path = ""
        self.nodes = nn.Linear(config.features, config.width, bias=False)
        self.centrality = nn.Embedding(config.max_degree + 1, config.width)
        self.virtual = nn.Parameter(torch.empty(config.width))
        # one for each distance, the last for unreachable or farther nodes
        self.spatial = nn.Parameter(torch.zeros(config.max_distance + 2, config.heads))
        self.virtual_distance = nn.Parameter(torch.zeros(config.heads))
        self.path = nn.Parameter(torch.zeros(config.max_path, config.edge_features, config.heads))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, len(config.labels))
        nn.init.normal_(self.virtual, std=0.02)
        nn.init.normal_(self.centrality.weight, std=0.02)

    def forward(
        self,
        x: Tensor,
        degree: Tensor,
        distance: Tensor,
        mask: Tensor,
        edges: Tensor | None = None,
        paths: Tensor | None = None,
    ) -> Tensor:
        """The logits (B, classes) of padded graphs, as `wherefrom.inputs.graph.batch` gives them.

        `edges` (B, kinds, features) are the distinct edge features, `paths` (B, N, N, length)
        their indices along a shortest path between two nodes, −1 beyond its end.
        """
        self._check(x, edges, paths)
        h = self.nodes(x) + self.centrality(degree.long().clamp(max=self.config.max_degree))
        h = torch.cat([self.virtual.expand(len(h), 1, -1), h], dim=1)  # (B, 1 + N, D)
        h = self.dropout(h)
        bias = self._bias(distance, mask, edges, paths)
        for block in self.blocks:
            h = block(h, bias)
        logits: Tensor = self.head(self.norm(h[:, 0]))
        return logits

    def _bias(
        self, distance: Tensor, mask: Tensor, edges: Tensor | None, paths: Tensor | None
    ) -> Tensor:
        """The bias added to the attention logits, (B, H, 1 + N, 1 + N)."""
        # an embedding lookup, since the gradient of indexing is slow
        pairs = F.embedding(distance.long().clamp(max=self.config.max_distance + 1), self.spatial)
        if self.config.max_path:
            assert edges is not None  # `_check` made sure
            assert paths is not None
            pairs = pairs + self._path_bias(edges, paths.long())
        batch, nodes = mask.shape
        virtual = self.virtual_distance
        row = virtual.expand(batch, 1, nodes, -1)
        column = virtual.expand(batch, nodes + 1, 1, -1)
        bias = torch.cat([column, torch.cat([row, pairs], dim=1)], dim=2).permute(0, 3, 1, 2)
        present = F.pad(mask.bool(), (1, 0), value=True)  # the virtual node is always there
        return bias.masked_fill(~present[:, None, None, :], float("-inf"))

    def _path_bias(self, edges: Tensor, paths: Tensor) -> Tensor:
        """The edge encoding of each pair of nodes, (B, N, N, H)."""
        kinds = F.pad(edges, (0, 0, 0, 1))  # −1, beyond the end of a path, is a row of zeros
        rows = torch.arange(len(paths), device=paths.device)[:, None, None, None]
        steps = kinds[rows, paths]  # (B, N, N, length, features)
        length = (paths >= 0).sum(-1, keepdim=True).clamp(min=1)
        return steps.flatten(3) @ self.path.flatten(0, 1) / length

    def _check(self, x: Tensor, edges: Tensor | None, paths: Tensor | None) -> None:
        config = self.config
        if x.shape[1] > config.max_nodes:
            raise TooLong(
                f"the graph has {x.shape[1]} nodes, but the model takes {config.max_nodes}."
            )
        if x.shape[2] != config.features:
            raise InputError(
                f"the nodes have {x.shape[2]} features, but the model takes {config.features}"
                + (f": it was trained on graphs of {config.reads}." if config.reads else ".")
            )
        length = 0 if paths is None or edges is None else paths.shape[-1]
        if length != config.max_path:
            raise InputError(
                f"the model uses {config.max_path} edges of a path, got {length}.",
                f"Use batch(graphs, path_length={config.max_path}).",
                command="",
            )
        if edges is not None and edges.shape[2] != config.edge_features:
            raise InputError(
                f"the edges have {edges.shape[2]} features, but the model takes "
                f"{config.edge_features}."
            )

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Writes config.json and model.safetensors, optionally in another dtype."""
        home = Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        self.config.save(home)
        weights = {name: t.detach().contiguous().to(dtype) for name, t in self.state_dict().items()}
        save_file(weights, home / WEIGHTS)

    @classmethod
    def load(cls, folder: str | Path, dtype: torch.dtype | None = torch.float32) -> Graphormer:
        """Reads the files of `save`, in evaluation mode; dtype None keeps the stored one."""
        home = Path(folder)
        model = cls(GraphormerConfig.load(home))
        model.name_or_path = str(home)
        load_weights(model, home, dtype)
        return model.eval()
