"""Names and their groups, as a file gives them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wherefrom.errors import FileError, InputError
from wherefrom.inputs.table import column, records

WORD = re.compile(r"[^\W_]+")
_NAME = ("name", "entity", "word", "term", "phrase")
_GROUP = ("group", "gender", "class", "category", "label")


@dataclass(frozen=True)
class Lexicon:
    """Names, each as its folded words, with their groups; a name of several is ambiguous."""

    groups: Mapping[tuple[str, ...], frozenset[str]]
    skipped: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(pairs: Iterable[tuple[str, str]]) -> Lexicon:
        """From pairs of a name and its group.

        >>> Lexicon.of([("Mary Ann", "female"), ("Robin", "female"), ("Robin", "male")]).names
        ['female', 'male']
        """
        found: dict[tuple[str, ...], set[str]] = {}
        skipped: dict[str, int] = {}
        for name, group in pairs:
            words = tuple(WORD.findall(str(name).casefold()))
            if not words or not str(group).strip():
                why = "no name" if not words else "no group"
                skipped[why] = skipped.get(why, 0) + 1
                continue
            found.setdefault(words, set()).add(str(group).strip())
        if not found:
            raise InputError("there are no names with a group.")
        return Lexicon({words: frozenset(groups) for words, groups in found.items()}, skipped)

    @property
    def names(self) -> list[str]:
        """The groups, in the order of the alphabet."""
        return sorted({group for groups in self.groups.values() for group in groups})

    def __len__(self) -> int:
        return len(self.groups)


def read_lexicon(
    path: str | Path, name_column: str | None = None, group_column: str | None = None
) -> Lexicon:
    """The names of a file with a column of names and one of groups."""
    rows = list(records(Path(path)))
    if not rows:
        raise FileError(f"{path} has no rows.")
    columns = list(rows[0])
    name = column(columns, name_column, _NAME, "name")
    group = column(columns, group_column, _GROUP, "group")
    return Lexicon.of((row.get(name) or "", _plain(row.get(group))) for row in rows)


def _plain(value: object) -> str:
    return "" if value is None else str(value)
