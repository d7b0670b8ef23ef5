"""Many rows: memory of the driver, and Ray's throughput beside that of local processes.

    python -m benchmarks.scale memory --rows 10000,100000,1000000
    python -m benchmarks.scale throughput --rows 20000

`memory` has a model of one tiny layer and texts of two words, since what is measured is the process
that coordinates; with --no-explain the workers read the parts and do nothing with them.
`throughput` explains sentences with the embedded model: two local processes with half of the rows
each, and Ray with two workers, take turns. Other work on the machine disturbs the time; beside it
stands the processor time of all processes.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.corpus import sentences

_STORE = 200_000_000  # bytes of Ray's object store
app = typer.Typer(help=__doc__)


def tiny_explainer() -> Any:
    """A model of one layer with two heads of four numbers, and the embedded model's tokenizer."""
    import torch

    from wherefrom import Explainer, load
    from wherefrom.models.bert import BertForSequenceClassification

    embedded = load("sentiment")
    config = replace(
        embedded.runner.model.config, hidden_size=8, intermediate_size=8, num_attention_heads=2,
        num_hidden_layers=1,
    )  # fmt: skip
    torch.manual_seed(0)
    return Explainer(BertForSequenceClassification(config).eval(), embedded.tokenizer)


def resident() -> float:
    """Megabytes that this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


class ReadOnly:
    """Work that takes a part as it was read, and gives what `run` gives for it."""

    def __call__(self, part: Any) -> dict[str, Any]:
        """Counts the rows."""
        return {"part": part.name, "explained": len(part.texts), "rejected": 0, "size": part.size}


def driver_memory(rows: int, folder: str, explain: bool) -> tuple[float, float]:
    """Megabytes of the driver after the first part, and the most that it had until the end."""
    import ray

    import wherefrom
    from wherefrom.runs.engine import Engine
    from wherefrom.runs.parts import ColumnNames, open_source

    home = Path(folder)
    home.mkdir(parents=True)
    with (home / "rows.jsonl").open("w", encoding="utf-8") as file:
        for k in range(rows):
            file.write(json.dumps({"text": f"film {k}"}) + "\n")
    ray.init(
        "local", num_cpus=2, object_store_memory=_STORE, include_dashboard=False,
        log_to_driver=False,
    )  # fmt: skip
    sizes: list[float] = []
    if explain:
        wherefrom.run(
            tiny_explainer(), home / "rows.jsonl", home / "out", "gradient_x_input",
            engine="ray", workers=2, part_rows=1000, batch_size=1000, batch_tokens=10_000,
            progress=lambda *_: sizes.append(resident()),
        )  # fmt: skip
    else:
        source = open_source(home / "rows.jsonl", ColumnNames(), 1000)
        for _ in Engine("ray", workers=2).results(source.pieces, ReadOnly()):
            sizes.append(resident())
    return sizes[1], max(sizes)


@app.command()
def memory(rows: str = "10000,100000", explain: bool = True) -> None:
    """Prints the memory of the driver for several numbers of rows."""
    for number in map(int, rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            code = (
                "from benchmarks.scale import driver_memory\n"
                f"print(*driver_memory({number}, {folder + '/rows'!r}, {explain}))"
            )
            start = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
            )
            first, most = map(float, done.stdout.split()[-2:])
            typer.echo(
                f"{number:>9,} rows: {first:.0f} MB after the first part, at most {most:.0f} MB "
                f"({time.monotonic() - start:.0f} s)"
            )


@app.command()
def throughput(
    rows: int = 20_000,
    rounds: int = 1,
    folder: Annotated[Path | None, typer.Option(help="Where to write; by default aside.")] = None,
) -> None:
    """Prints rows a second of two local processes and of Ray with two workers."""
    from wherefrom import load

    home = Path(tempfile.mkdtemp(prefix="scale-")) if folder is None else folder
    home.mkdir(exist_ok=True)
    some = sentences(load("sentiment").tokenizer, min(rows, 1000))
    texts = (some * -(-rows // len(some)))[:rows]
    halves = {"a": texts[: rows // 2], "b": texts[rows // 2 :], "all": texts}
    for name, part in halves.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in part)
        (home / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    for number in range(rounds):
        local = _timed(
            [[f"{home}/{half}.jsonl", "--out", f"{home}/{half}-{number}"] for half in "ab"]
        )
        ray = ["--engine", "ray", "--workers", "2"]
        on_ray = _timed([[f"{home}/all.jsonl", "--out", f"{home}/ray-{number}", *ray]])
        for name, (seconds, processor) in (("two local processes", local), ("Ray", on_ray)):
            typer.echo(
                f"{name:20} {rows / seconds:7.1f} rows/s, {1000 * processor / rows:.2f} ms of "
                f"processor time a row ({seconds:.0f} s, {processor:.0f} s of processor time)"
            )
        typer.echo(
            f"ratio: {local[0] / on_ray[0]:.2f} by time, {local[1] / on_ray[1]:.2f} by processor "
            "time"
        )


def _timed(commands: list[list[str]]) -> tuple[float, float]:
    """Seconds until all of these runs are through, and processor time of all their processes."""
    mark = f"WHEREFROM_BENCHMARK={secrets.token_hex(8)}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", name: value}
    start, used = time.monotonic(), {}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "wherefrom", "run", "--method", "lrp", *command],
            env=environment,
        )
        for command in commands
    ]
    for step in count():
        if all(process.poll() is not None for process in processes):
            break
        if step % 4 == 0:
            used |= _processor_seconds(mark.encode())
        time.sleep(0.05)
    seconds = time.monotonic() - start
    if any(process.returncode for process in processes):
        raise SystemExit("a run failed")
    return seconds, sum(used.values())


def _processor_seconds(mark: bytes) -> dict[int, float]:
    """The processor time of each process that has the mark in its environment."""
    seconds = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                seconds[int(folder.name)] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            continue
    return seconds


if __name__ == "__main__":
    app()
