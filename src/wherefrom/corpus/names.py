"""Where names occur in texts: longest first, a run of them as one, ordinary words set aside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from wherefrom.corpus.lexicon import WORD, Lexicon
from wherefrom.corpus.ordinary import ORDINARY
from wherefrom.errors import InputError

AMBIGUOUS = "ambiguous"
_WITHIN = re.compile(r"\s{1,2}|\s?[-‐'’.]\s?")  # between the words of a name
_BETWEEN = re.compile(r"\s{1,2}|\s?[-‐]\s?")  # between names: a full stop would end a sentence
_DETERMINERS = frozenset(
    "a an the this that these those its his her their my your our no some any every".split()
)


@dataclass(frozen=True)
class Occurrence:
    """A name, or a run of names, at a place of a text."""

    text: int
    start: int
    end: int
    name: str
    group: str


@dataclass(frozen=True)
class Entities:
    """What was found, and what was set aside and why: `dropped[reason][name]` times.

    `suspects` are names that often follow an article, so that they may be ordinary words: (times
    after an article, times in all).
    """

    found: tuple[Occurrence, ...]
    cased: bool
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    suspects: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Match:
    words: tuple[str, ...]
    start: int
    end: int
    capital: bool
    determined: bool


def find_entities(
    texts: Sequence[str],
    lexicon: Lexicon,
    *,
    ambiguous: Literal["drop", "group"] = "drop",
    ordinary: Literal["drop", "keep"] = "drop",
    stop: Collection[str] = (),
    cased: bool | None = None,
    min_capitalised: float = 0.5,
) -> Entities:
    """Finds names without regard to case, then sets aside those that may be none.

    In `cased` texts (by default: if half of them have a capital) a name counts where it is written
    with one, and only if at least `min_capitalised` of its occurrences are. In lower-case texts
    nothing tells a name from a word, so that names which are ordinary words are dropped unless
    `ordinary="keep"`. Those of `stop` never count. Names that follow each other with only a blank
    or hyphen between them are one entity, in the group of the first: a given name comes first.
    """
    if not 0 <= min_capitalised <= 1:
        raise InputError(f"min_capitalised is a share from 0 to 1, not {min_capitalised}.")
    if cased is None:
        cased = 2 * sum(text != text.lower() for text in texts) >= len(texts)
    matches = [list(_matches(text, lexicon)) for text in texts]
    dropped: dict[str, Counter[str]] = {}
    lowly = _mostly_lower(matches, min_capitalised) if cased else set()
    stopped = {tuple(WORD.findall(word.casefold())) for word in stop}

    def reason(match: _Match) -> str:
        if match.words in stopped:
            return "on the stop list"
        if cased and not match.capital:
            return "not capitalised"
        if match.words in lowly:
            return "mostly not capitalised"
        if (
            not cased
            and ordinary == "drop"
            and len(match.words) == 1
            and match.words[0] in ORDINARY
        ):
            return "an ordinary word too"
        return ""

    found: list[Occurrence] = []
    heard: Counter[str] = Counter()
    after: Counter[str] = Counter()
    for i, row in enumerate(matches):
        kept = []
        for match in row:
            why = reason(match)
            if why:
                dropped.setdefault(why, Counter())[" ".join(match.words)] += 1
            else:
                kept.append(match)
                heard[" ".join(match.words)] += 1
                after[" ".join(match.words)] += match.determined
        for each in _runs(i, texts[i], kept, lexicon):
            if each.group == AMBIGUOUS and ambiguous == "drop":
                dropped.setdefault("in several groups", Counter())[each.name] += 1
            else:
                found.append(each)
    suspects = {
        name: (after[name], times)
        for name, times in heard.most_common()
        if times >= 3 and after[name] >= 0.3 * times
    }
    return Entities(tuple(found), cased, dropped, suspects)


def _matches(text: str, lexicon: Lexicon) -> Iterator[_Match]:
    """Names in a text, the longest first, none within another."""
    words = [(m.group().casefold(), m.start(), m.end()) for m in WORD.finditer(text)]
    lengths = sorted({len(name) for name in lexicon.groups}, reverse=True)
    at = 0
    while at < len(words):
        for length in lengths:
            part = words[at : at + length]
            name = tuple(word for word, _, _ in part)
            if len(part) == length and name in lexicon.groups and _together(text, part):
                start, end = part[0][1], part[-1][2]
                before = words[at - 1][0] if at else ""
                yield _Match(name, start, end, text[start].isupper(), before in _DETERMINERS)
                at += length
                break
        else:
            at += 1


def _together(text: str, part: Sequence[tuple[str, int, int]]) -> bool:
    return all(
        _WITHIN.fullmatch(text[a_end:b_start]) for (_, _, a_end), (_, b_start, _) in pairwise(part)
    )


def _mostly_lower(matches: Sequence[Sequence[_Match]], least: float) -> set[tuple[str, ...]]:
    times: Counter[tuple[str, ...]] = Counter()
    capital: Counter[tuple[str, ...]] = Counter()
    for row in matches:
        for match in row:
            times[match.words] += 1
            capital[match.words] += match.capital
    return {name for name, n in times.items() if capital[name] < least * n}


def _runs(i: int, text: str, kept: Sequence[_Match], lexicon: Lexicon) -> Iterator[Occurrence]:
    run: list[_Match] = []
    for match in [*kept, None]:
        if run and (match is None or not _BETWEEN.fullmatch(text[run[-1].end : match.start])):
            groups = lexicon.groups[run[0].words]
            name = " ".join(word for each in run for word in each.words)
            group = next(iter(groups)) if len(groups) == 1 else AMBIGUOUS
            yield Occurrence(i, run[0].start, run[-1].end, name, group)
            run = []
        if match is not None:
            run.append(match)
