"""Every claim of a headline, read back from its text, holds for numbers drawn at random."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wherefrom.core.explanation import Explanation, Ledger, Line, Output, TargetInfo, Unit
from wherefrom.show.sentence import sentence

NUMBER = r"([+-][\d.]+(?:e-?\d+)?)"
amounts = st.floats(-5, 5).map(lambda value: round(value, 2))


@st.composite
def explanations(draw):
    """A text of a few words with scores, and a ledger that closes, is open, or is not there."""
    scores = draw(st.lists(amounts, min_size=1, max_size=7))
    scores = [score * draw(st.sampled_from([1, 1, 0.01])) for score in scores]
    special = draw(amounts) if draw(st.booleans()) else 0.0
    goal = draw(st.sampled_from(["class", "other class", "number", "contrast"]))
    method = draw(st.sampled_from(["lrp", "lrp", "lrp", "occlusion", "gae"]))
    units = [Unit(f"w{i}", 3 * i, 3 * i + 2, word=i) for i in range(len(scores))]
    units.append(Unit("[SEP]", special=True))
    values = np.array([*scores, special], dtype=np.float32)
    kinds = draw(st.sets(st.sampled_from(["root", "reference", "bias", "softmax", "position"])))
    lines = [Line("words", "word", float(values.sum(dtype=np.float64)))]
    lines += [Line(kind, kind, draw(amounts)) for kind in sorted(kinds)]
    residual = draw(st.sampled_from([0.0, 0.0, 1e-7, 3.0, -0.4]))
    output = sum(line.value for line in lines) + residual
    if method == "gae":
        values = np.abs(values)
    has_ledger = method == "lrp"
    chance = {"class": 0.9, "other class": 0.1, "contrast": 0.9, "number": None}[goal]
    first = "A" if goal != "other class" else "C"
    largest = (Output(first, 1.0, 0.9), Output("D", 0.5, 0.05))
    return Explanation(
        units=tuple(units), scores=values, output=output, probability=chance, method=method,
        target=TargetInfo(0, "A", *((1, "B") if goal == "contrast" else ())),
        ledger=Ledger(tuple(lines), output) if has_ledger else None,
        text=" ".join(unit.text for unit in units[:-1]), model="tiny",
        largest=largest if goal != "number" else (Output("A", output),),
    )  # fmt: skip


def shown(value):
    """A number as it can be read back from three decimals."""
    return pytest.approx(value, abs=6e-4, rel=1e-3)


def named(text):
    return re.findall(r"“(w\d)”", text)


@settings(max_examples=600)
@given(explanations())
def test_every_claim_holds(explanation):
    text = sentence(explanation)
    scores = {unit.text: float(s) for unit, s in zip(explanation.units, explanation.scores)}  # noqa: B905
    special = scores.pop("[SEP]")
    output, words = explanation.output, sum(scores.values())
    contrast = explanation.target.against is not None
    ledger = explanation.ledger

    if explanation.method == "gae":  # nothing about signs, sums or reasons
        assert not re.search(r"because|count|account|sum", text)
        if named(text):
            assert scores[named(text)[0]] == max(scores.values())
        return

    sums = re.search(r"account|add up|point the other way|sum to", text)
    assert bool(sums) == (ledger is not None)
    others = {line.kind: line.value for line in ledger.lines[1:]} if ledger else {}
    others["special"] = special
    is_open = ledger is not None and abs(ledger.residual) > 0.05 * abs(output)
    if ledger is None or is_open or not 0.5 <= words / (output or 1e-9) <= 1.5:
        assert "because" not in text

    if claim := re.search(rf"do not add up.*?residual is {NUMBER}, the \w+ {NUMBER}", text):
        assert float(claim[1]) == shown(ledger.residual)
        assert abs(ledger.residual) > 0.05 * abs(output)
    elif is_open:
        assert abs(ledger.residual) < 1e-2 * sum(abs(line.value) for line in ledger.lines)
    if claim := re.search(r"account for (-?\d+) % of the (output|difference)", text):
        assert int(claim[1]) == pytest.approx(100 * words / output, abs=0.51)
        assert (claim[2] == "difference") == contrast
    if claim := re.search(rf"other way: they sum to {NUMBER}, the \w+ is {NUMBER}", text):
        assert words * output < 0
        assert (float(claim[1]), float(claim[2])) == (shown(words), shown(output))
    if claim := re.search(rf"sum to {NUMBER}, which is more than the \w+, {NUMBER}", text):
        assert abs(words) > abs(output)
        assert words * output > 0
        assert (float(claim[1]), float(claim[2])) == (shown(words), shown(output))
    phrases = {
        "root": "offset at the reference", "reference": "output for a text of unknown words",
        "bias": "constants add", "softmax": "“softmax”", "position": "position embeddings",
        "special": "special tokens",
    }  # fmt: skip
    if claim := re.search(rf"(the rest is|largest other part is) (.*?), {NUMBER}\.", text):
        (kind,) = (kind for kind, phrase in phrases.items() if phrase in claim[2])
        assert float(claim[3]) == shown(others[kind])
        assert abs(others[kind]) >= max(map(abs, others.values())) - 1e-4
        if claim[1] == "the rest is":
            rest = output - words
            assert abs(others[kind] - rest) <= 0.11 * abs(rest)

    if claim := re.search(r"mostly because of (.*?)(?:; (.*?) counts? (.*?))?\. The", text):
        sign = 1 if output > 0 else -1
        assert sign > 0 or contrast
        reasons = [sign * scores[name] for name in named(claim[1])]
        assert min(reasons) > 0
        assert reasons[0] == max(sign * s for s in scores.values())
        assert sum(reasons) >= 0.499 * abs(output)
        if claim[2]:
            doubts = [sign * scores[name] for name in named(claim[2])]
            assert max(doubts) < 0
            assert doubts[0] == min(sign * s for s in scores.values())
            loser = "B" if output > 0 else "A"
            assert claim[3] == (f"for {loser}" if contrast else "against it")
    elif claim := re.search(r"Among the words, (.*)\.$", text):
        _check_ranking(claim[1], scores, explanation)
    else:
        assert "None of the words counts" in text
        assert not any(scores.values())


def _check_ranking(text, scores, explanation):
    number = explanation.probability is None
    contrast = explanation.target.against is not None
    up = r"raises? A most" if number else r"counts? most for A"
    down = r"lowers? (?:A most|it)" if number else (
        r"(?:counts? most )?for B" if contrast else r"(?:counts? most )?against (?:it|A)"
    )  # fmt: skip
    claim = re.fullmatch(rf"(?:(.*?) {up})?(?:, )?(?:(.*?) {down})?", text)
    assert claim
    assert claim[1] or claim[2]
    for part, sign in ((claim[1], 1), (claim[2], -1)):
        side = [sign * scores[name] for name in named(part or "")]
        if side:
            assert min(side) > 0
            assert side[0] == max(sign * score for score in scores.values())
        else:  # a side that is not named is weak
            largest = max(map(abs, scores.values()))
            assert max(sign * score for score in scores.values()) <= 0.1 * largest
