"""Reads the embedded models' weights from safetensors; options for others by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wherefrom.errors import FileError

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def load_weights(model: nn.Module, home: Path, dtype: torch.dtype | None) -> None:
    """Reads the folder's weights into the model; dtype None keeps that of the file."""
    try:
        weights = load_file(home / WEIGHTS)
        model.load_state_dict({name: w.to(dtype) for name, w in weights.items()}, assign=True)
    except FileNotFoundError as error:
        raise FileError(f"there are no weights in {home}: {WEIGHTS} is missing.") from error
    except (SafetensorError, RuntimeError) as error:
        raise FileError(f"the weights in {home / WEIGHTS} do not fit {CONFIG}.") from error


def pretrained_options(version: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of `from_pretrained` by the names of this version of transformers.

    Before 4.56 `dtype` was called `torch_dtype`. Weights keep their dtype by default, as in
    transformers 5.
    """
    options = {"dtype": "auto", **options}
    if tuple(map(int, version.split(".")[:2])) >= (4, 56):
        return options
    return {"torch_dtype" if key == "dtype" else key: value for key, value in options.items()}
