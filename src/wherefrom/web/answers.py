"""What the page asks of the library: each answer as plain data. Used by one thread."""

from __future__ import annotations

import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.evaluation.metrics import Activation, Metric, Pruning, Sample, fractions
from wherefrom.explanation import Explanation
from wherefrom.inputs.reader import Reader
from wherefrom.methods.attention_maps import CapturedAttention as Captured
from wherefrom.methods.attention_maps import capture
from wherefrom.methods.intercept import run
from wherefrom.show.html import render
from wherefrom.show.text_marks import heading, marks
from wherefrom.studies.unit_profile import unit_profile
from wherefrom.subject import Inputs
from wherefrom.target import Target
from wherefrom.web.limits import Limits
from wherefrom.web.request import Question, number, numbers

Data = dict[str, Any]
Value = TypeVar("Value")
CURVES: dict[str, type[Metric]] = {"fill": Activation, "empty": Pruning}
_EVERY = 64  # of so many units each is a step of a curve; of more, tenths are
_LISTED = 24  # classes that are all shown; of more, the likeliest
_PLACES = 2048  # in one forward pass


@dataclass(frozen=True)
class Reading:
    """One input, read and run once."""

    reader: Reader[Any, Any]
    item: Any
    inputs: Inputs
    row: Tensor  # (classes,) logits
    target: Target  # its most likely class

    @property
    def count(self) -> int:
        """Its number of units."""
        return len(self.inputs.units[0])


@dataclass(frozen=True)
class Made:
    """An explanation, the seconds it took, and what the library warned of."""

    explanation: Explanation
    seconds: float
    notes: list[str]


class Kept(OrderedDict[Hashable, Any]):
    """The most recent of what was worked out."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def get_or(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What is known under a key, or made now."""
        if key not in self:
            self[key] = make()
            if len(self) > self.most:
                self.popitem(last=False)
        self.move_to_end(key)
        found: Value = self[key]
        return found


class Desk:
    """Answers questions about the models on the shelf."""

    def __init__(self, limits: Limits) -> None:
        self._readings = Kept(8)
        self._explained = Kept(limits.kept)
        self._maps = Kept(1)

    def predict(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """The prediction with its probabilities, and the units of the input."""
        reading = self._read(asked)
        inputs = reading.inputs
        return {
            "outputs": self._outputs(asked, reading, reading.row),
            "target": self._target(asked, reading).index.item(),  # type: ignore[union-attr]
            "units": [asdict(unit) for unit in inputs.units[0]],
            "noun": "token" if inputs.noun == "word" else inputs.noun,
            "scene": inputs.scenes[0] if inputs.scenes else None,
        }

    def explain(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """The explanation as the library gives it, what it took, and how it is shown."""
        made = self.made(asked)
        explanation = made.explanation
        return {
            "explanation": explanation.to_dict(),
            "marks": [asdict(mark) for mark in marks(explanation)],
            "heading": heading(explanation),
            "seconds": made.seconds,
            "notes": made.notes,
        }

    def erase(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """The prediction with some units removed."""
        reading = self._read(asked)
        present = np.ones((1, reading.count), dtype=bool)
        present[:, numbers(data, "removed", reading.count)] = False
        row = self._perturbed(reading, present)[0]
        target = self._target(asked, reading)
        return {
            "outputs": self._outputs(asked, reading, row),
            "output": float(target(row.unsqueeze(0))),
            "before": float(target(reading.row.unsqueeze(0))),
        }

    def curve(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """Units come back, or go, in the order of a method; the answer at every step."""
        kind = data.get("curve")
        if kind not in CURVES:
            raise InputError(f"curve is one of: {', '.join(CURVES)}.")
        reading = self._read(asked)
        explanation = self.made(asked).explanation
        every = reading.count <= _EVERY
        metric = CURVES[kind]()
        free: NDArray[np.bool_] = np.ones(reading.count, dtype=bool)
        sample = Sample(explanation, free, explanation.target.index, every)
        masks = metric.masks(sample)
        logits = self._perturbed(reading, masks).double()
        area, values = metric.value(sample, logits.numpy())
        target = self._target(asked, reading)
        outputs = torch.cat([target(row.unsqueeze(0)) for row in logits])
        shown = logits.softmax(-1)[:, explanation.target.index] if logits.shape[1] > 1 else None
        return {
            "metric": metric.title,
            "better": metric.better,
            "area": area,
            "curve": [] if values is None else values.tolist(),
            "fractions": fractions(reading.count, every),
            "present": ["".join("01"[bit] for bit in row) for row in masks.astype(int).tolist()],
            "probabilities": None if shown is None else shown.tolist(),
            "outputs": outputs.tolist(),
        }

    def layers(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """The relevance of each unit after each block, by `lrp`; first what entered."""
        reading = self._read(asked)
        found = unit_profile(reading.reader.subject, reading.inputs, self._target(asked, reading))
        first = self.made(asked, "lrp").explanation
        rows = [("input", first.scores.astype(float).tolist(), 0.0)]
        rows += [(name, row.tolist(), found.others[name]) for name, row in found.units.items()]
        return {
            "output": found.output,
            "rows": [{"name": n, "units": units, "others": rest} for n, units, rest in rows],
        }

    def attention(self, asked: Question, data: Mapping[str, Any]) -> Data:
        """One attention map: a layer, and one head or (head 0) the mean of all."""
        reading = self._read(asked)
        target = self._target(asked, reading)
        seen: Captured = self._maps.get_or(
            asked.key,
            lambda: capture(reading.reader.subject, reading.inputs, target, gradients=False),
        )
        layer = number(data, "layer", len(seen.maps))
        heads = seen.maps[layer][0]  # (heads, query, key)
        head = number(data, "head", len(heads) + 1)
        chosen = heads.mean(0) if head == 0 else heads[head - 1]
        query, key = seen.streams[layer]
        return {
            "layers": len(seen.maps),
            "heads": len(heads),
            "queries": _named(reading, seen, query, chosen.shape[0]),
            "keys": _named(reading, seen, key, chosen.shape[1]),
            "weights": [[round(w, 5) for w in row] for row in chosen.double().tolist()],
        }

    def page(self, asked: Question, methods: Sequence[str]) -> str:
        """The page that `wherefrom explain --html` and `wherefrom compare --html` write."""
        return render([self.made(asked, name).explanation for name in methods])

    def made(self, asked: Question, method: str | None = None) -> Made:
        """The explanation by a method, worked out now or remembered."""
        name = method or asked.method
        return self._explained.get_or(
            (asked.key, name, asked.target, asked.against), lambda: _explain(asked, name)
        )

    def _read(self, asked: Question) -> Reading:
        return self._readings.get_or(asked.key, lambda: _read(asked))

    def _target(self, asked: Question, reading: Reading) -> Target:
        """What is asked about, as numbers."""
        naming = asked.shown.explainer.naming

        def index(name: int | str | None) -> Tensor | None:
            return None if name is None else torch.tensor([naming.index(name)])

        chosen = index(asked.target)
        position = reading.target.position
        return Target(
            reading.target.index if chosen is None else chosen, index(asked.against), position
        )

    def _outputs(self, asked: Question, reading: Reading, row: Tensor) -> list[Data]:
        """The classes with their probabilities: all, or the likeliest and those asked about."""
        chances = row.double().softmax(-1) if len(row) > 1 else None
        target = self._target(asked, reading)
        shown = list(range(len(row)))
        if len(row) > _LISTED:
            named = [int(one) for one in (target.index, target.against) if one is not None]
            likeliest = row.topk(10).indices.tolist()
            shown = list(dict.fromkeys([*likeliest, *named]))
        name = asked.shown.explainer.naming.name
        return [
            {
                "index": i,
                "label": name(i),
                "output": float(row[i]),
                "probability": None if chances is None else float(chances[i]),
            }
            for i in shown
        ]

    def _perturbed(self, reading: Reading, present: NDArray[np.bool_]) -> Tensor:
        """The logits (K, classes) with only some units there, as evaluations run them."""
        reader = reading.reader
        if reader.size(reading.item) != reading.count:
            raise InputError("the units of a model with a decoder of its own cannot be removed.")
        forms = reader.erased(reading.item, present, None)
        step = 1 if reader.alone else max(1, _PLACES // max(1, reading.count))
        rows = []
        for at in range(0, len(forms), step):
            tensors = reader.collate(forms[at : at + step])
            with reader.subject.evaluating(), torch.inference_mode():
                logits = reader.subject.run(tensors)
            position = reading.target.position
            asked = None if position is None else position.expand(len(logits))
            rows.append(Target(position=asked).row(logits).float().cpu())
        return torch.cat(rows).clone()


def _read(asked: Question) -> Reading:
    with torch.inference_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # told with the explanation
        reader = asked.shown.explainer.reader(asked.given)
        item = reader.read(asked.given, asked.truncate)
        inputs = reader.batch([item])
        target = Target(position=reader.positions(inputs, None))
        logits = run(reader.subject, inputs)
        row = target.row(logits)[0].float().cpu()
        return Reading(reader, item, inputs, row, target.resolved(logits))


def _explain(asked: Question, method: str) -> Made:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        start = time.perf_counter()
        found = asked.shown.explainer(
            asked.given,
            method,
            target=asked.target,
            against=asked.against,
            truncate=asked.truncate,
        )
        seconds = time.perf_counter() - start
    assert isinstance(found, Explanation)
    return Made(found, seconds, [str(each.message) for each in told])


def _named(reading: Reading, seen: Captured, stream: int, size: int) -> list[str]:
    """What the places of a map are called; those of no unit, such as a class token, are dots."""
    names = ["·"] * size
    units = reading.inputs.units[0]
    span = seen.spans.get(stream)
    if span is not None:
        for k in range(min(span.width, size - span.shift)):
            names[span.shift + k] = units[span.start + k].text
    return names
