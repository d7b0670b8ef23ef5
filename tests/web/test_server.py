"""The server: every route answers as the library does, and refuses what it should."""

import asyncio
import json
import threading

import numpy as np
import pytest
import torch

from tests.web.conftest import HOME, packed
from wherefrom import METHODS, Explanation, evaluate
from wherefrom.errors import InputError
from wherefrom.evaluation.forward_cache import ForwardCache
from wherefrom.inputs.pictures import decoded
from wherefrom.methods.attention import capture
from wherefrom.show.html import render
from wherefrom.studies.layer_profile import TABLES, relevance_sums
from wherefrom.web.limits import Limits
from wherefrom.web.models import MOLECULES, Shelf, opened
from wherefrom.web.security import HEADER, Gate
from wherefrom.web.serve import serve
from wherefrom.web.worker import Worker

TEXT = "a gorgeous, witty but dull film."
POSTS = ("predict", "explain", "compare", "erase", "curve", "layers", "attention", "page")


def asked(**more):
    return {"model": "sentiment", "text": TEXT, **more}


def told(response, status, *words):
    """The message of a refusal, which is JSON and carries the headers."""
    assert response.status_code == status, response.text
    message = response.json()["error"]["message"]
    assert all(word in message for word in words), message
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return response.json()["error"]["kind"]


# What is asked is answered as the library answers.


def test_a_prediction_has_every_class_with_its_probability(client, sentiment):
    found = client.post("/api/predict", json=asked()).json()
    inputs, target = sentiment.prepare(TEXT)
    with torch.no_grad():
        logits = sentiment.subject.run(inputs.model_tensors())[0]
    assert [each["output"] for each in found["outputs"]] == logits.tolist()
    assert [each["probability"] for each in found["outputs"]] == logits.double().softmax(0).tolist()
    assert [each["label"] for each in found["outputs"]] == ["NEGATIVE", "POSITIVE"]
    assert found["target"] == int(target.index)
    assert [unit["text"] for unit in found["units"]] == [u.text for u in inputs.units[0]]


@pytest.mark.parametrize("method", ["lrp", "gradient_x_input", "attention_rollout", "occlusion"])
def test_an_explanation_is_the_librarys(client, sentiment, method):
    found = client.post("/api/explain", json=asked(method=method)).json()
    assert found["explanation"] == sentiment(TEXT, method).to_dict()
    assert found["seconds"] > 0
    assert len(found["marks"]) == len(found["explanation"]["units"])


def test_target_and_contrast_by_number_and_by_name(client, sentiment):
    found = client.post("/api/explain", json=asked(target="NEGATIVE", against=1)).json()
    expected = sentiment(TEXT, target=0, against=1)
    assert found["explanation"] == expected.to_dict()
    assert expected.target.against_label == "POSITIVE"


def test_methods_are_compared_line_by_line(client, sentiment):
    methods = ["lrp", "gradient", "gae"]
    with client.stream("POST", "/api/compare", json=asked(methods=methods)) as response:
        lines = [json.loads(line) for line in response.iter_lines()]
    expected = sentiment.compare(TEXT, methods)
    assert [line["method"] for line in lines] == methods
    assert [line["explanation"] for line in lines] == [each.to_dict() for each in expected]


def test_all_methods_are_compared_by_default(client):
    response = client.post("/api/compare", json=asked(text="good"))
    assert [json.loads(line)["method"] for line in response.text.splitlines()] == list(METHODS)


def test_a_method_that_the_model_has_no_use_for_is_told_in_its_line(make, monkeypatch):
    from wherefrom.errors import ModelError
    from wherefrom.web.answers import Desk

    explain = Desk.explain

    def refused(self, question, data):
        if question.method == "gae":
            raise ModelError("no attention here")
        return explain(self, question, data)

    monkeypatch.setattr(Desk, "explain", refused)
    response = make().post("/api/compare", json=asked(methods=["gae", "lrp"]))
    first, second = (json.loads(line) for line in response.text.splitlines())
    assert first == {"method": "gae", "left_out": "no attention here"}
    assert second["explanation"]["method"]["name"] == "lrp"


def test_units_taken_out_are_what_evaluations_take_out(client, sentiment):
    found = client.post("/api/erase", json=asked(removed=[2, 4, 2])).json()
    reader = sentiment.reader(TEXT)
    item = reader.read(TEXT)
    present = np.ones((1, reader.size(item)), dtype=bool)
    present[0, [2, 4]] = False
    cache = ForwardCache(reader)
    numbers = cache.request(reader.erased(item, present, None))
    cache.run()
    (row,) = cache.logits(numbers)
    assert [each["output"] for each in found["outputs"]] == row.tolist()
    before = sentiment(TEXT)
    assert found["output"] == row[before.target.index]
    assert found["before"] == pytest.approx(before.output, abs=1e-6)


def test_nothing_taken_out_changes_nothing(client):
    found = client.post("/api/erase", json=asked(removed=[])).json()
    assert found["output"] == pytest.approx(found["before"], abs=1e-6)


@pytest.mark.parametrize(("curve", "metric"), [("fill", "activation"), ("empty", "pruning")])
def test_a_curve_is_the_evaluations(client, sentiment, curve, metric):
    found = client.post("/api/curve", json=asked(curve=curve, method="gradient")).json()
    label = sentiment(TEXT).target.index
    expected = evaluate(sentiment, [(TEXT, label)], ["gradient"], [metric], every=True)
    assert found["area"] == pytest.approx(expected.rows()[0]["mean"], abs=1e-6)
    steps = len(found["present"])
    assert steps == len(found["fractions"]) == len(found["probabilities"])
    counts = [row.count("1") for row in found["present"]]
    assert counts == (list(range(steps)) if curve == "fill" else list(range(steps))[::-1])


def test_relevance_by_layer_sums_to_the_profile_of_the_study(client, sentiment):
    found = client.post("/api/layers", json=asked()).json()
    inputs, target = sentiment.prepare(TEXT)
    expected = relevance_sums(sentiment.subject, inputs, target, TABLES["lrp"])
    sums = {row["name"]: sum(row["units"]) + row["others"] for row in found["rows"][1:]}
    assert sums == pytest.approx({k: v for k, v in expected.blocks.items() if k != "input"})
    assert found["rows"][0]["units"] == sentiment(TEXT).to_dict()["scores"]


def test_attention_is_the_map_of_a_layer_and_a_head(client, sentiment):
    inputs, target = sentiment.prepare(TEXT)
    maps = capture(sentiment.subject, inputs, target, gradients=False).maps
    head = client.post("/api/attention", json=asked(layer=2, head=3)).json()
    mean = client.post("/api/attention", json=asked(layer=2, head=0)).json()
    assert np.array(head["weights"]) == pytest.approx(maps[2][0, 2].numpy(), abs=1e-5)
    assert np.array(mean["weights"]) == pytest.approx(maps[2][0].mean(0).numpy(), abs=1e-5)
    assert (head["layers"], head["heads"]) == (len(maps), maps[0].shape[1])
    assert head["queries"][0] == "[CLS]"
    told(client.post("/api/attention", json=asked(layer=99)), 422, "layer is a whole number")


def test_the_page_that_is_kept_is_the_command_lines(client, sentiment):
    one = client.post("/api/page", json=asked())
    assert one.text == sentiment(TEXT).to_html()
    assert "attachment" in one.headers["content-disposition"]
    assert "sandbox" in one.headers["content-security-policy"]
    two = client.post("/api/page", json=asked(methods=["lrp", "gradient"]))
    assert two.text == render(sentiment.compare(TEXT, ["lrp", "gradient"]))


def test_an_image_is_explained_and_its_patches_taken_out(client, digits):
    import base64

    data = packed()
    given = {"model": "digits", "image": data}
    picture = decoded(base64.b64decode(data), 1 << 20)
    found = client.post("/api/explain", json=given).json()
    assert found["explanation"] == json.loads(digits(picture).to_json())
    assert Explanation.from_dict(found["explanation"]).scene["kind"] == "image"
    moved = client.post("/api/erase", json={**given, "removed": [20, 21, 22]}).json()
    assert moved["output"] != moved["before"]
    assert len(client.post("/api/curve", json={**given, "curve": "fill"}).json()["present"]) == 50
    rows = client.post("/api/layers", json=given).json()["rows"]
    assert len(rows[1]["units"]) == 49
    assert rows[1]["others"] != 0  # the class token's
    keys = client.post("/api/attention", json=given).json()["keys"]
    assert keys[:2] == ["·", "0,0"]


def test_a_molecule_is_explained_and_its_atoms_taken_out(client, bace):
    smiles = MOLECULES[0]
    given = {"model": "bace", "text": smiles}
    found = client.post("/api/explain", json=given).json()
    assert found["explanation"] == json.loads(bace(smiles).to_json())
    assert found["explanation"]["scene"]["kind"] == "molecule"
    moved = client.post("/api/erase", json={**given, "removed": [0, 1]}).json()
    assert moved["output"] != moved["before"]
    steps = client.post("/api/curve", json={**given, "curve": "empty"}).json()["present"]
    assert len(steps) == len(found["explanation"]["units"]) + 1
    assert client.post("/api/layers", json=given).json()["rows"][0]["name"] == "input"
    told(client.post("/api/explain", json={**given, "text": "no molecule"}), 422)


def test_a_model_of_superpixels_takes_no_path(bace):
    from types import SimpleNamespace

    from wherefrom.web.request import question

    explainer = SimpleNamespace(
        reader=bace.reader,
        subject=SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(reads="superpixels"))),
    )
    given = {"model": "pieces", "text": "/etc/hostname"}
    with pytest.raises(InputError, match="sees images"):
        question(given, Shelf({"pieces": explainer}), Limits())


def test_a_model_that_writes_is_asked_about_its_next_token(gpt2, bytepairs):
    from wherefrom import Explainer
    from wherefrom.web.answers import Desk
    from wherefrom.web.request import question

    explainer = Explainer(gpt2, bytepairs)
    shelf, limits = Shelf({"gpt2": explainer}), Limits()
    given = {"model": "gpt2", "text": "I love the movie", "target": 5}
    wanted = question(given, shelf, limits)
    found = Desk(limits).predict(wanted, {})
    expected = explainer("I love the movie", target=5)
    shown = {each["index"]: each for each in found["outputs"]}
    assert len(shown) == 11  # the ten likeliest, and the one asked about
    assert shown[5]["output"] == pytest.approx(expected.output, abs=1e-6)
    assert shown[5]["probability"] == pytest.approx(expected.probability, abs=1e-7)
    assert shown[5]["label"] == expected.target.label
    assert Desk(limits).explain(wanted, {})["explanation"] == expected.to_dict()
    with pytest.raises(InputError, match='no "unk" token'):
        Desk(limits).erase(wanted, {"removed": [1]})


def test_about_tells_models_methods_and_limits(client):
    found = client.get("/api/about").json()
    takes = {each["name"]: each["takes"] for each in found["models"]}
    assert takes == {"sentiment": "text", "digits": "image", "bace": "text"}
    assert [each["name"] for each in found["methods"]] == list(METHODS)
    assert found["reports"] == []


# What should not be answered is refused, in JSON.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/etc"}, ["no model", "sentiment"]),
        ({"model": "../sentiment"}, ["no model"]),
        ({"model": 3}, ["model"]),
        ({"method": "captum:Saliency"}, ["no method"]),
        ({"method": ["lrp"]}, ["no method"]),
        ({"target": "POSITIV"}, ["no label", "POSITIVE"]),
        ({"target": 7}, ["no class 7"]),
        ({"target": True}, ["target"]),
        ({"target": [1]}, ["target"]),
        ({"against": -1}, ["no class -1"]),
        ({"truncate": "yes"}, ["truncate"]),
        ({"text": None}, ["text"]),
        ({"text": ""}, ["empty"]),
        ({"text": "x" * 20_001}, ["20,001", "20,000"]),
        ({"text": "word " * 3000}, ["tokens"]),
        ({"image": packed()}, ["reads text"]),
        ({"model": "digits"}, ["sees images"]),
        ({"text": "/etc/picture.png"}, ["opens no files"]),
        ({"model": "digits", "image": "####"}, ["base64"]),
        ({"model": "digits", "image": "aGVsbG8="}, ["no image"]),
        ({"model": "digits", "image": packed(kind="EPS")}, ["no image"]),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_question_that_makes_no_sense_is_told_why(client, change, words):
    told(client.post("/api/explain", json={**asked(), **change}), 422, *words)


@pytest.mark.parametrize(
    ("route", "change", "words"),
    [
        ("erase", {"removed": [99]}, ["removed", "0 to"]),
        ("erase", {"removed": "all"}, ["list"]),
        ("erase", {"removed": [True]}, ["removed"]),
        ("curve", {"curve": "up"}, ["fill, empty"]),
        ("attention", {"head": 1.5}, ["head"]),
        ("compare", {"methods": ["no_such"]}, ["no method"]),
        ("compare", {"methods": 3}, ["list of names"]),
        ("page", {"methods": {"lrp": 1}}, ["list of names"]),
    ],
)
def test_the_details_of_a_question_are_checked(client, route, change, words):
    told(client.post(f"/api/{route}", json={**asked(), **change}), 422, *words)


@pytest.mark.parametrize("field", ["text", "model", "method", "target"])
def test_half_of_a_character_is_told_and_harms_nothing(client, field):
    body = json.dumps(asked(**{field: "\ud83d"}))
    headers = {"content-type": "application/json"}
    told(client.post("/api/explain", content=body, headers=headers), 422)


def test_a_path_as_text_is_never_opened_as_an_image(client, tmp_path):
    path = tmp_path / "secret.png"
    import base64

    path.write_bytes(base64.b64decode(packed()))
    given = {"model": "digits", "text": str(path)}
    told(client.post("/api/explain", json=given), 422, "sees images")


def test_an_image_of_too_many_pixels_is_not_unpacked(make):
    client = make(Limits(pixels=100))
    given = {"model": "digits", "image": packed((40, 40))}
    told(client.post("/api/predict", json=given), 422, "40 × 40", "too large")


@pytest.mark.parametrize("name", POSTS)
def test_a_request_must_be_json_of_a_size(make, name):
    client = make(Limits(body=100))
    told(
        client.post(f"/api/{name}", content=b"{", headers={"content-type": "application/json"}), 400
    )
    told(client.post(f"/api/{name}", json=[1]), 422, "object")
    told(client.post(f"/api/{name}", data={"model": "sentiment"}), 415)
    told(client.post(f"/api/{name}", json=asked(text="x" * 200)), 413)
    many = (b"x" * 50 for _ in range(10))
    told(
        client.post(f"/api/{name}", content=many, headers={"content-type": "application/json"}),
        413,
    )
    told(client.get(f"/api/{name}"), 405)


def test_deeply_nested_json_is_no_crash(client):
    deep = b"[" * 100_000
    response = client.post(
        "/api/explain", content=deep, headers={"content-type": "application/json"}
    )
    told(response, 400)


def test_what_goes_wrong_inside_is_json_without_details(make, monkeypatch, caplog):
    from wherefrom.web.answers import Desk

    def broken(self, question, data):
        raise RuntimeError("the secret detail")

    monkeypatch.setattr(Desk, "predict", broken)
    response = make().post("/api/predict", json=asked())
    assert told(response, 500) == "internal"
    assert "secret" not in response.text
    assert "the secret detail" in caplog.text


def test_a_full_line_is_busy(make):
    gate = threading.Event()
    worker = Worker(60, 1)
    client = make(worker=worker)
    worker.submit(gate.wait)
    while not worker._line.empty():
        pass
    worker.submit(lambda: None)
    response = client.post("/api/predict", json=asked())
    assert told(response, 503, "busy") == "busy"
    assert response.headers["retry-after"] == "1"
    gate.set()
    worker.close()


def test_what_nobody_waits_for_any_more_is_not_begun(shelf, monkeypatch):
    from wherefrom.web.answers import Desk
    from wherefrom.web.app import make_app

    begun, gate, worker = [], threading.Event(), Worker(60, 4)
    monkeypatch.setattr(Desk, "predict", lambda *given: begun.append(1))
    worker.submit(gate.wait)
    said = [{"type": "http.request", "body": json.dumps(asked()).encode(), "more_body": False}]
    heard = []

    async def receive():
        return said.pop() if said else {"type": "http.disconnect"}

    async def send(message):
        heard.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/predict",
        "headers": headers,
        "query_string": b"",
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
    }
    asyncio.run(make_app(shelf, worker)(scope, receive, send))
    gate.set()
    worker.close()
    assert heard[0]["status"] == 499
    assert begun == []


def test_work_that_takes_too_long_is_stopped(make):
    client = make(Limits(seconds=0.0))
    assert told(client.post("/api/explain", json=asked()), 504, "too long") == "time"


def test_what_is_remembered_is_bounded(sentiment, shelf):
    from wherefrom.web.answers import Desk
    from wherefrom.web.request import question

    limits = Limits(kept=3)
    desk = Desk(limits)
    for word in ("good", "bad", "fine", "dull", "good"):
        desk.explain(question(asked(text=word), shelf, limits), {})
    assert len(desk._explained) == 3
    assert len(desk._readings) <= 8


# Who may ask, and what the browser may do.


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/static/heat.css", "/api/about", "/no"])
def test_every_answer_carries_the_policy(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


def test_the_page_has_nothing_inline_and_nothing_from_elsewhere(client):
    import re

    page = client.get("/").text
    assert '<script type="module" src=' in page
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=|https?://", page)
    for name in re.findall(r"/static/([\w.]+)", page):
        assert client.get(f"/static/{name}").status_code == 200
    for name in ("main.js", "heat.js", "dom.js", "save.js"):
        script = client.get(f"/static/{name}").text
        assert "innerHTML" not in script
        assert "insertAdjacentHTML" not in script


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/..%2fapp.py", "/static/nothing.js"])
def test_only_files_of_the_page_are_served(client, path):
    told(client.get(path), 404)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "", "127.0.0.1.evil.example"]
)
def test_another_name_for_this_server_is_refused(client, host):
    assert told(client.get("/api/about", headers={"host": host}), 421) == "host"


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1", "[::1]:8765"])
def test_loopback_names_are_let_in(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {
            "sec-fetch-site": "cross-site",
            "sec-fetch-mode": "navigate",
            "origin": "http://e.example",
        },
    ],
)
def test_a_page_of_another_site_may_not_ask(client, headers):
    assert told(client.post("/api/predict", json=asked(), headers=headers), 403) == "origin"


def test_a_link_from_another_site_may_lead_here(client):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=headers).status_code == 200
    assert client.get("/", headers={"origin": HOME}).status_code == 200


def test_a_token_is_asked_of_everything(make):
    client = make(token="abcdefgh12345678")
    for path in ("/", "/static/main.js", "/api/about", "/reports/x.html", "/?token=wrong"):
        assert told(client.get(path), 401) == "token"
    assert told(client.post("/api/predict?token=abcdefgh12345678", json=asked()), 401) == "token"
    assert client.get("/api/about", headers={HEADER: "abcdefgh12345678"}).status_code == 200
    told(client.get("/api/about", headers={HEADER: "äbcdefgh12345678".encode("latin-1")}), 401)
    told(client.get("/api/about", headers={"cookie": "wherefrom_token=no; ="}), 401)


def test_a_token_in_the_address_becomes_a_cookie(make):
    client = make(token="abcdefgh12345678")
    first = client.get("/?token=abcdefgh12345678")
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    assert client.get("/api/about").status_code == 200


@pytest.mark.parametrize(
    ("bound", "host", "let_in"),
    [
        ("0.0.0.0", "192.168.1.5:8765", True),
        ("0.0.0.0", "evil.example", False),
        ("::", "[fe80::1]:8765", True),
        ("box.local", "box.local:8765", True),
        ("box.local", "127.0.0.1:8765", False),
        ("127.0.0.1", "a]b[", False),
    ],
)
def test_hosts_that_name_this_server(bound, host, let_in):
    assert Gate(None, bound, "t").named(host) is let_in


def test_reports_are_those_of_the_folder_and_run_nothing(make, tmp_path):
    folder = tmp_path / "reports"
    (folder / "run").mkdir(parents=True)
    (folder / "a & b.html").write_text("<p>one</p>", encoding="utf-8")
    (folder / "run" / "report.html").write_text("<p>two</p>", encoding="utf-8")
    (folder / "data.csv").write_text("x", encoding="utf-8")
    outside = tmp_path / "outside.html"
    outside.write_text("<p>secret</p>", encoding="utf-8")
    (folder / "link.html").symlink_to(outside)
    client = make(reports=folder)
    assert set(client.get("/api/about").json()["reports"]) == {"a & b.html", "run/report.html"}
    found = client.get("/reports/run/report.html")
    assert found.text == "<p>two</p>"
    assert "sandbox" in found.headers["content-security-policy"]
    assert (
        "unsafe-inline" not in found.headers["content-security-policy"].partition("script-src")[2]
    )
    assert "allow-same-origin" not in found.headers["content-security-policy"]
    assert client.get("/reports/a%20%26%20b.html").text == "<p>one</p>"
    for name in ("../outside.html", "%2e%2e/outside.html", "link.html", "data.csv", "/etc/passwd"):
        told(client.get(f"/reports/{name}"), 404)


# Starting it.


def test_the_command_line_hands_on_what_it_is_given(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    import wherefrom.web.serve as module
    from wherefrom.cli import app

    seen = []
    monkeypatch.setattr(module, "serve", lambda *given, say: seen.append(given))
    options = ["-m", "a", "-m", "b", "--host", "::1", "--port", "5", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, ["serve", *options, "--open"], env={"WHEREFROM_TOKEN": "t" * 16})
    assert done.exit_code == 0, done.output
    assert seen == [(["a", "b"], "::1", 5, "t" * 16, tmp_path, True)]


def test_a_model_that_writes_begins_with_openings(gpt2, bytepairs):
    from wherefrom import Explainer
    from wherefrom.web.models import OPENINGS, Shown

    assert Shown("gpt2", Explainer(gpt2, bytepairs)).examples == OPENINGS


def test_models_go_by_short_names_that_differ(sentiment):
    shelf = opened(["a/model", "b/model", "c"], lambda source: sentiment)
    assert list(shelf.models) == ["model", "model (2)", "c"]


def test_embedded_models_are_shown_the_sentence_first_and_the_broken_left_out(
    monkeypatch, sentiment
):
    import wherefrom.web.serve as module
    from wherefrom.errors import ModelError

    def load(name):
        if name == "digits":
            raise ModelError("no Pillow here")
        return sentiment

    said = []
    monkeypatch.setattr(module, "load", load)
    names = list(module._embedded(said.append).models)
    assert names[0] == "sentiment"
    assert "digits" not in names
    assert said == ["wherefrom: digits is left out: no Pillow here"]


def test_no_model_is_an_error():
    with pytest.raises(InputError, match="no model"):
        Shelf({})


def test_what_cannot_be_served_is_told(tmp_path):
    import socket

    from wherefrom.errors import FileError

    with pytest.raises(FileError, match="no folder"):
        serve(reports=tmp_path / "none")
    with pytest.raises(InputError, match="16 letters"):
        serve(token="short")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="--port"):
        serve(port=taken.getsockname()[1])


def test_without_the_extra_the_install_line_is_told(monkeypatch):
    import wherefrom.web.serve as module
    from wherefrom.errors import MissingExtra

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"wherefrom\[web\]"):
        serve()


@pytest.mark.parametrize(("host", "asks"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_host_that_others_reach_gets_a_token(monkeypatch, sentiment, host, asks):
    import uvicorn

    import wherefrom.web.serve as module

    started = []
    monkeypatch.setattr(module, "load", lambda source: sentiment)
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda self, sockets: started.append(self.config.app)
    )
    said = []
    serve(["sentiment"], host=host, port=0, say=said.append)
    (gate,) = started
    assert gate.host == host
    assert (gate.token is not None) is asks
    assert ("?token=" in said[0]) is asks
    if asks:
        assert len(gate.token) == 32
        assert said[0].count(gate.token) == 1
