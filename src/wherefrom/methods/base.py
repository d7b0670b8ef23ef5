"""The base class of methods, and the scores that they return."""

from __future__ import annotations

import warnings
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from wherefrom.core.explanation import plural
from wherefrom.core.memory import is_out_of_memory
from wherefrom.core.runner import Batch
from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case, SpanTarget
from wherefrom.core.torch_internals import version_of
from wherefrom.errors import NotEnoughMemory, RoundingOnly, ScoresNotFinite, counted, use_method

if TYPE_CHECKING:
    from wherefrom.methods.forward_graph import ForwardGraph

Advance = Callable[[int, int], None]  # done, all
Notes = dict[int, str]  # a caveat by the index of its sample


@dataclass(frozen=True)
class Scores:
    """The scores of a batch, with their parts and ledger.

    `logits` are those at the input, if the method ran the model there. `lines` are those of the
    ledger: (label, kind) to a value for each sample. `warnings` has a tuple for each sample, or is
    empty. `errors` are the standard errors of scores that are estimates.
    """

    values: Tensor  # (B, units)
    logits: Tensor | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)  # each (B, units)
    lines: dict[tuple[str, str], Tensor] | None = None  # each (B,)
    warnings: tuple[tuple[str, ...], ...] = ()
    errors: Tensor | None = None  # (B, units)


_ROUNDING = 8  # rounding error of a gradient, in machine epsilons


def warn_of_rounding(
    label: str, values: Tensor, summed: Tensor, dtype: torch.dtype
) -> dict[int, str]:
    """Warns of samples whose scores are no larger than the rounding error of their terms.

    `summed` are the sums of the absolute terms of `values`. Returns the warnings by sample.
    """
    largest, sizes = values.abs().amax(1), summed.abs().amax(1)
    lost = (sizes > 0) & (largest <= _ROUNDING * torch.finfo(dtype).eps * sizes)
    messages = {
        i: f"{label}: the scores are rounding errors and explain nothing (terms of "
        f"{float(sizes[i]):.0e} cancel to {float(largest[i]):.0e}). This happens in front of a "
        "norm, whose derivative removes gradient × input. Read the input at the first block, or "
        "use the method lrp."
        for i in lost.nonzero().flatten().tolist()
    }
    for message in list(messages.values())[:1]:  # one for the batch
        warnings.warn(message, RoundingOnly, stacklevel=3)
    return messages


def notes_on_zeros(label: str, values: Tensor) -> Notes:
    """Caveats of samples without a score: no gradient reaches their units."""
    zeros = (values == 0).all(1).nonzero().flatten().tolist()
    message = (
        f"{label}: all scores are zero, since the gradient is zero at every unit, as behind a "
        "rounding or a saturated function. Compare with the method occlusion."
    )
    return dict.fromkeys(zeros, message)


def by_sample(count: int, *messages: dict[int, str]) -> tuple[tuple[str, ...], ...]:
    """The warnings of each of `count` samples; empty if there are none."""
    if not any(messages):
        return ()
    return tuple(tuple(each[i] for each in messages if i in each) for i in range(count))


def require_finite(scores: Scores, label: str, case: Case, finite_at: str = "") -> None:
    """Raises an error for scores that are NaN or infinite although the output is finite."""
    bad = ~scores.values.isfinite().reshape(len(scores.values), -1).all(1)
    if not bool(bad.any()):
        return
    place = f"; at the output of {finite_at} it is still finite" if finite_at else ""
    advice = use_method("occlusion")
    if case.runner.dtype in (torch.float16, torch.bfloat16):
        start = {"remedy": "Run the model in float32.", "command": "Run with --dtype float32."}
        start["page"] = "Serve the model in float32."
        advice = {front: f"{start[front]} {text}" for front, text in advice.items()}
    raise ScoresNotFinite(
        f"{label}: the scores of {int(bad.sum())} of {counted(len(bad), 'input')} are NaN or "
        f"infinite, since the gradient overflows or is undefined{place}.",
        **advice,
    )


class Method(ABC):
    """Scores every unit of every sample. Subclasses are frozen dataclasses.

    Their fields are their settings; `wherefrom methods` shows the first line of their docstring.
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""

    @restores_state
    def __call__(self, case: Case) -> Scores:
        """The scores of a batch; callers split one that fails (`split_on_failure`)."""
        release_graph(case.runner.model)
        with self.naming_memory(case) if len(case.batch) == 1 else nullcontext():
            scores = self.scores(case)
        if isinstance(scores, Scores):  # `check_method` reports other results
            require_finite(scores, self.label, case)
        return scores

    @contextmanager
    def naming_memory(self, case: Case) -> Iterator[None]:
        """Adds the method and the input to an out-of-memory error."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise self._too_large(error, case) from error

    def _too_large(self, error: Exception, case: Case) -> NotEnoughMemory:
        count = int(case.batch.mask.sum())
        label, noun = self.resolved(case.batch).label, plural(case.batch.noun) or "units"
        what = f"{label} on one input of {count:,} {noun}"
        allowed = case.runner.allowed_memory
        if isinstance(error, NotEnoughMemory):
            return NotEnoughMemory(error.needed, error.allowed, error.at_least, what)
        return NotEnoughMemory(allowed, allowed, at_least=True, what=what)

    def resolved(self, inputs: Batch) -> Method:
        """The same method with "auto" settings resolved for this kind of input."""
        return self

    def graph(self, case: Case) -> ForwardGraph | None:
        """One forward pass whose graph can explain any target at these positions.

        None for a method that needs other passes.
        """
        return None

    @abstractmethod
    def scores(self, case: Case) -> Scores:
        """The scores of a batch; padding gets zero."""

    def each(
        self,
        case: Case,
        places: range,
        advance: Advance | None = None,
    ) -> list[Scores]:
        """The scores of each position of a target; calls `advance(done, all)` after each."""
        target = case.target
        assert isinstance(target, SpanTarget)
        rows: list[Scores] = []
        for place in places:
            rows.append(self(case.with_target(target.within(place, place + 1))))
            if advance is not None:
                advance(len(rows), len(places))
        return rows

    def settings(self) -> dict[str, Any]:
        """The fields in a form that JSON can represent."""
        return {f.name: as_json(getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]

    @property
    def label(self) -> str:
        """The name with all settings that are not the default: `integrated_gradients(steps=64)`.

        Methods with the same label compute the same scores, so results are keyed by it.
        """
        return self._labelled(lambda value, default: value != default)

    @property
    def short_label(self) -> str:
        """The label without "auto" settings that were resolved to 0 or None.

        `lrp(root=unk)`: the unknown token was chosen, and attention weights get no relevance.
        """
        return self._labelled(
            lambda value, default: value != default and (bool(value) or default != "auto")
        )

    def _labelled(self, shows: Callable[[Any, Any], bool]) -> str:
        settings = self.settings()
        changed = [
            f"{f.name}={settings[f.name]}"
            for f in fields(self)  # type: ignore[arg-type]
            if f.name in settings and shows(settings[f.name], as_json(_default(f)))
        ]
        return f"{self.name}({', '.join(changed)})" if changed else self.name


def _default(setting: Field[Any]) -> Any:
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


def as_json(value: Any) -> Any:
    """A setting for JSON: a tensor as shape and checksum, a function as its name."""
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"tensor{tuple(value.shape)} {zlib.crc32(content.numpy().tobytes()):08x}"
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", None) or repr(value)


_LATEST: weakref.WeakKeyDictionary[nn.Module, weakref.ref[GraphCache]] = weakref.WeakKeyDictionary()


class GraphCache:
    """Keeps the graph of one forward pass until the next pass of the model.

    A graph is valid only while the model's weights are unchanged. Copies of a cache are empty.
    """

    def __init__(self) -> None:
        self._graph: ForwardGraph | None = None
        self._label = ""
        self._weights: Weights = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphCache, ()

    def graph(
        self, model: nn.Module, label: str, run: Callable[[], ForwardGraph | None]
    ) -> ForwardGraph | None:
        """The cached graph of the method with this label, else the result of `run`."""
        if self._graph is None or (label, _weights(model)) != (self._label, self._weights):
            release_graph(model)
            self._graph, self._label, self._weights = run(), label, _weights(model)
            _LATEST[model] = weakref.ref(self)
        return self._graph

    def release(self) -> None:
        """Drops the graph and frees its memory."""
        self._graph = None


def release_graph(model: nn.Module) -> None:
    """Drops the graph that is kept of a model: the next pass may need its memory."""
    latest = _LATEST.pop(model, None)
    cache = None if latest is None else latest()
    if cache is not None:
        cache.release()


Weights = tuple[tuple[int, int], ...]


def _weights(model: nn.Module) -> Weights:
    """The tensors of a model by id, and how often each was written into."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple((id(tensor), version_of(tensor)) for tensor in tensors)
