"""A dozen families of transformers: the ledger closes on each with no line that names it."""

from functools import cache

import pytest
import torch
import transformers

import benchmarks.families
from benchmarks.families import IDS, measure, see
from benchmarks.family_rows import Casts, smallest_reach, verdict
from benchmarks.seeing_families import cases
from benchmarks.seeing_families import measure as read_with_text
from benchmarks.tiny import TASKS
from tests.helpers import family_model
from wherefrom import Explainer
from wherefrom.errors import ModelError

FAMILIES = {
    "bert": "classify",
    "gpt2": "classify",
    "llama": "classify",
    "t5": "classify",
    "bart": "classify",
    "albert": "classify",
    "deberta": "classify",
    "xlnet": "classify",
    "mixtral": "classify",
    "bloom": "classify",
    "falcon": "write",
    "longformer": "classify",
    "gpt_oss": "write",
}
METHODS = ("gradient", "lrp_ah_ln", "attn_lrp")
ONLY_HERE = ["albert", "xlnet", "bloom", "falcon", "longformer", "gpt_oss"]  # see test_every_method


@cache
def model_of(family):
    return family_model(family, FAMILIES[family])


def largest(model, ids):
    """The class of the output of largest size: a share of one near zero would say nothing."""
    logits = model(torch.tensor([ids])).logits
    return int(logits.reshape(-1, logits.shape[-1])[-1].abs().argmax())


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_ledger_closes(family):
    model = model_of(family)
    with torch.no_grad(), Casts() as casts:
        largest_classes = [largest(model, ids) for ids in IDS]
    explanations = Explainer(model)(IDS, target=largest_classes)
    residual = max(explanation.ledger.relative for explanation in explanations)
    assert verdict(residual, casts.narrower, smallest_reach(explanations)) == "closed", residual


def test_biases_that_add_up_are_not_a_closed_ledger(monkeypatch):
    assert measure("bert", "classify").verdict == "closed"
    made = family_model("bert", "classify")
    with torch.no_grad():
        made.classifier.weight.zero_()
    monkeypatch.setattr(benchmarks.families, "model", lambda family, task: made)
    row = measure("bert", "classify")
    assert row.residual < 1e-9
    assert row.verdict == "open"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ONLY_HERE)
@pytest.mark.filterwarnings("ignore::wherefrom.errors.SamplesRunAlone")
def test_other_methods_run_and_are_the_same_in_a_batch(family, method):
    explainer = Explainer(model_of(family))
    for ids, explanation in zip(IDS, explainer(IDS, method), strict=True):
        alone = explainer(ids, method)
        assert explanation.scores.shape == (len(ids),)
        assert abs(alone.scores).max() > 0
        torch.testing.assert_close(
            torch.tensor(explanation.scores), torch.tensor(alone.scores), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    "name",
    ["vit", "deit", "dinov2", "dinov2_with_registers", "swin", "pvt", "segformer", "convnext",
     "levit", "hiera", "clip", "siglip", "pp_lcnet"],
)  # fmt: skip
def test_ledger_closes_on_images(name):
    if name not in TASKS["see"]:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    row = see(name)
    assert row.verdict == "closed", row
    assert row.units >= 16


@pytest.mark.parametrize(
    "name",
    ["clip", "siglip", "align", "llava", "qwen2_vl", "paligemma", "idefics", "idefics3", "gemma3",
     "gemma4", "kimi_k25", "mllama", "florence2", "qwen3_vl"],
)  # fmt: skip
def test_ledger_closes_on_patches_and_words(name):
    known = [case for case in cases() if case[0] == name]
    if not known:
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    if name == "qwen2_vl" and not hasattr(transformers.Qwen2VLConfig(), "image_token_id"):
        pytest.skip("its config has no image token, a checkpoint's has")
    row = read_with_text(*known[0])
    assert row.verdict == "closed", row
    assert row.units >= 16


def test_a_backward_pass_of_the_model_that_fails_is_an_error_of_ours():
    """Reformer's own autograd Function refuses evaluation mode."""
    model = family_model("reformer", "classify")
    with pytest.raises(ModelError, match=r"the backward pass of ReformerFor\w+ failed"):
        Explainer(model)(IDS[0])
