"""Every causal family of the matrix: the ledger of an answer closes."""

import pytest

from benchmarks.family_answers import casts, causal, closing, families
from benchmarks.family_rows import verdict
from tests.helpers import family_model


def test_the_matrix_has_causal_families():
    assert {"gpt2", "llama", "mamba", "qwen3_moe"} <= set(families())


@pytest.mark.parametrize("family", ["olmo_hybrid", "qwen3_next", "recurrent_gemma"])
def test_the_ledger_of_an_answer_closes_on_recurrent_states(family):
    made = family_model(family, "write")
    residual, reach = closing(made)
    assert verdict(residual, casts(made), reach) == "closed", (residual, reach)


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
def test_the_ledger_of_an_answer_closes(family):
    made = causal(family)
    residual, reach = closing(made)
    assert verdict(residual, casts(made), reach) == "closed", (residual, reach)
