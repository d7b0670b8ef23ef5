"""BERT as a classifier (Devlin et al., 2019), with only what the embedded text model needs.

`transformers` has the same model with the same module names, but importing it takes three times
as long as importing torch. The weights, the output and the explanations are the same.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wherefrom.errors import FileError
from wherefrom.models.weights import CONFIG, load_weights

ARCHITECTURE = "BertForSequenceClassification"


@dataclass(frozen=True)
class BertConfig:
    """The architecture, by the names of config.json."""

    hidden_size: int
    id2label: dict[int, str]
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_hidden_layers: int
    pad_token_id: int
    type_vocab_size: int
    vocab_size: int
    attention_probs_dropout_prob: float = 0.1
    hidden_dropout_prob: float = 0.1
    layer_norm_eps: float = 1e-12

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @classmethod
    def load(cls, folder: Path) -> BertConfig:
        """Reads config.json."""
        path = folder / CONFIG
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            labels = {int(index): str(label) for index, label in data["id2label"].items()}
            names = {field.name for field in fields(cls)} & data.keys()
            return cls(**{**{name: data[name] for name in names}, "id2label": labels})
        except FileNotFoundError as error:
            raise FileError(f"there is no model in {folder}: {CONFIG} is missing.") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FileError(f"{path} is not the config of a {ARCHITECTURE}.") from error


def is_bert(folder: Path) -> bool:
    """Whether a folder holds a model that this module implements: a plain encoder with GELU."""
    try:
        data = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(data, dict)
        and data.get("architectures") == [ARCHITECTURE]
        and data.get("hidden_act") == "gelu"
        and not data.get("is_decoder")
    )


class ClassifierOutput(NamedTuple):
    """What the model returns."""

    logits: Tensor


class Embeddings(nn.Module):
    """The sum of the embeddings of the token, its type and its position, normalised."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None, token_type_ids: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor:
        """The embedded tokens (B, N, D)."""
        h = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        positions = torch.arange(h.shape[1], device=h.device)[None]
        types = torch.zeros_like(positions) if token_type_ids is None else token_type_ids
        h = h + self.token_type_embeddings(types) + self.position_embeddings(positions)
        embedded: Tensor = self.dropout(self.LayerNorm(h))
        return embedded


class SelfAttention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.rate = config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """h (B, N, D) under the mask (B, 1, N, N), which is True where attention is allowed."""
        query, key, value = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, N, D/H)
            for part in (self.query, self.key, self.value)
        )
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return mixed.transpose(1, 2).flatten(2)


class AddAndNorm(nn.Module):
    """A linear layer whose output is added to the residual stream, and a norm."""

    def __init__(self, config: BertConfig, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The residual stream (B, N, D)."""
        out: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + residual)
        return out


class Attention(nn.Module):
    """Self-attention with its output projection."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.self = SelfAttention(config)
        self.output = AddAndNorm(config, config.hidden_size)

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """The residual stream (B, N, D)."""
        out: Tensor = self.output(self.self(h, mask), h)
        return out


class Intermediate(nn.Module):
    """The first layer of the feed-forward network."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.intermediate_act_fn = nn.GELU()

    def forward(self, h: Tensor) -> Tensor:
        """The hidden units (B, N, intermediate)."""
        hidden: Tensor = self.intermediate_act_fn(self.dense(h))
        return hidden


class Layer(nn.Module):
    """A post-norm block: attention, then a feed-forward network."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = AddAndNorm(config, config.intermediate_size)

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """The residual stream (B, N, D)."""
        h = self.attention(h, mask)
        out: Tensor = self.output(self.intermediate(h), h)
        return out


class Encoder(nn.Module):
    """The stack of blocks."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """The residual stream (B, N, D)."""
        for layer in self.layer:
            h = layer(h, mask)
        return h


class Pooler(nn.Module):
    """The state of the first token, through a linear layer with tanh."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, h: Tensor) -> Tensor:
        """One row for each text (B, D)."""
        pooled: Tensor = self.activation(self.dense(h[:, 0]))
        return pooled


class Bert(nn.Module):
    """Embeddings, blocks and pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
    ) -> Tensor:
        """One row for each text (B, D)."""
        h = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        mask = None
        if attention_mask is not None and not bool(attention_mask.all()):
            mask = attention_mask.bool()[:, None, None, :].expand(-1, 1, h.shape[1], -1)
        pooled: Tensor = self.pooler(self.encoder(h, mask))
        return pooled


class BertForSequenceClassification(nn.Module):
    """Classifies texts by the first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.name_or_path = ""
        self.bert = Bert(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, len(config.id2label))

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.bert.embeddings.word_embeddings

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> ClassifierOutput:
        """The logits (B, classes) of token ids (B, N), or of embedded tokens (B, N, D)."""
        pooled = self.bert(input_ids, attention_mask, token_type_ids, inputs_embeds)
        return ClassifierOutput(self.classifier(self.dropout(pooled)))

    @classmethod
    def load(
        cls, folder: str | Path, dtype: torch.dtype | None = torch.float32
    ) -> BertForSequenceClassification:
        """Reads the files of a folder, in evaluation mode; dtype None keeps the stored one."""
        home = Path(folder)
        model = cls(BertConfig.load(home))
        model.name_or_path = str(home)
        load_weights(model, home, dtype)
        return model.eval()
