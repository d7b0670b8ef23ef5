"""MNIST from its four idx files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILES = {"train": "train", "test": "t10k"}


def read_images(data: Path, split: str) -> tuple[Tensor, Tensor]:
    """The images of a split as bytes, (N, 28, 28), and their digits."""
    with gzip.open(data / f"{FILES[split]}-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
    with gzip.open(data / f"{FILES[split]}-labels-idx1-ubyte.gz") as file:
        digits = np.frombuffer(file.read(), np.uint8, offset=8)
    return torch.from_numpy(pixels.copy()), torch.from_numpy(digits.astype(np.int64))
