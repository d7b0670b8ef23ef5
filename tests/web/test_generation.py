"""Answers on the page: what is streamed, what is explained, and what is refused."""

import asyncio
import json
import threading
import warnings
from itertools import pairwise

import pytest
import torch

from tests.web.helpers import JSON, PAGE_HEADERS, error_kind
from wherefrom import Prompt
from wherefrom.show.answer import page_data
from wherefrom.web.app import Server
from wherefrom.web.models import Models
from wherefrom.web.request import Limits
from wherefrom.web.security import Reports
from wherefrom.web.worker import Worker

PASSAGES = ["the movie is lovely.", "Paris <b>is</b> the movie."]


@pytest.fixture(scope="module")
def models(talker, sentiment):
    return Models({"talker": talker, "sentiment": sentiment})


@pytest.fixture
def ask(make_client, models):
    client = make_client(models=models)

    def post(**changes):
        body = {"model": "talker", "text": "who is it?", "passages": PASSAGES, **changes}
        return client.post("/api/answer", content=json.dumps(body), headers=JSON)

    return post


def lines_of(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def same_data(data, answer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = json.loads(json.dumps(page_data(answer)))
    for rows in ("rows", "all_hops"):
        for row, other in zip(data.pop(rows), expected.pop(rows), strict=True):
            assert row["output"] == pytest.approx(other["output"], abs=1e-5)
            assert row["values"] == pytest.approx(other["values"], rel=1e-3, abs=1e-5)
    for token, other in zip(data.pop("tokens"), expected.pop("tokens"), strict=True):
        assert token[::2] == other[::2]  # the texts
        assert token[1::2] == pytest.approx(other[1::2], rel=1e-3)  # the probabilities
    assert data == expected


def test_an_answer_grows_line_by_line_and_is_explained_at_the_end(ask, talker):
    rows = lines_of(ask(max_new_tokens=6))
    answer = talker.generate(Prompt("who is it?", PASSAGES), 6)
    texts = [row["text"] for row in rows if "text" in row]
    assert len(texts) >= 4
    for before, after in pairwise(texts[:-1]):
        assert after.startswith(before)
    assert texts[-1] == answer.text
    explained = [row["explained"] for row in rows if "explained" in row]
    assert explained == sorted(set(explained))  # some tokens at a time
    assert explained[-1] == 6
    assert rows[-1]["finished"] is False
    same_data(rows[-1]["answer"], answer)


def test_an_answer_of_ones_own_is_explained(ask, talker):
    rows = lines_of(ask(answer=" it is Paris.", method="attn_lrp"))
    own = talker.answer(Prompt("who is it?", PASSAGES), " it is Paris.", method="attn_lrp")
    assert [row["text"] for row in rows if "text" in row] == [own.text]
    assert rows[-1]["finished"] is None
    same_data(rows[-1]["answer"], own)


def test_without_passages_a_prompt_stays_as_it_is(ask):
    rows = lines_of(ask(passages=[], text="the movie is", max_new_tokens=2))
    assert rows[-1]["answer"]["prompt"] == "the movie is"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model": "sentiment"}, "ModelError", ["not a language model"]),
        ({"max_new_tokens": 0}, "InputError", ["max_new_tokens: input should be greater than 0"]),
        ({"max_new_tokens": 1000}, "InputError", ["an answer may have up to 128 tokens, got 1000"]),
        ({"passages": "x"}, "InputError", ["passages: input should be a valid list"]),
        ({"passages": [3]}, "InputError", ["passages.0: input should be a valid string"]),
        ({"answer": 3}, "InputError", ["answer: input should be a valid string"]),
        ({"passages": ["a "] * 10_001}, "TooLong", ["20,012 characters", "20,000"]),
        ({"passages": ["a b " * 400], "max_new_tokens": 9}, "TooLong", ["up to", "512"]),
        ({"passages": [" "]}, "InputError", ["passage 1 is empty"]),
        ({"passages": [], "text": " "}, "InputError", ["the prompt is empty"]),
        ({"method": "magic"}, "MethodError", ["no method"]),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(ask, changes, kind, words):
    assert error_kind(ask(**changes), 422, *words) == kind


def test_an_error_while_answering_is_the_last_line(ask, talker):
    model = talker.runner.model
    first = talker.generate(Prompt("who is it?", PASSAGES), 1).tokens[0].id
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = first
    try:
        rows = lines_of(ask(max_new_tokens=3))
    finally:
        model.generation_config.eos_token_id = before
    assert "is a stop token" in rows[-1]["error"]


def test_a_job_stops_when_nobody_reads_what_it_tells(models):
    worker = Worker(60, 4)
    server = Server(models, worker, Limits(), Reports())
    ended, identity = threading.Event(), torch.nn.Identity()

    def endless(on_text):
        try:
            for number in range(10**9):
                identity(number)
                if number % 100 == 0:
                    on_text({"number": number})
        finally:
            ended.set()

    async def read_two():
        rows = server._sent(endless)
        first = [await anext(rows), await anext(rows)]
        await rows.aclose()
        # within the loop: at its end all that is left would be cancelled
        assert await asyncio.to_thread(ended.wait, 60)
        return first

    try:
        assert [row["number"] for row in asyncio.run(read_two())] == [0, 100]
    finally:
        worker.close()


def test_the_page_of_answers_is_served_as_strictly_as_the_other(make_client, models):
    client = make_client(models=models)
    page = client.get("/answer")
    assert page.status_code == 200
    assert {name: page.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS
    assert 'id="parts"' in page.text
    for name in ("answer.css", "answer_view.js", "answer_page.js", "theme.js"):
        assert client.get(f"/static/{name}").status_code == 200
    about = client.get("/api/about").json()
    assert {model["name"]: model["answers"] for model in about["models"]} == {
        "talker": True, "sentiment": False,
    }  # fmt: skip
