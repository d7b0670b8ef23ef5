"""Weights of the embedded models, from safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wherefrom.errors import FileError

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def load_weights(model: nn.Module, home: Path, dtype: torch.dtype | None) -> None:
    """Reads the folder's weights into the model; with the dtype None as they are stored."""
    try:
        weights = load_file(home / WEIGHTS)
        model.load_state_dict({name: w.to(dtype) for name, w in weights.items()}, assign=True)
    except FileNotFoundError as error:
        raise FileError(f"there are no weights in {home}: {WEIGHTS} is missing.") from error
    except (SafetensorError, RuntimeError) as error:
        raise FileError(f"the weights in {home / WEIGHTS} do not fit {CONFIG}.") from error
