"""Running a model: the model with its settings, a batch of inputs, and the one policy if it fails.

A batch that fails is halved, then run alone, then rejected with the reason.
"""

from __future__ import annotations

import inspect
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from wherefrom.core.explanation import Unit
from wherefrom.core.memory import allowed_memory, is_out_of_memory, release_memory
from wherefrom.core.scope import Scope
from wherefrom.core.torch_internals import without_function_modes
from wherefrom.errors import (
    InputError,
    MethodError,
    ModelError,
    NotEnoughMemory,
    NotFinite,
    SamplesRunAlone,
    TooLong,
    WherefromError,
    first_line,
)


def same_logits(expected: Tensor, actual: Tensor) -> bool:
    """Whether two runs agree to a thousandth of the largest logit."""
    scale = float(expected.abs().max())
    return torch.allclose(expected, actual, rtol=1e-3, atol=1e-3 * scale)


_RAW_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
# of embedding, and of an index; not of topk, whose k exceeds the length of a short input
_OUTSIDE_A_TABLE = re.compile(r"index out of range in self|index \d+ is out of bounds")
Forward = Callable[[nn.Module, Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class Layout:
    """How rows of units make up a model's input tensor, such as an image its patches."""

    shape: tuple[int, ...]  # of one sample's tensor
    units: int
    features: int
    places: Tensor  # (numbers of a sample,): the index of each among those of all rows
    cut: bool = True  # whether the model itself divides the tensor into these units
    stacked: bool = True  # whether the model takes an axis of samples in front of `shape`

    def split(self, whole: Tensor) -> Tensor:
        """The rows (B, units, features) of a tensor (B, *shape); zero where it has no number."""
        whole = whole if self.stacked else whole.unsqueeze(0)
        rows = whole.new_zeros(len(whole), self.units * self.features)
        rows[:, self.places.to(whole.device)] = whole.flatten(1)
        return rows.reshape(len(whole), self.units, self.features)

    def whole(self, rows: Tensor) -> Tensor:
        """The tensor (B, *shape) that these rows make up; (*shape) if not `stacked`."""
        numbers = rows.flatten(1).index_select(1, self.places.to(rows.device))
        return numbers.reshape(*([len(rows)] * self.stacked), *self.shape)


@dataclass(frozen=True)
class Batch:
    """A batch of tensors with its named units.

    `fields` names the tensors that hold the units, in order; `mask` is False for padding.
    With a `layout` the field of floats holds rows of units that make up the model's input.
    `noun` is the name of a unit, `scenes` what each sample's units are drawn on. `missing` is the
    default replacement of a missing unit: "unk", or "mean", the mean embedding.
    """

    tensors: Mapping[str, Tensor]
    fields: tuple[str, ...]
    units: tuple[tuple[Unit, ...], ...]
    mask: Tensor  # (B, units) bool
    texts: tuple[str | None, ...]
    blanks: Mapping[str, int] = field(default_factory=dict)  # ids of pad, unk, mask
    layout: Layout | None = None
    noun: str = "word"
    scenes: tuple[Mapping[str, Any] | None, ...] = ()
    missing: str | None = None
    vocabulary: int | None = None  # the number of token ids, if it is known

    def __len__(self) -> int:
        return len(self.units)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor in the form that the model takes."""
        if self.layout is None or name not in self.fields or not tensor.is_floating_point():
            return tensor
        return self.layout.whole(tensor)

    @property
    def places(self) -> int:
        """The number of positions at which a language model has an output: of its last ids."""
        ids = [name for name in self.fields if not self.tensors[name].is_floating_point()]
        return self.tensors[(ids or self.fields)[-1]].shape[1]

    def model_tensors(self) -> dict[str, Tensor]:
        """All tensors in the form that the model takes."""
        return {name: self.whole(name, tensor) for name, tensor in self.tensors.items()}

    def token_id(self, token: str | int) -> int:
        """The id of a baseline token: pad, unk or mask by name, or any id."""
        if isinstance(token, int):
            if token < 0 or (self.vocabulary is not None and token >= self.vocabulary):
                most = "or more" if self.vocabulary is None else f"to {self.vocabulary - 1}"
                raise InputError(f"there is no token {token}: the ids of this model are 0 {most}.")
            return token
        if token not in ("pad", "unk", "mask"):
            raise MethodError(
                f'there is no baseline "{token}"; there are: zero, mean, pad, unk, mask.'
            )
        if token not in self.blanks:
            known = ", ".join(("zero", "mean", *self.blanks))
            raise InputError(
                f'this model has no "{token}" token to replace a unit by; there are: {known}.'
            )
        return self.blanks[token]

    def special(self) -> Tensor:
        """Which units are special tokens, (B, units) bool; False for padding."""
        special = torch.zeros_like(self.mask, device="cpu")
        flags = [unit.special for units in self.units for unit in units]
        special[self.mask.cpu()] = torch.tensor(flags, dtype=torch.bool)
        return special

    def with_tensors(self, changed: Mapping[str, Tensor]) -> Batch:
        """The same units with some tensors replaced."""
        return replace(self, tensors={**self.tensors, **changed})

    def take(self, rows: Sequence[int]) -> Batch:
        """Some of the samples, with the same padding."""
        if (
            list(rows) == [0] and len(self) == 1
        ):  # some tensors have no axis of samples in this case
            return self
        index = torch.as_tensor(rows)
        return replace(
            self,
            tensors={name: tensor[index] for name, tensor in self.tensors.items()},
            units=tuple(self.units[i] for i in rows),
            mask=self.mask[index],
            texts=tuple(self.texts[i] for i in rows),
            scenes=tuple(self.scenes[i] for i in rows) if self.scenes else (),
        )


@dataclass(frozen=True)
class ModelRunner:
    """A model and how to run it: in evaluation mode, never changed.

    `memory`: the bytes that a pass may use in addition to those in use; None for all free memory.
    `restores`: whether attributes and hooks that modules set while they run are restored; a
    user's module may count its runs. `around` runs the model in place of `run`, which it calls with
    a runner without it: for interventions.
    """

    model: nn.Module
    forward: Forward | None = None
    memory: float | None = None
    restores: bool = False
    around: Around | None = None

    @property
    def name(self) -> str:
        """The model's name in results and messages."""
        config = getattr(self.model, "config", None)
        path = str(
            getattr(config, "_name_or_path", "") or getattr(self.model, "name_or_path", "") or ""
        )
        return path.rstrip("/").rpartition("/")[2] or type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The number type of the model's first floating-point parameter, if it has one."""
        weights = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(weights, None)

    @property
    def allowed_memory(self) -> float:
        """The bytes that a pass may use."""
        return allowed_memory(self.memory, self.device)

    @property
    def virtual_tokens(self) -> int:
        """The number of virtual tokens that a PEFT adapter puts before the input."""
        configs = getattr(self.model, "peft_config", None)
        name = getattr(self.model, "active_adapter", None)
        config = (
            configs.get(name) if isinstance(configs, Mapping) and isinstance(name, str) else None
        )
        learnt = bool(getattr(config, "is_prompt_learning", False))
        return int(getattr(config, "num_virtual_tokens", 0)) if learnt else 0

    def _without_virtual_tokens(self, tensors: Mapping[str, Tensor], logits: Tensor) -> Tensor:
        """The logits at the positions of the input, without those of virtual tokens."""
        ids = tensors.get("decoder_input_ids", tensors.get("input_ids"))
        is_language_model = callable(getattr(self.model, "get_output_embeddings", None))
        if ids is None or logits.ndim != 3 or self.forward is not None or not is_language_model:
            return logits
        beyond = logits.shape[1] - ids.shape[1]
        if beyond <= 0:
            return logits
        if beyond != self.virtual_tokens:
            raise ModelError(
                f"{self.name} gives {logits.shape[1]} outputs for {ids.shape[1]} tokens: it "
                "inserts virtual tokens at unknown positions. Explain the model without them."
            )
        with without_function_modes():  # not a call of the model
            return logits[:, beyond:]

    @property
    def task(self) -> str:
        """The task in the name of the model's class, such as "SequenceClassification"; or empty."""
        name = type(self.model).__name__.removeprefix("Peft")
        return name.partition("For")[2]

    def takes(self, *arguments: str) -> bool:
        """Whether the model's forward has arguments of these names."""
        return _argument_names(self.model.forward).issuperset(arguments)

    def by_position(self, argument: str) -> ModelRunner:
        """The same runner; passes its tensor by position if forward names it differently."""
        parameters = list(inspect.signature(self.model.forward).parameters.values())
        if self.forward is not None or any(
            p.name == argument or p.kind is p.VAR_KEYWORD for p in parameters
        ):
            return self
        required = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        ]
        if len(required) > 1:
            raise ModelError(
                f"{self.name} needs {', '.join(required[1:])} in addition to {required[0]}.",
                "Pass a function that runs it: Explainer(model, forward=lambda model, inputs: …).",
                command="",
            )
        return replace(self, forward=_FirstArgument(argument))

    def evaluating(self, *, gradients: bool = True, inference: bool = False) -> Scope:
        """A scope with the model in evaluation mode; restores all flags."""
        return Scope(
            self.model,
            gradients=gradients and not inference,
            inference=inference,
            restores=self.restores,
        )

    @property
    def keeps_rows(self) -> bool:
        """Whether the model can compute the logits at some positions only.

        Some classifiers take the argument too, but select from the logits of all positions.
        """
        classifies = type(self.model).__name__.endswith("Classification")
        return self.forward is None and not classifies and self.takes("logits_to_keep")

    def _not_run(self, tensors: Mapping[str, Tensor], error: Exception) -> ModelError:
        """The error for a model that raised an error."""
        reason = f"{type(error).__name__}: {first_line(error)}"
        if "flexattention" in str(error).lower().replace("_", ""):
            advice = 'FlexAttention has no derivative here: load with attn_implementation="sdpa".'
        else:
            advice = (
                "Pass a function that runs it: Explainer(model, forward=lambda model, inputs: …)."
            )
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        what = f"{self.name} cannot be run on {shapes} ({reason})."
        return ModelError(what, advice, command="")

    def _with_samples(self, logits: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """The logits with axes of samples and of outputs, which some models squeeze away."""
        if logits.ndim == 0:
            logits = logits.reshape(1, 1)
        elif logits.shape[0] != 1 and min(map(len, tensors.values())) == 1:
            logits = logits.unsqueeze(0)
        elif logits.ndim == 1:
            logits = logits.unsqueeze(-1)
        if logits.ndim > 3 or not logits.numel() or logits.is_complex():
            raise ModelError(
                f"{self.name} returns {_described(logits)}: the outputs to explain must be real "
                "numbers of the shape (samples, outputs) or (samples, positions, outputs).",
                _FORWARD,
                command="",
            )
        return logits

    def run(self, tensors: Mapping[str, Tensor], positions: Tensor | None = None) -> Tensor:
        """The logits: (batch, classes), or (batch, positions, vocabulary).

        Those of a question answering model are (batch, 2, positions), for start and end.

        With `positions`, one or more for each sample, a model that supports it computes only these
        rows; the logits are then (batch, 1 or more, vocabulary).
        """
        if self.around is not None:
            return self.around(replace(self, around=None), tensors, positions)
        arguments: dict[str, Any] = dict(tensors)
        if self.forward is None and self.takes("use_cache"):
            arguments["use_cache"] = False
        rows = inverse = None
        if positions is not None and self.keeps_rows:
            rows, inverse = positions.to(self.device).unique(return_inverse=True)
            arguments["logits_to_keep"] = rows
        try:
            if self.forward is not None:
                out = self.forward(self.model, tensors)
            else:
                out = self.model(**arguments)
        except _RAW_ERRORS as error:
            if _OUTSIDE_A_TABLE.search(str(error)):
                raise TooLong(
                    f"{self.name} looks up an index that its tables do not have ({error}): "
                    "the input is most likely longer than the model allows."
                ) from error
            own = self.forward is not None and not isinstance(self.forward, _FirstArgument)
            known = type(error).__module__.partition(".")[0] in ("builtins", "torch")
            if own or not known or is_out_of_memory(error):
                raise  # from the user's code, or of an unknown class
            raise self._not_run(tensors, error) from error
        logits = self._with_samples(_logits(out, self), tensors)
        if rows is None:
            logits = self._without_virtual_tokens(tensors, logits)
        elif logits.ndim == 3 and logits.shape[1] == len(rows) > 1:
            assert inverse is not None
            with without_function_modes():  # not a call of the model
                at = inverse.reshape(len(logits), -1)
                if at.shape != (1, len(rows)):  # one sample has all rows, in order
                    samples = torch.arange(len(logits), device=logits.device).unsqueeze(1)
                    logits = logits[samples, at]
        if not bool(torch.isfinite(logits.detach()).all()):
            raise NotFinite(
                f"{self.name} gave an output that is not finite "
                f"(NaN or infinite in {int((~torch.isfinite(logits)).sum())} of {logits.numel()} "
                "places). Check its weights and its number type: float16 overflows easily."
            )
        return logits


Around = Callable[[ModelRunner, Mapping[str, Tensor], Tensor | None], Tensor]


@dataclass(frozen=True)
class _FirstArgument:
    """Runs a model on one tensor, passed by position."""

    name: str

    def __call__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        return model(tensors[self.name])


# reading a signature can take longer than a batch
_ARGUMENTS: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def _argument_names(forward: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's arguments."""
    function = getattr(forward, "__func__", forward)
    try:
        return _ARGUMENTS[function]
    except (KeyError, TypeError):  # not cached, or no weak reference to it is possible
        names = frozenset(inspect.signature(forward).parameters)
    with suppress(TypeError):
        _ARGUMENTS[function] = names
    return names


_FORWARD = "Pass forward=lambda model, inputs: … that returns the outputs to explain."


def _described(tensor: Tensor) -> str:
    kind = "complex numbers" if tensor.is_complex() else "a tensor"
    return f"{kind} of shape {tuple(tensor.shape)}"


_NESTED = (tuple, list, Mapping)


def _logits(out: Any, runner: ModelRunner) -> Tensor:
    if isinstance(out, Tensor):
        return out
    for name in ("logits", "logits_per_image"):
        logits = out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)
        if isinstance(logits, Tensor):
            return logits
    ends = [getattr(out, name, None) for name in ("start_logits", "end_logits")]
    if all(isinstance(end, Tensor) for end in ends):  # of question answering
        with without_function_modes():  # not a call of the model
            return torch.stack([end for end in ends if end is not None], 1)  # (B, 2, places)
    if isinstance(out, (tuple, list)) and not isinstance(next(iter(out), None), _NESTED):
        tensors = [part for part in out if isinstance(part, Tensor)]
        tensors = [part for part in tensors if part.ndim] or tensors  # without a loss
        rows = [part for part in tensors if part.ndim <= 2]
        config = getattr(runner.model, "config", None)
        # by convention the logits come first; other models may return a hidden state first
        is_state = bool(tensors) and (
            tensors[0].ndim == 3 and tensors[0].shape[-1] == getattr(config, "hidden_size", None)
        )
        if len(tensors) == 1 or (tensors and config is not None and not is_state):
            return tensors[0]
        if len(rows) == 1 and rows[0] is tensors[0]:  # logits and attention maps
            return tensors[0]
        if tensors:
            shapes = " and ".join(str(tuple(part.shape)) for part in tensors)
            raise ModelError(
                f"{runner.name} returns {len(tensors)} tensors, of the shapes {shapes}: it is "
                "unclear which of them holds the outputs to explain.",
                _FORWARD,
                command="",
            )
    names = ", ".join(out) if isinstance(out, Mapping) else type(out).__name__
    raise ModelError(f"the model's output has no logits (it has: {names}).", _FORWARD, command="")


Result = TypeVar("Result")
INPUT_ERRORS = (InputError, NotFinite, NotEnoughMemory)
"""Errors that one input of a batch can cause; all others concern the model or the method."""


class RowsUnclear(Exception):
    """The rows of a batch cannot be assigned to its samples: each sample must run alone."""


@dataclass(frozen=True)
class Rejected:
    """An input that could not be explained, and why."""

    index: int
    error: WherefromError


def split_on_failure(
    indices: Sequence[int],
    work: Callable[[Sequence[int]], Sequence[Result]],
    *,
    reject: bool = False,
    device: torch.device | None = None,
) -> Iterator[tuple[int, Result | Rejected]]:
    """Calls `work` on the indices and yields each index with its result.

    A batch that fails because of one input, or for lack of memory, is halved. An input that fails
    alone raises its error, or with `reject` yields a `Rejected`.
    """
    out_of_memory = False
    try:
        results = work(indices)
    except RowsUnclear as reason:
        if len(indices) == 1:
            raise
        warnings.warn(
            f"{reason}; the {len(indices)} inputs of this batch run one by one. The scores are the "
            "same.",
            SamplesRunAlone,
            stacklevel=3,
        )
        pieces = [indices[i : i + 1] for i in range(len(indices))]
    except Exception as error:
        out_of_memory = is_out_of_memory(error)
        if not (out_of_memory or isinstance(error, INPUT_ERRORS)):
            raise
        if len(indices) == 1:
            if not (reject and isinstance(error, WherefromError)):
                raise
            yield indices[0], Rejected(indices[0], error)
            return
        pieces = [indices[: len(indices) // 2], indices[len(indices) // 2 :]]
    else:
        yield from zip(indices, results, strict=True)
        return
    if out_of_memory and device is not None:
        release_memory(device)  # here, after the error and the tensors that it references are gone
    for piece in pieces:
        yield from split_on_failure(piece, work, reject=reject, device=device)
