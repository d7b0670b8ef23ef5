"""Runs the model on a prompt and its answer: probabilities, and relevance for spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from wherefrom.answers.multi_hop import RelevanceRow, Values
from wherefrom.answers.tokens import AnswerTokens, PromptTokens, tokenized, with_answer
from wherefrom.core.runner import Batch
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case, SpanTarget
from wherefrom.errors import InputError, ModelError, TooLong
from wherefrom.inputs.text import Encoded, longest
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import Method, Scores
from wherefrom.methods.base import Advance, GraphCache
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.forward_pass import run, warn_of_difference

Of = Literal["contrast", "logit", "logprob"]
"""The explained quantity of a token: logit minus the runner-up's, logit, or log-probability."""


_VARIANTS = 8
"""The tokens among which the most likely other word is looked for."""


def _other_word(token_id: int, likely: Sequence[int], tokenizer: Any) -> int:
    """The first token that is not a variant of a word: other case, or a space before it."""
    if tokenizer is None:
        return likely[0]
    word, *others = (
        str(tokenizer.decode([number])).strip().casefold() for number in (token_id, *likely)
    )
    different = (number for number, other in zip(likely, others, strict=True) if other != word)
    return next(different, likely[0]) if word else likely[0]


class AnsweredPrompt:
    """A prompt with its answer, the method, and the explained quantity."""

    method: Method
    prompt: PromptTokens
    answer: AnswerTokens
    of: Of

    @property
    def start(self) -> int:
        """The number of units before the answer."""
        return self.prompt.start

    @property
    def first_position(self) -> int:
        """The position of the logits that predict the answer's first token."""
        return self.prompt.first_position


@dataclass(frozen=True)
class Measured:
    """The model's outputs at the answer's tokens, (tokens,) each."""

    logits: Values
    log_probabilities: Values
    others: tuple[int, ...]  # the token that each is compared with
    other_log_probabilities: Values
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(
        logits: Tensor, answer: AnswerTokens, against: Mapping[int, int], tokenizer: Any = None
    ) -> Measured:
        """Measures the tokens of an answer in the logits, (tokens, vocabulary).

        They are compared with the most likely token of another word, or the one that `against`
        names: " seven" and "Seven" are one word.
        """
        rows = logits.double().cpu()
        ids = torch.tensor(answer.ids).unsqueeze(1)
        if int(ids.max()) >= rows.shape[1]:
            raise InputError(
                f"there is no token {int(ids.max())}: the model's outputs are 0 to "
                f"{rows.shape[1] - 1}."
            )
        logs = rows.log_softmax(-1)
        likely = rows.scatter(1, ids, -torch.inf).topk(min(_VARIANTS, rows.shape[1])).indices
        others = torch.tensor(
            [
                [_other_word(token_id, row, tokenizer)]
                for token_id, row in zip(answer.ids, likely.tolist(), strict=True)
            ]
        )
        for i, token_id in against.items():
            others[i] = token_id
        return Measured(
            rows.gather(1, ids)[:, 0].numpy(),
            logs.gather(1, ids)[:, 0].numpy(),
            tuple(others[:, 0].tolist()),
            logs.gather(1, others)[:, 0].numpy(),
        )

    def outputs(self, of: Of) -> Values:
        """The explained quantity of each token."""
        if of == "logit":
            return self.logits
        if of == "logprob":
            return self.log_probabilities
        return self.log_probabilities - self.other_log_probabilities  # = z_y − z_a


@dataclass(frozen=True, eq=False)
class AnswerAttribution(AnsweredPrompt):
    """Explains an answer with the model that generated or scored it."""

    reader: TextReader
    method: Method
    prompt: PromptTokens
    answer: AnswerTokens
    of: Of = "contrast"
    graph_cache: GraphCache = field(default_factory=GraphCache, repr=False)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, or None."""
        return self.reader.tokenizer

    def read(self, count: int) -> tuple[Encoded, Encoded | None]:
        """The model's input when it predicts the answer's token with index `count` − 1.

        For an encoder–decoder: the source, and the tokens of the decoder so far.
        """
        prompt, before = self.prompt, self.answer.ids[: count - 1]
        units = with_answer(prompt, self.answer)[prompt.patches : self.start + len(before)]
        text, source = prompt.lead + self.answer.text, len(prompt.ids)
        if not prompt.opening:
            return Encoded([*prompt.ids, *before], units, text), None
        written = Encoded([*prompt.opening, *before], units[source:], None)
        return Encoded(list(prompt.ids), units[:source], text), written

    def inputs(self, count: int) -> Batch:
        """`read(count)` as a batch of one."""
        inputs = batch_of(self.reader, [self.read(count)])
        return (
            inputs
            if self.prompt.encoded_images is None
            else self.prompt.encoded_images.joined(inputs)
        )

    def check_length(self) -> None:
        """Raises if prompt and answer are longer than the model accepts."""
        limit = longest(self.reader.runner, self.reader.tokenizer)
        source, count = len(self.prompt.ids), len(self.answer.ids)
        length = self.first_position + count
        if limit is None or max(length, source) <= limit:
            return
        note = " in encoder and decoder each" if self.prompt.opening else ""
        raise TooLong(
            f"the prompt has {source} tokens and the answer {count}, but the model takes "
            f"{limit}{note}. Shorten the {'answer' if source <= limit < count else 'prompt'}."
        )

    def _graph(self) -> ForwardGraph | None:
        """The forward pass over prompt and answer, cached."""
        runner = self.reader.runner

        def run() -> ForwardGraph | None:
            positions = self._positions()
            target = SpanTarget(index=torch.zeros_like(positions), position=positions)
            return self.method.graph(Case(runner, self.inputs(len(self.answer.ids)), target))

        return self.graph_cache.graph(runner.model, self.method.label, run)

    def _positions(self) -> Tensor:
        """The positions of the logits that predict the answer's tokens."""
        return torch.arange(
            self.first_position, self.first_position + len(self.answer.ids)
        ).unsqueeze(0)

    @restores_state
    def measured(self, against: Mapping[int, int] | None = None) -> Measured:
        """The logit and log-probability of each token, and of the one it is compared with.

        That is the most likely other token, or the one that `against` names for its index. If the
        method can, this is the pass from which spans are explained.
        """
        with Scope(inference=False):
            graph, target = self._graph(), SpanTarget(position=self._positions())
            rows = self.plain_rows() if graph is None else target.rows(graph.logits)[0]
            measured = Measured.of(rows, self.answer, against or {}, self.tokenizer)
            return replace(measured, warnings=(*self.notes, *self.warn_of_difference(rows)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats on what was left out of the prompt."""
        return () if self.prompt.script is None else self.prompt.script.notes

    def plain_rows(self) -> Tensor:
        """The logits that predict the answer's tokens, (tokens, vocabulary), by a plain pass."""
        target = SpanTarget(position=self._positions())
        inputs = self.inputs(len(self.answer.ids))
        return target.rows(run(Case(self.reader.runner, inputs, target)))[0]

    def warn_of_difference(self, rows: Tensor, width: int = 0) -> tuple[str, ...]:
        """Warns if these logits are not those of a plain pass; `width` is that of their batch.

        Prompts of similar length, up to a factor of two, count as one shape: each has its own
        length, and a pass costs half as much as the explanation.
        """
        length = len(self.prompt.ids) + len(self.answer.ids)
        shape = ("answer", self.method.name, length.bit_length(), width.bit_length())
        return warn_of_difference(
            self.reader.runner, shape, rows, self.plain_rows, in_batch=width > 0
        )

    @restores_state
    def log_probabilities_without(self, *names: str) -> Values:
        """The log-probability of each token of the answer without these parts of the prompt."""
        assert self.prompt.script is not None
        tokenizer, opening = self.reader.tokenizer, self.prompt.opening
        script = self.prompt.script.without(*names)
        prompt = tokenized(tokenizer, script, bool(opening), self.reader.joint_processor)
        if prompt.encoded_images is not None and self.prompt.encoded_images is not None:
            prompt = replace(
                prompt, images=replace(prompt.encoded_images, fill=self.prompt.encoded_images.fill)
            )
        if opening:
            prompt = prompt.with_opening(tokenizer, opening)
        attribution = AnswerAttribution(self.reader, self.method, prompt, self.answer, self.of)
        with Scope(inference=False):
            rows = attribution.plain_rows()
            return Measured.of(rows, self.answer, {}).log_probabilities

    def target(self, others: Sequence[int], first: int = 0, last: int | None = None) -> SpanTarget:
        """The tokens `first` to `last` − 1 as a target, minus `others` for `of="contrast"`."""
        device, span = self.reader.runner.device, slice(first, last)
        return SpanTarget(
            index=torch.tensor([self.answer.ids[span]], device=device),
            against=torch.tensor([others[span]], device=device) if self.of == "contrast" else None,
            position=self._positions()[:, span],
            log=self.of == "logprob",
        )

    @restores_state
    def span(self, measured: Measured, first: int, last: int) -> RelevanceRow:
        """The relevance for a span, by one backward pass if the method can."""
        with Scope(inference=False):
            graph, runner = self._graph(), self.reader.runner
            if graph is None:
                target = self.target(measured.others, first, last)
                scores = self.method(Case(runner, self.inputs(last), target))
            else:
                target = self.target(measured.others).within(first, last)
                with self.method.naming_memory(graph.case):
                    scores = graph.scores(target, retain=True)
            output = float(measured.outputs(self.of)[first:last].sum())
            return self._row(scores, target, output)

    def each(self, measured: Measured, advance: Advance | None = None) -> list[RelevanceRow]:
        """The relevance for each token, from one forward pass if the method can."""
        rows = self.tokens(measured, range(len(self.answer.ids)), advance)
        self.graph_cache.release()  # all spans are sums of these rows
        return rows

    @restores_state
    def tokens(
        self, measured: Measured, indices: range, advance: Advance | None = None
    ) -> list[RelevanceRow]:
        """The relevance for each of the tokens with these indices."""
        with Scope(inference=False):
            runner, target = self.reader.runner, self.target(measured.others)
            outputs, graph = measured.outputs(self.of), self._graph()
            if graph is None:
                inputs = self.inputs(len(self.answer.ids))
                results = self.method.each(Case(runner, inputs, target), indices, advance)
            else:
                with self.method.naming_memory(graph.case):
                    results = graph.each(target, indices, advance)
            return [
                self._row(scores, target.within(i, i + 1), float(outputs[i]))
                for i, scores in zip(indices, results, strict=True)
            ]

    def _row(self, scores: Scores, target: SpanTarget, output: float) -> RelevanceRow:
        """A row; its output comes from the explained pass if the scores have its logits."""
        if scores.logits is not None:
            output = float(target(scores.logits.detach()).double().sum())
        length = self.start + len(self.answer.ids)
        return RelevanceRow.of(scores, output, length, self.prompt.patches)


def batch_of(reader: TextReader, items: Sequence[tuple[Encoded, Encoded | None]]) -> Batch:
    """The input for several answers: texts, or sources with the decoder's tokens so far."""
    prefixes = [written for _, written in items if written is not None]
    inputs = reader.batch_after([text for text, _ in items], prefixes or None)
    if prefixes and len(inputs.fields) == 1:
        raise ModelError(
            f"the forward function of {reader.runner.name} does not pass decoder_input_ids to the "
            "model, so the answer cannot be read."
        )
    return inputs
