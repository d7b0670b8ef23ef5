"""Which parts of the prompt an answer comes from: ranked sources, and citations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from wherefrom.answers.rows import Row
from wherefrom.answers.spans import Span
from wherefrom.answers.tokens import sentences_of
from wherefrom.errors import InputError, nearest

if TYPE_CHECKING:
    from wherefrom.answers.answer import Answer

Level = Literal["token", "word", "sentence", "passage"]
LEVELS: tuple[Level, ...] = ("token", "word", "sentence", "passage")


@dataclass(frozen=True)
class Source:
    """A part of the prompt with its relevance: of an image a patch, or the whole.

    `share` is relevance / Σ |relevance| over all sources of the level.
    """

    name: str  # of the part that it is or belongs to
    text: str
    relevance: float
    share: float
    start: int
    end: int
    box: tuple[int, int, int, int] | None = None  # of a patch, in the image that it belongs to


@dataclass(frozen=True)
class Support:
    """What a passage is to a sentence of the answer.

    `share` is relevance / Σ |relevance| over the passages; `drop` how much the log-probability of
    the sentence falls when the passage is left out, where that was checked.
    """

    passage: str
    title: str
    relevance: float
    share: float
    drop: float | None = None


@dataclass(frozen=True)
class Citation:
    """A sentence of the answer and its passages, the most relevant first."""

    sentence: Span
    supports: tuple[Support, ...]


def ranked(answer: Answer, level: Level, row: Row) -> list[Source]:
    """The sources of a level, the most relevant first."""
    places = source_units(answer, level)
    relevance = [float(row.values[units].sum()) for _, units in places]
    sources = [
        _source(answer, name, units, amount, share)
        for (name, units), amount, share in zip(places, relevance, _shares(relevance), strict=True)
    ]
    return sorted(sources, key=lambda source: -source.relevance)


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
    """The units of each source of a level in the prompt's order, with the name of its part.

    Patches of images stand beside tokens and words; beside sentences and passages, or with
    `whole_images`, an image is one source.
    """
    if level not in LEVELS:
        raise InputError(f'there is no level "{level}"; {nearest(str(level), LEVELS)}')
    whole_images = whole_images or level in ("sentence", "passage")
    sentences = {
        part.name: [
            part.start + end for _, end in sentences_of(answer.prompt[part.start : part.end])
        ]
        for part in answer.parts
    }
    places: dict[Any, Places] = {}
    word: int | None = None
    for number in range(answer.start):
        unit, group = answer.units[number], answer.group(number)
        if group not in ("prompt", "image"):
            continue
        word = unit.word if unit.word is not None else word  # a space belongs to the one before
        if group == "image":
            key: Any = unit.field if whole_images else (unit.field, number)
        elif level == "token":
            key = number
        elif level == "word":
            key = word
        elif level == "sentence":
            inked = (unit.start or 0) + len(unit.text) - len(unit.text.lstrip())
            ends = sentences.get(unit.field, [])
            key = (unit.field, sum(end <= inked for end in ends[:-1]))
        else:
            key = unit.field
        places.setdefault(key, (unit.field, []))[1].append(number)
    return list(places.values())


Places = tuple[str, list[int]]


def cited(answer: Answer, check: bool, through: bool) -> list[Citation]:
    """For each sentence of the answer the passages, the most relevant first."""
    passages = [part for part in answer.parts if part.kind == "passage"]
    if not passages:
        raise InputError(
            "the prompt has no passages to cite.",
            "Pass a Prompt with passages=[…], or a text of several paragraphs.",
            command="Pass --passages, or a text of several paragraphs.",
            page="Add passages, or write several paragraphs.",
        )
    drops = answer.drops(passages) if check else {}
    units = dict(source_units(answer, "passage"))
    citations = []
    for sentence in answer.sentences:
        row = answer.row_through(sentence, through)
        relevance = [float(row.values[units.get(part.name, [])].sum()) for part in passages]
        supports = [
            Support(
                part.name,
                part.title,
                amount,
                share,
                float(drops[part.name][sentence.first : sentence.last].sum()) if check else None,
            )
            for part, amount, share in zip(passages, relevance, _shares(relevance), strict=True)
        ]
        supports.sort(key=lambda support: -support.relevance)
        citations.append(Citation(sentence, tuple(supports)))
    return citations


def _shares(relevance: Sequence[float]) -> list[float]:
    size = sum(map(abs, relevance)) or 1.0
    return [amount / size for amount in relevance]
