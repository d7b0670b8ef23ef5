"""The axioms on small functions whose right scores are known, and on small models."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from benchmarks.tiny import model
from tests.audits.cases import case_of, case_of_ids, random_case
from tests.helpers import exactly
from tests.modules import Block
from wherefrom import load, method
from wherefrom.audits.altered_models import symmetrised
from wherefrom.audits.axioms import completeness, dummy, effects, sensitivity, symmetry
from wherefrom.core.target import Case
from wherefrom.errors import InputError, ModelError
from wherefrom.methods import Method, Scores
from wherefrom.methods.forward_pass import run

# Completeness.


def test_gradient_x_input_adds_up_on_a_linear_function_and_doubles_a_quadratic_one():
    linear = case_of(lambda x: (3 * x).sum((1, 2)), [1.0, 2.0])
    assert completeness(method("gradient_x_input"), linear).gap < 1e-12
    quadratic = case_of(lambda x: (x * x).sum((1, 2)), [1.0, 2.0])
    sums = completeness(method("gradient_x_input"), quadratic)
    assert (sums.total, sums.expected, sums.gap) == pytest.approx((10, 5, 1))
    assert not sums.claimed


def test_integrated_gradients_claim_and_keep_the_rise_over_their_baseline():
    quadratic = case_of(lambda x: (x * x).sum((1, 2)) + 7, [1.0, 2.0])
    base = torch.full((1, 2, 1), 0.5, dtype=torch.float64)
    sums = completeness(method("integrated_gradients", baseline=base), quadratic)
    assert sums.claimed
    assert sums.baseline
    assert sums.expected == pytest.approx(5 - 0.5)
    assert sums.gap < 1e-12
    crude = method("integrated_gradients", baseline=base, steps=1, rule="right")
    assert completeness(crude, quadratic).gap > 0.1


def test_lrp_claims_and_keeps_the_output_with_its_ledger():
    sums = completeness(method("lrp"), random_case(Block()))
    assert sums.claimed
    assert sums.ledger
    assert sums.gap < 1e-12


def test_scores_without_a_ledger_are_compared_with_the_output_and_claim_nothing(bert_case):
    sums = completeness(method("attention_last"), bert_case)
    assert not sums.claimed
    assert not sums.ledger
    assert sums.total == pytest.approx(1)  # attention of one row
    logits = run(bert_case)
    assert sums.expected == pytest.approx(float(logits[0, 1]))


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


def test_an_input_without_effect_cannot_be_tested():
    case = case_of(lambda x: 0 * x.sum((1, 2)), [2.0, 0.5])
    with pytest.raises(InputError, match="no unit"):
        sensitivity(method("gradient_x_input"), case, effects(case))


# A unit that the function does not depend on.


def test_a_unit_that_mattered_has_no_effect_once_the_function_ignores_it(bert_case):
    assert effects(bert_case).abs().min() > 1e-4
    for unit in range(5):
        assert dummy(method("occlusion"), bert_case, unit) == pytest.approx((0, 0), abs=1e-12)


@pytest.mark.parametrize("name", ["integrated_gradients", "gradient", "smoothgrad"])
def test_gradient_methods_score_a_dummy_zero(name, bert_case):
    assert dummy(method(name), bert_case, 2) == (0, 0)


def test_lrp_scores_only_the_position_of_a_dummy(bert_case):
    total, value = dummy(method("lrp"), bert_case, 2)
    assert value == 0
    assert total > 1e-3
    assert dummy(method("lrp"), random_case(Block()), 2) == (0, 0)  # there are no positions


@pytest.mark.parametrize("name", ["attention_last", "attention_rollout", "gae", "random"])
def test_attention_and_chance_score_a_dummy(name, bert_case):
    assert dummy(method(name), bert_case, 2).value > 1e-3


def test_a_baseline_token_is_looked_up_before_the_input_is_changed(bert_case):
    for unit in (0, 2):
        assert dummy(method("integrated_gradients", baseline=7), bert_case, unit) == (0, 0)
    assert dummy(method("occlusion", baseline=7), bert_case, 2).value < 1e-12


# Images and graphs: units with positions, and an image that is put together from its patches.


@pytest.mark.parametrize("kind", ["image_case", "graph_case"])
def test_patches_and_atoms_are_told_from_their_positions(kind, request):
    case = request.getfixturevalue(kind)
    unit, other = effects(case).abs().argsort(descending=True)[:2].tolist()
    for shares in (dummy(method("lrp"), case, unit), symmetry(method("lrp"), case, unit, other)):
        assert shares.value == 0
        assert shares.total > 1e-3
    for name in ("occlusion", "integrated_gradients"):
        assert dummy(method(name), case, unit) == pytest.approx((0, 0), abs=1e-12)
        assert symmetry(method(name), case, unit, other) == pytest.approx((0, 0), abs=1e-12)
    assert dummy(method("attention_rollout"), case, unit).value > 0.1
    assert symmetry(FirstIsBest(), case, unit, other).value > 1e-3


@pytest.mark.parametrize("kind", ["image_case", "graph_case"])
def test_the_symmetrised_function_is_the_sum_of_both_orders(kind, request):
    case = request.getfixturevalue(kind)
    i, j = effects(case).abs().argsort(descending=True)[:2].tolist()
    (name,) = case.batch.fields
    order = list(range(len(case.batch.units[0])))
    order[i], order[j] = j, i
    exchanged = case.batch.with_tensors({name: case.batch.tensors[name][:, order]})
    expected = run(case) + run(Case(case.runner, exchanged))
    exactly(run(Case(symmetrised(case, i, j), case.batch)), expected)
    assert not torch.equal(run(case), run(Case(case.runner, exchanged)))


def test_an_image_without_a_run_of_the_method_is_run_once_more(image_case):
    sums = completeness(method("random"), image_case)
    logits = run(image_case)
    assert sums.expected == pytest.approx(float(logits.max()))


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

    def scores(self, case):
        return Scores(1.0 / (1 + torch.arange(case.batch.mask.shape[1]).double()).unsqueeze(0))


def test_two_words_at_one_place_score_alike_but_by_chance_and_place(bert_case):
    for name in ("integrated_gradients", "lrp", "attention_rollout", "gae", "dix"):
        assert symmetry(method(name), bert_case, 1, 3).total < 1e-9, name
    assert symmetry(FirstIsBest(), bert_case, 1, 3).value == pytest.approx(1 / 2 - 1 / 4)
    assert symmetry(method("random"), bert_case, 1, 3).value > 1e-3
    # noise is drawn place by place
    assert symmetry(method("smoothgrad"), bert_case, 1, 3).value > 1e-4


def test_where_a_later_word_sees_more_the_sum_of_two_runs_is_symmetric(gpt2_case):
    assert symmetry(method("integrated_gradients"), gpt2_case, 1, 3).total < 1e-12
    shares = symmetry(method("lrp"), gpt2_case, 1, 3)
    assert shares.value < 1e-12
    assert shares.total > 1e-3  # positions differ
    assert symmetry(FirstIsBest(), gpt2_case, 1, 3).value == pytest.approx(1 / 2 - 1 / 4)
    with pytest.raises(ModelError, match="reads attention maps"):
        symmetry(method("gae"), gpt2_case, 1, 3)


def test_units_that_enter_twice_cannot_be_exchanged():
    case = case_of_ids(model("bart", "classify"), [0, 5, 17, 33, 2])
    with pytest.raises(ModelError, match="more than once"):
        symmetry(method("gradient_x_input"), case, 1, 2)


def test_removed_nodes_are_symmetric_and_their_dummy_test_is_not_valid():
    explainer = load("bace")
    case = Case(explainer.runner, *explainer._prepared("CCO"))
    shapley = method("shapley")
    assert completeness(shapley, case).gap < 1e-6
    with pytest.raises(ModelError, match="the altered model reads as well"):
        dummy(shapley, case, 0)
    assert dummy(method("shapley", baseline="zero"), case, 0).total < 1e-5
