"""The inside of an explanation as text: what each layer, head, neuron and expert carries."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from wherefrom.errors import counted, printable
from wherefrom.show.sentence import sentence
from wherefrom.show.terminal import console_text, make_console, wants_color
from wherefrom.show.text_marks import heading, signed

KINDS: dict[Literal["head", "neuron", "expert"], str] = {
    "head": "heads", "neuron": "neurons", "expert": "experts",
}  # fmt: skip
LEGEND = (
    "stream: relevance of what enters the layer; enters later: that of constants and inputs which "
    "enter after that. Attention and MLP: the part that flows through them; the rest "
    "bypasses them. Parts of several layers do not add up: relevance passes through all layers."
)
NO_LAYERS = "The model has no repeated blocks, so there are no layers to look into."
_STRONGEST = 6  # of a kind
_CLOSED = 1e-4  # of the relevance of units: smaller numbers are rounding

Numbers = NDArray[np.float64]


def text(inside: Any, color: bool | None = None, width: int | None = None) -> str:
    """A row for each layer, then the strongest heads, neurons and experts."""
    explanation = inside.explanation
    console = make_console(wants_color() if color is None else color, width)
    source = printable(f"{explanation.method_label}  {explanation.model}")
    console.print(Text(printable(heading(explanation)), style="bold"), Text(source, style="dim"))
    console.print(Text(printable(sentence(explanation))))
    for claim in claims(inside):
        console.print(Text(claim))
    if inside.depth:
        console.print()
        console.print(_table(inside))
        console.print()
        for kind, noun in KINDS.items():
            strongest = inside.top(kind, _STRONGEST)
            if strongest:
                parts = " · ".join(f"{name} {signed(value)}" for name, value in strongest)
                console.print(Text(f"{noun}  {parts}"))
        console.print(Text(LEGEND, style="dim"))
    for warning in explanation.warnings:
        console.print(Text(printable(f"warning: {warning}"), style="yellow"))
    return console_text(console)


def _table(inside: Any) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    head, *rows = layer_rows(inside)
    for name in head:
        is_name = name.startswith("strongest")
        table.add_column(name, justify="left" if is_name else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def layer_rows(inside: Any) -> list[list[str]]:
    """A table of the layers, its head first: what enters a layer and what its parts carry."""
    streams, parts = stream_cuts(inside), {kind: of_layers(inside, kind) for kind in _PARTS}
    best = {kind: strongest_of_layers(inside, kind) for kind in ("head", "expert")}
    best = {kind: names for kind, names in best.items() if any(names)}
    head = ["layer", "stream", "enters later", *_PARTS.values()]
    rows = [[*head, *(f"strongest {kind}" for kind in best)]]
    for layer, cut in enumerate(streams):
        is_end = layer == inside.depth
        values = [parts[kind].get(layer) for kind in _PARTS]
        rows.append(
            [
                "end" if is_end else str(layer),
                signed(cut.relevance),
                signed(cut.later),
                *("" if value is None else signed(value) for value in values),
                *("" if is_end else names[layer] for names in best.values()),
            ]
        )
    return rows


_PARTS = {"attention": "attention", "mlp": "MLP"}


def stream_cuts(inside: Any) -> list[Any]:
    """The cut before each block, and the one after the last block."""
    blocks = [cut for cut in inside.cuts if cut.moment.place == "block"]
    return [*blocks, *[cut for cut in inside.cuts if cut.moment.place == "end"][-1:]]


def of_layers(inside: Any, kind: str) -> dict[int, float]:
    """What attention or the MLP of each layer carries."""
    named = inside.top(kind, max(1, inside.depth))
    return {int(name.split(".")[1]): value for name, value in named}


def strongest_of_layers(inside: Any, kind: str) -> list[str]:
    """The number and relevance of the strongest head or expert of each layer."""
    table: Numbers = inside.heads if kind == "head" else inside.experts
    names = []
    for row in table:
        sizes = np.where(np.isnan(row), -1.0, np.abs(row))
        best = int(sizes.argmax()) if row.size and sizes.max() >= 0 else None
        names.append("" if best is None else f"{best} {signed(float(row[best]))}")
    return names


def claims(inside: Any) -> list[str]:
    """What the numbers say: whether cuts sum to the output, and which parts carry most."""
    if not inside.depth:
        return [NO_LAYERS]
    name, whole = _whole(inside)
    gap = max(abs(cut.total - whole) for cut in inside.cuts)
    size = abs(whole) + max(float(np.abs(cut.units).sum()) for cut in inside.cuts)
    counts = f"{counted(inside.depth, 'layer')}, {counted(len(inside.cuts), 'cut')}"
    sums = f"{counts}: each sums to {name}, {signed(whole)}, within {gap:.0e}."
    if gap > _CLOSED * size:
        sums = f"{counts}: they do not sum to {name}, {signed(whole)}; one misses it by {gap:.2g}."
    return [sums, *filter(None, [_layer_claim(inside), _head_claim(inside)])]


def _whole(inside: Any) -> tuple[str, float]:
    """What cuts sum to, in words and as a number."""
    ledger = inside.explanation.ledger
    reference = 0.0 if ledger is None else ledger.of("reference")
    words = "the output" if not reference else "the output minus that for the reference"
    return words, inside.output - reference


def _layer_claim(inside: Any) -> str:
    """The layer whose attention, and the one whose MLP carries most."""
    parts = []
    for kind, noun in (("attention", "attention"), ("mlp", "the MLP")):
        for name, value in inside.top(kind, 1):
            parts.append(f"{noun} carries most in layer {name.split('.')[1]} ({signed(value)})")
    text = ", ".join(parts)
    return f"By size, {text}." if text else ""


def _head_claim(inside: Any) -> str:
    """The heads with the largest and the smallest relevance."""
    heads = inside.heads
    if not np.isfinite(heads).any():
        return ""
    parts: list[str] = []
    for best, sign, words in (
        (np.nanargmax(heads), 1, "largest relevance"), (np.nanargmin(heads), -1, "most negative"),
    ):  # fmt: skip
        layer, head = np.unravel_index(best, heads.shape)
        value = float(heads[layer, head])
        if value * sign > 0:
            verb = "" if parts else "has "
            parts.append(f"layer.{layer}.head.{head} {verb}the {words} ({signed(value)})")
    count = int(np.isfinite(heads).sum())
    return f"Of {counted(count, 'head')}, {', '.join(parts)}." if parts else ""


def column_labels(inside: Any) -> list[str]:
    """The text of each unit, of a blank one its number, and the other rows if they matter."""
    labels = [unit.text.strip() or str(i) for i, unit in enumerate(inside.units)]
    return [*labels, "other rows"] if _has_other_rows(inside) else labels


def by_column(inside: Any) -> dict[str, Numbers]:
    """Relevance of the stream, of attention and of MLPs, each by layer and `column_labels`."""
    sums = {"stream": [cut.relevance for cut in stream_cuts(inside)]}
    for kind, noun in _PARTS.items():
        of_each = of_layers(inside, kind)
        sums[noun] = [of_each.get(layer, 0.0) for layer in range(inside.depth)]
    tables: dict[str, Numbers] = dict(
        zip(sums, (inside.layers, inside.attention, inside.mlps), strict=True)
    )
    if not _has_other_rows(inside):
        return tables
    return {
        name: np.column_stack([units, np.array(sums[name]) - units.sum(1)])
        for name, units in tables.items()
    }


def _has_other_rows(inside: Any) -> bool:
    """Whether the stream has rows that hold no unit, such as an extra token, with relevance."""
    cuts = stream_cuts(inside)
    others = max(abs(cut.relevance - cut.units.sum()) for cut in cuts)
    return bool(others > _CLOSED * max(np.abs(cut.units).sum() for cut in cuts))
