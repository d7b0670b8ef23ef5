"""The benchmark of answers: cases, how scores become ranks of units, processes, tables."""

import re

import numpy as np
import pytest
import torch

from benchmarks.answers import figures, libraries, measure, tables
from benchmarks.answers.cases import Case, generated
from benchmarks.answers.figures import RANDOM, REFERENCE
from benchmarks.answers.libraries import DEFAULT, LOGPROB, PEERS, Library, Task
from benchmarks.answers.reference import Reference

SHORT = ("planted", "two_hop", "passages")


@pytest.mark.parametrize("kind", [*SHORT, "needles 256"])
def test_the_sources_hold_the_answer_and_no_other_unit_does(kind):
    cases = generated(kind)
    for _ in range(50):
        _, case = next(cases)
        number = case.own[-1]
        assert case.answer.endswith(number)
        assert [number in case.units[unit] for unit in case.sources][-1]
        assert sum(number in unit for unit in case.units) == 1
        text = case.prompt()
        assert [text[a:b] for a, b in case.spans()] == list(case.units)
        without = case.prompt(case.sources)
        assert number not in without
        assert without.endswith(case.question)


def test_the_first_hop_names_the_key_that_the_second_opens_a_door_with():
    _, case = next(generated("two_hop"))
    first, second = (case.units[unit] for unit in case.sources)
    colour = case.own[0].strip()
    assert f"has the {colour} key" in first
    assert second.startswith(f"The {colour} key opens door")
    assert sum(colour in unit for unit in case.units) == 2


def test_a_question_keeps_the_capital_of_the_town():
    _, case = next(generated("passages"))
    assert re.search(r"Answer: The \w+ of [A-Z]\w+ was built in$", case.question)


@pytest.mark.parametrize("kind", [*SHORT, "needles 256"])
def test_a_case_is_found_again_by_its_number(kind):
    several = dict(pair for pair, _ in zip(generated(kind), range(4), strict=False))
    assert next(generated(kind, 3)) == (3, several[3])
    assert several[0] != several[1]


def test_scores_of_tokens_are_added_up_by_unit():
    scores, units = [9.0, 1.0, -3.0, 2.0, 0.5, 7.0], [-1, 0, 0, 1, 1, -1]
    assert figures.by_unit(scores, units, 3, "signed").tolist() == [-2.0, 2.5, 0.0]
    assert figures.by_unit(scores, units, 3, "positive").tolist() == [1.0, 2.5, 0.0]
    assert figures.ranked(np.array([1.0, 2.5, 1.0])) == [1, 0, 2]


def test_recall_counts_every_source_and_the_area_is_a_mean_height():
    assert [figures.recall([2, 0, 1], (0, 1), k) for k in (1, 2, 3)] == [0.0, 0.5, 1.0]
    assert figures.area([0.0, -4.0, -6.0]) == -3.5


CASE = Case(("Bob has tea.", "Ann has rice."), "\nAnswer: Ann has", " rice", (1,), ("rice",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama whose tokens are the words of planted cases."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    texts = [CASE.prompt()]
    for _, (_, case) in zip(range(8), generated("planted"), strict=False):
        texts.append(case.prompt() + case.answer)
    words = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]", text)})
    vocabulary = {word: number for number, word in enumerate(["<unk>", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=len(vocabulary), max_position_embeddings=128,
        initializer_range=0.2,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).eval().save_pretrained(path)
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def reference(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return Reference(model, AutoTokenizer.from_pretrained(folder))


def test_tokens_belong_to_the_unit_that_they_lie_in_but_not_the_first(reference):
    expected = [-1, 0, 0, 0, 1, 1, 1, 1, -1, -1, -1, -1]
    assert reference.membership(CASE) == expected


def test_the_log_probability_is_that_of_the_answer_after_the_units_that_are_left(reference):
    ids = reference.ids(CASE.prompt((0,)))
    with torch.no_grad():
        logits = reference.model(torch.tensor([ids])).logits[0, -1].double()
    (answer,) = reference.ids(" rice")
    right, log_probability = reference.judged(CASE, (0,))
    assert log_probability == pytest.approx(float(logits.log_softmax(-1)[answer]), abs=1e-5)
    assert right == (int(logits.argmax()) == answer)


def test_a_case_counts_if_the_answer_goes_away_with_each_source(reference, monkeypatch):
    two = Case(CASE.units, CASE.question, " rice", (0, 1), ("rice",))
    for wrong_without, expected in (({(0,), (1,)}, True), ({(1,)}, False), ({(), (0,)}, False)):
        monkeypatch.setattr(
            Reference,
            "judged",
            lambda self, case, without=(), wrong=wrong_without: (tuple(without) not in wrong, 0.0),
        )
        assert reference.counts(two) is expected


def test_the_totals_of_units_are_the_relevance_of_their_sentences(folder, reference):
    import wherefrom

    task = Task(CASE.prompt(), " rice", reference.ids(CASE.prompt()), reference.ids(" rice"))
    outcome = libraries.of_wherefrom(folder)[DEFAULT](task)
    assert outcome.gap < 1e-4
    totals = figures.by_unit(outcome.scores, reference.membership(CASE), 2, "signed")
    sources = wherefrom.load(folder).answer(CASE.prompt(), task.answer_ids).sources("sentence")
    relevance = {source.text: source.relevance for source in sources}
    expected = [relevance["has tea."], relevance["Ann has rice."]]  # the first token is a line
    np.testing.assert_allclose(totals, expected, atol=1e-6)


class Fake(Library):
    """Explains at once, by pointing at the last unit."""

    def explain(self, name, task):
        if name == "FlashTrace, 1 hop":
            return {"error": "MemoryError: too long"}
        scores = np.linspace(-1, 1, len(task.prompt_ids)).tolist()
        return {"scores": scores, "gap": 1e-6, "seconds": 2.0, "span": 1.0, "mebibytes": 10.0}


def test_a_run_goes_on_where_its_report_ends_and_its_tables_name_what_is_missing(
    reference, monkeypatch
):
    monkeypatch.setattr(Reference, "counts", lambda self, case: True)
    report = {"generated": {}, "cases": {}, "missing": {"other": "ImportError: none"}}
    library, names = Fake(name="fake", methods=[DEFAULT, *PEERS]), [DEFAULT, *PEERS]
    saved = []
    for count in (2, 5):
        measure.run(
            [library], reference, {"planted": count}, report, {"planted": names},
            lambda: saved.append(1), 1e6,
        )  # fmt: skip
    measure.finish(reference, report, lambda: None)
    records = report["cases"]["planted"]
    assert [record["number"] for record in records] == [0, 1, 2, 3, 4]
    assert len(saved) == 5
    assert ["way" in record for record in records] == [False, True, True, True, False]
    entry = records[1]["methods"]
    assert len(entry[DEFAULT]["curve"]) == 1 + measure.DELETED
    first = figures.ranked(np.array(entry[DEFAULT]["signed"]))[0]
    assert entry[DEFAULT]["curve"][0] - entry[DEFAULT]["curve"][1] == pytest.approx(
        entry[REFERENCE]["signed"][first]
    )
    text = tables.markdown(report)
    assert "**planted**: 3 cases; 5 count of 5 generated" in text
    assert "- other: ImportError: none." in text
    assert "- FlashTrace, 1 hop, planted: MemoryError: too long." in text
    assert f"| {RANDOM} |" in text
    assert "| lrp, contrast | LXT CP-LRP | +0.00 [+0.00, +0.00] level" in text
    # a method that is added later is run on the cases that are there
    library.methods.append(LOGPROB)
    measure.fill([library], reference, report, {"planted": [*names, LOGPROB]}, lambda: None)
    assert all(LOGPROB in record["methods"] for record in records)
    assert not any("way" in record for record in records)  # its units are yet to be deleted
    measure.finish(reference, report, lambda: None)
    text = tables.markdown(report)
    assert "| these decide | 2 | +0.00 [+0.00, +0.00] level" in text
    assert "| the others | 3 |" in text
    assert "| FlashTrace" not in text


def test_a_library_that_is_not_there_says_so_and_one_that_is_explains(folder, monkeypatch):
    def missing(folder):
        raise ImportError("No module named 'peer'\nand more")

    def present(folder):
        return {"halves": lambda task: libraries.Outcome([0.5] * len(task.prompt_ids), None)}

    monkeypatch.setitem(libraries.LIBRARIES, "peer", missing)
    monkeypatch.setitem(libraries.LIBRARIES, "there", present)
    peer, there = Library(name="peer"), Library(name="there")
    try:
        peer.start(folder, 8.0)
        there.start(folder, 8.0)
        assert peer.problem == "ImportError: No module named 'peer'"
        result = there.explain("halves", Task("a b", " c", [1, 2], [3]))
        assert result["scores"] == [0.5, 0.5]
        assert result["seconds"] >= 0
        assert "KeyError" in there.explain("thirds", Task("a b", " c", [1, 2], [3]))["error"]
    finally:
        peer.stop()
        there.stop()
