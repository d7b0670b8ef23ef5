"""The axioms on small functions of which the truth is known, and on tiny models."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from benchmarks.tiny import model
from tests.helpers import exactly
from tests.modules import Block, Pooled, Vision
from wherefrom import Explainer, method
from wherefrom.audits.altered_models import Case, in_float64, on_copy
from wherefrom.audits.axioms import completeness, dummy, effects, moved, sensitivity, symmetry
from wherefrom.audits.rewrites import KINDS, rewrites
from wherefrom.errors import InputError, ModelError
from wherefrom.explanation import Unit
from wherefrom.inputs.text import batch, from_ids
from wherefrom.methods import Method, Scores
from wherefrom.methods.intercept import run
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target
from wherefrom.testing import untouched

ROWS = [[5, 17, 33, 8, 2], [9, 4, 11, 23, 40, 71, 2]]


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x).unsqueeze(-1)


def case_of(module, x):
    """A float tensor (units, features) as one case of a module or plain function."""
    module = module if isinstance(module, nn.Module) else Function(module)
    x = torch.as_tensor(x, dtype=torch.float64)
    x = x.unsqueeze(0) if x.ndim == 2 else x.reshape(1, -1, 1)
    units = (tuple(Unit(str(i)) for i in range(x.shape[1])),)
    inputs = Inputs({"x": x}, ("x",), units, torch.ones(x.shape[:2], dtype=torch.bool), (None,))
    return Case(Subject(module, lambda m, t: m(t["x"])), inputs, Target(torch.tensor([0])))


def case_of_ids(module, ids=ROWS[0], index=1):
    subject = Explainer(module).subject
    return Case(
        subject,
        batch(subject, None, [from_ids(None, ids)], None),
        Target(torch.tensor([index])),
    )


def random_case(module, places=4):
    torch.manual_seed(3)
    return case_of(module, torch.randn(places, 6, dtype=torch.float64))


# Completeness.


def test_gradient_x_input_adds_up_on_a_linear_function_and_doubles_a_quadratic_one():
    linear = case_of(lambda x: (3 * x).sum((1, 2)), [1.0, 2.0])
    assert completeness(method("gradient_x_input"), linear).gap < 1e-12
    quadratic = case_of(lambda x: (x * x).sum((1, 2)), [1.0, 2.0])
    found = completeness(method("gradient_x_input"), quadratic)
    assert found.total == pytest.approx(10)
    assert found.expected == pytest.approx(5)
    assert found.gap == pytest.approx(1)
    assert not found.claimed


def test_integrated_gradients_claim_and_keep_the_rise_over_their_baseline():
    quadratic = case_of(lambda x: (x * x).sum((1, 2)) + 7, [1.0, 2.0])
    base = torch.full((1, 2, 1), 0.5, dtype=torch.float64)
    found = completeness(method("integrated_gradients", baseline=base), quadratic)
    assert found.claimed
    assert found.baseline
    assert found.expected == pytest.approx(5 - 0.5)
    assert found.gap < 1e-12
    crude = method("integrated_gradients", baseline=base, steps=1, rule="right")
    assert completeness(crude, quadratic).gap > 0.1


def test_lrp_claims_and_keeps_the_output_with_its_ledger():
    found = completeness(method("lrp"), random_case(Block()))
    assert found.claimed
    assert found.ledger
    assert found.gap < 1e-12


def test_scores_without_a_ledger_are_held_against_the_output_and_claim_nothing():
    found = completeness(method("attention_last"), case_of_ids(model("bert", "classify")))
    assert not found.claimed
    assert not found.ledger
    assert found.total == pytest.approx(1)  # attention of one row


# Sensitivity.


def saturated(x):
    """Sundararajan et al. 2017: flat where x is 2, yet f(2) − f(0) = 1."""
    return 1 - torch.relu(1 - x[:, 0, 0]) + x[:, 1, 0]


def test_effects_are_what_the_output_loses():
    exactly(effects(case_of(saturated, [2.0, 0.5])), [1.0, 0.5])


def test_gradient_x_input_misses_a_saturated_unit_and_integrated_gradients_do_not():
    case = case_of(saturated, [2.0, 0.5])
    lost = effects(case)
    missed = sensitivity(method("gradient_x_input"), case, lost)
    assert missed.share == 0
    assert missed.unit == 0
    assert missed.effect == pytest.approx(1)
    for name in ("integrated_gradients", "path_gradients", "occlusion"):
        assert sensitivity(method(name), case, lost).share == pytest.approx(1)


def test_a_unit_that_does_not_matter_may_score_zero():
    case = case_of(lambda x: x[:, 0, 0] + 0 * x[:, 1, 0], [2.0, 0.5])
    assert sensitivity(method("gradient_x_input"), case, effects(case)).share == 1


def test_where_nothing_matters_nothing_is_said():
    case = case_of(lambda x: 0 * x.sum((1, 2)), [2.0, 0.5])
    with pytest.raises(InputError, match="no unit"):
        sensitivity(method("gradient_x_input"), case, effects(case))


# A unit that the function does not depend on.


def test_the_unit_was_strong_and_the_unseeing_function_loses_nothing_without_it():
    case = case_of_ids(model("bert", "classify"))
    assert effects(case).abs().min() > 1e-4
    for unit in range(5):
        assert dummy(method("occlusion"), case, unit) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("name", ["integrated_gradients", "gradient", "smoothgrad"])
def test_gradient_methods_give_a_dummy_nothing(name):
    case = case_of_ids(model("bert", "classify"))
    assert dummy(method(name), case, 2) == (0, 0)


def test_lrp_gives_a_dummy_nothing_but_its_position():
    whole, own = dummy(method("lrp"), case_of_ids(model("bert", "classify")), 2)
    assert own == 0
    assert whole > 1e-3
    assert dummy(method("lrp"), random_case(Block()), 2) == (0, 0)  # there are no positions


@pytest.mark.parametrize("name", ["attention_last", "attention_rollout", "gae", "random"])
def test_attention_and_chance_give_a_dummy_weight(name):
    case = case_of_ids(model("bert", "classify"))
    assert dummy(method(name), case, 2)[1] > 1e-3


def test_a_baseline_that_is_a_token_is_looked_up_before_the_input_is_changed():
    case = case_of_ids(model("bert", "classify"))
    for unit in (0, 2):
        assert dummy(method("integrated_gradients", baseline=7), case, unit) == (0, 0)
    assert dummy(method("occlusion", baseline=7), case, 2)[1] < 1e-12


# Symmetry.


def x0_times_x1(x):
    return x[:, 0, 0] * x[:, 1, 0]


def first_then_second(start, end, a):
    """A crooked path: the first unit goes all the way, then the others."""
    point = start + max(0.0, 2 * a - 1) * (end - start)
    first = start[..., :1, :] + min(1.0, 2 * a) * (end - start)[..., :1, :]
    return torch.cat([first, point[..., 1:, :]], -2)


def test_a_crooked_path_breaks_symmetry_where_it_is_the_same_for_both_terms():
    product = case_of(x0_times_x1, [2.0, 5.0])
    assert symmetry(method("integrated_gradients"), product, 0, 1)[1] < 1e-12
    assert symmetry(method("path_gradients", path=first_then_second), product, 0, 1)[1] > 0.5


def test_the_function_is_made_to_treat_both_units_alike():
    # 3 a + b² is not symmetric; with both units 2 and the two exchanged it is 3 (a + b) + a² + b²
    case = case_of(lambda x: 3 * x[:, 0, 0] + x[:, 1, 0] ** 2, [2.0, 5.0])
    assert symmetry(method("gradient_x_input"), case, 0, 1) == pytest.approx((0, 0), abs=1e-12)


@dataclass(frozen=True)
class FirstIsBest(Method):
    """Scores by place alone."""

    name: ClassVar[str] = "first_is_best"

    def scores(self, subject, inputs, target):
        return Scores(1.0 / (1 + torch.arange(inputs.mask.shape[1]).double()).unsqueeze(0))


def test_two_words_at_one_place_count_alike_for_all_but_chance_and_place():
    case = case_of_ids(model("bert", "classify"))
    for name in ("integrated_gradients", "lrp", "attention_rollout", "gae", "dix"):
        assert symmetry(method(name), case, 1, 3)[0] < 1e-9, name
    assert symmetry(FirstIsBest(), case, 1, 3)[1] == pytest.approx(1 / 2 - 1 / 4)
    assert symmetry(method("random"), case, 1, 3)[1] > 1e-3
    assert symmetry(method("smoothgrad"), case, 1, 3)[1] > 1e-4  # noise is drawn place by place


def test_where_a_later_word_sees_more_the_sum_of_two_runs_treats_both_alike():
    case = case_of_ids(model("gpt2", "classify"))
    assert symmetry(method("integrated_gradients"), case, 1, 3)[0] < 1e-12
    whole, own = symmetry(method("lrp"), case, 1, 3)
    assert own < 1e-12
    assert whole > 1e-3  # positions differ
    assert symmetry(FirstIsBest(), case, 1, 3)[1] == pytest.approx(1 / 2 - 1 / 4)
    with pytest.raises(ModelError, match="reads attention maps"):
        symmetry(method("gae"), case, 1, 3)


def test_units_that_enter_twice_cannot_be_exchanged():
    case = case_of_ids(model("bart", "classify"), [0, 5, 17, 33, 2])
    with pytest.raises(ModelError, match="several places"):
        symmetry(method("gradient_x_input"), case, 1, 2)


# Implementation invariance.


def found_in(case, *others):
    return {r.kind: r for r in rewrites(case.subject, [case.inputs, *(o.inputs for o in others)])}


EXPECTED = {  # sites of hidden, heads, channels, values, norms
    ("bert", "sdpa"): (3, 2, 2, 2, 1),
    ("bert", "eager"): (3, 2, 2, 2, 1),
    ("gpt2", "sdpa"): (2, 2, 2, 2, 5),
    ("gpt2", "eager"): (2, 2, 2, 2, 5),
    ("llama", "sdpa"): (2, 0, 2, 2, 5),  # rotated queries and keys are not understood
    ("llama", "eager"): (2, 0, 2, 2, 5),
}


@pytest.mark.parametrize(("family", "attention"), list(EXPECTED))
def test_rewrites_are_found_and_keep_the_function_on_other_inputs_too(family, attention):
    module = model(family, "classify", attn_implementation=attention)
    case = case_of_ids(module)
    found = found_in(case)
    counts = tuple(len(found[kind].sites) for kind in KINDS)
    assert counts == EXPECTED[family, attention]
    other = torch.tensor(ROWS[1:])
    with torch.no_grad():
        expected = module(input_ids=other).logits
        for rewrite in found.values():
            before = {name: p.clone() for name, p in module.named_parameters()}
            with untouched(module), rewrite.applied():
                changed = sum(not torch.equal(before[n], p) for n, p in module.named_parameters())
                exactly(module(input_ids=other).logits, expected, 1e-6)
                assert (changed > 0) == bool(rewrite.sites)


def test_layers_of_torch_itself_are_found_by_what_they_do():
    module = Vision(4)
    found = found_in(random_case(module))
    counts = {kind: len(rewrite.sites) for kind, rewrite in found.items()}
    assert counts == {"hidden": 2, "heads": 2, "channels": 2, "values": 2, "norms": 4}


def test_a_hidden_layer_is_permuted_row_by_row_and_column_by_column():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)).double()
    wrapped = nn.Sequential(net, nn.Flatten(1)).double()
    case = case_of(wrapped, torch.randn(1, 6, dtype=torch.float64))
    first, last = net[0], net[2]
    was = [p.detach().clone() for p in (first.weight, first.bias, last.weight)]
    (rewrite,) = [r for r in found_in(case).values() if r.sites]
    assert rewrite.kind == "hidden"
    with rewrite.applied():
        order = [int((was[0] == row).all(1).nonzero()) for row in first.weight]
        assert sorted(order) == list(range(8))
        assert all(i != j for i, j in enumerate(order))  # nothing stays in its place
        exactly(first.bias.detach(), was[1][order])
        exactly(last.weight.detach(), was[2][:, order])


def test_a_norm_is_folded_as_the_textbook_says():
    torch.manual_seed(0)
    norm, last = nn.LayerNorm(6).double(), nn.Linear(6, 3).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    weight, bias = (
        (last.weight * norm.weight).detach(),
        (last.bias + last.weight @ norm.bias).detach(),
    )
    case = case_of(nn.Sequential(norm, last, nn.Flatten(1)), torch.randn(1, 6))
    with found_in(case)["norms"].applied():
        exactly(norm.weight.detach(), torch.ones(6))
        exactly(norm.bias.detach(), torch.zeros(6))
        exactly(last.weight.detach(), weight)
        exactly(last.bias.detach(), bias)


class Residual(nn.Module):
    """What a hidden layer makes is also added to the input: nothing here can be moved."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, x):
        return self.head(x + torch.relu(self.inner(x)))[:, 0]


def test_what_is_not_understood_is_left_alone():
    for module in (Residual(), Pooled()):
        assert not any(r.sites or r.dropped for r in found_in(random_case(module)).values())


def test_a_place_where_the_outputs_move_is_dropped_and_counted():
    # the last norm is read by a head that is also the table of words
    module = model("gpt2", "write", vocab_size=120)
    found = found_in(case_of_ids(module))["norms"]
    assert found.dropped == 1
    assert len(found.sites) == 4
    # heads of T5 have a bias each, by distance, where there is one
    heads = found_in(case_of_ids(model("t5", "classify"), [5, 17, 33, 8, 2]))["heads"]
    assert heads.dropped > 0
    assert heads.moved < 1e-12


def test_gradients_do_not_move_and_transformer_attribution_does():
    case = case_of_ids(model("gpt2", "classify"))
    found = found_in(case)
    for name in ("gradient_x_input", "lrp", "attention_rollout"):
        before = case.scores(method(name)).values
        for rewrite in found.values():
            with rewrite.applied():
                assert moved(method(name), case, before) < 1e-6, (name, rewrite.kind)
        assert moved(method(name), case, before) == 0  # all is as it was
    chefer = method("transformer_attribution")
    before = case.scores(chefer).values
    with found["norms"].applied():
        assert moved(chefer, case, before) > 0.01


# Cases and copies.


def test_a_copy_is_in_float64_and_the_model_stays_as_it_is():
    module = model("bert", "classify").float()
    case = case_of_ids(module)
    with untouched(module):
        copied = on_copy(case, in_float64(case.subject))
        rewrites(copied.subject, [copied.inputs])
    assert run(copied.subject, copied.inputs).dtype == torch.float64
    assert module.dtype == torch.float32


def test_a_case_is_one_input():
    subject = Explainer(model("bert", "classify")).subject
    both = batch(subject, None, [from_ids(None, row) for row in ROWS], None)
    with pytest.raises(InputError, match="not on 2"):
        Case(subject, both, Target(torch.tensor([0, 0])))
