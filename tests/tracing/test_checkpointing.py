"""Blocks that run a second time: the same scores and ledger with less memory."""

import gc
import re
import threading
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import assert_unchanged, exactly
from tests.methods.calling import ROWS, asked, family, found, in_parts, of_ids, of_tensor
from wherefrom import Explainer
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.errors import ModelError, NotEnoughMemory
from wherefrom.methods import method
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import CONSERVATIVE
from wherefrom.testing import snapshot
from wherefrom.tracing.observers import checkpointing as recompute
from wherefrom.tracing.observers.checkpointing import (
    BlockRun,
    SavedTensor,
    SavedTensors,
    repeated_blocks,
)
from wherefrom.tracing.tracer import CallMode

LAYERS = 6


@contextmanager
def second_runs(monkeypatch, forced=True):
    """The names of the blocks that run again, in order; all of them if forced."""
    names = []
    plain_init, plain_run = SavedTensors.__init__, BlockRun.run_again

    def init(self, *args, **settings):
        plain_init(self, *args, **settings)
        self.recomputes = self._may_recompute

    def run_again(self):
        names.append(self.path[-1])
        plain_run(self)

    with monkeypatch.context() as patch:
        if forced:
            patch.setattr(SavedTensors, "__init__", init)
        patch.setattr(BlockRun, "run_again", run_again)
        yield names


def same_scores(actual, expected, tol=1e-12):
    exactly(actual.values, expected.values, tol)
    exactly(actual.logits, expected.logits, tol)
    assert list(actual.parts) == list(expected.parts)
    for name, part in expected.parts.items():
        exactly(actual.parts[name], part, tol)
    assert (actual.lines is None) == (expected.lines is None)
    assert list(actual.lines or {}) == list(expected.lines or {})
    for key, line in (expected.lines or {}).items():
        exactly(actual.lines[key], line, tol)


FAMILIES = {
    "bert": "classify",
    "llama": "write",  # with fewer keys than queries
    "gpt2": "write",
    "albert": "classify",  # one block that repeats
    "mixtral": "classify",  # experts within a block
    "deberta-v2": "classify",
    "xlnet": "classify",  # positions first
    "gemma2": "write",
}


@pytest.mark.parametrize("name", ["lrp", "attn_lrp", "gradient_x_input", "lrp_ah_ln"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "xlnet"])
def test_a_padded_batch_has_the_same_scores_and_ledger(family, name, monkeypatch):
    model = tiny(family, FAMILIES[family])
    inputs = of_ids(model, ROWS)
    expected = found(model, inputs, name, 1)
    with second_runs(monkeypatch) as names:
        actual = found(model, inputs, name, 1)
    assert len(names) == 2
    same_scores(actual, expected)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lrp", {"root": "mean"}),
        ("lrp", {"gate": "shared"}),
        ("lrp", {"at": "first_block"}),
        ("gradient_x_input", {"root": "zero", "at": "first_block"}),
        ("gradient", {}),
        ("gradient", {"softplus": 4.0}),
        ("smoothgrad", {"samples": 3}),
        ("integrated_gradients", {"steps": 3}),
        ("integrated_gradients", {"steps": 3, "at": "first_block"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_settings_and_methods_with_gradients(family, name, settings, monkeypatch):
    model = tiny(family, "classify")
    inputs = of_ids(model, ROWS)
    expected = found(model, inputs, name, 1, **settings)
    with second_runs(monkeypatch) as names:
        actual = found(model, inputs, name, 1, **settings)
    assert len(names) >= 2
    same_scores(actual, expected)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_an_encoder_and_its_decoder(family, monkeypatch):
    model = tiny(family, "translate")
    inputs = of_ids(model, ROWS, [1, 44, 21])
    found(model, inputs, "lrp", 9)  # computes logits only where they are needed
    expected = found(model, inputs, "lrp", 9)
    with second_runs(monkeypatch) as names:
        actual = found(model, inputs, "lrp", 9)
    assert len(names) == 4
    assert [("decoder" in name) for name in names] == [True, True, False, False]
    same_scores(actual, expected)


def test_an_image_and_a_contrast(monkeypatch):
    explainer = Explainer(tiny("vit", "see"))
    image = torch.rand(1, 3, 32, 32, dtype=torch.float64)
    expected = explainer(image, target=1, against=0)[0]
    with second_runs(monkeypatch) as names:
        actual = explainer(image, target=1, against=0)[0]
    assert len(names) == 2
    exactly(actual.scores, expected.scores, 1e-12)
    assert actual.ledger == expected.ledger


def test_attention_methods_and_tapes_keep_their_blocks(monkeypatch):
    model = tiny("bert", "classify")
    inputs = of_ids(model, ROWS)
    for name, settings in (("gae", {}), ("secant", {"root": "mean"})):
        expected = found(model, inputs, name, 1, **settings)
        with second_runs(monkeypatch) as names:
            same_scores(found(model, inputs, name, 1, **settings), expected)
        assert names == []


# What is kept


def kept_bytes(weights):
    """The bytes of saved tensors in the graphs, without weights."""
    gc.collect()
    values = [o.value for o in gc.get_objects() if type(o) is SavedTensor and o.value is not None]
    storages = {value.untyped_storage().data_ptr(): value.untyped_storage() for value in values}
    return sum(storage.nbytes() for place, storage in storages.items() if place not in weights)


def saved_tensors():
    gc.collect()
    return sum(type(o) is SavedTensor for o in gc.get_objects())


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("lrp", {}),
        ("lrp", {"at": "first_block"}),
        ("gradient", {"at": "first_block"}),
        ("integrated_gradients", {"at": "first_block", "steps": 2}),
        ("gae", {}),
    ],
    ids=str,
)
def test_nothing_is_kept_after_a_pass_or_an_error(name, settings, forced, monkeypatch):
    model = tiny("bert", "classify")
    inputs = of_ids(model, ROWS)
    before = saved_tensors()
    with second_runs(monkeypatch, forced):
        found(model, inputs, name, 1, **settings)
        assert saved_tensors() == before
        with suppress(NotEnoughMemory):
            method(name, **settings)(Case(ModelRunner(model, memory=1.0), inputs, asked(inputs, 1)))
        assert saved_tensors() == before


def pass_of(model, inputs, **settings):
    runner = ModelRunner(model, memory=settings.pop("memory", None))
    return intercepted_forward(CONSERVATIVE, Case(runner, inputs, asked(inputs, 1)), **settings)


def test_the_graph_keeps_less(monkeypatch):
    model = tiny("llama", "write", num_hidden_layers=LAYERS)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    inputs = of_ids(model, [list(range(3, 60))])
    monkeypatch.setattr(recompute, "_MANY", 1 << 60)  # to count to the end
    sums = []
    for forced in (False, True):
        with second_runs(monkeypatch, forced), pass_of(model, inputs):
            sums.append(kept_bytes(weights))
    assert 0 < sums[1] < sums[0] / 8


def least_memory(model, inputs, name):
    """The bytes in the error message."""
    runner = ModelRunner(model, memory=1.0)
    with pytest.raises(NotEnoughMemory) as caught:
        method(name)(Case(runner, inputs, asked(inputs, 1)))
    return caught.value.needed


@pytest.mark.parametrize("name", ["lrp", "gradient_x_input", "integrated_gradients"])
def test_memory_decides_and_what_the_error_asks_for_suffices(name, monkeypatch):
    model = tiny("llama", "write", num_hidden_layers=LAYERS)
    inputs = of_ids(model, [list(range(3, 60))])
    target = asked(inputs, 1)
    expected = method(name)(Case(ModelRunner(model), inputs, target))
    needed = least_memory(model, inputs, name)
    with second_runs(monkeypatch, forced=False) as names:
        actual = method(name)(Case(ModelRunner(model, memory=needed * 1.01), inputs, target))
    assert len(names) >= LAYERS
    same_scores(actual, expected)
    with pytest.raises(NotEnoughMemory):
        method(name)(Case(ModelRunner(model, memory=needed * 0.9), inputs, target))
    with second_runs(monkeypatch, forced=False) as names:
        method(name)(Case(ModelRunner(model, memory=needed * 20), inputs, target))
    assert names == []


def test_a_batch_is_halved_until_it_fits(monkeypatch):
    model = tiny("llama", "write", num_hidden_layers=LAYERS)
    rows = [list(range(3, 60 - n)) for n in range(5)]
    inputs = of_ids(model, rows)
    target = asked(inputs, 1)
    expected = method("lrp")(Case(ModelRunner(model), inputs, target))
    needed = least_memory(model, inputs.take([0]), "lrp")
    sizes = []

    def count(module, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    actual = in_parts(method("lrp"), Case(ModelRunner(model, memory=2.1 * needed), inputs, target))
    hook.remove()
    assert sizes == [5, 2, 3, 1, 2]
    same_scores(actual, expected)


def test_a_single_input_that_does_not_fit_is_refused_with_what_it_needs():
    model = tiny("bert", "classify")
    with pytest.raises(NotEnoughMemory, match=r"lrp\S* .*on one input of 6 words needs") as e:
        Explainer(model)([2, 5, 9, 8, 17, 3], memory="1KB")
    assert "1 KB may be used" in str(e.value)
    option = re.search(r'memory="(.*)"', str(e.value))[1]
    assert Explainer(model)([2, 5, 9, 8, 17, 3], memory=option).ledger.relative < 1e-9


class Plain(nn.Module):
    """No repeated block."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(30, 40), nn.Linear(40, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).mean(1)


def run(model, given):
    return model(given["x"])


@pytest.mark.parametrize("name", ["lrp", "gradient", "integrated_gradients"])
def test_a_model_without_blocks_is_split_or_refused(name):
    model, x = Plain().double(), torch.randn(3, 500, 30, dtype=torch.float64)
    target = Target(torch.tensor([1, 1, 1]))
    expected = method(name)(Case(ModelRunner(model, run), of_tensor(x), target))
    with pytest.raises(NotEnoughMemory, match="on one input of 500 words") as caught:
        in_parts(method(name), Case(ModelRunner(model, run, 1e4), of_tensor(x), target))
    runner = ModelRunner(model, run, caught.value.needed * 1.01)
    actual = in_parts(method(name), Case(runner, of_tensor(x), target))
    same_scores(actual, expected)


# Blocks


def test_blocks_are_found_by_structure():
    def names(model):
        blocks = repeated_blocks(model)
        return [name for name, part in model.named_modules() if id(part) in blocks]

    assert names(tiny("bert", "classify")) == ["bert.encoder.layer.0", "bert.encoder.layer.1"]
    t5 = tiny("t5", "translate")
    assert names(t5) == [f"{part}.block.{i}" for part in ("encoder", "decoder") for i in (0, 1)]
    containers = set(repeated_blocks(t5).values())
    assert len(containers) == 2
    assert names(tiny("albert", "classify")) == ["albert.encoder.albert_layer_groups.0"]
    assert names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))) == []
    assert names(Plain()) == []


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.linear, self.activation = nn.Linear(width, width), nn.Tanh()

    def forward(self, x, *rest):
        return x + self.activation(self.linear(x))


class Stack(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).mean(1)


def stack_scores(model, monkeypatch, forced, x=None):
    x = torch.linspace(-1, 1, 48).double().reshape(2, 3, 8) if x is None else x
    with second_runs(monkeypatch, forced) as names:
        scores = found(model, of_tensor(x), "lrp", 1)
    return scores, names


class WritesIntoItsInput(Block):
    def forward(self, x, *rest):
        x.add_(1.0)
        return super().forward(x)


class Remembers(Block):
    """Passes on an object that is not a tensor and that each run changes."""

    def forward(self, x, memory):
        memory.count += 1
        return super().forward(x) * memory.count


class Memory:
    count = 0


class WithMemory(Stack):
    def forward(self, x):
        memory = Memory()
        for block in self.blocks:
            x = block(x, memory)
        return self.head(x).mean(1)


@pytest.mark.parametrize(
    "model",
    [
        lambda: Stack(WritesIntoItsInput(), WritesIntoItsInput()),
        lambda: WithMemory(Remembers(), Remembers()),
    ],
    ids=["writes into its input", "has a state"],
)
def test_a_block_that_cannot_be_repeated_is_kept(model, monkeypatch):
    model = model().double()
    expected, _ = stack_scores(model, monkeypatch, forced=False)
    actual, names = stack_scores(model, monkeypatch, forced=True)
    assert names == []
    same_scores(actual, expected)


def test_a_block_with_a_hook_that_changes_its_input_is_kept(monkeypatch):
    model = Stack(Block(), Block()).double()
    model.blocks[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    expected, _ = stack_scores(model, monkeypatch, forced=False)
    actual, names = stack_scores(model, monkeypatch, forced=True)
    assert names == ["blocks.0"]
    same_scores(actual, expected)


class TakesOutside(Stack):
    """Its blocks use an input-dependent tensor that is not an argument."""

    def forward(self, x):
        for block in self.blocks:
            block.seen = x * 2
        return super().forward(x)


class Seeing(Block):
    def forward(self, x, *rest):
        return super().forward(x) + self.linear(self.seen)


def test_gradients_reach_what_a_block_takes_from_elsewhere(monkeypatch):
    model = TakesOutside(Seeing(), Seeing()).double()
    expected, _ = stack_scores(model, monkeypatch, forced=False)
    actual, names = stack_scores(model, monkeypatch, forced=True)
    assert len(names) == 2
    same_scores(actual, expected)


class Counts(Block):
    """Makes other calls the second time."""

    runs = 0

    def forward(self, x, *rest):
        self.runs += 1
        if self.runs > 1:
            x = x[:, :2]
        return super().forward(x)


def test_a_block_that_runs_differently_is_named(monkeypatch):
    with pytest.raises(ModelError, match=r"blocks\.1 cannot be run a second time .* other shapes"):
        stack_scores(Stack(Counts(), Counts()).double(), monkeypatch, forced=True)


class Broken(RuntimeError):
    pass


def test_the_model_is_as_before_when_a_second_run_fails(monkeypatch):
    model = tiny("bert", "classify").train()
    runs = []

    def fail(*_):
        runs.append(1)
        if len(runs) > 1:
            raise Broken

    model.bert.encoder.layer[0].attention.register_forward_hook(fail)
    before = snapshot(model)
    with second_runs(monkeypatch) as names, pytest.raises(Broken):
        found(model, of_ids(model, ROWS), "lrp", 1)
    assert names == ["bert.encoder.layer.1", "bert.encoder.layer.0"]
    assert_unchanged(before, snapshot(model))
    assert torch.is_grad_enabled()


class Overwrites(Stack):
    """Writes into the input of a block after the block has run."""

    def forward(self, x):
        for block in self.blocks:
            before, x = x, block(x)
            before.mul_(2)
        return self.head(x).mean(1)


def test_an_input_that_is_written_into_later_is_told(monkeypatch):
    with pytest.raises(ModelError, match="its input was overwritten"):
        stack_scores(Overwrites(Block(), Block()).double(), monkeypatch, forced=True)


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        z = y * y
        y.mul_(2)
        return z + y


def test_a_saved_tensor_that_is_written_into_is_refused_as_by_torch(monkeypatch):
    monkeypatch.setattr(recompute, "_MANY", 1 << 60)  # all blocks are counted, and kept
    model, x = Stack(Squares(), Squares()).double(), of_tensor(torch.ones(1, 3, 8).double())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found(model, x, "gradient", 1)


def test_a_second_run_under_autocast_is_in_the_same_precision(monkeypatch):
    class Autocast(Stack):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    model = Autocast(Block(), Block())
    x = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
    expected, _ = stack_scores(model, monkeypatch, False, x)
    actual, names = stack_scores(model, monkeypatch, True, x)
    assert len(names) == 2
    same_scores(actual, expected)


def test_two_threads_with_second_runs(monkeypatch):
    model = tiny("bert", "classify")
    inputs = of_ids(model, ROWS)
    expected = found(model, inputs, "lrp", 1)
    results = []
    with second_runs(monkeypatch):
        threads = [
            threading.Thread(target=lambda: results.append(found(model, inputs, "lrp", 1)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 3
    for actual in results:
        same_scores(actual, expected)


def test_a_mode_that_the_forward_opens_outlives_the_counting():
    """With enough memory counting ends early, unless the caller opened a scope within."""
    names = []

    class Seeing(CallMode):
        def on_call(self, call):
            names.append(call.name)
            return call.run()

    model = family("t5", "translate")

    def forward(model, tensors):
        with Seeing():
            return model(**tensors).logits

    Explainer(model, forward=forward)(ROWS[0], target=5)
    assert names.count("embedding") >= 3  # of the source, of the prefix, of relative positions
    assert names[-1] == "linear"  # up to the head
