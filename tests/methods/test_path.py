"""Integrated gradients against Captum, and the properties of paths."""

import math
import warnings

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients, LayerIntegratedGradients
from scipy.special import roots_legendre

from tests.helpers import normal
from tests.methods.calling import ROWS, family, found, of_ids, of_tensor, of_texts, same, scores
from tests.modules import Block, D
from tests.oracles import gradients as oracle
from wherefrom import Explainer
from wherefrom.errors import InputError, MethodError, NotComplete
from wherefrom.methods import path
from wherefrom.tracing.tracer import Tracer

IDS = [2, 17, 9, 33, 8, 41, 3]
RULES = {"gauss": "gausslegendre", "right": "riemann_right", "middle": "riemann_middle"}
IG, PATH = "integrated_gradients", "path_gradients"
CAPTUM = 2e-7  # its weights are float32


def words(model, ids):
    return model.bert.embeddings.word_embeddings(torch.tensor([ids])).detach()


def logit(model, target=1):
    """The class's output for embedded words (batch, units, features)."""
    return lambda x: model(inputs_embeds=x).logits[:, target]


def nodes(rule, steps):
    """Nodes and weights of a quadrature rule."""
    if rule == "gauss":
        points, weights = roots_legendre(steps)
        return (points + 1) / 2, weights / 2
    first = 1 if rule == "right" else 0.5
    return [(k + first) / steps for k in range(steps)], [1 / steps] * steps


@pytest.mark.parametrize("steps", [1, 7, 20])
@pytest.mark.parametrize("rule", list(RULES))
def test_ig_is_the_weighted_sum_of_gradients_on_the_line(bert, rule, steps):
    x = words(bert, IDS)[0]
    expected = oracle.integrated(logit(bert), x, torch.zeros_like(x), *nodes(rule, steps))
    same(scores(bert, of_ids(bert, [IDS]), IG, 1, steps=steps, rule=rule)[0], expected)


@pytest.mark.parametrize("steps", [7, 20])
@pytest.mark.parametrize("rule", list(RULES))
def test_ig_from_zero_is_captums(bert, rule, steps):
    x = words(bert, IDS)
    expected = IntegratedGradients(logit(bert)).attribute(x, n_steps=steps, method=RULES[rule])
    actual = scores(bert, of_ids(bert, [IDS]), IG, 1, steps=steps, rule=rule)
    same(actual, expected.detach().sum(-1), CAPTUM)


@pytest.mark.parametrize("baseline", ["pad", "unk", "mask", 17])
def test_ig_from_a_token_is_captums_and_special_tokens_stay(bert, wordpiece, baseline):
    text = "the film is not bad"
    ids = wordpiece(text)["input_ids"]
    number = baseline if baseline == 17 else getattr(wordpiece, f"{baseline}_token_id")
    blank = [ids[0], *[number] * (len(ids) - 2), ids[-1]]
    layer = LayerIntegratedGradients(
        lambda given: bert(given).logits[:, 1], bert.bert.embeddings.word_embeddings
    )
    expected = layer.attribute(torch.tensor([ids]), torch.tensor([blank]), n_steps=9)
    inputs = of_texts(bert, wordpiece, [text])
    actual = scores(bert, inputs, IG, 1, steps=9, baseline=baseline)
    same(actual, expected.detach().sum(-1), CAPTUM)
    assert actual[0, 0] == actual[0, -1] == 0


def test_ig_from_a_tensor_is_captums(bert, rng):
    blank = normal(rng, 1, 7, 32)
    expected = IntegratedGradients(logit(bert)).attribute(
        words(bert, IDS), blank, n_steps=9, method="gausslegendre"
    )
    actual = scores(bert, of_ids(bert, [IDS]), IG, 1, steps=9, baseline=blank)
    same(actual, expected.detach().sum(-1), CAPTUM)


def test_a_tensor_of_one_row_is_the_baseline_of_every_unit(bert, rng):
    row = normal(rng, 32)
    inputs = of_ids(bert, [IDS])
    expected = scores(bert, inputs, IG, 1, steps=9, baseline=row.expand(1, 7, 32))
    assert torch.equal(scores(bert, inputs, IG, 1, steps=9, baseline=row), expected)


def test_ig_of_each_sample_of_a_batch_is_captums(bert):
    actual = scores(bert, of_ids(bert, ROWS), IG, 1, steps=8)
    for row, ids in zip(actual, ROWS, strict=True):
        x = words(bert, ids)
        expected = IntegratedGradients(logit(bert)).attribute(x, n_steps=8, method="gausslegendre")
        same(row[: len(ids)], expected[0].detach().sum(-1), CAPTUM)


@pytest.mark.parametrize("rule", list(RULES))
def test_completeness_gap_falls_with_the_steps(bert, rule):
    explainer = Explainer(bert)
    found = [
        abs(explainer(IDS, IG, target=1, steps=m, rule=rule).ledger.residual) for m in (2, 8, 32)
    ]
    assert found[0] > 2 * found[1] > 4 * found[2]
    assert found[2] < (1e-6 if rule == "gauss" else 0.1) * found[0] + 1e-12


def test_words_baseline_and_residual_add_up_to_the_output(bert):
    result = Explainer(bert)(IDS, IG, target=1, steps=4)
    kinds = {line.kind: line.value for line in result.ledger.lines}
    assert set(kinds) == {"word", "baseline"}
    zero = logit(bert)(torch.zeros(1, 7, 32).double())
    same(kinds["baseline"], float(zero[0].detach()))
    same(kinds["word"], float(scores(bert, of_ids(bert, [IDS]), IG, 1, steps=4).sum()))
    output = float(bert(torch.tensor([IDS])).logits[0, 1].detach())
    same(kinds["word"] + kinds["baseline"] + result.ledger.residual, output)
    same(result.output, output)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6])
@pytest.mark.parametrize("rule", ["gauss", "middle"])
def test_steps_are_raised_until_the_tolerance_is_met(bert, rule, tolerance):
    explainer = Explainer(bert)
    settings = {"target": 1, "steps": 1, "rule": rule}
    assert abs(explainer(IDS, IG, **settings).ledger.residual) > tolerance
    result = explainer(IDS, IG, tolerance=tolerance, **settings)
    assert abs(result.ledger.residual) <= tolerance * 1.001


class Halving(path.IntegratedGradients):
    """A model whose completeness gap is exactly 1 / steps."""

    def _integral(self, embedded, start, steps):
        return torch.tensor([[1 - 1 / steps]])


def test_a_gap_as_large_as_the_tolerance_is_close_enough():
    method = Halving(steps=1, tolerance=0.25)
    assert method._until_close(None, None, torch.ones(1)).tolist() == [[0.75]]


def test_a_tolerance_out_of_reach_is_refused_with_the_gap(rng):
    module, inputs = Block(), of_tensor(normal(rng, 1, 3, D))
    with pytest.raises(MethodError, match=r"gap is still \S+ after 4096 steps, over the tolerance"):
        scores(module, inputs, IG, 1, rule="right", steps=4096, tolerance=1e-15)


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"steps": 0}, MethodError, "at least one step"),
        ({"rule": "left"}, MethodError, 'no rule "left"; there are: gauss, right, middle'),
        ({"baseline": "blank"}, MethodError, 'no baseline "blank"; there are: zero, mean, pad'),
        ({"baseline": "mask"}, InputError, 'no "mask" token'),
    ],
)
def test_bad_settings_are_told(bert, settings, error, match):
    with pytest.raises(error, match=match):
        scores(bert, of_ids(bert, [IDS]), IG, 1, **settings)


def test_the_straight_path_is_ig_by_the_middle_rule(bert):
    inputs = of_ids(bert, [IDS])
    expected = scores(bert, inputs, IG, 1, rule="middle", steps=12)
    same(scores(bert, inputs, PATH, 1, steps=12), expected)


def bent(start, end, a):
    """First half of the features moves early, the rest late."""
    early, late = 1 - (1 - a) ** 2, a**2
    half = start.shape[-1] // 2
    rates = torch.tensor([early] * half + [late] * (start.shape[-1] - half), dtype=start.dtype)
    return start + rates * (end - start)


@pytest.mark.parametrize("steps", [4, 16])
def test_a_curved_path_is_the_sum_along_it(rng, steps):
    module, x = Block(), normal(rng, 4, D)
    zero = torch.zeros_like(x)
    points = [bent(zero, x, k / steps) for k in range(steps + 1)]
    middles = [bent(zero, x, (k + 0.5) / steps) for k in range(steps)]
    expected = oracle.along(lambda batch: module(batch)[:, 1], points, middles)
    same(scores(module, of_tensor(x[None]), PATH, 1, path=bent, steps=steps)[0], expected)


def test_a_curved_path_is_complete_and_another_explanation(rng):
    module, x = Block(), normal(rng, 2, 4, D)
    blank = normal(rng, 4, D)
    curved = found(module, of_tensor(x), PATH, 1, path=bent, steps=400, baseline=blank)
    rise = (module(x) - module(blank[None]))[:, 1].detach()
    torch.testing.assert_close(curved.values.sum(1), rise, rtol=1e-4, atol=1e-4)
    straight = scores(module, of_tensor(x), PATH, 1, steps=400, baseline=blank)
    assert float((curved.values - straight).abs().max()) > 0.01


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (lambda start, end, a: start + (a + 0.1) * (end - start), 0),
        (lambda start, end, a: start + 0.5 * a * (end - start), 1),
        (lambda start, end, a: start + a * (end - start) / (1 + math.cos(a)), 1),
    ],
)
def test_a_path_with_wrong_ends_is_refused(rng, path, place):
    inputs = of_tensor(normal(rng, 1, 3, D))
    with pytest.raises(MethodError, match=f"input at a = {place}\\."):
        scores(Block(), inputs, PATH, 1, path=path)


def test_the_name_of_the_path_travels_with_the_explanation(bert):
    assert Explainer(bert)(IDS, PATH, path=bent, steps=2).settings["path"] == "bent"


def test_ig_of_an_encoder_decoder_adds_up():
    model = family("bart", "translate")
    result = found(model, of_ids(model, [IDS], [1, 44, 21]), IG, 9, steps=200)
    total = sum(float(line) for line in result.lines.values())
    same(total, float(result.logits[0, -1, 9]), 1e-4)
    assert result.values[0].abs().min() > 0


def test_a_thousand_steps_are_no_matter(bert):
    inputs = of_ids(bert, ROWS)
    expected = scores(bert, inputs, IG, 1, steps=64)
    same(scores(bert, inputs, IG, 1, steps=1000), expected, 1e-6)


def test_what_is_summed_after_a_pass_is_not_seen_by_its_mode(bert, monkeypatch):
    calls = []
    on_call = Tracer.on_call

    def counted(tracer, call):
        calls.append(call.name)
        return on_call(tracer, call)

    monkeypatch.setattr(Tracer, "on_call", counted)
    counts = []
    for texts in (2, 6):
        calls.clear()
        Explainer(bert)([IDS] * texts, IG, target=1, steps=1, batch_size=texts)
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_an_integral_that_misses_its_ends_is_warned_of():
    class Late(torch.nn.Module):
        def forward(self, x):
            return (x.sum((1, 2)) - 0.99).relu()[:, None] * torch.tensor([[1.0, -1.0]])

    explainer = Explainer(Late())
    rows = [torch.tensor([[0.5], [0.5]]), torch.tensor([[3.0], [4.0]])]
    with pytest.warns(NotComplete, match="instead of f\\(x\\) − f\\(x′\\) = 0.01"):
        late, early = explainer(rows, "integrated_gradients", steps=3, target=0)
    assert len(late.warnings) == 1
    assert "Take more steps" in late.warnings[0]
    assert early.warnings == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert explainer(rows[0], "integrated_gradients", tolerance=1e-3, target=0).warnings == ()


def test_a_language_model_is_compared_with_the_mean_embedding_behind_its_first_token(gpt2):
    """The first token is an attention sink: it stays, so the path is smooth."""
    ids = [[5, 17, 33, 8], [9, 2]]
    table = gpt2.get_input_embeddings().weight.detach()
    explainer = Explainer(gpt2)
    for explanation, own in zip(explainer(ids, IG, target=7, steps=64), ids, strict=True):
        assert explanation.settings["baseline"] == "mean"
        start = table.mean(0).expand(len(own), -1).clone()
        start[0] = table[own[0]]
        with torch.no_grad():
            low = gpt2(inputs_embeds=start.unsqueeze(0)).logits[0, -1, 7]
        assert explanation.ledger.of("baseline") == pytest.approx(float(low), abs=1e-4)
        assert explanation.scores[0] == 0
        same = explainer(own, IG, target=7, steps=64, baseline=start.unsqueeze(0))
        np.testing.assert_allclose(explanation.scores, same.scores, rtol=1e-4, atol=1e-5)
        assert abs(explanation.ledger.residual) < 1e-3 * abs(explanation.output - float(low))
