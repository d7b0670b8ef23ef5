"""Shapley values of the passages of a prompt."""

import pytest
import torch

from tests.oracles.shapley import by_subsets
from wherefrom.answers.prompt import Passage, Prompt


def test_passages_of_a_prompt_are_the_players_of_an_answer(talker):
    passages = [Passage("Paris moves.", "a"), Passage("The movie.", "b"), Passage("A P.", "c")]
    answer = talker.answer(
        Prompt("Who moves?", passages), " Paris", method="shapley", players="parts", of="logprob"
    )
    explanation, model = answer.of(), talker.runner.model
    start = answer.start
    ids = [*answer.attribution.prompt.ids, *answer.attribution.answer.ids]
    embedded = model.get_input_embeddings()
    fields = [unit.field for unit in explanation.units]
    kept_always = [i for i, unit in enumerate(explanation.units) if unit.special or i == 0]
    names = list(dict.fromkeys(f for i, f in enumerate(fields) if i not in kept_always))
    groups = [
        [i for i, f in enumerate(fields) if f == name and i not in kept_always] for name in names
    ]

    def value(present):
        missing = [i for player, g in enumerate(groups) if player not in present for i in g]
        with torch.no_grad():
            rows = embedded(torch.tensor([ids[:-1]])).clone()
            rows[0, missing] = embedded.weight.mean(0)
            logs = model(inputs_embeds=rows).logits[0].log_softmax(-1)
        return sum(logs[start - 1 + i, token] for i, token in enumerate(ids[start:]))

    expected = dict(zip(names, by_subsets(value, len(groups)), strict=True))
    sources = answer.sources("passage")
    assert {source.name for source in sources} == set(expected)
    assert len(expected) >= 4  # three passages and the question
    for source in sources:
        assert source.relevance == pytest.approx(expected[source.name], rel=1e-6, abs=1e-9)
        assert source.error == 0.0
    assert explanation.ledger.relative < 1e-9
    assert not explanation.errors.any()
    again = type(answer).from_json(answer.to_json())
    assert again.of() == explanation
    assert "± 0" in str(answer)
