"""Signals as inputs: sound, video and time series, in units that a person can name.

A stretch of sound is named by its seconds, a block of a video by its frames and pixels, a step of
a series by its distance from the last one. The model gets the tensor that the units compose.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd, prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, Layout, ModelRunner
from wherefrom.errors import InputError, ModelError
from wherefrom.inputs.patches import layout_of
from wherefrom.inputs.reader import Present, Reader, ReaderContext, Replacement, first_of

SECONDS = 0.1  # of a stretch of sound, by default
RATE = 16_000  # samples of sound per second, by default
_WINDOW = 0.1  # seconds of sound that the frames of a spectrogram may miss at the end
FRAMES = 100  # frames of a spectrogram per second, in all speech models
_SOUND = ("input_values", "input_features")
_SERIES = "past_values"
_VIDEO = ("pixel_values_videos", "pixel_values")
_WIDTHS = {1: np.uint8, 2: np.int16, 4: np.int32}  # bytes of a sample in a WAV file


@dataclass(frozen=True)
class Signal:
    """One signal as the model takes it, such as (samples,), (frames, bins), (frames, C, H, W)."""

    values: Tensor
    name: str | None = None
    notes: tuple[str, ...] = ()  # on what was left out


@dataclass(frozen=True)
class ErasedSignal:
    """A signal with some of its units erased, until it is collated."""

    signal: Signal
    present: Present


@dataclass
class SignalReader(Reader[Signal, ErasedSignal]):
    """Reads sound, video and series as float tensors; sound also from files.

    A recording with one axis goes through the processor, if there is one. `units` is the length
    of a stretch of sound in seconds.
    """

    name: ClassVar[str] = "signal"
    runner: ModelRunner
    processor: Any = None
    units: float | None = None
    argument: str = _SERIES
    _layouts: dict[tuple[int, ...], tuple[Layout, tuple[Unit, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.units is not None and self.argument not in _SOUND:
            raise InputError("units apply only to images, and to sound in seconds.")
        number = isinstance(self.units, (int, float)) and not isinstance(self.units, bool)
        if self.units is not None and not (number and self.units > 0):
            raise InputError(f"units of sound are a number of seconds, got {self.units!r}.")

    @classmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        argument = signal_argument(context.runner)
        first = first_of(inputs)
        if argument in _SOUND and is_sound(first):
            return True
        return argument is not None and _is_floating(first)

    @classmethod
    def build(cls, context: ReaderContext) -> SignalReader:
        argument = signal_argument(context.runner)
        assert argument is not None
        return cls(context.runner, context.processor, argument=argument)

    def with_options(self, *, units: Any = None, prefix: str | None = None) -> SignalReader:
        """The same reader for stretches of another length."""
        super().with_options(prefix=prefix)
        if units is None or units == self.units:
            return self
        return SignalReader(self.runner, self.processor, units, self.argument)

    @property
    def axes(self) -> int:
        """The number of axes of one signal, as the model takes it."""
        if self.argument in _VIDEO:
            return 4
        return 2 if self.argument != "input_values" or _bins(self.runner) else 1

    @property
    def rate(self) -> int:
        """Samples of sound per second."""
        return int(getattr(_extractor(self.processor), "sampling_rate", None) or RATE)

    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        if isinstance(inputs, (list, tuple)):
            if not inputs:
                raise InputError("the list of signals is empty: there is nothing to explain.")
            return list(inputs), False
        if isinstance(inputs, (Tensor, np.ndarray)) and inputs.ndim == self.axes + 1:
            return list(inputs), False
        return [inputs], True

    def read(self, source: Any, truncate: bool = False) -> Signal:
        if isinstance(source, Signal):
            return source
        name = Path(source).name if is_sound(source) else None
        values = read_sound(source, self.rate) if name is not None else source
        values = torch.as_tensor(values)
        notes: tuple[str, ...] = ()
        if values.ndim == 1 and self.argument in _SOUND and self.processor is not None:
            seconds = len(values) / self.rate
            values = self._extracted(values)
            notes = self._note_on_length(seconds, tuple(values.shape))
        if values.ndim != self.axes or 0 in values.shape:
            raise InputError(
                f"{self.runner.name} takes {self.argument} of {self.axes} "
                f"{'axis' if self.axes == 1 else 'axes'} for each signal, got shape "
                f"{tuple(values.shape)}."
                + (" Recorded sound needs a processor." if self.axes == 2 else "")
            )
        if not bool(torch.isfinite(values).all()):
            raise InputError("the signal has numbers that are NaN or infinite.")
        return Signal(
            values.detach().to(self.runner.device, self.runner.dtype or values.dtype), name, notes
        )

    def _note_on_length(self, seconds: float, shape: tuple[int, ...]) -> tuple[str, ...]:
        """A caveat if the processor cut a recording."""
        axis, per_second = self._time(shape)
        kept = shape[axis] / per_second
        if seconds - kept <= _WINDOW:
            return ()
        return (
            f"The processor cut the recording from {seconds:.4g} to {kept:.4g} seconds: the rest "
            "is not part of the explanation.",
        )

    def warnings_of(self, item: Signal) -> tuple[str, ...]:
        return item.notes

    def _extracted(self, wave: Tensor) -> Tensor:
        """The processor's output for a recording: normalised samples, or a spectrogram."""
        output = _extractor(self.processor)(
            wave.detach().cpu().numpy(), sampling_rate=self.rate, return_tensors="pt"
        )
        if self.argument not in output:
            raise ModelError(
                f"the processor returns {', '.join(output)}, but {self.runner.name} takes "
                f"{self.argument}."
            )
        values: Tensor = output[self.argument][0]
        return values

    # Units

    def laid_out(self, signal: Signal) -> tuple[Layout, tuple[Unit, ...]]:
        """The layout and the units of signals of this shape, cached."""
        shape = tuple(signal.values.shape)
        if shape not in self._layouts:
            if self.argument in _VIDEO:
                owners, units = _blocks(shape, _tubelet(self.runner))
            elif self.argument == _SERIES:
                owners, units = _steps(shape)
            else:
                owners, units = self._stretches(shape)
            self._layouts[shape] = (layout_of(owners, cut=False), units)
        return self._layouts[shape]

    def _time(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """The axis of time in samples or a spectrogram, and its numbers per second."""
        bins = _bins(self.runner)
        axis = 1 if len(shape) == 2 and bins == shape[0] and bins != shape[1] else 0
        return axis, self.rate if len(shape) == 1 else FRAMES

    def _stretches(self, shape: tuple[int, ...]) -> tuple[Tensor, tuple[Unit, ...]]:
        axis, per_second = self._time(shape)
        size = max(1, round((self.units or SECONDS) * per_second))
        stretch = torch.arange(shape[axis]) // size
        owners = stretch.reshape([-1 if i == axis else 1 for i in range(len(shape))]).expand(shape)
        ends = [
            (start / per_second, min(start + size, shape[axis]) / per_second)
            for start in range(0, shape[axis], size)
        ]
        return owners, tuple(Unit(f"{start:.4g}–{end:.4g} s") for start, end in ends)

    def size(self, item: Signal) -> int:
        return self.laid_out(item)[0].units

    def units_of(self, item: Signal) -> tuple[Unit, ...]:
        return self.laid_out(item)[1]

    def shape(self, item: Signal) -> tuple[int, ...]:
        return tuple(item.values.shape)

    def batch(self, items: Sequence[Signal]) -> Batch:
        layout, units = self.laid_out(items[0])
        whole = torch.stack([item.values for item in items])
        nouns = {**dict.fromkeys(_VIDEO, "block"), _SERIES: "step"}
        return Batch(
            tensors={self.argument: layout.split(whole)},
            fields=(self.argument,),
            units=(units,) * len(items),
            mask=torch.ones(len(items), layout.units, dtype=torch.bool),
            texts=(None,) * len(items),
            layout=layout,
            noun=nouns.get(self.argument, "stretch"),
        )

    # For evaluation

    def erased(
        self, item: Signal, present: Present, replacement: Replacement
    ) -> list[ErasedSignal]:
        if replacement not in (None, "zero"):
            raise InputError(
                f'there is no replacement "{replacement}" for signals; there is: zero.'
            )
        return [ErasedSignal(item, row) for row in present]

    def key(self, form: ErasedSignal) -> bytes:
        return id(form.signal).to_bytes(8) + np.packbits(form.present).tobytes()

    def length(self, form: ErasedSignal) -> int:
        return len(form.present)

    def batch_shape(self, form: ErasedSignal) -> tuple[int, ...]:
        return tuple(form.signal.values.shape)

    def collate(self, forms: Sequence[ErasedSignal]) -> dict[str, Tensor]:
        layout = self.laid_out(forms[0].signal)[0]
        rows = layout.split(torch.stack([form.signal.values for form in forms]))
        present = torch.from_numpy(np.stack([form.present for form in forms])).unsqueeze(-1)
        return {self.argument: layout.whole(rows * present.to(rows))}


def _is_floating(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, (Signal, np.ndarray)) and not (
        isinstance(value, np.ndarray) and value.dtype.kind != "f"
    )


def signal_argument(runner: ModelRunner) -> str | None:
    """The argument that takes a signal; None if the model takes none."""
    if runner.takes("input_ids"):
        return None
    is_video = "Video" in type(runner.model).__name__  # some image models have frames, too
    names = (*_SOUND, _SERIES, *(_VIDEO if is_video else ()))
    return next((name for name in names if runner.takes(name)), None)


def _bins(runner: ModelRunner) -> int | None:
    """The number of bins of a spectrogram frame; None for a model of samples."""
    config = getattr(runner.model, "config", None)
    names = ("num_mel_bins", "feature_projection_input_dim")
    return next((size for name in names if (size := getattr(config, name, None))), None)


def _tubelet(runner: ModelRunner) -> tuple[int, int, int]:
    """The size of a block in frames, rows and columns of pixels."""
    config: Any = runner.model.config
    frames = getattr(config, "tubelet_size", 1)
    if isinstance(frames, (list, tuple)):  # all three sizes at once
        return frames[0], frames[1], frames[2]
    size = config.patch_size
    down, right = size if isinstance(size, (list, tuple)) else (size, size)
    return frames, down, right


def _blocks(shape: tuple[int, ...], size: tuple[int, int, int]) -> tuple[Tensor, tuple[Unit, ...]]:
    """The blocks of a video (frames, channels, height, width)."""
    frames, channels, height, width = shape
    counts = [-(-n // part) for n, part in zip((frames, height, width), size, strict=True)]
    t, y, x = (
        torch.arange(n) // part for n, part in zip((frames, height, width), size, strict=True)
    )
    flat = (t[:, None, None] * counts[1] + y[:, None]) * counts[2] + x
    units = []
    for number in range(prod(counts)):
        first, rest = divmod(number, counts[1] * counts[2])
        top, left = divmod(rest, counts[2])
        start, stop = first * size[0], min((first + 1) * size[0], frames) - 1
        when = f"frame {start}" if start == stop else f"frames {start}–{stop}"
        box = (left * size[2], top * size[1],
               min((left + 1) * size[2], width), min((top + 1) * size[1], height))  # fmt: skip
        units.append(Unit(f"{when} at {box[0]},{box[1]}", box=box))
    return flat.unsqueeze(1).expand(frames, channels, height, width), tuple(units)


def _steps(shape: tuple[int, ...]) -> tuple[Tensor, tuple[Unit, ...]]:
    """The steps of a series (steps, channels), counted back from the last."""
    owners = torch.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)).expand(shape)
    back = range(shape[0] - 1, -1, -1)
    return owners, tuple(Unit(f"t−{i}" if i else "t") for i in back)


def _extractor(processor: Any) -> Any:
    """The part of a processor that processes sound."""
    return getattr(processor, "feature_extractor", None) or processor


def is_sound(source: Any) -> bool:
    """Whether the source is the path of a sound file."""
    return isinstance(source, (str, Path)) and Path(source).suffix.lower() == ".wav"


def read_sound(path: str | Path, rate: int) -> NDArray[np.float32]:
    """The samples of a recording, resampled to this rate, with its channels averaged."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, own_rate = (
                file.getsampwidth(),
                file.getnchannels(),
                file.getframerate(),
            )
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
    if own_rate != rate:
        from scipy.signal import resample_poly  # slow to import

        common = gcd(own_rate, rate)
        mono = resample_poly(mono, rate // common, own_rate // common)
    samples: NDArray[np.float32] = mono.astype(np.float32)
    return samples
