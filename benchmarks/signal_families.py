"""Does the ledger of `lrp` close on the families that hear, watch and forecast?

    python -m benchmarks.signal_families [--only wav2vec2,vivit] [--out docs/families.md]

As `benchmarks.families`: tiny random models in float64, two signals each, the same bounds. Units
are stretches of a tenth of a second, blocks of a video, and steps of a series.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from transformers.models.auto import modeling_auto as auto

import wherefrom
from benchmarks.families import SEEING, SIGNALS
from benchmarks.family_rows import Casts, Row, limited, reason, smallest_reach, verdict
from benchmarks.tiny import prepared
from wherefrom.inputs.signal import signal_argument

SOUND, VIDEO, SERIES = (8000,), (4, 3, 32, 32), (24, 3)
_SERIES = {
    "context_length": 24, "num_input_channels": 3, "patch_length": 4, "patch_stride": 4,
    "prediction_length": 4, "num_targets": 3, "loss": "mse",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a family is given, the sizes of its own, and where its outputs are."""

    shape: tuple[int, ...]
    sizes: dict[str, Any]
    output: str = "logits"


_OWN = {
    "audio-spectrogram-transformer": Case((64, 128), {"max_length": 64}),
    "wav2vec2-bert": Case((60, 160), {"feature_projection_input_dim": 160}),
    "whisper": Case((80, 200), {"max_source_positions": 100, "num_mel_bins": 80}),
    "vivit": Case(VIDEO, {"num_frames": 4, "tubelet_size": [2, 8, 8]}),
    "vjepa2": Case(VIDEO, {"frames_per_clip": 4, "crop_size": 32}),
}
FORECASTS = {
    "patchtst (classes)": ("PatchTSTForClassification", "prediction_logits"),
    "patchtst (forecast)": ("PatchTSTForPrediction", "prediction_outputs"),
    "patchtst (regression)": ("PatchTSTForRegression", "regression_outputs"),
    "patchtsmixer (classes)": ("PatchTSMixerForTimeSeriesClassification", "prediction_outputs"),
    "patchtsmixer (forecast)": ("PatchTSMixerForPrediction", "prediction_outputs"),
    "patchtsmixer (regression)": ("PatchTSMixerForRegression", "regression_outputs"),
}


def cases() -> dict[str, tuple[str, Case]]:
    """Every family with the class and the case of it."""
    sound, video = (
        getattr(auto, f"MODEL_FOR_{name}_CLASSIFICATION_MAPPING_NAMES")
        for name in ("AUDIO", "VIDEO")
    )
    found = {name: (kind, _OWN.get(name, Case(SOUND, {}))) for name, kind in sound.items()}
    for name, kind in video.items():
        found[name] = (kind, _OWN.get(name, Case(VIDEO, {"num_frames": 4})))
    for name, (kind, output) in FORECASTS.items():
        found[name] = (kind, Case(SERIES, _SERIES, output))
    return found


def listen(family: str, name: str, case: Case) -> Row:
    """Builds the family, explains two signals, and looks at the residual."""
    try:
        with limited(120):
            kind = getattr(transformers, name)
            made = prepared(kind, **_convolutions(kind), **case.sizes)
            chance = torch.Generator().manual_seed(5)
            given = torch.randn(2, *case.shape, generator=chance, dtype=torch.float64)
            forward = None if case.output == "logits" else _first_channel(case.output)
            explainer = wherefrom.Explainer(made, forward=forward)
            with torch.no_grad(), Casts() as casts:
                argument = signal_argument(explainer.runner)
                logits = explainer.runner.run({argument: given}).flatten(1)
            found = explainer(given, target=logits.abs().argmax(-1).tolist())
    except Exception as error:
        return Row(family, name, "not run", note=reason(error))
    residual = max(each.ledger.relative for each in found)
    closes = verdict(residual, casts.narrower, smallest_reach(found))
    units = found[0].units
    return Row(
        family, name, closes, residual, casts.narrower,
        f"{units[0].text}, {units[1].text}, …", len(units),
    )  # fmt: skip


def _convolutions(kind: Any) -> dict[str, Any]:
    """Small convolutions in front of the blocks, as many as the family has."""
    plain = kind.config_class()
    if not hasattr(plain, "conv_dim"):
        return {}
    return {
        "conv_dim": [16] * len(plain.conv_dim), "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4, "classifier_proj_size": 16,
    }  # fmt: skip


def _first_channel(output: str) -> Any:
    """How a model of series is run: its numbers for the first channel, one for each later step."""

    def forward(model: Any, inputs: Any) -> torch.Tensor:
        numbers: torch.Tensor = getattr(model(**inputs), output)
        return numbers[..., 0] if numbers.ndim == 3 else numbers

    return forward


def table(rows: list[Row]) -> str:
    """The families of signals as a section in Markdown."""
    closed = sum(row.verdict == "closed" for row in rows)
    lines = [
        SIGNALS, "",
        f"`python -m benchmarks.signal_families`, transformers {transformers.__version__}, torch "
        f"{torch.__version__.partition('+')[0]}. All families of `AutoModelForAudioClassification` "
        "and `AutoModelForVideoClassification`, and two of series; the bounds are those above.", "",
        f"The ledger of `lrp` closes on **{closed} of {len(rows)}**.", "",
        "| family | class | verdict | residual | casts to float32 | units | named |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        residual = "" if row.residual is None else f"{row.residual:.1e}"
        cells = (
            row.family, row.kind, row.verdict, residual, "yes" if row.casts else "",
            "" if row.units is None else str(row.units), row.note.replace("|", "/"),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(
    only: Annotated[str | None, typer.Option(help="Comma-separated family names.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the section here.")] = None,
) -> None:
    """Prints the section."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    wanted = only.split(",") if only else None
    rows = []
    for family, (name, case) in sorted(cases().items()):
        if wanted is None or family in wanted:
            rows.append(listen(family, name, case))
            typer.echo(f"{rows[-1].verdict:8} {family:28} {rows[-1].residual} {rows[-1].note}")
    if out is not None:
        before, _, after = out.read_text("utf-8").partition(SIGNALS)
        _, mark, rest = after.partition(SEEING)
        text = f"{before.rstrip()}\n\n{table(rows)}"
        out.write_text(f"{text}\n{mark}{rest}" if mark else text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
