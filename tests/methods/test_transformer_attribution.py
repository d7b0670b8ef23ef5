"""Transformer attribution against an explicit relevance pass, layer by layer."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import normal
from tests.methods.calling import ROWS, asked, different, family, of_ids, of_tensor, same, scores
from tests.methods.calling import runner_of as runner
from tests.modules import CLASSES, Block, D, Plain
from tests.oracles import chefer
from wherefrom.core.target import Case
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.rules.deep_taylor import DEEP_TAYLOR

IDS = [2, 17, 9, 33, 8, 41, 3]
METHOD = "transformer_attribution"
OPTIONS = [{}, {"normalise": True}, {"start_layer": 1}, {"normalise": True, "start_layer": 1}]


class Seeing(nn.Module):
    """A ViT on embedded patches; `whole`: the class token is among them."""

    def __init__(self, model, whole):
        super().__init__()
        self.model, self.whole = model, whole

    def placed(self, x):
        embeddings = self.model.vit.embeddings
        if not self.whole:
            x = torch.cat([embeddings.cls_token.expand(len(x), -1, -1), x], 1)
        return x + embeddings.position_embeddings[:, : x.shape[1]]

    def forward(self, x):
        x = self.placed(x)
        for layer in self.model.vit.layers:
            x = layer(x, None)
        return self.model.classifier(self.model.vit.layernorm(x)[:, 0])


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def bert(request):
    return family("bert", "classify", attn_implementation=request.param)


@pytest.fixture(scope="module")
def vit():
    return family("vit", "see")


@pytest.mark.parametrize("target", [0, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_bert_equals_the_pass_layer_by_layer(bert, options, target):
    expected = chefer.bert(bert, IDS, target)
    same(float(bert(torch.tensor([IDS])).logits[0, target].detach()), expected.output)
    found = scores(bert, of_ids(bert, [IDS]), METHOD, target, **options)
    same(found[0], expected.scores(**options))


@pytest.mark.parametrize("target", [0, 2])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_vit_equals_the_pass_layer_by_layer(vit, options, target, rng):
    module, x = Seeing(vit, whole=True), normal(rng, 2, 6, 32)
    inputs = of_tensor(x)
    found = scores(module, inputs, METHOD, target, **options)
    for row, sample in zip(found, x, strict=True):
        expected = chefer.vit(vit, module.placed(sample[None])[0], target)
        same(float(module(sample[None])[0, target].detach()), expected.output)
        same(row, expected.scores(**options))


@pytest.mark.parametrize("target", [0, 2])
def test_a_patch_gets_its_own_score_where_the_model_puts_a_class_token_in_front(vit, target, rng):
    module, x = Seeing(vit, whole=False), normal(rng, 1, 6, 32)
    expected = chefer.vit(vit, module.placed(x)[0], target).scores()
    same(scores(module, of_tensor(x), METHOD, target)[0], expected[1:])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_rows_add_up_to_the_column_sums(bert, options):
    expected = chefer.bert(bert, IDS, 1).scores(every=True, **options)
    found = scores(bert, of_ids(bert, [IDS]), METHOD, 1, readout="all", **options)
    same(found[0], expected)


def test_the_own_entry_of_the_readout_is_dropped(bert):
    found = scores(bert, of_ids(bert, [IDS]), METHOD, 1)[0]
    assert found[0] == 0
    assert (found[1:] > 0).all()
    gpt2 = family("gpt2", "write")
    found = scores(gpt2, of_ids(gpt2, [IDS]), METHOD, 9)[0]
    assert found[-1] == 0
    assert (found[:-1] > 0).any()


def test_no_entry_is_dropped_where_the_head_reads_many_rows(rng):
    assert (scores(Block(), of_tensor(normal(rng, 2, 5, D)), METHOD, 1) > 0).all()


def test_it_tells_classes_apart(bert):
    inputs = of_ids(bert, [IDS])
    different(scores(bert, inputs, METHOD, 0), scores(bert, inputs, METHOD, 2))


def test_a_batch_has_the_scores_of_its_samples_alone(bert):
    together = scores(bert, of_ids(bert, ROWS), METHOD, 1)
    for row, ids in zip(together, ROWS, strict=True):
        same(row[: len(ids)], chefer.bert(bert, ids, 1).scores())


def relevance_at(model, inputs, target, layers):
    """The total relevance of each sample at the input of every layer, (layers, batch)."""
    entered = []
    hooks = [
        layer.register_forward_pre_hook(
            lambda _, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        for layer in layers
    ]
    try:
        case = Case(runner(model, inputs), inputs, asked(inputs, target))
        with intercepted_forward(DEEP_TAYLOR, case) as forward:
            found = forward.gradients(entered)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(found) == len(layers)
    return torch.stack([r.reshape(len(inputs), -1).sum(1) for r in found])


STACKS = {
    "bert": ("classify", lambda m: m.bert.encoder.layer),
    "gpt2": ("write", lambda m: m.transformer.h),
    "llama": ("write", lambda m: m.model.layers),
    "mixtral": ("classify", lambda m: m.model.layers),
    "deberta": ("classify", lambda m: m.deberta.encoder.layer),
}


@pytest.mark.parametrize("name", list(STACKS))
def test_relevance_is_conserved_at_every_block_for_each_sample(name):
    task, layers = STACKS[name]
    model = family(name, task)
    sums = relevance_at(model, of_ids(model, ROWS), 1, layers(model))
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-6, atol=1e-6)


def test_encoder_and_decoder_share_the_relevance():
    model = family("bart", "classify")
    layers = [model.model.encoder.layers[0], model.model.decoder.layers[0]]
    sums = relevance_at(model, of_ids(model, ROWS), 1, layers)
    assert (sums.abs() > 1e-3).all()
    torch.testing.assert_close(sums.sum(0), torch.ones(3).double(), rtol=1e-8, atol=1e-8)


def test_relevance_of_vit_is_conserved_at_every_block_for_each_sample(vit, rng):
    module = Seeing(vit, whole=False)
    sums = relevance_at(module, of_tensor(normal(rng, 3, 6, 32)), 1, vit.vit.layers)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-8, atol=1e-8)


class Normed(Plain):
    """One block behind an RMS norm, by torch's own call or by hand."""

    def __init__(self, by_hand):
        super().__init__()
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, CLASSES)
        self.by_hand = by_hand
        self.shaken()

    def norm(self, x):
        if self.by_hand:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return F.rms_norm(x, (D,), eps=1e-6)

    def forward(self, x):
        for _ in range(2):
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            x = x + (q @ k.mT * D**-0.5).softmax(-1) @ v
        return self.head(self.norm(x)[:, 0])


def alike(kind, *settings):
    """Modules of one kind with the same weights."""
    made = [kind(each) for each in settings]
    for module in made[1:]:
        module.load_state_dict(made[0].state_dict())
    return made


def test_a_norm_is_the_identity_whether_fused_or_by_hand(rng):
    inputs = of_tensor(normal(rng, 2, 5, D))
    fused, by_hand = alike(Normed, False, True)
    same(by_hand(inputs.tensors["x"]).detach(), fused(inputs.tensors["x"]).detach())
    same(scores(by_hand, inputs, METHOD, 1), scores(fused, inputs, METHOD, 1))


class Residual(Plain):
    """Attention concatenated with its input, in several spellings."""

    def __init__(self, join):
        super().__init__()
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, CLASSES)
        self.join = join
        self.shaken()

    def forward(self, x):
        for _ in range(2):
            q, k, v = self.qkv(x).chunk(3, -1)
            x = self.join(x, self.scaled(q @ k.mT).softmax(-1) @ v)
        return self.head(x[:, 0])

    def scaled(self, scores):
        return scores * D**-0.5


SUMS = {
    "torch.add": torch.add,
    "add with alpha": lambda a, b: torch.add(a, b / 2, alpha=2),
    "+=": lambda a, b: a.clone().__iadd__(b),
    "add_": lambda a, b: a.clone().add_(b),
}
DIFFERENCES = {
    "-": lambda a, b: a - b,
    "torch.sub": torch.sub,
    "torch.subtract": torch.subtract,
    "-=": lambda a, b: a.clone().__isub__(b),
}


@pytest.mark.parametrize("spelled", list(SUMS))
def test_a_sum_is_one_call_however_it_is_spelled(spelled, rng):
    inputs = of_tensor(normal(rng, 2, 5, D))
    plain, other = alike(Residual, lambda a, b: a + b, SUMS[spelled])
    same(scores(other, inputs, METHOD, 1), scores(plain, inputs, METHOD, 1))


@pytest.mark.parametrize("spelled", list(DIFFERENCES))
def test_a_difference_is_the_sum_with_the_negative(spelled, rng):
    inputs = of_tensor(normal(rng, 2, 5, D))
    plain, other = alike(Residual, lambda a, b: a + (-b), DIFFERENCES[spelled])
    same(scores(other, inputs, METHOD, 1), scores(plain, inputs, METHOD, 1))


class ScaledInPlace(Residual):
    def scaled(self, scores):
        scores *= D**-0.5
        return scores


def test_scores_may_be_scaled_in_place(rng):
    inputs = of_tensor(normal(rng, 2, 5, D))
    plain, other = Residual(torch.add), ScaledInPlace(torch.add)
    other.load_state_dict(plain.state_dict())
    same(scores(other, inputs, METHOD, 1), scores(plain, inputs, METHOD, 1))


def test_a_contrast_is_the_difference_of_its_two_classes(bert, wordpiece):
    from wherefrom import Explainer

    explainer = Explainer(bert, wordpiece)
    text = "the film is good"
    one, other, both = (
        explainer(text, "transformer_attribution", target=target, against=against).scores
        for target, against in ((1, None), (0, None), (1, 0))
    )
    assert abs(both).max() > 1e-3 * abs(one).max()
    torch.testing.assert_close(torch.tensor(both), torch.tensor(one - other), rtol=1e-5, atol=1e-7)
