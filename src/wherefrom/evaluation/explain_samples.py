"""Explains the samples of an evaluation by all methods, and keeps going when one of them fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from wherefrom.core.explanation import Explanation
from wherefrom.core.runner import ModelRunner
from wherefrom.errors import InputError, ModelError, NothingIntercepted, TargetError, TooLong
from wherefrom.inputs.reader import Reader
from wherefrom.methods import Method

Failure = InputError | ModelError
_CHUNK = 16  # inputs explained in one call; progress is reported between two calls


class ExplainerLike(Protocol):
    """What an evaluation needs of an explainer."""

    runner: ModelRunner

    def __call__(self, inputs: Any, method: Any = ..., **options: Any) -> Any: ...
    def _reader(self, inputs: Any, /) -> Reader[Any, Any]: ...
    def index_of(self, label: str | int) -> int: ...


class TooFewToJudge(Exception):
    """A method has failed on all of a few inputs, and there are more to try it on."""


class NotLastPosition(InputError):
    """The explained prediction is not the one at the last position."""


@dataclass
class SampleExplainer:
    """Explains many inputs by many methods, a few at a time.

    A method that fails on all of its first inputs goes into `failed_methods` (label to reason)
    and is not tried again; if those are few and not all that there are, `TooFewToJudge` asks for
    more. An input on which one method fails is left out for all methods, so
    that they are compared on the same inputs.
    """

    explainer: ExplainerLike
    methods: list[Method]
    truncate: bool
    failed_methods: dict[str, str]
    seconds: float = 0.0
    seconds_each: dict[str, float] = field(default_factory=dict)  # an explanation, by method
    working: set[str] = field(default_factory=set)  # labels of methods that have worked once

    def __call__(
        self,
        inputs: Sequence[Any],
        targets: Sequence[int] | None,
        order: Sequence[int],
        progress: Callable[[float, str], None],
        is_all: bool = True,
    ) -> tuple[dict[str, list[Explanation]], dict[int, Failure]]:
        """Explanations by method label of the inputs that all methods explain, and the failures.

        Inputs are processed in this `order`; `progress` receives the number of methods done and
        the label of the current one. `is_all`: there are no more inputs to judge a method by.
        """
        start = time.perf_counter()
        chunks = [order[i : i + _CHUNK] for i in range(0, len(order), _CHUNK)]
        by_method: dict[str, dict[int, Explanation]] = {}
        failures: dict[int, Failure] = {}
        for number, method in enumerate(self.methods):
            label = method.label
            if label in self.failed_methods:
                continue
            explanations: dict[int, Explanation] = {}
            errors: dict[int, Failure] = {}
            fatal: ModelError | None = None
            begin = time.perf_counter()
            for chunk_number, chunk in enumerate(chunks):
                progress(number + chunk_number / len(chunks), label)
                self._explain(method, chunk, inputs, targets, explanations, errors)
                if not explanations and label not in self.working:
                    # errors of the input alone say nothing of the method: it goes on
                    fatal = next((e for e in errors.values() if isinstance(e, ModelError)), None)
                    if fatal is not None:
                        break
            if fatal is not None:
                few = len(errors) < _CHUNK and not isinstance(fatal, NothingIntercepted)
                if few and not is_all:
                    raise TooFewToJudge
                if len(self.methods) == 1:
                    raise fatal
                self.failed_methods[label] = str(fatal)
                continue
            self.working.add(label)
            self.seconds_each[label] = (time.perf_counter() - begin) / max(1, len(order))
            by_method[label] = explanations
            failures.update(errors)
        self.seconds += time.perf_counter() - start
        if not by_method:
            reason = next(iter(self.failed_methods.values()))
            raise ModelError(f"no method works on this model: {reason}")
        complete = [i for i in range(len(inputs)) if all(i in e for e in by_method.values())]
        return {label: [e[i] for i in complete] for label, e in by_method.items()}, failures

    def _explain(
        self,
        method: Method,
        chunk: Sequence[int],
        inputs: Sequence[Any],
        targets: Sequence[int] | None,
        explanations: dict[int, Explanation],
        errors: dict[int, Failure],
    ) -> None:
        """Some inputs at once; one by one if one of them makes that fail."""
        try:
            batch = self.explainer(
                [inputs[i] for i in chunk],
                method,
                target=None if targets is None else [targets[i] for i in chunk],
                truncate=self.truncate,
            )
        except (InputError, ModelError) as error:
            if len(chunk) == 1 or isinstance(error, NothingIntercepted):
                errors.update(dict.fromkeys(chunk, error))
                return
            for i in chunk:
                self._explain(method, [i], inputs, targets, explanations, errors)
            return
        for i, explanation in zip(chunk, batch, strict=True):
            position = explanation.target.position
            if position is None or position == len(explanation.units) - 1:
                explanations[i] = explanation
            else:  # metrics read the output at the last position
                errors[i] = NotLastPosition(f"the prediction is at position {position}.")


def skip_reason(error: Exception) -> str:
    """Why a sample is left out, as the counts of the result name it."""
    if isinstance(error, TooLong):
        return "too long"
    if isinstance(error, NotLastPosition):
        return "prediction not at the last position"
    if isinstance(error, TargetError):
        return "unknown class"
    return "unreadable" if isinstance(error, InputError) else "a method failed"


def check_single_input(runner: ModelRunner) -> None:
    """Refuses models of spans, and encoder-decoders that generate text from more than one text."""
    config = getattr(runner.model, "config", None)
    generates = getattr(runner.model, "can_generate", None)
    if runner.forward is None and runner.task in ("QuestionAnswering", "TokenClassification"):
        raise ModelError(
            f"{runner.name} predicts spans of its input, which cannot be evaluated. Evaluation "
            "supports classifiers and decoder-only language models."
        )
    if getattr(config, "is_encoder_decoder", False) and callable(generates) and generates():
        raise ModelError(
            f"{runner.name} generates text with a decoder, which cannot be evaluated. Evaluation "
            "supports classifiers and decoder-only language models."
        )
