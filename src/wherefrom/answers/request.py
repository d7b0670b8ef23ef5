"""From a prompt to an `Answer`: one that is given, or one that the model generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from wherefrom.answers.answer import Answer
from wherefrom.answers.asked import Of
from wherefrom.answers.attribution import AnswerAttribution, Measured
from wherefrom.answers.batches import MOST, Task, explained
from wherefrom.answers.generate import (
    Generated,
    Generation,
    decoder_opening,
    generated,
    generated_together,
    is_greedy_alone,
    is_padding_ignored,
)
from wherefrom.answers.prompt import Prompt, PromptLike
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
from wherefrom.inputs.text import like_lengths
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method

Given = str | Sequence[int]  # an answer as text or as token ids


def is_several(prompt: Any) -> bool:
    """Whether this is a list of prompts: texts, `Prompt`s, lists of messages or of token ids."""
    if not isinstance(prompt, (list, tuple)):
        return False
    if not prompt:
        raise InputError("the list of prompts is empty: there is nothing to answer.")
    kinds = (str, Prompt, list, tuple)
    odd = [i for i, single in enumerate(prompt) if not isinstance(single, kinds)]
    if odd and len(odd) < len(prompt):
        raise InputError(
            f"number {odd[0] + 1} of the list of prompts is a {type(prompt[odd[0]]).__name__}: a "
            "prompt is a text, a Prompt, a list of chat messages, or token ids."
        )
    return not odd


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
            "images are for one prompt.",
            "Give each of several its own: Prompt(…, images=[…]).",
            command="",
        )


def listed(prompts: Sequence[Any], values: Any, noun: str) -> list[Any]:
    """The values, if there is one for each prompt; None for each if there are none at all."""
    return [None] * len(prompts) if values is None else one_of_each(prompts, values, noun)


@dataclass(frozen=True)
class AnswerRequest:
    """How prompts are answered and explained, the same for all of a call."""

    reader: TextReader
    method: Method
    of: Of
    versions: Mapping[str, str]

    @staticmethod
    def by(
        reader: TextReader, method: Method, of: Of, versions: Mapping[str, str]
    ) -> AnswerRequest:
        """For a model that is left as it was.

        `generate` and models that see note what they were run on, and add hooks when they first
        are.
        """
        if of not in get_args(Of):
            raise MethodError(
                f'an answer has no "{of}" to explain; {nearest(str(of), get_args(Of))}'
            )
        runner = replace(reader.runner, restores=True)
        return AnswerRequest(replace(reader, runner=runner), method, of, versions)

    def given(
        self, prompt: PromptLike, answer: Given, against: Given | None, images: Sequence[Any] = ()
    ) -> Answer:
        """An answer that the caller gives."""
        return self._single(self._given(prompt, answer, against, images))

    def given_to_each(
        self,
        prompts: Sequence[PromptLike],
        answers: Sequence[Given],
        others: Sequence[Given | None],
        batch_size: int | None,
    ) -> list[Answer]:
        """The same for several prompts, explained in batches."""
        asked = zip(prompts, answers, others, strict=True)
        return self._several([self._given(*each) for each in asked], batch_size)

    def generated(
        self,
        prompt: PromptLike,
        against: Given | None,
        generation: Generation,
        on_text: Callable[[str], None] | None = None,
        images: Sequence[Any] = (),
    ) -> Answer:
        """An answer that the model generates; `on_text` gets its text as it grows."""
        tokens = self._read(prompt, images)
        return self._single(
            self._generated(tokens, self._alone(tokens, generation, on_text), against)
        )

    def generated_for_each(
        self,
        prompts: Sequence[PromptLike],
        others: Sequence[Given | None],
        generation: Generation,
        batch_size: int | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Answer]:
        """The same for several prompts, generated and explained in batches where that can be."""
        read = [self._read(prompt) for prompt in prompts]
        written: dict[int, Generated] = {}
        for chunk in self._generation_chunks(
            read, generation, batch_size or MOST, on_text is not None
        ):
            ids = [read[i].ids for i in chunk]
            if len(chunk) == 1:
                written[chunk[0]] = self._alone(read[chunk[0]], generation, on_text)
            else:
                together = generated_together(self.reader.runner, ids, generation)
                written.update(zip(chunk, together, strict=True))
        tasks = [
            self._generated(tokens, written[i], other)
            for i, (tokens, other) in enumerate(zip(read, others, strict=True))
        ]
        return self._several(tasks, batch_size)

    def _generation_chunks(
        self, read: Sequence[PromptTokens], generation: Generation, size: int, told: bool
    ) -> list[list[int]]:
        """Which prompts are answered together.

        One by one: samples, and what else depends on the other prompts of a batch; prompts with
        images; if the text is told as it grows; and if the model does not ignore padding.
        """
        runner, lengths = self.reader.runner, [len(tokens.ids) for tokens in read]
        texts_only = all(tokens.seen is None for tokens in read)
        if told or not texts_only or not is_greedy_alone(runner, generation):
            return [[i] for i in range(len(read))]
        tried = self.reader.tried
        short, long = (read[lengths.index(pick(lengths))].ids for pick in (min, max))
        if size > 1 and len(short) < len(long) and "generation" not in tried:
            tried["generation"] = is_padding_ignored(runner, short, long, generation)
        return like_lengths(lengths, size, same=not tried.get("generation", False))

    def _alone(
        self, tokens: PromptTokens, generation: Generation, on_text: Callable[[str], None] | None
    ) -> Generated:
        images = tokens.seen
        seen = {} if images is None else {**images.tensors, **images.types}
        told = _told(self.reader.tokenizer, on_text)
        return generated(self.reader.runner, tokens.ids, generation, told, seen)

    def _read(self, prompt: PromptLike, images: Sequence[Any] = ()) -> PromptTokens:
        reader = self.reader
        if isinstance(images, (str, Path)) or not isinstance(images, Sequence):
            raise InputError("images must be a list of pictures or paths.")
        tokens = read_prompt(reader.tokenizer, prompt, reader.has_decoder, images, reader.sight)
        if tokens.images is not None and reader.has_decoder:
            raise ModelError(
                f"{reader.runner.name} reads images with an encoder and writes with a decoder of "
                "its own: answers of such models are not explained."
            )
        return with_types(reader, tokens)

    def _given(
        self, prompt: PromptLike, answer: Given, against: Given | None, images: Sequence[Any] = ()
    ) -> _Asked:
        reader, tokens = self.reader, self._read(prompt, images)
        if reader.has_decoder:
            model = reader.runner.model
            opening = decoder_opening(reader.runner, getattr(model, "generation_config", None))
            tokens = tokens.opened(reader.tokenizer, opening)
        answer_tokens = read_answer(reader.tokenizer, tokens, answer)
        return self._asked(tokens, answer_tokens, against, None)

    def _generated(self, tokens: PromptTokens, written: Generated, against: Given | None) -> _Asked:
        reader = self.reader
        ids, finished, opening = written
        if reader.has_decoder:
            # some models begin by themselves as others are made to
            names = ("bos_token_id", "cls_token_id")
            begins = {getattr(reader.tokenizer, name, None) for name in names}
            while ids and ids[0] in begins:
                opening.append(ids.pop(0))
            tokens = tokens.opened(reader.tokenizer, opening)
        if not ids:
            raise InputError(
                f"the answer to {tokens.text[-60:]!r} is empty: the first token that the model "
                "generates is a stop token."
            )
        answer_tokens = answer_of_ids(reader.tokenizer, tokens, ids)
        return self._asked(tokens, answer_tokens, against, finished)

    def _asked(
        self,
        prompt: PromptTokens,
        answer: AnswerTokens,
        against: Given | None,
        finished: bool | None,
    ) -> _Asked:
        place, replaced, of = None, {}, self.of
        if against is not None:
            place, number = _difference(self.reader.tokenizer, prompt, answer, against)
            replaced[place] = number
            of = "contrast"  # of logits or of log-probabilities, it is the same
        attribution = AnswerAttribution(self.reader, self.method, prompt, answer, of)
        attribution.check_length()
        attribution = replace(attribution, method=self.method.resolved(attribution.inputs(1)))
        return _Asked(Task(attribution, replaced), place, finished)

    def _single(self, asked: _Asked) -> Answer:
        """Its pass is kept: each span is a backward pass from there."""
        task = asked.task
        return self._answer(asked, task.attribution.measured(task.against))

    def _several(self, asked: Sequence[_Asked], batch_size: int | None) -> list[Answer]:
        answers = []
        results = explained([each.task for each in asked], batch_size)
        for each, (measured, row) in zip(asked, results, strict=True):
            answer = self._answer(each, measured)
            answer.keep(each.task.span, row)
            answers.append(answer)
        return answers

    def _answer(self, asked: _Asked, measured: Measured) -> Answer:
        name, place = self.reader.runner.name, asked.place
        attribution = asked.task.attribution
        return Answer(attribution, measured, name, self.versions, place, asked.finished)


class _Asked(NamedTuple):
    """A prompt with its answer before it is explained."""

    task: Task
    place: int | None  # at which it differs from another answer
    finished: bool | None


def _told(
    tokenizer: Any, on_text: Callable[[str], None] | None
) -> Callable[[list[int]], None] | None:
    """Tells the text of the tokens so far, without special tokens and half characters."""
    if on_text is None:
        return None

    def told(ids: list[int]) -> None:
        text = "".join(pieces_of(tokenizer, (), ids))
        if tokenizer is not None:
            text = str(tokenizer.decode(ids, skip_special_tokens=True))
        on_text(text.rstrip("\ufffd"))

    return told


def _difference(
    tokenizer: Any, prompt: PromptTokens, answer: AnswerTokens, against: Given
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
        f"the answer to compare with, {other.text!r}, is the beginning of the answer or the "
        "same: there is no token at which they differ."
    )
