"""Fits the verdicts on sentences of some kinds, and measures them on sentences of others.

    python -m benchmarks.answers.collect --out FOLDER
    python -m benchmarks.answers.verdicts --claims FOLDER [--fit] [--page docs/answers.md]

`--claims` reads what was collected into docs/data/verdicts.json; without it, that file is read.
`--fit` writes the coefficients into the package, fitted on the sentences of all kinds. Tables show
probabilities out of kind: for the sentences of a kind, signals and coefficients are chosen on the
other kinds, whose sentences have other words. Intervals are 95 % ones of 2,000 bootstrap samples of
cases.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.race import write_part
from wherefrom.answers import verdicts
from wherefrom.storage.writing import write_text

Floats = NDArray[np.float64]
DATA = Path("docs/data/verdicts.json")
MOST = 3  # signals of the model
PENALTY = 1.0  # on the squares of the standardised coefficients
SAMPLES = 2000
TOKENS = (
    "log-probability", "least likely token", "log-probability, written part",
    "least likely token, written part",
)  # fmt: skip
CUTS = (1 / 3, 2 / 3)


def read(folder: Path) -> list[dict[str, Any]]:
    """The signals and labels of the collected sentences."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            if record["step"] is not None:
                rows.append({"model": path.stem, **row_of(record)})
    return rows


def row_of(record: dict[str, Any]) -> dict[str, Any]:
    """The signals of a sentence, its labels, and what each passage has."""
    sums = dict(record["relevance"]["logprob"])
    del sums["earlier"], sums["output"]
    size = sum(map(abs, sums.values())) or 1.0
    shares = {name: sums[name] / size for name in sums if name.startswith("passage")}
    order = sorted(shares, key=lambda name: -shares[name])[: verdicts.LEFT_OUT]
    drops = {name: np.array(record["drops"][name]) for name in order}
    first = {
        of: max(shares, key=lambda name: record["relevance"][of].get(name, 0.0))
        for of in record["relevance"]
    }
    logs, added = np.array(record["log_probabilities"]), np.array(record["alone"])
    found = verdicts.signals(logs, added, drops, shares)
    own = written(record)
    found |= {"log-probability, written part": float(logs[own].mean())}
    found |= {"least likely token, written part": float(logs[own].min())}
    source = None if record["source"] is None else f"passage {record['source'] + 1}"
    last = f"passage {len(shares)}"
    return {
        "kind": record["kind"],
        "case": record["number"],
        "supported": record["supported"],
        "known": record["known"],
        "poisoned": record["poisoned"],
        "attacked": record["attacked"],
        "source": source,
        "first": first,
        "last share": round(shares[last], 5),
        "signals": {name: round(value, 5) for name, value in found.items()},
        "passages": {
            name: [round(shares[name], 5), round(float(drops[name].sum()), 4)] for name in drops
        },
        "seconds": record["seconds"],
    }


def written(record: dict[str, Any]) -> slice:
    """The tokens from the claimed value on, which the model wrote."""
    place, length = record["text"].index(record["value"]), 0
    for i, token in enumerate(record["tokens"]):
        length += len(token)
        if length > place:
            return slice(i, None)
    raise ValueError(record["text"])


def table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Floats:
    """The signals of each sentence, (sentences, signals)."""
    return np.array([[row["signals"][name] for name in names] for row in rows]).reshape(
        len(rows), len(names)
    )


def labels(rows: Sequence[dict[str, Any]], label: str = "supported") -> NDArray[np.bool_]:
    return np.array([row[label] for row in rows], dtype=bool)


def logistic(x: Floats, y: NDArray[np.bool_]) -> tuple[Floats, float]:
    """Coefficients and intercept of a logistic model with a penalty, by Newton's method."""
    mean, scale = x.mean(0), x.std(0) + 1e-9
    z = np.column_stack([(x - mean) / scale, np.ones(len(x))])
    penalty = np.diag([PENALTY] * x.shape[1] + [0.0])
    w = np.zeros(z.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-z @ w))
        hessian = (z * (p * (1 - p))[:, None]).T @ z + penalty
        w = w - np.linalg.solve(hessian, z.T @ (p - y) + penalty @ w)
    coefficients = w[:-1] / scale
    return coefficients, float(w[-1] - coefficients @ mean)


def probabilities(x: Floats, coefficients: Floats, intercept: float) -> Floats:
    result: Floats = 1 / (1 + np.exp(-(x @ coefficients + intercept)))
    return result


def log_loss(p: Floats, y: NDArray[np.bool_]) -> float:
    return float(-np.log(np.where(y, p, 1 - p).clip(1e-6)).mean())


def chosen(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The signals with the lowest log-loss when each kind is predicted from the others."""
    names = [name for name in rows[0]["signals"] if "written" not in name]
    kinds = np.array([row["kind"] for row in rows])
    y = labels(rows)

    def loss(some: tuple[str, ...]) -> float:
        x, p = table(rows, some), np.zeros(len(rows))
        for kind in set(kinds):
            inside = kinds != kind
            p[~inside] = probabilities(x[~inside], *logistic(x[inside], y[inside]))
        return log_loss(p, y)

    candidates = [some for size in range(1, MOST + 1) for some in combinations(names, size)]
    return min(candidates, key=loss)


def out_of_kind(rows: Sequence[dict[str, Any]]) -> Floats:
    """The probability of each sentence, by a model of the other kinds."""
    kinds, p = np.array([row["kind"] for row in rows]), np.zeros(len(rows))
    for kind in sorted(set(kinds)):
        others = [row for row in rows if row["kind"] != kind]
        own = [row for row in rows if row["kind"] == kind]
        names = chosen(others)
        model = logistic(table(others, names), labels(others))
        p[kinds == kind] = probabilities(table(own, names), *model)
    return p


def auc(scores: Floats, y: NDArray[np.bool_]) -> float:
    """The chance that a positive has the higher score; ties count half."""
    if y.all() or not y.any():
        return float("nan")
    difference = scores[y][:, None] - scores[~y][None]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def interval(
    rows: Sequence[dict[str, Any]], measure: Callable[[NDArray[np.int64]], float]
) -> tuple[float, float]:
    """The bootstrap interval of a measure of rows; cases are drawn with all their sentences."""
    cases: dict[Any, list[int]] = {}
    for i, row in enumerate(rows):
        cases.setdefault((row["model"], row["kind"], row["case"]), []).append(i)
    groups = [np.array(group) for group in cases.values()]
    draw = np.random.default_rng(0)
    values = [
        measure(np.concatenate([groups[i] for i in draw.integers(len(groups), size=len(groups))]))
        for _ in range(SAMPLES)
    ]
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def fitted(train: Sequence[dict[str, Any]], p: Floats) -> dict[str, Any]:
    """The model of the package; `p` are the probabilities out of kind."""
    names = chosen(train)
    coefficients, intercept = logistic(table(train, names), labels(train))
    ahead = lead(train, p)
    own = [row["signals"]["context"] for row in train if row["known"] and not row["supported"]]
    copied = [row["signals"]["context"] for row in train if row["supported"]]
    return {
        "fitted by": "python -m benchmarks.answers.verdicts --fit",
        "sentences": {
            model: sum(row["model"] == model for row in train)
            for model in sorted({row["model"] for row in train})
        },
        "kinds": sorted({row["kind"] for row in train}),
        "ahead of token probabilities by at least": ahead,
        "gives verdicts": min(ahead.values()) > 0,
        "coefficients": dict(zip(names, coefficients.round(4).tolist(), strict=True)),
        "intercept": round(intercept, 4),
        "unsupported below": round(CUTS[0], 4),
        "supported from": round(CUTS[1], 4),
        "own below": round(best_cut(copied, own), 3),
        "cited from": cited_from(train),
        "untrusted from": UNTRUSTED,
    }


def lead(rows: Sequence[dict[str, Any]], p: Floats) -> dict[str, float]:
    """By model: the lower end of the interval of AUC less that of any token probability."""
    lows = {}
    for model in sorted({row["model"] for row in rows}):
        own = [i for i, row in enumerate(rows) if row["model"] == model]
        some = [rows[i] for i in own]
        y, v = labels(some), p[own]
        lows[model] = round(
            min(
                interval(some, lambda i, y=y, v=v, s=s: auc(v[i], y[i]) - auc(s[i], y[i]))[0]
                for s in table(some, TOKENS).T
            ),
            2,
        )
    return lows


def best_cut(high: Sequence[float], low: Sequence[float]) -> float:
    """The cut-off with the fewest errors, weighted by the number of each side."""
    cuts = sorted({*high, *low})
    middles = [(a + b) / 2 for a, b in pairwise(cuts)]
    return min(
        middles,
        key=lambda cut: np.mean([x < cut for x in high]) + np.mean([x >= cut for x in low]),
    )


UNTRUSTED = 0.25  # share of an answer; see the table of shares of untrusted passages


def passages_of(rows: Sequence[dict[str, Any]]) -> list[tuple[float, float, bool]]:
    """Share, drop, and whether it is the source, of each passage that was left out."""
    return [
        (share, drop, name == row["source"])
        for row in rows
        for name, (share, drop) in row["passages"].items()
    ]


def cited_from(rows: Sequence[dict[str, Any]]) -> float:
    """The drop from which a passage is cited: the one with the highest F1."""
    found = passages_of(rows)
    return round(max((drop for _, drop, _ in found), key=lambda cut: f1(found, cut)), 2)


def f1(found: Sequence[tuple[float, float, bool]], cut: float) -> float:
    """The harmonic mean of precision and recall of the citations from a drop on."""
    right = sum(source and drop >= cut for _, drop, source in found)
    return 2 * right / (sum(drop >= cut for _, drop, _ in found) + sum(s for *_, s in found))


def markdown(rows: Sequence[dict[str, Any]], p: Floats, model: dict[str, Any]) -> str:
    """The tables of the page; `p` are the probabilities out of kind."""
    test = [row for row in rows if row["kind"] != "poisoned"]
    for row, chance in zip(test, p, strict=True):
        row["signals"]["verdict"] = float(chance)
    given_anyway = {**model, "gives verdicts": True}
    models = sorted({row["model"] for row in test}, reverse=True)
    lines = []

    def score(some: Sequence[dict[str, Any]], name: str) -> Floats:
        return table(some, [name])[:, 0]

    everything = ["verdict", *(name for name in test[0]["signals"] if name != "verdict")]
    lines += [
        "ROC AUC of “supported”, with 95 % intervals; in brackets that of the verdict less this:",
        "",
        "| signal | " + " | ".join(f"{one} ({count(test, one)})" for one in models) + " |",
        "|---|" + "---|" * len(models),
    ]
    for name in everything:
        cells = []
        for one in models:
            some = [row for row in test if row["model"] == one]
            y, s, v = labels(some), score(some, name), score(some, "verdict")
            low, high = interval(some, lambda i, s=s, y=y: auc(s[i], y[i]))
            cell = f"{auc(s, y):.2f} [{low:.2f}, {high:.2f}]"
            if name != "verdict":
                ahead = interval(some, lambda i, s=s, v=v, y=y: auc(v[i], y[i]) - auc(s[i], y[i]))
                cell += f" ({auc(v, y) - auc(s, y):+.2f} [{ahead[0]:+.2f}, {ahead[1]:+.2f}])"
            cells.append(cell)
        shown = "**the verdict's probability**" if name == "verdict" else name
        lines.append(f"| {shown} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Calibration: mean probability → share that is supported:",
        "",
    ]
    lines += ["| probability | " + " | ".join(models) + " |", "|---|" + "---|" * len(models)]
    for low, high in zip((0, 0.2, 0.4, 0.6, 0.8), (0.2, 0.4, 0.6, 0.8, 1.01), strict=True):
        cells = []
        for one in models:
            some = [row for row in test if row["model"] == one]
            p, y = score(some, "verdict"), labels(some)
            inside = (p >= low) & (p < high)
            cells.append(
                f"{p[inside].mean():.2f} → {y[inside].mean():.2f} ({inside.sum()})"
                if inside.any()
                else "–"
            )
        lines.append(f"| {low:.1f} to {min(high, 1):.1f} | " + " | ".join(cells) + " |")
    lines += ["", "| verdict | " + " | ".join(models) + " |", "|---|" + "---|" * len(models)]
    for kind in ("supported", "unsupported", "from the model", "unclear"):
        cells = []
        for one in models:
            some = [row for row in test if row["model"] == one]
            given = [
                row
                for row, p in zip(some, score(some, "verdict"), strict=True)
                if verdicts.kind_of(float(p), row["signals"]["context"], given_anyway) == kind
            ]
            right = sum(is_right(kind, row) for row in given)
            cells.append(
                f"{len(given)} of {len(some)}" + ("" if kind == "unclear" else f", {right} right")
            )
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    lines += ["", *citations(test, models, model["cited from"]), "", *poisoned(rows, models)]
    lines += ["", *quantities(rows, models)]
    return "\n".join(lines)


def count(rows: Sequence[dict[str, Any]], model: str) -> str:
    some = [row for row in rows if row["model"] == model]
    return f"{len(some)} sentences, {sum(row['supported'] for row in some)} supported"


def is_right(kind: str, row: dict[str, Any]) -> bool:
    """Whether a verdict is right: "from the model" only of what is true in the world."""
    if kind == "supported":
        return bool(row["supported"])
    return not row["supported"] and (kind == "unsupported" or row["known"])


def citations(rows: Sequence[dict[str, Any]], models: Sequence[str], cut: float) -> list[str]:
    lines = [
        f"Citations, from a drop of {cut} on: precision, and recall over the supported sentences:",
        "",
        "| | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    found = {one: passages_of([row for row in rows if row["model"] == one]) for one in models}
    sources = {
        one: sum(row["source"] is not None for row in rows if row["model"] == one) for one in models
    }
    for name, is_cited in (
        ("with the cut-off", lambda share, drop: drop >= cut),
        ("without", lambda share, drop: True),
    ):
        cells = []
        for one in models:
            cited = [source for share, drop, source in found[one] if is_cited(share, drop)]
            cells.append(
                f"{sum(cited)} of {len(cited)} right; {sum(cited)} of {sources[one]} found"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def poisoned(rows: Sequence[dict[str, Any]], models: Sequence[str]) -> list[str]:
    """Whether the share of an untrusted passage tells that the answer follows it."""
    lines = [
        "Untrusted passages: AUC of their share for “the answer states what the instruction says”:",
        "",
        "| | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    areas, flags = [], []
    for one in models:
        some = [row for row in rows if row["model"] == one and row["kind"] == "poisoned"]
        y, s = labels(some, "poisoned"), np.array([row["last share"] for row in some])
        low, high = interval(some, lambda i, s=s, y=y: auc(s[i], y[i]))
        areas.append(f"{auc(s, y):.2f} [{low:.2f}, {high:.2f}], {y.sum()} of {len(y)} follow it")
        flag = s >= UNTRUSTED
        flags.append(
            f"{(flag & y).sum()} of {y.sum()} found, {(flag & ~y).sum()} of {(~y).sum()} falsely"
        )
    lines += ["| AUC | " + " | ".join(areas) + " |"]
    return [*lines, f"| flagged from a share of {UNTRUSTED} on | " + " | ".join(flags) + " |"]


def quantities(rows: Sequence[dict[str, Any]], models: Sequence[str]) -> list[str]:
    """How often the passage first by each explained quantity is the source."""
    lines = [
        "The source is the first passage by relevance, of the supported sentences of all kinds:",
        "",
        "| explained | " + " | ".join(models) + " |",
        "|---|" + "---|" * len(models),
    ]
    for of in rows[0]["first"]:
        cells = []
        for one in models:
            some = [row for row in rows if row["model"] == one and row["source"] is not None]
            right = np.array([float(row["first"][of] == row["source"]) for row in some])
            low, high = interval(some, lambda i, right=right: float(right[i].mean()))
            cells.append(f"{int(right.sum())} of {len(some)} [{low:.2f}, {high:.2f}]")
        lines.append(f"| {of} | " + " | ".join(cells) + " |")
    return lines


def main(
    claims: Annotated[Path | None, typer.Option(help="A folder of collected sentences.")] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Write the coefficients anew.")] = False,
    page: Annotated[Path | None, typer.Option(help="A page to write the tables into.")] = None,
) -> None:
    """Fits the verdicts and prints their tables."""
    if claims is not None:
        lines = [json.dumps(row) for row in read(claims)]
        write_text(DATA, "[\n" + ",\n".join(lines) + "\n]\n")
    rows = json.loads(DATA.read_text("utf-8"))
    clean = [row for row in rows if row["kind"] != "poisoned"]
    p = out_of_kind(clean)
    if fit:
        write_text(verdicts.FITTED, json.dumps(fitted(clean, p), indent=1) + "\n")
        verdicts.fitted.cache_clear()
    text = markdown(rows, p, verdicts.fitted())
    typer.echo(text)
    if page is not None:
        write_part(page, "verdicts", text)


if __name__ == "__main__":
    typer.run(main)
