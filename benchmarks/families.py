"""The family matrix: does the ledger of `lrp` close on every family that transformers has?

    python -m benchmarks.families [--vision] [--only bert,gpt2] [--out docs/families.md]

Every family is built tiny and random from its config, in float64, its biases and norms made
anything but zero and one, and explained on two token sequences of different length. Closed means
that |residual| / |output| is under 1e-9, or under 1e-5 where the family itself casts to float32
(most do so within their norms), and that the input has a part in the output. With --vision: the
families that classify images, on two images.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

import wherefrom
from benchmarks.family_rows import Casts, Row, limited, reason, smallest_reach, verdict
from benchmarks.tiny import TASKS, model
from wherefrom import Method
from wherefrom.errors import ModelError

IDS = [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 2]]
TEXT_TASKS = ("classify", "write", "translate", "fill")


_DRAFTS = "drafts with keys and values of the model that it assists, and cannot be run alone"
NOT_READ = {
    "gemma3n": "needs the library timm, which needs torchvision; gemma3n_text is its text model",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "layoutlmv2": "needs the library detectron2",
    "reformer": "its own backward pass fails outside training mode; `occlusion` works",
    "voxtral_realtime": "takes a text only with the sound that it transcribes",
}
REMARKS = {
    "mra": "without its CUDA kernel, transformers gives zeros in place of its attention",
}
_OWN_BACKWARD = "has an autograd Function with its own backward pass, which does not conserve"
_SIGN = (
    "multiplies by the sign of a number that depends on the units, to which `lrp` gives relevance "
    "that ends there; `secant` closes"
)
OPEN = {
    "recurrent_gemma": _OWN_BACKWARD,
    "qwen4_exp": _SIGN,
    "qwen4_exp_text": _SIGN,
    "yoso": _OWN_BACKWARD,
}


def measure(family: str, task: str, method: str | Method = "lrp") -> Row:
    """Builds the family, explains two sequences, and looks at the residual."""
    kind = TASKS[task][family]
    kind = kind if isinstance(kind, str) else kind[0]
    if family in NOT_READ:
        return Row(family, kind, "not run", note=NOT_READ[family])
    try:
        with limited(60):
            made = model(family, task)
    except Exception as error:
        return Row(family, kind, "not run", note=f"no tiny model from its config: {reason(error)}")
    note = ""
    try:
        with limited(300):
            try:
                found, casts = explained(made, task, method)
            except ModelError:
                # some families have masks or casts of their own that only float32 can be run with
                found, casts = explained(made.float(), task, method)
                note = "all: it cannot be run in float64"
    except Exception as error:
        return Row(family, kind, "not run", note=reason(error))
    narrow = casts or bool(note)
    residual = max(each.ledger.relative for each in found)
    closes = verdict(residual, narrow, smallest_reach(found))
    return Row(family, kind, closes, residual, narrow, note)


def explained(made: Any, task: str, method: str | Method) -> tuple[Any, bool]:
    """The explanations of the two sequences, and whether the model casts to float32."""
    explainer = wherefrom.Explainer(made)
    writes = task == "translate" and made.config.is_encoder_decoder
    prefix = {"decoder_input_ids": torch.tensor([[1]])} if writes else {}
    with torch.no_grad(), Casts() as casts:
        logits = explainer.runner.run({"input_ids": torch.tensor(IDS[:1]), **prefix})
    # relative to an output near zero even rounding is large: ask for the largest there is
    row = logits[0] if logits.ndim == 2 else logits[0, -1]
    options = {"position": 1} if task == "fill" else {}
    found = explainer(IDS, method, target=int(row.abs().argmax()), **options)
    return found, casts.narrower


def images(made: Any) -> torch.Tensor:
    """Two images of the size that the model takes, float64."""
    config = getattr(made.config, "vision_config", made.config)
    size = getattr(config, "image_size", 64)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    chance = torch.Generator().manual_seed(5)
    channels = getattr(config, "num_channels", 3)
    return torch.randn(2, channels, height, width, generator=chance, dtype=torch.float64)


NOT_SEEN = {
    "dinat": "needs the library natten",
    "shieldgemma2": "a language model that is asked yes or no about an image and a text",
    "timm_wrapper": "needs the library timm, which needs torchvision",
}


def shown(family: str, made: Any) -> tuple[torch.Tensor, Any]:
    """What a family is shown, and how it is run where its own forward does not say.

    ImageGPT reads the numbers of colours as ids, SigLIP 2 rows of patches.
    """
    if family == "imagegpt":
        return torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(5)), None
    if family == "pp_lcnet":  # its scores have another name
        return images(made), lambda model, inputs: model(**inputs).last_hidden_state
    if family == "siglip2":
        return torch.nn.functional.unfold(images(made), 8, stride=8).mT, None
    return images(made), None


class _OfPatches(torch.nn.Module):
    """A model of rows of patches, which all images have as many of."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        shapes = torch.tensor([[4, 4]]).expand(len(x), -1)
        return self.model(x, torch.ones(x.shape[:2], dtype=torch.long), shapes)


def see(family: str) -> Row:
    """Builds the family, explains two images, and looks at the residual."""
    kind = TASKS["see"][family]
    kind = kind if isinstance(kind, str) else kind[0]
    if family in NOT_SEEN:
        return Row(family, kind, "not run", note=NOT_SEEN[family])
    try:
        with limited(300):
            made = model(family, "see")
    except Exception as error:
        return Row(family, kind, "not run", note=f"no tiny model from its config: {reason(error)}")
    try:
        with limited(300):
            given, forward = shown(family, made)
            made = _OfPatches(made) if given.ndim == 3 else made
            explainer = wherefrom.Explainer(made, forward=forward)
            name = "x" if given.ndim == 3 else "input_ids" if given.ndim == 2 else "pixel_values"
            with torch.no_grad(), Casts() as casts:
                logits = explainer.runner.run({name: given})
            given = given.tolist() if name == "input_ids" else given
            found = explainer(given, target=logits.abs().argmax(-1).tolist())
    except Exception as error:
        return Row(family, kind, "not run", note=reason(error))
    residual = max(each.ledger.relative for each in found)
    closes = verdict(residual, casts.narrower, smallest_reach(found))
    return Row(family, kind, closes, residual, casts.narrower, units=len(found[0]))


def families() -> list[tuple[str, str]]:
    """Each family once, with the first task that it has a head for."""
    found: dict[str, str] = {}
    for task in TEXT_TASKS:
        for family in TASKS[task]:
            found.setdefault(family, task)
    return sorted(found.items())


def table(rows: list[Row]) -> str:
    """The matrix as Markdown."""
    closed = [row for row in rows if row.verdict == "closed"]
    exact = sum(not row.casts for row in closed)
    lines = [
        "# The family matrix",
        "",
        f"`python -m benchmarks.families`, transformers {transformers.__version__}, "
        f"torch {torch.__version__.partition('+')[0]}.",
        "",
        f"The ledger of `lrp` closes on **{len(closed)} of {len(rows)} families**: on {exact} with "
        "|residual| / |output| < 1e-9 in float64, on the other "
        f"{len(closed) - exact} with < 1e-5, since these cast to float32 themselves (most within "
        "their norms). No line of the library names a family.",
        "",
        "| family | class | verdict | residual | casts to float32 |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        if row.verdict != "not run":
            cast = row.note or ("yes" if row.casts else "")
            lines.append(
                f"| {row.family} | {row.kind} | {row.verdict} | {row.residual:.1e} | {cast} |"
            )
    still_open = [row.family for row in rows if row.verdict == "open"]
    if still_open:
        lines += ["", "## Open", ""]
        lines += [f"- `{name}` {OPEN.get(name, 'is not understood yet')}." for name in still_open]
        lines += [
            "",
            "Beyond what the number type allows, `lrp` warns with [`NotConserved`](ledger.md) and "
            "names the place.",
        ]
    remarks = [f"`{row.family}`: {REMARKS[row.family]}." for row in rows if row.family in REMARKS]
    lines += ["", *remarks] if remarks else []
    lines += ["", "## Not run", "", "| family | class | reason |", "|---|---|---|"]
    lines += [
        f"| {row.family} | {row.kind} | {row.note.replace('|', '/')} |"
        for row in rows
        if row.verdict == "not run"
    ]
    return "\n".join(lines) + "\n"


IMAGES = "## Images\n"
SIGNALS = "## Sound, video and series"
SEEING = "## Images with texts"


def table_of_images(rows: list[Row]) -> str:
    """The matrix of vision as a section in Markdown."""
    run = [row for row in rows if row.verdict != "not run"]
    closed = [row for row in run if row.verdict == "closed"]
    lines = [
        IMAGES,
        f"`python -m benchmarks.families --vision`, transformers {transformers.__version__}, "
        f"torch {torch.__version__.partition('+')[0]}. All families of "
        "`AutoModelForImageClassification`, on two images; the bounds are those above.",
        "",
        f"The ledger of `lrp` closes on **{len(closed)} of {len(rows)} families**; {len(run)} "
        "could be run.",
        "",
        "| family | class | verdict | residual | casts to float32 | units |",
        "|---|---|---|---|---|---|",
    ]
    for row in run:
        cast = "yes" if row.casts else ""
        lines.append(
            f"| {row.family} | {row.kind} | {row.verdict} | {row.residual:.1e} | {cast} | "
            f"{row.units} |"
        )
    still_open = [row for row in run if row.verdict == "open"]
    if still_open:
        lines += ["", "Open:", ""]
        lines += [
            f"- `{row.family}` {OPEN.get(row.family, 'is not understood yet')}."
            for row in still_open
        ]
    lines += ["", "Not run:", "", "| family | class | reason |", "|---|---|---|"]
    lines += [
        f"| {row.family} | {row.kind} | {row.note.replace('|', '/')} |"
        for row in rows
        if row.verdict == "not run"
    ]
    return "\n".join(lines) + "\n"


def written(path: Path, text: str) -> str:
    """The page with its part about texts, or that about images, made new."""
    texts, mark, rest = (path.read_text("utf-8") if path.exists() else "").partition(IMAGES)
    if not text.startswith(IMAGES):
        return f"{text}\n{mark}{rest}" if mark else text
    _, signals, others = rest.partition(SIGNALS)
    return f"{texts.rstrip()}\n\n{text}" + (f"\n{signals}{others}" if signals else "")


def main(
    vision: Annotated[bool, typer.Option("--vision", help="Families that see images.")] = False,
    only: Annotated[str | None, typer.Option(help="Comma-separated family names.")] = None,
    secant: Annotated[bool, typer.Option(help="Texts by secant, from token 1.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the matrix here.")] = None,
) -> None:
    """Prints the matrix."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    wanted = only.split(",") if only else None
    method = wherefrom.method("secant", root=1) if secant else wherefrom.method("lrp")
    rows = []
    chosen = [(family, "see") for family in sorted(TASKS["see"])] if vision else families()
    for family, task in chosen:
        if wanted is None or family in wanted:
            start = time.perf_counter()
            row = see(family) if vision else measure(family, task, method)
            rows.append(row)
            shown = "" if row.residual is None else f"{row.residual:.1e}"
            took = time.perf_counter() - start
            typer.echo(f"{row.verdict:8} {family:28} {shown:9} {took:5.1f} s  {row.note}")
    text = table_of_images(rows) if vision else table(rows)
    typer.echo(text)
    if out is not None:
        out.write_text(written(out, text), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
