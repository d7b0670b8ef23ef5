"""Every causal family of the matrix: the ledger of an answer closes."""

import pytest

from benchmarks.family_answers import FROZEN, casts, families, worst_residual
from benchmarks.tiny import model as tiny


def test_the_matrix_has_causal_families():
    assert {"gpt2", "llama", "mamba", "qwen3_moe"} <= set(families())


@pytest.mark.slow
@pytest.mark.parametrize("family", families())
def test_the_ledger_of_an_answer_closes(family):
    made = tiny(family, "write")
    settings = {"gate": "frozen"} if family in FROZEN else {}
    assert worst_residual(made, **settings) < (1e-5 if casts(made) else 1e-9)
