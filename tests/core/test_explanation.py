"""The result: frozen, and the same again from JSON."""

import dataclasses
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wherefrom import Explainer, Explanation
from wherefrom.core.explanation import SCHEMA, Ledger, Line, TargetInfo, Unit
from wherefrom.errors import FileError, InputError

finite = st.floats(allow_nan=False, allow_infinity=False)
small = st.floats(allow_nan=False, allow_infinity=False, width=32)
whole = st.none() | st.integers(0, 99)
units = st.builds(Unit, st.text(), whole, whole, st.booleans(), whole, st.sampled_from(["", "d"]))


@st.composite
def explanations(draw):
    some_units = tuple(draw(st.lists(units, max_size=5)))
    numbers = st.lists(small, min_size=len(some_units), max_size=len(some_units)).map(np.float32)
    return Explanation(
        units=some_units,
        scores=draw(numbers),
        target=draw(st.builds(TargetInfo, st.integers(0, 9), st.text(), whole, st.none(), whole)),
        output=draw(finite),
        probability=draw(st.none() | st.floats(0, 1)),
        method=draw(st.text()),
        settings=draw(st.dictionaries(st.text(), st.integers() | st.text() | finite, max_size=2)),
        ledger=draw(
            st.none()
            | st.builds(
                Ledger,
                st.lists(st.builds(Line, st.text(), st.text(), finite), max_size=3).map(tuple),
                finite,
            )
        ),
        parts=draw(st.dictionaries(st.text(), numbers, max_size=2)),
        text=draw(st.none() | st.text()),
        model=draw(st.text()),
        versions=draw(st.dictionaries(st.text(), st.text(), max_size=2)),
    )


def same(a, b):
    assert a.to_dict() == b.to_dict()
    for field in dataclasses.fields(Explanation):
        if field.name not in ("scores", "parts"):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert a.scores.dtype == b.scores.dtype == np.float32
    assert a.scores.tobytes() == b.scores.tobytes()
    assert {k: v.tobytes() for k, v in a.parts.items()} == {
        k: v.tobytes() for k, v in b.parts.items()
    }


@settings(max_examples=80)
@given(explanation=explanations())
def test_back_from_json_is_the_same(explanation):
    same(explanation, Explanation.from_json(explanation.to_json()))


@pytest.fixture(scope="module")
def explanation(bert, wordpiece):
    return Explainer(bert, wordpiece)("The film is good, not dull.")


def test_back_from_a_file_is_the_same(explanation, tmp_path):
    path = tmp_path / "found.json"
    assert explanation.to_json(path) == path.read_text(encoding="utf-8")
    same(explanation, Explanation.from_json(path))
    same(explanation, Explanation.from_json(str(path)))


def test_json_has_the_keys_of_its_schema(explanation):
    data = json.loads(explanation.to_json())
    wanted = {
        "schema",
        "method",
        "units",
        "scores",
        "target",
        "output",
        "probability",
        "ledger",
    }
    assert wanted <= set(data)
    assert data["schema"] == SCHEMA == "wherefrom/explanation/1"
    assert set(data["ledger"]) == {"lines", "output", "residual"}
    assert set(data["ledger"]["lines"][0]) == {"label", "kind", "value"}
    assert data["method"]["name"] == "secant"
    total = sum(line["value"] for line in data["ledger"]["lines"])
    assert data["ledger"]["residual"] == data["output"] - total
    assert len(data["units"]) == len(data["scores"])


def test_explanation_is_frozen(explanation):
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.output = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.ledger.output = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.units[0].text = ""


def test_top_names_the_largest_and_leaves_special_tokens_out(explanation):
    top = explanation.top(3)
    plain = [
        (unit.text, float(score))
        for unit, score in zip(explanation.units, explanation.scores, strict=True)
        if not unit.special
    ]
    assert top == sorted(plain, key=lambda pair: -abs(pair[1]))[:3]


def test_a_ledgers_residual_and_its_share():
    ledger = Ledger((Line("a", "word", 1.5), Line("b", "bias", 2.0)), 4.0)
    assert (ledger.total, ledger.residual, ledger.relative) == (3.5, 0.5, 0.125)
    assert (ledger.of("bias"), ledger.of("word", "bias"), ledger.of("type")) == (2.0, 3.5, 0)


def test_its_repr_is_one_line(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    found = explainer("the film is good", target="good")
    assert repr(found) == f"<Explanation good {found.output:+.3f} by secant(root=unk), 6 units>"


UNKNOWN = "The tokenizer knows none of these words, so the prediction does not depend on them."


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("the film is good.", ()),
        ("привет мир", (UNKNOWN,)),
        ("привет мир.", (UNKNOWN,)),
        ("привет good мир", ("2 of 3 words are unknown to the tokenizer.",)),
        ("мир good", ("1 of 2 words is unknown to the tokenizer.",)),
        ("good [UNK]", ()),  # the token itself
    ],
)
def test_words_that_the_tokenizer_does_not_know_are_told(text, warning, bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    assert explainer(text).warnings == warning
    together = explainer(["the film", text])
    assert [one.warnings for one in together] == [(), warning]


def test_words_need_the_text(bert):
    with pytest.raises(InputError, match="have no word indices"):
        Explainer(bert)([2, 5, 3]).words()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("{}", "an explanation of schema"),
        ('{"schema": "wherefrom/explanation/9"}', "wherefrom/explanation/9"),
        ('{"schema": "wherefrom/explanation/1"}', "damaged"),
    ],
)
def test_damaged_json_is_told(text, says):
    with pytest.raises(FileError, match=says):
        Explanation.from_json(text)


def test_other_files_are_told(tmp_path):
    with pytest.raises(FileError, match="cannot read"):
        Explanation.from_json(tmp_path / "nowhere.json")
    (tmp_path / "number.json").write_text("1")
    for read in (Explanation.from_json, Explanation.list_from_json):
        with pytest.raises(FileError, match=r"number\.json: expected an explanation of schema"):
            read(tmp_path / "number.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(FileError, match=r"list\.json is a list of 0 results"):
        Explanation.from_json(tmp_path / "list.json")
    with pytest.raises(FileError, match="an explanation of schema"):
        Explanation.list_from_json("[1]")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"bytes\.json"):
        Explanation.from_json(tmp_path / "bytes.json")


JUNK = [None, 1, "x", [], {}, [1], {"a": 1}, [[]]]


@pytest.mark.parametrize(
    "key", ["units", "scores", "parts", "target", "output", "ledger", "method", "settings"]
)
def test_a_damaged_entry_is_told_or_harmless(key, explanation):
    for junk in JUNK:
        data = explanation.to_dict()
        if key == "settings":
            data["method"]["settings"] = junk
        else:
            data[key] = junk
        with suppress(FileError):
            read = Explanation.from_dict(data)
            assert str(read)  # what is taken can be shown
            assert read.to_html()


def test_a_missing_score_is_told(explanation):
    data = explanation.to_dict()
    data["scores"] = data["scores"][:-1]
    with pytest.raises(FileError, match=r"units but \d+ scores"):
        Explanation.from_dict(data)


def test_a_place_that_cannot_be_written_is_told(explanation, tmp_path):
    for write in (explanation.to_json, explanation.to_html):
        with pytest.raises(FileError, match="cannot write"):
            write(tmp_path / "no folder" / "found")


def test_a_list_of_explanations_comes_back_as_a_list(explanation, tmp_path):
    one = explanation.to_json()
    for text in (f"[{one}, {one}]", f" \n[{one},{one}]"):
        (tmp_path / "list.json").write_text(text, encoding="utf-8")
        for source in (text, tmp_path / "list.json", str(tmp_path / "list.json")):
            both = Explanation.list_from_json(source)
            assert [e.to_json() for e in both] == [one, one]
            with pytest.raises(FileError, match=r"a list of 2 results: .*list_from_json"):
                Explanation.from_json(source)
    assert [e.to_json() for e in Explanation.list_from_json(one)] == [one]
