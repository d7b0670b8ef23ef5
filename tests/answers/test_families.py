"""Every causal family of the matrix: the ledger of an answer closes."""

import pytest

from benchmarks.family_answers import casts, closing, families, measure
from benchmarks.family_rows import verdict
from tests.helpers import family_model


def test_the_matrix_has_causal_families():
    assert {"gpt2", "llama", "mamba", "qwen3_moe"} <= set(families())


@pytest.mark.parametrize("family", ["olmo_hybrid", "qwen3_next"])
def test_the_ledger_of_an_answer_closes_on_recurrent_states(family):
    made = family_model(family, "write")
    residual, reach = closing(made)
    assert verdict(residual, casts(made), reach) == "closed", (residual, reach)


BOTH_WAYS = ("xlnet",)  # what later tokens add to an earlier part has no line


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", families())
def test_the_ledger_of_an_answer_closes(family):
    row = measure(family)
    assert row.verdict == ("open" if family in BOTH_WAYS else "closed"), row
