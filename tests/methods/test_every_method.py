"""What every method keeps on every family: batches, padding, the model, the implementation."""

from functools import cache

import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.helpers import normal
from tests.methods.calling import ROWS, family, found, of_ids, of_tensor, scores
from tests.modules import CLASSES, D, Plain
from wherefrom import METHODS, Explainer
from wherefrom.errors import NothingIntercepted

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
IMPLEMENTED = [name for name in FAMILIES if name != "deberta"]  # has one implementation only
PREFIX = [1, 44]
FEWER = {  # passes
    "smoothgrad": {"samples": 4},
    "integrated_gradients": {"steps": 6},
    "path_gradients": {"steps": 6},
    "dix": {"steps": 4},
}
ATTENTION = [
    "lrp_ah", "lrp_ah_ln", "attn_lrp", "attention_last", "attention_rollout", "attention_flow",
    "gradient_x_attention", "gradient_rollout", "gae", "transformer_attribution", "dix",
]  # fmt: skip


def model_of(name, how="sdpa"):
    kind, task = FAMILIES[name]
    return family(kind, task, **({} if name == "deberta" else {"attn_implementation": how}))


def inputs_of(name, model, rows=ROWS):
    return of_ids(model, rows, PREFIX if FAMILIES[name][1] == "translate" else None)


@cache
def together(name, method, how="sdpa"):
    """The result on the padded batch."""
    model = model_of(name, how)
    return found(model, inputs_of(name, model), method, 1, **FEWER.get(method, {}))


def size_of(result):
    """The largest score, or part of one: gradient × input all but vanishes behind a norm."""
    parts = [result.values, *result.parts.values()]
    return max(float(part.abs().max()) for part in parts)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", list(FAMILIES))
class TestEveryFamily:
    def test_a_padded_batch_has_the_scores_of_its_samples_alone(self, name, method):
        model, batch = model_of(name), together(name, method)
        for i, ids in enumerate(ROWS):
            inputs = inputs_of(name, model, [ids])
            alone = found(model, inputs, method, 1, **FEWER.get(method, {}))
            own = batch.values[i][inputs_of(name, model).mask[i]]
            assert own.shape == alone.values[0].shape
            size = size_of(alone)
            assert size > 0
            assert float((own - alone.values[0]).abs().max()) <= 1e-5 * size

    def test_padding_has_no_score_and_all_scores_are_finite(self, name, method):
        values = together(name, method).values
        mask = inputs_of(name, model_of(name)).mask
        assert values.shape == mask.shape
        assert not values[~mask].any()
        assert torch.isfinite(values).all()
        assert (values[mask] != 0).any()

    def test_a_second_time_gives_the_same(self, name, method):
        model = model_of(name)
        torch.manual_seed(99)
        again = scores(model, inputs_of(name, model), method, 1, **FEWER.get(method, {}))
        assert torch.equal(again, together(name, method).values)


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_eager_attention_gives_the_same_as_fused(name, method):
    fused, eager = together(name, method), together(name, method, "eager")
    exact = name in ("bert", "gpt2", "gpt2 that classifies", "bart", "bart that classifies")
    bound = 1e-8 if exact else 3e-5  # the others compute their eager softmax in float32
    worst = float((fused.values - eager.values).abs().max())
    assert worst <= bound * size_of(fused)


def state(model):
    """All of a model that a method could leave changed."""
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training)
        for m in model.modules()
    ]
    flags = [(p.requires_grad, p.grad is None, p._version) for p in model.parameters()]
    everywhere = (
        nn.modules.module._global_forward_hooks,
        nn.modules.module._global_forward_pre_hooks,
    )
    attributes = [sorted(vars(p)) for p in model.parameters()]
    return hooks, flags, [len(h) for h in everywhere], model.config.to_dict(), attributes


@pytest.mark.parametrize("method", list(METHODS))
def test_the_model_is_left_as_it_was(method):
    model = tiny("bert", "classify")
    expected = found(model, of_ids(model, ROWS), method, 1, **FEWER.get(method, {})).values
    model.train()
    model.bert.encoder.layer[0].eval()
    model.classifier.weight.requires_grad_(False)
    before, weights = state(model), {k: v.clone() for k, v in model.state_dict().items()}
    given = of_ids(model, ROWS)
    tensors = {name: tensor.clone() for name, tensor in given.tensors.items()}
    values = scores(model, given, method, 1, **FEWER.get(method, {}))
    assert torch.equal(values, expected)  # dropout is off all the same
    assert state(model) == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in given.tensors.items())
    assert not any(tensor.requires_grad for tensor in given.tensors.values())


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
    module, x = Encoder(), normal(rng, 3, 5, D)
    settings = FEWER.get(method, {})
    batch = found(module, of_tensor(x), method, 1, **settings)
    assert batch.values.shape == (3, 5)
    for row, each in zip(batch.values, x, strict=True):
        alone = found(module, of_tensor(each[None]), method, 1, **settings)
        assert float((row - alone.values[0]).abs().max()) <= 1e-5 * size_of(alone)
    for result in Explainer(module)(x, method, target=1, **settings):
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
        values = scores(model, inputs, method, 1, **FEWER.get(method, {}))
        assert torch.isfinite(values).all()
        assert values.any()


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ATTENTION])
def test_windowed_attention_is_no_matter_where_no_map_is_needed(method):
    model = family("longformer", "classify")
    values = scores(model, of_ids(model, [ROWS[0]]), method, 1, **FEWER.get(method, {}))
    assert values.shape == (1, len(ROWS[0]))
    assert values.any()
