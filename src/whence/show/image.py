"""An image with its patches coloured: drawn as SVG, with the picture inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from whence.explanation import Explanation
from whence.show.marks import signed

_MOST_CELLS = 4096


@dataclass(frozen=True)
class Cell:
    """A rectangle of the image with its score, and its strength from −1 to 1."""

    left: float
    top: float
    width: float
    height: float
    score: float
    strength: float


def is_image(explanation: Explanation) -> bool:
    """Whether the units lie in an image."""
    return (explanation.scene or {}).get("kind") == "image"


def cells(explanation: Explanation, most: int = _MOST_CELLS) -> list[Cell]:
    """The units as rectangles; where there are too many, their sums over a coarser grid."""
    scene = explanation.scene or {}
    found: dict[tuple[float, float, float, float], float] = {}
    size = 1
    while len(explanation) / size**2 > most:
        size *= 2
    for unit, score in zip(explanation.units, explanation.scores.tolist(), strict=True):
        left, top, right, bottom = unit.box or (0, 0, scene["width"], scene["height"])
        if size > 1:
            wide, high = (right - left) * size, (bottom - top) * size
            left, top = left // wide * wide, top // high * high
            right, bottom = left + wide, top + high
        box = (left, top, right - left, bottom - top)
        found[box] = found.get(box, 0.0) + score
    scale = max(map(abs, found.values()), default=0.0) or 1.0
    return [Cell(*box, score, score / scale) for box, score in found.items()]


def heatmap(explanation: Explanation, smooth: bool = True, bare: bool = False) -> str:
    """The picture in grey with its cells over it; `bare` is the picture as it is."""
    scene = explanation.scene or {}
    width, height = scene["width"], scene["height"]
    label = "the image as the model saw it" if bare else f"heatmap by {explanation.method}"
    tone = "" if bare else ' class="under"'
    picture = (
        f'<image href="data:image/png;base64,{escape(str(scene["png"]), quote=True)}" '
        f'width="{width}" height="{height}" preserveAspectRatio="none"{tone}/>'
    )
    drawn = "" if bare else _drawn(cells(explanation), smooth, f"{width}x{height}")
    return (
        f'<svg class="image" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{picture}{drawn}</svg>'
    )


def _drawn(found: Sequence[Cell], smooth: bool, key: str) -> str:
    small = min((min(cell.width, cell.height) for cell in found), default=1.0)
    rects = []
    for cell in found:
        size = abs(cell.strength)
        if size < 0.02:
            continue
        tint = "for" if cell.strength > 0 else "against"
        rects.append(
            f'<rect x="{cell.left}" y="{cell.top}" width="{cell.width}" height="{cell.height}" '
            f'style="fill:rgba(var(--{tint}),{0.9 * size:.2f})">'
            f"<title>{signed(cell.score)}</title></rect>"
        )
    if not smooth:
        return f"<g>{''.join(rects)}</g>"
    # blurred by less than half a patch: neighbours flow into each other, none is lost
    return (
        f'<filter id="soft{key}"><feGaussianBlur stdDeviation="{0.45 * small:.2f}"/></filter>'
        f'<g filter="url(#soft{key})">{"".join(rects)}</g>'
    )


def gallery(columns: Sequence[Sequence[Explanation]]) -> str:
    """Methods as rows and classes as columns; with one class, a card for each method."""
    first = columns[0]
    if len(columns) == 1:
        cards = "".join(_card(each, each.method, _sums(each)) for each in first)
        return f'<div class="cards">{_card(first[0], "the image", "", bare=True)}{cards}</div>'
    head = "".join(f"<th>{escape(str(column[0].target))}</th>" for column in columns)
    rows = []
    for place, each in enumerate(first):
        drawn = "".join(f"<td>{heatmap(column[place])}</td>" for column in columns)
        rows.append(f"<tr><td>{escape(each.method)}</td>{drawn}</tr>")
    return (
        f'<div class="cards">{_card(first[0], "the image", "", bare=True)}</div>'
        f'<table class="classes"><tr><th>method</th>{head}</tr>{"".join(rows)}</table>'
    )


def _card(explanation: Explanation, title: str, note: str, bare: bool = False) -> str:
    return (
        f"<figure>{heatmap(explanation, bare=bare)}<figcaption>{escape(title)}"
        f'<br><span class="dim">{escape(note)}</span></figcaption></figure>'
    )


def _sums(explanation: Explanation) -> str:
    if explanation.ledger is None:
        return "\u00a0"
    return f"adds up to {signed(explanation.ledger.total)}"
