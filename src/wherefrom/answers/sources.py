"""The sources and citations of an answer's parts in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wherefrom.answers.multi_hop import RelevanceRow
from wherefrom.answers.prompt import Part
from wherefrom.answers.sentences import sentence_spans
from wherefrom.answers.tokens import words_of
from wherefrom.errors import InputError, TargetError, nearest

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer

Level = Literal["token", "word", "sentence", "passage"]
LEVELS: tuple[Level, ...] = ("token", "word", "sentence", "passage")


@dataclass(frozen=True)
class AnswerToken:
    """A token of the answer, and the token it is compared with, by default the runner-up."""

    id: int
    text: str
    probability: float
    output: float  # the explained contrast, logit or log-probability
    other_id: int
    other: str
    other_probability: float


@dataclass(frozen=True)
class PromptSpan:
    """Consecutive tokens of the answer, `first` to `last` − 1, and its characters in the answer."""

    text: str
    first: int
    last: int
    start: int
    end: int


def span_of_characters(pieces: Sequence[str], start: int, end: int) -> PromptSpan:
    """The span of the tokens that contain the characters start to end − 1."""
    position, inside = 0, []
    for i, piece in enumerate(pieces):
        if position < end and position + len(piece) > start:
            inside.append(i)
        position += len(piece)
    first = inside[0]
    while first > 0 and not pieces[first - 1]:
        first -= 1  # tokens that share one character have an empty text
    return PromptSpan("".join(pieces)[start:end], first, inside[-1] + 1, start, end)


def span_of(part: int | slice | str | PromptSpan, pieces: Sequence[str]) -> PromptSpan:
    """A part of the answer by index, slice or text; `pieces` are the texts of the tokens."""
    if isinstance(part, PromptSpan):
        return part
    if isinstance(part, str):
        return _span_of_text(part, pieces)
    numbers = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    if not all(number is None or isinstance(number, (int, np.integer)) for number in numbers):
        raise TargetError(
            "a part of the answer is a token's index, a slice of tokens, a text, or a span of "
            f"words or sentences, got {part!r}."
        )
    count = len(pieces)
    if isinstance(part, slice):
        first, last, step = part.indices(count)
        if step != 1 or last <= first:
            raise TargetError(f"{part} is not a span of the answer, which has {count} tokens.")
    else:
        if not -count <= part < count:
            raise TargetError(f"there is no token {part}: the answer has {count} tokens.")
        first = part % count
        last = first + 1
    text, start = "".join(pieces[first:last]), len("".join(pieces[:first]))
    return PromptSpan(text, first, last, start, start + len(text))


def _span_of_text(part: str, pieces: Sequence[str]) -> PromptSpan:
    if not part.strip():
        raise TargetError("an empty text is not a part of the answer.")
    text = "".join(pieces)
    start = text.find(part)
    if start < 0:
        names = [text[a:b] for a, b in words_of(text)]
        raise TargetError(f"{part!r} is not in the answer; {nearest(part, dict.fromkeys(names))}")
    return span_of_characters(pieces, start, start + len(part))


@dataclass(frozen=True)
class Source:
    """A part of the prompt, a patch or an image, with its relevance.

    `share` is relevance / Σ |relevance| over all parts of the prompt at this level. `error` is the
    standard error of an estimated relevance, an upper bound where units are joined.
    """

    name: str  # of the part that it belongs to
    text: str
    relevance: float
    share: float
    start: int
    end: int
    box: tuple[int, int, int, int] | None = None  # of a patch, in the image that it belongs to
    error: float | None = None


@dataclass(frozen=True)
class Support:
    """The contribution of a passage to a sentence of the answer.

    `share` and `error` are defined as in `Source`; `drop` is how far the log-probability of the
    sentence drops without the passage, if that was checked.
    """

    passage: str
    title: str
    relevance: float
    share: float
    drop: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Citation:
    """A sentence of the answer and its passages, the most relevant first."""

    sentence: PromptSpan
    supports: tuple[Support, ...]


def ranked(answer: Answer, level: Level, row: RelevanceRow) -> list[Source]:
    """The sources at a level with their shares, the most relevant first.

    This is the only definition of a share: citations, the terminal and JSON use it, and the script
    of the page divides the same sums.
    """
    places = source_units(answer, level)
    relevance = [float(row.values[units].sum()) for _, units in places]
    size = sum(map(abs, relevance)) or 1.0
    sources = [
        replace(_source(answer, name, units, amount, amount / size), error=_error(row, units))
        for (name, units), amount in zip(places, relevance, strict=True)
    ]
    return sorted(sources, key=lambda source: -source.relevance)


def _error(row: RelevanceRow, units: list[int]) -> float | None:
    return None if row.errors is None else float(row.errors[units].sum())


def _source(answer: Answer, name: str, units: list[int], relevance: float, share: float) -> Source:
    first = answer.units[units[0]]
    if answer.group(units[0]) == "image":
        text, box = (f"patch {first.text}", first.box) if len(units) == 1 else (name, None)
        return Source(name, text, relevance, share, 0, 0, box)
    # a space may be a token without a span
    starts = [unit.start for i in units if (unit := answer.units[i]).start is not None]
    ends = [unit.end for i in units if (unit := answer.units[i]).end is not None]
    start, end = (starts[0], ends[-1]) if starts and ends else (0, 0)
    return Source(name, answer.prompt[start:end].strip(), relevance, share, start, end)


def source_units(answer: Answer, level: Level, *, whole_images: bool = False) -> list[Places]:
    """The name of the part and the units of each source at a level, in prompt order.

    With tokens and words, each patch of an image is a source; with sentences, passages or
    `whole_images`, each image is.
    """
    if level not in LEVELS:
        raise InputError(f'there is no level "{level}"; {nearest(str(level), LEVELS)}')
    whole_images = whole_images or level in ("sentence", "passage")
    sentences = {
        part.name: [
            part.start + end
            for _, end in sentence_spans(answer.prompt[part.start : part.end], answer.splitter)
        ]
        for part in answer.parts
    }
    places: dict[Any, Places] = {}
    word: int | None = None
    for i in range(answer.start):
        unit, group = answer.units[i], answer.group(i)
        if group not in ("prompt", "image"):
            continue
        word = unit.word if unit.word is not None else word  # a space belongs to the word before it
        if group == "image":
            key: Any = unit.field if whole_images else (unit.field, i)
        elif level == "token":
            key = i
        elif level == "word":
            key = word
        elif level == "sentence":
            first_visible = (unit.start or 0) + len(unit.text) - len(unit.text.lstrip())
            ends = sentences.get(unit.field, [])
            key = (unit.field, sum(end <= first_visible for end in ends[:-1]))
        else:
            key = unit.field
        places.setdefault(key, (unit.field, []))[1].append(i)
    return list(places.values())


Places = tuple[str, list[int]]


def cited(answer: Answer, check: bool, multi_hop: bool) -> list[Citation]:
    """The passages for each sentence of the answer, the most relevant first."""
    titles = {part.name: part.title for part in passages_of(answer)}
    citations = []
    for sentence in answer.sentences():
        row = answer.row_after_hops(sentence, multi_hop)
        by_name = {source.name: source for source in ranked(answer, "passage", row)}
        supports = []
        for name, title in titles.items():
            source = by_name.get(name)
            relevance, share = (0.0, 0.0) if source is None else (source.relevance, source.share)
            where = slice(sentence.first, sentence.last)
            drop = float(answer.drop(name)[where].sum()) if check else None
            error = None if source is None else source.error
            supports.append(Support(name, title, relevance, share, drop, error))
        supports.sort(key=lambda support: -support.relevance)
        citations.append(Citation(sentence, tuple(supports)))
    return citations


def passages_of(answer: Answer) -> list[Part]:
    """The passages of the prompt."""
    passages = [part for part in answer.parts if part.kind == "passage"]
    if not passages:
        raise InputError(
            "the prompt has no passages to cite.",
            "Pass a Prompt with passages=[…], or a text of several paragraphs.",
            command="Pass --passages, or a text of several paragraphs.",
            page="Add passages, or write several paragraphs.",
        )
    return passages
