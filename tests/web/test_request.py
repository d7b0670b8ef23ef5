"""A request that cannot be answered is refused with a reason, before any model runs."""

import base64
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.web.helpers import JSON, bar_image, body, error_kind
from wherefrom.errors import InputError, MethodError, TooLong, WherefromError
from wherefrom.web.answers import Answers
from wherefrom.web.models import Models
from wherefrom.web.request import Body, EraseBody, Limits, MethodsBody, checked, parse_request


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "../sentiment"}, 'no model "../sentiment"; did you mean "sentiment"'),
        ({"model": 3}, "model: input should be a valid string"),
        ({"method": "captum:Saliency"}, 'no method "captum:Saliency"'),
        ({"method": ["lrp"]}, "method: input should be a valid string"),
        (
            {"target": True},
            "target: input should be a valid integer or input should be a valid string",
        ),
        (
            {"against": [1]},
            "against: input should be a valid integer or input should be a valid string",
        ),
        ({"truncate": "yes"}, "truncate: input should be a valid boolean"),
        ({"text": None}, "text: input should be a valid string"),
        ({"text": "x" * 20_001}, "20,001 characters; the page accepts up to 20,000"),
        ({"text": "/etc/picture.png"}, "the page opens no files"),
        ({"text_pair": "/etc/picture.png"}, "the page opens no files"),
        ({"text_pair": 3}, "text_pair: input should be a valid string"),
        ({"text": "x" * 15_000, "text_pair": "x" * 15_000}, "30,000 characters"),
        ({"image": bar_image()}, "takes text, not images"),
        ({"model": "digits"}, "takes images"),
        ({"model": "digits", "image": "####"}, "not valid base64"),
        ({"model": "digits", "image": "aGVsbG8="}, "image"),
        ({"model": "digits", "image": bar_image(kind="EPS")}, "image"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_wrong_field_is_refused_before_any_model_runs(models, changes, message):
    with pytest.raises(WherefromError) as refusal:
        parse_request(json.dumps(body(**changes)).encode(), Body, models, Limits())
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("route", "changes", "words"),
    [
        ("explain", {"model": "/etc"}, ["no model", "sentiment"]),
        ("explain", {"target": "POSITIV"}, ["no label", "POSITIVE"]),
        ("predict", {"target": 7}, ["no class 7"]),
        ("explain", {"against": -1}, ["no class -1"]),
        ("explain", {"text": ""}, ["empty"]),
        ("explain", {"text": "word " * 3000}, ["tokens"]),
        ("erase", {"removed": [99]}, ["removed must be an integer from 0 to"]),
        ("curve", {"curve": "up"}, ["curve: input should be 'activation' or 'pruning'"]),
        ("attention", {"head": 1.5}, ["head: input should be a valid integer"]),
        ("compare", {"methods": ["no_such"]}, ["no method"]),
        ("html", {"methods": {"lrp": 1}}, ["methods: input should be a valid list"]),
    ],
)
def test_every_route_refuses_in_json(client, route, changes, words):
    error_kind(client.post(f"/api/{route}", json=body(**changes)), 422, *words)


def test_lists_are_checked():
    assert checked(EraseBody, body(removed=[4, 2])).removed == [4, 2]
    assert checked(EraseBody, body()).removed == []
    for value in ("all", [True], [-1], [1.0]):
        with pytest.raises(InputError, match=r"^removed(\.0)?: input should be"):
            checked(EraseBody, body(removed=value))
    with pytest.raises(MethodError, match="no_such"):
        checked(MethodsBody, body(methods=["lrp", "no_such"]))


def test_every_method_counts_once(client):
    names = ["gradient", "gradient_x_input", "gradient"]
    lines = client.post("/api/compare", json=body(methods=names)).text.splitlines()
    assert [json.loads(line)["method"] for line in lines] == names[:2]


@pytest.mark.parametrize("field", ["text", "text_pair", "target"])
def test_half_of_a_character_is_refused(client, field):
    content = json.dumps(body(**{field: "\ud83d"}))
    error_kind(client.post("/api/explain", content=content, headers=JSON), 422)


def test_a_path_to_an_image_is_never_opened(client, tmp_path):
    path = tmp_path / "secret.png"
    path.write_bytes(base64.b64decode(bar_image()))
    request = {"model": "digits", "text": str(path)}
    error_kind(client.post("/api/explain", json=request), 422, "takes images")


def test_a_model_of_superpixels_takes_no_path(bace):
    config = SimpleNamespace(reads="superpixels")
    runner = replace(bace.runner, model=SimpleNamespace(config=config))
    explainer = SimpleNamespace(_reader=bace._reader, runner=runner)
    content = json.dumps({"model": "pieces", "text": "/etc/hostname"}).encode()
    with pytest.raises(InputError, match="takes images"):
        parse_request(content, Body, Models({"pieces": explainer}), Limits())


def test_an_image_of_too_many_pixels_is_not_decoded(models):
    content = json.dumps({"model": "digits", "image": bar_image((40, 40))}).encode()
    with pytest.raises(TooLong, match="40 × 40"):
        parse_request(content, Body, models, Limits(image_pixels=100))


@pytest.mark.parametrize("route", ["explain", "compare", "html"])
def test_a_request_must_be_json_within_the_size_limit(make_client, route):
    client, path = make_client(Limits(body_bytes=100)), f"/api/{route}"
    error_kind(client.post(path, content=b"{", headers=JSON), 400, "not valid JSON")
    error_kind(client.post(path, json=[1]), 422, "JSON object")
    error_kind(client.post(path, data={"model": "sentiment"}), 415, "application/json")
    error_kind(client.post(path, json=body(text="x" * 200)), 413, "up to 100 bytes")
    chunks = (b"x" * 50 for _ in range(10))  # sent without a content-length
    error_kind(client.post(path, content=chunks, headers=JSON), 413, "up to 100 bytes")
    error_kind(client.get(path), 405)


def test_a_request_may_have_8_megabytes(client):
    largest = 8 * 1024**2
    accepted = client.post("/api/explain", content=b"[1]".ljust(largest), headers=JSON)
    error_kind(accepted, 422, "JSON object")  # it was read
    refused = client.post("/api/explain", content=b"[1]".ljust(largest + 1), headers=JSON)
    error_kind(refused, 413, "up to 8,388,608 bytes")


def test_deeply_nested_json_does_not_crash(client):
    error_kind(client.post("/api/explain", content=b"[" * 100_000, headers=JSON), 400)


def test_an_internal_error_is_logged_and_its_details_are_not_sent(make_client, monkeypatch, caplog):
    def fail(self, request):
        raise RuntimeError("the secret detail")

    monkeypatch.setattr(Answers, "predict", fail)
    response = make_client().post("/api/predict", json=body())
    assert error_kind(response, 500, "terminal") == "internal"
    assert "secret" not in response.text
    assert "the secret detail" in caplog.text
