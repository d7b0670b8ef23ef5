"""Answers of every causal family: does the ledger of a span of several tokens close?

    python -m benchmarks.family_answers [--only gpt2,llama] [--out docs/data/family_answers.json]

Every causal family that docs/families.md has a residual of is built tiny and random from its
config, in float64. A prompt of six tokens and an answer of four are explained as contrasts. Closed
means that |residual| / Σ |lines| is under 1e-9, or under 1e-5 where the family itself casts to
float32, and that the input has a part in the lines, of the whole answer and of a part of it. What
is in the output file is not run again.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

import wherefrom
from benchmarks.family_rows import Casts, Row, limited, reason, verdict
from benchmarks.tiny import TASKS, model, model_class
from wherefrom.errors import ModelError
from wherefrom.storage.writing import write_text

PROMPT = [1, 17, 45, 8, 99, 23]
ANSWER = [33, 71, 5, 60]
MATRIX = Path(__file__).parent.parent / "docs" / "families.md"
PARTS = (slice(None), slice(1, 3))


def families() -> list[str]:
    """The causal families that the matrix could run."""
    rows = re.findall(r"^\| (\S+) \| \S+ \| (?:closed|open) \|", MATRIX.read_text("utf-8"), re.M)
    return [family for family in rows if family in TASKS["write"]]


def causal(family: str) -> Any:
    """A tiny model of the family; one that reads in both directions by default is told not to."""
    plain = model_class(family, "write").config_class()
    off = [name for name in ("is_decoder", "causal") if getattr(plain, name, None) is False]
    return model(family, "write", **dict.fromkeys(off, True))


def closing(made: Any) -> tuple[float, float]:
    """The largest |residual| and the least of the largest |score|, over parts of the answer.

    Both are shares of Σ |lines|.
    """
    answer = wherefrom.Explainer(made).answer(PROMPT, ANSWER, of="contrast")
    residuals, reaches = [], []
    for part in PARTS:
        found = answer.of(part)
        ledger = found.ledger
        size = max(sum(abs(line.value) for line in ledger.lines), abs(ledger.output), 1e-30)
        residuals.append(abs(ledger.residual) / size)
        reaches.append(float(abs(found.scores).max()) / size)
    return max(residuals), min(reaches)


def casts(made: Any) -> bool:
    """Whether the model turns float64 into something narrower."""
    with torch.no_grad(), Casts() as seen:
        wherefrom.Explainer(made).runner.run({"input_ids": torch.tensor([PROMPT])})
    return seen.narrower


def measure(family: str) -> Row:
    """Builds the family, explains an answer, and looks at the residual."""
    kind = TASKS["write"][family]
    kind = kind if isinstance(kind, str) else kind[0]
    try:
        with limited(120):
            made = causal(family)
    except Exception as error:
        return Row(family, kind, "not run", note=f"no tiny model from its config: {reason(error)}")
    try:
        with limited(180):
            try:
                narrow, (residual, reach) = casts(made), closing(made)
            except ModelError:  # of masks that only float32 can have
                narrow, (residual, reach) = True, closing(made.float())
    except Exception as error:
        return Row(family, kind, "not run", note=reason(error))
    return Row(family, kind, verdict(residual, narrow, reach), residual, narrow)


def main(
    only: Annotated[str | None, typer.Option(help="Comma-separated family names.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows here.")] = None,
) -> None:
    """Prints a row for each family."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    rows = {}
    if out is not None and out.exists():
        rows = {row["family"]: Row(**row) for row in json.loads(out.read_text("utf-8"))}
    for family in only.split(",") if only else families():
        if family in rows:
            continue
        start = time.perf_counter()
        row = rows[family] = measure(family)
        shown = "" if row.residual is None else f"{row.residual:.1e}"
        took = time.perf_counter() - start
        typer.echo(f"{row.verdict:8} {family:28} {shown:9} {took:5.1f} s  {row.note}")
        if out is not None:
            data = [asdict(rows[name]) for name in sorted(rows)]
            write_text(out, json.dumps(data, indent=1) + "\n")
    run = [row for row in rows.values() if row.verdict != "not run"]
    closed = sum(row.verdict == "closed" for row in run)
    typer.echo(f"{closed} closed of {len(run)} that ran, {len(rows)} families")


if __name__ == "__main__":
    typer.run(main)
