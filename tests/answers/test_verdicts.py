"""Verdicts: signals against passes over shorter prompts, and words that follow from numbers."""

import json
import math

import numpy as np
import pytest

from wherefrom import Passage, Prompt
from wherefrom.answers import verdicts
from wherefrom.answers.sources import Support
from wherefrom.answers.verdicts import Verdict, kind_of, signals
from wherefrom.errors import InputError

TEXTS = ["the movie is lovely.", "Paris is the movie.", "it was late."]
ANSWER = " it is Paris. Love!"


@pytest.fixture(scope="module")
def answer(talker):
    passages = [TEXTS[0], Passage(TEXTS[1], trusted=False), TEXTS[2]]
    return talker.answer(Prompt("who is it?", passages), ANSWER)


def test_signals_are_those_of_passes_without_passages(talker, answer):
    def logs(*left_out):
        text = answer.prompt
        for number in left_out:
            assert f"[{number + 1}] {TEXTS[number]}\n\n" in text
            text = text.replace(f"[{number + 1}] {TEXTS[number]}\n\n", "")
        return talker.answer(text, ANSWER, of="logprob").measured.log_probabilities

    span = answer.sentences()[0]
    where = slice(span.first, span.last)
    by_probability = talker.answer(Prompt("who is it?", TEXTS), ANSWER, of="logprob")
    sources = by_probability.sources("passage", span)
    ranking = [source for source in sources if source.name != "question"]
    whole, none = logs()[where], logs(0, 1, 2)[where]
    drops = []
    for source in ranking[:2]:
        number = int(source.name[-1]) - 1
        drops.append(whole - logs(number)[where])

    def flat(x):
        return math.copysign(math.log(1 + abs(x)), x)

    decisive = max(drops, key=lambda drop: drop.sum())
    first = answer.verdicts()[0]
    assert (first.sentence, first.start, first.end) == ("it is Paris.", 1, 13)
    expected = {
        "log-probability": whole.mean(),
        "least likely token": whole.min(),
        "context": flat((whole - none).sum()),
        "drop": flat(decisive.sum()),
        "drop of a token": flat(decisive.max()),
        "drop / context": min(max(decisive.sum() / max((whole - none).sum(), 1), 0), 1),
        "share": ranking[0].share,
        "agreement": float(drops[0].sum() >= drops[1].sum()),
    }
    for name, value in expected.items():
        assert first.signals[name] == pytest.approx(value, abs=1e-5), name
    untrusted = next(source for source in sources if source.name == "passage 2")
    assert first.untrusted == pytest.approx(max(untrusted.share, 0), abs=1e-6)


def test_the_probability_is_the_logistic_one_of_the_signals(answer):
    model = verdicts.fitted()
    for verdict in answer.verdicts():
        total = sum(c * verdict.signals[name] for name, c in model["coefficients"].items())
        expected = 1 / (1 + math.exp(-total - model["intercept"]))
        assert verdict.probability == pytest.approx(expected, rel=1e-12)
        assert verdict.verdict == kind_of(verdict.probability, verdict.signals["context"])


def test_where_passages_count_weighs_tokens_by_what_the_passages_add():
    logs, added = np.array([-1.0, -4.0, -2.0]), np.array([-3.0, 1.0, 3.0])
    drops = {"passage 1": np.zeros(3), "passage 2": np.ones(3)}
    found = signals(logs, added, drops, {"passage 1": 0.7})
    assert found["where passages count"] == pytest.approx((-4 * 1 - 2 * 3) / 4)
    assert found["agreement"] == 0.0


def test_kinds_follow_the_cut_offs():
    model = {
        "gives verdicts": True,
        "supported from": 0.7,
        "unsupported below": 0.3,
        "own below": 2.0,
    }
    assert kind_of(0.7, -9, model) == "supported"
    assert kind_of(0.69, -9, model) == kind_of(0.31, 9, model) == "unclear"
    assert kind_of(0.3, 2.0, model) == "unsupported"
    assert kind_of(0.3, 1.9, model) == "from the model"
    model["gives verdicts"] = False
    assert {kind_of(p, 0.0, model) for p in (0.1, 0.5, 0.9)} == {"unclear"}


@pytest.mark.parametrize("cut", [-math.inf, 0.0, math.inf])
def test_passages_are_cited_from_a_drop_on(answer, monkeypatch, cut):
    model = {**verdicts.fitted(), "cited from": cut}
    monkeypatch.setattr(verdicts, "fitted", lambda: model)
    for verdict in answer.verdicts():
        drops = {s.passage: s.drop for s in verdict.passages}
        assert all(drop >= cut for drop in drops.values())
        assert len(drops) == 2 if cut < 0 else len(drops) <= 2
        if cut > 1:
            assert not drops


def test_words_follow_from_the_numbers():
    support = Support("passage 2", "", 1.0, 0.5, 3.0)
    said = str(Verdict("It is.", 0, 6, "supported", (support,), 0.91, {}))
    assert said == "supported by passage 2 (probability of support 0.91)"
    assert "passage 2" not in str(Verdict("It is.", 0, 6, "supported", (), 0.91, {}))
    assert str(Verdict("It is.", 0, 6, "unsupported", (), 0.1, {})).startswith("not supported by")
    cut = verdicts.fitted()["untrusted from"]
    for share, flagged in ((cut, True), (cut - 0.01, False)):
        verdict = Verdict("It is.", 0, 6, "unclear", (), 0.5, {}, untrusted=share)
        assert ("from untrusted passages" in str(verdict)) == verdict.is_from_untrusted == flagged


def test_the_coefficients_say_what_they_were_fitted_on():
    model = json.loads(verdicts.FITTED.read_text("utf-8"))
    assert set(model["coefficients"]) <= {
        "log-probability", "least likely token", "where passages count", "context", "drop",
        "drop of a token", "drop / context", "share", "agreement",
    }  # fmt: skip
    lows = model["ahead of token probabilities by at least"].values()
    assert model["gives verdicts"] == (min(lows) > 0)
    assert 0 < model["unsupported below"] < model["supported from"] < 1
    assert set(model["sentences"]) == {"smollm2", "gemma3-270m"}


def test_a_prompt_without_passages_has_no_verdicts(talker):
    with pytest.raises(InputError, match="no passages to cite"):
        talker.answer("who is it?", " it is.").verdicts()
