"""The page over the embedded model and a tiny image model, behind a test client or a socket."""

import base64
import io
import threading
import time
from pathlib import Path

import pytest
import torch
import uvicorn
from PIL import Image
from starlette.testclient import TestClient
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

from wherefrom import Explainer, load
from wherefrom.show import corpus
from wherefrom.web.app import make_app
from wherefrom.web.limits import Limits
from wherefrom.web.models import Shelf
from wherefrom.web.worker import Worker

HOME = "http://127.0.0.1:8765"


def seeing():
    """A random model of ten classes that sees 28 × 28 pixels in 49 patches."""
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
    return Explainer(
        model, processor=ViTImageProcessorPil(size=size, image_mean=[0.13], image_std=[0.31])
    )


def packed(size=(28, 28), kind="PNG"):
    """A picture of a bar, as the bytes of a file in base64."""
    picture = Image.new("L", size, 0)
    picture.paste(255, (size[0] // 3, 2, size[0] // 2, size[1] - 2))
    file = io.BytesIO()
    picture.save(file, kind)
    return base64.b64encode(file.getvalue()).decode("ascii")


@pytest.fixture(scope="session")
def sentiment():
    return load("sentiment")


@pytest.fixture(scope="session")
def digits():
    return seeing()


@pytest.fixture(scope="session")
def bace():
    return load("bace")


@pytest.fixture(scope="session")
def shelf(sentiment, digits, bace):
    return Shelf({"sentiment": sentiment, "digits": digits, "bace": bace})


@pytest.fixture
def make(shelf):
    """A client of a server with other limits, tokens or folders."""
    workers = []

    def made(limits=None, worker=None, base=HOME, **options):
        limits = limits or Limits()
        if worker is None:
            worker = Worker(limits.seconds, limits.waiting)
            workers.append(worker)
        app = make_app(shelf, worker, limits=limits, **options)
        return TestClient(app, base_url=base, follow_redirects=False)

    yield made
    for worker in workers:
        worker.close()


@pytest.fixture
def client(make):
    return make()


@pytest.fixture(scope="module")
def address(shelf, tmp_path_factory):
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
    limits = Limits()
    worker = Worker(limits.seconds, limits.waiting)
    app = make_app(shelf, worker, limits=limits, reports=reports)
    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
    worker.close()
