"""Answers that the model itself gives: greedy by default, its own settings untouched."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from wherefrom.errors import InputError, ModelError
from wherefrom.scope import restores_state
from wherefrom.subject import Subject

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


class Generated(NamedTuple):
    """The tokens of an answer without its stop token, and whether it ended with one.

    `opening`: what the decoder of an encoder–decoder began with; else nothing.
    """

    ids: list[int]
    finished: bool
    opening: list[int]


@restores_state
def generated(
    subject: Subject,
    prompt: Sequence[int],
    max_new_tokens: int,
    seed: int | None,
    options: dict[str, Any],
    tell: Callable[[list[int]], None] | None = None,
    seen: Mapping[str, torch.Tensor] | None = None,
) -> Generated:
    """The tokens that the model generates after a prompt; `tell` gets those so far.

    `seen` are the tensors of images that it sees.

    Greedy unless `options` say otherwise; an option of sampling turns sampling on. The state of
    torch's random numbers is as it was afterwards.
    """
    model = subject.model
    generate = getattr(model, "generate", None)
    if subject.forward is not None or not callable(generate):
        raise ModelError(
            f"{subject.name} cannot generate text. Give the answer: explainer.answer(prompt, …)."
        )
    if isinstance(max_new_tokens, bool) or max_new_tokens < 1:
        raise InputError(f"max_new_tokens must be 1 or more, got {max_new_tokens}.")
    options = {key: value for key, value in options.items() if value is not None}
    sampling = bool(options.pop("do_sample", any(key in options for key in _SAMPLING)))
    config = copy.deepcopy(getattr(model, "generation_config", None))
    if config is None:
        raise ModelError(
            f"{subject.name} has no generation_config to generate with. Give the answer: "
            "explainer.answer(prompt, …)."
        )
    if not sampling:
        config.update(**dict.fromkeys(_SAMPLING))
    unused = config.update(
        **{
            "max_length": None,  # max_new_tokens says it
            "max_new_tokens": max_new_tokens,
            "do_sample": sampling,
            "num_beams": 1,
            "return_dict_in_generate": False,
            **options,
        }
    )
    if unused:
        raise InputError(f"generation has no option {', '.join(map(repr, unused))}.")
    stops = _stops(config)
    if config.pad_token_id is None and stops:
        config.pad_token_id = min(stops)
    ids = torch.tensor([list(prompt)], device=subject.device)
    devices = [subject.device] if subject.device.type == "cuda" else []
    with (
        subject.evaluating(gradients=False),
        torch.random.fork_rng(devices),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        streamer = {} if tell is None else {"streamer": _Streamer(tell)}
        out = generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            **_held(generate),
            **streamer,
            **(seen or {}),
        )
    opening: list[int] = []
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        opening = decoder_opening(subject, config)
        written = out[0].tolist()
        if written[: len(opening)] != opening:
            raise ModelError(
                f"{subject.name} began with the tokens {written[: len(opening)]} instead of "
                f"{opening}. Give the answer: explainer.answer(prompt, …)."
            )
        answer = written[len(opening) :]
    else:
        answer = [int(number) for number in out[0, ids.shape[1] :]]
    finished = bool(answer) and answer[-1] in stops
    return Generated(answer[:-1] if finished else answer, finished, opening)


def _held(generate: Callable[..., Any]) -> dict[str, Any]:
    """What makes `generate` hold to the config that it is given.

    From transformers 4.50 to 4.57, what a config leaves at its default is replaced by the model's
    own setting, sampling among them.
    """
    from transformers import GenerationMixin

    name, own = "use_model_defaults", inspect.signature(generate).parameters
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())
    known = inspect.signature(GenerationMixin.generate).parameters if passed_on else own
    return {name: False} if name in own or name in known else {}


def decoder_opening(subject: Subject, config: Any) -> list[int]:
    """What the decoder of an encoder–decoder begins with: its start token, a forced first one.

    The forced one is the language of a translation, or the <s> of BART. `config` is how it
    generates, if that is known.
    """
    owners = (config, getattr(subject.model, "config", None))
    names = ("decoder_start_token_id", "bos_token_id")
    numbers = [getattr(owner, name, None) for name in names for owner in owners]
    start = next((number for number in numbers if isinstance(number, int)), None)
    if start is None:
        raise ModelError(
            f"{subject.name} has no decoder_start_token_id: it is not known what its decoder "
            "begins with. Set it in the model's generation_config."
        )
    forced = getattr(config, "forced_bos_token_id", None)
    return [start] if not isinstance(forced, int) else [start, forced]


class _Streamer:
    """What transformers tells the prompt first, then each token as it is generated."""

    def __init__(self, tell: Callable[[list[int]], None]) -> None:
        self.tell = tell
        self.ids: list[int] | None = None  # None: the prompt is yet to come

    def put(self, value: torch.Tensor) -> None:
        if self.ids is None:
            self.ids = []
            return
        self.ids += value.flatten().tolist()
        self.tell(self.ids)

    def end(self) -> None:
        """Nothing: the tokens are those that `generate` returns."""


def _stops(config: Any) -> set[int]:
    """The tokens that end an answer."""
    stop = config.eos_token_id
    if stop is None:
        return set()
    return {int(stop)} if isinstance(stop, int) else {int(number) for number in stop}
