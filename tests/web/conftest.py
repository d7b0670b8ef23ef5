"""The page over embedded models and a tiny image model, behind a test client or a socket."""

import asyncio
import copy
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from starlette.testclient import TestClient
from transformers import ViTConfig, ViTForImageClassification

from benchmarks.tiny import model as tiny
from tests.helpers import ViTProcessor
from tests.web.helpers import CHROMIUM, DRIVER, HOME
from wherefrom import Explainer, load
from wherefrom.show import corpus
from wherefrom.web.app import make_app
from wherefrom.web.models import Models
from wherefrom.web.request import Limits
from wherefrom.web.serve import make_server, serve_on
from wherefrom.web.worker import Worker


@pytest.fixture(scope="session")
def sentiment():
    return load("sentiment")


@pytest.fixture(scope="session")
def bace():
    return load("bace")


@pytest.fixture(scope="session")
def digits():
    """A random model of ten classes for images of 28 × 28 pixels in 49 patches."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=28, patch_size=4, num_channels=1, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=48, num_labels=10,
        id2label={i: str(i) for i in range(10)},
    )  # fmt: skip
    model = ViTForImageClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    size = {"height": 28, "width": 28}
    return Explainer(model, processor=ViTProcessor(size=size, image_mean=[0.13], image_std=[0.31]))


@pytest.fixture(scope="session")
def talker(bytepairs):
    """A random language model that reads the bytes of a text."""
    size = len(bytepairs)
    return Explainer(
        tiny("llama", "write", vocab_size=size, max_position_embeddings=512).float(), bytepairs
    )


@pytest.fixture(scope="session")
def chatter(bytepairs):
    """A random language model with a chat template that writes a, b, periods and spaces."""
    tokenizer = copy.deepcopy(bytepairs)
    tokenizer.chat_template = (
        "{% for m in messages %}<{{m.role}}>{{m.content}}\n{% endfor %}<assistant>"
    )
    model = tiny("llama", "write", vocab_size=len(tokenizer), max_position_embeddings=512).float()
    kept = {tokenizer.convert_tokens_to_ids(piece) for piece in ("a", "b", ".", "Ġ")}
    suppressed = [i for i in range(len(tokenizer)) if i not in kept]
    model.generation_config.suppress_tokens = suppressed
    return Explainer(model, tokenizer)


@pytest.fixture(scope="session")
def flipped(sentiment):
    """The same model with its two labels exchanged: another answer to every text."""
    labels = sentiment.labels()[::-1]
    return Explainer(sentiment.runner.model, sentiment.tokenizer, labels=labels)


@pytest.fixture(scope="session")
def models(sentiment, digits, bace, flipped):
    return Models({"sentiment": sentiment, "digits": digits, "bace": bace, "flipped": flipped})


@pytest.fixture
def make_client(models):
    """Makes clients of servers with other limits, tokens, folders or models."""
    workers = []

    def make(limits=None, worker=None, models=models, **options):
        limits = limits or Limits()
        if worker is None:
            worker = Worker(limits.job_seconds, limits.queued_jobs)
            workers.append(worker)
        app = make_app(models, worker, limits=limits, **options)
        return TestClient(app, base_url=HOME, follow_redirects=False)

    yield make
    for worker in workers:
        worker.close()


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture(scope="module")
def address(models, tmp_path_factory):
    """The page on a real socket, with a folder of reports."""
    reports = tmp_path_factory.mktemp("reports")
    (reports / "one.html").write_text(
        "<!doctype html><title>one</title><p id=here>a report</p><script>document.title='ran'"
        "</script>",
        encoding="utf-8",
    )
    script = Path(corpus.__file__).with_name("corpus.js").read_text(encoding="utf-8")
    (reports / "tables.html").write_text(
        f"<!doctype html><title>t</title><script>{script}</script>", encoding="utf-8"
    )
    worker = Worker(60, 16)
    with on_a_socket(make_app(models, worker, reports=reports)) as address:
        yield address
    worker.close()


@contextmanager
def on_a_socket(app):
    """The address of an application that is served on this machine."""
    server = make_server(app)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=lambda: asyncio.run(serve_on(server, listener)), daemon=True
        )
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def downloads(tmp_path_factory):
    """The folder of the browser's downloads."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads):
    """A chromium without a window that keeps its log."""
    from selenium import webdriver  # which only these tests need

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_window_size(1000, 1250)
    yield driver
    driver.quit()
