"""Recordings in WAV files, as samples between −1 and 1."""

from __future__ import annotations

import wave
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wherefrom.errors import InputError

_WIDTHS = {1: np.uint8, 2: np.int16, 4: np.int32}  # bytes of a sample


def is_sound(source: Any) -> bool:
    """Whether something is named like a file of sound."""
    return isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".wav"


def read_sound(path: str | Path, rate: int) -> NDArray[np.float32]:
    """The samples of a recording at this rate, its channels averaged."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, own = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        raise InputError(
            f"cannot read the sound {path}: {error or 'it ends too early'}."
        ) from error
    if width not in _WIDTHS:
        raise InputError(f"{path} has samples of {8 * width} bits; 8, 16 and 32 can be read.")
    numbers = np.frombuffer(data, _WIDTHS[width]).astype(np.float64)
    if not numbers.size:
        raise InputError(f"the sound {path} is empty.")
    scaled = (numbers - 128) / 128 if width == 1 else numbers / 2 ** (8 * width - 1)
    mono = scaled.reshape(-1, channels).mean(1)
    if own != rate:
        from scipy.signal import resample_poly  # slow to import

        common = gcd(own, rate)
        mono = resample_poly(mono, rate // common, own // common)
    samples: NDArray[np.float32] = mono.astype(np.float32)
    return samples
