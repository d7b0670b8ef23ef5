"""`explain_frame` on tables of pandas, as Spark and Dask call it."""

import numpy as np
import pytest

import wherefrom
from tests.corpus import planted
from tests.test_readme import ROOT, blocks
from wherefrom.errors import InputError
from wherefrom.runs.rows import FRAME, explanation_of

pytestmark = pytest.mark.ray
pandas = pytest.importorskip("pandas", reason="*** NO TEST OF explain_frame IS RUN: no pandas ***")
TEXTS = planted.texts(0)[:12]


@pytest.fixture(scope="module")
def explainer():
    return planted.explainer(0, 0.0)


def test_a_row_for_each_row_in_its_order_under_its_index(explainer):
    frame = pandas.DataFrame(
        {"key": list("abcdefghijklmn"), "text": [*TEXTS[:6], "", None, *TEXTS[6:]]},
        index=range(10, 24),
    )
    before = frame.copy()
    result = wherefrom.explain_frame(frame, explainer, id_column="key")
    pandas.testing.assert_frame_equal(frame, before)
    assert list(result.columns) == list(FRAME)
    assert result.index.equals(frame.index)
    assert result["id"].tolist() == frame["key"].tolist()
    assert result["reason"].notna().tolist() == [k in (6, 7) for k in range(14)]
    for text, (_, row) in zip(frame["text"], result.iterrows(), strict=True):
        if row["reason"] is None:
            alone = explainer(text)
            again = explanation_of(row)
            assert (again.units, again.target) == (alone.units, alone.target)
            np.testing.assert_allclose(again.scores, alone.scores, atol=1e-5)


def test_an_empty_table_has_the_types_of_a_full_one(explainer):
    full = wherefrom.explain_frame(pandas.DataFrame({"text": TEXTS[:2]}), explainer)
    empty = wherefrom.explain_frame(pandas.DataFrame({"text": []}), explainer)
    assert empty.dtypes.equals(full.dtypes)
    assert len(empty) == 0
    with pytest.raises(InputError, match="no column looks like the text"):
        wherefrom.explain_frame(pandas.DataFrame({"a": []}), explainer)
    with pytest.raises(InputError, match='no column "key"'):
        wherefrom.explain_frame(pandas.DataFrame({"text": []}), explainer, id_column="key")


class SparkLike:
    """What `mapInPandas` does with its function: an iterator of tables in, one out."""

    def __init__(self, parts):
        self.parts = parts

    def mapInPandas(self, function, schema):
        results = list(function(iter(self.parts)))
        names = [entry.split()[0] for entry in schema.split(", ")]
        assert all(list(result.columns) == names for result in results)
        return pandas.concat(results)


class DaskLike:
    """What `map_partitions` does with its function: every table in turn, of the types of meta."""

    def __init__(self, parts):
        self.parts, self._meta = parts, parts[0].head(0)

    def map_partitions(self, function, meta):
        results = [function(part) for part in self.parts]
        assert all(result.dtypes.equals(meta.dtypes) for result in results)
        return pandas.concat(results)


@pytest.mark.parametrize(
    ("engine", "kind"), [("mapInPandas", SparkLike), ("map_partitions", DaskLike)]
)
def test_the_examples_of_the_docs_run(engine, kind):
    examples = blocks(ROOT / "docs" / "scale.md", "python")
    code = next(example for example in examples if f"reviews.{engine}" in example)
    parts = [pandas.DataFrame({"text": ["a fine film", "dull"]}), pandas.DataFrame({"text": [""]})]
    space = {"reviews": kind(parts)}
    exec(code, space)
    result = space["explained"]
    assert len(result) == 3
    expected = wherefrom.load("sentiment")("a fine film")
    np.testing.assert_allclose(result.iloc[0]["scores"], expected.scores, atol=1e-4)
    assert "empty" in result.iloc[2]["reason"]
