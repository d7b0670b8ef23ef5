"""Images, superpixels and molecules as SVG, with their units coloured."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations, pairwise
from math import cos, dist, hypot, pi, sin
from typing import Any

from wherefrom.core.explanation import Explanation
from wherefrom.show.page import breakable, table
from wherefrom.show.sentence import named_units, unit_name
from wherefrom.show.text_marks import largest_score, score_text, short_number, signed, tint

_MAX_CELLS = 4096
_MAX_NUMBERS = 400  # more cells have no room for their scores
_KINDS = ("image", "superpixels", "molecule")
_DIRECTIONS = 24  # in which the label of an atom is tried
_PATH = re.compile(r"<path [^>]*?d='([^']*)'([^>]*)>")
_STEP = re.compile(r"([MLQZ])([^MLQZ]*)")

Point = tuple[float, float]
Outline = tuple[list[tuple[str, list[Point]]], bool]  # steps M, L, Q, Z with their points; filled


@dataclass(frozen=True)
class Cell:
    """A rectangle of an image with its score, and its strength from −1 to 1."""

    left: float
    top: float
    width: float
    height: float
    score: float
    strength: float
    tint: str


def kind_of(explanation: Explanation) -> str:
    """The kind of picture that the units are drawn on; empty for a text."""
    kind = str((explanation.scene or {}).get("kind", ""))
    return kind if kind in _KINDS else ""


def cells(explanation: Explanation, limit: int = _MAX_CELLS) -> list[Cell]:
    """The units of an image as rectangles; above `limit` they are summed on a coarser grid."""
    scene = explanation.scene or {}
    totals: dict[tuple[float, float, float, float], float] = {}
    size = 1
    while len(explanation) / size**2 > limit:
        size *= 2
    for unit, score in zip(explanation.units, explanation.scores.tolist(), strict=True):
        left, top, right, bottom = unit.box or (0, 0, scene["width"], scene["height"])
        if size > 1:
            width, height = (right - left) * size, (bottom - top) * size
            left, top = left // width * width, top // height * height
            right, bottom = left + width, top + height
        box = (left, top, right - left, bottom - top)
        totals[box] = totals.get(box, 0.0) + score
    scale = max(map(abs, totals.values()), default=0.0) or 1.0
    return [
        Cell(*box, score, score / scale, tint(score, explanation.signed))
        for box, score in totals.items()
    ]


def heatmap(explanation: Explanation, smooth: bool = True, bare: bool = False) -> str:
    """The picture with its units coloured, or, if `bare`, without colours."""
    scene, kind = explanation.scene or {}, kind_of(explanation)
    width, height = float(scene["width"]), float(scene["height"])
    label = "input" if bare else f"heatmap by {explanation.method_label}"
    form = "svg+xml" if kind == "molecule" else "png"
    data = escape(str(scene["svg" if kind == "molecule" else "png"]))
    tone = ' class="under"' if kind != "molecule" and not bare else ""
    picture = (
        f'<image href="data:image/{form};base64,{data}" width="{width:g}" height="{height:g}" '
        f'preserveAspectRatio="none"{tone}/>'
    )
    colors = "" if bare else _colored_units(explanation, kind, smooth)
    # a molecule is drawn over the colours, an image under them
    drawn = f"{picture}{colors}"
    if kind == "molecule":
        drawn = f"{colors}{picture}{'' if bare else _atom_numbers(explanation)}"
    paper = '<rect width="100%" height="100%" fill="#fff"/>' if kind == "molecule" else ""
    return (
        f'<svg class="image {kind}" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{paper}{drawn}</svg>'
    )


def _colored_units(explanation: Explanation, kind: str, smooth: bool) -> str:
    scene = explanation.scene or {}
    if kind == "image":
        patches = cells(explanation)
        shapes = "".join(
            _shape(
                f'<rect x="{cell.left}" y="{cell.top}" width="{cell.width}" height="{cell.height}"',
                cell.score,
                cell.strength,
                cell.tint,
            )
            for cell in patches
        )
        signs = _signs(patches)
        if not smooth:
            return f"<g>{shapes}</g>{signs}"
        # blurred by less than half a patch, so that neighbours blend but none disappears
        smallest = min((min(cell.width, cell.height) for cell in patches), default=1.0)
        key = f"soft{smallest:g}".replace(".", "-")
        return (
            f'<filter id="{key}"><feGaussianBlur stdDeviation="{0.45 * smallest:.2f}"/></filter>'
            f'<g filter="url(#{key})">{shapes}</g>{signs}'
        )
    scores = explanation.scores.tolist()
    scale = max(map(abs, scores), default=0.0) or 1.0
    forms = _circles(scene) if kind == "molecule" else _regions(scene)
    pairs = zip(forms, scores, strict=True)
    shapes = "".join(
        _shape(form, score, score / scale, tint(score, explanation.signed)) for form, score in pairs
    )
    return f"<g>{shapes}</g>"


def _atom_numbers(explanation: Explanation) -> str:
    """The names of atoms in the sentence; with the switch, and in print, all names and scores."""
    scene, atoms = explanation.scene or {}, range(len(explanation))
    size = 0.6 * disc_radius(scene["points"])
    named, weakest = named_units(explanation), 0.05 * largest_score(explanation)
    scores = explanation.scores.tolist()
    texts = {i: unit_name(explanation, i) for i in atoms}
    numbers = {
        i: short_number(scores[i], tint(scores[i], explanation.signed))
        for i in atoms
        if abs(scores[i]) >= weakest
    }
    groups = (
        ("names", {i: [texts[i]] for i in atoms if texts[i] in named}),
        ("values", {i: [texts[i], number] for i, number in numbers.items()}),
    )
    drawn = ""
    for name, labels in groups:
        marked = ""
        for i, (x, y) in label_places(scene, labels, size).items():
            top = y - 0.5 * len(labels[i]) * size + 0.8 * size
            marked += "".join(
                f'<text x="{x:.1f}" y="{top + k * size:.1f}">{escape(line)}</text>'
                for k, line in enumerate(labels[i])
            )
        drawn += f'<g class="{name}" font-size="{size:.1f}" text-anchor="middle">{marked}</g>'
    return drawn


def outlines(scene: Mapping[str, Any]) -> list[Outline]:
    """The bonds and letters of a molecule, from its SVG by RDKit."""
    svg = base64.b64decode(scene["svg"]).decode("utf-8", "replace")
    shapes: list[Outline] = []
    for path, style in _PATH.findall(svg):
        steps = []
        for step, text in _STEP.findall(path):
            numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]
            steps.append((step, list(zip(numbers[::2], numbers[1::2], strict=False))))
        shapes.append((steps, "fill:none" not in style))
    return shapes


def label_places(
    scene: Mapping[str, Any], labels: Mapping[int, Sequence[str]], size: float
) -> dict[int, Point]:
    """The middle of the label of each atom: near the atom, but off bonds, letters and other labels.

    `labels` has the lines of each label, `size` is that of the font.
    """
    points = [(float(x), float(y)) for x, y in scene["points"]]
    radius = disc_radius(points)
    taken: list[tuple[Point, Point]] = []  # the middle and half the size of a box
    for steps, _ in outlines(scene):
        ends = [point for _, corners in steps for point in corners]
        for (x, y), (right, bottom) in pairwise(ends):
            count = max(1, round(4 * dist((x, y), (right, bottom)) / radius))
            shares = [k / count for k in range(count + 1)]
            line = [(x + share * (right - x), y + share * (bottom - y)) for share in shares]
            taken += [(point, (0.0, 0.0)) for point in line]
    places: dict[int, Point] = {}
    for i, lines in labels.items():
        half = (0.33 * size * max(map(len, lines)), 0.55 * size * len(lines))
        x, y = points[i]
        tries = []
        for away in (0.5, 1.0, 1.5):
            for k in range(_DIRECTIONS):
                angle = 2 * pi * k / _DIRECTIONS
                place = (
                    x + cos(angle) * (half[0] + away * radius / 2),
                    y + sin(angle) * (half[1] + away * radius / 2),
                )
                free = min((_gap(place, half, *box) for box in taken), default=radius)
                tries.append((min(free, 0.25 * radius) - 0.1 * away * radius, place))
        places[i] = max(tries)[1]
        taken.append((places[i], half))
    return places


def _gap(place: Point, half: Point, other: Point, other_half: Point) -> float:
    """The distance between two boxes; negative if they overlap."""
    across, down = (
        abs(a - b) - (p + q) for a, b, p, q in zip(place, other, half, other_half, strict=True)
    )
    return hypot(max(across, 0.0), max(down, 0.0)) if max(across, down) > 0 else max(across, down)


def _signs(patches: Sequence[Cell]) -> str:
    """Hatching of negative cells, for print, and the scores as numbers, for the switch."""
    hatches, numbers = "", ""
    for cell in patches:
        left, top, right, bottom = (
            cell.left, cell.top, cell.left + cell.width, cell.top + cell.height,
        )  # fmt: skip
        if cell.strength < -0.05:
            middle = f"{(left + right) / 2:g} {top:g}L{left:g} {(top + bottom) / 2:g}"
            hatches += f"M{right:g} {top:g}L{left:g} {bottom:g}M{middle}"
        if abs(cell.strength) >= 0.05 and len(patches) <= _MAX_NUMBERS:
            numbers += (
                f'<text x="{(left + right) / 2:g}" y="{(top + bottom) / 2:g}">'
                f"{cell.score:{'' if cell.tint == 'strength' else '+'}.1g}</text>"
            )
    width = min((cell.width for cell in patches), default=1.0)
    return (
        f'<path class="hatched" d="{hatches}" fill="none" stroke="#000" stroke-opacity=".55" '
        f'stroke-width="{width / 16:g}"/><g class="values" font-size="{width / 3.4:g}" '
        f'text-anchor="middle" dominant-baseline="central">{numbers}</g>'
    )


def disc_radius(points: Sequence[Point]) -> float:
    """The radius at which the discs of the closest atoms just touch.

    >>> disc_radius([(0, 0), (0, 100), (30, 40)])
    26.0
    """
    return 0.52 * min((dist(a, b) for a, b in combinations(points, 2)), default=60.0)


def _circles(scene: Any) -> list[str]:
    points = [(float(x), float(y)) for x, y in scene["points"]]
    radius = disc_radius(points)
    return [f'<circle cx="{x:g}" cy="{y:g}" r="{radius:.1f}"' for x, y in points]


def _regions(scene: Any) -> list[str]:
    return [f'<path d="{escape(str(path), quote=True)}"' for path in scene["paths"]]


def _shape(form: str, score: float, strength: float, hue: str) -> str:
    size = abs(strength)
    if size < 0.02:
        return ""
    # a dashed outline shows the sign without colour; cells of an image are too close together
    dashed = strength < -0.05 and not form.startswith("<rect")
    rim = f";stroke:rgb(var(--{hue}));stroke-dasharray:3 2" if dashed else ""
    return (
        f'{form} style="fill:rgba(var(--{hue}),{0.95 * size**0.7:.2f}){rim}">'
        f"<title>{score_text(score, hue)}</title>{form.split()[0].replace('<', '</')}>"
    )


def gallery(columns: Sequence[Sequence[Explanation]]) -> str:
    """Methods as rows and classes as columns; with one class, a card for each method."""
    first = columns[0]
    picture = _card(first[0], "input", "", bare=True)
    if len(columns) == 1:
        cards = "".join(_card(e, e.method_label, _sum(e)) for e in first)
        return f'<div class="cards">{picture}{cards}</div>'
    head = ["method", *(escape(str(column[0].target)) for column in columns)]
    rows = [
        [breakable(row[0].method_label), *map(heatmap, row)] for row in zip(*columns, strict=True)
    ]
    width = len(head)
    return f'<div class="cards">{picture}</div>{table(head, rows, width, css_class="classes")}'


def _card(explanation: Explanation, title: str, note: str, bare: bool = False) -> str:
    return (
        f"<figure>{heatmap(explanation, bare=bare)}<figcaption>{breakable(title)}"
        f'<br><span class="dim">{escape(note)}</span></figcaption></figure>'
    )


def _sum(explanation: Explanation) -> str:
    return "\u00a0" if explanation.ledger is None else f"sum {signed(explanation.ledger.total)}"
