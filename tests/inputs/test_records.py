"""Tables in memory are read as their rows, never as their column names."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from wherefrom import Explainer, evaluate, read_table
from wherefrom.errors import InputError
from wherefrom.inputs.records import as_inputs
from wherefrom.inputs.table import as_rows

TEXTS = ["good film", "dull and bad", "I love it"]
LABELS = [1, 0, 1]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


class Frame:
    """What a data frame of pandas can do, as far as it is asked."""

    columns = ("id", "review", "label")
    iloc = None

    def to_dict(self, orient):
        assert orient == "records"
        rows = zip(range(3), TEXTS, LABELS, strict=True)
        return [dict(zip(self.columns, row, strict=True)) for row in rows]

    def __iter__(self):
        return iter(self.columns)


class Data:
    """What a data set of the package datasets can do, as far as it is asked."""

    column_names = ("text", "label")

    def __iter__(self):
        return ({"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True))


def tables():
    """The same table in every form; those of a library only where it is installed."""
    records = [{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]
    found = {
        "records": records,
        "tuple of records": tuple(records),
        "iterator of records": iter(records),
        "columns": {"sentence": TEXTS, "label": LABELS},
        "a frame": Frame(),
        "a data set": Data(),
    }
    try:
        import pandas as pd
    except ImportError:
        pass
    else:
        found["pandas"] = pd.DataFrame({"id": [7, 8, 9], "Text": TEXTS, "label": LABELS})
        found["pandas, filtered"] = pd.concat([found["pandas"]] * 2).iloc[3:]
    try:
        import datasets
    except ImportError:
        pass
    else:
        data = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})
        found["datasets"], found["datasets, streamed"] = data, data.to_iterable_dataset()
        found["datasets, a slice"] = data[:3]
    try:
        import pyarrow as pa
    except ImportError:
        pass
    else:
        found["pyarrow"] = pa.table({"text": TEXTS, "label": LABELS})
    return found


@pytest.mark.parametrize("kind", tables())
def test_a_table_is_its_rows(kind, explainer):
    assert [e.text for e in explainer(tables()[kind], "random")] == TEXTS
    rows = as_rows(tables()[kind])
    assert (rows.texts, rows.labels) == (TEXTS, LABELS)
    if "iterator" not in kind and "streamed" not in kind:
        assert read_table(tables()[kind]).texts == TEXTS


def test_evaluate_counts_rows_and_not_columns(explainer):
    assert evaluate(explainer, Frame(), ["random"], ["activation"]).samples == 3


def lists():
    found = {
        "numpy": np.array(TEXTS),
        "objects": np.array(TEXTS, dtype=object),
        "generator": (text for text in TEXTS),
        "strings of numpy": [np.str_(text) for text in TEXTS],
        "values of a dict": dict(enumerate(TEXTS)).values(),
    }
    try:
        import pandas as pd
    except ImportError:
        return found
    found["series"] = pd.Series(TEXTS, index=[5, 6, 7])
    found["strings of pandas"] = pd.Series(TEXTS, dtype="string")
    return found


@pytest.mark.parametrize("kind", lists())
def test_a_column_of_texts_is_a_list_of_texts(kind, explainer):
    assert [e.text for e in explainer(lists()[kind], "random")] == TEXTS
    assert as_rows(lists()[kind]).texts == TEXTS


def test_a_column_of_a_data_set_is_a_list_of_texts(explainer):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS})
    assert [e.text for e in explainer(data["text"], "random")] == TEXTS


def test_a_dict_with_a_text_is_one_input(explainer):
    assert explainer({"text": "good film", "label": 1}, "random").text == "good film"


def test_a_row_with_a_list_is_one_input(explainer):
    row = {"text": "good film", "tokens": ["good", "film"]}
    assert explainer(row, "random").text == "good film"
    assert [e.text for e in explainer([row, row], "random")] == ["good film"] * 2


def test_what_pandas_has_for_missing_is_missing():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", pd.NA, "c"], "label": pd.array([1, 0, None], "Int64")})
    rows = as_rows(frame)
    assert (rows.texts, rows.labels) == (["a"], [1])
    assert rows.skipped == {"empty text": 1, "no label": 1}


def test_gaps_in_a_frame_are_counted_and_its_numbers_stay_indices():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", None, "c", "d"], "label": [1, 0, np.nan, 0]})
    rows = as_rows(frame)
    assert (rows.texts, rows.labels) == (["a", "d"], [1, 0])
    assert all(type(label) is int for label in rows.labels)
    assert rows.skipped == {"empty text": 1, "no label": 1}


REFUSED = {
    "no text column": ({"a": [1, 2], "b": [3, 4]}, r"no column looks like the text \(a, b\)"),
    "columns of several lengths": (
        {"text": ["a"], "label": [1, 2]},
        "several lengths: text 1, label 2",
    ),
    "a missing text": ([{"text": "a"}, {"text": None}], r"1 of 2 rows, first in row 1"),
    "a missing value": (np.array(["a", None], dtype=object), "1 of 2 elements have no text"),
    "two axes": (np.array([["a", "b"]]), r"one axis, got shape \(1, 2\)"),
    "bytes": (np.array([b"a"]), "array of bytes"),
    "a set": ({"a", "b"}, "cannot explain a set"),
    "splits": ({"train": Frame(), "test": Frame()}, r'several tables \(train, test\).*"train"'),
    "messages": ([{"role": "user", "content": "hi"}], "chat messages"),
    "no rows": (type("Empty", (Data,), {"__iter__": lambda self: iter(())})(), "no rows"),
    "numbers in the text column": ({"text": [1, 2]}, "no text in"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_list_of_texts_is_refused(kind, explainer):
    data, says = REFUSED[kind]
    with pytest.raises(InputError, match=says):
        explainer(data)


@pytest.mark.parametrize("data", [{"a", "b"}, {"x": 1}, 3, None, object(), "good", b"good"])
def test_evaluate_refuses_what_is_no_data(data, explainer):
    with pytest.raises(InputError):
        evaluate(explainer, data, ["random"])


def test_a_frame_without_a_text_column_is_read_by_the_column_that_is_named():
    table = {"body": TEXTS, "stars": [1, 2, 3]}
    with pytest.raises(InputError, match=r"read_table\(data, text_column=…\)"):
        as_rows(table)
    assert read_table(table, text_column="body", label_column="stars").labels == [1, 2, 3]


def test_a_dict_of_a_tokenizer_stays_as_it_is():
    encoded = {"input_ids": [[2, 5, 3]], "attention_mask": [[1, 1, 1]]}
    assert as_inputs(encoded) is encoded


def test_no_library_of_tables_is_imported():
    code = (
        "import sys\nfrom wherefrom.inputs.table import as_rows\n"
        "assert len(as_rows([{'text': 'good'}])) == 1\n"
        "print([n for n in ('pandas', 'datasets', 'polars', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_tensors_by_name_are_told_to_come_alone():
    with pytest.raises(InputError, match=r"dict of tensors \(x\).*Pass the one .*inputs\[\"x\"\]"):
        as_inputs({"x": torch.zeros(3, 2)})
