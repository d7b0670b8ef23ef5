"""Random models that write: a language model and an encoder–decoder, with their tokenizers."""

import pytest

from benchmarks.tiny import model as tiny
from wherefrom import Explainer


@pytest.fixture(scope="module")
def talker(bytepairs):
    """A random model that reads the bytes of a text."""
    model = tiny("llama", "write", vocab_size=len(bytepairs), max_position_embeddings=512)
    return Explainer(model, bytepairs)


@pytest.fixture(scope="module")
def translator(wordpiece):
    """A random model whose texts end with [SEP], as those of an encoder do."""
    model = tiny("bart", "translate", vocab_size=len(wordpiece), decoder_start_token_id=2,
                 bos_token_id=2, eos_token_id=3)  # fmt: skip
    return Explainer(model, wordpiece)
