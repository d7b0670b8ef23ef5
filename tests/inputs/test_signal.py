"""Sound, video and series: their units, what they add up to, and what is refused."""

import wave
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.signal_families import cases, listen
from tests.helpers import exactly, normal
from wherefrom import Explainer
from wherefrom.errors import InputError
from wherefrom.inputs.signal import read_sound


class Linear(nn.Module):
    """Weighs every number of a signal, whatever its shape."""

    def __init__(self, argument, shape, **config):
        super().__init__()
        self.argument, self.config = argument, SimpleNamespace(**config)
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, *shape, dtype=torch.float64))

    def weighed(self, signal):
        return (signal.unsqueeze(1) * self.weight).flatten(2).sum(-1)


class Sound(Linear):
    def forward(self, input_values):
        return self.weighed(input_values)


class Spectrogram(Linear):
    def forward(self, input_features):
        return self.weighed(input_features)


class Video(Linear):
    def forward(self, pixel_values):
        return self.weighed(pixel_values)


class Pictures(Linear):
    def forward(self, pixel_values):
        return self.weighed(pixel_values)


class Series(Linear):
    def forward(self, past_values):
        return self.weighed(past_values)


def sums(products, owner):
    """The sum of the numbers of each unit, one by one."""
    found = {}
    for place in np.ndindex(*products.shape):
        found[owner(*place)] = found.get(owner(*place), 0.0) + float(products[place])
    return [found[unit] for unit in sorted(found)]


@pytest.mark.parametrize(
    ("model", "shape", "config", "owner", "names"),
    [
        (Sound, (4000,), {}, lambda i: i // 1600, ["0–0.1 s", "0.1–0.2 s", "0.2–0.25 s"]),
        (Spectrogram, (8, 25), {"num_mel_bins": 8}, lambda b, t: t // 10,
         ["0–0.1 s", "0.1–0.2 s", "0.2–0.25 s"]),
        (Spectrogram, (25, 8), {"num_mel_bins": 8}, lambda t, b: t // 10,
         ["0–0.1 s", "0.1–0.2 s", "0.2–0.25 s"]),
        (Video, (4, 2, 4, 6), {"num_frames": 4, "patch_size": 2, "tubelet_size": 2},
         lambda t, c, y, x: (t // 2, y // 2, x // 2), ["frames 0–1 at 0,0", "frames 0–1 at 2,0"]),
        (Video, (2, 2, 4, 6), {"num_frames": 2, "tubelet_size": [1, 4, 3]},
         lambda t, c, y, x: (t, y // 4, x // 3), ["frame 0 at 0,0", "frame 0 at 3,0"]),
        (Series, (3, 2), {}, lambda t, c: t, ["t−2", "t−1", "t"]),
    ],
    ids=["sound", "bins first", "frames first", "tubelets", "patches of frames", "series"],
)  # fmt: skip
def test_a_unit_has_the_relevance_of_its_numbers(model, shape, config, owner, names, rng):
    module, given = model("x", shape, **config), normal(rng, 2, *shape)
    for x, explanation in zip(given, Explainer(module)(given, target=1), strict=True):
        exactly(explanation.scores, sums((x * module.weight[1]).detach(), owner), tol=1e-6)
        assert [unit.text for unit in explanation.units][: len(names)] == names
        assert explanation.ledger.relative < 1e-12


def test_stretches_of_another_length_and_of_several_signals(rng):
    module = Sound("x", (4000,))
    one = Explainer(module)(normal(rng, 4000), target=0, units=0.05)
    assert [unit.text for unit in one.units] == [
        "0–0.05 s", "0.05–0.1 s", "0.1–0.15 s", "0.15–0.2 s", "0.2–0.25 s",
    ]  # fmt: skip
    assert len(Explainer(module)([normal(rng, 4000), normal(rng, 4000)], target=0)) == 2
    assert len(Explainer(module)(normal(rng, 4000).numpy(), target=0)) == 3


def test_images_of_a_model_whose_config_has_frames_are_images(rng):
    module = Pictures("x", (3, 4, 4), num_frames=16, num_channels=3)
    explanations = Explainer(module)(normal(rng, 2, 3, 4, 4), target=0, units="pixels")
    assert [len(explanation) for explanation in explanations] == [16, 16]


def test_an_erased_stretch_is_silence(rng):
    module, x = Sound("x", (4000,)), normal(rng, 4000)
    scores = Explainer(module)(x, "occlusion", target=2).scores
    exactly(scores, sums((x * module.weight[2]).detach(), lambda i: i // 1600), tol=1e-6)


def written(path, samples, rate=16_000, width=2, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


def test_a_recording_is_read_from_its_file(tmp_path):
    samples = (np.sin(np.arange(4000) / 9) * 20_000).astype(np.int16)
    path = written(tmp_path / "tone.wav", samples)
    module = Sound("x", (4000,)).double()
    explanation = Explainer(module)(str(path), target=1)
    same = Explainer(module)(torch.from_numpy(samples / 2**15), target=1)
    exactly(explanation.scores, same.scores, tol=1e-6)


def test_channels_are_averaged_and_other_rates_and_widths_are_read(tmp_path):
    left, right = np.full(800, 8192, np.int16), np.full(800, -16384, np.int16)
    stereo = written(tmp_path / "two.wav", np.stack([left, right], 1), channels=2)
    exactly(read_sound(stereo, 16_000), np.full(800, -0.125), tol=1e-7)
    eight = written(tmp_path / "eight.wav", np.full(800, 192, np.uint8), 8000, 1)
    doubled = read_sound(eight, 16_000)
    assert len(doubled) == 1600
    assert abs(doubled[400:1200] - 0.5).max() < 0.01  # the ends are those of the filter


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path, "cannot read the sound"),
        (lambda path: written(path, np.zeros(0, np.int16)), "is empty"),
        (lambda path: written(path, np.zeros(3, np.uint8), width=3), "samples of 24 bits"),
    ],
)
def test_files_that_are_no_sound_are_refused(make, message, tmp_path):
    path = make(tmp_path / "some.wav")
    with pytest.raises(InputError, match=message):
        Explainer(Sound("x", (4000,)))(str(path))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (torch.zeros(2, 3, 4, 5), {}, r"takes input_values of 1 axis for each signal, got shape"),
        (torch.full((4000,), torch.nan), {}, "NaN or infinite"),
        ([], {}, "empty"),
        (torch.zeros(4000), {"units": -1}, "a number of seconds, got -1"),
        (torch.zeros(4000), {"units": "patches"}, "a number of seconds, got 'patches'"),
    ],
)
def test_signals_that_cannot_be_read(given, options, message):
    with pytest.raises(InputError, match=message):
        Explainer(Sound("x", (4000,)))(given, **options)


def test_attention_methods_refuse_units_that_are_not_the_models_places(rng):
    from wherefrom.errors import WherefromError

    name, case = cases()["wav2vec2"]
    assert listen("wav2vec2", name, case).verdict == "closed"
    with pytest.raises(WherefromError):
        Explainer(Sound("x", (4000,)))(normal(rng, 4000), "attention_rollout")


@pytest.mark.parametrize("family", ["hubert", "whisper", "videomae", "patchtst (forecast)"])
def test_ledger_closes_on_families(family):
    row = listen(family, *cases()[family])
    assert row.verdict == "closed", row
