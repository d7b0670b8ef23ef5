"""Names with their groups, and their occurrences in texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from wherefrom.errors import FileError, InputError
from wherefrom.inputs.records import column
from wherefrom.inputs.table import records

AMBIGUOUS = "ambiguous"
WORD = re.compile(r"[^\W_]+")
_WITHIN = re.compile(r"\s{1,2}|\s?[-‐'’.]\s?")  # between the words of one name
_BETWEEN = re.compile(r"\s{1,2}|\s?[-‐]\s?")  # between names; a full stop would end a sentence
_NAME_COLUMNS = ("name", "entity", "word", "term", "phrase")
_GROUP_COLUMNS = ("group", "gender", "class", "category", "label")
_DETERMINERS = frozenset(
    "a an the this that these those its his her their my your our no some any every".split()
)

NameWords = tuple[str, ...]  # of a name, case-folded


def split_words(name: str) -> NameWords:
    """The case-folded words of a name.

    >>> split_words("Jean-Luc O'Neil")
    ('jean', 'luc', 'o', 'neil')
    """
    return tuple(WORD.findall(name.casefold()))


@cache
def ordinary_words() -> frozenset[str]:
    """First names that are also English words or places (training/ordinary_words.py)."""
    lines = Path(__file__).with_name("ordinary_words.txt").read_text("utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True)
class Lexicon:
    """Names with their groups; a name in several groups is ambiguous."""

    groups: Mapping[NameWords, frozenset[str]]
    skipped: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(pairs: Iterable[tuple[str, str]]) -> Lexicon:
        """Builds a lexicon from pairs (name, group).

        >>> Lexicon.of([("Mary Ann", "female"), ("Robin", "female"), ("Robin", "male")]).group_names
        ['female', 'male']
        """
        groups: dict[NameWords, set[str]] = {}
        skipped: Counter[str] = Counter()
        for name, group in pairs:
            words = split_words(str(name))
            if words and str(group).strip():
                groups.setdefault(words, set()).add(str(group).strip())
            else:
                skipped["no group" if words else "no name"] += 1
        if not groups:
            raise InputError("the list has no name with a group.")
        return Lexicon({words: frozenset(names) for words, names in groups.items()}, skipped)

    @property
    def group_names(self) -> list[str]:
        """The groups in alphabetical order."""
        return sorted({group for groups in self.groups.values() for group in groups})

    def __len__(self) -> int:
        return len(self.groups)


def read_lexicon(
    path: str | Path, name_column: str | None = None, group_column: str | None = None
) -> Lexicon:
    """Reads a file with a column of names and a column of groups."""
    rows = list(records(Path(path)))
    if not rows:
        raise FileError(f"{path} has no rows.")
    columns = list(rows[0])
    name = column(columns, name_column, _NAME_COLUMNS, "name")
    group = column(columns, group_column, _GROUP_COLUMNS, "group")
    return Lexicon.of((_as_text(row.get(name)), _as_text(row.get(group))) for row in rows)


def _as_text(value: object) -> str:
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Occurrence:
    """A name, or several adjacent names, in a text."""

    text: int
    start: int
    end: int
    name: str
    group: str


@dataclass(frozen=True)
class Entities:
    """The names found in texts, and those excluded: `dropped[reason][name]` counts them.

    `uses` and `after_determiner` count the included names: one that often follows a determiner may
    be an ordinary word.
    """

    occurrences: tuple[Occurrence, ...]
    cased: bool
    dropped: dict[str, Counter[str]] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    after_determiner: Counter[str] = field(default_factory=Counter)

    @property
    def suspects(self) -> dict[str, tuple[int, int]]:
        """Names that often follow a determiner, with the counts (after a determiner, in total)."""
        return {
            name: (self.after_determiner[name], count)
            for name, count in self.uses.most_common()
            if count >= 3 and self.after_determiner[name] >= 0.3 * count
        }


@dataclass
class NameUses:
    """Counts of names and capitals in texts, by which uses of names are included."""

    texts: int = 0
    with_capitals: int = 0
    uses: Counter[NameWords] = field(default_factory=Counter)
    capitalised: Counter[NameWords] = field(default_factory=Counter)

    @staticmethod
    def of(texts: Sequence[str], lexicon: Lexicon) -> NameUses:
        """Counts the names of these texts."""
        return NameUses._of(texts, [list(_matches(text, lexicon)) for text in texts])

    @staticmethod
    def _of(texts: Sequence[str], matches: Sequence[Sequence[_Match]]) -> NameUses:
        counts = NameUses(len(texts), sum(text != text.lower() for text in texts))
        for row in matches:
            for match in row:
                counts.uses[match.words] += 1
                counts.capitalised[match.words] += match.capitalised
        return counts

    def add(self, other: NameUses) -> None:
        """Adds the counts of other texts."""
        self.texts += other.texts
        self.with_capitals += other.with_capitals
        self.uses.update(other.uses)
        self.capitalised.update(other.capitalised)

    @property
    def cased(self) -> bool:
        """Whether at least half of the texts contain a capital letter."""
        return 2 * self.with_capitals >= self.texts

    def rarely_capitalised(self, min_share: float) -> set[NameWords]:
        """Names that are capitalised in less than this share of their uses."""
        return {
            name for name, count in self.uses.items() if self.capitalised[name] < min_share * count
        }


@dataclass(frozen=True)
class _Match:
    words: NameWords
    start: int
    end: int
    capitalised: bool
    after_determiner: bool

    @property
    def name(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class NameFilter:
    """Which uses of names count: see `find_entities`."""

    cased: bool
    stop: frozenset[NameWords]
    rarely_capitalised: frozenset[NameWords]
    ordinary: frozenset[str]

    @staticmethod
    def of(
        counts: NameUses,
        ordinary: Literal["drop", "keep"] = "drop",
        stop: Collection[str] = (),
        cased: bool | None = None,
        min_capitalised: float = 0.5,
    ) -> NameFilter:
        """The filter for texts with these counts."""
        if not 0 <= min_capitalised <= 1:
            raise InputError(f"min_capitalised must be between 0 and 1, got {min_capitalised}.")
        cased = counts.cased if cased is None else cased
        return NameFilter(
            cased,
            frozenset(map(split_words, stop)),
            frozenset(counts.rarely_capitalised(min_capitalised) if cased else ()),
            ordinary_words() if not cased and ordinary == "drop" else frozenset(),
        )

    def reason_to_drop(self, name: NameWords, capitalised: bool) -> str:
        """Why a use of a name does not count; empty if it does."""
        if name in self.stop:
            return "on the stop list"
        if self.cased and not capitalised:
            return "not capitalised"
        if name in self.rarely_capitalised:
            return "mostly not capitalised"
        return "also an ordinary word" if " ".join(name) in self.ordinary else ""


def groups_in(
    counts: NameUses,
    lexicon: Lexicon,
    ambiguous: Literal["drop", "group"] = "drop",
    **options: Any,
) -> tuple[set[str], dict[str, Counter[str]]]:
    """The groups that occur in texts with these counts, and the excluded uses."""
    rules = NameFilter.of(counts, **options)
    present: set[str] = set()
    dropped: dict[str, Counter[str]] = {}
    for name, uses in counts.uses.items():
        capitals = counts.capitalised[name]
        group = group_of(name, lexicon)
        for capitalised, number in ((True, capitals), (False, uses - capitals)):
            reason = rules.reason_to_drop(name, capitalised)
            if not reason and group == AMBIGUOUS and ambiguous == "drop":
                reason = "in several groups"
            if number and reason:
                dropped.setdefault(reason, Counter())[" ".join(name)] += number
            elif number:
                present.add(group)
    return present, dropped


def group_of(name: NameWords, lexicon: Lexicon) -> str:
    """The group of a name, or AMBIGUOUS."""
    groups = lexicon.groups[name]
    return next(iter(groups)) if len(groups) == 1 else AMBIGUOUS


def find_entities(
    texts: Sequence[str],
    lexicon: Lexicon,
    *,
    ambiguous: Literal["drop", "group"] = "drop",
    ordinary: Literal["drop", "keep"] = "drop",
    stop: Collection[str] = (),
    cased: bool | None = None,
    min_capitalised: float = 0.5,
    counts: NameUses | None = None,
) -> Entities:
    """Finds names, ignoring case, then excludes those that may be ordinary words.

    In `cased` texts (by default: if at least half of them contain a capital letter) a name counts
    where it is capitalised, and only if at least `min_capitalised` of its uses are. Lower-case
    texts do not distinguish names from words, so names that are ordinary words are dropped unless
    `ordinary="keep"`. Names in `stop` never count. Names separated only by a space or hyphen are
    one entity, in the group of the first, which is usually the given name. If the texts are a part
    of a corpus, `counts` are those of the whole corpus.
    """
    matches = [list(_matches(text, lexicon)) for text in texts]
    counts = counts or NameUses._of(texts, matches)
    rules = NameFilter.of(counts, ordinary, stop, cased, min_capitalised)
    occurrences: list[Occurrence] = []
    dropped: dict[str, Counter[str]] = {}
    uses: Counter[str] = Counter()
    after_determiner: Counter[str] = Counter()
    for i, row in enumerate(matches):
        names = []
        for match in row:
            reason = rules.reason_to_drop(match.words, match.capitalised)
            if reason:
                dropped.setdefault(reason, Counter())[match.name] += 1
            else:
                names.append(match)
                uses[match.name] += 1
                after_determiner[match.name] += match.after_determiner
        for occurrence in _runs(i, texts[i], names, lexicon):
            if occurrence.group == AMBIGUOUS and ambiguous == "drop":
                dropped.setdefault("in several groups", Counter())[occurrence.name] += 1
            else:
                occurrences.append(occurrence)
    return Entities(tuple(occurrences), rules.cased, dropped, uses, after_determiner)


def _matches(text: str, lexicon: Lexicon) -> Iterator[_Match]:
    """Names in a text, longest first, without overlap."""
    words = [(m.group().casefold(), m.start(), m.end()) for m in WORD.finditer(text)]
    lengths = sorted({len(name) for name in lexicon.groups}, reverse=True)
    i = 0
    while i < len(words):
        for length in lengths:
            part = words[i : i + length]
            name = tuple(word for word, _, _ in part)
            if len(part) == length and name in lexicon.groups and _is_one_name(text, part):
                start, end = part[0][1], part[-1][2]
                previous = words[i - 1][0] if i else ""
                yield _Match(name, start, end, text[start].isupper(), previous in _DETERMINERS)
                i += length
                break
        else:
            i += 1


def _is_one_name(text: str, part: Sequence[tuple[str, int, int]]) -> bool:
    return all(
        _WITHIN.fullmatch(text[a_end:b_start]) for (_, _, a_end), (_, b_start, _) in pairwise(part)
    )


def _runs(i: int, text: str, names: Sequence[_Match], lexicon: Lexicon) -> Iterator[Occurrence]:
    """Joins adjacent names."""
    run: list[_Match] = []
    for match in [*names, None]:
        if run and (match is None or not _BETWEEN.fullmatch(text[run[-1].end : match.start])):
            group = group_of(run[0].words, lexicon)
            yield Occurrence(i, run[0].start, run[-1].end, " ".join(m.name for m in run), group)
            run = []
        if match is not None:
            run.append(match)
