"""Answers come back from files; those of half precision are right too."""

import copy
import json

import numpy as np
import pytest
import torch

from benchmarks.tiny import model as tiny
from wherefrom import Explainer, Prompt
from wherefrom.answers.answer import Answer
from wherefrom.errors import FileError, InputError

PROMPT, ANSWER = [1, 17, 45, 8, 99, 23], [33, 71, 5, 60]
PASSAGES = ["the movie is lovely.", "Paris is the movie."]


@pytest.mark.filterwarnings("ignore:.*keep their relevance")
@pytest.mark.parametrize("kind", ["decoder", "encoder–decoder", "against", "without a ledger"])
def test_an_answer_comes_back_from_its_file(talker, translator, tmp_path, kind):
    prompt = Prompt("who is it?", PASSAGES)
    if kind == "decoder":
        answer = talker.generate(prompt, 5)
    elif kind == "encoder–decoder":
        answer = translator.answer("the movie is lovely. a film", "a good movie. bad film")
    elif kind == "against":
        answer = talker.answer(prompt, " it is Paris. love!", against=" it was")
    else:
        answer = talker.answer(prompt, " it is Paris.", method="gradient")
    answer.rows()
    text = answer.to_json(tmp_path / "answer.json")
    again = Answer.from_json(tmp_path / "answer.json")
    assert again.to_json() == text
    assert str(again) == str(answer)
    np.testing.assert_array_equal(again.matrix, answer.matrix)
    assert again.units == answer.units
    assert again.tokens == answer.tokens
    assert (again.against, again.finished) == (answer.against, answer.finished)
    assert again.of(0).to_dict() == answer.of(0).to_dict()
    assert again.sources("word", slice(0, 2)) == answer.sources("word", slice(0, 2))
    assert again.to_html() == answer.to_html()
    if kind != "without a ledger":
        assert again.of(multi_hop=True).to_dict() == answer.of(multi_hop=True).to_dict()


def test_sentences_of_the_user_come_back_from_the_file(talker):
    prompt = Prompt("who is it?", ["the movie; a film.", "Paris is the movie."])

    def split(text):
        return text.replace(";", ";|").split("|")

    answer = talker.answer(prompt, " it is; Paris.", sentences=split)
    again = Answer.from_json(answer.to_json())
    for one in (answer, again):
        assert [(span.text, span.start, span.end) for span in one.sentences()] == [
            ("it is;", 1, 7), ("Paris.", 8, 14)
        ]  # fmt: skip
        texts = {source.text for source in one.sources("sentence")}
        assert {"the movie;", "a film.", "Paris is the movie."} <= texts


def test_an_answer_by_captum_keeps_its_options(talker):
    pytest.importorskip("captum")
    answer = talker.answer("who is it?", " it is", method="captum:Saliency", abs=False)
    again = Answer.from_json(answer.to_json())
    assert again.attribution.method == answer.attribution.method
    assert again.of().label == answer.of().label == "captum:Saliency(abs=False)"


def test_what_was_not_explained_needs_the_model(talker):
    answer = talker.answer(Prompt("who is it?", PASSAGES), " it is Paris. love!")
    again = Answer.from_json(answer.to_json())
    assert again.of().to_dict() == answer.of().to_dict()
    with pytest.raises(InputError, match=r"not explained before it was saved.*answer\.rows\(\)"):
        again.of(0)
    with pytest.raises(InputError, match="matrix of the answer was not computed"):
        again.matrix  # noqa: B018
    answer.rows()
    whole = Answer.from_json(answer.to_json())
    assert whole.citations() == answer.citations()
    with pytest.raises(InputError, match="left out only with the model"):
        whole.citations(check=True)


def test_a_damaged_file_is_refused_in_a_line(talker, tmp_path):
    data = json.loads(talker.answer("the movie", " is").to_json())
    for change, message in (
        ({"schema": "other"}, "expected an answer of schema"),
        ({"prompt_ids": [1]}, "the answer is damaged"),
        ({"explained": {**data["explained"], "values": [1.0]}}, "the answer is damaged"),
        ({"measured": None}, "the answer is damaged"),
    ):
        with pytest.raises(FileError, match=message):
            Answer.from_dict({**data, **change})
    with pytest.raises(FileError, match="cannot read"):
        Answer.from_json(tmp_path / "gone.json")
    with pytest.raises(FileError, match="not JSON"):
        Answer.from_json("{")


# Half precision.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bart"])
def test_the_ledger_closes_to_the_precision_of_the_model(family, dtype):
    model = tiny(family, "translate" if family == "bart" else "write")
    exact = Explainer(model).answer(PROMPT, ANSWER, of="logit")
    half = Explainer(copy.deepcopy(model).to(dtype)).answer(PROMPT, ANSWER, of="logit")
    for part in (None, 1):
        ledger = half.of(part).ledger
        size = sum(abs(line.value) for line in ledger.lines)
        assert abs(ledger.residual) < 4 * torch.finfo(dtype).eps * size
        expected = exact.of(part).output
        assert ledger.output == pytest.approx(expected, abs=8 * torch.finfo(dtype).eps * size)
