"""Explanations: units with scores, and the ledger of all contributions to the output."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from wherefrom.errors import InputError, counted
from wherefrom.storage.record import Displayable, Record
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = "wherefrom/explanation/1"
_UNSIGNED = frozenset(
    "attention_last attention_rollout attention_flow gae transformer_attribution gradient "
    "smoothgrad".split()
)
"""Methods whose scores are never negative: attention weights, norms of gradients."""


@dataclass(frozen=True)
class Unit:
    """A token, word, patch or node.

    `start` and `end` are its span in the text; `box` its left, top, right and bottom in an image.
    """

    text: str
    start: int | None = None
    end: int | None = None
    special: bool = False
    word: int | None = None
    field: str = ""
    box: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Line:
    """One line of the ledger: a contribution to the output."""

    label: str
    kind: str  # units: word (patch, node), position, type, padding; model: token, bias
    value: float


@dataclass(frozen=True)
class Ledger:
    """output = Σ lines + residual. Under a conservative method the residual is rounding."""

    lines: tuple[Line, ...]
    output: float

    @property
    def total(self) -> float:
        """The sum of the lines."""
        return sum(line.value for line in self.lines)

    @property
    def residual(self) -> float:
        """The part of the output that the lines do not account for."""
        return self.output - self.total

    @property
    def relative(self) -> float:
        """The residual as a share of the output."""
        return abs(self.residual) / max(abs(self.output), 1e-30)

    def of(self, *kinds: str) -> float:
        """The sum of the lines of these kinds."""
        return sum(line.value for line in self.lines if line.kind in kinds)


RUNNERS_UP = "the runner-up of each token"
"""`against_label` for several tokens of an answer."""


@dataclass(frozen=True)
class TargetInfo:
    """The explained class or token, or its difference to a second one, `against`.

    `place` describes the token, for a model with outputs for every token. `through` names the
    components of the model if only what flows through them is explained.
    """

    index: int
    label: str
    against: int | None = None
    against_label: str | None = None
    position: int | None = None
    place: str | None = None
    through: str | None = None

    def __str__(self) -> str:
        return self.label if self.against_label is None else f"{self.label} − {self.against_label}"


@dataclass(frozen=True)
class Output:
    """One output of the model: a class or token, its logit, its probability if it has one."""

    label: str
    value: float
    probability: float | None = None


@dataclass(frozen=True, eq=False)
class Explanation(Displayable, Record):
    """Where one prediction comes from.

    `scores` has one float32 for each of `units`; `parts` splits them into the contributions of the
    word, its position and its type; `errors` are the standard errors of scores that are estimates.
    `scene` is the background on which units other than tokens are drawn. `warnings` are caveats
    about these scores. `largest` are the two largest outputs of the model, the prediction first.
    Explanations are equal if their JSON is equal.
    """

    schema: ClassVar[str] = SCHEMA
    noun: ClassVar[str] = "explanation"
    units: tuple[Unit, ...]
    scores: NDArray[np.float32]
    target: TargetInfo
    output: float
    probability: float | None
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ledger: Ledger | None = None
    parts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    text: str | None = None
    scene: Mapping[str, Any] | None = None
    model: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    label: str = ""  # the method with its non-default settings
    largest: tuple[Output, ...] = ()
    errors: NDArray[np.float32] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Explanation):
            return NotImplemented
        return self is other or self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.method, self.text, self.target, self.output, len(self.units)))

    def __len__(self) -> int:
        return len(self.units)

    def __repr__(self) -> str:
        count = counted(len(self), "unit")
        return f"<Explanation {self.target} {self.output:+.3f} by {self.method_label}, {count}>"

    @property
    def method_label(self) -> str:
        """The label, or the method's name without a label: `lrp(root=unk)`."""
        return self.label or self.method

    @property
    def signed(self) -> bool:
        """Whether scores have a sign; without one they show the strength, not the direction."""
        return self.method not in _UNSIGNED or self.settings.get("reduce") == "sum"

    def top(self, n: int = 5) -> list[tuple[str, float]]:
        """The n units with the largest absolute scores, except special tokens."""
        plain = [i for i, unit in enumerate(self.units) if not unit.special]
        plain.sort(key=lambda i: -abs(float(self.scores[i])))
        return [(self.units[i].text, float(self.scores[i])) for i in plain[:n]]

    def words(self) -> Explanation:
        """The explanation by words: the tokens of a word joined, their scores added.

        So are their standard errors: an upper bound of that of the sum.
        """
        import numpy as np

        if self.text is None or all(unit.word is None for unit in self.units):
            raise InputError(
                "cannot join tokens to words: the tokens have no word indices, which need a fast "
                "tokenizer and a text as the input."
            )
        groups = word_groups(self.units)

        def joined(group: list[int]) -> Unit:
            first = self.units[group[0]]
            # a space before a word may be a separate token, without a span
            starts = [self.units[i].start for i in group if self.units[i].start is not None]
            ends = [self.units[i].end for i in group if self.units[i].end is not None]
            if len(group) == 1 or self.text is None or not starts or not ends:
                return first
            start, end = starts[0], ends[-1]
            return replace(first, text=self.text[start:end], start=start, end=end)

        def summed(values: NDArray[np.float32]) -> NDArray[np.float32]:
            return np.array([values[group].sum() for group in groups], dtype=np.float32)

        return replace(
            self,
            units=tuple(joined(group) for group in groups),
            scores=summed(self.scores),
            parts={name: summed(values) for name, values in self.parts.items()},
            errors=None if self.errors is None else summed(self.errors),
        )

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        ledger = self.ledger
        return {
            "schema": self.schema,
            "method": {
                "name": self.method,
                "label": self.label,
                "settings": dict(self.settings),
            },
            "signed": self.signed,
            "model": self.model,
            "text": self.text,
            "scene": None if self.scene is None else dict(self.scene),
            "units": [asdict(unit) for unit in self.units],
            "scores": [float(score) for score in self.scores],
            "parts": {name: [float(v) for v in values] for name, values in self.parts.items()},
            "errors": None if self.errors is None else [float(e) for e in self.errors],
            "target": asdict(self.target),
            "output": self.output,
            "probability": self.probability,
            "largest": [asdict(output) for output in self.largest],
            "ledger": None
            if ledger is None
            else {
                "lines": [asdict(line) for line in ledger.lines],
                "output": ledger.output,
                "residual": ledger.residual,
            },
            "warnings": list(self.warnings),
            "versions": dict(self.versions),
        }

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        import numpy as np

        ledger = data["ledger"]
        units = tuple(unit_of(unit) for unit in data["units"])
        scores = np.array(data["scores"], dtype=np.float32)
        if scores.shape != (len(units),):
            raise ValueError(f"{len(units)} units but {scores.size} scores")
        parts = {k: np.array(v, dtype=np.float32) for k, v in data["parts"].items()}
        errors = data.get("errors")
        errors = None if errors is None else np.array(errors, dtype=np.float32)
        others = [*parts.values(), *([] if errors is None else [errors])]
        if any(values.shape != scores.shape for values in others):
            raise ValueError(f"{len(units)} units but parts or errors of a different length")
        return cls(
            units=units,
            scores=scores,
            target=TargetInfo(**data["target"]),
            output=float(data["output"]),
            probability=data["probability"],
            method=data["method"]["name"],
            settings=dict(data["method"]["settings"]),
            ledger=None
            if ledger is None
            else Ledger(tuple(Line(**line) for line in ledger["lines"]), ledger["output"]),
            parts=parts,
            text=data["text"],
            scene=data.get("scene"),
            model=data["model"],
            versions=data["versions"],
            warnings=tuple(map(str, data.get("warnings", ()))),
            label=str(data["method"].get("label", "")),
            largest=tuple(Output(**output) for output in data.get("largest", ())),
            errors=errors,
        )

    # Rendering, by modules of a higher layer, which are imported when needed

    def __str__(self) -> str:
        return str(import_module("wherefrom.show.terminal").render(self))

    def _html(self, whole_page: bool) -> str:
        return str(import_module("wherefrom.show.html").render([self], whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each unit."""
        parts = {name: values.tolist() for name, values in self.parts.items()}
        return [
            {
                "unit": unit.text,
                "score": score,
                **({} if self.errors is None else {"error": float(self.errors[i])}),
                **{name: values[i] for name, values in parts.items()},
                "start": unit.start,
                "end": unit.end,
                "special": unit.special,
            }
            for i, (unit, score) in enumerate(zip(self.units, self.scores.tolist(), strict=True))
        ]

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """`units` of "waterfall" and "bar" is the number of units that are shown by name."""
        figures: Mapping[str, Callable[..., Any]]
        figures = import_module("wherefrom.show.explanation_figure").drawings(self)
        return figures


class Comparison(Displayable, list[Explanation]):
    """Explanations of one input by several methods, from `Explainer.compare`, shown as rows."""

    def __str__(self) -> str:
        if not self:
            return "no explanations"
        return str(import_module("wherefrom.show.terminal").render_rows(self))

    def _html(self, whole_page: bool) -> str:
        if not self:
            return ""
        return str(import_module("wherefrom.show.html").render(self, whole_page))

    def _rows(self) -> list[dict[str, Any]]:
        """A row for each unit, with a column for each method."""
        names = [explanation.method_label for explanation in self]
        columns = [explanation.scores.tolist() for explanation in self]
        units = self[0].units if self else ()
        return [
            {"unit": unit.text} | dict(zip(names, scores, strict=True))
            for unit, scores in zip(units, zip(*columns, strict=True), strict=True)
        ]

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        if not self:
            return {}
        draw = import_module("wherefrom.show.explanation_figure").heatmaps
        return {"heatmap": lambda: draw(self)}

    def to_json(self, path: str | Path | None = None) -> str:
        """The explanations as a JSON list; with `path` also written there."""
        text = json.dumps(
            [explanation.to_dict() for explanation in self], ensure_ascii=False, indent=1
        )
        if path is not None:
            write_text(path, text)
        return text

    @classmethod
    def from_json(cls, source: str | Path) -> Comparison:
        """Reads JSON: a path, or the text itself."""
        return cls(Explanation.list_from_json(source))


def word_groups(units: Sequence[Unit]) -> list[list[int]]:
    """The units of each word; a unit without a word index is a group of its own."""
    groups: list[list[int]] = []
    for i, unit in enumerate(units):
        previous = units[groups[-1][0]] if groups else None
        same = previous is not None and (unit.word, unit.field) == (previous.word, previous.field)
        if unit.word is not None and same:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def plural(noun: str) -> str:
    """The plural of a noun.

    >>> [plural(noun) for noun in ("word", "patch", "bias")]
    ['words', 'patches', 'biases']
    """
    return noun + ("es" if noun.endswith(("s", "ch")) else "s")


def unit_of(data: Mapping[str, Any]) -> Unit:
    """A unit from plain data."""
    box = data.get("box")
    return Unit(**{**data, "box": None if box is None else tuple(box)})
