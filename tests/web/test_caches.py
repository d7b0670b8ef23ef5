"""Nothing is computed twice, no request gets another one's answer, and no cache grows for ever."""

import gc
import json
import weakref
from collections import Counter

import pytest

from benchmarks.tiny import model as tiny
from wherefrom import Explainer
from wherefrom.core.target import Case
from wherefrom.errors import TooLong
from wherefrom.methods.attention_maps import capture
from wherefrom.web import answers as answers_module
from wherefrom.web.answers import Answers, Cache
from wherefrom.web.models import Models
from wherefrom.web.request import AttentionBody, CurveBody, EraseBody, Limits, parse_request

LONG = "good " * 100  # more tokens than the 64 that these models take


@pytest.fixture(scope="module")
def models(wordpiece):
    """Two models that differ in their weights alone."""
    labels = {0: "bad", 1: "good", 2: "mixed"}
    return Models(
        {
            name: Explainer(tiny("bert", "classify", seed=seed, id2label=labels), wordpiece)
            for name, seed in (("first", 0), ("second", 1))
        }
    )


@pytest.fixture
def answers():
    return Answers(Limits())


class AnyBody(EraseBody, CurveBody, AttentionBody):
    """The fields of all routes."""

    curve: str = "activation"


def request_of(models, **changes):
    content = {"model": "first", "text": "a good film", **changes}
    return parse_request(json.dumps(content).encode(), AnyBody, models, Limits())


CHANGES = {
    "model": {"model": "second"},
    "text": {"text": "a dull film"},
    "method": {"method": "gradient"},
    "target": {"target": 2},
    "against": {"against": 2},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_requests_that_differ_in_one_field_get_their_own_explanation(models, answers, change):
    plain = {"target": 1, "against": 0}
    for request in (request_of(models, **plain), request_of(models, **{**plain, **change})):
        expected = request.model.explainer(
            request.input,
            request.method,
            target=request.body.target,
            against=request.body.against,
        )
        assert answers.explain(request)["explanation"] == expected.to_dict()


@pytest.mark.parametrize("change", [CHANGES["model"], CHANGES["text"]], ids=["model", "text"])
def test_requests_that_differ_in_the_input_get_their_own_attention(models, change):
    answers = Answers(Limits(cached_attention=8))
    for request in (request_of(models), request_of(models, **change)):
        explainer = request.model.explainer
        inputs, target = explainer._prepared(request.input)
        expected = (
            capture(Case(explainer.runner, inputs, target), gradients=False).maps[0][0].mean(0)
        )
        answer = answers.attention(request)
        assert answer["weights"] == [[round(w, 5) for w in row] for row in expected.tolist()]
        assert answer["keys"] == [unit.text for unit in inputs.units[0]]


@pytest.mark.parametrize("change", [CHANGES["model"], CHANGES["text"]], ids=["model", "text"])
def test_requests_that_differ_in_the_input_get_their_own_prediction(models, answers, change):
    for request in (request_of(models), request_of(models, **change)):
        expected = request.model.explainer(request.input)
        answer = answers.predict(request)
        assert answer["target"] == expected.target.index
        output = answer["outputs"][expected.target.index]
        assert output["output"] == pytest.approx(expected.output, abs=1e-6)
        assert [unit["text"] for unit in answer["units"]] == [unit.text for unit in expected.units]


@pytest.mark.parametrize("route", ["predict", "explain", "attention"])
def test_a_truncated_text_does_not_answer_for_the_whole(models, answers, route):
    answer = getattr(answers, route)
    answer(request_of(models, text=LONG, truncate=True))
    with pytest.raises(TooLong):
        answer(request_of(models, text=LONG))


def test_repeated_requests_compute_once(models, answers, monkeypatch):
    calls = Counter()

    def counted(name):
        function = getattr(answers_module, name)

        def call(*arguments, **options):
            calls[name] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(answers_module, name, call)

    for name in ("_predict", "_explain", "capture"):
        counted(name)
    for head in range(3):
        request = request_of(models, head=head, curve="activation", removed=[1])
        for answer in (answers.predict, answers.explain, answers.erase, answers.attention):
            answer(request)
        answers.curve(request)
    assert calls == {"_predict": 1, "_explain": 1, "capture": 1}


def test_a_failed_computation_is_not_cached():
    cache = Cache(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 5) == 5


def test_the_least_recently_used_value_is_dropped_first():
    cache = Cache(2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda key=key: key)
    assert cache.get("a", lambda: "computed again") == "a"
    assert cache.get("b", lambda: "computed again") == "computed again"
    assert len(cache) == 2


def test_no_cache_outgrows_its_limit_and_what_it_drops_is_freed(models):
    limits = Limits(cached_explanations=3, cached_predictions=2, cached_attention=1)
    answers = Answers(limits)
    first = request_of(models, text="a")
    dropped = [
        weakref.ref(value)
        for value in (
            answers._explain(first, "lrp").explanation,
            answers._predict(first).inputs,
            answers._attention.get(
                first.input_key, lambda: answers._capture(first, answers._predict(first))
            ),
        )
    ]
    for text in ("good", "bad", "great", "dull", "film"):
        for name in ("first", "second"):
            request = request_of(models, model=name, text=text)
            answers.explain(request)
            answers.attention(request)
    caches = (answers._explanations, answers._predictions, answers._attention)
    assert [len(cache) for cache in caches] == [3, 2, 1]
    gc.collect()
    assert [reference() for reference in dropped] == [None, None, None]


def test_requests_add_no_model(models, make_client):
    client = make_client(models=models)
    before = models.names
    for name in ("third", "first/..", "bert-base-uncased"):
        assert client.post("/api/predict", json={"model": name, "text": "a"}).status_code == 422
    assert models.names == before == ["first", "second"]
