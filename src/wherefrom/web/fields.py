"""The fields of a request: one table that both checks requests and describes the API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wherefrom.errors import InputError
from wherefrom.evaluation.metrics import Activation, Metric, Pruning
from wherefrom.methods import METHODS

Schema = Mapping[str, Any]  # the few words of JSON Schema that `matches` knows
CURVES: dict[str, type[Metric]] = {"activation": Activation, "pruning": Pruning}

_TYPES: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "object": dict,
    "string": str,
}


@dataclass(frozen=True)
class Field:
    """A field of a request: what it may hold, and what it is for."""

    name: str
    schema: Schema
    meaning: str
    must: str  # completes the sentence "NAME must …"

    def check(self, value: Any) -> Any:
        """The value, if the field may hold it."""
        if not matches(value, self.schema):
            raise InputError(f"{self.name} must {self.must}.")
        return value

    def read(self, data: Mapping[str, Any]) -> Any:
        """The checked value in a request body, or the default of the field."""
        return self.check(data.get(self.name, self.schema.get("default")))


_INDEX = {"type": "integer", "minimum": 0, "default": 0}
_CLASS = {"type": ["integer", "string", "null"], "default": None}
_CLASS_MUST = "be the number or the name of a class"
FIELDS = {
    field.name: field
    for field in (
        Field("model", {"type": "string"}, "The name of a served model.", "be a string"),
        Field("text", {"type": "string"}, "A text or a SMILES, for such a model.", "be a string"),
        Field(
            "text_pair", {"type": ["string", "null"], "default": None},
            "The second text of a pair: a hypothesis, a context.", "be a text",
        ),
        Field("image", {"type": "string"}, "An image file in base64.", "be a string"),
        Field(
            "truncate", {"type": "boolean", "default": False},
            "Whether a text that is too long is cut.", "be true or false",
        ),
        Field("target", _CLASS, "The class to explain; the most likely by default.", _CLASS_MUST),
        Field("against", _CLASS, "A class whose output is subtracted.", _CLASS_MUST),
        Field(
            "method", {"type": "string", "enum": list(METHODS), "default": "lrp"},
            "The name of a method.", f"be one of: {', '.join(METHODS)}",
        ),
        Field(
            "methods",
            {
                "type": ["array", "null"],
                "items": {"type": "string", "enum": list(METHODS)},
                "default": None,
            },
            "The names of methods.", "be a list of names",
        ),
        Field(
            "removed",
            {"type": "array", "items": {"type": "integer", "minimum": 0}, "default": []},
            "The numbers of the units to erase.", "be a list of integers from 0 on",
        ),
        Field(
            "curve", {"type": "string", "enum": list(CURVES)},
            "The curve to draw.", f"be one of: {', '.join(CURVES)}",
        ),
        Field(
            "passages",
            {"type": "array", "items": {"type": "string"}, "default": []},
            "Texts that the answer may come from.", "be a list of texts",
        ),
        Field(
            "answer", {"type": ["string", "null"], "default": None},
            "The answer to explain; the model's own by default.", "be a text",
        ),
        Field(
            "max_new_tokens", {"type": "integer", "minimum": 1, "default": 48},
            "The longest answer that is generated.", "be an integer from 1 on",
        ),
        Field(
            "layer", {"type": "integer", "minimum": 1, "default": 1},
            "The number of a layer, from 1 on.", "be an integer from 1 on",
        ),
        Field(
            "texts",
            {"type": "array", "items": {"type": "string"}, "default": []},
            "Texts, each a row of the table.", "be a list of texts",
        ),
        Field(
            "text_pairs",
            {"type": ["array", "null"], "items": {"type": "string"}, "default": None},
            "The second text of each row, in a table of pairs.", "be a list of texts",
        ),
        Field(
            "head", _INDEX, "The number of a head from 1 on; 0 is the mean of all.",
            "be an integer from 0 on",
        ),
    )
}  # fmt: skip
COMMON = ("model", "text", "text_pair", "image", "truncate", "target", "against")
# what each route reads beside the common fields
ROUTE_FIELDS: dict[str, tuple[str, ...]] = {
    "predict": (),
    "explain": ("method",),
    "erase": ("removed",),
    "curve": ("method", "curve"),
    "layers": (),
    "attention": ("layer", "head"),
    "heads": (),
    "compare": ("methods",),
    "table": ("texts", "text_pairs"),
    "html": ("method", "methods"),
    "answer": ("method", "passages", "answer", "max_new_tokens"),
}


def matches(value: Any, schema: Schema) -> bool:
    """Whether a JSON value fits a schema of `type`, `enum`, `items` and `minimum`.

    >>> matches([0, 2], {"type": "array", "items": {"type": "integer", "minimum": 0}})
    True
    >>> matches(True, {"type": "integer"}), matches([], {"type": "string"})
    (False, False)
    """
    types = schema.get("type", [])
    names = [types] if isinstance(types, str) else types
    if not any(_is_of_type(value, name) for name in names):
        return False
    if "enum" in schema and value is not None and value not in schema["enum"]:
        return False
    if "minimum" in schema and isinstance(value, int) and value < schema["minimum"]:
        return False
    if "items" in schema and isinstance(value, list):
        return all(matches(item, schema["items"]) for item in value)
    return True


def _is_of_type(value: Any, name: str) -> bool:
    if isinstance(value, bool) and name != "boolean":  # an int for Python, not for JSON
        return False
    return isinstance(value, _TYPES[name])
