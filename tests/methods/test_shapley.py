"""The method `shapley` on every kind of input, against the formula over all subsets."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from captum.attr import ShapleyValues, ShapleyValueSampling
from transformers import ViTConfig, ViTForImageClassification

from tests.helpers import ViTProcessor, assert_unchanged, exactly, normal
from tests.methods.calling import of_tensor, rows_run, same, scores
from tests.methods.test_graphs import explainer as graph_explainer
from tests.methods.test_graphs import random_graph
from tests.modules import Block, D
from tests.oracles.shapley import by_subsets
from wherefrom import Explainer, Explanation, evaluate, load
from wherefrom.core.runner import Rejected
from wherefrom.errors import FileError, InputError, NotFinite
from wherefrom.testing import snapshot

__all__ = ["graph_explainer"]
TEXT = "the great script is not dull ."
LONG = "i love the great script and it is not bad . the film is good and the movie is great ."


@pytest.fixture
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


def logit_of_texts(explainer, ids, groups, index):
    """The output of a class for a set of groups of places; the others hold [UNK]."""
    model, unknown = explainer.runner.model, explainer.tokenizer.unk_token_id
    removable = {place for group in groups for place in group}

    def value(present):
        kept = {place for player in present for place in groups[player]}
        row = [unknown if i in removable - kept else token for i, token in enumerate(ids)]
        with torch.no_grad():
            return model(torch.tensor([row])).logits[0, index]

    return value


def reference_of(explanation):
    return explanation.ledger.of("reference")


def assert_efficient(explanation):
    """f(x) = Σ scores + f(x'), as lines of the ledger."""
    first, second = explanation.ledger.lines
    assert (second.label, second.kind) == ("reference", "reference")
    assert first.value == pytest.approx(float(explanation.scores.astype(float).sum()), rel=1e-5)
    assert abs(explanation.ledger.residual) <= 1e-12 * (1 + abs(explanation.output))


def test_words_of_a_text_have_their_shapley_values_with_unknown_words_as_the_rest(explainer):
    explanation = explainer(TEXT, "shapley", target=1)
    ids = explainer.tokenizer(TEXT)["input_ids"]
    groups = [[place] for place in range(1, len(ids) - 1)]
    value = logit_of_texts(explainer, ids, groups, 1)
    exactly(explanation.scores[1:-1], by_subsets(value, len(groups)), 1e-6)
    assert not explanation.scores[[0, -1]].any()  # special tokens stay
    assert not explanation.errors.any()
    assert explanation.settings["baseline"] == "unk"
    assert reference_of(explanation) == pytest.approx(float(value(frozenset())), rel=1e-12)
    assert_efficient(explanation)


def test_words_of_several_tokens_are_one_player(explainer):
    text = "lovely scripts , dull"
    explanation = explainer(text, "shapley", target=0, players="words")
    units = explanation.units
    groups = [[i for i, unit in enumerate(units) if unit.word == word] for word in range(4)]
    assert max(map(len, groups)) > 1
    value = logit_of_texts(explainer, explainer.tokenizer(text)["input_ids"], groups, 0)
    expected = by_subsets(value, 4)
    exactly(explanation.words().scores[1:-1], expected, 1e-6)
    for group, amount in zip(groups, expected, strict=True):
        exactly(explanation.scores[group], [amount / len(group)] * len(group), 1e-6)


def test_a_text_and_its_second_text_are_two_parts(explainer):
    explanation = explainer(("good film", "a dull movie"), "shapley", players="parts", target=1)
    units = explanation.units
    groups = [
        [i for i, unit in enumerate(units) if unit.field == field and not unit.special]
        for field in dict.fromkeys(unit.field for unit in units if not unit.special)
    ]
    inputs = dict(explainer._prepared(("good film", "a dull movie"))[0].tensors)
    unknown = explainer.tokenizer.unk_token_id

    def value(present):
        missing = [i for player in {0, 1} - present for i in groups[player]]
        ids = inputs["input_ids"].clone()
        ids[0, missing] = unknown
        with torch.no_grad():
            return explainer.runner.model(**inputs | {"input_ids": ids}).logits[0, 1]

    for group, amount in zip(groups, by_subsets(value, 2), strict=True):
        assert float(explanation.scores[group].sum()) == pytest.approx(float(amount), rel=1e-5)
    with pytest.raises(InputError, match="the input has no parts"):
        explainer("good film", "shapley", players="parts")


def test_long_texts_are_sampled_within_the_budget_and_by_the_seed(explainer):
    with rows_run(explainer.runner.model) as counts:
        first = explainer(LONG, "shapley", target=1, budget=300)
    assert sum(counts) <= 300 + 2  # and the input with and without its words
    again, other = (explainer(LONG, "shapley", target=1, budget=300, seed=seed) for seed in (0, 1))
    assert first == again
    assert np.abs(first.scores - other.scores).max() > 0
    plain = ~np.array([unit.special for unit in first.units])
    assert (first.errors[plain] > 0).all()
    assert not first.errors[~plain].any()
    assert_efficient(first)


def test_standard_errors_are_the_spread_over_seeds(explainer):
    several = [explainer(LONG, "shapley", target=1, budget=400, seed=seed) for seed in range(30)]
    plain = ~np.array([unit.special for unit in several[0].units])
    spread = np.std([one.scores[plain] for one in several], 0, ddof=1)
    errors = np.sqrt(np.mean([np.square(one.errors[plain]) for one in several], 0))
    assert 0.8 < float(np.median(spread / errors)) < 1.25


def test_captum_has_the_same_values(rng):
    module, x = Block(), normal(rng, 1, 5, D)
    actual = scores(module, of_tensor(x), "shapley", 1)
    features = torch.arange(5)[None, :, None].expand_as(x).contiguous()

    def output(rows):
        return module(rows)[:, 1]

    values = ShapleyValues(output).attribute(x, feature_mask=features)
    same(actual[0], values[0, :, 0].detach(), 1e-5)  # it adds in float32
    torch.manual_seed(0)
    sampled = ShapleyValueSampling(output).attribute(x, feature_mask=features, n_samples=400)
    same(actual[0], sampled[0, :, 0].detach(), 0.1)


def test_units_equal_to_their_baseline_are_no_players(rng):
    module, x = Block(), normal(rng, 1, 16, D)
    x[0, 4:] = 0
    with rows_run(module) as counts:
        actual = scores(module, of_tensor(x), "shapley", 1, budget=16)
    assert sum(counts) <= 18

    def value(present):
        with torch.no_grad():
            return module(x * torch.tensor([[i in present] for i in range(16)]))[0, 1]

    same(actual[0, :4], by_subsets(value, 4))
    assert not actual[0, 4:].any()


def test_an_input_that_equals_its_baseline_scores_nothing():
    explanation = Explainer(Block())(torch.zeros(3, D, dtype=torch.float64), "shapley")
    assert not explanation.scores.any()
    assert reference_of(explanation) == pytest.approx(explanation.output)


@pytest.fixture(scope="module")
def viewer():
    """A random model of three classes for images of 8 × 8 pixels in 4 patches."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=24, num_labels=3,
    )  # fmt: skip
    model = ViTForImageClassification(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    size = {"height": 8, "width": 8}
    return Explainer(model, processor=ViTProcessor(size=size, image_mean=[0.1], image_std=[0.3]))


def erased_output(explainer, source, index):
    """The output for a set of units, by the copies that an evaluation makes of the input."""
    reader = explainer._reader(source)
    item = reader.read(source, False)
    count = reader.size(item)

    def value(present):
        mask = np.array([[i in present for i in range(count)]])
        with torch.no_grad():
            tensors = reader.collate(reader.erased(item, mask, None))
            return reader.runner.run(tensors)[0, index]

    return value, count


def test_patches_of_an_image_become_zero(viewer):
    image = np.random.default_rng(1).integers(0, 256, (8, 8), dtype=np.uint8)
    explanation = viewer(image, "shapley", target=2)
    value, count = erased_output(viewer, image, 2)
    assert count == 4
    exactly(explanation.scores, by_subsets(value, count), 1e-5)
    assert explanation.settings["baseline"] == "zero"
    assert_efficient(explanation)


def test_nodes_of_a_graph_are_removed(graph_explainer):
    graph = random_graph(5)
    explanation = graph_explainer(graph, "shapley", target=1)
    value, count = erased_output(graph_explainer, graph, 1)
    exactly(explanation.scores, by_subsets(value, count), 1e-6)
    assert explanation.settings["baseline"] == "remove"
    assert_efficient(explanation)
    other = random_graph(6, nodes=4)
    together = graph_explainer([graph, other], "shapley", target=1)
    exactly(together[0].scores, explanation.scores, 1e-6)


def test_scores_and_reference_add_up_without_rounding_in_float32():
    """Batches of other sizes round differently, but the ledger has one output."""
    explainer = load("sentiment")
    for text in ("a gorgeous, dull film.", "a film"):
        lines = explainer(text, "shapley").ledger
        assert abs(lines.residual) <= 1e-14 * abs(lines.output)


@dataclass
class Overflows:
    """A forward function whose output is NaN where this token is present without its neighbour."""

    token: int

    def __call__(self, model, inputs):
        logits = model(**inputs).logits
        ids = inputs["input_ids"]
        return torch.where((ids == self.token).any(1)[:, None], torch.nan, logits)


def test_a_row_whose_output_is_nan_without_a_word_is_rejected_alone(bert, wordpiece):
    unknown = wordpiece.unk_token_id
    explainer = Explainer(bert, wordpiece, forward=Overflows(unknown))
    whole, bad = explainer.each(["good", "good film"], "gradient_x_input", target=0)
    assert isinstance(whole, Explanation)
    assert isinstance(bad, Explanation)
    results = explainer.each(["[CLS]", "good film"], "shapley", target=0)
    assert isinstance(results[1], Rejected)
    assert isinstance(results[1].error, NotFinite)
    assert isinstance(results[0], Explanation)  # only special tokens: nothing is replaced


def test_the_model_is_unchanged_also_by_an_error(explainer):
    model = explainer.runner.model
    before = snapshot(model)
    explainer(TEXT, "shapley", target=1, budget=100)
    with pytest.raises(InputError, match=r"need at least 26 evaluations.*Pass budget=26 or more"):
        explainer(TEXT, "shapley", target=1, budget=25)
    assert_unchanged(before, snapshot(model))


def test_the_metrics_find_nothing_wrong_with_shapley_values(explainer):
    """One estimator: also where it samples, with the same seed and budget."""
    metrics = ["shapley_r", "shapley_slope", "shapley_error", "completeness"]
    values = evaluate(
        explainer, [TEXT, LONG], ["shapley"], metrics, keep_special=True
    ).values["shapley"]  # fmt: skip
    exactly(values["shapley_r"], [1, 1], 1e-5)
    exactly(values["shapley_slope"], [1, 1], 1e-5)
    assert max(values["shapley_error"]) < 1e-5
    assert max(values["completeness"]) < 1e-5


def test_evaluations_use_it_only_if_it_is_named(explainer):
    result = evaluate(explainer, ["good film", "bad film"], metrics=["conciseness"])
    assert "shapley" not in result.methods
    assert "occlusion" in result.methods


def test_standard_errors_are_shown_and_stored(explainer):
    explanation = explainer("lovely and great film , not dull", "shapley", target=1, budget=60)
    again = Explanation.from_json(explanation.to_json())
    assert again == explanation
    assert again.errors.dtype == np.float32
    exactly(again.errors, explanation.errors)
    words = explanation.words()
    first = [i for i, unit in enumerate(explanation.units) if unit.word == 0]
    assert len(first) > 1
    assert words.errors[1] == pytest.approx(float(explanation.errors[first].sum()), rel=1e-6)
    largest = float(explanation.errors.max())
    assert f"standard errors up to {largest:.2g}" in str(explanation)
    assert "±" in str(explanation)
    assert f"standard error {explanation.errors[1]:.2g}" in explanation.to_html()
    assert explanation.to_frame()["error"].tolist() == explanation.errors.tolist()
    exact = explainer("good film", "shapley", target=1)
    assert "all subsets were run" in str(exact)
    assert explainer("good film").errors is None
    assert "standard error" not in str(explainer("good film"))
    damaged = explanation.to_dict() | {"errors": [0.0]}
    with pytest.raises(FileError, match="parts or errors of a different length"):
        Explanation.from_dict(damaged)
