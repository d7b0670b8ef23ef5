"""Starting the server: models, addresses, tokens, and the command line."""

import asyncio
import re
import socket
from types import SimpleNamespace

import pytest
import uvicorn
from typer.testing import CliRunner

from wherefrom import Explainer
from wherefrom.cli import app
from wherefrom.errors import FileError, InputError, MissingExtra, ModelError
from wherefrom.web import serve as serve_module
from wherefrom.web.metrics import Metrics
from wherefrom.web.models import PROMPTS, Models, ServedModel, open_models
from wherefrom.web.serve import serve


def test_the_command_line_passes_its_options_on(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        serve_module, "serve", lambda *arguments, say, **model: calls.append((*arguments, model))
    )
    options = ["-m", "a", "-m", "b", "--host", "::1", "--port", "5", "--reports", str(tmp_path)]
    options += ["--api", "--api-key", "k" * 16, "--limit", "answer_tokens=512"]
    result = CliRunner().invoke(
        app, ["serve", *options, "--open", "--dtype", "float64"], env={"WHEREFROM_TOKEN": "t" * 16}
    )
    assert result.exit_code == 0, result.output
    model = {"dtype": "float64"}
    page = (["a", "b"], "::1", 5, "t" * 16, tmp_path, True)
    assert calls == [(*page, True, ["k" * 16], {"answer_tokens": 512}, model)]


def test_a_language_model_has_prompts_as_examples(gpt2, bytepairs):
    assert ServedModel("gpt2", Explainer(gpt2, bytepairs)).examples == PROMPTS


def test_models_have_short_and_distinct_names(sentiment):
    models = open_models(["a/model", "b/model", "c"], lambda source: sentiment)
    assert models.names == ["model", "model (2)", "c"]


def test_the_embedded_text_model_comes_first_and_a_model_that_fails_is_skipped(sentiment):
    def load(name):
        if name == "digits":
            raise ModelError("Pillow is missing")
        return sentiment

    messages = []
    names = serve_module._embedded_models(load, messages.append).names
    assert names[0] == "sentiment"
    assert "digits" not in names
    assert messages == ["wherefrom: skipping digits: Pillow is missing"]


def test_a_server_needs_a_model():
    with pytest.raises(InputError, match="no model to serve"):
        Models({})


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(FileError, match="is not a folder"):
        serve(reports=tmp_path / "none")
    for token in ("short", "with spaces and more", "ä" * 16):
        with pytest.raises(InputError, match="16 letters"):
            serve(token=token)
    with pytest.raises(InputError, match="16 ASCII characters"):
        serve(api=True, api_keys=["k" * 16, "short"])
    with pytest.raises(InputError, match=r"with the API only\. Pass api=True"):
        serve(api_keys=["k" * 16])
    wrong = {"unit": 3}, {"units": 0}, {"units": "many"}, {"job_seconds": -1}, {"units": True}
    for limits in wrong:
        with pytest.raises(InputError, match=rf"^limits: {next(iter(limits))}: "):
            serve(limits=limits)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="--port"):
        serve(port=taken.getsockname()[1])
    with pytest.raises(InputError, match=r"^a port is a number from 0 to 65535, got 99999\.$"):
        serve(port=99999)


def test_without_the_extra_the_error_names_the_install_command(monkeypatch):
    monkeypatch.setattr(serve_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"wherefrom\[web\]"):
        serve()


@pytest.mark.parametrize(
    ("token", "keys", "used", "words"),
    [
        (None, [], (), "no key"),
        (None, ["k" * 16], ("k" * 16,), "an API key"),
        ("t" * 16, [], ("t" * 16,), "the token as key"),
        ("t" * 16, ["k" * 16], ("k" * 16,), "an API key"),
    ],
)
def test_the_api_gets_keys_and_limits(monkeypatch, sentiment, token, keys, used, words):
    apps, messages = [], []
    monkeypatch.setattr(serve_module, "load", lambda source: sentiment)
    monkeypatch.setattr(Metrics, "measured", lambda self, gate: gate)

    async def served(server, sockets):
        apps.append(server.config.app)

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    limits = {"key_requests": 3}
    serve(
        ["sentiment"], port=0, token=token, api=True, api_keys=keys, limits=limits,
        say=messages.append,
    )  # fmt: skip
    (gate,) = apps
    assert (gate.keys, gate.key_requests) == (used, 3)
    assert re.fullmatch(rf"its API is at http://\S+:\d+/v1, with {words}", messages[1])


@pytest.mark.parametrize(("host", "is_public"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_host_that_others_can_reach_gets_a_token(monkeypatch, sentiment, host, is_public):
    apps, messages = [], []
    monkeypatch.setattr(serve_module, "load", lambda source: sentiment)

    async def served(server, sockets):
        apps.append(server.config.app)

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    serve(["sentiment"], host=host, port=0, say=messages.append)
    (gate,) = apps
    (message,) = messages
    assert gate.host == host
    assert (gate.token is not None) is is_public
    assert ("?token=" in message) is is_public
    if is_public:
        assert len(gate.token) == 32
        assert message.count(gate.token) == 1


class Request:
    response_complete = True


class Connection:
    def __init__(self):
        self.cycle, self.closed = Request(), False
        self.transport = SimpleNamespace(close=lambda: setattr(self, "closed", True))


def test_a_connection_is_idle_only_from_its_last_request_on(monkeypatch):
    used, silent, clock = Connection(), Connection(), []

    async def sleep(seconds):
        clock.append(seconds)
        used.cycle = Request()  # answered between two checks
        if len(clock) == 30:
            raise asyncio.CancelledError

    monkeypatch.setattr(serve_module, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(serve_module, "time", SimpleNamespace(monotonic=lambda: sum(clock)))
    server = SimpleNamespace(server_state=SimpleNamespace(connections={used, silent}))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(serve_module._close_idle(server, 10))
    assert (used.closed, silent.closed) == (False, True)
