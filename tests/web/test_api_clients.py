"""The API on a real socket, with OpenAI's client and Prometheus' parser."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.test_readme import API, ROOT, fenced
from tests.web.conftest import on_a_socket
from tests.web.test_api import DOCUMENTS, KEY, MESSAGES, PROMPT, SEVERAL, same_records
from tests.web.test_cancellation import SlowJob
from wherefrom.answers.sentence_records import sentence_records
from wherefrom.web.api import Api
from wherefrom.web.app import make_app
from wherefrom.web.models import Models
from wherefrom.web.worker import Worker

pytestmark = pytest.mark.api
REASON = "*** THE API IS NOT TESTED WITH REAL CLIENTS: make test-web installs them ***"
openai = pytest.importorskip("openai", reason=REASON)
parser = pytest.importorskip("prometheus_client.parser", reason=REASON)
httpx = pytest.importorskip("httpx", reason=REASON)
QUESTION = {"model": "chatter", "messages": MESSAGES, "extra_body": {"documents": DOCUMENTS}}


@pytest.fixture(scope="module")
def server(chatter, sentiment):
    """The address of the API, and the worker behind it."""
    worker = Worker(60, 16)
    models = Models({"chatter": chatter, "sentiment": sentiment})
    with on_a_socket(make_app(models, worker, api=True, keys=[KEY])) as address:
        yield address, worker
    worker.close()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_a_completion_and_a_stream_of_the_same(client, chatter):
    answer = chatter.generate(PROMPT, 40, temperature=2.0, seed=3)
    expected = sentence_records(answer, {"passage 2": "b.txt"})
    plain = client.chat.completions.create(**QUESTION, **SEVERAL)
    assert plain.choices[0].message.content == answer.text
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage.completion_tokens == 40
    same_records(plain.choices[0].message.sentences, expected)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text, records, usage = "", [], None
    for chunk in client.chat.completions.create(**QUESTION, **SEVERAL, **options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            records += getattr(choice.delta, "sentences", [])
    assert text == answer.text
    assert usage.completion_tokens == 40
    same_records(records, expected)


def test_errors_are_those_of_the_client(client, server):
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="n: input should be") as caught:
        create(**QUESTION, n=2)
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        create(**QUESTION | {"messages": [{"role": "user", "content": "a " * 1500}]})
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="no model"):
        create(**QUESTION | {"model": "none"})
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert [model.id for model in client.models.list()] == ["chatter", "sentiment"]
    assert client.models.retrieve("sentiment").labels == ["NEGATIVE", "POSITIVE"]


def test_an_error_within_a_stream_is_raised(client, monkeypatch):
    def fail(self, body, send):
        send({"choices": []})
        raise MemoryError

    monkeypatch.setattr(Api, "chat", fail)
    rows = iter(client.chat.completions.create(**QUESTION, stream=True))
    next(rows)
    with pytest.raises(openai.APIError, match="an error occurred in the server"):
        next(rows)


def test_a_stream_that_the_client_closes_stops_the_job(client, server, monkeypatch):
    job = SlowJob()
    monkeypatch.setattr(Api, "chat", lambda self, body, send: [send({"choices": []}), job()])
    stream = client.chat.completions.create(**QUESTION, stream=True)
    next(iter(stream))
    assert httpx.get(f"{server[0]}/healthz").json()["status"] == "ok"
    stream.close()
    server[1].submit(lambda: None).future.result(60)
    assert job.ended == ["the request was cancelled"]


def test_of_many_requests_at_once_as_many_as_fit_are_answered(chatter):
    """Without keys only the queue limits them: 16 wait, and the others are told to come back."""
    worker, release, refused = Worker(60, 16), threading.Event(), []
    started, enough = threading.Event(), threading.Event()

    def block():
        started.set()
        release.wait(60)

    def ask(number):
        try:
            with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
                return client.chat.completions.create(**QUESTION, max_tokens=1).object
        except openai.InternalServerError as error:
            refused.append((error.status_code, error.response.headers["retry-after"]))
            if len(refused) == 14:
                enough.set()
            return None

    with on_a_socket(make_app(Models({"chatter": chatter}), worker, api=True)) as address:
        worker.submit(block)
        started.wait(60)
        with ThreadPoolExecutor(30) as pool:
            answers = pool.map(ask, range(30))
            assert enough.wait(60)
            assert httpx.get(f"{address}/healthz").json() == {"status": "ok", "queued": 16}
            release.set()
            assert sorted(map(str, answers)) == ["None"] * 14 + ["chat.completion"] * 16
    assert refused == [(503, "1")] * 14
    worker.close()


def test_prometheus_reads_the_metrics(client, server):
    client.models.list()
    response = httpx.get(f"{server[0]}/metrics", headers={"authorization": f"Bearer {KEY}"})
    families = {
        family.name: family for family in parser.text_string_to_metric_families(response.text)
    }
    kinds = {name: family.type for name, family in families.items()}
    assert kinds == {
        "wherefrom_info": "gauge", "wherefrom_jobs_queued": "gauge",
        "wherefrom_job_seconds": "summary", "wherefrom_request_seconds": "summary",
        "wherefrom_requests": "counter", "wherefrom_tokens": "counter",
    }  # fmt: skip
    samples = {tuple(s.labels.values()): s.value for s in families["wherefrom_requests"].samples}
    assert samples["/v1/models", "200"] >= 1


def test_the_rag_service_of_the_documentation(client, server, capsys):
    code = next(
        text for text, need in fenced(ROOT / "docs/howto/serving.md", "python") if need == API
    )
    assert len([line for line in code.splitlines() if line]) <= 20
    code = code.replace("http://127.0.0.1:8765", server[0]).replace('"none"', f'"{KEY}"')
    exec(code.replace('model="smollm2"', 'model="chatter", max_tokens=3'), {})
    printed = capsys.readouterr().out
    assert "('gate.txt', '" in printed
    assert "cars.txt" in printed
