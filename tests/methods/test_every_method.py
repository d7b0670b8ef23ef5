"""Properties of all methods on all families: batches, padding, an unchanged model."""

from functools import cache

import pytest
import torch
import transformers
from torch import nn

from benchmarks.tiny import model as tiny
from benchmarks.tiny import model_class
from tests.helpers import assert_unchanged, normal
from tests.methods.calling import ROWS, family, found, of_ids, of_tensor, scores
from tests.methods.cases import FEWER_PASSES
from tests.modules import CLASSES, D, Plain
from wherefrom import METHODS, Explainer
from wherefrom.errors import NothingIntercepted
from wherefrom.testing import snapshot

FAMILIES = {
    "bert": ("bert", "classify"),
    "gpt2": ("gpt2", "write"),
    "gpt2 that classifies": ("gpt2", "classify"),
    "llama": ("llama", "write"),
    "bart": ("bart", "translate"),
    "bart that classifies": ("bart", "classify"),
    "t5": ("t5", "translate"),
    "deberta": ("deberta", "classify"),
    "mixtral": ("mixtral", "classify"),
}
# families with the same layers as another one: one method of each kind
OTHER_HEAD = ["gpt2 that classifies", "bart that classifies"]
OF_EACH_KIND = [
    "gradient_x_input", "integrated_gradients", "occlusion", "lrp", "attn_lrp", "attention_flow",
    "gae", "transformer_attribution", "dix",
]  # fmt: skip
PREFIX = [1, 44]
ATTENTION = [
    "lrp_ah", "lrp_ah_ln", "attn_lrp", "attention_last", "attention_rollout", "attention_flow",
    "gradient_x_attention", "gradient_rollout", "gae", "transformer_attribution", "dix",
]  # fmt: skip


def has_fused_attention(name):
    return model_class(*FAMILIES[name])._supports_sdpa


def model_of(name, how="sdpa"):
    kind, task = FAMILIES[name]
    return family(kind, task, **({"attn_implementation": how} if has_fused_attention(name) else {}))


def inputs_of(name, model, rows=ROWS):
    return of_ids(model, rows, PREFIX if FAMILIES[name][1] == "translate" else None)


def result_of(model, inputs, method):
    return found(model, inputs, method, 1, **FEWER_PASSES.get(method, {}))


@cache
def together(name, method, how="sdpa"):
    """The result on the padded batch."""
    model = model_of(name, how)
    return result_of(model, inputs_of(name, model), method)


def size_of(result):
    """The largest score or part; gradient × input almost vanishes behind a norm."""
    parts = [result.values, *result.parts.values()]
    return max(float(part.abs().max()) for part in parts)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for name in FAMILIES
        for method in (OF_EACH_KIND if name in OTHER_HEAD else METHODS)
        if (name, method) != ("mixtral", "secant")  # the root goes to other experts
    ],
)
def test_a_padded_sample_has_the_scores_it_has_alone_and_padding_has_none(name, method):
    model, batch = model_of(name), together(name, method)
    mask = inputs_of(name, model).mask
    assert batch.values.shape == mask.shape
    assert not batch.values[~mask].any()
    assert torch.isfinite(batch.values).all()
    alone = result_of(model, inputs_of(name, model, ROWS[-1:]), method)  # the most padded
    in_batch = batch.values[-1][mask[-1]]
    assert in_batch.shape == alone.values[0].shape
    size = size_of(alone)
    assert size > 0
    assert float((in_batch - alone.values[0]).abs().max()) <= 1e-5 * size


@pytest.mark.parametrize(
    ("name", "method"),
    [("bert", method) for method in METHODS]
    + [
        (name, method)
        for name in ("gpt2", "llama", "bart", "t5", "mixtral")
        for method in (*ATTENTION, "lrp")
    ],
)
def test_eager_attention_gives_the_same_as_fused(name, method):
    if not has_fused_attention(name):
        pytest.skip(f"{name} has no fused attention in transformers {transformers.__version__}")
    fused, eager = together(name, method), together(name, method, "eager")
    exact = name in ("bert", "gpt2", "bart")
    bound = 1e-8 if exact else 3e-5  # the others compute their eager softmax in float32
    worst = float((fused.values - eager.values).abs().max())
    assert worst <= bound * size_of(fused)


@pytest.mark.parametrize("method", list(METHODS))
def test_the_model_is_left_as_it_was_and_a_second_time_gives_the_same(method):
    model = tiny("bert", "classify")
    expected = result_of(model, of_ids(model, ROWS), method).values
    model.train()
    model.bert.encoder.layer[0].training = False  # flags need not agree
    model.classifier.weight.requires_grad_(False)
    before = snapshot(model)
    inputs = of_ids(model, ROWS)
    tensors = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
    torch.manual_seed(99)
    values = result_of(model, inputs, method).values
    assert torch.equal(values, expected)  # dropout is off, and no draw depends on torch's seed
    assert_unchanged(before, snapshot(model))
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in inputs.tensors.items())
    assert not any(tensor.requires_grad for tensor in inputs.tensors.values())


class Encoder(Plain):
    """torch's own encoder on float tensors."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, CLASSES)
        self.shaken()

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize("method", list(METHODS))
def test_a_plain_encoder_has_a_score_for_each_unit_alone_as_in_a_batch(method, rng):
    module, x = Encoder(), normal(rng, 2, 5, D)
    batch = result_of(module, of_tensor(x), method)
    assert batch.values.shape == (2, 5)
    for row, sample in zip(batch.values, x, strict=True):
        alone = result_of(module, of_tensor(sample[None]), method)
        assert float((row - alone.values[0]).abs().max()) <= 1e-5 * size_of(alone)
    for result in Explainer(module)(x, method, target=1, **FEWER_PASSES.get(method, {})):
        assert result.scores.shape == (len(result.units),) == (5,)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize(("kind", "task"), [("mamba", "write"), ("fnet", "classify")])
def test_a_model_without_attention_is_refused_or_explained(kind, task, method):
    model = family(kind, task)
    inputs = of_ids(model, [ROWS[0]])
    if method in ATTENTION:
        with pytest.raises(NothingIntercepted, match=r"no attention call was seen in \w+ \(saw "):
            scores(model, inputs, method, 1)
    else:
        values = result_of(model, inputs, method).values
        assert torch.isfinite(values).all()
        assert values.any()


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ATTENTION])
def test_windowed_attention_is_no_matter_where_no_map_is_needed(method):
    model = family("longformer", "classify")
    values = result_of(model, of_ids(model, ROWS[:1]), method).values
    assert values.shape == (1, len(ROWS[0]))
    assert values.any()
