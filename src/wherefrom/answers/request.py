"""Explains answers that the caller passes or the model generates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from wherefrom.answers.answer import Answer
from wherefrom.answers.attribution import AnswerAttribution, Measured, Of
from wherefrom.answers.batches import MOST, Task, explained
from wherefrom.answers.generate import (
    Generated,
    Generation,
    decoder_opening,
    generated,
    generated_together,
    is_greedy_alone,
    is_padding_ignored,
    stop_tokens,
)
from wherefrom.answers.prompt import Prompt, PromptLike
from wherefrom.answers.sentences import Splitter
from wherefrom.answers.tokens import (
    BROKEN,
    AnswerTokens,
    PromptTokens,
    answer_of_ids,
    pieces_of,
    read_answer,
    read_prompt,
)
from wherefrom.core.explanation import Unit
from wherefrom.core.runner import same_logits
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case, SpanTarget
from wherefrom.errors import InputError, MethodError, ModelError, TargetError, nearest
from wherefrom.inputs.image_text_processor import EncodedImages
from wherefrom.inputs.text import Encoded, by_length
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method
from wherefrom.methods.forward_pass import run

AnswerLike = str | Sequence[int]  # an answer as text or as token ids


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
            f"prompt {odd[0] + 1} of the list is a {type(prompt[odd[0]]).__name__}: a "
            "prompt is a text, a Prompt, a list of chat messages, or token ids."
        )
    return not odd


def one_per_prompt(prompts: Sequence[Any], values: Any, noun: str) -> list[Any]:
    """The values as a list; raises unless there is one for each prompt."""
    count = 1 if isinstance(values, str) or not isinstance(values, Sequence) else len(values)
    if isinstance(values, str) or count != len(prompts):
        raise InputError(
            f"{len(prompts)} prompts need a list of {len(prompts)} {noun}, got {count}."
        )
    return list(values)


def refuse_images(images: Sequence[Any]) -> None:
    """Raises if images are passed with a list of prompts."""
    if len(images):
        raise InputError(
            "images apply to a single prompt.",
            "For several prompts, use Prompt(…, images=[…]).",
            command="",
        )


def optional_per_prompt(prompts: Sequence[Any], values: Any, noun: str) -> list[Any]:
    """As `one_per_prompt`, but None for each prompt if there are no values."""
    return [None] * len(prompts) if values is None else one_per_prompt(prompts, values, noun)


@dataclass(frozen=True)
class AnswerRequest:
    """How the prompts of a call are answered and explained."""

    reader: TextReader
    method: Method
    of: Of
    versions: Mapping[str, str]
    splitter: Splitter | None = None

    @staticmethod
    def create(
        reader: TextReader,
        method: Method,
        of: Of,
        versions: Mapping[str, str],
        splitter: Splitter | None = None,
    ) -> AnswerRequest:
        """A request that restores the model's attributes and hooks after each run.

        `generate` and vision-language models store attributes of their last input, and add hooks.
        """
        if of not in get_args(Of):
            raise MethodError(
                f'an answer has no "{of}" to explain; {nearest(str(of), get_args(Of))}'
            )
        runner = replace(reader.runner, restores=True)
        return AnswerRequest(replace(reader, runner=runner), method, of, versions, splitter)

    def explain(
        self,
        prompt: PromptLike,
        answer: AnswerLike,
        against: AnswerLike | None,
        images: Sequence[Any] = (),
    ) -> Answer:
        """Explains an answer that the caller passes."""
        return self._answer_with_graph(self._given_task(prompt, answer, against, images))

    def explain_each(
        self,
        prompts: Sequence[PromptLike],
        answers: Sequence[AnswerLike],
        others: Sequence[AnswerLike | None],
        batch_size: int | None,
    ) -> list[Answer]:
        """Explains an answer to each of several prompts, in batches."""
        given = zip(prompts, answers, others, strict=True)
        return self._explained_in_batches(
            [self._given_task(*answered) for answered in given], batch_size
        )

    def generate(
        self,
        prompt: PromptLike,
        against: AnswerLike | None,
        generation: Generation,
        on_text: Callable[[str], None] | None = None,
        images: Sequence[Any] = (),
    ) -> Answer:
        """Generates an answer and explains it; `on_text` is called with the text as it grows."""
        tokens = self._read(prompt, images)
        return self._answer_with_graph(
            self._generated_task(tokens, self._alone(tokens, generation, on_text), against)
        )

    def stream(
        self,
        prompt: PromptLike,
        generation: Generation,
        on_answer: Callable[[AnswerTokens], None],
    ) -> Answer | None:
        """Generates as `generate`; `on_answer` is called with the tokens so far.

        None if the first token that the model generates is a stop token.
        """
        if self.reader.has_decoder:
            raise ModelError(f"{self.reader.runner.name} is an encoder–decoder: it cannot chat.")
        tokens, runner = self._read(prompt), self.reader.runner
        ends = stop_tokens(generation.config(runner))

        def on_ids(ids: list[int]) -> None:
            if ids[-1] not in ends:
                on_answer(answer_of_ids(self.reader.tokenizer, tokens, ids))

        written = generated(runner, tokens.ids, generation, on_ids)
        if not written.ids:
            return None
        return self._answer_with_graph(self._generated_task(tokens, written, None))

    def generate_each(
        self,
        prompts: Sequence[PromptLike],
        others: Sequence[AnswerLike | None],
        generation: Generation,
        batch_size: int | None,
        on_text: Callable[[str], None] | None = None,
    ) -> list[Answer]:
        """Generates and explains an answer to each of several prompts, in batches if possible."""
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
            self._generated_task(tokens, written[i], other)
            for i, (tokens, other) in enumerate(zip(read, others, strict=True))
        ]
        return self._explained_in_batches(tasks, batch_size)

    def _generation_chunks(
        self, read: Sequence[PromptTokens], generation: Generation, size: int, streams: bool
    ) -> list[list[int]]:
        """The prompts of each generation batch.

        Prompts run alone if decoding is sampled or otherwise depends on the batch, if there are
        images, with `on_text`, and if lengths differ and the model does not ignore padding.
        """
        runner, lengths = self.reader.runner, [len(tokens.ids) for tokens in read]
        texts_only = all(tokens.encoded_images is None for tokens in read)
        if streams or not texts_only or not is_greedy_alone(runner, generation):
            return [[i] for i in range(len(read))]
        tried = self.reader.tried
        short, long = (read[lengths.index(pick(lengths))].ids for pick in (min, max))
        if size > 1 and len(short) < len(long) and "generation" not in tried:
            tried["generation"] = is_padding_ignored(runner, short, long, generation)
        return by_length(lengths, size, same=not tried.get("generation", False))

    def _alone(
        self, tokens: PromptTokens, generation: Generation, on_text: Callable[[str], None] | None
    ) -> Generated:
        images = tokens.encoded_images
        tensors = {} if images is None else {**images.tensors, **images.types}
        on_ids = _text_callback(self.reader.tokenizer, on_text)
        return generated(self.reader.runner, tokens.ids, generation, on_ids, tensors)

    def _read(self, prompt: PromptLike, images: Sequence[Any] = ()) -> PromptTokens:
        reader = self.reader
        if isinstance(images, (str, Path)) or not isinstance(images, Sequence):
            raise InputError("images must be a list of pictures or paths.")
        tokens = read_prompt(
            reader.tokenizer, prompt, reader.has_decoder, images, reader.joint_processor
        )
        if tokens.images is not None and reader.has_decoder:
            raise ModelError(
                f"{reader.runner.name} is an encoder–decoder that reads images: answers of such "
                "models are not supported."
            )
        return with_types(reader, tokens)

    def _given_task(
        self,
        prompt: PromptLike,
        answer: AnswerLike,
        against: AnswerLike | None,
        images: Sequence[Any] = (),
    ) -> Task:
        reader, tokens = self.reader, self._read(prompt, images)
        if reader.has_decoder:
            model = reader.runner.model
            opening = decoder_opening(reader.runner, getattr(model, "generation_config", None))
            tokens = tokens.with_opening(reader.tokenizer, opening)
        answer_tokens = read_answer(reader.tokenizer, tokens, answer)
        return self._task(tokens, answer_tokens, against, None)

    def _generated_task(
        self, tokens: PromptTokens, written: Generated, against: AnswerLike | None
    ) -> Task:
        reader = self.reader
        ids, finished, opening = written
        if reader.has_decoder:
            # some models generate the opening themselves
            names = ("bos_token_id", "cls_token_id")
            begins = {getattr(reader.tokenizer, name, None) for name in names}
            while ids and ids[0] in begins:
                opening.append(ids.pop(0))
            tokens = tokens.with_opening(reader.tokenizer, opening)
        if not ids:
            raise InputError(
                f"the answer to {tokens.text[-60:]!r} is empty: the first token that the model "
                "generates is a stop token."
            )
        answer_tokens = answer_of_ids(reader.tokenizer, tokens, ids)
        return self._task(tokens, answer_tokens, against, finished)

    def _task(
        self,
        prompt: PromptTokens,
        answer: AnswerTokens,
        against: AnswerLike | None,
        finished: bool | None,
    ) -> Task:
        others, of = {}, self.of
        if against is not None:
            i, token_id = _difference(self.reader.tokenizer, prompt, answer, against)
            others[i] = token_id
            of = "contrast"  # logits and log-probabilities differ by the same amount
        attribution = AnswerAttribution(self.reader, self.method, prompt, answer, of)
        attribution.check_length()
        attribution = replace(attribution, method=self.method.resolved(attribution.inputs(1)))
        return Task(attribution, others, finished)

    def _answer_with_graph(self, task: Task) -> Answer:
        """An answer whose forward pass is cached for backward passes from any span."""
        return self._answer(task, task.attribution.measured(task.against))

    def _explained_in_batches(self, tasks: Sequence[Task], batch_size: int | None) -> list[Answer]:
        answers = []
        for task, (measured, row) in zip(tasks, explained(tasks, batch_size), strict=True):
            answer = self._answer(task, measured)
            answer.keep(task.span, row)
            answers.append(answer)
        return answers

    def _answer(self, task: Task, measured: Measured) -> Answer:
        name, index = self.reader.runner.name, next(iter(task.against), None)
        return Answer(
            task.attribution, measured, name, self.versions, index, task.finished, self.splitter
        )


def _text_callback(
    tokenizer: Any, on_text: Callable[[str], None] | None
) -> Callable[[list[int]], None] | None:
    """A callback that passes the text so far to `on_text`, without incomplete characters."""
    if on_text is None:
        return None

    def on_ids(ids: list[int]) -> None:
        if tokenizer is None:
            on_text("".join(pieces_of(tokenizer, (), ids)))
        else:
            on_text(str(tokenizer.decode(ids, skip_special_tokens=True)).rstrip(BROKEN))

    return on_ids


def _difference(
    tokenizer: Any, prompt: PromptTokens, answer: AnswerTokens, against: AnswerLike
) -> tuple[int, int]:
    """The index of the first token at which two answers differ, and the other token there.

    Only there do both follow the same tokens, so only there can they be compared.
    """
    if isinstance(against, str) and answer.text[:1].isspace() and not against[:1].isspace():
        against = " " + against
    other = read_answer(tokenizer, prompt, against)
    for i, (first, second) in enumerate(zip(answer.ids, other.ids, strict=False)):
        if first != second:
            return i, second
    if len(other.ids) > len(answer.ids):
        raise TargetError(
            f"the answer {answer.text!r} is the beginning of {other.text!r}, so no token differs."
        )
    raise TargetError(
        f"the answer to compare with, {other.text!r}, equals the answer or is its beginning, so no "
        "token differs."
    )


@restores_state
def with_types(reader: TextReader, prompt: PromptTokens) -> PromptTokens:
    """The prompt, with the token type for the tokens of an answer.

    With some types, a model attends to the answer in both directions, as a part of the prompt. The
    right type leaves the output at the end of the prompt unchanged; it is found by testing.
    """
    images = prompt.encoded_images
    if images is None or not images.types:
        return prompt
    with Scope(inference=False):
        expected = _last_logits(reader, prompt, images, [])
        last_types = [int(values[0, -1]) for values in images.types.values()]
        for fill in dict.fromkeys([*last_types, 0, 1]):
            images = replace(images, fill=fill)
            logits = _last_logits(reader, prompt, images, [prompt.ids[-1]])
            if same_logits(expected, logits):
                return replace(prompt, images=images)
    raise ModelError(
        f"{reader.runner.name} attends to its answer in both directions, with any "
        f"{' or '.join(images.types)}, so it cannot be explained token by token."
    )


def _last_logits(
    reader: TextReader, prompt: PromptTokens, images: EncodedImages, following: list[int]
) -> Tensor:
    """The logits at the end of the prompt, followed by more tokens."""
    ids = [*prompt.ids, *following]
    inputs = images.joined(reader.batch([Encoded(ids, (Unit(""),) * len(ids), None)]))
    position = torch.tensor([[len(prompt.ids) - 1]])
    logits = run(Case(reader.runner, inputs, SpanTarget(position=position)))
    return SpanTarget(position=position).rows(logits)[0, 0].double().cpu()
