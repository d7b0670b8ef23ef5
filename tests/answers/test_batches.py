"""Answers to several prompts: what a batch says of each is what the prompt alone says."""

import copy
import inspect
import warnings
from functools import cache

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel

from benchmarks.tiny import model as tiny
from tests.answers.test_passes import Passes
from tests.helpers import assert_unchanged
from wherefrom import Explainer, Prompt
from wherefrom.answers import batches
from wherefrom.core.runner import RowsUnclear
from wherefrom.errors import InputError, NotEnoughMemory, SamplesRunAlone
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.testing import snapshot

# prompts and answers of different lengths; the longest prompt has not the longest answer
PROMPTS = [[1, 17, 45, 8, 99, 23], [1, 7], [1, 5, 9, 11, 44, 3, 76, 12, 13], [1, 30, 31, 32]]
ANSWERS = [[33, 71, 5, 60], [12], [13, 14], [50, 40, 41, 42, 43, 44]]
WRITERS = ("llama", "gpt2", "opt", "bloom", "mixtral", "mamba")
TRANSLATORS = ("t5", "bart")
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-9}
NARROW = ("llama", "mixtral", "mamba", "t5")  # their norms are float32 within


@cache
def explainer(family, dtype=torch.float32):
    task = "translate" if family in TRANSLATORS else "write"
    return Explainer(copy.deepcopy(tiny(family, task)).to(dtype))


def assert_same_row(row, expected, bound):
    """Equal beside the largest of the terms."""
    size = max(float(np.abs(expected.values).max()), abs(expected.output))
    np.testing.assert_allclose(row.values, expected.values, rtol=0, atol=bound * size)
    assert row.output == pytest.approx(expected.output, abs=bound * size)
    assert (row.lines is None) == (expected.lines is None)
    for key in {*(row.lines or {}), *(expected.lines or {})}:
        value = (row.lines or {}).get(key, 0.0)
        assert value == pytest.approx((expected.lines or {}).get(key, 0.0), abs=bound * size)


def assert_closed(row, bound):
    terms = [*np.abs(row.values), *map(abs, row.lines.values()), abs(row.output)]
    assert abs(row.residual) < bound * sum(terms)


@pytest.mark.parametrize(
    ("family", "of", "dtype"),
    [
        (family, of, list(BOUNDS)[(i + k) % 2])  # every pair of two of them
        for i, family in enumerate([*WRITERS, *TRANSLATORS])
        for k, of in enumerate(["contrast", "logit", "logprob"])
    ],
    ids=str,
)
def test_a_batch_is_its_prompts_one_by_one(family, dtype, of):
    own, bound = explainer(family, dtype), BOUNDS[dtype]
    answers = own.answer(PROMPTS, ANSWERS, of=of)
    assert own._reader("").tried["padding"] is True
    for answer, prompt, ids in zip(answers, PROMPTS, ANSWERS, strict=True):
        single = own.answer(prompt, ids, of=of)
        assert [token.id for token in answer.tokens] == ids
        assert answer.measured.others == single.measured.others
        for name in ("logits", "log_probabilities", "other_log_probabilities"):
            pairs = getattr(answer.measured, name), getattr(single.measured, name)
            np.testing.assert_allclose(*pairs, rtol=bound, atol=bound)
        assert_same_row(answer.row(), single.row(), bound)
        assert_closed(answer.row(), 1e-6 if family in NARROW else bound)
        assert answer.units == single.units
        # further parts come from a pass of their own
        assert_same_row(answer.row(0), single.row(0), bound)
    assert_same_row(answers[0].row(slice(1, 3)), own.answer(PROMPTS[0], ANSWERS[0], of=of)
                    .row(slice(1, 3)), bound)  # fmt: skip


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_x_input"])
def test_the_first_spans_of_a_batch_take_one_forward_and_one_backward_pass(method, monkeypatch):
    own = Explainer(tiny("llama", "write"))
    # finds out once that the model ignores padding and keeps samples apart
    own.answer(PROMPTS[:2], ANSWERS[:2], method=method)
    passes = Passes(own.runner.model, monkeypatch)
    answers = own.answer(PROMPTS, ANSWERS, method=method)
    assert passes.taken() == (1, 1)
    explanations = [answer.of() for answer in answers]
    assert passes.taken() == (0, 0)
    answers[2].of(0)
    assert passes.taken() == (1, 1)
    assert [len(e.units) for e in explanations] == [9, 2, 10, 9]
    own.answer(PROMPTS, ANSWERS, method=method, batch_size=2)
    assert passes.taken() == (2, 2)


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_a_method_that_needs_other_passes_is_run_on_batches_too(family):
    own = explainer(family, torch.float64)
    for method, settings in (("integrated_gradients", {"steps": 4}), ("gradient", {})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few steps do not add up
            answers = own.answer(PROMPTS, ANSWERS, method=method, **settings)
            for answer, prompt, ids in zip(answers, PROMPTS, ANSWERS, strict=True):
                single = own.answer(prompt, ids, method=method, **settings)
                assert_same_row(answer.row(), single.row(), 1e-9)


def test_the_token_at_which_two_answers_differ_is_the_first_span(monkeypatch):
    own = explainer("llama")
    others = [[33, 72], [15], None, [50, 40, 41, 42, 43, 45]]
    answers = own.answer(PROMPTS, ANSWERS, others, of="logit")
    passes = Passes(own.runner.model, monkeypatch)
    for answer, prompt, ids, other in zip(answers, PROMPTS, ANSWERS, others, strict=True):
        row = answer.row()
        assert passes.taken() == (0, 0)
        single = own.answer(prompt, ids, other, of="logit")
        assert answer.against == single.against
        assert answer.explained == single.explained
        assert_same_row(row, single.row(), 1e-5)
        passes.taken()


def test_prompts_of_one_token_are_not_taken_for_the_whole_output():
    """As many tokens in the longest answer as there are places in the batch."""
    for family in ("gpt2", "bloom"):
        own = Explainer(tiny(family, "write"), forward=lambda model, x: model(**x).logits)
        prompts, texts = [[1], [1, 7, 9]], [[5, 6, 7, 8], [10, 11]]
        for answer, prompt, ids in zip(own.answer(prompts, texts), prompts, texts, strict=True):
            assert_same_row(answer.row(), own.answer(prompt, ids).row(), 1e-5)


def test_a_batch_that_memory_does_not_suffice_for_is_halved(monkeypatch):
    own = explainer("llama")
    sizes, graph_of = [], ForwardGraph.of

    def counted(table, case, *args, **kwargs):
        sizes.append(len(case.batch))
        if len(case.batch) > 2:
            raise NotEnoughMemory(2e9, 1e9)
        return graph_of(table, case, *args, **kwargs)

    monkeypatch.setattr(ForwardGraph, "of", staticmethod(counted))
    answers = own.answer(PROMPTS, ANSWERS)
    assert sizes == [4, 2, 2]
    monkeypatch.undo()
    for answer, prompt, ids in zip(answers, PROMPTS, ANSWERS, strict=True):
        assert_same_row(answer.row(), own.answer(prompt, ids).row(), 1e-5)
    with pytest.raises(NotEnoughMemory, match="lrp"):
        own.answer(PROMPTS, ANSWERS, memory=1000)


def test_rows_that_cannot_be_told_apart_are_explained_one_by_one(monkeypatch):
    own, scores = explainer("llama"), ForwardGraph.scores

    def unclear(graph, *args, **kwargs):
        if len(graph.case.batch) > 1:
            raise RowsUnclear("a call mixes its samples")
        return scores(graph, *args, **kwargs)

    monkeypatch.setattr(ForwardGraph, "scores", unclear)
    with pytest.warns(SamplesRunAlone, match="mixes its samples; the 4 inputs"):
        answers = own.answer(PROMPTS, ANSWERS)
    for answer, prompt, ids in zip(answers, PROMPTS, ANSWERS, strict=True):
        assert_same_row(answer.row(), own.answer(prompt, ids).row(), 1e-5)


def test_long_prompts_share_no_batch_unless_its_size_is_given(monkeypatch):
    own, sizes, policy = explainer("llama"), [], batches.split_on_failure

    def counted(indices, *args, **options):
        sizes.append(len(indices))
        return policy(indices, *args, **options)

    monkeypatch.setattr(batches, "split_on_failure", counted)
    monkeypatch.setitem(batches._TOKENS, "cpu", 20)
    prompts, texts = [*PROMPTS, [1, 8]], [*ANSWERS, [9]]
    own.answer(prompts, texts)
    assert sizes == [2, 2, 1]  # 2 × 2 tokens, 2 × 9, and 10
    sizes.clear()
    own.answer(prompts, texts, batch_size=5)
    assert sizes == [5]


# Generated.


class Generations:
    """Counts the prompts of each call of a model's `generate`."""

    def __init__(self, model, monkeypatch):
        self.sizes = []
        generate = type(model).generate

        def counted(own, ids, *args, **kwargs):
            self.sizes.append(len(ids))
            return generate(own, ids, *args, **kwargs)

        counted.__signature__ = inspect.signature(generate)
        monkeypatch.setattr(type(model), "generate", counted)

    def taken(self):
        sizes, self.sizes = self.sizes, []
        return sizes


@pytest.mark.parametrize("family", [*WRITERS, *TRANSLATORS])
def test_generated_answers_of_a_batch_are_those_of_single_prompts(family, monkeypatch):
    own = explainer(family)
    model = own.runner.model
    before = snapshot(model)
    count = Generations(model, monkeypatch)
    answers = own.generate(PROMPTS, 6)
    assert count.taken() == [1, 2, 4]  # one and two of them to try whether padding is ignored
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        single = own.generate(prompt, 6)
        assert [token.id for token in answer.tokens] == [token.id for token in single.tokens]
        assert answer.finished == single.finished
        assert answer.attribution.prompt == single.attribution.prompt
        assert_same_row(answer.row(), single.row(), 1e-5)
    count.taken()
    own.generate(PROMPTS, 2)
    assert count.taken() == [4]
    assert_unchanged(before, snapshot(model))


def test_an_answer_of_a_batch_ends_at_its_own_stop_token():
    own = explainer("llama")
    stop = own.generate(PROMPTS[0], 6).tokens[2].id
    options = {"generation": {"eos_token_id": stop}}
    prompts = [prompt for prompt in PROMPTS if own.generate(prompt, 1).tokens[0].id != stop]
    singles = [own.generate(prompt, 6, **options) for prompt in prompts]
    together = own.generate(prompts, 6, **options)
    assert len({len(single) for single in singles}) > 1
    for answer, single in zip(together, singles, strict=True):
        assert [t.id for t in answer.tokens] == [t.id for t in single.tokens]
        assert answer.finished == single.finished


def test_samples_and_penalties_do_not_depend_on_the_other_prompts(monkeypatch):
    own = explainer("llama")
    count = Generations(own.runner.model, monkeypatch)
    for options in (
        {"temperature": 1.0, "seed": 3},
        {"generation": {"repetition_penalty": 1.3}},
        {"generation": {"num_beams": 2}},
    ):
        singles = [own.generate(prompt, 4, **options) for prompt in PROMPTS]
        count.taken()
        for answer, single in zip(own.generate(PROMPTS, 4, **options), singles, strict=True):
            assert [t.id for t in answer.tokens] == [t.id for t in single.tokens]
        assert count.taken() == [1, 1, 1, 1]


class Deaf(GPT2LMHeadModel):
    """Reads padding as if it were text."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **others):
        return super().forward(input_ids, **others)


def test_a_model_that_does_not_ignore_padding_is_run_for_each_prompt(monkeypatch):
    own = Explainer(Deaf(tiny("gpt2", "write").config).eval())
    singles = [own.generate(prompt, 4) for prompt in PROMPTS]
    count = Generations(own.runner.model, monkeypatch)
    answers = own.generate([*PROMPTS, [1, 8]], 4)
    assert count.taken() == [1, 2, 2, 1, 1, 1]  # two are of one length
    for answer, single in zip(answers, singles, strict=False):
        assert [t.id for t in answer.tokens] == [t.id for t in single.tokens]


def test_a_text_that_is_told_as_it_grows_is_generated_alone(talker, monkeypatch):
    count, told = Generations(talker.runner.model, monkeypatch), []
    talker.generate(["the movie", "is it"], 3, on_text=told.append)
    assert count.taken() == [1, 1]
    assert len(told) == 6


# Texts.


def test_prompts_of_parts_and_their_sources_come_in_the_order_of_the_list(talker):
    prompts = [
        Prompt("who is it?", ["the movie is lovely.", "Paris is the movie."]),
        Prompt("is it?"),
        "the movie",
    ]
    texts = [" it is Paris.", " love!", " is it"]
    for answer, prompt, text in zip(talker.answer(prompts, texts), prompts, texts, strict=True):
        single = talker.answer(prompt, text)
        assert (answer.text, answer.prompt, answer.parts) == (text, single.prompt, single.parts)
        assert [s.name for s in answer.sources()] == [s.name for s in single.sources()]
        for source, other in zip(answer.sources("word"), single.sources("word"), strict=True):
            assert source.relevance == pytest.approx(other.relevance, abs=1e-5)
        assert answer.to_dict().keys() == single.to_dict().keys()


def test_a_model_without_a_padding_id_is_run_on_batches_too(monkeypatch):
    """Which id stands for padding does not matter to a model that ignores it."""
    own = Explainer(copy.deepcopy(tiny("gpt2", "write")))
    own.runner.model.config.pad_token_id = None
    own.runner.model.generation_config.pad_token_id = None
    count = Generations(own.runner.model, monkeypatch)
    answers = own.generate(PROMPTS, 3)
    assert count.taken() == [1, 2, 4]
    for answer, prompt in zip(answers, PROMPTS, strict=True):
        assert_same_row(answer.row(), own.generate(prompt, 3).row(), 1e-5)
    for explanation, prompt in zip(own(PROMPTS), PROMPTS, strict=True):
        np.testing.assert_allclose(explanation.scores, own(prompt).scores, rtol=1e-4, atol=1e-6)


def test_what_is_wrong_with_a_list_is_said_in_a_line(talker):
    prompts = ["the movie", "is it"]
    for wrong in (" it is", [" it is"]):
        with pytest.raises(InputError, match="2 prompts need a list of 2 answers, got 1"):
            talker.answer(prompts, wrong)
    with pytest.raises(InputError, match="batch_size must be 1 or more, got 0"):
        talker.answer(prompts, [" a", " b"], batch_size=0)
    with pytest.raises(InputError, match="the list of prompts is empty"):
        talker.generate([])
    with pytest.raises(InputError, match="prompt 2 of the list is a NoneType"):
        talker.generate(["the movie", None])
    with pytest.raises(InputError, match="images apply to a single prompt"):
        talker.generate(prompts, images=["a.png"])
