"""Reading the input at the first block or at its lookup, against hooks and plain autograd."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers import exactly, normal
from tests.methods.calling import ROWS, asked, different, found, of_ids, of_tensor, same, scores
from tests.modules import CLASSES, Block, D, Plain, Pooled, Vision
from tests.oracles import gradients as oracle
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case
from wherefrom.errors import NoBlock, RoundingOnly
from wherefrom.methods.base import warn_of_rounding
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.methods.propagation import read_at

MASK = 3  # the token id of [MASK] in the tiny models


def output_of(module, run):
    """The output of a submodule while `run` runs."""
    seen = []
    handle = module.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
    with torch.no_grad():
        run()
    handle.remove()
    return seen[0]


def embedded(bert, ids):
    """The output of the embeddings' LayerNorm for one text, (units, features)."""
    return output_of(bert.bert.embeddings.LayerNorm, lambda: bert(torch.tensor([ids])))[0]


def from_state(bert, ids, target=1):
    """The logit as a function of the state that enters the first block."""

    def logit(state):
        handle = bert.bert.embeddings.register_forward_hook(lambda *_: state)
        try:
            return bert(torch.tensor([ids])).logits[:, target]
        finally:
            handle.remove()

    return logit


def test_gradient_x_input_at_the_block_is_that_of_the_embeddings_norm(bert):
    inputs = of_ids(bert, ROWS)
    result = found(bert, inputs, "gradient_x_input", 1, at="first_block")
    bias = bert.bert.embeddings.LayerNorm.bias.detach()
    for i, ids in enumerate(ROWS):
        state = embedded(bert, ids)
        gradient = oracle.gradient(from_state(bert, ids), state)
        same(result.values[i, : len(ids)], (gradient * state).sum(-1), 1e-10)
        same(result.parts["norm"][i, : len(ids)], gradient @ bias, 1e-10)
        without = result.parts[inputs.noun][i, : len(ids)]
        same(without, (gradient * (state - bias)).sum(-1), 1e-10)
    assert not result.values[2, 3:].any()  # padding


@pytest.mark.parametrize("reduce", ["norm", "sum"])
def test_gradient_at_the_block_is_autograd(reduce, bert):
    actual = scores(bert, of_ids(bert, ROWS), "gradient", 1, at="first_block", reduce=reduce)
    for row, ids in zip(actual, ROWS, strict=True):
        state = embedded(bert, ids)
        gradient = oracle.gradient(from_state(bert, ids), state)
        same(row[: len(ids)], oracle.reduced(gradient, state, reduce), 1e-10)


@pytest.mark.parametrize("reduce", ["norm", "x_input"])
def test_smoothgrad_at_the_block_is_the_mean_over_noise_on_the_state(reduce, bert):
    inputs = of_ids(bert, ROWS[:2])
    settings = {"samples": 3, "noise": 0.3, "reduce": reduce, "seed": 5}
    actual = scores(bert, inputs, "smoothgrad", 1, at="first_block", **settings)
    for row, ids, units in zip(actual, ROWS, inputs.units, strict=False):
        state = embedded(bert, ids)
        added = oracle.noise([unit.text for unit in units], state, 3, 0.3, 5)
        expected = oracle.smoothgrad(from_state(bert, ids), state, added, reduce)
        same(row[: len(ids)], expected, 1e-9)


@pytest.mark.parametrize("baseline", ["zero", MASK])
def test_integrated_gradients_at_the_block_replace_the_state(baseline, bert):
    settings = {"steps": 8, "baseline": baseline, "at": "first_block"}
    result = found(bert, of_ids(bert, ROWS[:2]), "integrated_gradients", 1, **settings)
    points, weights = np.polynomial.legendre.leggauss(8)
    for i, ids in enumerate(ROWS[:2]):
        state, f = embedded(bert, ids), from_state(bert, ids)
        special = [unit.special for unit in of_ids(bert, [ids]).units[0]]
        blank = torch.zeros_like(state)
        if baseline == MASK:
            replaced = [own if s else MASK for own, s in zip(ids, special, strict=True)]
            blank = embedded(bert, replaced)
        expected = oracle.integrated(f, state, blank, (points + 1) / 2, weights / 2)
        same(result.values[i, : len(ids)], expected, 1e-9)
        at_blank = f(blank[None])[0].detach()
        exactly(result.lines["baseline", "baseline"][i], at_blank, 1e-10)


def test_both_places_of_integrated_gradients_differ_behind_a_norm(bert):
    inputs = of_ids(bert, ROWS[:1])
    block, lookup = (
        scores(bert, inputs, "integrated_gradients", 1, steps=4, at=at)
        for at in ("first_block", "embeddings")
    )
    different(block, lookup)


@pytest.mark.parametrize("name", ["gradient_x_input", "gradient", "lrp", "attn_lrp"])
def test_without_a_norm_of_the_embeddings_both_places_have_the_same_scores(name, gpt2):
    inputs = of_ids(gpt2, ROWS)
    block, lookup = (found(gpt2, inputs, name, 7, at=at) for at in ("first_block", "embeddings"))
    same(block.values, lookup.values, 1e-10)
    assert "position" not in block.parts
    assert ("position" in lookup.parts) == (name != "gradient")


@pytest.mark.parametrize("at", ["embeddings", "first_block"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_the_ledger_of_lrp_closes_at_both_places(family, at, request):
    model = request.getfixturevalue(family)
    inputs = of_ids(model, ROWS[:2], [1, 9, 4] if family == "t5" else None)
    target = asked(inputs, 1)
    result = found(model, inputs, "lrp", 1, at=at)
    total = torch.stack(list(result.lines.values())).sum(0)
    same(total, target(result.logits), 1e-9)


# In front of a norm, gradient × input is only rounding.


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gradient_x_input", {}), ("smoothgrad", {"samples": 2, "noise": 0.0, "reduce": "sum"})],
)
def test_scores_before_a_norm_in_float32_are_warned_of(name, settings, bert):
    narrow = copy.deepcopy(bert).float()
    inputs = of_ids(narrow, ROWS[:1])
    with pytest.warns(RoundingOnly, match=rf"^{name}.*at=embeddings.*rounding errors"):
        result = found(narrow, inputs, name, 1, at="embeddings", **settings)
    (of_sample,) = result.warnings
    assert "rounding errors" in of_sample[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RoundingOnly)
        scores(narrow, inputs, "gradient_x_input", 1, at="first_block")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("share", "warns"), [(8, True), (-8, True), (9, False), (0, True)])
def test_rounding_is_what_is_below_eight_units_of_the_precision(dtype, share, warns):
    eps = torch.finfo(dtype).eps
    sizes = torch.tensor([[4.0, 1.0], [2.0, 64.0]], dtype=torch.float64)
    values = torch.tensor([[4.0, 0.0], [0.0, share * eps * 64.0]], dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_rounding("name", values, sizes, dtype)
    assert [warning.category for warning in caught] == [RoundingOnly] * warns
    if warns:  # the numbers are those of the second sample
        cancelled = f"{abs(share) * eps * 64.0:.0e}"
        assert f"terms of 6e+01 cancel to {cancelled}" in str(caught[0].message)


def test_scores_of_an_input_that_is_all_zero_are_not_warned_of():
    nothing = torch.zeros(1, 3, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_rounding("name", nothing, nothing, torch.float32)


# Models without a block whose rows are the units.


class Paired(Plain):
    """Two positions become one row before the first block."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(2 * D, 2 * D), nn.Linear(2 * D, CLASSES)
        self.shaken()

    def forward(self, x):
        rows = x.reshape(len(x), -1, 2 * D)
        return self.head((rows + torch.tanh(self.inner(rows))).mean(1))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Pooled, "no state of this model is used both in a block and around it"),
        (Paired, r"has shape \(2, 2, 12\), whose rows are not the units"),
    ],
)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gradient_x_input", {}),
        ("gradient", {}),
        ("smoothgrad", {"samples": 2}),
        ("integrated_gradients", {"steps": 2}),
        ("lrp", {}),
    ],
)
def test_without_a_block_auto_reads_where_the_input_enters(name, settings, kind, message, rng):
    model, inputs = kind(), of_tensor(normal(rng, 2, 4, D))
    with pytest.raises(NoBlock, match=message):
        scores(model, inputs, name, 1, at="first_block", **settings)
    expected = scores(model, inputs, name, 1, at="embeddings", **settings)
    same(scores(model, inputs, name, 1, at="auto", **settings), expected, 1e-12)


def test_auto_is_the_block_of_a_text_and_the_entry_of_an_image(rng):
    rows = of_tensor(normal(rng, 1, 4, D))
    assert read_at("auto", Case(None, rows), lambda _, place: place) == "first_block"
    assert read_at("embeddings", Case(None, rows), lambda _, place: place) == "embeddings"
    image = copy.copy(rows)
    object.__setattr__(image, "layout", object())
    assert read_at("auto", Case(None, image), lambda _, place: place) == "embeddings"
    assert read_at("first_block", Case(None, image), lambda _, place: place) == "first_block"


def test_another_error_at_the_block_is_not_hidden_by_auto(rng):
    def run(_case, place):
        raise ValueError(place)

    with pytest.raises(ValueError, match="first_block"):
        read_at("auto", Case(None, of_tensor(normal(rng, 1, 4, D))), run)


# The axis of the units in the state.


def test_a_class_token_in_front_of_the_block_is_a_line_of_its_own(rng):
    model, x = Vision(4), normal(rng, 2, 4, D)
    result = found(model, of_tensor(x), "gradient_x_input", 1, at="first_block")
    with torch.no_grad():
        state = torch.cat([model.cls.expand(2, -1, -1), model.patches(x)], 1) + model.table
    state.requires_grad_()
    logits = model.head(model.encoder(state)[:, 0])
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), state)
    products = (gradient * state.detach()).sum(-1)
    same(result.values, products[:, 1:], 1e-10)
    same(result.lines["places of no unit", "padding"], products[:, 0], 1e-10)


def test_integrated_gradients_leave_the_class_token_in_front_of_the_block_as_it_is(rng):
    model, x = Vision(4), normal(rng, 1, 4, D)
    actual = scores(model, of_tensor(x), "integrated_gradients", 1, steps=3, at="first_block")
    with torch.no_grad():
        state = (torch.cat([model.cls, model.patches(x)], 1) + model.table)[0]
    blank = torch.zeros_like(state)
    blank[0] = state[0]
    points, weights = np.polynomial.legendre.leggauss(3)
    expected = oracle.integrated(
        lambda s: model.head(model.encoder(s)[:, 0])[:, 1],
        state, blank, (points + 1) / 2, weights / 2,
    )  # fmt: skip
    same(actual[0], expected[1:], 1e-10)


class Looked(Plain):
    """Words, positions and a norm before torch's encoder, with positions on either axis."""

    def __init__(self, places_first):
        super().__init__()
        self.words, self.places = nn.Embedding(20, D), nn.Embedding(8, D)
        self.norm = nn.LayerNorm(D)
        layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=not places_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head, self.places_first = nn.Linear(D, CLASSES), places_first
        self.shaken()

    def forward(self, input_ids):
        numbers = torch.arange(input_ids.shape[1])
        if self.places_first:
            state = self.words(input_ids.T) + self.places(numbers)[:, None]
        else:
            state = self.words(input_ids) + self.places(numbers)
        return self.head(self.encoder(self.norm(state)).mean(0 if self.places_first else 1))


@pytest.mark.parametrize("size", [1, 2, 4])  # as many samples as positions
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gradient_x_input", {}),
        ("smoothgrad", {"samples": 2, "reduce": "x_input"}),
        ("integrated_gradients", {"steps": 3}),
    ],
)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")  # positions come first
def test_places_first_is_no_matter_at_the_block(name, settings, size):
    plain, turned = Looked(places_first=False), Looked(places_first=True)
    turned.load_state_dict(plain.state_dict())
    rows = [[(7 * i + 3 * j) % 19 + 1 for j in range(4)] for i in range(size)]
    expected = scores(plain, of_ids(plain, rows), name, 1, at="first_block", **settings)
    same(
        scores(turned, of_ids(turned, rows), name, 1, at="first_block", **settings), expected, 1e-9
    )


def test_the_captured_state_says_where_it_was_read(bert, rng):
    runner, inputs = ModelRunner(bert), of_ids(bert, ROWS[:1])
    at_block = EmbeddedInputs.capture(Case(runner, inputs), "first_block")
    at_lookup = EmbeddedInputs.capture(Case(runner, inputs))
    assert (at_block.place, at_lookup.place) == ("first_block", "embeddings")
    assert at_lookup.paths is None
    exactly(at_block.values[0][0], embedded(bert, ROWS[0]), 1e-12)
    words = bert.bert.embeddings.word_embeddings(torch.tensor(ROWS[0])).detach()
    exactly(at_lookup.values[0][0], words, 1e-12)
    exactly(at_block.logits, at_lookup.logits, 1e-12)


def test_a_residual_around_the_input_itself_is_its_first_block(rng):
    model, inputs = Block(), of_tensor(normal(rng, 2, 5, D))
    for name, settings in (("gradient", {}), ("integrated_gradients", {"steps": 3})):
        block, lookup = (
            scores(model, inputs, name, 1, at=at, **settings)
            for at in ("first_block", "embeddings")
        )
        same(block, lookup, 1e-10)
