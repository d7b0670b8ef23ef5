"""The sentences of a text: by rules for many languages, or by a splitter that the user passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from wherefrom.errors import InputError

Splitter = Callable[[str], Sequence[str]]
"""Splits a text into its sentences, in order, such as `nltk.sent_tokenize`."""
Span = tuple[int, int]

_END = re.compile(
    r"(?:\.(?:\s\.)+\.?|[.!?…]+)(?:\s?»)?[\"'”’)\]*_]*(?=\s|$)|[。！？｡]+[」』”’）\"]*|\n+|$"
)
# where no sentence ends: code, quotations, and brackets
_WHOLE = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]+`|\"[^\"\n]*\"|“[^”\n]*”|„[^“”\n]*[“”]|«[^»\n]*»|"
    r"「[^」\n]*」|『[^』\n]*』|\([^()\n]*\)|（[^（）\n]*）",
    re.DOTALL,
)
_LIST_NUMBER = re.compile(r"[\s>*•–-]*(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})")
_BEFORE = re.compile(r"[^\s(\[\"'“‘«]*$")
# abbreviations that stand before something
_TITLES = frozenset(
    "mr mrs ms dr prof st mt ft gen rep sen gov capt cpt lt col sgt rev hon pres fr hr mme mlle "
    "no nr n° fig figs eq eqs sec ch vol pp p ed eds ca cf vs approx resp viz e.g i.e z.b d.h u.a "
    "bzw bsp vgl ggf dept univ art".split()
)
# abbreviations that may end a sentence: they do before one of these words
_ENDINGS = frozenset("co corp inc ltd jr sr etc al bros ave blvd rd usw est a.m p.m".split())
_OPENERS = frozenset(
    "a after all although an and are as at because but can could did do does each even for from "
    "had has have he her here his how however i if in is it its many most my next no not now on "
    "one or our please she since so some that the their then there these they this those to was we "
    "were what when where which while who why will with would yes yet you your".split()
)
_MONTHS = frozenset(
    "januar februar märz april mai juni juli august september oktober november dezember "
    "jahrhundert".split()
)


def sentence_spans(text: str, splitter: Splitter | None = None) -> list[Span]:
    r"""The spans of the sentences of a text; a line break always ends one, except in code.

    >>> text = "Dr. No paid 3.5 %. Was it much?\n1. No."
    >>> [text[a:b] for a, b in sentence_spans(text)]
    ['Dr. No paid 3.5 %.', 'Was it much?', '1. No.']
    """
    if splitter is not None:
        return _found(text, splitter(text))
    whole = [match.span() for match in _WHOLE.finditer(text)]
    spans, start = [], 0
    for match in _END.finditer(text):
        end = match.end()
        inside = next((b for a, b in whole if a < match.start() and match.end() < b), None)
        if inside is not None or not _ends(text, start, match):
            continue
        first = start + len(text[start:end]) - len(text[start:end].lstrip())
        last = start + len(text[start:end].rstrip())
        if first < last:
            spans.append((first, last))
        start = end
    return spans


def _found(text: str, sentences: Sequence[str]) -> list[Span]:
    """Where the sentences of a splitter are in the text."""
    spans, position = [], 0
    for sentence in sentences:
        wanted = sentence.strip() if isinstance(sentence, str) else ""
        start = text.find(wanted, position)
        if not wanted and isinstance(sentence, str):
            continue
        if not wanted or start < 0:
            raise InputError(
                f"the splitter must return the sentences as they are in the text, in order; got "
                f"{sentence!r:.80}."
            )
        position = start + len(wanted)
        spans.append((start, position))
    return spans


def _ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a sentence that began at `start` ends with these characters."""
    mark, after = match.group(), text[match.end() :].lstrip(" \t\u3000")
    if not mark or mark[0] == "\n" or not after or after[0] == "\n":
        return True
    if mark[0] in "。！？｡":  # a quotation may go on: 「はい。」と言った。
        return mark[-1] not in "」』" or after[0] in "「『"
    word = re.split(r"[^\w'’-]", after.lstrip("\"'“‘«([*_"), maxsplit=1)[0]
    if mark[0] != ".":
        return not word[:1].islower()
    before = _BEFORE.search(text, start, match.start())
    last = before.group() if before is not None else ""
    if _LIST_NUMBER.fullmatch(text[start : match.start()]) and text[start - 1 : start] in (
        "",
        "\n",
    ):
        return False
    if word[:1].islower() or last.lower() in _TITLES:
        return False
    opens = word.lower() in _OPENERS
    if last.isdigit():
        return word.lower() not in _MONTHS
    if len(last) == 1 and last.isalpha() and last.isupper():  # an initial, unless it is "I"
        return last == "I" and opens
    if last.lower() in _ENDINGS or re.fullmatch(r"\w(?:\.\w)+", last):
        return opens
    return True
