"""The ledger adds up to the model's output, per sample, whatever the model."""

import warnings

import pytest
import torch

from tests.helpers import exactly, family_model, normal
from tests.modules import Block, D, Flat, Mixture, Pooled, SequenceFirst, Vision
from wherefrom import METHODS, Explainer
from wherefrom.errors import SamplesRunAlone

IDS = [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 2], [7, 8, 2]]
HELD = ["lrp", "lrp_ah", "lrp_ah_ln", "gradient_x_input", "attn_lrp"]


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("bert", "classify"),
        ("gpt2", "write"),
        ("t5", "classify"),
        ("t5", "translate"),
        ("bart", "classify"),
        ("mixtral", "classify"),
        ("mamba", "write"),
        ("gpt_oss", "classify"),
    ],
)
@pytest.mark.parametrize("gate", ["frozen", "shared"])
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_ledger_closes_for_each_sample_of_a_batch(family, task, gate):
    explainer = Explainer(family_model(family, task))
    batch = explainer(IDS, "lrp", gate=gate)
    bound = 1e-5 if family in ("mixtral", "gpt_oss", "mamba", "t5") else 1e-9  # float32 norms
    for ids, found in zip(IDS, batch, strict=True):
        added = sum(abs(line.value) for line in found.ledger.lines)  # of an output near zero
        assert abs(found.ledger.residual) < bound * added
        alone = explainer(ids, "lrp", gate=gate)
        exactly(found.ledger.total, alone.ledger.total, tol=bound)
        exactly(found.scores, alone.scores, tol=max(bound, 1e-6))
        assert [line.label for line in found.ledger.lines if line.kind == "bias"] == [
            line.label for line in alone.ledger.lines if line.kind == "bias"
        ]


MODULES = {
    "vision": lambda: Vision(5),
    "block": Block,
    "mixture": Mixture,
    "pooled": Pooled,
    "sequence first": SequenceFirst,
    "flat": Flat,
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 10])
@pytest.mark.parametrize("name", list(MODULES))
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_ledger_of_a_plain_module_closes_in_batches_of_every_size(name, size, rng):
    module, x = MODULES[name](), normal(rng, size, 5, D)
    plain = module(x.clone().requires_grad_()).detach()
    explainer = Explainer(module, forward=lambda model, tensors: model(tensors["x"]))
    found = explainer(x, target=1)
    exactly([each.output for each in found], plain[:, 1])
    for row, each in zip(x, found, strict=True):
        assert each.ledger.relative < 1e-9
        alone = explainer(row, target=1)
        exactly(each.scores, alone.scores, tol=1e-6)
        exactly(each.ledger.of("bias"), alone.ledger.of("bias"), tol=1e-9)


@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_experts_that_get_an_even_number_of_tokens_keep_the_samples_apart(rng):
    module = Mixture()
    explainer = Explainer(module)
    for _ in range(8):
        x = normal(rng, 2, 5, D)
        counts = torch.bincount(module.sent(x), minlength=3)
        assert counts.sum() == 10
        for each in explainer(x):
            assert each.ledger.relative < 1e-9, counts


@pytest.mark.parametrize("method", HELD)
def test_residual_is_what_the_lines_do_not_account_for(method, bert):
    found = Explainer(bert)(IDS[0], method)
    logit = bert(torch.tensor([IDS[0]])).logits[0].max().detach()
    lines = sum(line.value for line in found.ledger.lines)
    exactly(found.ledger.residual, float(logit) - lines)
    assert (abs(found.ledger.residual) < 1e-9) == (method in ("lrp", "attn_lrp"))


def test_parts_add_up_to_the_scores_and_lines_to_the_parts(bert):
    found = Explainer(bert)(IDS[0])
    assert set(found.parts) == {"word", "position", "type"}
    exactly(sum(found.parts.values()), found.scores, tol=1e-6)
    for kind, part in found.parts.items():
        exactly(found.ledger.of(kind), float(part.sum(dtype="float64")), tol=1e-6)
    exactly(found.ledger.of("word", "position", "type", "bias"), found.output)


def test_a_class_token_is_no_unit_and_the_table_of_positions_is(rng):
    found = Explainer(Vision(5))(normal(rng, 5, D))
    assert len(found) == 5
    assert found.ledger.relative < 1e-9
    assert sum(line.value for line in found.ledger.lines) == pytest.approx(found.output)


def test_decoder_of_an_encoder_decoder_has_units_of_its_own(t5):
    found = Explainer(t5)(IDS[0], position=0)
    assert [unit.field for unit in found.units] == [""] * 7 + ["decoder"]
    assert len(found.scores) == 8
    assert found.ledger.relative < 1e-5


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_every_method_scores_every_unit_of_every_kind_of_model(method, rng):
    for module in (Vision(5), SequenceFirst()):
        explainer, x = Explainer(module), normal(rng, 2, 5, D)
        for found, row in zip(explainer(x, method), x, strict=True):
            assert found.scores.shape == (5,)
            assert abs(found.scores).max() > 0
            exactly(found.scores, explainer(row, method).scores, 1e-6)


def test_biases_that_a_batch_assigns_to_the_wrong_sample_are_noticed():
    """LED flattens chunks of all samples: the residual of a batch is 3e-4, that of a sample 0."""
    model = family_model("led", "classify")
    rows = [[5, 17, 33, 8, 60, 71, 2], [9, 4, 11, 23, 7, 12, 2]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplesRunAlone)
        together = Explainer(model)(rows, target=1)
    for row, one in zip(rows, together, strict=True):
        alone = Explainer(model)([row], target=1)[0]
        lines = {(line.label, line.kind): line.value for line in alone.ledger.lines}
        for line in one.ledger.lines:
            exactly(line.value, lines.get((line.label, line.kind), 0.0), 1e-4)
