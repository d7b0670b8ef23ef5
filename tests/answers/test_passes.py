"""How many passes an answer takes, and what becomes of the graph that is kept between spans."""

import copy
import gc
import inspect
import weakref

import numpy as np
import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import assert_unchanged, exactly
from wherefrom import Explainer
from wherefrom.errors import NotEnoughMemory
from wherefrom.methods import forward_graph, forward_pass
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.methods.forward_pass import ForwardPass
from wherefrom.testing import snapshot
from wherefrom.tracing.observers.ledger import LedgerRecorder

PROMPT = [1, 17, 45, 8, 99, 23]
ANSWER = [33, 71, 5, 60]
METHODS = [
    ("lrp", {}),
    ("lrp", {"gate": "frozen", "root": None}),
    ("attn_lrp", {}),
    ("gradient_x_input", {"at": "embeddings"}),
]


class Passes:
    """Counts the runs of a model and the backward passes."""

    def __init__(self, model, monkeypatch):
        self.forward = self.backward = 0
        forward, gradients = type(model).forward, ForwardPass.gradients

        def count_forward(own, *args, **kwargs):
            self.forward += own is model
            return forward(own, *args, **kwargs)

        def count_backward(*args, **kwargs):
            self.backward += 1
            return gradients(*args, **kwargs)

        count_forward.__signature__ = inspect.signature(forward)
        monkeypatch.setattr(type(model), "forward", count_forward)
        monkeypatch.setattr(ForwardPass, "gradients", count_backward)
        # once a shape, a further pass is compared with the explained one
        monkeypatch.setattr(forward_pass, "_difference", lambda *arguments: None)

    def taken(self):
        """Forward and backward passes since this was asked before."""
        taken = self.forward, self.backward
        self.forward = self.backward = 0
        return taken


def model(family="llama"):
    return tiny(family, "write").double()


@pytest.fixture
def llama():
    return Explainer(model())


@pytest.fixture
def passes(llama, monkeypatch):
    return Passes(llama.runner.model, monkeypatch)


@pytest.mark.parametrize(("method", "settings"), METHODS)
@pytest.mark.parametrize("span", [0, slice(1, 3), None])
def test_a_first_span_takes_one_forward_and_one_backward_pass(
    llama, passes, span, method, settings
):
    llama.answer(PROMPT, ANSWER, method=method, **settings).of(span)
    assert passes.taken() == (1, 1)


@pytest.mark.parametrize("of", ["contrast", "logit", "logprob"])
def test_further_spans_take_no_forward_pass(llama, passes, of):
    answer = llama.answer(PROMPT, ANSWER, of=of)
    assert passes.taken() == (1, 0)
    spans = [answer.of(1), answer.of(slice(0, 3)), answer.of()]
    assert passes.taken() == (0, 3)
    exactly(answer.of(1).scores, spans[0].scores, 0)
    assert passes.taken() == (0, 0)
    rows = answer.rows()
    assert passes.taken()[0] == 0
    exactly(spans[1].scores, sum(row.values for row in rows[:3])[:8].astype(np.float32), 1e-6)


def test_a_generated_answer_takes_one_pass_more_than_its_generation(llama, passes):
    answer = llama.generate(PROMPT, 3, generation={"eos_token_id": None, "pad_token_id": 0})
    assert len(answer) == 3
    generation, _ = passes.taken()
    assert generation == 3 + 1
    answer.of()
    answer.of(0)
    assert passes.taken() == (0, 2)


def test_a_method_that_needs_other_passes_is_measured_by_itself(llama, passes):
    answer = llama.answer(PROMPT, ANSWER, method="gradient")
    assert passes.taken() == (1, 0)
    answer.of(1)
    assert passes.taken() == (1, 1)


def test_the_pass_of_a_new_answer_takes_the_place_of_the_one_before(llama, passes):
    first = llama.answer(PROMPT, ANSWER)
    one = first.of(1)
    second = llama.answer(PROMPT[:-1], ANSWER)
    assert passes.taken() == (2, 1)
    two = first.of(slice(0, 2))  # runs anew
    assert passes.taken() == (1, 1)
    assert first.of(1) is not one
    exactly(first.row(1).values, llama.answer(PROMPT, ANSWER).row(1).values)
    assert two.output == pytest.approx(float(first.measured.outputs("contrast")[:2].sum()))
    second.of(0)


def test_an_explanation_of_the_same_model_takes_the_memory_of_the_pass(llama, passes):
    answer = llama.answer(PROMPT, ANSWER)
    leaf = weakref.ref(answer.attribution._graph().forward.tracer.entry_points.entered[0].leaf)
    assert leaf() is not None
    llama(PROMPT)
    assert leaf() is None
    passes.taken()
    answer.of(1)
    assert passes.taken() == (1, 1)


@pytest.mark.parametrize("forward", [None, lambda model, inputs: model(**inputs).logits])
def test_the_graph_goes_with_its_answer_or_its_matrix(forward):
    own = Explainer(model(), forward=forward)
    own.answer(PROMPT, ANSWER)  # finds the output projection
    gc.disable()  # no ring of references may hold it
    try:
        for ends_by_matrix in (False, True):
            answer = own.answer(PROMPT, ANSWER)
            answer.of(2)
            forward = answer.attribution._graph().forward
            leaf, logits = weakref.ref(forward.tracer.entry_points.entered[0].leaf), forward.logits
            node = weakref.ref(logits.grad_fn)
            del forward, logits
            if ends_by_matrix:
                answer.rows()
            else:
                del answer
            assert leaf() is None
            assert node() is None
    finally:
        gc.enable()


def test_weights_that_were_changed_are_explained_as_they_are_now(llama, passes):
    answer = llama.answer(PROMPT, ANSWER)
    answer.of(slice(0, 2))
    with torch.no_grad():
        llama.runner.model.lm_head.weight *= 2
    passes.taken()
    after = answer.row(1)
    assert passes.taken() == (1, 1)
    fresh = llama.answer(PROMPT, ANSWER).row(1)
    exactly(after.values, fresh.values)
    assert after.output == pytest.approx(2 * answer.tokens[1].output)


def test_nothing_is_left_on_the_model_while_a_graph_is_kept(llama):
    own = llama.runner.model.train()
    before = snapshot(own)
    answer = llama.answer(PROMPT, ANSWER)
    answer.of(1)
    assert_unchanged(before, snapshot(own))


def test_a_span_after_an_interrupted_one_is_the_same(monkeypatch):
    biased = Explainer(model("gpt2"))
    expected = biased.answer(PROMPT, ANSWER).row(1)
    answer = biased.answer(PROMPT, ANSWER)
    calls = []

    def interrupted(self, *args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return enter(self, *args)

    enter = LedgerRecorder._enter
    monkeypatch.setattr(LedgerRecorder, "_enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer.row(1)
    again = answer.row(1)
    exactly(again.values, expected.values)
    exactly(sum(again.lines.values()), sum(expected.lines.values()))


def test_an_answer_can_be_copied_while_its_graph_is_kept(llama):
    answer = llama.answer(PROMPT, ANSWER)
    expected = answer.row(1)
    exactly(copy.deepcopy(answer).row(slice(1, 2)).values, expected.values)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_spans_of_a_pass_whose_blocks_run_twice_are_the_same(family):
    """With memory for a block or two the backward pass runs blocks again, for every span."""
    own, prompt = model(family), list(range(5, 45))
    expected = Explainer(own).answer(prompt, ANSWER)
    rows = [expected.row(span) for span in (1, slice(0, 4))]
    with pytest.raises(NotEnoughMemory) as error:
        Explainer(own).answer(prompt, ANSWER, memory=1000)
    tight = Explainer(own).answer(prompt, ANSWER, memory=1.1 * error.value.needed)
    assert tight.attribution._graph().forward.saved.recomputes
    for span, row in zip((1, slice(0, 4)), rows, strict=True):
        exactly(tight.row(span).values, row.values)
        for key, value in row.lines.items():
            exactly(tight.row(span).lines[key], value)
    exactly(tight.matrix, expected.matrix)


# Several backward passes at once.


class Backward:
    """Counts backward passes, and how many targets each had."""

    def __init__(self, monkeypatch):
        self.targets = []
        rows = ForwardGraph._rows

        def counted(graph, target, first, last):
            result = rows(graph, target, first, last)
            self.targets.append(last - first)
            return result

        monkeypatch.setattr(ForwardGraph, "_rows", counted)


FAMILIES = (
    "gpt2", "llama", "qwen2", "gemma", "phi", "opt", "bloom", "gpt_neox", "falcon", "mixtral",
    "gpt_oss", "mamba",
)  # fmt: skip


@pytest.mark.parametrize("method", ["lrp", "attn_lrp", "gradient_x_input"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_several_passes_at_once_are_those_of_single_ones(family, method, monkeypatch):
    if family == "mamba" and method == "attn_lrp":
        pytest.skip("it has no attention")
    own = Explainer(tiny(family, "write"))
    matrices = {}
    for most in (1, 3):
        monkeypatch.setattr(forward_graph, "_MOST", most)
        count = Backward(monkeypatch)
        rows = own.answer(PROMPT, ANSWER, method=method, of="logprob").rows()
        assert sum(count.targets) == len(ANSWER)
        matrices[most] = rows
        if most == 3:
            assert count.targets == [3, 1]
    for one, several in zip(matrices[1], matrices[3], strict=True):
        size = np.abs(one.values).max()
        np.testing.assert_allclose(several.values, one.values, rtol=0, atol=3e-6 * size)
        assert several.lines.keys() == one.lines.keys()
        for key, value in one.lines.items():
            assert several.lines[key] == pytest.approx(value, rel=1e-5, abs=1e-6)
        assert several.output == pytest.approx(one.output, rel=1e-6)


class Choosy(torch.autograd.Function):
    """The same value; its backward pass looks at the numbers, which `vmap` forbids."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient if bool(gradient.any()) else torch.zeros_like(gradient)


choose = Choosy.apply  # before a pass is made: the Function is run as it is


def test_a_function_without_a_batched_form_is_run_for_each_row(llama, monkeypatch):
    expected = llama.answer(PROMPT, ANSWER).rows()
    body = type(llama.runner.model.model)
    forward = body.forward

    def choosy(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.last_hidden_state = choose(out.last_hidden_state)
        return out

    monkeypatch.setattr(body, "forward", choosy)
    count = Backward(monkeypatch)
    rows = llama.answer(PROMPT, ANSWER).rows()
    assert count.targets == [1, 1, 1, 1]
    for row, other in zip(rows, expected, strict=True):
        exactly(row.values, other.values)


def test_memory_decides_how_many_are_run_at_once(llama, monkeypatch):
    count = Backward(monkeypatch)
    llama.answer(PROMPT, ANSWER).rows()
    answer = llama.answer(PROMPT, ANSWER)
    saved = answer.attribution._graph().forward.saved
    assert saved.bytes > saved.largest_block > 0
    each = 2 * saved.largest_block + 4 * answer.attribution._graph().forward.logits.nbytes
    llama.answer(PROMPT, ANSWER, memory=saved.bytes + 2 * 2.5 * each).rows()
    assert count.targets == [4, 2, 2]
