"""Reports of a corpus: pages whose tables sort, filter and open the texts behind a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from wherefrom.explanation import Explanation
from wherefrom.show.html import STYLE
from wherefrom.show.report import picture_of
from wherefrom.show.text_marks import marks, signed

_SCRIPT = Path(__file__).with_name("corpus.js")
_TEXTS = 20  # opened at once under a row; all are in the tables
_STYLE = """
.wherefrom button{font:inherit;color:inherit;background:none;border:0;padding:0;cursor:pointer}
.wherefrom th[aria-sort=ascending] button::after{content:" ↑"}
.wherefrom th[aria-sort=descending] button::after{content:" ↓"}
.wherefrom .tools{display:flex;gap:.8rem;align-items:baseline;margin:.4rem 0}
.wherefrom input,.wherefrom select{font:inherit;color:var(--ink);background:var(--page);
 border:1px solid var(--line);border-radius:.3em;padding:.1em .4em}
.wherefrom .row{cursor:pointer}
.wherefrom .row:hover td,.wherefrom .row:focus td{background:var(--line)}
.wherefrom .text{border-left:3px solid var(--line);padding-left:.8rem;margin:.5rem 0}
.wherefrom .text .heat{font-size:1rem;line-height:1.8;margin:0}
.wherefrom .here{outline:2px solid var(--ink);outline-offset:-1px}
.wherefrom figure{margin:1rem 0}.wherefrom img{max-width:100%;background:#fff}
.wherefrom .say{font-size:1.1rem}
"""


@dataclass
class _Page:
    """The parts of a page and the data of its tables."""

    title: str
    parts: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[int, dict[str, Any]] = field(default_factory=dict)

    def table(
        self,
        title: str,
        note: str,
        columns: Sequence[tuple[str, str, str]],  # label, kind, what it means
        rows: Sequence[tuple[Sequence[Any], Sequence[tuple[int, int | None, int | None, Any]]]],
        sort: tuple[int, bool],
        open_first: bool = False,
    ) -> None:
        """Adds a table; a row has its cells and the texts behind it."""
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
                        "texts": list(texts[:_TEXTS]),
                        "hidden": max(0, len(texts) - _TEXTS),
                    }
                    for cells, texts in rows
                ],
                "sort": list(sort),
                "open": open_first,
            }
        )

    def html(self, corpus: Any) -> str:
        """The page, its data and script inside."""
        used = {at[0] for table in self.tables for row in table["rows"] for at in row["texts"]}
        texts = {i: _text(corpus, i) for i in sorted(used)}
        data = json.dumps({"tables": self.tables, "texts": texts}, ensure_ascii=False)
        # in a script element only these could end it, or begin a comment
        data = (
            data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>body{{margin:0}}"
            "@media (prefers-color-scheme:dark){body{background:#17171c}}</style></head>"
            f'<body><div class="wherefrom"><style>{STYLE}{_STYLE}</style>{"".join(self.parts)}'
            "<noscript><p>The tables need a script; they are also in the CSV files beside this "
            f'page.</p></noscript></div><script type="application/json" id="data">{data}</script>'
            f"<script>{_SCRIPT.read_text(encoding='utf-8')}</script></body></html>\n"
        )


def render_bias(study: Any, picture: Path | None = None) -> str:
    """The report of a bias study."""
    corpus = study.corpus
    page = _Page(f"wherefrom: names in {corpus.model}")
    page.parts = [
        f"<h1>Do names of different groups push the model {escape(corpus.model)} differently?</h1>",
        *(f'<p class="say">{_sentence(each)}</p>' for each in study.comparisons),
        _about(corpus),
        _groups(study),
        picture_of(picture, _HISTOGRAM) if picture is not None else "",
        _READ,
        _aside(study),
    ]
    spans: dict[tuple[str, str], list[tuple[int, int, int, float]]] = {}
    for each, value in zip(study.occurrences, study.relevance, strict=True):
        spans.setdefault((each.group, each.name), []).append(
            (each.text, each.start, each.end, round(value, 4))
        )
    page.table(
        "The names, from most towards to most against",
        "Click a name for its texts; red speaks for "
        f"{corpus.question}, blue and underlined against. Beside it the naive view: what the model "
        "says of texts with this name, whatever the reason.",
        [
            ("name", "text", ""),
            ("group", "choice", ""),
            ("relevance", "signed", "median over texts"),
            ("occurrences", "count", ""),
            ("texts", "count", ""),
            ("naive: output less the mean", "signed", "of texts with the name"),
            ("naive: correlation", "signed", "of the name's occurrence with the output"),
        ],
        [
            (
                [
                    each.name, each.group, round(each.value, 5), each.occurrences, len(each.texts),
                    round(each.naive.lift, 4), round(each.naive.correlation, 4),
                ],
                sorted(spans[each.group, each.name], key=lambda at: -at[3]),
            )
            for each in study.entities
        ],
        (2, True),
        open_first=True,
    )  # fmt: skip
    return page.html(corpus)


def render_overview(view: Any) -> str:
    """The report of a corpus without groups."""
    corpus = view.corpus
    page = _Page(f"wherefrom: words in {corpus.model}")
    wrong = (
        f"Wrong on {len(view.wrong)} of {view.labelled} labelled texts." if view.labelled else ""
    )
    page.parts = [
        f"<h1>What pushes the model {escape(corpus.model)} on this data?</h1>",
        f"<p>{escape(wrong)}</p>" if wrong else "",
        _about(corpus),
    ]
    columns = [
        ("word", "text", ""),
        ("mean", "signed", "relevance of an occurrence"),
        ("total", "signed", "Σ relevance"),
        ("push", "signed", "Σ |relevance|"),
        ("above zero", "share", "of its occurrences"),
        ("occurrences", "count", ""),
        ("texts", "count", ""),
    ]

    def rows(words: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
        return [
            (
                [
                    each.word, round(each.mean, 5), round(each.total, 4), round(each.push, 4),
                    round(each.positive, 3), each.occurrences, each.texts,
                ],
                _examples(corpus, each),
            )
            for each in words
        ]  # fmt: skip

    least = f"Words in at least {view.min_count} texts. Click one for texts."
    page.table("The words that push most", least, columns, rows(view.words[:400]), (3, True))
    for place, (name, words) in enumerate(view.classes.items()):
        down = not (place == 1 and corpus.target is not None)
        page.table(f"For {name}", least, columns, rows(words[:150]), (1, down))
    if view.labelled:
        page.table(
            "Wrong predictions, and the words that misled them",
            "Relevance for the wrong class, over the texts that the model got wrong.",
            [
                ("word", "text", ""),
                ("total", "signed", "Σ relevance for the wrong class"),
                ("loudest in", "count", "texts where no word spoke louder for it"),
                ("texts", "count", ""),
            ],
            [
                ([e.word, round(e.total, 4), e.first, e.texts], _examples(corpus, e))
                for e in view.misleading[:200]
            ],
            (1, True),
        )
    page.table(
        "Words whose sign depends on their context",
        "Ranked by what the weaker side weighs: a word that is nearly always for stands low. "
        "Its texts are those where it speaks loudest for, and loudest against.",
        [
            ("word", "text", ""),
            ("towards", "signed", "Σ above zero"),
            ("away", "signed", "Σ below zero"),
            ("swing", "signed", "the weaker side, an occurrence"),
            ("balance", "share", "the weaker side over the stronger"),
            ("occurrences", "count", ""),
        ],
        [
            (
                [
                    e.word, round(e.towards, 4), round(e.away, 4), round(e.swing, 4),
                    round(e.balance, 3), e.occurrences,
                ],
                _examples(corpus, e),
            )
            for e in view.turning[:200]
        ],
        (3, True),
    )  # fmt: skip
    return page.html(corpus)


def _examples(corpus: Any, each: Any) -> list[tuple[int, int | None, int | None, Any]]:
    found: list[tuple[int, int | None, int | None, Any]] = []
    for i in each.examples:
        at = corpus.words(i)
        spans = zip(corpus.starts[at], corpus.ends[at], corpus.scores[at], strict=True)
        hits = [s for s in spans if corpus.texts[i][s[0] : s[1]].casefold() == each.word]
        if hits:
            start, end, score = max(hits, key=lambda hit: abs(hit[2]))
            found.append((i, int(start), int(end), round(float(score), 4)))
    return found


def _text(corpus: Any, i: int) -> dict[str, Any]:
    explanation: Explanation = corpus.explanation(i)
    words = [
        [unit.start, unit.end, round(mark.score, 4), round(100 * mark.strength)]
        for unit, mark in zip(explanation.units, marks(explanation), strict=True)
    ]
    label = int(corpus.labels[i])
    return {
        "text": explanation.text,
        "words": words,
        "sum": round(float(explanation.scores.sum()), 4),
        "output": round(explanation.output, 4),
        "predicted": corpus.name(int(corpus.predicted[i])),
        "label": None if label < 0 else corpus.name(label),
        "row": int(corpus.rows[i]),
    }


def _sentence(each: Any) -> str:
    verdict = (
        f"<b>The groups differ.</b> Names of {escape(each.first)} lie "
        f"{'above' if each.difference > 0 else 'below'} those of {escape(each.second)}"
        if each.differs
        else "<b>No difference is shown</b> between names of "
        f"{escape(each.first)} and {escape(each.second)}"
    )
    return (
        f"{verdict}: difference of medians {signed(each.difference)} "
        f"[{signed(each.low)}, {signed(each.high)}], p = {each.adjusted:.2g}; "
        f"a name of the first lies above one of the second {each.above:.0%} of the time."
    )


def _about(corpus: Any) -> str:
    skipped = ", ".join(f"{n} {why}" for why, n in corpus.skipped.items()) or "none"
    cut = f"; cut to the model's length: {corpus.cut}" if corpus.cut else ""
    state = "" if corpus.complete else " <b>Interrupted: this is what was done until then.</b>"
    return (
        f'<p class="dim">{len(corpus)} texts; skipped: {escape(skipped)}{cut}. Relevance for '
        f"{escape(corpus.question)} by {escape(corpus.method)}, in units of the output; that of a "
        f"word is the sum over its tokens.{state}</p>"
    )


def _groups(study: Any) -> str:
    head = "".join(
        f'<th class="num">{name}</th>'
        for name in (
            "names", "occurrences", "texts", "median", "quartiles", "median of names",
            "naive: output less the mean",
        )
    )  # fmt: skip
    rows = "".join(
        f"<tr><td>{escape(each.name)}</td>"
        + "".join(
            f'<td class="num">{value}</td>'
            for value in (
                each.names, each.occurrences, each.texts, signed(each.median),
                f"{signed(each.quartiles[0])} … {signed(each.quartiles[1])}",
                signed(each.median_of_names), signed(each.naive.lift),
            )
        )
        + "</tr>"
        for each in study.groups
    )  # fmt: skip
    return f"<table><tr><th>group</th>{head}</tr>{rows}</table>"


def _aside(study: Any) -> str:
    notes = [f"<li>{escape(note)}</li>" for note in study.notes]
    for why, names in study.dropped.items():
        listed = ", ".join(f"{name} ({n})" for name, n in list(names.items())[:40])
        rest = f" and {len(names) - 40} more names" if len(names) > 40 else ""
        notes.append(
            f"<li>{sum(names.values())} occurrences of {len(names)} names set aside, "
            f"{escape(why)}: {escape(listed)}{rest}.</li>"
        )
    return f"<h2>What was set aside, and what to look at</h2><ul>{''.join(notes)}</ul>"


_HISTOGRAM = (
    "Normalised histogram of the relevance of names as they occur; vertical lines are medians, and "
    "the bars at both ends hold what lies beyond."
)
_READ = (
    "<h2>How to read it, and what it cannot say</h2>"
    "<p>Relevance is what the model's own computation hands to a name in its sentence. A group "
    "that lies higher gets more of the output for its names, in these texts.</p><ul>"
    "<li>The unit of the test is a name, not an occurrence: its value is the median over its "
    "texts. Occurrences of one name are alike, and counting each of them can find differences "
    "between any two groups.</li>"
    "<li>The test (Mann–Whitney, Holm's correction for all pairs) asks whether names of one group "
    "tend to lie above those of the other; the interval draws names anew (bootstrap, 95 %).</li>"
    "<li>That no difference is shown does not show that there is none: with few names only a large "
    "one could be.</li>"
    "<li>Names occur in company. Persons of one group may be written about otherwise, and a name's "
    "relevance depends on its sentence; so a difference may come from the texts. The naive view "
    "is beside it for this reason: where the two go apart, the company explains the correlation, "
    "not the name.</li>"
    "<li>It tells of this data and this model, by this method, not of persons; a group is what the "
    "file of names calls one. A difference in relevance is not yet one in decisions: exchange "
    "the names in some of the texts below to see.</li></ul>"
)
