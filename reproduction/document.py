"""The tables of docs/reproduction.md, written from the CSV of all numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.race import write_part
from reproduction.methods import ATTENTION, DEFAULT, GRADIENT, PAPER, methods_of
from reproduction.registry import SETS
from reproduction.table import Numbers, paper_figures

DIGITS = {"AUAC": 3, "AU-MSE": 2}
MEASURES = tuple(DIGITS)
MARKS = {1: " ▲", 0: "", -1: " ▼"}
BEST = "LRP(AH+LN)"  # in the paper
MANY_PASSES = ("dix", "integrated_gradients", "occlusion")
_OF_TEXTS = list(methods_of("text"))
_PLACE = _OF_TEXTS.index(f"{DEFAULT}, no root") + 1
ROWS = [*_OF_TEXTS[:_PLACE], f"{DEFAULT}, rooted", *_OF_TEXTS[_PLACE:]]


def write_document(numbers: Numbers, path: Path) -> None:
    """Replaces the tables of the document."""
    parts: dict[str, Callable[[Numbers], str]] = {
        "models": models,
        "AUAC": lambda n: table(n, "AUAC"),
        "AU-MSE": lambda n: table(n, "AU-MSE"),
        "best": best_of_the_eight,
        "gradients": gradients_or_attention,
        "between": between,
        "default": default_claim,
        "seconds": seconds,
        "conservation": conservation,
    }
    for part, render in parts.items():
        write_part(path, part, render(numbers))


def models(numbers: Numbers) -> str:
    """The figures of each model on its whole test set."""
    quantities = ("accuracy", "macro_f1", "majority", "roc_auc", "validation")
    named = {"IMDB": "88.1", "SST-2": "81.3", "MNIST": "97.2", "BACE": "ROC-AUC 83.5"}
    lines = []
    for of in SETS.values():
        found = [numbers.get(of.name, quantity) for quantity in quantities]
        cells = ["–" if number is None else f"{100 * number.value:.1f}" for number in found]
        random = numbers.get(of.name, "AUAC", "Random")
        count = "–" if random is None else str(random.samples)
        lines.append([of.title, *cells, named.get(of.title, ""), count])
    header = [
        "set", "accuracy, %", "macro-F1, %", "majority class, %", "ROC-AUC, %",
        "validation, %", "the paper names, %", "samples explained",
    ]  # fmt: skip
    missing = [of.title for of in SETS.values() if of.name not in numbers.sets]
    note = f"\n\nNot evaluated yet: {', '.join(missing)}." if missing else ""
    return markdown(header, lines) + note


def table(numbers: Numbers, measure: str) -> str:
    """A table of the paper: its figure, then ours with half the width of the 95 % interval.

    ▲ and ▼: better or worse than LRP(AH+LN) on the same samples beyond the 95 % interval.
    """
    paper = paper_figures()
    digits = DIGITS[measure]
    lines = []
    for row in ROWS:
        cells = []
        for of in SETS.values():
            theirs = paper.get((measure, row, of.title))
            shown = [] if row not in PAPER else ["–" if theirs is None else f"{theirs:.{digits}f}"]
            cells.append(" → ".join([*shown, _ours(numbers, of.name, measure, row, digits)]))
        lines.append([f"`{row}`" if row not in PAPER else row, *cells])
    return markdown([measure, *(of.title for of in SETS.values())], lines)


def _ours(numbers: Numbers, of: str, measure: str, row: str, digits: int) -> str:
    number = numbers.get(of, measure, row)
    if number is None and row.startswith(f"{DEFAULT}, "):  # with this root it is the default
        row = DEFAULT
        number = numbers.get(of, measure, row)
    if number is None or number.low is None or number.high is None:
        return "missing"
    half = (number.high - number.low) / 2
    mark = ""
    if row != BEST:
        verdict = numbers.difference(of, measure, row, BEST).verdict(measure)
        mark = MARKS[verdict]
    return f"{number.value:.{digits}f} ± {half:.{digits}f}{mark}"


def best_of_the_eight(numbers: Numbers) -> str:
    """Against which of the other seven LRP(AH+LN) is better, level or worse."""
    return _verdicts(numbers, BEST, [row for row in PAPER if row != BEST])


def default_claim(numbers: Numbers) -> str:
    """Against which of all other methods the product's default is better, level or worse."""
    others = [row for row in ROWS if row != DEFAULT]
    one_pass = [row for row in others if row not in MANY_PASSES]
    counts = _verdicts(numbers, DEFAULT, one_pass).rpartition("\n")[2]
    return f"{_verdicts(numbers, DEFAULT, others)}\n\nAgainst those that take one pass: {counts}"


def _verdicts(numbers: Numbers, one: str, others: Sequence[str]) -> str:
    lines = []
    present = _present(numbers)
    ahead, behind = dict.fromkeys(MEASURES, 0), dict.fromkeys(MEASURES, 0)  # sets
    for of in present:
        cells = []
        for measure in MEASURES:
            groups: dict[int, list[str]] = {1: [], 0: [], -1: []}
            for other in others:
                if numbers.get(of, measure, other) is not None:
                    difference = numbers.difference(of, measure, one, other)
                    by = f" ({_signed(difference.mean, measure)})"
                    verdict = difference.verdict(measure)
                    groups[verdict].append(other + (by if verdict < 0 else ""))
            ahead[measure] += not groups[0] and not groups[-1]
            behind[measure] += bool(groups[-1])
            cells.append(f"better than {len(groups[1])}")
            cells.append("; ".join(groups[0]) or "–")
            cells.append("; ".join(groups[-1]) or "–")
        lines.append([SETS[of].title, *cells])
    header = ["set"]
    for measure in MEASURES:
        header += [measure, "level with", "worse than"]
    count = len(present)
    counts = [
        f"{measure}: better than all of them on {ahead[measure]} of {count} sets, best or level on "
        f"{count - behind[measure]}."
        for measure in MEASURES
    ]
    return markdown(header, lines) + "\n\n" + " ".join(counts)


def gradients_or_attention(numbers: Numbers) -> str:
    """Each method that uses gradients against each that uses attention alone, counted."""
    lines = []
    for of in _present(numbers):
        cells = []
        for measure in MEASURES:
            for one in GRADIENT:
                verdicts = [
                    numbers.difference(of, measure, one, other).verdict(measure)
                    for other in ATTENTION
                    if numbers.get(of, measure, other) is not None
                ]
                cells.append(" ".join(MARKS[verdict].strip() or "=" for verdict in verdicts))
        lines.append([SETS[of].title, *cells])
    header = ["set", *(f"{measure}: {one}" for measure in MEASURES for one in GRADIENT)]
    return markdown(header, lines)


def between(numbers: Numbers) -> str:
    """AH alone against GI, and AH+LN against AH alone: mean paired differences."""
    lines = []
    for of in _present(numbers):
        cells = []
        for measure in MEASURES:
            for one, other in (("LRP(AH)", "GI"), (BEST, "LRP(AH)")):
                d = numbers.difference(of, measure, one, other)
                mark = MARKS[d.verdict(measure)]
                half = f"{(d.high - d.low) / 2:.{DIGITS[measure]}f}"
                cells.append(f"{_signed(d.mean, measure)} ± {half}{mark}")
        lines.append([SETS[of].title, *cells])
    header = ["set"]
    for measure in MEASURES:
        header += [f"{measure}: AH − GI", f"{measure}: AH+LN − AH"]
    return markdown(header, lines)


def _signed(value: float, measure: str) -> str:
    return f"{value:+.{DIGITS[measure]}f}".replace("-", "−")


def seconds(numbers: Numbers) -> str:
    """The time of an explanation, in milliseconds."""
    lines = []
    for row in ROWS:
        found = [numbers.get(of.name, "seconds", row) for of in SETS.values()]
        cells = ["–" if number is None else f"{1000 * number.value:.0f}" for number in found]
        lines.append([f"`{row}`" if row not in PAPER else row, *cells])
    return markdown(["ms a sample", *(of.title for of in SETS.values())], lines)


def conservation(numbers: Numbers) -> str:
    """The mean |Σ scores − output| over the mean |output|."""
    lines = []
    for row in ("GI", "LRP(AH)", BEST, DEFAULT):
        found = [numbers.get(of.name, "gap", row) for of in SETS.values()]
        lines.append([row, *("–" if n is None else f"{n.value:.2g}" for n in found)])
    return markdown(["gap", *(of.title for of in SETS.values())], lines)


def _present(numbers: Numbers) -> list[str]:
    return [name for name in SETS if name in numbers.sets]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
