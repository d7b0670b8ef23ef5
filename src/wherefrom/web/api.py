"""What programs get, as plain data: chat completions, given answers, explanations, errors."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from wherefrom.answers.answer import Answer
from wherefrom.answers.generate import Generation
from wherefrom.answers.prompt import Passage, Prompt, PromptLike
from wherefrom.answers.sentence_records import answer_record, sentence_records
from wherefrom.answers.sentences import sentence_spans
from wherefrom.answers.tokens import BROKEN, AnswerTokens, read_prompt
from wherefrom.errors import InputError, for_page
from wherefrom.methods import method as find_method
from wherefrom.show.sentence import sentence
from wherefrom.web.answers import Answers, PageRequest
from wherefrom.web.generation import OnUpdate, checked_length
from wherefrom.web.metrics import Metrics
from wherefrom.web.models import Models
from wherefrom.web.request import ChatBody, Data, GivenAnswerBody, Limits, PromptBody


class Api:
    """Answers validated requests of programs. Only the worker calls it, but for `models`."""

    def __init__(self, models: Models, answers: Answers, limits: Limits, metrics: Metrics) -> None:
        self._models, self._answers, self._limits = models, answers, limits
        self._metrics, self._created = metrics, int(time.time())

    def models(self) -> Data:
        """The served models."""
        return {"object": "list", "data": [self.model(name) for name in self._models.names]}

    def model(self, name: str) -> Data:
        """A served model."""
        model = self._models[name]
        about = {"id": name, "object": "model", "created": self._created, "owned_by": "wherefrom"}
        return {**about, "generates": model.answers, "labels": model.explainer.labels()}

    def chat(self, body: ChatBody, send: OnUpdate) -> Data:
        """A chat completion; a streamed one is sent in chunks, the passages after each sentence."""
        model, (prompt, ids) = self._models[body.model], _prompt(body)
        asked = body.max_completion_tokens or body.max_tokens
        count = checked_length(model, prompt, _texts(body), None, asked, self._limits)
        options = {"temperature": body.temperature, "top_p": body.top_p} if body.temperature else {}
        request = model.explainer._answer_request(find_method(body.method), body.of, None)
        about = {
            "id": f"chatcmpl-{token_hex(12)}",
            "created": int(time.time()),
            "model": body.model,
        }

        def choose(delta: Data, reason: str | None = None, **more: Any) -> None:
            if body.stream:
                choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
                send({**about, "object": "chat.completion.chunk", "choices": choices, **more})

        text, records = "", list[Data]()

        def proceed(answered: str, answer: Answer | None, last: int | None) -> None:
            nonlocal text
            if answered != text:
                choose({"content": answered[len(text) :]})
                text = answered
            if answer is not None:
                for record in sentence_records(answer, ids, len(records), last):
                    records.append(record)
                    choose({"sentences": [record]})

        def on_answer(tokens: AnswerTokens) -> None:
            if not body.stream:
                return
            answered, answer = tokens.text.rstrip(BROKEN), None
            complete = len(sentence_spans(answered)) - 1  # the last one may go on
            if complete > len(records):
                proceed(answered, None, None)
                answer = model.explainer.answer(prompt, tokens.ids, None, body.method, body.of)
            proceed(answered, answer, complete)

        with _caught() as messages:
            choose({"role": "assistant", "content": ""})
            answer = request.stream(prompt, Generation(count, body.seed, options), on_answer)
            if answer is not None:
                proceed(answer.text, answer, None)
        reason = "stop" if answer is None or answer.finished else "length"
        used = len(read_prompt(model.explainer.tokenizer, prompt).ids)
        usage = self._usage(used, 0 if answer is None else len(answer))
        choose({}, reason, warnings=messages)
        if body.stream and body.stream_options.include_usage:
            send({**about, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        message = {"role": "assistant", "content": text, "sentences": records}
        return {
            **about,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": usage,
            "warnings": messages,
        }

    def answer(self, body: GivenAnswerBody) -> Data:
        """The sentences of an answer that came from elsewhere, with their passages."""
        model, (prompt, ids) = self._models[body.model], _prompt(body)
        checked_length(model, prompt, _texts(body), body.answer, None, self._limits)
        with _caught() as messages:
            answer = model.explainer.answer(prompt, body.answer, None, body.method, body.of)
            record = answer_record(answer, ids)
        record["warnings"] += messages
        return {
            "object": "answer",
            "model": body.model,
            **record,
            "tokens": [
                {"id": token.id, "text": token.text, "probability": token.probability}
                for token in answer.tokens
            ],
            "usage": self._usage(answer.start, len(answer)),
        }

    def explain(self, request: PageRequest) -> Data:
        """The explanation of a prediction, with a sentence that sums it up."""
        timed = self._answers._explain(request, request.method)
        explanation = timed.explanation
        return {
            "object": "explanation",
            "model": request.model.name,
            "sentence": sentence(explanation),
            "explanation": explanation.to_dict(),
            "warnings": list(dict.fromkeys((*timed.warnings, *explanation.warnings))),
        }

    def _usage(self, prompt: int, completion: int) -> Data:
        self._metrics.add("wherefrom_tokens_total", prompt, kind="prompt")
        self._metrics.add("wherefrom_tokens_total", completion, kind="answer")
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def _prompt(body: PromptBody) -> tuple[PromptLike, dict[str, str]]:
    """The prompt of a request, and the ids of its passages by their names."""
    roles = ["system" if m.role == "developer" else m.role for m in body.messages]
    if not body.documents:
        messages = zip(roles, body.messages, strict=True)
        return [{"role": role, "content": message.content} for role, message in messages], {}
    if roles not in (["user"], ["system", "user"]):
        raise InputError(
            "documents go with one message of the user, and one of the system before it; a longer "
            f"conversation has its passages in its messages. Got: {', '.join(roles)}."
        )
    passages = [Passage(document.text, document.title) for document in body.documents]
    system = body.messages[0].content if len(roles) == 2 else ""
    named = enumerate(body.documents, 1)
    ids = {f"passage {number}": document.id for number, document in named if document.id}
    return Prompt(body.messages[-1].content, passages, system), ids


def _texts(body: PromptBody) -> Sequence[str]:
    documents = [text for document in body.documents for text in (document.title, document.text)]
    return [*(message.content for message in body.messages), *documents]


@contextmanager
def _caught() -> Iterator[list[str]]:
    """The messages of the warnings within this context; the list is filled at its end."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += dict.fromkeys(for_page(warning.message) for warning in caught)
