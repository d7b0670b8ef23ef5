"""Real language models: what they know, and where they got it from."""

import re
import warnings

import numpy as np
import pytest

from tests.test_readme import ROOT, blocks
from wherefrom import Passage, Prompt, load
from wherefrom.errors import ModelError, NotComplete
from wherefrom.models.packaged import LANGUAGE_MODELS

pytestmark = pytest.mark.llm
COUNTRIES = {"France": " Paris", "Italy": " Rome", "Japan": " Tokyo"}


def loaded(name):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load(name)
    except ModelError as error:
        pytest.skip(f"*** NO TEST WITH {name} IS RUN: {error} ***")


@pytest.fixture(scope="module")
def smollm2():
    return loaded("smollm2")


@pytest.fixture(scope="module")
def gemma():
    return loaded("gemma3-270m")


def test_gemma_reads_from_its_first_token_on_and_cites_the_passage(gemma):
    answer = gemma.generate("The capital of Japan is", max_new_tokens=1)
    assert (answer.units[0].text, answer.text) == ("<bos>", " Tokyo")
    assert answer.of().ledger.relative < 1e-4
    passages = ["The code of Bob is 4821.", "The code of Ann is 7305.", "The code of Tom is 1964."]
    answer = gemma.answer(Prompt("What is the code of Ann?", passages), " The code of Ann is 7305.")
    (citation,), (verdict,) = answer.citations(), answer.verdicts()
    assert citation.supports[0].passage == "passage 2"
    assert verdict.signals["drop"] > 1


@pytest.mark.parametrize("country", COUNTRIES)
def test_a_capital_comes_from_its_country(smollm2, country):
    answer = smollm2.generate(f"The capital of {country} is", max_new_tokens=1)
    assert answer.text == COUNTRIES[country]
    assert answer.sources("word")[0].text == country
    assert answer.of().ledger.relative < 1e-4


def test_a_passage_that_holds_the_answer_is_cited(smollm2):
    passages = [
        "Tom moved to Oslo in 1990. He likes fish.",
        Passage("The red car belongs to Paul. It is fast.", "Cars"),
        "The password of the garden gate is banana.",
    ]
    prompt = Prompt("What is the password of the garden gate?", passages)
    answer = smollm2.generate(prompt, max_new_tokens=24)
    assert "banana" in answer.text
    assert answer.finished
    citation = answer.citations(check=True)[0]
    assert citation.supports[0].passage == "passage 3"
    assert max(citation.supports, key=lambda support: support.drop).passage == "passage 3"
    word = answer.sources("word", "banana")[0]
    assert (word.name, word.text) == ("passage 3", "banana")
    assert answer.sources("sentence", "banana")[0].text == passages[2]
    ledger = answer.of().ledger
    assert ledger.relative < 1e-5
    rows = answer.rows()
    np.testing.assert_allclose(
        sum(row.values for row in rows), answer.row().values, atol=1e-4 * abs(ledger.output)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        through = answer.of(multi_hop=True)
    assert through.ledger.relative < 1e-5
    assert abs(through.ledger.of("prompt")) > abs(ledger.of("prompt")) * 0.5


def test_a_gguf_file_is_read_as_it_is(smollm2):
    (file,) = LANGUAGE_MODELS["smollm2"].weights()
    raw = load(file.parent, gguf_file=file.name)
    answer = raw.generate("The capital of France is", max_new_tokens=1)
    assert answer.text == " Paris"
    same = smollm2.answer("The capital of France is", " Paris")
    np.testing.assert_allclose(answer.of().scores, same.of().scores, rtol=1e-3, atol=1e-3)


def test_against_another_capital(smollm2):
    answer = smollm2.answer("The capital of France is", " Paris", against="London")
    assert (answer.tokens[0].other, answer.of().target.against_label) == (" London", " London")
    assert answer.sources("word")[0].text == "France"


def test_integrated_gradients_close_from_the_mean_and_say_so_where_they_do_not(smollm2):
    for prompt, word in (
        ("The capital of France is", " Paris"),
        ("The opposite of hot is", " cold"),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", NotComplete)
            ledger = smollm2.answer(prompt, word, method="integrated_gradients").of().ledger
        rise = ledger.output - ledger.of("baseline")
        assert abs(ledger.residual) < 0.05 * abs(rise)
    with pytest.warns(NotComplete, match="use the mean as baseline"):
        zero = smollm2.answer("The capital of France is", " Paris", method="integrated_gradients",
                              baseline="zero").of()  # fmt: skip
    assert abs(zero.ledger.residual) > abs(zero.output)
    assert any("instead of f(x)" in warning for warning in zero.warnings)


def test_a_list_of_prompts_is_its_prompts_one_by_one(smollm2):
    prompts = [f"The capital of {country} is" for country in COUNTRIES]
    prompts.append("Once upon a time, the capital of Germany was")
    answers = smollm2.generate(prompts, max_new_tokens=4)
    for answer, prompt in zip(answers, prompts, strict=True):
        single = smollm2.generate(prompt, max_new_tokens=4)
        assert answer.text == single.text
        row, expected = answer.row(), single.row()
        size = np.abs(expected.values).max()
        np.testing.assert_allclose(row.values, expected.values, rtol=0, atol=1e-5 * size)
        assert answer.of().ledger.relative < 1e-5


def test_the_page_of_the_documentation_prints_what_it_shows(smollm2, capsys):
    page = ROOT / "docs" / "answers.md"
    names = {}
    for code in blocks(page, "python"):
        exec(code, names)

    def without_numbers(text):  # the last digit may differ from machine to machine
        return [re.sub(r"[-+]?[\d.]+", "#", line).split() for line in text.splitlines()]

    shown = [line[4:] for line in page.read_text("utf-8").splitlines() if line.startswith("    ")]
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 9
    for line in without_numbers(printed):
        assert line in without_numbers("\n".join(shown))
