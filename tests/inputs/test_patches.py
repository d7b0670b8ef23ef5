"""Patches are found where the model cuts the image, in the order in which attention has them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.tiny import model as tiny
from tests.modules import Plain
from wherefrom.core.runner import ModelRunner
from wherefrom.errors import InputError, ModelError
from wherefrom.inputs.patches import find_patches, layout_of

D, SIZE = 8, (24, 40)


def folded(x, p, q):
    """Patches (batch, places, numbers) by a reshape and a permutation."""
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // p, p, w // q, q)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(b, (h // p) * (w // q), c * p * q)


def unfolded(x, p, q):
    x = x.unfold(2, p, p).unfold(3, q, q)  # (batch, channels, rows, columns, p, q)
    return x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def columns_first(x, p, q):
    """As `folded`, but the places run down before they run to the right."""
    b, c, h, w = x.shape
    x = x.reshape(b, c, h // p, p, w // q, q)
    return x.permute(0, 4, 2, 3, 5, 1).reshape(b, (h // p) * (w // q), c * p * q)


def by_im2col(x, p, q):
    return F.unfold(x, (p, q), stride=(p, q)).transpose(1, 2)


CUTS = {
    "reshape": folded,
    "unfold": unfolded,
    "columns first": columns_first,
    "im2col": by_im2col,
}


class GradientBreak(Plain):
    """Cuts the image up, then a norm or not, a product, tokens ahead, and one attention.

    It keeps what attention sees.
    """

    def __init__(self, cut, patch, ahead=1, norm=False, product="linear"):
        super().__init__()
        self.cut, self.patch, self.product = cut, patch, product
        wide = 3 * patch[0] * patch[1]
        self.norm = nn.LayerNorm(wide) if norm else nn.Identity()
        self.embed = nn.Linear(wide, D)
        self.ahead = nn.Parameter(torch.zeros(1, ahead, D))
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, 3)
        self.shaken()

    def tokens(self, x):
        x = self.norm(self.cut(x, *self.patch))
        x = self.embed(x) if self.product == "linear" else x @ self.embed.weight.T + self.embed.bias
        return torch.cat([self.ahead.expand(len(x), -1, -1), x], 1)

    def forward(self, x):
        self.seen = self.tokens(x)
        q, k, v = self.qkv(self.seen).chunk(3, -1)
        x = self.seen + F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        return self.head(x[:, 0])


class Conv(GradientBreak):
    """The usual convolution, or a stem of several; `order` is how its grid becomes places."""

    def __init__(self, stem, order=None, how="sdpa", ahead=1):
        super().__init__(None, (1, 1), ahead)
        self.stem, self.order, self.how = stem, order or (0, 2, 3, 1), how
        self.heads = nn.MultiheadAttention(D, 2, batch_first=True)
        self.shaken()

    def tokens(self, x):
        x = self.stem(x).permute(self.order).flatten(1, 2)
        return torch.cat([self.ahead.expand(len(x), -1, -1), x], 1)

    def forward(self, x):
        if self.how == "sdpa":
            return super().forward(x)
        self.seen = x = self.tokens(x)
        if self.how == "module":
            return self.head((x + self.heads(x, x, x, need_weights=False)[0])[:, 0])
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head((x + F.softmax(q @ k.mT, -1) @ v)[:, 0])


def patches(model, size=SIZE, dtype=torch.float64):
    runner = ModelRunner(model, lambda module, given: module(given["pixel_values"]))
    chance = torch.Generator().manual_seed(3)
    image = torch.rand(3, *size, generator=chance, dtype=dtype)
    return find_patches(runner, "pixel_values", image), image


def check_by_changing(model, owners, image, ahead=1):
    """Changes one patch's pixels after the other: just the token of that number changes."""
    with torch.no_grad():
        model(image[None])
        before = model.seen[0]
        assert int(owners.max()) + 1 == len(before) - ahead
        for number in range(int(owners.max()) + 1):
            model(torch.where(owners == number, image.square(), image)[None])
            changed = (model.seen[0] - before).abs().sum(-1) > 1e-9
            assert changed.nonzero().flatten().tolist() == [ahead + number]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("patch", [(8, 8), (4, 10), (12, 5)])
@pytest.mark.parametrize("cut", list(CUTS))
def test_a_model_that_cuts_by_itself(cut, patch, norm):
    model = GradientBreak(CUTS[cut], patch, norm=norm)
    check_by_changing(model, *patches(model))


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_tokens_ahead_and_a_product_without_a_layer(ahead):
    model = GradientBreak(folded, (8, 8), ahead=ahead, product="matmul")
    check_by_changing(model, *patches(model), ahead)


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["sdpa", "softmax", "module"])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 2, 1)])
def test_a_convolution_in_either_order_however_attention_is_spelled(order, how, ahead):
    model = Conv(nn.Conv2d(3, D, (8, 4), (8, 4)), order, how, ahead)
    check_by_changing(model, *patches(model), ahead)


def test_a_convolution_with_a_norm_over_the_batch():
    model = Conv(nn.Sequential(nn.Conv2d(3, D, 8, 8), nn.BatchNorm2d(D)))
    check_by_changing(model, *patches(model))


def test_a_stem_of_convolutions_without_overlap():
    stem = nn.Sequential(nn.Conv2d(3, D, 2, 2), nn.GELU(), nn.Conv2d(D, D, 4, 4))
    for how in ("sdpa", "softmax", "module"):
        model = Conv(stem, how=how)
        check_by_changing(model, *patches(model))


def test_pixels_that_the_model_does_not_read_go_to_the_last_patches():
    model = Conv(nn.Conv2d(3, D, 8, 8))
    owners, image = patches(model, (29, 43))
    check_by_changing(model, owners, image)
    assert owners.shape == (29, 43)
    assert owners[0].tolist() == [0] * 8 + [1] * 8 + [2] * 8 + [3] * 8 + [4] * 11
    assert owners[:, 0].tolist() == [0] * 8 + [5] * 8 + [10] * 13
    model = GradientBreak(unfolded, (8, 8))
    assert torch.equal(patches(model, (29, 43))[0], owners)


STEMS = {
    "overlapping": (nn.Conv2d(3, D, 7, 4, padding=3), (6, 10)),
    "twice": (nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, D, 3, 2, 1)), (6, 10)),
    "no padding": (nn.Conv2d(3, D, 16, 8), (2, 4)),
}


@pytest.mark.parametrize("how", ["sdpa", "softmax", "module"])
@pytest.mark.parametrize("stem", list(STEMS))
def test_patches_that_overlap_have_cells_of_their_grid(stem, how):
    made, (rows, columns) = STEMS[stem]
    model = Conv(made, how=how)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1.0)  # so that a pixel counts the same in every patch that has it
    owners, image = patches(model)
    assert int(owners.max()) + 1 == rows * columns
    # a cell changes the token of its number more than any other one
    with torch.no_grad():
        model(image[None])
        before = model.seen[0]
        for number in range(rows * columns):
            model((image + 3 * (owners == number))[None])
            change = (model.seen[0] - before).abs().sum(-1)
            assert int(change.argmax()) == 1 + number


def test_many_patches_are_told_apart_in_float32():
    model = Conv(nn.Conv2d(3, D, 2, 2)).float()
    owners, _ = patches(model, (128, 96), torch.float32)
    expected = torch.arange(64 * 48).reshape(64, 48)
    assert torch.equal(owners, expected.repeat_interleave(2, 0).repeat_interleave(2, 1))


@pytest.mark.parametrize("name", ["vit", "deit", "beit", "dinov2", "dinov2_with_registers"])
def test_families_of_transformers(name):
    model = tiny(name, "see")
    owners = find_patches(ModelRunner(model), "pixel_values", torch.rand(3, 32, 32).double())
    side = 32 // model.config.patch_size
    expected = torch.arange(side**2).reshape(side, side)
    size = model.config.patch_size
    assert torch.equal(owners, expected.repeat_interleave(size, 0).repeat_interleave(size, 1))


def test_a_model_that_cuts_nothing():
    class Whole(Plain):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3 * 24 * 40, 3)
            self.shaken()

        def forward(self, x):
            return self.head(x.flatten(1))

    with pytest.raises(ModelError, match=r"cannot find the patches of"):
        patches(Whole())


def test_an_image_that_the_model_does_not_take():
    with pytest.raises(InputError, match=r"does not take an image of shape \(3, 7, 40\)"):
        patches(GradientBreak(folded, (8, 8)), (7, 40))


def test_a_layout_gives_back_what_it_split(rng):
    owners = torch.tensor([[0, 0, 1], [2, 2, 1], [2, 3, 3]])
    layout = layout_of(owners.expand(2, -1, -1))
    image = torch.randn(4, 2, 3, 3, generator=rng)
    rows = layout.split(image)
    assert rows.shape == (4, 4, 6)  # the largest unit has three pixels of two channels
    assert torch.equal(layout.whole(rows), image)
    for unit in range(4):
        own = image[:, :, owners == unit].sum((1, 2))
        torch.testing.assert_close(rows[:, unit].sum(1), own)
