"""The API for programs: what it answers, what it refuses, and who may ask how much."""

import json
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.helpers import JSON, PAGE_HEADERS
from tests.web.test_openapi import ANY
from wherefrom import Explainer, Passage, Prompt
from wherefrom.answers.sentence_records import improbable, sentence_records
from wherefrom.answers.sentences import sentence_spans
from wherefrom.web.api import Api
from wherefrom.web.metrics import Metrics
from wherefrom.web.models import Models
from wherefrom.web.request import ChatBody, ExplainBody, GivenAnswerBody, Limits
from wherefrom.web.security import Gate
from wherefrom.web.worker import Worker

KEY, OTHER_KEY = "sk-abcdefgh_12345678", "sk-12345678_abcdefgh"
DOCUMENTS = ["the movie is lovely.", {"id": "b.txt", "title": "B", "text": "Paris <b>is</b> it."}]
MESSAGES = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "who is it?"}]
PROMPT = Prompt(
    "who is it?", ["the movie is lovely.", Passage("Paris <b>is</b> it.", "B")], "be kind"
)
CHAT = "/v1/chat/completions"
# sampled from letters, spaces and periods, this gives several sentences
SEVERAL = {"temperature": 2, "seed": 3, "max_tokens": 40}


@pytest.fixture(scope="module")
def models(chatter, talker, sentiment):
    return Models({"chatter": chatter, "talker": talker, "sentiment": sentiment})


@pytest.fixture
def api(make_client, models):
    return make_client(models=models, api=True)


def chat(**changes):
    """The body of a chat request."""
    return {"model": "chatter", "messages": MESSAGES, "documents": DOCUMENTS, **changes}


def completion(response):
    assert response.status_code == 200, response.text
    return response.json()


def chunks(response):
    """The chunks of a streamed completion."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def refused(response, status, *words, code=None):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert all(word in error["message"] for word in words), error["message"]
    assert code is None or error["code"] == code
    return response


def same_records(records, expected):
    assert len(records) == len(expected)
    for record, other in zip(records, expected, strict=True):
        assert [record[key] for key in ("text", "start", "end")] == [
            other[key] for key in ("text", "start", "end")
        ]
        for passage, own in zip(record["passages"], other["passages"], strict=True):
            assert (passage["passage"], passage["id"]) == (own["passage"], own["id"])
            assert passage["share"] == pytest.approx(own["share"], abs=1e-3)
            assert passage["relevance"] == pytest.approx(own["relevance"], abs=1e-3)


def test_a_completion_is_the_librarys_answer_with_the_passages_of_each_sentence(api, chatter):
    data = completion(api.post(CHAT, json=chat(**SEVERAL)))
    answer = chatter.generate(PROMPT, 40, temperature=2.0, seed=3)
    (choice,) = data["choices"]
    message = choice["message"]
    assert message["content"] == answer.text
    assert choice["finish_reason"] == "length"
    assert data["object"] == "chat.completion"
    assert data["usage"] == {
        "prompt_tokens": answer.start, "completion_tokens": 40, "total_tokens": answer.start + 40,
    }  # fmt: skip
    citations = answer.citations()
    assert len(message["sentences"]) == len(citations) > 1
    for record, citation in zip(message["sentences"], citations, strict=True):
        assert answer.text[record["start"] : record["end"]] == record["text"]
        assert record["text"] == citation.sentence.text
        by_name = {support.passage: support for support in citation.supports}
        assert [p["passage"] for p in record["passages"]] == list(by_name)
        for passage in record["passages"]:
            support = by_name[passage["passage"]]
            assert passage["share"] == pytest.approx(support.share, abs=1e-3)
            assert passage["title"] == support.title
            assert passage["id"] == {"passage 1": None, "passage 2": "b.txt"}[support.passage]


def test_a_stream_has_the_same_text_and_each_sentence_as_soon_as_the_next_begins(api, monkeypatch):
    plain = completion(api.post(CHAT, json=chat(**SEVERAL)))["choices"][0]["message"]
    explain, explained = Explainer.answer, []
    monkeypatch.setattr(
        Explainer, "answer", lambda self, *a: [explained.append(a), explain(self, *a)][1]
    )
    options = {"stream": True, "stream_options": {"include_usage": True}}
    rows = chunks(api.post(CHAT, json=chat(**SEVERAL, **options)))
    assert {row["object"] for row in rows} == {"chat.completion.chunk"}
    assert len({row["id"] for row in rows}) == 1
    *sent, last, usage = rows
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "length")
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 40
    deltas = [row["choices"][0]["delta"] for row in sent]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text, records = "", []
    for delta in deltas:
        text += delta.get("content", "")
        for record in delta.get("sentences", ()):
            assert text[record["start"] : record["end"]] == record["text"]
            records.append(record)
            begun = sentence_spans(text)
            assert len(begun) == len(records) + (text != plain["content"])
    assert text == plain["content"]
    same_records(records, plain["sentences"])
    assert len(explained) <= len(records) - 1  # once for each sentence but the last


def test_messages_are_passages_if_there_are_no_documents(api, chatter):
    content = [{"type": "text", "text": "a is b.\n\n"}, {"type": "text", "text": "is b a?"}]
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": content},
        {"role": "assistant", "content": "b", "sentences": [{}], "refusal": None},
        {"role": "user", "content": "and a?"},
    ]
    data = completion(api.post(CHAT, json=chat(messages=messages, documents=[], max_tokens=4)))
    read = [
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "a is b.\n\nis b a?"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "and a?"},
    ]  # fmt: skip
    answer = chatter.generate(read, 4)
    message = data["choices"][0]["message"]
    assert message["content"] == answer.text
    same_records(message["sentences"], sentence_records(answer))
    assert {p["passage"] for p in message["sentences"][0]["passages"]} == {
        "user 1, paragraph 1", "user 1, paragraph 2",
    }  # fmt: skip


def test_an_answer_that_ends_at_once_is_empty(api, chatter):
    config = chatter.runner.model.generation_config
    before, first = config.eos_token_id, chatter.generate(PROMPT, 1).tokens[0].id
    config.eos_token_id = first
    try:
        data = completion(api.post(CHAT, json=chat(max_tokens=3)))
        rows = chunks(api.post(CHAT, json=chat(max_tokens=3, stream=True)))
    finally:
        config.eos_token_id = before
    assert data["choices"][0] == {
        "index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "", "sentences": []},
    }  # fmt: skip
    assert data["usage"]["completion_tokens"] == 0
    assert data["usage"]["prompt_tokens"] > 0
    assert len(rows) == 2


def test_without_a_maximum_the_answer_has_as_many_tokens_as_fit(api, make_client, models):
    used = completion(api.post(CHAT, json=chat(max_tokens=1)))["usage"]["prompt_tokens"]
    small = make_client(Limits(units=used + 3), models=models, api=True)
    assert completion(small.post(CHAT, json=chat()))["usage"]["completion_tokens"] == 3
    refused(
        small.post(CHAT, json=chat(max_tokens=4)), 400, f"{used + 4:,}", f"{used + 3:,}",
        code="context_length_exceeded",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 2}, ["n: input should be less than or equal to 1"]),
        ({"tools": [{"type": "function"}]}, ["tools: there is no such field"]),
        ({"stop": ["x"]}, ["stop: there is no such field"]),
        ({"response_format": {"type": "json_object"}}, ["response_format"]),
        ({"logprobs": True}, ["logprobs: input should be False"]),
        ({"presence_penalty": 1}, ["presence_penalty"]),
        ({"frequency_penalty": -1}, ["frequency_penalty"]),
        ({"store": True}, ["store"]),
        ({"temperature": 3}, ["temperature"]),
        ({"temperature": -1}, ["temperature"]),
        ({"top_p": 0}, ["top_p"]),
        ({"max_tokens": 0}, ["max_tokens: input should be greater than 0"]),
        ({"max_tokens": 129}, ["up to 128 tokens, got 129"]),
        ({"messages": []}, ["messages: field required"]),
        ({"messages": [{"role": "tool", "content": "x"}]}, ["messages.0.role"]),
        ({"messages": [*MESSAGES, {"role": "user"}]}, ["messages.2.content: field required."]),
        ({"messages": [{**MESSAGES[1], "tool_calls": [{}]}]}, ["messages.0.tool_calls"]),
        ({"messages": [{**MESSAGES[1], "content": [{"type": "image_url"}]}]}, ["texts only"]),
        ({"messages": [{**MESSAGES[1], "content": "\ud800"}], "documents": []}, ["surrogate"]),
        ({"messages": [*MESSAGES, *MESSAGES]}, ["documents go with one message of the user"]),
        ({"documents": [{"title": "x"}]}, ["documents.0.text: field required"]),
        ({"documents": [{"text": "x", "url": "y"}]}, ["documents.0.url"]),
        ({"documents": [" "]}, ["passage 1 is empty"]),
        ({"documents": ["a " * 10_001]}, ["20,000"]),
        ({"method": "magic"}, ["no method"]),
        ({"model": "sentiment"}, ["sentiment is not a language model"]),
        ({"model": "talker", "documents": []}, ["no chat template"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused(api, changes, words, stream):
    content = json.dumps(chat(**changes, stream=stream)).encode()
    response = api.post(CHAT, content=content, headers={"content-type": "application/json"})
    refused(response, 400, *words)


@settings(max_examples=40, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_a_random_request_is_answered_or_refused(api, data):
    route = data.draw(st.sampled_from([CHAT, "/v1/answers", "/v1/explain"]))
    kind = {CHAT: ChatBody, "/v1/answers": GivenAnswerBody, "/v1/explain": ExplainBody}[route]
    body = {"max_tokens": 2} if route == CHAT else {"answer": "b."} if "ans" in route else {}
    body = {"model": "sentiment", "text": "fine"} if "explain" in route else chat(**body)
    body |= data.draw(st.dictionaries(st.sampled_from([*kind.model_fields]), ANY, max_size=2))
    if data.draw(st.booleans()) and "messages" in body:
        body["messages"] = [{"role": "user", "content": "x"}, data.draw(ANY)]
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    response = api.post(route, content=content, headers=JSON)
    if response.status_code != 200:
        refused(response, 404 if "no model" in response.text else 400)


def test_other_errors_have_openais_form_too(api, monkeypatch):
    refused(api.post(CHAT, json=chat(model="chater")), 404, "chatter", code="model_not_found")
    refused(api.get("/v1/models/none"), 404, code="model_not_found")
    refused(api.get("/v1/nothing"), 404)
    refused(api.get(CHAT), 405)
    refused(api.post(CHAT, content=b"{", headers={"content-type": "application/json"}), 400)
    refused(api.post(CHAT, content=b"{}"), 415)
    monkeypatch.setattr(Api, "chat", lambda self, body, send: 1 / 0)
    for stream in (False, True):
        response = refused(api.post(CHAT, json=chat(stream=stream)), 500)
        assert response.json()["error"]["type"] == "server_error"


def test_an_error_within_a_stream_is_its_last_event(api, monkeypatch):
    def fail(self, body, send):
        send({"number": 1})
        raise MemoryError

    monkeypatch.setattr(Api, "chat", fail)
    first, last = chunks(api.post(CHAT, json=chat(stream=True)))
    assert first == {"number": 1}
    assert last["error"]["type"] == "server_error"


def test_a_late_job_is_not_to_be_tried_again(make_client, models):
    client = make_client(Limits(job_seconds=0.0), models=models, api=True)
    response = refused(client.post(CHAT, json=chat()), 504, "took too long")
    assert response.headers["x-should-retry"] == "false"


def test_the_models_are_listed(api):
    data = completion(api.get("/v1/models"))["data"]
    assert [(model["id"], model["generates"]) for model in data] == [
        ("chatter", True), ("talker", True), ("sentiment", False),
    ]  # fmt: skip
    assert completion(api.get("/v1/models/sentiment"))["labels"] == ["NEGATIVE", "POSITIVE"]


def given(**changes):
    """The body of a request about an answer from elsewhere."""
    return chat(answer=" it is Paris. or B.", **changes)


def test_an_answer_from_elsewhere_is_explained_by_text_and_by_token_ids(api, chatter):
    answer = chatter.answer(PROMPT, " it is Paris. or B.", of="logprob")
    by_text = completion(api.post("/v1/answers", json=given(of="logprob")))
    ids = [token.id for token in answer.tokens]
    by_ids = completion(api.post("/v1/answers", json=chat(answer=ids, of="logprob")))
    named = {"passage 2": "b.txt"}
    for data in (by_text, by_ids):
        assert data["text"] == answer.text
        same_records(data["sentences"], sentence_records(answer, named))
        assert [token["id"] for token in data["tokens"]] == ids
    mean = math.prod(token.probability for token in answer.tokens) ** (1 / len(answer))
    assert by_text["probability"] == pytest.approx(mean, rel=1e-4)
    assert mean < 0.1
    (warning,) = by_text["warnings"]
    assert f"{mean:.2g}" in warning
    others = sum(token.probability < token.other_probability for token in answer.tokens)
    assert f"{others} of {len(answer)} are not the most likely" in warning


def test_only_an_improbable_answer_is_called_improbable(chatter):
    answer = chatter.answer(PROMPT, "ab")

    def with_probabilities(*values):
        logs = np.log(np.array(values))
        return replace(answer, measured=replace(answer.measured, log_probabilities=logs), _cache={})

    assert improbable(with_probabilities(0.5, 0.5)) is None
    assert improbable(with_probabilities(0.99, 0.0103)) is None  # a mean of 0.101
    assert "probability of 0.099 " in improbable(with_probabilities(0.99, 0.0099))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"answer": None}, ["answer: field required"]),
        ({"answer": " "}, ["answer is empty"]),
        ({"answer": [10**6]}, ["1000000"]),
        ({"answer": [-1]}, ["answer"]),
        ({"answer": {"text": "x"}}, ["answer: input should be a valid string or"]),
        ({"answer": "a" * 600}, ["up to"]),
        ({"answer": "x", "max_tokens": 3}, ["max_tokens: there is no such field"]),
        ({"answer": "x", "model": "sentiment"}, ["not a language model"]),
    ],
)
def test_given_answers_that_cannot_be_explained_are_refused(api, changes, words):
    refused(api.post("/v1/answers", json=chat(**changes)), 400, *words)


def test_a_classifier_is_explained(api, sentiment):
    text = "a gorgeous, witty but dull film."
    data = completion(api.post("/v1/explain", json={"model": "sentiment", "text": text}))
    expected = sentiment(text)
    assert data["explanation"]["schema"] == expected.schema
    np.testing.assert_allclose(data["explanation"]["scores"], expected.scores, atol=1e-5)
    assert str(data["explanation"]["target"]["label"]) in data["sentence"]
    refused(api.post("/v1/explain", json={"model": "sentiment", "text": text, "x": 1}), 400, "x:")
    refused(api.post("/v1/explain", json={"model": "none", "text": text}), 404)


def test_the_description_names_every_route_and_resolves(api):
    description = completion(api.get("/v1/openapi.json"))
    assert set(description["paths"]) == {CHAT, "/v1/answers", "/v1/explain", "/v1/models"}
    shown = json.dumps(description)
    for name in description["components"]["schemas"]:
        assert f"#/components/schemas/{name}" in shown
    assert shown.count('"$ref"') == shown.count('"$ref": "#/components/schemas/')


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_a_key_is_needed_and_no_site_of_a_browser_has_one(make_client, models):
    client = make_client(models=models, api=True, keys=[KEY, OTHER_KEY])
    for headers in ({}, bearer("wrong"), bearer(KEY[:-1]), {"authorization": KEY}, bearer("ä")):
        for path in ("/v1/models", "/metrics", "/v1/nothing"):
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            response = refused(client.get(path, headers=encoded), 401, code="invalid_api_key")
            assert response.headers["x-content-type-options"] == "nosniff"
    for key in (KEY, OTHER_KEY):
        # through a proxy or a container network the server has other names
        assert client.get("/v1/models", headers={**bearer(key), "host": "wherefrom:80"}).is_success
    assert client.get("/").is_success  # the page of this machine needs none
    assert client.get("/", headers=PAGE_HEADERS | {"host": "wherefrom:80"}).status_code == 421


def test_without_keys_the_api_is_as_open_as_the_page(make_client, models, api):
    assert api.get("/v1/models").is_success
    refused(api.get("/v1/models", headers={"host": "evil.example"}), 421)
    refused(api.get("/metrics", headers={"origin": "http://evil.example"}), 403)
    client = make_client(models=models, api=True, host="0.0.0.0", token="t" * 16)
    refused(client.get("/v1/models"), 401)
    assert client.get("/v1/models", headers=bearer("t" * 16)).is_success
    assert client.get("/healthz", headers={"host": "wherefrom"}).json() == {
        "status": "ok", "queued": 0,
    }  # fmt: skip


def test_the_api_is_not_served_unless_asked_for(make_client, models):
    client = make_client(models=models)
    for path in ("/v1/models", "/healthz", "/metrics"):
        assert client.get(path).status_code == 404


@pytest.fixture
def blocked():
    """A worker that runs a job until the event is set."""
    started, release, worker = threading.Event(), threading.Event(), Worker(60, 2)

    def block():
        started.set()
        release.wait(60)

    worker.submit(block)
    started.wait(60)
    yield worker, release
    release.set()
    worker.close()


def test_a_full_queue_says_when_to_try_again_and_the_server_stays_healthy(
    make_client, models, blocked
):
    worker, _ = blocked
    client = make_client(models=models, worker=worker, api=True)
    jobs = [worker.submit(lambda: None) for _ in range(2)]
    worker.jobs, worker.job_seconds = 4, 18.0
    for stream in (False, True):
        response = refused(client.post(CHAT, json=chat(stream=stream)), 503, "busy")
        assert response.headers["retry-after"] == "14"  # (2 queued + 1) × 4.5 s
    worker.job_seconds = 4000.0
    assert client.post(CHAT, json=chat()).headers["retry-after"] == "60"
    refused(client.post(CHAT, json=chat(n=2)), 400)  # without waiting for room
    assert client.get("/healthz").json() == {"status": "ok", "queued": 2}
    assert "wherefrom_jobs_queued 2\n" in client.get("/metrics").text
    assert not any(job.future.done() for job in jobs)


def test_a_job_that_hangs_is_reported(make_client, models):
    worker, release = Worker(0.0, 2, grace=0.0), threading.Event()
    client = make_client(models=models, worker=worker, api=True)
    started = threading.Event()

    def hang():
        started.set()
        release.wait(60)

    job = worker.submit(hang)
    started.wait(60)
    assert client.get("/healthz").status_code == 503
    release.set()
    job.future.result(60)
    assert client.get("/healthz").status_code == 200
    worker.close()


def test_one_key_has_few_requests_at_once_and_does_not_hold_up_another():
    import asyncio

    entered, release, statuses = [], asyncio.Event(), []

    async def app(scope, receive, send):
        entered.append(scope["path"])
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(key):
        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append((message["status"], dict(message["headers"]).get(b"retry-after")))

        headers = [(b"authorization", f"Bearer {key}".encode())]
        await gate({"type": "http", "path": "/v1/models", "headers": headers}, None, send)

    async def run():
        tasks = [asyncio.ensure_future(ask(KEY)) for _ in range(4)]
        tasks.append(asyncio.ensure_future(ask(OTHER_KEY)))
        while len(entered) + len(statuses) < 5:
            await asyncio.sleep(0)
        assert statuses == [(429, b"7"), (429, b"7")]
        release.set()
        await asyncio.gather(*tasks)
        await ask(KEY)

    gate = Gate(app, keys=(KEY, OTHER_KEY), key_requests=2, wait=lambda: 6.3)
    asyncio.run(run())
    assert [status for status, _ in statuses] == [429, 429, 200, 200, 200, 200]


def test_metrics_count_requests_and_tokens(api):
    usage = completion(api.post(CHAT, json=chat(max_tokens=3)))["usage"]
    refused(api.post(CHAT, json=chat(n=2)), 400)
    api.get("/v1/some/other/path")
    response = api.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = dict(
        line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#")
    )
    assert lines[f'wherefrom_requests_total{{path="{CHAT}",status="200"}}'] == "1"
    assert lines[f'wherefrom_requests_total{{path="{CHAT}",status="400"}}'] == "1"
    assert lines['wherefrom_requests_total{path="other",status="404"}'] == "1"
    assert lines['wherefrom_tokens_total{kind="answer"}'] == "3"
    assert lines['wherefrom_tokens_total{kind="prompt"}'] == str(usage["prompt_tokens"])
    assert lines[f'wherefrom_request_seconds_count{{path="{CHAT}"}}'] == "2"
    assert float(lines[f'wherefrom_request_seconds_sum{{path="{CHAT}"}}']) > 0
    assert lines["wherefrom_job_seconds_count"] == "1"


def test_every_series_has_its_help_and_type_before_it():
    metrics = Metrics()
    metrics.add("wherefrom_tokens_total", 2, kind="answer")
    text = metrics.text({"wherefrom_jobs_queued": 3})
    about = [line.split()[:3] for line in text.splitlines() if line.startswith("#")]
    names = [name for mark, kind, name in about if kind == "HELP"]
    assert [name for mark, kind, name in about if kind == "TYPE"] == names
    assert text.index("# TYPE wherefrom_tokens_total") < text.index("wherefrom_tokens_total{")
