"""The model under explanation: how it is run, and where its inputs enter."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from wherefrom.core.explanation import Unit
from wherefrom.core.memory import allowed_memory, is_out_of_memory
from wherefrom.core.scope import Scope
from wherefrom.core.target import Target
from wherefrom.core.torch_internals import without_function_modes
from wherefrom.errors import (
    InputError,
    MethodError,
    ModelError,
    NotFinite,
    TooLong,
    first_line,
)


def same_logits(expected: Tensor, actual: Tensor) -> bool:
    """Whether two runs give the same, to a thousandth of the largest logit."""
    scale = float(expected.abs().max())
    return torch.allclose(expected, actual, rtol=1e-3, atol=1e-3 * scale)


_RAW_ERRORS = (
    TypeError,
    ValueError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    RuntimeError,
)
Forward = Callable[[nn.Module, Mapping[str, Tensor]], Any]


@dataclass(frozen=True)
class Layout:
    """How rows of units make up the tensor that a model takes: an image from its patches."""

    shape: tuple[int, ...]  # of one sample's tensor
    units: int
    features: int
    places: Tensor  # (numbers of a sample,): where each of them lies among those of all rows
    cut: bool = True  # whether the model itself cuts the tensor into these units
    stacked: bool = True  # whether the model takes samples along an axis in front of `shape`

    def split(self, whole: Tensor) -> Tensor:
        """The rows (B, units, features) of a tensor (B, *shape), zero where nothing is."""
        whole = whole if self.stacked else whole.unsqueeze(0)
        rows = whole.new_zeros(len(whole), self.units * self.features)
        rows[:, self.places.to(whole.device)] = whole.flatten(1)
        return rows.reshape(len(whole), self.units, self.features)

    def whole(self, rows: Tensor) -> Tensor:
        """The tensor (B, *shape) that these rows make up; of one sample it may be (*shape)."""
        numbers = rows.flatten(1).index_select(1, self.places.to(rows.device))
        return numbers.reshape(*([len(rows)] * self.stacked), *self.shape)


@dataclass(frozen=True)
class Batch:
    """A batch of tensors with its named units.

    `fields` names the tensors that hold the units, in order; `mask` tells units from padding.
    With a `layout` the field of floats holds rows of units that make up what the model takes.
    `noun` is what a unit is called, `scenes` what each sample's units are drawn on. `missing` is
    what a missing unit looks like by default: "unk", or "mean", the mean embedding.
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

    def __len__(self) -> int:
        return len(self.units)

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """One of the tensors as the model takes it."""
        if self.layout is None or name not in self.fields or not tensor.is_floating_point():
            return tensor
        return self.layout.whole(tensor)

    @property
    def places(self) -> int:
        """The number of places at which a language model has an output: of its last ids."""
        ids = [name for name in self.fields if not self.tensors[name].is_floating_point()]
        return self.tensors[(ids or self.fields)[-1]].shape[1]

    def model_tensors(self) -> dict[str, Tensor]:
        """All tensors as the model takes them."""
        return {name: self.whole(name, tensor) for name, tensor in self.tensors.items()}

    def token_id(self, token: str | int) -> int:
        """The id of a token that stands for nothing, by its role or as it is."""
        if isinstance(token, int):
            return token
        if token not in ("pad", "unk", "mask"):
            raise MethodError(
                f'there is no baseline "{token}"; there are: zero, mean, pad, unk, mask.'
            )
        if token not in self.blanks:
            known = ", ".join(("zero", "mean", *self.blanks))
            raise InputError(
                f'this model has no "{token}" token to put in the place of a unit; there are: '
                f"{known}."
            )
        return self.blanks[token]

    def special(self) -> Tensor:
        """Which units are special tokens, (B, units) bool; padding is not."""
        special = torch.zeros_like(self.mask, device="cpu")
        flags = [unit.special for units in self.units for unit in units]
        special[self.mask.cpu()] = torch.tensor(flags, dtype=torch.bool)
        return special

    def with_tensors(self, changed: Mapping[str, Tensor]) -> Batch:
        """The same units with some of the tensors replaced."""
        return replace(self, tensors={**self.tensors, **changed})

    def take(self, rows: Sequence[int]) -> Batch:
        """Some of the samples, as they are padded now."""
        if list(rows) == [0] and len(self) == 1:  # some tensors have no axis of samples then
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
    """A model and how to run it: as it is, in evaluation mode, never changed.

    `memory`: the bytes that a pass may use beyond what is in use; None for what is free.
    `restores`: whether what its modules note while they are run, attributes and hooks, is put
    back; a module of the user's own may count its runs.
    """

    model: nn.Module
    forward: Forward | None = None
    memory: float | None = None
    restores: bool = False

    @property
    def name(self) -> str:
        """What the model is called in results and messages."""
        config = getattr(self.model, "config", None)
        path = str(
            getattr(config, "_name_or_path", "") or getattr(self.model, "name_or_path", "") or ""
        )
        return path.rstrip("/").rpartition("/")[2] or type(self.model).__name__

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter lies."""
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype | None:
        """The number type of the model's first floats, if it has any."""
        weights = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(weights, None)

    @property
    def allowed_memory(self) -> float:
        """The bytes that a pass may use now."""
        return allowed_memory(self.memory, self.device)

    @property
    def virtual_tokens(self) -> int:
        """The tokens that an adapter of PEFT learnt to put before the input (prompt tuning)."""
        configs = getattr(self.model, "peft_config", None)
        name = getattr(self.model, "active_adapter", None)
        config = (
            configs.get(name) if isinstance(configs, Mapping) and isinstance(name, str) else None
        )
        learnt = bool(getattr(config, "is_prompt_learning", False))
        return int(getattr(config, "num_virtual_tokens", 0)) if learnt else 0

    def _without_virtual_tokens(self, tensors: Mapping[str, Tensor], logits: Tensor) -> Tensor:
        """The logits at the places of the input alone."""
        ids = tensors.get("decoder_input_ids", tensors.get("input_ids"))
        is_language_model = callable(getattr(self.model, "get_output_embeddings", None))
        if ids is None or logits.ndim != 3 or self.forward is not None or not is_language_model:
            return logits
        beyond = logits.shape[1] - ids.shape[1]
        if beyond <= 0:
            return logits
        if beyond != self.virtual_tokens:
            raise ModelError(
                f"{self.name} gives {logits.shape[1]} outputs for {ids.shape[1]} tokens: it puts "
                "virtual tokens to them, and it is not known where. Explain the model without them."
            )
        with without_function_modes():  # no call of the model
            return logits[:, beyond:]

    @property
    def task(self) -> str:
        """What the head of the model is for, by the name of its class; empty if it does not say."""
        name = type(self.model).__name__.removeprefix("Peft")
        return name.partition("For")[2]

    def takes(self, *arguments: str) -> bool:
        """Whether the model's forward has arguments of these names."""
        return _argument_names(self.model.forward).issuperset(arguments)

    def by_position(self, argument: str) -> ModelRunner:
        """The subject, with its one tensor passed by position if forward names it differently."""
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
                f"{self.name} needs {', '.join(required[1:])} besides {required[0]}.",
                "Say how to run it: Explainer(model, forward=lambda model, inputs: …).",
                command="",
            )
        return replace(self, forward=_FirstArgument(argument))

    def evaluating(self, *, gradients: bool = True, inference: bool = False) -> Scope:
        """Evaluation mode, gradients on; afterwards every module's flag is as it was."""
        return Scope(
            self.model,
            gradients=gradients and not inference,
            inference=inference,
            restores=self.restores,
        )

    def _out(self, tensors: Mapping[str, Tensor], rows: Tensor | None) -> Any:
        if self.forward is not None:
            return self.forward(self.model, tensors)
        given: dict[str, Any] = dict(tensors)
        if self.takes("use_cache"):
            given["use_cache"] = False
        if rows is not None and self.keeps_rows:
            given["logits_to_keep"] = rows
        return self.model(**given)

    @property
    def keeps_rows(self) -> bool:
        """Whether the model can be asked for the logits at some places only.

        Some classifiers take the argument too, but look for their place among all.
        """
        classifies = type(self.model).__name__.endswith("Classification")
        return self.forward is None and not classifies and self.takes("logits_to_keep")

    def _not_run(self, tensors: Mapping[str, Tensor], error: Exception) -> ModelError:
        """Why the model could not be run, in one line."""
        reason = f"{type(error).__name__}: {first_line(error)}"
        if "flexattention" in str(error).lower().replace("_", ""):
            advice = 'FlexAttention has no derivative here: load with attn_implementation="sdpa".'
        else:
            advice = "Say how to run it: Explainer(model, forward=lambda model, inputs: …)."
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        what = f"{self.name} cannot be run on {shapes} ({reason})."
        return ModelError(what, advice, command="")

    def run(self, tensors: Mapping[str, Tensor], positions: Tensor | None = None) -> Tensor:
        """The logits: (batch, classes), or (batch, places, vocabulary).

        Of a model that answers questions they are (batch, 2, places), for start and end.

        With `positions`, one or several places for each sample, a model that can is asked for
        these rows only; the logits are then (batch, 1 or several, vocabulary).
        """
        rows = inverse = None
        if positions is not None and self.keeps_rows:
            rows, inverse = positions.to(self.device).unique(return_inverse=True)
        try:
            out = self._out(tensors, rows)
        except (IndexError, *_RAW_ERRORS) as error:
            if "index" in str(error) and "out of" in str(error):
                raise TooLong(
                    f"{self.name} looks up what its tables do not have ({error}): the input is "
                    "most likely longer than it takes."
                ) from error
            own = self.forward is not None and not isinstance(self.forward, _FirstArgument)
            of_torch = type(error) in _RAW_ERRORS or type(error).__module__.startswith("torch.")
            if not of_torch or own or is_out_of_memory(error):
                raise  # an error of the user's own code, or of its own kind
            raise self._not_run(tensors, error) from error
        logits = _logits(out)
        if logits.ndim == 1:
            logits = logits.unsqueeze(-1)
        if rows is None:
            logits = self._without_virtual_tokens(tensors, logits)
        elif logits.ndim == 3 and logits.shape[1] == len(rows) > 1:
            assert inverse is not None
            with without_function_modes():  # no call of the model
                at = inverse.reshape(len(logits), -1)
                if at.shape != (1, len(rows)):  # of one sample all rows are its own, in order
                    samples = torch.arange(len(logits), device=logits.device).unsqueeze(1)
                    logits = logits[samples, at]
        if not bool(torch.isfinite(logits.detach()).all()):
            raise NotFinite(
                f"{self.name} gave an output that is not finite "
                f"(NaN or infinite in {int((~torch.isfinite(logits)).sum())} of {logits.numel()} "
                "places). Check its weights, or its number type: float16 overflows easily."
            )
        return logits


@dataclass(frozen=True)
class Case:
    """What a method explains: a model, a batch of its inputs, and an output of each of them."""

    runner: ModelRunner
    batch: Batch
    target: Target = field(default_factory=Target)

    def take(self, rows: list[int]) -> Case:
        """Some of the samples."""
        return replace(self, batch=self.batch.take(rows), target=self.target.take(rows))

    def with_target(self, target: Target) -> Case:
        """Another output of the same samples."""
        return replace(self, target=target)

    def resolved(self, logits: Tensor) -> Case:
        """With the most likely class filled in, where the target names none."""
        return self.with_target(self.target.resolved(logits))


@dataclass(frozen=True)
class _FirstArgument:
    """Runs a model on one tensor, whatever its forward calls it."""

    name: str

    def __call__(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        return model(tensors[self.name])


# reading a signature takes longer than many a batch; a model may be given another forward
_ARGUMENTS: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def _argument_names(forward: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's arguments."""
    function = getattr(forward, "__func__", forward)
    try:
        return _ARGUMENTS[function]
    except (KeyError, TypeError):  # not met before, or nothing that a weak reference can be made to
        names = frozenset(inspect.signature(forward).parameters)
    with suppress(TypeError):
        _ARGUMENTS[function] = names
    return names


def _logits(out: Any) -> Tensor:
    if isinstance(out, Tensor):
        return out
    for name in ("logits", "logits_per_image"):
        found = out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)
        if isinstance(found, Tensor):
            return found
    ends = [getattr(out, name, None) for name in ("start_logits", "end_logits")]
    if all(isinstance(end, Tensor) for end in ends):  # where an answer starts and ends
        with without_function_modes():  # no call of the model
            return torch.stack([end for end in ends if end is not None], 1)  # (B, 2, places)
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        return out[0]
    names = ", ".join(out) if isinstance(out, Mapping) else type(out).__name__
    raise ModelError(
        f"the model's output has no logits (it has: {names}).",
        "Give forward=lambda model, inputs: … that returns the scores to explain.",
        command="",
    )
