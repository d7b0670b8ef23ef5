"""Generates answers of language models, streamed to the page, and explains them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from wherefrom.answers.answer import Answer
from wherefrom.answers.prompt import Prompt, PromptLike
from wherefrom.answers.tokens import has_template, read_prompt
from wherefrom.errors import InputError, ModelError, TooLong, for_page
from wherefrom.show.answer import page_data
from wherefrom.web.request import AnswerBody, Data, Limits, ParsedRequest

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
        if not model.answers:
            raise ModelError(f"{model.name} is not a language model: it generates no answers.")
        passages, answer, count = body.passages, body.answer, body.max_new_tokens
        if count > limits.answer_tokens:
            raise InputError(f"max_new_tokens may be up to {limits.answer_tokens}, got {count}.")
        texts = [str(request.input), *passages, answer or ""]
        characters = sum(map(len, texts))
        if characters > limits.text_characters:
            raise TooLong(
                f"prompt and answer have {characters:,} characters; the page accepts up to "
                f"{limits.text_characters:,}. Shorten them, or use the command line."
            )
        tokenizer = model.explainer.tokenizer
        prompt: PromptLike = str(request.input)
        if passages or has_template(tokenizer):
            prompt = Prompt(str(request.input), passages)
        units = len(read_prompt(tokenizer, prompt).ids)
        units += count if not answer else len(tokenizer(answer)["input_ids"])
        if units > limits.units:
            raise TooLong(
                f"prompt and answer have up to {units:,} tokens; the page explains up to "
                f"{limits.units:,}. Shorten them, or use the command line."
            )
        return Question(request, prompt, answer or None, count)

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


def explained(answer: Answer, on_text: OnUpdate) -> Data:
    """Explains every token of an answer; `on_text` receives the progress."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer.rows(lambda done, count: on_text({"explained": done, "of": count}))
        view = page_data(answer)
    messages = dict.fromkeys(for_page(warning.message) for warning in caught)
    return {"answer": view, "finished": answer.finished, "warnings": list(messages)}
