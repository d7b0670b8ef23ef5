"""Memory and time of `lrp` on long inputs, with blocks kept and with blocks run a second time.

    python -m benchmarks.memory [--lengths 512,2048,8192] [--out docs/data/memory.json --draw]

The model is a decoder of 135 million parameters with random weights (30 blocks, 9 heads, 3 of them
with keys of their own). Each point is a process of its own: the peak is that of its resident memory
beyond what it had before, the time that of its processor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

WAYS = {"kept": None, "recomputed": 0.36}  # GB of the limit for each 2,048 tokens; None: all free
PLOT = Path("docs/images/memory.png")


def decoder(length: int, layers: int = 30) -> Any:
    """A decoder with the sizes of SmolLM2-135M and random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=max(8192, length),
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def measure(length: int, limit: float | None, layers: int) -> dict[str, float]:
    """One explanation: peak bytes, seconds of processor time, and the residual of the ledger."""
    import torch

    from wherefrom import Explainer
    from wherefrom.core.memory import memory_in_use

    torch.set_num_threads(1)
    explainer, device = Explainer(decoder(length, layers)), torch.device("cpu")
    ids = torch.randint(5, 49_000, (length,)).tolist()
    explainer(ids[:16], target=7)  # what is loaded or allocated once
    before = peak = memory_in_use(device) or 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, memory_in_use(device) or 0.0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    explanation = explainer(ids, target=7, memory=limit)
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    assert explanation.ledger is not None
    return {
        "length": length,
        "layers": layers,
        "bytes": peak - before,
        "seconds": seconds,
        "residual": explanation.ledger.relative,
        "checksum": float(abs(explanation.scores).sum()),
    }


def table(points: list[dict[str, Any]]) -> str:
    """The points as a table in Markdown, a row for each length."""
    rows = [
        "| tokens | kept | recomputed | bytes a token | time, kept | recomputed |",
        "|--:" * 6 + "|",
    ]
    by_key = {(point["length"], point["way"]): point for point in points}
    for length in sorted({point["length"] for point in points}):
        kept, again = by_key.get((length, "kept")), by_key.get((length, "recomputed"))
        cells = [
            f"{length:,}",
            "–" if kept is None else f"{kept['bytes'] / 1e9:.2f} GB",
            "–" if again is None else f"{again['bytes'] / 1e9:.2f} GB",
            "–" if again is None else f"{again['bytes'] / length / 1e3:.0f} KB",
            "–" if kept is None else f"{kept['seconds']:.0f} s",
            "–" if again is None else f"{again['seconds']:.0f} s",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """Peak memory over the length, both axes logarithmic, and a line of slope one."""
    from wherefrom.show.plot_style import AXIS, COLORS, GRID, saved_figure

    with saved_figure(path, figsize=(6, 3.8), layout="constrained") as figure:
        axes = figure.add_subplot()
        for way, color, marker in zip(WAYS, COLORS[1::-1], "os", strict=True):
            chosen = sorted((p["length"], p["bytes"] / 1e9) for p in points if p["way"] == way)
            lengths, sizes = zip(*chosen, strict=True)
            axes.plot(lengths, sizes, marker=marker, color=color, label=f"blocks {way}")
            if way == "recomputed":
                ends = (lengths[0], lengths[-1])
                linear = [sizes[-1] * end / lengths[-1] for end in ends]
                axes.plot(
                    ends, linear, color=AXIS, linestyle=":", label="proportional to the length"
                )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        ticks = sorted({p["length"] for p in points})
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.grid(color=GRID)
        axes.set_xlabel("tokens")
        axes.set_ylabel("peak memory beyond weights (GB)")
        axes.legend(frameon=False)


def main(
    lengths: Annotated[str, typer.Option(help="Comma-separated.")] = "512,1024,2048,4096,8192",
    ways: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(WAYS),
    layers: int = 30,
    out: Annotated[Path | None, typer.Option(help="Points measured before stay.")] = None,
    draw: Annotated[bool, typer.Option(help="Draw the points of --out.")] = False,
    single: Annotated[float | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measures each length both ways and prints the table."""
    if single is not None:  # in a process of its own; 0: no limit
        print(json.dumps(measure(int(lengths), single or None, layers)))
        return
    points: list[dict[str, Any]] = []
    if out is not None and out.exists():
        points = json.loads(out.read_text(encoding="utf-8"))
    for length in map(int, lengths.split(",")) if lengths else ():
        for way in ways.split(","):
            share = WAYS[way]
            limit = 0.0 if share is None else share * 1e9 * length / 2048 * layers / 30
            command = [sys.executable, "-m", "benchmarks.memory", "--lengths", str(length)]
            command += ["--layers", str(layers), "--single", str(limit)]
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            point = {"way": way, **json.loads(finished.stdout.splitlines()[-1])}
            print(json.dumps(point), flush=True)
            same = [p for p in points if (p["length"], p["way"]) == (length, way)]
            points = [p for p in points if p not in same] + [point]
            if out is not None:
                out.write_text(json.dumps(points, indent=1) + "\n", encoding="utf-8")
    print(table(points))
    if draw:
        plot(points, PLOT)


if __name__ == "__main__":
    typer.run(main)
