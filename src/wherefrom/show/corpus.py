"""Reports of a corpus: pages with sortable, filterable tables that show the texts of a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from wherefrom.core.explanation import Explanation
from wherefrom.show.page import block, page, picture, prose, table
from wherefrom.show.text_marks import marks, signed, whole_percent

_SCRIPT = Path(__file__).with_name("corpus.js")
LEAST_TEXTS = 5  # names in fewer texts are hidden at first
# Without "no", "not", "never" and "but", which turn what is said.
_FUNCTION_WORDS = frozenset(
    "a about after all also an and any are as at be been being between both by can could did do "
    "does doing done each either for from had has have having he her here hers herself him himself "
    "his how i if in into is it its itself just me mine my myself of off on or other our ours out "
    "own same she should so some such than that the their theirs them themselves then there these "
    "they this those through to too under until up us very was we were what when where which while "
    "who whom whose why will with would you your yours yourself 'd 'll 'm 're 's 've d ll m re s "
    "ve".split()
)
_MAX_TEXTS = 20  # texts shown under a row; the CSV files have all of them
_NOTEBOOK_ROWS = 15
_MAX_NAMES = 40  # excluded names that are listed; the JSON file has all of them
_STYLE = Path(__file__).with_name("corpus.css").read_text(encoding="utf-8")

MarkedSpan = tuple[int, int, int, float]  # text, start, end, relevance
OccurrenceRow = tuple[Sequence[Any], Sequence[MarkedSpan]]  # cells, and spans shown under them


def is_function_word(word: str) -> bool:
    """Whether this is an English function word such as "the", or has no letter or digit.

    >>> [is_function_word(word) for word in ("the", ",", "not", "film")]
    [True, True, False, False]
    """
    return word in _FUNCTION_WORDS or not any(character.isalnum() for character in word)


@dataclass
class _Report:
    """A page under construction: HTML, and the data of its tables."""

    title: str
    parts: list[str]
    tables: list[dict[str, Any]] = field(default_factory=list)
    explained: set[tuple[Any, ...]] = field(default_factory=set)  # columns already described

    def add_table(
        self,
        title: str,
        note: str,
        columns: Sequence[tuple[str, str, str]],  # label, kind, meaning
        rows: Sequence[OccurrenceRow],
        sort: tuple[int, bool],  # column, descending
        open_first: bool = False,
        least: tuple[int, int] | None = None,  # column, and the least number in it at first
        chart: tuple[int, int] | None = None,  # columns of a scatter plot: across, up
    ) -> None:
        """Adds a table that the script draws, with a switch for function words if it has any."""
        columns = tuple(columns)
        meanings = "; ".join(f"{label}: {meaning}" for label, _, meaning in columns if meaning)
        if meanings and columns not in self.explained:  # once per set of columns
            note = f"{note} Columns: {meanings}."
            self.explained.add(columns)
        self.parts.append(
            f'<h2>{escape(title)}</h2><p class="dim">{escape(note)}</p>'
            f'<div id="table-{len(self.tables)}"></div>'
        )
        self.tables.append(
            {
                "title": title,
                "columns": [{"label": a, "kind": b, "note": c} for a, b, c in columns],
                "rows": [
                    {
                        "cells": list(cells),
                        "function": columns[0][0] == "word" and is_function_word(cells[0]),
                        "texts": list(spans[:_MAX_TEXTS]),
                        "hidden": max(0, len(spans) - _MAX_TEXTS),
                    }
                    for cells, spans in rows
                ],
                "sort": list(sort),
                "open": open_first,
                "least": least,
                "chart": chart,
            }
        )

    def html(self, corpus: Any, whole_page: bool) -> str:
        """The whole page with data and script, or for a notebook its first rows."""
        if not whole_page:
            parts = [*self.parts]
            for index, data in enumerate(self.tables):
                place = f'<div id="table-{index}"></div>'
                parts = [part.replace(place, _first_rows(data)) for part in parts]
            return block("".join(parts), _STYLE)
        shown = {span[0] for table in self.tables for row in table["rows"] for span in row["texts"]}
        texts = {i: _text(corpus, i) for i in sorted(shown)}
        hint = (
            "<noscript><p>The tables need JavaScript; the CSV files in this folder have the same "
            "data.</p></noscript>"
        )
        return page(
            self.title,
            "".join(self.parts) + hint,
            _STYLE,
            _SCRIPT.read_text(encoding="utf-8"),
            json.dumps({"tables": self.tables, "texts": texts}, ensure_ascii=False),
        )


def render_bias(study: Any, histogram: Path | None = None, whole_page: bool = True) -> str:
    """The report of a bias study."""
    corpus = study.corpus
    report = _Report(
        f"names in {corpus.model}",
        [
            *map(_verdict, study.comparisons),
            '<p class="dim">Do groups of names contribute differently to '
            f"{escape(corpus.model)}?</p>",
            _about(corpus),
            _groups(study),
            "" if histogram is None else picture(histogram, _HISTOGRAM),
            _HOW_TO_READ,
            _notes(study),
        ],
    )
    spans: dict[tuple[str, str], list[MarkedSpan]] = {}
    for occurrence, value in zip(study.occurrences, study.relevance, strict=True):
        spans.setdefault((occurrence.group, occurrence.name), []).append(
            (occurrence.text, occurrence.start, occurrence.end, round(value, 4))
        )
    report.add_table(
        "Names by relevance",
        f"Click a name for its texts. Red counts for {corpus.question}, blue and underlined "
        "against. The naive columns show what the model outputs for texts with the name, for "
        "whatever reason.",
        [
            ("name", "text", ""),
            ("group", "choice", ""),
            ("relevance", "signed", "median over texts"),
            ("occurrences", "count", ""),
            ("texts", "count", ""),
            ("naive: lift", "signed", "mean output of texts with the name − mean of all texts"),
            ("naive: correlation", "signed", "between the name's presence and the output"),
        ],
        [
            (
                [
                    entity.name, entity.group, round(entity.value, 5), entity.occurrences,
                    len(entity.texts), round(entity.naive.lift, 4),
                    round(entity.naive.correlation, 4),
                ],
                sorted(spans[entity.group, entity.name], key=lambda span: -span[3]),
            )
            for entity in study.entities
        ],
        (2, True),
        open_first=True,
        least=(4, min([LEAST_TEXTS, max(len(entity.texts) for entity in study.entities)])),
        chart=(4, 2),
    )  # fmt: skip
    return report.html(corpus, whole_page)


def render_overview(view: Any, whole_page: bool = True) -> str:
    """The report of a corpus without groups."""
    corpus = view.corpus
    wrong = f"Wrong on {view.wrong} of {view.labelled} labelled texts."
    report = _Report(
        f"words in {corpus.model}",
        [
            f"<h1>{_drivers(view)}</h1>",
            f'<p class="dim">Which words drive {escape(corpus.model)} on this data?</p>',
            f"<p>{wrong}</p>" if view.labelled else "",
            _about(corpus),
        ],
    )
    columns = [
        ("word", "text", ""),
        ("mean", "signed", "mean relevance of an occurrence"),
        ("total", "signed", "the sum over all occurrences"),
        ("impact", "size", "the sum of absolute values"),
        ("positive", "share", "share of occurrences with positive relevance"),
        ("occurrences", "count", ""),
        ("texts", "count", ""),
    ]

    def rows(words: Sequence[Any]) -> list[OccurrenceRow]:
        return [
            (
                [
                    word.word, round(word.mean, 5), round(word.total, 4), round(word.impact, 4),
                    round(word.positive_share, 3), word.occurrences, word.texts,
                ],
                _examples(corpus, word),
            )
            for word in words
        ]  # fmt: skip

    note = f"Words in at least {view.min_count} texts. Click a word for examples."
    report.add_table(
        "Words with the most impact", note, columns, rows(view.words[:400]), (3, True),
        least=(6, view.min_count), chart=(6, 1),
    )  # fmt: skip
    for index, (name, words) in enumerate(view.classes.items()):
        descending = not (index == 1 and corpus.target is not None)
        report.add_table(f"For {name}", note, columns, rows(words[:150]), (1, descending))
    if view.labelled:
        report.add_table(
            "Misleading words in wrong predictions",
            "Relevance for the wrong class, over the misclassified texts.",
            [
                ("word", "text", ""),
                ("total", "signed", "Σ relevance for the wrong class"),
                ("strongest in", "count", "texts in which it is the strongest such word"),
                ("texts", "count", ""),
            ],
            [
                (
                    [word.word, round(word.total, 4), word.strongest, word.texts],
                    _examples(corpus, word),
                )
                for word in view.misleading[:200]
            ],
            (1, True),
        )
    report.add_table(
        "Words whose sign depends on context",
        "Ranked by swing: a word that nearly always has the same sign ranks low. The examples are "
        "the texts in which its relevance is most positive and most negative.",
        [
            ("word", "text", ""),
            ("positive", "signed", "Σ relevance above zero"),
            ("negative", "signed", "Σ relevance below zero"),
            ("swing", "signed", "weaker side / occurrences"),
            ("balance", "share", "weaker side / stronger side"),
            ("occurrences", "count", ""),
        ],
        [
            (
                [
                    word.word, round(word.positive_sum, 4), round(word.negative_sum, 4),
                    round(word.swing, 4), round(word.balance, 3), word.occurrences,
                ],
                _examples(corpus, word),
            )
            for word in view.contextual[:200]
        ],
        (3, True),
    )  # fmt: skip
    return report.html(corpus, whole_page)


def _drivers(view: Any) -> str:
    """A sentence with the words that count most for each class."""

    def listed(words: Sequence[Any]) -> str:
        *names, last = (f"<em>{escape(word.word)}</em>" for word in words)
        return f"{', '.join(names)} and {last}" if names else last

    classes = {name: words[:3] for name, words in view.classes.items() if words}
    ranking = "; ".join(f"for {escape(name)} {listed(words)}" for name, words in classes.items())
    count = f"{len(view.corpus):,} texts"
    return (
        f"In {count} these words count most: {ranking}." if ranking else f"{count} were explained."
    )


def _first_rows(data: dict[str, Any]) -> str:
    """The first rows of a table in the script's order, without texts."""
    column, descending = data["sort"]
    rows = sorted(data["rows"], key=lambda row: row["cells"][column], reverse=descending)
    if data["least"]:
        counted, least = data["least"]
        rows = [row for row in rows if row["cells"][counted] >= least]
    kinds = [head["kind"] for head in data["columns"]]
    sizes = [
        max((abs(row["cells"][k] or 0) for row in rows), default=0.0)
        if kind in ("signed", "size")
        else 1.0
        for k, kind in enumerate(kinds)
    ]

    def cell(value: Any, kind: str, size: float) -> str:
        if kind not in ("signed", "size", "share"):
            return escape(str(value))
        share = float(value or 0) / (size or 1.0)
        tint = "share" if kind != "signed" else "for" if share >= 0 else "against"
        width = abs(share) * (50 if kind == "signed" else 100)
        left = (50 if share >= 0 else 50 - width) if kind == "signed" else 0
        shown = {"share": prose(whole_percent(value)), "size": f"{value:.2f}"}.get(
            kind, signed(value)
        )
        return (
            f'{shown}<span class="spark"><i class="{tint}" style="left:{left:.1f}%;'
            f'width:{width:.1f}%"></i></span>'
        )

    lines = [
        [cell(*triple) for triple in zip(row["cells"], kinds, sizes, strict=True)]
        for row in rows[:_NOTEBOOK_ROWS]
    ]
    texts = sum(kind in ("text", "choice") for kind in kinds)
    return table([escape(head["label"]) for head in data["columns"]], lines, texts)


def _examples(corpus: Any, word: Any) -> list[MarkedSpan]:
    """The strongest occurrence of a word in each of its example texts."""
    examples = []
    for i in word.examples:
        words = corpus.words(i)
        spans = zip(corpus.starts[words], corpus.ends[words], corpus.scores[words], strict=True)
        hits = [
            span for span in spans if corpus.texts[i][span[0] : span[1]].casefold() == word.word
        ]
        if hits:
            start, end, score = max(hits, key=lambda hit: abs(hit[2]))
            examples.append((i, int(start), int(end), round(float(score), 4)))
    return examples


def _text(corpus: Any, i: int) -> dict[str, Any]:
    explanation: Explanation = corpus.explanation(i)
    words = [
        [unit.start, unit.end, round(mark.score, 4), round(100 * mark.strength)]
        for unit, mark in zip(explanation.units, marks(explanation), strict=True)
    ]
    return {
        "text": explanation.text,
        "words": words,
        "sum": round(float(explanation.scores.sum()), 4),
        "output": round(explanation.output, 4),
        "predicted": corpus.name(int(corpus.predicted[i])),
        "label": corpus.label(i),
        "row": int(corpus.rows[i]),
    }


def _verdict(pair: Any) -> str:
    first, second = escape(pair.first), escape(pair.second)
    if not pair.testable:
        return (
            f"<h1><b>Too few names</b> to compare {first} and {second} names.</h1>"
            f"<p>Difference of medians {signed(pair.difference)}, without a test.</p>"
        )
    if pair.differs:
        side = "higher than" if pair.difference > 0 else "lower than"
        verdict = f"<b>The groups differ:</b> {first} names score {side} {second} names."
    else:
        verdict = f"<b>No significant difference</b> between {first} and {second} names."
    return (
        f"<h1>{verdict}</h1><p>Difference of medians {signed(pair.difference)} "
        f"[{signed(pair.low)}, {signed(pair.high)}], p = {pair.adjusted:.2g}; in "
        f"{100 * pair.above:.0f}&nbsp;% of pairs the {first} name scores higher.</p>"
    )


def _about(corpus: Any) -> str:
    skipped = ", ".join(f"{n} {reason}" for reason, n in corpus.skipped.items()) or "none"
    cut = f"; truncated: {corpus.cut}" if corpus.cut else ""
    state = "" if corpus.complete else f" <b>{corpus.interruption.capitalize()}.</b>"
    return (
        f'<p class="dim">{corpus.explained} texts; skipped: {escape(skipped)}{cut}. Relevance for '
        f"{escape(corpus.question)} by {escape(corpus.method)}, in units of the output; a word "
        f"has the sum over its tokens. Red: positive; blue, striped or underlined: negative."
        f"{state}</p>"
    )


def _groups(study: Any) -> str:
    head = [
        "group", "names", "occurrences", "texts", "median", "quartiles", "median of names",
        "naive: lift",
    ]  # fmt: skip
    rows = [
        [
            escape(group.name), str(group.names), str(group.occurrences), str(group.texts),
            signed(group.median), f"{signed(group.quartiles[0])} … {signed(group.quartiles[1])}",
            signed(group.median_of_names), signed(group.naive.lift),
        ]
        for group in study.groups
    ]  # fmt: skip
    note = "Naive: lift: mean output of texts with a name of the group − mean of all texts."
    return table(head, rows) + f'<p class="dim">{note}</p>'


def _notes(study: Any) -> str:
    notes = [f"<li>{escape(note)}</li>" for note in study.notes]
    for reason, names in study.dropped.items():
        listed = ", ".join(f"{name} ({n})" for name, n in list(names.items())[:_MAX_NAMES])
        rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        notes.append(
            f"<li>Excluded, {escape(reason)}: {sum(names.values())} occurrences of {len(names)} "
            f"names: {escape(listed)}{rest}.</li>"
        )
    return f"<h2>Excluded names and notes</h2><ul>{''.join(notes)}</ul>"


_HISTOGRAM = (
    "Normalised histogram of the relevance of names, one value for each occurrence. Vertical lines "
    "are medians; the outermost bars include all values beyond them."
)
_HOW_TO_READ = (
    "<h2>How to read it, and its limits</h2>"
    "<p>The relevance of a name is the share of the output that the model's own computation "
    "assigns to it in its sentence. A group with higher relevance pushes the output up more, in "
    "these texts.</p><ul>"
    "<li>The test compares names, not occurrences: the value of a name is the median over its "
    "texts. Occurrences of one name are similar, so a test over occurrences often finds "
    "differences that do not exist.</li>"
    "<li>The test (Mann–Whitney, Holm's correction over all pairs) asks whether names of one group "
    "tend to score higher than those of the other; the interval is a 95 % bootstrap over "
    "names.</li>"
    "<li>No significant difference does not mean equality: with few names, only a large difference "
    "can be detected.</li>"
    "<li>The relevance of a name depends on its sentence, and people of one group may be written "
    "about differently, so a difference may come from the texts. The naive view is for "
    "comparison: where the two disagree, the context explains the correlation, not the name.</li>"
    "<li>The result holds for this data, model and method, not for people; the file of names "
    "defines the groups. A difference in relevance is not yet a difference in decisions: swap "
    "names in some of the texts below to check.</li></ul>"
)
