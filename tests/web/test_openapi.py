"""The description of the API: complete, true, and a source of random requests that never fail."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.web.helpers import JSON, PAGE_HEADERS, bar_image, body, error_kind
from wherefrom.methods import METHODS
from wherefrom.web.app import Server
from wherefrom.web.request import ROUTES, Limits, describe
from wherefrom.web.security import Reports

FIELDS = sorted({name for kind, _, _ in ROUTES.values() for name in kind.model_fields})


@pytest.fixture(scope="module")
def description(models):
    return describe(models, Limits())


def schema_of(description, route):
    operation = description["paths"][f"/api/{route}"]["post"]
    return operation["requestBody"]["content"]["application/json"]["schema"]


def test_the_server_serves_its_description(client, description):
    response = client.get("/api/openapi.json")
    assert response.status_code == 200
    assert response.json() == json.loads(json.dumps(description))


def test_every_route_of_the_api_is_described(models, description):
    routes = Server(models, None, Limits(), Reports()).routes()
    served = {
        (route.path, method.lower())
        for route in routes
        if route.path.startswith("/api/")
        for method in route.methods - {"HEAD"}
    }
    described = {(path, method) for path, item in description["paths"].items() for method in item}
    assert described == served
    assert {path for path, method in described if method == "post"} == {
        f"/api/{route}" for route in ROUTES
    }


def test_the_description_names_models_methods_and_limits(models, description):
    explain = schema_of(description, "explain")["properties"]
    assert explain["model"]["enum"] == models.names
    assert explain["method"]["enum"] == ["auto", *METHODS]
    assert explain["text"]["maxLength"] == Limits().text_characters
    assert set(schema_of(description, "curve")["required"]) == {"model", "curve"}
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(description)))
    assert references == set(description["components"]["schemas"])


def test_a_refused_http_method_names_the_allowed_one(client):
    response = client.get("/api/explain")
    assert error_kind(response, 405) == "request"
    assert response.headers["allow"] == "POST"
    assert {name: response.headers[name] for name in PAGE_HEADERS} == PAGE_HEADERS


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["lrp", "sentiment", "activation", "CCO", "POSITIVE"]),
    lambda values: st.lists(values, max_size=4)
    | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=6,
)  # fmt: skip


def fitting(schema):
    """Values that a schema of the description allows."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(fitting, schema["anyOf"]))
    least = schema.get("minimum", schema.get("exclusiveMinimum", -4) + 1)
    strategies = {
        "array": lambda: st.lists(fitting(schema["items"]), max_size=3),
        "boolean": st.booleans,
        "integer": lambda: st.integers(least, 40),
        "null": st.none,
        "string": lambda: (
            st.sampled_from([*schema.get("examples", []), bar_image()]) | st.text(max_size=40)
        ),
    }
    return strategies[schema["type"]]()


@pytest.mark.parametrize("route", ROUTES)
@settings(max_examples=25, suppress_health_check=[*HealthCheck])
@given(data=st.data())
def test_a_random_request_is_answered_or_refused(client, description, route, data):
    """A small part of what `make -C tools fuzz` does: fields that fit, or one that does not."""
    schema = schema_of(description, route)
    request = {
        name: data.draw(fitting(field), label=name)
        for name, field in schema["properties"].items()
        if name in schema["required"] or data.draw(st.booleans())
    }
    odd = st.dictionaries(st.sampled_from(list(FIELDS)), ANY, max_size=1)
    request |= data.draw(st.just({}) | odd)
    if route == "compare" and not request.get("methods"):
        request["methods"] = ["gradient"]  # by default all methods run
    content = json.dumps(request).encode("utf-8", "surrogatepass")
    response = client.post(f"/api/{route}", content=content, headers=JSON)
    assert response.status_code in (200, 422), (request, response.text[:300])
    described = describe_statuses(description, route)
    assert str(response.status_code) in described
    if response.status_code == 422:
        assert set(response.json()["error"]) == {"kind", "message"}


def describe_statuses(description, route):
    return description["paths"][f"/api/{route}"]["post"]["responses"]


def test_a_request_by_the_examples_of_the_description_is_answered(client, description):
    for route in ROUTES:
        properties = schema_of(description, route)["properties"]
        request = body(text=properties["text"]["examples"][0], curve="pruning", methods=["lrp"])
        response = client.post(f"/api/{route}", json=request)
        if route == "answer":  # none of these models is a language model
            assert error_kind(response, 422, "not a language model") == "ModelError"
            continue
        assert response.status_code == 200, response.text
        media_types = describe_statuses(description, route)["200"]["content"]
        assert response.headers["content-type"] in media_types
