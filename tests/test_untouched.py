"""A model is left exactly as it was found, whatever happens."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from benchmarks.tiny import model as tiny
from tests.helpers import GLOBAL_HOOKS, assert_unchanged, exactly
from wherefrom import Explainer
from wherefrom.core.runner import ModelRunner
from wherefrom.errors import NotFinite
from wherefrom.testing import snapshot

IDS = [[2, 5, 9, 8, 17, 3], [2, 7, 3]]


@pytest.fixture
def model():
    return tiny("bert", "classify")


def test_ids_and_tensors_of_the_user_are_as_before(model):
    ids = torch.tensor(IDS[0])
    copied = ids.clone()
    Explainer(model)(ids)
    assert torch.equal(ids, copied)
    assert vars(ids) == {}


def test_a_float_tensor_of_the_user_is_as_before():
    x = torch.randn(4, 3)
    module = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2))
    copied = x.clone()
    Explainer(module)(x)
    assert torch.equal(x, copied)
    assert x.grad is None
    assert not x.requires_grad
    assert vars(x) == {}


class Broken(RuntimeError):
    pass


@pytest.mark.parametrize("where", ["bert.encoder.layer.1.output", "classifier"])
def test_model_is_as_before_when_its_forward_fails(where, model):
    model.train()

    def fail(*_):
        raise Broken

    hook = model.get_submodule(where).register_forward_hook(fail)
    before = snapshot(model)
    with pytest.raises(Broken):
        Explainer(model)(IDS[0])
    assert_unchanged(before, snapshot(model))
    hook.remove()
    assert Explainer(model)(IDS[0]).ledger.relative < 1e-9


def test_model_is_as_before_when_its_output_is_not_finite(model):
    with torch.no_grad():
        model.classifier.bias[0] = torch.nan
    before = {name: part.training for name, part in model.train().named_modules()}
    with pytest.raises(NotFinite):
        Explainer(model)(IDS[0])
    assert before == {name: part.training for name, part in model.named_modules()}


def test_dropout_is_off_although_the_model_is_in_training(model):
    expected = Explainer(model)(IDS[0]).scores
    model.train()
    assert Explainer(model)(IDS[0]).scores.tolist() == expected.tolist()


def test_frozen_parameters_change_nothing(model):
    expected = Explainer(model)(IDS[0])
    model.requires_grad_(False)
    explanation = Explainer(model)(IDS[0])
    assert explanation.scores.tolist() == expected.scores.tolist()
    assert explanation.ledger == expected.ledger


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("method", ["lrp", "gradient", "attn_lrp"])
def test_it_works_the_same_with_gradients_switched_off(context, method, model):
    expected = Explainer(model)(IDS, method, target=1, against=0)
    with context():
        explanations = Explainer(model)(IDS, method, target=1, against=0)
    for explanation, same_again in zip(explanations, expected, strict=True):
        assert explanation.scores.tolist() == same_again.scores.tolist()


def test_a_tensor_made_in_inference_mode_is_explained():
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with torch.inference_mode():
        x = torch.randn(1, 4, 3)
        expected = (module(x)[0, 1] - module[1].bias[1]).item()
        (explanation,) = Explainer(module)(x, target=1)
    exactly(float(explanation.scores.sum()), expected, tol=1e-5)


def test_two_threads_at_once_give_the_same_as_alone(model, gpt2):
    jobs = [(model, IDS, "lrp"), (gpt2, IDS, "lrp"), (model, IDS, "gradient_x_input")] * 4

    def work(job):
        return [
            explanation.scores.tolist()
            for explanation in Explainer(job[0])(job[1], job[2], target=1)
        ]

    alone = [work(job) for job in jobs]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, jobs)) == alone
    assert not any(getattr(torch_modules, name) for name in GLOBAL_HOOKS if "forward_hooks" in name)


def test_a_thread_that_only_runs_the_model_is_not_disturbed(model):
    ids = torch.tensor([IDS[0]])
    expected = model(ids).logits.detach()
    inside, done = threading.Event(), threading.Event()
    seen = []

    def forward(inner, tensors):
        inside.set()
        assert done.wait(60)
        return inner(**tensors)

    def other():
        assert inside.wait(60)
        out = model(ids).logits
        out[0, 0].backward()
        seen.append((out.detach(), model.classifier.bias.grad.clone()))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    Explainer(model, forward=forward)(IDS[0])
    thread.join()
    assert torch.equal(seen[0][0], expected)
    assert seen[0][1].tolist() == [1.0, 0.0, 0.0]


def test_evaluation_mode_holds_until_the_last_of_two_overlapping_runs_ends(model):
    model.train()
    inside, leave = threading.Event(), threading.Event()

    def first():
        with ModelRunner(model).evaluating():
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    assert inside.wait(60)
    with ModelRunner(model).evaluating():
        leave.set()
        thread.join()
        assert not any(part.training for part in model.modules())  # the second still runs
    assert all(part.training for part in model.modules())
