"""From a prompt to an `Answer`: one that is given, or one that the model generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from wherefrom.answers.answer import Answer
from wherefrom.answers.defaults import Of
from wherefrom.answers.generate import decoder_opening, generated
from wherefrom.answers.prompt import Prompt, PromptLike
from wherefrom.answers.runner import Runner
from wherefrom.answers.token_types import with_types
from wherefrom.answers.tokens import (
    AnswerTokens,
    PromptTokens,
    answer_of_ids,
    pieces_of,
    read_answer,
    read_prompt,
)
from wherefrom.errors import InputError, MethodError, ModelError, TargetError, nearest
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method


def is_several(prompt: Any) -> bool:
    """Whether this is a list of prompts: texts, `Prompt`s, lists of messages or of token ids."""
    kinds = (str, Prompt, list, tuple)
    return (
        isinstance(prompt, (list, tuple))
        and len(prompt) > 0
        and all(isinstance(single, kinds) for single in prompt)
    )


def one_of_each(prompts: Sequence[Any], values: Any, noun: str) -> list[Any]:
    """The values, if there is one for each prompt."""
    count = 1 if isinstance(values, str) or not isinstance(values, Sequence) else len(values)
    if isinstance(values, str) or count != len(prompts):
        raise InputError(f"{len(prompts)} prompts need a list of as many {noun}, got {count}.")
    return list(values)


def no_images(images: Sequence[Any]) -> None:
    """Refuses images beside a list of prompts."""
    if len(images):
        raise InputError(
            "images= is for one prompt. Of several, give each its own: Prompt(…, images=[…])."
        )


def answer_given(
    reader: TextReader,
    prompt: PromptLike,
    answer: str | Sequence[int],
    against: str | Sequence[int] | None,
    method: Method,
    of: Of,
    versions: Mapping[str, str],
    images: Sequence[Any] = (),
) -> Answer:
    """An answer that the caller gives."""
    reader = _restoring(reader)
    tokens = _read(reader, prompt, of, images)
    if reader.has_decoder:
        model = reader.subject.model
        opening = decoder_opening(reader.subject, getattr(model, "generation_config", None))
        tokens = tokens.opened(reader.tokenizer, opening)
    answer_tokens = read_answer(reader.tokenizer, tokens, answer)
    return _answer(reader, tokens, answer_tokens, against, method, of, versions, None)


def answer_generated(
    reader: TextReader,
    prompt: PromptLike,
    against: str | Sequence[int] | None,
    method: Method,
    of: Of,
    versions: Mapping[str, str],
    max_new_tokens: int,
    seed: int | None,
    options: dict[str, Any],
    tell: Callable[[str], None] | None = None,
    images: Sequence[Any] = (),
) -> Answer:
    """An answer that the model generates; `tell` gets its text as it grows."""
    reader = _restoring(reader)
    tokens = _read(reader, prompt, of, images)
    images_seen = tokens.seen
    seen = {} if images_seen is None else {**images_seen.tensors, **images_seen.types}
    ids, finished, opening = generated(
        reader.subject,
        tokens.ids,
        max_new_tokens,
        seed,
        options,
        _told(reader.tokenizer, tell),
        seen,
    )
    if reader.has_decoder:
        # some models begin by themselves as others are made to
        begins = {getattr(reader.tokenizer, f"{name}_token_id", None) for name in ("bos", "cls")}
        while ids and ids[0] in begins:
            opening.append(ids.pop(0))
        tokens = tokens.opened(reader.tokenizer, opening)
    if not ids:
        raise InputError(
            "the answer is empty: the first token that the model generates is a stop token."
        )
    answer_tokens = answer_of_ids(reader.tokenizer, tokens, ids)
    return _answer(reader, tokens, answer_tokens, against, method, of, versions, finished)


def _restoring(reader: TextReader) -> TextReader:
    """The reader for a model that is left as it was.

    `generate` and models that see note what they were run on, and add hooks when they first are.
    """
    return replace(reader, subject=replace(reader.subject, restores=True))


def _told(tokenizer: Any, tell: Callable[[str], None] | None) -> Callable[[list[int]], None] | None:
    """Tells the text of the tokens so far, without special tokens and half characters."""
    if tell is None:
        return None

    def told(ids: list[int]) -> None:
        text = "".join(pieces_of(tokenizer, (), ids))
        if tokenizer is not None:
            text = str(tokenizer.decode(ids, skip_special_tokens=True))
        tell(text.rstrip("\ufffd"))

    return told


def _read(reader: TextReader, prompt: PromptLike, of: Of, images: Sequence[Any]) -> PromptTokens:
    if of not in get_args(Of):
        raise MethodError(f'there is no of="{of}"; {nearest(str(of), get_args(Of))}')
    if isinstance(images, (str, Path)) or not isinstance(images, Sequence):
        raise InputError("images must be a list of pictures or paths.")
    tokens = read_prompt(reader.tokenizer, prompt, reader.has_decoder, images, reader.sight)
    if tokens.images is not None and reader.has_decoder:
        raise ModelError(
            f"{reader.subject.name} reads images with an encoder and writes with a decoder of its "
            "own: answers of such models are not explained."
        )
    return with_types(reader, tokens)


def _answer(
    reader: TextReader,
    prompt: PromptTokens,
    answer: AnswerTokens,
    against: str | Sequence[int] | None,
    method: Method,
    of: Of,
    versions: Mapping[str, str],
    finished: bool | None,
) -> Answer:
    place, replaced = None, {}
    if against is not None:
        place, number = _difference(reader.tokenizer, prompt, answer, against)
        replaced[place] = number
        of = "contrast"  # of logits or of log-probabilities, it is the same
    runner = Runner(reader, method, prompt, answer, of)
    runner.check_length()
    runner = replace(runner, method=method.resolved(runner.inputs(1)))
    measured = runner.measured(replaced)
    return Answer(runner, measured, reader.subject.name, versions, place, finished)


def _difference(
    tokenizer: Any, prompt: PromptTokens, answer: AnswerTokens, against: str | Sequence[int]
) -> tuple[int, int]:
    """The first place at which two answers differ, and the token of the other one there.

    Only there both have the same tokens before them: further on they are not comparable.
    """
    if isinstance(against, str) and answer.text[:1].isspace() and not against[:1].isspace():
        against = " " + against
    other = read_answer(tokenizer, prompt, against)
    for place, (own, number) in enumerate(zip(answer.ids, other.ids, strict=False)):
        if own != number:
            return place, number
    if len(other.ids) > len(answer.ids):
        raise TargetError(
            f"the answer {answer.text!r} is the beginning of {other.text!r}: there is no token at "
            "which they differ."
        )
    raise TargetError(
        f"against={other.text!r} is the beginning of the answer or the same: there is no token at "
        "which they differ."
    )
