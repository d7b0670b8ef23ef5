"""The result: an answer, its tokens, and the sources of each part."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar, Self

import numpy as np

from wherefrom.answers.attribution import AnswerAttribution, Measured, Of
from wherefrom.answers.multi_hop import MultiHop, RelevanceRow, Values, kept_message, ledger, total
from wherefrom.answers.prompt import Part
from wherefrom.answers.recorded import (
    Recorded,
    answered_prompt_data,
    measured_data,
    measured_of,
    row_data,
    row_of,
)
from wherefrom.answers.sentences import Splitter, sentence_spans
from wherefrom.answers.sources import (
    AnswerToken,
    Citation,
    Level,
    PromptSpan,
    Source,
    cited,
    ranked,
    source_units,
    span_of,
    span_of_characters,
)
from wherefrom.answers.tokens import with_answer, words_of
from wherefrom.answers.verdicts import Verdict, verdicts
from wherefrom.core.explanation import RUNNERS_UP, Explanation, Ledger, TargetInfo, Unit
from wherefrom.errors import InputError, use_method
from wherefrom.methods.base import Advance
from wherefrom.storage.record import Displayable, Record


@dataclass(frozen=True, eq=False)
class Answer(Displayable, Record):
    """An answer to a prompt, whose parts are explained on demand.

    `against` is the index of the first token that differs from the answer it is compared with.
    """

    schema: ClassVar[str] = "wherefrom/answer/1"
    noun: ClassVar[str] = "answer"
    attribution: AnswerAttribution | Recorded = field(repr=False)
    measured: Measured = field(repr=False)
    model: str
    versions: Mapping[str, str] = field(repr=False)
    against: int | None = None
    finished: bool | None = None  # whether a stop token ended it; None: not generated
    splitter: Splitter | None = field(default=None, repr=False)  # of texts into sentences
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else f"{self.text[:59]}…"
        return f"Answer({text!r}, model={self.model!r}, tokens={len(self)})"

    # Contents

    @property
    def text(self) -> str:
        """The answer."""
        return self.attribution.answer.text

    @property
    def prompt(self) -> str:
        """The prompt as the model read it."""
        return self.attribution.prompt.text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of the prompt with their spans in it."""
        return self.attribution.prompt.parts

    @property
    def images(self) -> tuple[Mapping[str, Any], ...]:
        """The images of the prompt: their name, width, height, and "png" in base64."""
        images = self.attribution.prompt.images
        return () if images is None else images.scenes

    @property
    def start(self) -> int:
        """The number of units before the answer: patches of images, then tokens.

        For an encoder–decoder: the tokens of the source and the first tokens of its decoder.
        """
        return self.attribution.start

    @property
    def explained(self) -> Of:
        """The explained quantity of each token."""
        return self.attribution.of

    @property
    def units(self) -> tuple[Unit, ...]:
        """The tokens of the prompt and of the answer; `field` is the part that each belongs to."""
        if "units" not in self._cache:
            self._cache["units"] = with_answer(self.attribution.prompt, self.attribution.answer)
        units: tuple[Unit, ...] = self._cache["units"]
        return units

    @property
    def tokens(self) -> tuple[AnswerToken, ...]:
        """The tokens of the answer with their probabilities."""
        if "tokens" not in self._cache:
            self._cache["tokens"] = self._tokens()
        tokens: tuple[AnswerToken, ...] = self._cache["tokens"]
        return tokens

    def _tokens(self) -> tuple[AnswerToken, ...]:
        measured, answer = self.measured, self.attribution.answer
        tokenizer = self.attribution.tokenizer
        outputs = measured.outputs(self.explained)

        def name(token_id: int) -> str:
            return f"#{token_id}" if tokenizer is None else str(tokenizer.decode([token_id]))

        return tuple(
            AnswerToken(
                id=answer.ids[i],
                text=answer.pieces[i],
                probability=math.exp(measured.log_probabilities[i]),
                output=float(outputs[i]),
                other_id=measured.others[i],
                other=name(measured.others[i]),
                other_probability=math.exp(measured.other_log_probabilities[i]),
            )
            for i in range(len(answer.ids))
        )

    def __len__(self) -> int:
        return len(self.attribution.answer.ids)

    @property
    def words(self) -> list[PromptSpan]:
        """The words of the answer."""
        return [self._of_characters(*span) for span in words_of(self.text)]

    def sentences(self) -> list[PromptSpan]:
        """The sentences of the answer, with their characters in it and their tokens."""
        return [self._of_characters(*span) for span in sentence_spans(self.text, self.splitter)]

    def _of_characters(self, start: int, end: int) -> PromptSpan:
        return span_of_characters(self.attribution.answer.pieces, start, end)

    def span(self, part: int | slice | str | PromptSpan | None = None) -> PromptSpan:
        """A part of the answer: a token by index, a slice of tokens, or a text that it contains.

        None is the whole answer, or the first token that differs from the compared answer.
        """
        if part is None:
            part = slice(None) if self.against is None else self.against
        return span_of(part, self.attribution.answer.pieces)

    # Relevance

    def rows(self, advance: Advance | None = None) -> list[RelevanceRow]:
        """The relevance for each token of the answer, cached; `advance(done, total)`."""
        if "rows" not in self._cache:
            self._cache["rows"] = self.attribution.each(self.measured, advance)
        rows: list[RelevanceRow] = self._cache["rows"]
        return rows

    @property
    def matrix(self) -> Values:
        """Relevance of all tokens of prompt and answer (columns) for each answer token (rows)."""
        return np.stack([row.values for row in self.rows()])

    def row(self, part: int | slice | str | PromptSpan | None = None) -> RelevanceRow:
        """The relevance for a part of the answer: from one pass, or from the matrix if cached."""
        span = self.span(part)
        key = ("row", span.first, span.last)
        if key not in self._cache:
            rows = self._cache.get("rows")
            self._cache[key] = (
                self.attribution.span(self.measured, span.first, span.last)
                if rows is None
                else total(rows[span.first : span.last])
            )
        row: RelevanceRow = self._cache[key]
        return row

    def explaining(self, of: Of) -> Answer:
        """The same answer with another explained quantity; the forward pass is shared."""
        if of == self.explained:
            return self
        if ("explaining", of) not in self._cache:
            attribution = replace(self.attribution, of=of)
            self._cache["explaining", of] = replace(self, attribution=attribution, _cache={})
        answer: Answer = self._cache["explaining", of]
        return answer

    def keep(self, span: tuple[int, int], row: RelevanceRow) -> None:
        """Stores the relevance for a span, (first, last + 1), which a batch has computed."""
        self._cache["row", *span] = row

    def of(
        self,
        part: int | slice | str | PromptSpan | None = None,
        *,
        multi_hop: bool = False,
        hops: int | None = None,
    ) -> Explanation:
        """The explanation of a part of the answer.

        With `multi_hop`, earlier tokens of the answer pass their relevance on to their own sources
        until they have none left; `hops` limits the number of steps. Both need the whole matrix.
        """
        span = self.span(part)
        return self._explanation(span, self.row_after_hops(span, multi_hop, hops))

    def hops(self, part: int | slice | str | PromptSpan | None = None) -> list[Explanation]:
        """The explanations after 0, 1, 2, … hops, until relevance no longer moves."""
        span = self.span(part)
        chain, row = MultiHop(self.rows(), self.start), self.row(span)
        explanations = [self._explanation(span, row)]
        for _ in range(span.last):
            after = chain.hop(row)
            moved = float(np.abs(after.values - row.values).sum())
            if moved <= 1e-12 * float(np.abs(row.values).sum()):
                break
            row = after
            explanations.append(self._explanation(span, row))
        return explanations

    def rows_after_hops(self) -> tuple[list[RelevanceRow], list[int]]:
        """The row of each answer token after all hops, and the tokens that keep their relevance.

        They keep it because the terms of their rows cancel.
        """
        chain = MultiHop(self.rows(), self.start)
        return [chain.all(row) for row in self.rows()], chain.keeps

    def row_after_hops(
        self, span: PromptSpan, multi_hop: bool, hops: int | None = None
    ) -> RelevanceRow:
        """The relevance for a span, after hops as in `of`."""
        if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or hops < 0):
            raise InputError(f"hops must be 0 or more, got {hops!r}.")
        if not multi_hop and not hops:
            return self.row(span)
        chain, row = MultiHop(self.rows(), self.start), self.row(span)
        if row.lines is None:
            raise InputError(
                f"{self.attribution.method.name} has no ledger: its scores do not add up, so they "
                "cannot be passed on.",
                **use_method("lrp"),
            )
        result = chain.after(row, hops)
        kept = [i for i in chain.keeping(result) if i < span.last]
        if not kept:
            return result
        message = kept_message([self.attribution.answer.pieces[i] for i in kept])
        warnings.warn(message, stacklevel=3)
        return replace(result, warnings=(*result.warnings, message))

    def group(self, unit: int) -> str:
        """The group of a unit: image, prompt, first token, template, or answer.

        The first token (of an encoder–decoder, the decoder's) is an attention sink, so it is never
        ranked among the sources.
        """
        if unit >= self.start:
            return "answer"
        prompt = self.attribution.prompt
        if unit < prompt.patches:
            return "image"
        if unit == prompt.patches + (len(prompt.ids) if prompt.opening else 0):
            return "first token"
        return "template" if self.units[unit].special else "prompt"

    def ledger(self, part: int | slice | str | PromptSpan | None = None) -> Ledger | None:
        """The ledger of a part of the answer."""
        return self.of(part).ledger

    def _explanation(self, span: PromptSpan, row: RelevanceRow) -> Explanation:
        """The explanation over the prompt and the tokens before the last one of the span."""
        count = self.start + span.last - 1
        units, method = self.units[:count], self.attribution.method
        end = max(unit.end or 0 for unit in units)
        log_probability = float(self.measured.log_probabilities[span.first : span.last].sum())
        return Explanation(
            units=units,
            scores=row.values[:count].astype(np.float32),
            target=self._target(span),
            output=row.output,
            probability=math.exp(log_probability),
            method=method.name,
            settings={**method.settings(), "of": self.explained},
            label=method.short_label,
            ledger=ledger(row, units, self.group),
            text=(self.attribution.prompt.lead + self.text)[:end],
            scene={"kind": "images", "images": list(self.images)} if self.images else None,
            model=self.model,
            versions=dict(self.versions),
            warnings=(*self.measured.warnings, *row.warnings),
            errors=None if row.errors is None else row.errors[:count].astype(np.float32),
        )

    def _target(self, span: PromptSpan) -> TargetInfo:
        tokens = self.tokens[span.first : span.last]
        position = self.attribution.first_position + span.first
        label = "".join(token.text for token in tokens)
        if self.explained != "contrast":
            return TargetInfo(tokens[0].id, label, position=position)
        name = tokens[0].other if len(tokens) == 1 else RUNNERS_UP
        return TargetInfo(tokens[0].id, label, tokens[0].other_id, name, position)

    # Sources

    def sources(
        self,
        level: Level = "passage",
        part: int | slice | str | PromptSpan | None = None,
        *,
        multi_hop: bool = False,
        hops: int | None = None,
    ) -> list[Source]:
        """The tokens, words, sentences or passages of the prompt, the most relevant first.

        Template tokens and the first token are not ranked: they are lines of the ledger. Images
        are ranked patch by patch with tokens and words, as a whole with sentences and passages.
        """
        return ranked(self, level, self.row_after_hops(self.span(part), multi_hop, hops))

    def places(self, level: Level, *, whole_images: bool = False) -> list[tuple[str, list[int]]]:
        """The name of the part and the units of each source at a level, in prompt order."""
        return source_units(self, level, whole_images=whole_images)

    def citations(self, check: bool = False, *, multi_hop: bool = False) -> list[Citation]:
        """The passages for each sentence of the answer, the most relevant first.

        `check` also measures how far each sentence's log-probability drops without each passage,
        by a forward pass per passage.
        """
        return cited(self, check, multi_hop)

    def verdicts(self) -> list[Verdict]:
        """Whether a passage supports each sentence of the answer, with a probability.

        It takes a forward pass without any passage, and one for each of the first two passages by
        relevance.
        """
        return verdicts(self)

    def drop(self, *names: str) -> Values:
        """How far the log-probability of each token drops without these parts of the prompt."""
        key = ("drop", *names)
        if key not in self._cache:
            without = self.attribution.log_probabilities_without(*names)
            self._cache[key] = self.measured.log_probabilities - without
        drop: Values = self._cache[key]
        return drop

    # Output

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; includes the matrix if it was computed."""
        rows: list[RelevanceRow] | None = self._cache.get("rows")
        whole = self.span()
        return {
            "schema": self.schema,
            "model": self.model,
            **answered_prompt_data(self.attribution),
            "finished": self.finished,
            "tokens": [asdict(token) for token in self.tokens],
            "units": [asdict(unit) for unit in self.units],
            "against": self.against,
            "measured": measured_data(self.measured),
            "explanation": self.of(whole).to_dict(),
            "explained": {"first": whole.first, "last": whole.last, **row_data(self.row(whole))},
            "sources": [asdict(source) for source in self.sources("passage")],
            "rows": None if rows is None else [row_data(row) for row in rows],
            "sentences": None if self.splitter is None else self._split_texts(self.splitter),
            "versions": dict(self.versions),
        }

    def _split_texts(self, splitter: Splitter) -> list[list[str]]:
        """The sentences of the answer and of each part, by the user's splitter."""
        texts = [self.text, *(self.prompt[part.start : part.end] for part in self.parts)]
        return [[text[a:b] for a, b in sentence_spans(text, splitter)] for text in texts]

    @classmethod
    def _of_data(cls, data: dict[str, Any]) -> Self:
        """Reads an answer without its model; only the saved parts can be explained."""
        answer = cls(
            Recorded.of_data(data),
            measured_of(data["measured"]),
            data["model"],
            data["versions"],
            data["against"],
            data["finished"],
        )
        if data.get("sentences") is not None:
            answer = replace(answer, splitter=answer._saved_splitter(data["sentences"]))
        length = answer.start + len(answer)
        part, rows = data["explained"], data["rows"]
        answer._cache["tokens"] = tuple(AnswerToken(**token) for token in data["tokens"])
        answer._cache["row", part["first"], part["last"]] = row_of(part, length)
        if rows is not None:
            answer._cache["rows"] = [row_of(row, length) for row in rows]
            if len(rows) != len(answer):
                raise ValueError(f"{len(answer)} tokens but {len(rows)} rows")
        return answer

    def _saved_splitter(self, sentences: list[list[str]]) -> Splitter:
        """A splitter that knows the texts of a saved answer."""
        texts = [self.text, *(self.prompt[part.start : part.end] for part in self.parts)]
        return dict(zip(texts, sentences, strict=True)).__getitem__

    def __str__(self) -> str:
        return str(_renderer("terminal")(self))

    def _html(self, whole_page: bool) -> str:
        """A page has the whole matrix and scripts; a notebook shows `of()`, which needs neither."""
        return str(_renderer("page")(self)) if whole_page else self.of()._repr_html_()

    def _rows(self) -> list[dict[str, Any]]:
        """One row for each unit of `of()`, with the part of the prompt that it belongs to."""
        explanation = self.of()
        parts = [{"part": unit.field} for unit in explanation.units]
        return [part | row for part, row in zip(parts, explanation._rows(), strict=True)]

    def _figures(self) -> Mapping[str, Callable[..., Any]]:
        """The shares of each row, relevance / Σ |relevance|; and `of()`.

        `level` of "matrix" sets the columns of the prompt; `multi_hop` is that of `of`.
        """
        draw = import_module("wherefrom.show.answer").matrix_drawing

        def matrix(level: Level = "word", multi_hop: bool = False) -> Any:
            return draw(self, level, multi_hop)

        return {"matrix": matrix, **self.of()._figures()}


def _renderer(kind: str) -> Callable[..., str]:
    render: Callable[..., str] = getattr(import_module("wherefrom.show.answer"), kind)
    return render
