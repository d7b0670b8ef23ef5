"""The tables: means by method, paired differences, and what the default is chosen by."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.answers.figures import values
from benchmarks.answers.libraries import DEFAULT, LOGIT, LOGPROB, PEERS, SHARED
from benchmarks.answers.measure import best_way, names_of, short, shown

Records = Sequence[dict[str, Any]]
COLUMNS = {  # the title of each, and which direction is better
    "recall@1": ("recall@1", 1),
    "recall@3": ("@3", 1),
    "recall@5": ("@5", 1),
    "sources": ("sources found", 1),
    "token": ("highest token in a source", 1),
    "ρ": ("ρ with leaving out", 1),
    "first": ("same first as leaving out", 1),
    "deletion": ("deletion", -1),
}
PAIRED = ("sources", "token", "ρ", "first", "deletion")
TIMED = ("seconds", "span")
PAIRS = (  # LXT explains logits here, so `lrp` of logits is put beside it too
    *((DEFAULT, peer) for peer in PEERS),
    *((LOGPROB, peer) for peer in PEERS),
    *((LOGIT, peer) for peer in PEERS[:2]),
    (SHARED, PEERS[1]),
    (LOGPROB, DEFAULT),
)


def compared(
    records: Records, name: str, base: str, column: str, way: str
) -> tuple[float, float, float, str]:
    """The mean difference of two methods, its 95 % interval, and a word for it."""
    from wherefrom.evaluation.recommendation import difference

    ours, theirs = (values(records, method, column, way) for method in (name, base))
    if np.isnan([ours, theirs]).any():
        return np.nan, np.nan, np.nan, "level"
    low, high = difference(ours, theirs)
    sign = COLUMNS[column][1]
    word = "level" if low <= 0 <= high else "ahead" if sign * low > 0 else "behind"
    return float(np.mean(ours) - np.mean(theirs)), low, high, word


def timed(records: Records, name: str, key: str) -> float:
    """The median seconds of a method, over the cases that were timed; NaN for none."""
    seconds = [r["methods"][name][key] for r in records if key in r["methods"][name]]
    return statistics.median(seconds) if seconds else np.nan


def table(records: Records, way: str) -> list[str]:
    """A Markdown table; ▲ and ▼: better and worse than the default, beyond chance."""
    present = [c for c in COLUMNS if not np.isnan(values(records, DEFAULT, c, way)).any()]
    counts = {len(record["sources"]) for record in records}
    if counts == {1}:
        present.remove("sources")  # the same as recall@1
    elif len(counts) > 1:
        present = [column for column in present if not column.startswith("recall@")]
    titles = [COLUMNS[column][0] for column in present]
    lines = [
        f"| | {' | '.join(titles)} | gap | time | span | memory |",
        "|---" * (len(titles) + 5) + "|",
    ]
    for name in names_of(records):
        cells = []
        for column in present:
            mean = float(np.mean(values(records, name, column, way)))
            if np.isnan(mean):
                cells.append("–")
                continue
            word = compared(records, name, DEFAULT, column, way)[-1]
            mark = {"level": "", "ahead": " ▲", "behind": " ▼"}[word]
            text = minus(f"{mean:.2f}") if column in ("ρ", "deletion") else f"{mean:.0%}"
            cells.append(text + mark)
        entries = [record["methods"][name] for record in records]
        gaps = [entry["gap"] for entry in entries if entry.get("gap") is not None]
        cells.append(f"{statistics.median(gaps):.0e}" if gaps else "–")
        seconds = [timed(records, name, key) for key in TIMED]
        cells += ["–" if np.isnan(value) else f"{value:.2f} s" for value in seconds]
        peaks = [entry["mebibytes"] for entry in entries if "mebibytes" in entry]
        cells.append(f"{max(peaks):,.0f} MiB" if peaks else "–")
        lines.append(f"| {own(name)} | {' | '.join(cells)} |")
    return lines


def own(name: str) -> str:
    """The name of a method in a table of this library."""
    return name.removeprefix("wherefrom ")


def minus(text: str) -> str:
    """A number with a proper minus sign."""
    return text.replace("-", "−")


def difference_cell(records: Records, name: str, base: str, column: str, way: str) -> str:
    """A mean difference with its paired 95 % interval, and a word for it."""
    mean, low, high, word = compared(records, name, base, column, way)
    if np.isnan(mean):
        return "–"
    return f"{minus(f'{mean:+.2f} [{low:+.2f}, {high:+.2f}]')} {word}"


def verdicts(records: Records, way: str) -> list[str]:
    """Paired differences of some methods, and the ratios of their times."""
    titles = [COLUMNS[column][0] for column in PAIRED]
    lines = [f"| | less | {' | '.join(titles)} | time | span |", "|---" * (len(titles) + 4) + "|"]
    for name, base in PAIRS:
        if not {name, base} <= set(names_of(records)):
            continue
        cells = [difference_cell(records, name, base, column, way) for column in PAIRED]
        for key in TIMED:
            ratio = timed(records, name, key) / timed(records, base, key)
            cells.append("–" if np.isnan(ratio) else f"× {ratio:.2f}")
        lines.append(f"| {own(name)} | {own(base)} | {' | '.join(cells)} |")
    return lines


def decision(cases: dict[str, list[dict[str, Any]]], way: str) -> list[str]:
    """Log-probability less contrast: on the validation cases, which decide, and on the others."""
    lines = ["| | cases | sources found | highest token in a source |", "|---" * 4 + "|"]
    rest: list[dict[str, Any]] = []
    chosen: list[dict[str, Any]] = []
    for kind, records in cases.items():
        if short(kind):
            chosen += records[::4]
            rest += shown(kind, records)
    for title, part in (("these decide", chosen), ("the others", rest)):
        if part and {DEFAULT, LOGPROB} <= set(names_of(part)):
            cells = [
                difference_cell(part, LOGPROB, DEFAULT, column, way)
                for column in ("sources", "token")
            ]
            lines.append(f"| {title} | {len(part)} | {' | '.join(cells)} |")
    return lines if len(lines) > 2 else []


def markdown(report: dict[str, Any]) -> str:
    """All tables."""
    cases = report["cases"]
    way = best_way(cases)
    lines = [f"Scores of tokens are added up by unit: {way}."]
    missing: dict[str, str] = dict(report["missing"])
    groups: dict[str, Records] = {}
    for kind, every in cases.items():
        records = [record for record in shown(kind, every) if "way" in record]
        if not records:
            continue
        tokens = statistics.median(record["tokens"] for record in records)
        title = (
            f"**{kind}**: {len(records)} cases; {len(every)} count of {report['generated'][kind]} "
            f"generated; {tokens:,.0f} tokens, {records[0]['units']} units"
        )
        groups[title] = records
        for record in records:
            for name, entry in record["methods"].items():
                if "error" in entry:
                    missing.setdefault(f"{own(name)}, {kind}", entry["error"])
    pooled = [record for title in groups for record in groups[title] if short(kind_of(title))]
    if pooled:
        groups[f"**short kinds together**: {len(pooled)} cases"] = pooled
    for title, records in groups.items():
        lines += ["", title, "", *table(records, way)]
    if pooled:
        lines += ["", "Paired differences over the short kinds:", "", *verdicts(pooled, way)]
    compared_targets = decision(cases, way)
    if compared_targets:
        lines += ["", "Log-probability less contrast:", "", *compared_targets]
    if missing:
        lines += ["", "Not run:", "", *(f"- {name}: {why}." for name, why in missing.items())]
    return "\n".join(lines)


def kind_of(title: str) -> str:
    """The kind that a title names."""
    return title.split("**")[1]
