"""What an answer costs: a span and the matrix, by the lengths of prompt and answer.

    python -m benchmarks.answers.cost --model FOLDER [--prompts 512,2048,8192]
                                      [--answers 16,128,512] [--rows 8] [--out FILE.json]
                                      [--page docs/answers.md]

Random tokens, one thread, processor time; every cell in a process of its own, whose peak of memory
is taken above that of the loaded model. `forward` is what `answer` takes, `span` the explanation of
the whole answer from its graph. Of the matrix so many `rows` are measured, at once as memory
permits, and the time of all is computed from their mean, unless these are all. `--out` keeps what
was measured: a second call continues.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.processes import Worker, forget_peak, memory, quiet, reason
from benchmarks.race import write_part


def measured(folder: str, prompt: int, answer: int, rows: int) -> dict[str, float]:
    """The seconds and mebibytes of one cell."""
    import torch

    import wherefrom

    torch.set_num_threads(1)
    explainer = wherefrom.load(folder)
    config = explainer.runner.model.config  # tokens are random: how far it was trained is no matter
    config.max_position_embeddings = max(config.max_position_embeddings, prompt + answer)
    draw = torch.Generator().manual_seed(prompt + answer)
    ids = torch.randint(5, config.vocab_size, (prompt + answer,), generator=draw).tolist()
    explainer.answer(ids[:8], ids[-2:]).of()  # weights are read into memory when they are used
    loaded = memory("VmRSS")
    forget_peak()
    began = time.process_time()
    result = explainer.answer(ids[:prompt], ids[prompt:])
    forward = time.process_time()
    result.of()
    span, peak = time.process_time(), memory("VmHWM") - loaded
    attribution, count = result.attribution, min(rows, answer)
    attribution.some(result.measured, range(answer - count, answer))  # type: ignore[union-attr]
    return {
        "forward": forward - began,
        "span": span - forward,
        "row": (time.process_time() - span) / count,
        "rows": count,
        "mebibytes": peak,
        "matrix_mebibytes": memory("VmHWM") - loaded,
    }


def serve(folder: str, prompt: int, answer: int, rows: int, orders: Any) -> None:
    """A cell's process: says once what it measured."""
    quiet()
    try:
        orders.send(measured(folder, prompt, answer, rows))
    except Exception as error:
        orders.send({"error": reason(error)})


def table(cells: dict[str, dict[str, Any]]) -> str:
    """A Markdown table of all cells."""
    lines = [
        "| prompt × answer tokens | first span | a further span | matrix | memory: span | matrix |",
        "|---" * 6 + "|",
    ]
    for name, cell in cells.items():
        prompt, answer = map(int, name.split("x"))
        title = f"{prompt:,} × {answer:,}"
        if "error" in cell:
            lines.append(f"| {title} | {cell['error']} | | | | |")
            continue
        whole = cell["forward"] + answer * cell["row"]
        how = "" if cell["rows"] == answer else f", computed from {cell['rows']} rows"
        lines.append(
            f"| {title} | {cell['forward'] + cell['span']:.1f} s | {cell['span']:.1f} s | "
            f"{whole:,.0f} s{how} | {cell['mebibytes'] / 1024:.2f} GiB | "
            f"{cell['matrix_mebibytes'] / 1024:.2f} GiB |"
        )
    return "\n".join(lines)


def main(
    model: Annotated[str, typer.Option(help="A folder with a model and its tokenizer.")] = "",
    prompts: Annotated[str, typer.Option(help="Tokens of the prompt.")] = "512,2048,8192",
    answers: Annotated[str, typer.Option(help="Tokens of the answer.")] = "16,128,512",
    rows: Annotated[int, typer.Option(help="Rows of the matrix that are measured.")] = 8,
    out: Annotated[Path | None, typer.Option(help="A JSON file; continued if it is there.")] = None,
    page: Annotated[Path | None, typer.Option(help="A page to write the table into.")] = None,
) -> None:
    """Measures the cells that are not there yet and prints the table."""
    from wherefrom.storage.writing import write_text

    cells: dict[str, dict[str, Any]] = {}
    if out is not None and out.exists():
        cells = json.loads(out.read_text(encoding="utf-8"))
    for prompt in map(int, prompts.split(",")):
        for answer in map(int, answers.split(",")):
            name = f"{prompt}x{answer}"
            if name in cells:
                continue
            worker = Worker()
            cells[name] = worker.begin(serve, model, prompt, answer, rows)
            worker.stop()
            typer.echo(f"{name}: {cells[name]}", err=True)
            if out is not None:
                write_text(out, json.dumps(cells) + "\n")
    cells = dict(sorted(cells.items(), key=lambda item: [int(n) for n in item[0].split("x")]))
    typer.echo(table(cells))
    if page is not None:
        write_part(page, "cost", table(cells))


if __name__ == "__main__":
    typer.run(main)
