"""Generates answers of language models, streamed to the page, and explains them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wherefrom.answers.answer import Answer
from wherefrom.answers.generate import has_encoder
from wherefrom.answers.prompt import Prompt, PromptLike
from wherefrom.answers.tokens import has_template, read_prompt
from wherefrom.errors import InputError, ModelError, TooLong, for_page
from wherefrom.inputs.text import longest
from wherefrom.show.answer import page_data
from wherefrom.web.models import ServedModel
from wherefrom.web.request import AnswerBody, Data, Limits, ParsedRequest, check_characters

OnUpdate = Callable[[Data], None]


@dataclass(frozen=True)
class Question:
    """A checked request: the prompt, and the answer unless the model generates it."""

    request: ParsedRequest[AnswerBody]
    prompt: PromptLike
    answer: str | None
    max_new_tokens: int

    @staticmethod
    def of(request: ParsedRequest[AnswerBody], limits: Limits) -> Question:
        """The question of a request; raises if it is too long for the page."""
        model, body = request.model, request.body
        passages, answer = body.passages, body.answer or None
        prompt: PromptLike = str(request.input)
        if passages or has_template(model.explainer.tokenizer):
            prompt = Prompt(str(request.input), passages)
        texts = [str(request.input), *passages]
        count = checked_length(model, prompt, texts, answer, body.max_new_tokens, limits)
        return Question(request, prompt, answer, count)

    def answered(self, on_text: OnUpdate) -> Answer:
        """The answer; `on_text` receives each piece of text as it is generated."""
        explainer, method = self.request.model.explainer, self.request.method
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.answer is not None:
                return explainer.answer(self.prompt, self.answer, method=method)
            return explainer.generate(
                self.prompt,
                self.max_new_tokens,
                method=method,
                on_text=lambda text: on_text({"text": text}),
            )


def checked_length(
    model: ServedModel,
    prompt: PromptLike,
    texts: Sequence[str],
    answer: str | Sequence[int] | None,
    max_new_tokens: int | None,
    limits: Limits,
) -> int:
    """How many tokens may be generated; raises if prompt and answer are too long.

    `texts` are those of the prompt. Without `max_new_tokens` there are as many as the limits allow.
    """
    if not model.answers:
        raise ModelError(f"{model.name} is not a language model: it generates no answers.")
    if max_new_tokens is not None and max_new_tokens > limits.answer_tokens:
        raise InputError(
            f"an answer may have up to {limits.answer_tokens} tokens, got {max_new_tokens}."
        )
    texts = [*texts, answer] if isinstance(answer, str) else texts
    check_characters(texts)
    characters = sum(map(len, texts))
    if characters > limits.text_characters:
        raise TooLong(
            f"prompt and answer have {characters:,} characters; this server accepts up to "
            f"{limits.text_characters:,}. Shorten them."
        )
    explainer = model.explainer
    used = len(read_prompt(explainer.tokenizer, prompt).ids)
    if isinstance(answer, str):
        answer = explainer.tokenizer(answer)["input_ids"]
    count = len(answer) if answer is not None else max_new_tokens or 1
    own = longest(explainer.runner, explainer.tokenizer)
    if own is None or has_encoder(explainer.runner):  # which takes the answer apart
        own = limits.units
    most = min(limits.units, own)
    if used + count > most:
        raise TooLong(
            f"prompt and answer have up to {used + count:,} tokens; this server explains up to "
            f"{most:,}. Shorten them."
        )
    return max_new_tokens or min(limits.answer_tokens, most - used)


def explained(answer: Answer, on_text: OnUpdate) -> Data:
    """Explains every token of an answer; `on_text` receives the progress."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer.rows(lambda done, count: on_text({"explained": done, "of": count}))
        view = page_data(answer)
    messages = dict.fromkeys(for_page(warning.message) for warning in caught)
    return {"answer": view, "finished": answer.finished, "warnings": list(messages)}
