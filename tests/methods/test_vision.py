"""All methods on images, against an explicit ViT and against other batches."""

import pytest
import torch
from torch import nn

from tests.methods.calling import family, same
from tests.methods.cases import FEWER_PASSES
from tests.modules import Plain
from tests.oracles import chefer, maps, vit
from tests.oracles.bert import frozen, kept
from tests.oracles.vit import Vit, by_patch
from wherefrom import METHODS, Explainer
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case, Target
from wherefrom.errors import ModelError
from wherefrom.inputs.image import ImageReader
from wherefrom.methods import method
from wherefrom.methods.attention_maps import _check_patches
from wherefrom.testing import untouched
from wherefrom.tracing.observers.attention_maps import Map

TARGET = 1
ATTENTION = [
    "attention_last", "attention_rollout", "attention_flow", "gradient_x_attention",
    "gradient_rollout", "gae", "transformer_attribution", "dix",
]  # fmt: skip
PROPAGATION = {
    "gradient_x_input": (kept, kept, kept),
    "lrp_ah": (frozen, kept, kept),
    "lrp_ah_ln": (frozen, frozen, kept),
    "lrp": (frozen, frozen, frozen),
}


@pytest.fixture(scope="module")
def model():
    return family("vit", "see")


@pytest.fixture(scope="module")
def images():
    chance = torch.Generator().manual_seed(2)
    return torch.randn(2, 3, 32, 32, generator=chance, dtype=torch.float64)


def scores_of(model, images, name, units="patches", **settings):
    """The result in float64, on a batch of images."""
    reader = ImageReader(ModelRunner(model), None, units)
    inputs = reader.batch([reader.read(image) for image in images])
    target = Target(torch.full((len(images),), TARGET))
    if name == "lrp":  # the explicit formula is below
        settings = {"attention": 0, **settings}
    return method(name, **settings)(Case(reader.runner, inputs, target)), inputs


def gap(result, model, images):
    """|Σ lines − output| / |output|, the largest of the batch."""
    output = model(images).logits[:, TARGET].detach()
    total = torch.stack(list(result.lines.values())).sum(0)
    return float(((total - output) / output).abs().max())


@pytest.mark.parametrize("name", list(PROPAGATION))
def test_patches_and_pixels_equal_the_vit_written_out(name, model, images):
    oracle = Vit(model, *PROPAGATION[name])
    same(oracle(images[0]).detach(), model(images).logits[0].detach(), 1e-12)
    patches = scores_of(model, images, name)[0].parts["patch"]
    pixels = scores_of(model, images, name, "pixels")[0].values
    quarters = scores_of(model, images, name, 4)[0].values
    for i, image in enumerate(images):
        expected = oracle.pixels(image, TARGET)
        same(pixels[i].reshape(32, 32), expected, 1e-10)
        same(patches[i], by_patch(expected, 8), 1e-10)
        same(quarters[i], by_patch(expected, 4), 1e-10)


def test_positions_token_and_biases_are_lines(model, images):
    oracle = Vit(model, frozen, frozen, frozen)
    result = scores_of(model, images, "lrp")[0]
    for i, image in enumerate(images):
        positions = oracle.positions(image, TARGET)
        same(result.parts["position"][i], positions[1:], 1e-10)
        lines = {key: float(values[i]) for key, values in result.lines.items()}
        same(lines["positions", "position"], positions[1:].sum(), 1e-10)
        same(lines["vit.embeddings", "position"], positions[0], 1e-10)
        for line, name in {
            ("vit.embeddings", "token"): "vit.embeddings.cls_token",
            ("vit.embeddings", "bias"): "vit.embeddings.patch_embeddings.projection.bias",
            ("vit.layernorm", "bias"): "vit.layernorm.bias",
            ("classifier", "bias"): "classifier.bias",
        }.items():
            same(lines[line], oracle.constant(image, TARGET, name), 1e-10)


@pytest.mark.parametrize("units", ["pixels", 4, 5])
def test_the_ledger_closes_whatever_the_units(units, model, images):
    oracle = Vit(model, frozen, frozen, frozen)
    result, inputs = scores_of(model, images, "lrp", units)
    assert gap(result, model, images) < 1e-10
    # the positions belong to patches, so here they are a line of the model's own
    expected = [oracle.positions(image, TARGET).sum() for image in images]
    same(result.lines["vit.embeddings", "position"], torch.stack(expected), 1e-10)
    assert inputs.mask.shape[1] == (1024 if units == "pixels" else (-(-32 // units)) ** 2)


def test_the_ledger_of_patches_closes(model, images):
    assert gap(scores_of(model, images, "lrp")[0], model, images) < 1e-10


def test_integrated_gradients_equal_captums(model, images):
    captum = pytest.importorskip("captum.attr")
    settings = {"steps": 8, "rule": "gauss"}
    whole = captum.IntegratedGradients(lambda x: model(x).logits[:, TARGET]).attribute(
        images, torch.zeros_like(images), n_steps=8, method="gausslegendre"
    )
    patches = scores_of(model, images, "integrated_gradients", **settings)[0].values
    pixels = scores_of(model, images, "integrated_gradients", "pixels", **settings)[0].values
    for i in range(2):
        expected = whole[i].detach().sum(0)
        same(pixels[i].reshape(32, 32), expected, 1e-6)  # Captum weighs its steps in float32
        same(patches[i], by_patch(expected, 8), 1e-6)


def test_occlusion_takes_a_patch_away(model, images):
    values = scores_of(model, images[:1], "occlusion")[0].values[0]
    with torch.no_grad():
        for number in (0, 6, 15):
            without = images[0].clone()
            top, left = divmod(number, 4)
            without[:, top * 8 : top * 8 + 8, left * 8 : left * 8 + 8] = 0
            both = model(torch.stack([images[0], without])).logits[:, TARGET]
            same(values[number], both[0] - both[1], 1e-9)


@pytest.mark.parametrize(
    "name", ["attention_last", "attention_rollout", "gradient_rollout", "gae", "attention_flow"]
)
def test_attention_equals_the_oracle_at_the_class_tokens_row(name, model, images):
    values = scores_of(model, images, name)[0].values
    for row, image in zip(values, images, strict=True):
        expected = getattr(maps, name)(vit.seen(model, image, TARGET))
        same(row, expected[1:], 1e-7 if name == "attention_flow" else 1e-9)


def test_transformer_attribution_equals_the_oracle(model, images):
    values = scores_of(model, images, "transformer_attribution")[0].values
    for row, image in zip(values, images, strict=True):
        places = Vit(model).embedded(image).detach()
        same(row, chefer.vit(model, places, TARGET).scores()[1:], 1e-9)


@pytest.mark.parametrize("name", list(METHODS))
def test_a_batch_has_the_scores_of_its_images_alone_and_the_model_is_untouched(name, model, images):
    settings = FEWER_PASSES.get(name, {})
    with untouched(model):
        together = scores_of(model, images, name, **settings)[0].values
        alone = scores_of(model, images[1:], name, **settings)[0].values[0]
    assert together.shape == (2, 16)
    assert torch.isfinite(together).all()
    same(together[1], alone, 1e-5)


@pytest.mark.parametrize(
    ("name", "units"), [*((name, 4) for name in ATTENTION), ("gae", "pixels"), ("gae", 8)]
)
def test_an_attention_method_does_not_look_into_patches(name, units, model, images):
    with pytest.raises(ModelError, match=r"from patch to patch.*Try method=\"lrp\""):
        Explainer(model)(images[0], name, units=units)


def test_compare_leaves_out_what_cannot_see_pixels(model, images):
    names = ["lrp", "gae", "gradient"]
    compared = Explainer(model).compare(images[0], names, units=8)
    assert [explanation.method for explanation in compared] == ["lrp", "gradient"]


class Normed(Plain):
    """Patches by a convolution and a norm over the batch; `by_hand` spells that norm out."""

    def __init__(self, by_hand=False):
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 6, 8, 8), nn.BatchNorm2d(6)
        self.qkv, self.head, self.by_hand = nn.Linear(6, 18), nn.Linear(6, 3), by_hand
        self.shaken()
        with torch.no_grad():
            self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, pixel_values):
        x = self.cut(pixel_values)
        if self.by_hand:
            norm = self.norm
            x = x - norm.running_mean[:, None, None]
            x = x * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None, None]
            x = x + norm.bias[:, None, None]
        else:
            x = self.norm(x)
        x = x.flatten(2).transpose(1, 2)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((x + (q @ k.mT).softmax(-1) @ v).mean(1))


@pytest.mark.parametrize("name", ["gradient_x_input", "gradient", "lrp", "integrated_gradients"])
def test_a_norm_over_the_batch_of_one_image(name, images):
    plain, spelled = Normed(), Normed(by_hand=True)
    spelled.load_state_dict(plain.state_dict())
    for model in (plain, spelled):
        model.eval()
    values, _ = scores_of(plain, images[:1], name, **FEWER_PASSES.get(name, {}))
    expected, inputs = scores_of(spelled, images[:1], name, **FEWER_PASSES.get(name, {}))
    same(values.values, expected.values, 1e-10)
    assert [unit.text for unit in inputs.units[0]][:5] == ["0,0", "8,0", "16,0", "24,0", "0,8"]
    if name == "lrp":
        total = torch.stack(list(values.lines.values())).sum()
        same(total, plain(images[:1])[0, TARGET].detach(), 1e-10)


@pytest.mark.parametrize("kind", ["swin", "pvt", "segformer", "levit"])
def test_windows_and_pooled_keys_close_and_have_no_attention_method(kind):
    other = family(kind, "see")
    size = other.config.image_size if kind != "segformer" else 64
    chance = torch.Generator().manual_seed(4)
    image = torch.randn(3, size, size, generator=chance, dtype=torch.float64)
    explainer = Explainer(other)
    assert explainer(image).ledger.relative < 1e-9
    for name in ("attention_last", "attention_rollout", "gae", "dix", "transformer_attribution"):
        with pytest.raises(ModelError, match=r"windows or chunks|joins or pools"):
            explainer(image, name)


class JoinedFirst(Plain):
    """Pairs of patches are joined before the first attention, so all maps have one size."""

    def __init__(self):
        super().__init__()
        self.cut, self.qkv, self.head = nn.Conv2d(3, 6, 8, 8), nn.Linear(6, 18), nn.Linear(6, 3)
        self.shaken()

    def forward(self, pixel_values):
        x = self.cut(pixel_values).flatten(2).transpose(1, 2)
        x = x.reshape(len(x), -1, 2, 6).mean(2)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((x + (q @ k.mT).softmax(-1) @ v).mean(1))


def test_patches_that_are_joined_before_all_maps_have_no_attention_method(images):
    with pytest.raises(ModelError, match=r"have 8 positions, its image 16: the model joins"):
        Explainer(JoinedFirst())(images[0], "attention_last")


@pytest.mark.parametrize("sizes", [[(16, 16), (17, 17)], [(8, 8)], [(16, 20)]])
def test_maps_of_an_image_have_one_size_that_is_its_own(sizes, model):
    maps = [Map([torch.zeros(1, 1, *size)], 0, 0) for size in sizes]
    with pytest.raises(ModelError, match="joins or pools"):
        _check_patches(ModelRunner(model), maps, 16)
    _check_patches(ModelRunner(model), [Map([torch.zeros(1, 1, 17, 17)], 0, 0)], 16)
