"""What is no text, drawn as SVG: an image, superpixels or a molecule with its units coloured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from wherefrom.explanation import Explanation
from wherefrom.show.text_marks import signed

_MOST_CELLS = 4096
_DRAWN = ("image", "superpixels", "molecule")


@dataclass(frozen=True)
class Cell:
    """A rectangle of an image with its score, and its strength from −1 to 1."""

    left: float
    top: float
    width: float
    height: float
    score: float
    strength: float


def kind_of(explanation: Explanation) -> str:
    """What the units are drawn on, or the empty string for a text."""
    kind = str((explanation.scene or {}).get("kind", ""))
    return kind if kind in _DRAWN else ""


def cells(explanation: Explanation, most: int = _MOST_CELLS) -> list[Cell]:
    """The units of an image as rectangles; where there are too many, sums over a coarser grid."""
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
    """The picture with its units coloured; `bare` is the picture as it is."""
    scene, kind = explanation.scene or {}, kind_of(explanation)
    width, height = float(scene["width"]), float(scene["height"])
    label = "what the model was given" if bare else f"heatmap by {explanation.method}"
    form = "svg+xml" if kind == "molecule" else "png"
    data = escape(str(scene["svg" if kind == "molecule" else "png"]), quote=True)
    tone = ' class="under"' if kind != "molecule" and not bare else ""
    picture = (
        f'<image href="data:image/{form};base64,{data}" width="{width:g}" height="{height:g}" '
        f'preserveAspectRatio="none"{tone}/>'
    )
    colours = "" if bare else _colours(explanation, kind, smooth)
    # the lines of a molecule lie over its colours, the colours of an image over the image
    drawn = f"{colours}{picture}" if kind == "molecule" else f"{picture}{colours}"
    paper = '<rect width="100%" height="100%" fill="#fff"/>' if kind == "molecule" else ""
    return (
        f'<svg class="image {kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{paper}{drawn}</svg>'
    )


def _colours(explanation: Explanation, kind: str, smooth: bool) -> str:
    scene = explanation.scene or {}
    if kind == "image":
        found = cells(explanation)
        shapes = "".join(
            _shape(
                f'<rect x="{cell.left}" y="{cell.top}" width="{cell.width}" height="{cell.height}"',
                cell.score,
                cell.strength,
            )
            for cell in found
        )
        if not smooth:
            return f"<g>{shapes}</g>"
        # blurred by less than half a patch: neighbours flow into each other, none is lost
        small = min((min(cell.width, cell.height) for cell in found), default=1.0)
        key = f"soft{small:g}".replace(".", "-")
        return (
            f'<filter id="{key}"><feGaussianBlur stdDeviation="{0.45 * small:.2f}"/></filter>'
            f'<g filter="url(#{key})">{shapes}</g>'
        )
    scores = explanation.scores.tolist()
    scale = max(map(abs, scores), default=0.0) or 1.0
    forms = _circles(scene) if kind == "molecule" else _regions(scene)
    pairs = zip(forms, scores, strict=True)
    return f"<g>{''.join(_shape(form, score, score / scale) for form, score in pairs)}</g>"


def _circles(scene: Any) -> list[str]:
    """A disc at each atom, so large that neighbours just touch."""
    points = [(float(x), float(y)) for x, y in scene["points"]]
    apart = [
        ((a - c) ** 2 + (b - d) ** 2) ** 0.5
        for i, (a, b) in enumerate(points)
        for c, d in points[:i]
    ]
    radius = 0.52 * min(apart, default=60.0)
    return [f'<circle cx="{x:g}" cy="{y:g}" r="{radius:.1f}"' for x, y in points]


def _regions(scene: Any) -> list[str]:
    return [f'<path d="{escape(str(path), quote=True)}"' for path in scene["paths"]]


def _shape(form: str, score: float, strength: float) -> str:
    size = abs(strength)
    if size < 0.02:
        return ""
    tint = "for" if strength > 0 else "against"
    # a broken rim tells the signs apart without colour; cells of an image lie too close for it
    broken = strength < -0.05 and not form.startswith("<rect")
    rim = f";stroke:rgb(var(--{tint}));stroke-dasharray:3 2" if broken else ""
    return (
        f'{form} style="fill:rgba(var(--{tint}),{0.95 * size**0.7:.2f}){rim}">'
        f"<title>{signed(score)}</title>{form.split()[0].replace('<', '</')}>"
    )


def gallery(columns: Sequence[Sequence[Explanation]]) -> str:
    """Methods as rows and classes as columns; with one class, a card for each method."""
    first = columns[0]
    if len(columns) == 1:
        cards = "".join(_card(each, each.method, _sums(each)) for each in first)
        return f'<div class="cards">{_card(first[0], "as given", "", bare=True)}{cards}</div>'
    head = "".join(f"<th>{escape(str(column[0].target))}</th>" for column in columns)
    rows = []
    for place, each in enumerate(first):
        drawn = "".join(f"<td>{heatmap(column[place])}</td>" for column in columns)
        rows.append(f"<tr><td>{escape(each.method)}</td>{drawn}</tr>")
    return (
        f'<div class="cards">{_card(first[0], "as given", "", bare=True)}</div>'
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
