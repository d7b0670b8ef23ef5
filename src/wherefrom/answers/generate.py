"""Generates answers: greedily by default, without changing the model's settings."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wherefrom.core.runner import ModelRunner, same_logits
from wherefrom.core.scope import restores_state
from wherefrom.errors import GIVE_ANSWER, InputError, ModelError
from wherefrom.inputs.text import padded

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
# settings that leave the choice of the most likely token unchanged
_HARMLESS = {
    "_from_model_config", "bos_token_id", "cache_implementation", "decoder_start_token_id",
    "do_sample", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "max_length",
    "max_new_tokens", "num_beams", "output_attentions", "output_hidden_states", "pad_token_id",
    "return_dict_in_generate", "transformers_version", "use_cache",
}  # fmt: skip


class Generated(NamedTuple):
    """The tokens of an answer without its stop token, and whether it was generated.

    `opening`: the first tokens of the decoder of an encoder–decoder.
    """

    ids: list[int]
    finished: bool
    opening: list[int]


@dataclass(frozen=True)
class Generation:
    """How an answer is generated: greedily, unless `options` for the model's `generate` differ.

    A sampling option turns sampling on; `seed` makes it reproducible.
    """

    max_new_tokens: int = 64
    seed: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, runner: ModelRunner) -> Any:
        """A changed copy of the model's `GenerationConfig`."""
        model = runner.model
        if runner.forward is not None or not callable(getattr(model, "generate", None)):
            raise ModelError(f"{runner.name} cannot generate text.", **GIVE_ANSWER)
        count = self.max_new_tokens
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"max_new_tokens must be 1 or more, got {count!r}.")
        temperature = self.options.get("temperature")
        if temperature is not None and not temperature > 0:
            raise InputError(
                f"temperature must be more than 0, got {temperature}. Leave it out for greedy "
                "decoding."
            )
        options = {key: value for key, value in self.options.items() if value is not None}
        sampling = bool(options.pop("do_sample", any(key in options for key in _SAMPLING)))
        config = copy.deepcopy(getattr(model, "generation_config", None))
        if config is None:
            raise ModelError(
                f"{runner.name} has no generation_config to generate with.", **GIVE_ANSWER
            )
        if not sampling:
            config.update(**dict.fromkeys(_SAMPLING))
        unused = config.update(
            **{
                "max_length": None,  # max_new_tokens sets the length
                "max_new_tokens": count,
                "do_sample": sampling,
                "num_beams": 1,
                "return_dict_in_generate": False,
                **options,
            }
        )
        if unused:
            raise InputError(f"generation has no option {', '.join(map(repr, unused))}.")
        stops = stop_tokens(config)
        if config.pad_token_id is None and stops:
            config.pad_token_id = min(stops)
        return config


@restores_state
def generated(
    runner: ModelRunner,
    prompt: Sequence[int],
    generation: Generation,
    on_text: Callable[[list[int]], None] | None = None,
    images: Mapping[str, Tensor] | None = None,
) -> Generated:
    """Generates after a prompt; `on_text` is called with the tokens so far.

    `images` are the tensors of the prompt's images. torch's random state is restored afterwards.
    """
    config = generation.config(runner)
    ids = torch.tensor([list(prompt)])
    streamer = {} if on_text is None else {"streamer": _Streamer(on_text)}
    arguments = {**streamer, **(images or {})}
    written = _generate(runner, ids, torch.ones_like(ids), config, generation.seed, arguments)
    return _cut(runner, written[0].tolist(), ids.shape[1], config)


@restores_state
def generated_together(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], generation: Generation
) -> list[Generated]:
    """Generates after several prompts in one call of the model's `generate`."""
    config = generation.config(runner)
    ids, mask = _batch(runner, prompts, config)
    written = _generate(runner, ids, mask, config)
    return [_cut(runner, row, ids.shape[1], config) for row in written.tolist()]


def is_greedy_alone(runner: ModelRunner, generation: Generation) -> bool:
    """Whether decoding is greedy and depends on the logits alone.

    A repetition penalty would count padding, and samples would depend on the other prompts of a
    batch.
    """
    config = generation.config(runner)
    changed = {key for key, value in config.to_diff_dict().items() if value is not None}
    return not config.do_sample and config.num_beams in (1, None) and changed <= _HARMLESS


@restores_state
def is_padding_ignored(
    runner: ModelRunner, short: Sequence[int], long: Sequence[int], generation: Generation
) -> bool:
    """Whether padding the shorter prompt leaves the logits of its next two tokens unchanged."""
    config = generation.config(runner)
    changes = {"max_new_tokens": 2, "return_dict_in_generate": True, "output_logits": True}
    config.update(**changes, eos_token_id=None, forced_eos_token_id=None)
    logits = []
    for prompts in ([short], [short, long]):
        out = _generate(runner, *_batch(runner, prompts, config), config)
        logits.append(torch.stack([step[0] for step in out.logits]).double().cpu())
    alone, padded_to = logits  # (2, vocabulary) each
    return same_logits(alone, padded_to)


def _batch(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], config: Any
) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded on the left, since the answers follow on the right.

    The input of an encoder is padded on the right, since the decoder writes a separate text.
    """
    padding = config.pad_token_id
    number = padding if isinstance(padding, int) and padding >= 0 else 0
    ids, mask = padded(prompts, number, left=not has_encoder(runner))
    return ids, mask.long()


def _generate(
    runner: ModelRunner,
    ids: Tensor,
    mask: Tensor,
    config: Any,
    seed: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Any:
    """Calls the model's `generate`."""
    generate: Any = runner.model.generate
    devices = [runner.device] if runner.device.type == "cuda" else []
    with runner.evaluating(gradients=False), torch.random.fork_rng(devices):
        if seed is not None:
            torch.manual_seed(seed)
        return generate(
            ids.to(runner.device),
            attention_mask=mask.to(runner.device),
            generation_config=config,
            **_config_options(generate),
            **(arguments or {}),
        )


def _cut(runner: ModelRunner, written: list[int], width: int, config: Any) -> Generated:
    """The answer in a row, without prompt, stop token and padding."""
    opening: list[int] = []
    if has_encoder(runner):
        opening = decoder_opening(runner, config)
        if written[: len(opening)] != opening:
            raise ModelError(
                f"{runner.name} began with the tokens {written[: len(opening)]} instead of "
                f"{opening}.",
                **GIVE_ANSWER,
            )
        width = len(opening)
    answer, stops = written[width:], stop_tokens(config)
    end = next((place for place, number in enumerate(answer) if number in stops), None)
    return Generated(answer[:end], end is not None, opening)


def has_encoder(runner: ModelRunner) -> bool:
    """Whether the model is an encoder–decoder."""
    return bool(getattr(getattr(runner.model, "config", None), "is_encoder_decoder", False))


def _config_options(generate: Callable[..., Any]) -> dict[str, Any]:
    """The options that make `generate` follow the config passed to it.

    transformers 4.50 to 4.57 replace default values of the config by the model's settings, sampling
    included.
    """
    from transformers import GenerationMixin

    name, parameters = "use_model_defaults", inspect.signature(generate).parameters
    passed_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = inspect.signature(GenerationMixin.generate).parameters if passed_on else parameters
    return {name: False} if name in parameters or name in known else {}


def decoder_opening(runner: ModelRunner, config: Any) -> list[int]:
    """The first tokens of a decoder: its start token, and a forced first token.

    Forced tokens are the language of a translation, or the <s> of BART.
    """
    owners = (config, getattr(runner.model, "config", None))
    names = ("decoder_start_token_id", "bos_token_id")
    numbers = [getattr(owner, name, None) for name in names for owner in owners]
    start = next((number for number in numbers if isinstance(number, int)), None)
    if start is None:
        raise ModelError(
            f"{runner.name} has no decoder_start_token_id: the first token of its decoder is "
            "unknown. Set it in the model's generation_config."
        )
    forced = getattr(config, "forced_bos_token_id", None)
    return [start] if not isinstance(forced, int) else [start, forced]


class _Streamer:
    """Receives the prompt first, then each token as it is generated."""

    def __init__(self, on_text: Callable[[list[int]], None]) -> None:
        self.on_text = on_text
        self.ids: list[int] | None = None  # None: the prompt has not arrived yet

    def put(self, value: Tensor) -> None:
        if self.ids is None:
            self.ids = []
            return
        self.ids += value.flatten().tolist()
        self.on_text(self.ids)

    def end(self) -> None:
        """Does nothing; transformers requires it."""


def stop_tokens(config: Any) -> set[int]:
    """The tokens that end an answer."""
    stop = config.eos_token_id
    if stop is None:
        return set()
    return {int(stop)} if isinstance(stop, int) else {int(number) for number in stop}
