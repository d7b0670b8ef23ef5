"""Answers the page's requests with plain data. Not thread-safe: only the worker calls it."""

from __future__ import annotations

import time
import warnings
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Explanation
from wherefrom.core.runner import Batch
from wherefrom.core.shapley import Agreement
from wherefrom.core.target import Case, Target
from wherefrom.errors import InputError, TooLong, for_page
from wherefrom.evaluation.metrics import Activation, Masks, Metric, Pruning, Sample, fractions
from wherefrom.inputs.reader import Reader
from wherefrom.methods import Method
from wherefrom.methods.attention_maps import CapturedAttention, capture
from wherefrom.methods.forward_pass import run
from wherefrom.methods.propagation import Lrp
from wherefrom.methods.shapley import Shapley
from wherefrom.show.html import render
from wherefrom.show.line_kinds import reference_name
from wherefrom.show.sentence import (
    Check,
    check_sentence,
    explained,
    has_direction,
    pieces,
    sides,
    source,
    unit_name,
)
from wherefrom.show.text_marks import heading, largest_score, marks, quoted
from wherefrom.studies.layer_profile import unit_profile
from wherefrom.web.request import (
    AttentionBody,
    Body,
    CurveBody,
    Data,
    EraseBody,
    Limits,
    ParsedRequest,
    below,
)

PageRequest = ParsedRequest[Body]
Value = TypeVar("Value")
_CURVES: dict[str, type[Metric]] = {"activation": Activation, "pruning": Pruning}
_MAX_SINGLE_STEPS = 64  # curves over more units have steps of 10 %
_CONTROLS = 5  # random orders behind the control of a curve
_MAX_CLASSES = 24  # a model with more classes shows only the most likely
_TOP_CLASSES = 10
_BATCH_UNITS = 2048  # units in one forward pass
_BUDGET = 2048  # forward passes for Shapley values
_MISSING = {"unk": "are unknown words", "mean": "have the mean embedding", "remove": "are left out"}


@dataclass(frozen=True)
class Prediction:
    """One input with the model's output."""

    reader: Reader[Any, Any]
    item: Any  # the input after reading
    inputs: Batch
    logits: Tensor  # (classes,), on the CPU
    target: Target  # the most likely class, on the CPU

    @property
    def unit_count(self) -> int:
        """The number of tokens, patches or nodes."""
        return len(self.inputs.units[0])


@dataclass(frozen=True)
class TimedExplanation:
    """An explanation with its running time and its warnings."""

    explanation: Explanation
    seconds: float
    warnings: list[str]


class Cache(Generic[Value]):
    """A least-recently-used cache of at most `size` values."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """The cached value of a key, computed if it is missing."""
        if key not in self._values:
            self._values[key] = compute()
            if len(self._values) > self.size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


class Answers:
    """Answers parsed requests with the library's results."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._predictions: Cache[Prediction] = Cache(limits.cached_predictions)
        self._explanations: Cache[TimedExplanation] = Cache(limits.cached_explanations)
        self._attention: Cache[CapturedAttention] = Cache(limits.cached_attention)

    def predict(self, request: PageRequest) -> Data:
        """The classes with their probabilities, and the units of the input."""
        prediction = self._predict(request)
        inputs = prediction.inputs
        return {
            "outputs": self._outputs(request, prediction, prediction.logits),
            "target": self._target(request, prediction).index.item(),  # type: ignore[union-attr]
            "units": [asdict(unit) for unit in inputs.units[0]],
            "noun": "token" if inputs.noun == "word" else inputs.noun,
            "scene": inputs.scenes[0] if inputs.scenes else None,
        }

    def explain(self, request: PageRequest) -> Data:
        """The explanation with its text marks, running time and warnings."""
        timed = self._explain(request, request.method)
        explanation = timed.explanation
        return {
            "explanation": explanation.to_dict(),
            "reference": reference_name(explanation),
            "marks": [asdict(mark) for mark in marks(explanation)],
            "heading": heading(explanation),
            "sentence": pieces(explanation),
            "explained": f"{explained(explanation)} {source(explanation, request.model.name)}",
            "sides": sides(explanation),
            "largest": largest_score(explanation),
            "seconds": timed.seconds,
            "warnings": list(dict.fromkeys((*timed.warnings, *explanation.warnings))),
        }

    def check(self, request: PageRequest) -> Data:
        """The score and the Shapley value of each word, and how far they agree."""
        shapley = self._explain(request, Shapley(players="words", budget=_BUDGET))
        own = self._explain(request, request.method).explanation
        noun = "word" if own.text else self._predict(request).inputs.noun
        first, second = (
            one.words() if noun == "word" else one for one in (own, shapley.explanation)
        )
        assert second.errors is not None
        plain = [i for i, unit in enumerate(first.units) if not unit.special]
        scores, values = (torch.from_numpy(one.scores[plain]).double() for one in (first, second))
        agreement, errors = Agreement.of(scores, values), second.errors[plain].tolist()
        sampling = sum(errors) / (float(values.abs().sum()) or 1.0)
        numbers = Check(
            own.method_label, agreement.r, agreement.error, sampling, len(plain), noun,
            has_direction(own),
        )  # fmt: skip
        names = [unit_name(first, i) for i in plain]
        rows = zip(names, scores.tolist(), values.tolist(), errors, strict=True)
        return {
            "sentence": check_sentence(numbers),
            "method": own.method,
            "noun": noun,
            "missing": _MISSING.get(second.settings["baseline"], "are zero"),
            "rows": [{"name": n, "score": s, "value": v, "error": e} for n, s, v, e in rows],
            "seconds": shapley.seconds,
        }

    def erase(self, request: ParsedRequest[EraseBody]) -> Data:
        """The prediction with the units in the field `removed` erased."""
        prediction = self._predict(request)
        present = np.ones((1, prediction.unit_count), dtype=bool)
        for unit in request.body.removed:
            present[:, below(unit, "removed", prediction.unit_count)] = False
        logits = self._perturbed_logits(prediction, present)[0]
        target = self._target(request, prediction)
        return {
            "outputs": self._outputs(request, prediction, logits),
            "output": float(target(logits.unsqueeze(0))),
            "output_before": float(target(prediction.logits.unsqueeze(0))),
        }

    def curve(self, request: ParsedRequest[CurveBody]) -> Data:
        """The activation or pruning curve of the method, with the prediction at every step."""
        prediction = self._predict(request)
        explanation = self._explain(request, request.method).explanation
        every_unit = prediction.unit_count <= _MAX_SINGLE_STEPS
        metric = _CURVES[request.body.curve]()
        output_names = request.model.explainer.output_names
        to_probability = output_names.to_probability(len(prediction.logits))
        index, target = explanation.target.index, self._target(request, prediction)
        erasable: NDArray[np.bool_] = np.ones(prediction.unit_count, dtype=bool)

        def drawn(scores: NDArray[Any]) -> tuple[Masks, Data]:
            scored = replace(explanation, scores=scores)
            sample = Sample(scored, erasable, index, every_unit, to_probability)
            masks = metric.masks(sample)
            logits = self._perturbed_logits(prediction, masks).double()  # (steps, classes)
            probabilities = output_names.probabilities(logits)
            area, values = metric.value(sample, logits.numpy())
            return masks, {
                "area": area,
                "curve": [] if values is None else values.tolist(),
                "probabilities": None if probabilities is None else probabilities[:, index],
                "outputs": torch.cat([target(row.unsqueeze(0)) for row in logits]),
            }

        masks, own = drawn(explanation.scores)
        shuffle = np.random.default_rng(0).permutation
        controls = [drawn(shuffle(explanation.scores))[1] for _ in range(_CONTROLS)]
        control = {
            name: None if own[name] is None else torch.stack([c[name] for c in controls]).mean(0)
            for name in ("probabilities", "outputs")
        }
        control["area"] = sum(one["area"] for one in controls) / _CONTROLS
        return {
            "metric": metric.title,
            "better": metric.better,
            **_listed(own),
            "control": {**_listed(control), "count": _CONTROLS},
            "fractions": fractions(prediction.unit_count, every_unit),
            "present": ["".join("01"[bit] for bit in row) for row in masks.astype(int).tolist()],
        }

    def layers(self, request: PageRequest) -> Data:
        """The relevance of each unit at the input (first row) and after each block, by `lrp`."""
        prediction = self._predict(request)
        runner = prediction.reader.runner
        target = self._target(request, prediction).to(runner.device)
        table = Lrp().resolved(prediction.inputs).table()
        profile = unit_profile(runner, prediction.inputs, target, table)
        scores = self._explain(request, "lrp").explanation.scores
        rows = [("input", scores.astype(float).tolist(), 0.0)]
        rows += [(name, row.tolist(), profile.others[name]) for name, row in profile.units.items()]
        return {
            "output": profile.output,
            "rows": [{"name": n, "units": units, "others": rest} for n, units, rest in rows],
        }

    def attention(self, request: ParsedRequest[AttentionBody]) -> Data:
        """One attention map: a layer, and one head or (head 0) the mean of all heads."""
        prediction = self._predict(request)
        captured = self._captured(request, prediction)
        layer = below(request.body.layer, "layer", len(captured.maps) + 1) - 1
        heads = captured.maps[layer][0]  # (heads, query, key)
        head = below(request.body.head, "head", len(heads) + 1)
        weights = heads.mean(0) if head == 0 else heads[head - 1]
        query, key = captured.streams[layer]
        return {
            "layers": len(captured.maps),
            "heads": len(heads),
            "queries": _position_names(prediction, captured, query, weights.shape[0]),
            "keys": _position_names(prediction, captured, key, weights.shape[1]),
            "query_units": _position_units(captured, query, weights.shape[0]),
            "key_units": _position_units(captured, key, weights.shape[1]),
            "weights": [[round(w, 5) for w in row] for row in weights.double().tolist()],
        }

    def heads(self, request: PageRequest) -> Data:
        """All attention maps, each as rows of bytes (weight × 255) in base64."""
        prediction = self._predict(request)
        captured = self._captured(request, prediction)
        longest = max((max(maps.shape[2:]) for maps in captured.maps), default=0)
        if longest > self._limits.view_positions:
            raise InputError(
                f"all heads are shown for up to {self._limits.view_positions} tokens; this input "
                f"has {longest}. Choose the map of one head instead."
            )
        layers = []
        for maps, (query, key) in zip(captured.maps, captured.streams, strict=True):
            small = (maps[0].double() * 255).round().clamp(0, 255).to(torch.uint8).cpu()
            layers.append(
                {
                    "queries": _position_names(prediction, captured, query, maps.shape[2]),
                    "keys": _position_names(prediction, captured, key, maps.shape[3]),
                    "heads": [b64encode(head.numpy().tobytes()).decode("ascii") for head in small],
                }
            )
        return {"layers": layers}

    def row(self, request: PageRequest) -> Data:
        """The prediction for one text of a table."""
        prediction = self._predict(request)
        outputs = self._outputs(request, prediction, prediction.logits)
        best = max(outputs, key=lambda output: output["output"])
        return {"label": best["label"], "probability": best["probability"], "outputs": outputs}

    def _captured(self, request: PageRequest, prediction: Prediction) -> CapturedAttention:
        return self._attention.get(request.input_key, lambda: self._capture(request, prediction))

    def html(self, request: PageRequest, methods: Sequence[str]) -> str:
        """The file that `wherefrom explain --html` and `wherefrom compare --html` write."""
        return render([self._explain(request, name).explanation for name in methods])

    def _predict(self, request: PageRequest) -> Prediction:
        return self._predictions.get(request.input_key, lambda: _predict(request, self._limits))

    def _explain(self, request: PageRequest, method: str | Method) -> TimedExplanation:
        if method == Shapley.name:
            method = Shapley(budget=_BUDGET)
        key = (request.input_key, method, request.body.target, request.body.against)
        return self._explanations.get(key, lambda: _explain(request, method, self._limits))

    def _capture(self, request: PageRequest, prediction: Prediction) -> CapturedAttention:
        runner = prediction.reader.runner
        target = self._target(request, prediction).to(runner.device)
        return capture(Case(runner, prediction.inputs, target), gradients=False)

    def _target(self, request: PageRequest, prediction: Prediction) -> Target:
        """The target of a request, on the CPU; by default the most likely class."""
        output_names = request.model.explainer.output_names

        def index(name: int | str | None) -> Tensor | None:
            return None if name is None else torch.tensor([output_names.index(name)])

        target = index(request.body.target)
        return Target(
            prediction.target.index if target is None else target,
            index(request.body.against),
            prediction.target.position,
        )

    def _outputs(self, request: PageRequest, prediction: Prediction, logits: Tensor) -> list[Data]:
        """The classes with their probabilities; if many, the most likely ones and the target."""
        probabilities = request.model.explainer.output_names.probabilities(logits.double())
        target = self._target(request, prediction)
        indices = list(range(len(logits)))
        if len(logits) > _MAX_CLASSES:
            targets = [int(index) for index in (target.index, target.against) if index is not None]
            indices = list(dict.fromkeys([*logits.topk(_TOP_CLASSES).indices.tolist(), *targets]))
        output_names = request.model.explainer.output_names

        def name(i: int) -> str:
            label = output_names.name(i)
            return quoted(label) if output_names.is_language_model else label

        return [
            {
                "index": i,
                "label": name(i),
                "output": float(logits[i]),
                "probability": None if probabilities is None else float(probabilities[i]),
            }
            for i in indices
        ]

    def _perturbed_logits(self, prediction: Prediction, present: NDArray[np.bool_]) -> Tensor:
        """The logits (K, classes) for each row of `present`; units are erased as in evaluations."""
        reader = prediction.reader
        if reader.size(prediction.item) != prediction.unit_count:
            raise InputError("units cannot be removed for encoder-decoder models.")
        forms = reader.erased(prediction.item, present, None)
        step = 1 if reader.alone else max(1, _BATCH_UNITS // max(1, prediction.unit_count))
        position = prediction.target.position
        rows = []
        for start in range(0, len(forms), step):
            tensors = reader.collate(forms[start : start + step])
            with reader.runner.evaluating(), torch.inference_mode():
                logits = reader.runner.run(tensors)
            positions = None if position is None else position.expand(len(logits))
            row = Target(position=positions).to(logits.device).row(logits)
            rows.append(row.float().cpu())
        return torch.cat(rows).clone()


def _listed(data: Data) -> Data:
    """The data with tensors as lists."""
    return {
        name: value.tolist() if isinstance(value, Tensor) else value for name, value in data.items()
    }


def _read(request: PageRequest, limits: Limits) -> tuple[Reader[Any, Any], Any]:
    """The reader and the input that it read; raises if the input has too many units."""
    reader = request.model.explainer._reader(request.input)
    item = reader.read(request.input, request.body.truncate)
    units = reader.size(item)
    if units > limits.units:
        raise TooLong(
            f"this input has {units:,} units; the page explains up to {limits.units:,}. Explain a "
            "part of it, or use the command line."
        )
    return reader, item


def _predict(request: PageRequest, limits: Limits) -> Prediction:
    with torch.inference_mode(False), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `explain` reports them
        reader, item = _read(request, limits)
        inputs = reader.batch([item])
        logits = run(Case(reader.runner, inputs))
        target = Target(position=reader.positions(inputs, None)).to(logits.device)
        row = target.row(logits)[0].float().cpu()
        resolved = target.resolved(logits).to(row.device)
        return Prediction(reader, item, inputs, row, resolved)


def _explain(request: PageRequest, method: str | Method, limits: Limits) -> TimedExplanation:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _read(request, limits)
        caught.clear()  # the explanation raises its warnings again
        start = time.perf_counter()
        explanation = request.model.explainer(
            request.input,
            method,
            target=request.body.target,
            against=request.body.against,
            truncate=request.body.truncate,
        )
        seconds = time.perf_counter() - start
    assert isinstance(explanation, Explanation)
    return TimedExplanation(explanation, seconds, [for_page(warning.message) for warning in caught])


def _position_units(captured: CapturedAttention, stream: int, size: int) -> list[int | None]:
    """The index of the unit at each position along an axis of a map."""
    span = captured.spans.get(stream)
    units: list[int | None] = [None] * size
    if span is not None:
        for k in range(min(span.width, size - span.shift)):
            units[span.shift + k] = span.start + k
    return units


def _position_names(
    prediction: Prediction, captured: CapturedAttention, stream: int, size: int
) -> list[str]:
    """The names of the units along an axis; "·" for positions without a unit (a class token)."""
    units = prediction.inputs.units[0]
    indices = _position_units(captured, stream, size)
    return ["·" if i is None else units[i].text for i in indices]
