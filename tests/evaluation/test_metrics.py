"""Each metric against its protocol, one model call at a time, and its direction."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import spearmanr

from benchmarks.tiny import model
from tests.evaluation.additive import FixedScores, additive_explainer
from tests.helpers import exactly
from tests.oracles import protocols
from wherefrom import Explainer, evaluate
from wherefrom.core.explanation import Explanation, TargetInfo, Unit
from wherefrom.errors import InputError
from wherefrom.evaluation.metrics import METRICS, Sample, correlations

TEXTS = ["the film is good", "a dull movie", "i love the great script and it is not bad .", "bad"]
IMAGE_METRICS = (
    "insertion", "deletion", "positive", "negative", "positive_accuracy", "negative_accuracy",
)  # fmt: skip


@pytest.mark.parametrize("name", ["lrp", "random"])
def test_metrics_of_texts_equal_the_slow_loop(bert, wordpiece, name):
    explainer = Explainer(bert, wordpiece)
    metrics = ["activation", "pruning", "flip", "leave_one_out"]
    result = evaluate(explainer, TEXTS, [name], metrics, window=3)
    values, series = result.values[name], result.series[name]
    blank = wordpiece.unk_token_id
    for at, text in enumerate(TEXTS):
        explanation = explainer(text, name)
        scores, index = explanation.scores, explanation.target.index
        ids = wordpiece(text)["input_ids"]
        area, curve = protocols.auac(bert, ids, scores, index, blank)
        exactly(values["activation"][at], area, 1e-12)
        exactly(series["activation"][at], curve, 1e-12)
        area, curve = protocols.au_mse(bert, ids, scores, blank)
        exactly(values["pruning"][at], area, 1e-12)
        exactly(series["pruning"][at], curve, 1e-12)
        exactly(values["flip"][at], protocols.to_flip(bert, ids, scores, blank))
        whole = protocols.outputs(bert, ids)[index]
        drops = [
            whole - protocols.outputs(bert, [*ids[:k], blank, *ids[k + 1 :]])[index]
            for k in range(len(ids))
        ]
        expected = protocols.rank_correlation(scores, drops)
        exactly(values["leave_one_out"][at], expected, 1e-12)


def test_completeness_and_agreement_with_shapley_values_equal_the_definitions(bert, wordpiece):
    explainer, texts = Explainer(bert, wordpiece), [TEXTS[1], TEXTS[3]]
    metrics = ["completeness", "shapley_r", "shapley_slope", "shapley_error"]
    values = evaluate(explainer, texts, ["lrp"], metrics).values["lrp"]
    for at, text in enumerate(texts):
        explanation = explainer(text, "lrp")
        scores, index = explanation.scores.astype(float), explanation.target.index
        ids = wordpiece(text)["input_ids"]

        def output(present, ids=ids, index=index):
            kept = [t if i in present else wordpiece.unk_token_id for i, t in enumerate(ids)]
            return protocols.outputs(bert, kept)[index]

        change = output(set(range(len(ids)))) - output(set())
        exactly(values["completeness"][at], abs(scores.sum() - change) / abs(change), 1e-9)
        expected = np.array(protocols.shapley(output, len(ids)))
        exactly(values["shapley_r"][at], np.corrcoef(scores, expected)[0, 1], 1e-9)
        exactly(values["shapley_slope"][at], np.polyfit(scores, expected, 1)[0], 1e-9)
        error = np.abs(scores - expected).mean() / np.abs(expected).mean()
        exactly(values["shapley_error"][at], error, 1e-9)


def test_on_an_additive_model_the_weights_are_the_shapley_values(wordpiece):
    """Twice the weights point the same way, at half the slope; sampled values are exact here."""
    weights = np.random.default_rng(0).normal(size=len(wordpiece)).astype(np.float32)
    weights[wordpiece.unk_token_id] = 0
    explainer = additive_explainer(weights.tolist(), wordpiece)
    true, double = (FixedScores(tuple((s * weights).tolist())) for s in (1, 2))
    metrics = ["completeness", "shapley_r", "shapley_slope", "shapley_error"]
    long = TEXTS[2]
    assert len(wordpiece(long)["input_ids"]) > 12
    result = evaluate(explainer, [(TEXTS[0], "yes"), (long, "yes")], [true, double], metrics)
    for method, expected in ((true, (0, 1, 1, 0)), (double, (1, 1, 0.5, 1))):
        for metric, value in zip(metrics, expected, strict=True):
            assert result.values[method.label][metric] == pytest.approx([value] * 2, abs=1e-5)


def test_equal_scores_agree_with_no_shapley_values():
    outputs = np.array([[0.0], [1.0], [3.0], [4.0]])  # none, the first, the second, both
    sample = sample_of(np.ones(2))
    assert METRICS["shapley_r"].value(sample, outputs) == (0.0, None)
    assert METRICS["shapley_slope"].value(sample, outputs) == (0.0, None)
    assert METRICS["shapley_error"].value(sample, outputs)[0] == pytest.approx(2 / 4)
    for name, runs in (("completeness", 2), ("shapley_error", 4)):  # undefined: nothing changes
        assert math.isnan(METRICS[name].value(sample, np.ones((runs, 1)))[0])


@pytest.mark.parametrize("logit", [-2.0, -0.1, 0.0, 0.1, 0.4, 0.6, 2.0])
def test_a_label_of_several_is_predicted_where_it_is_more_likely_than_not(logit):
    sample = replace(sample_of(np.ones(1)), to_probability="sigmoid")
    logits = np.array([[logit, 5.0]])  # whatever another label has
    likely = 1 / (1 + math.exp(-logit)) > 0.5
    assert sample.predictions(logits).tolist() == [0 if likely else -1]
    assert sample.chances(logits)[0] == pytest.approx(1 / (1 + math.exp(-logit)), rel=1e-12)


@pytest.mark.parametrize("blank", ["zero", "blur"])
def test_metrics_of_images_equal_the_slow_loop(blank):
    vit = model("vit", "see")
    with torch.no_grad():  # so that the patches decide, and predictions flip
        vit.vit.embeddings.patch_embeddings.projection.weight.mul_(20)
        vit.classifier.bias.zero_()
    explainer = Explainer(vit)
    chance = torch.Generator().manual_seed(1)
    images = [torch.randn(3, 32, 32, generator=chance, dtype=torch.float64) for _ in range(3)]
    result = evaluate(explainer, images, ["lrp"], IMAGE_METRICS, blank=blank)
    values = result.values["lrp"]
    for at, image in enumerate(images):
        explanation = explainer(image)
        fill = torch.zeros_like(image)
        if blank == "blur":  # as wide as an eighth of the image
            blurred = gaussian_filter(image.numpy(), (0, 4, 4), mode="nearest", truncate=3)
            fill = torch.from_numpy(blurred)
        boxes = [unit.box for unit in explanation.units]
        setting = (vit, image, fill, boxes, explanation.scores, explanation.target.index)
        for name, protocol in (
            ("insertion", protocols.insertion),
            ("deletion", protocols.deletion),
        ):
            area, curve = protocol(*setting)
            exactly(values[name][at], area, 1e-12)
            exactly(result.series["lrp"][name][at], curve, 1e-12)
        for kind in ("positive", "negative"):
            positive = kind == "positive"
            exactly(values[kind][at], protocols.perturbation(*setting, positive, False), 1e-12)
            accuracy = protocols.perturbation(*setting, positive, True)
            exactly(values[f"{kind}_accuracy"][at], accuracy, 1e-12)
    for name in ("positive_accuracy", "negative_accuracy"):
        assert 0 < np.mean(values[name]) < 1


def test_the_true_ranking_is_best_by_every_metric_and_its_reverse_the_worst(wordpiece):
    """On an additive model the weights are the one right explanation."""
    words = "good great love film movie dull bad hate not script".split()
    weights = np.zeros(len(wordpiece), dtype=np.float32)
    weights[wordpiece.convert_tokens_to_ids(words)] = [4, 3, 2, 1.5, 1, -0.5, -1, -2, -2.5, -3]
    by_token = tuple(weights.tolist())
    explainer = additive_explainer(by_token, wordpiece)
    true, reverse = FixedScores(by_token), FixedScores(tuple(-w for w in by_token))
    # least important first: the reverse of a ranking by absolute score is one by its inverse
    inverse = FixedScores(tuple(1 / (1 + abs(w)) for w in by_token))
    metrics = [name for name, metric in METRICS.items() if metric.better]
    metrics = [name for name in metrics if name not in ("conservation", "conciseness")]
    data = [(" ".join(words), "yes")]
    result = evaluate(explainer, data, [reverse, inverse, true], metrics, keep_special=True)
    assert set(metrics) >= {"activation", "pruning", "flip", "leave_one_out", *IMAGE_METRICS}
    for name in metrics:
        values = {label: result.values[label][name][0] for label in result.methods}
        worst = inverse.label if name == "pruning" else reverse.label
        assert values[true.label] != values[worst], name
        assert result.best_by(name) in (true.label, reverse.label if name == "pruning" else ""), (
            name
        )
        ordered = sorted(values, key=values.__getitem__)
        assert ordered[0 if METRICS[name].better == "higher" else -1] == worst, name


def test_no_ranking_beats_the_true_one_on_an_additive_model(wordpiece):
    chance = np.random.default_rng(0)
    weights = chance.normal(size=len(wordpiece)).astype(np.float32)
    weights[wordpiece.unk_token_id] = 0
    explainer = additive_explainer(weights.tolist(), wordpiece)
    others = [FixedScores(tuple(chance.normal(size=len(weights)).tolist())) for _ in range(8)]
    best, worst = (FixedScores(tuple((s * weights).tolist())) for s in (1, -1))
    pairs = [(text, "yes") for text in TEXTS[:3]]
    result = evaluate(explainer, pairs, [best, worst, *others], ["activation"])
    areas = {label: np.array(result.values[label]["activation"]) for label in result.methods}
    assert (areas[best.label] > areas[worst.label]).all()
    for other in others:
        assert (areas[other.label] <= areas[best.label] + 1e-7).all()
        assert (areas[other.label] >= areas[worst.label] - 1e-7).all()


def sample_of(scores):
    units = tuple(Unit(str(i)) for i in range(len(scores)))
    explanation = Explanation(units, scores.astype(np.float32), TargetInfo(0, "a"), 1.0, None, "x")
    return Sample(explanation, np.ones(len(scores), bool), 0, False)


def test_conciseness_and_entropy_of_known_scores():
    sample = sample_of(np.array([0.0, 9.0, 1.0, 0.0]))
    assert METRICS["conciseness"].value(sample, None)[0] == 0.25
    expected = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1)) / math.log(4)
    exactly(METRICS["entropy"].value(sample, None)[0], expected)
    for nothing in (np.zeros(4), np.zeros(0)):  # as where all tokens are special, and kept
        assert METRICS["conciseness"].value(sample_of(nothing), None)[0] == 1
    for scores, value in ((np.zeros(4), 1), (np.ones(4), 1), (np.array([0.0, -2.0]), 0)):
        exactly(METRICS["entropy"].value(sample_of(scores), None)[0], value)


def test_rank_correlations_are_those_of_scipy_also_with_ties():
    rows = np.random.default_rng(0).normal(size=(5, 12)).round(1)
    np.testing.assert_allclose(correlations(rows), spearmanr(rows.T)[0], atol=1e-12)
    rows[2] = 0.3  # a constant correlates with nothing
    assert not correlations(rows)[2].any()


def test_of_several_labels_each_is_predicted_by_itself(wordpiece):
    """Erased until its own probability falls to one half, whatever the other labels have."""
    bert = model("bert", "classify", vocab_size=len(wordpiece))
    bert.config.problem_type = "multi_label_classification"
    with torch.no_grad():  # so that the largest of the outputs never changes
        bert.classifier.weight[1:] = 0.0
        bert.classifier.weight[0] *= 50
        bert.classifier.bias[1] = 1000.0
        whole = wordpiece(TEXTS[2])["input_ids"]
        nothing = [wordpiece.unk_token_id] * len(whole)
        ends = [protocols.outputs(bert, ids)[0] for ids in (whole, nothing)]
        bert.classifier.bias[0] -= float(sum(ends)) / 2  # and the first label flips on the way
    explainer = Explainer(bert, wordpiece)
    names = ["flip", "positive_accuracy", "negative_accuracy"]
    result = evaluate(explainer, [(text, 0) for text in TEXTS], ["random"], names)
    ids = [wordpiece(text)["input_ids"] for text in TEXTS]
    expected = []
    for text, numbers in zip(TEXTS, ids, strict=True):
        order = np.argsort(-explainer(text, "random", target=0).scores, kind="stable")
        above = [float(protocols.outputs(bert, numbers)[0]) > 0]
        for unit in order:
            numbers = [wordpiece.unk_token_id if k == unit else n for k, n in enumerate(numbers)]
            above.append(float(protocols.outputs(bert, numbers)[0]) > 0)
        changed = [k for k, each in enumerate(above) if each != above[0]]
        expected.append(changed[0] / len(order) if changed else 1.0)
    assert min(expected) < 1
    exactly(result.values["random"]["flip"], expected)


def test_what_counts_predictions_is_refused_for_a_model_of_one_number(wordpiece):
    bert = model("bert", "classify", vocab_size=len(wordpiece), num_labels=1)
    explainer = Explainer(bert, wordpiece)
    with pytest.raises(
        InputError, match="no class, which these metrics require: flip, negative_accuracy"
    ):
        evaluate(explainer, TEXTS, ["random"], ["pruning", "flip", "negative_accuracy"])
    result = evaluate(explainer, TEXTS, ["random"], ["pruning", "attention_erasure"])
    assert "does not predict one of several classes" in "\n".join(result.notes)
