"""Secants of single calls, against contributions that are propagated forwards."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal
from tests.methods.calling import asked, of_tensor, runner_of
from tests.modules import Plain
from tests.oracles.two_points import Pair
from wherefrom.core.target import Case
from wherefrom.methods import method

T, D = 4, 6
EYE = torch.eye(T, dtype=torch.float64)
FIXED = torch.linspace(-1, 1, 3 * D, dtype=torch.float64).view(3, D)


class Calls(Plain):
    """A call, and all numbers that it gives weighted."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        y = self.call(x).reshape(len(x), -1)
        return y @ torch.linspace(-1, 2, y.shape[1], dtype=y.dtype).unsqueeze(-1)


def secants(call, x, root):
    inputs = of_tensor(x)
    model = Calls(call)
    result = method("secant", root=root)(Case(runner_of(model, inputs), inputs, asked(inputs, 0)))
    with torch.no_grad():
        exactly(sum(result.lines.values()), model(x)[:, 0], 1e-9)
    return result


def compare(call, oracle, x, root, tolerance=1e-9):
    """Compares the scores of each unit with the parts that the oracle propagates forwards."""
    result = secants(call, x, root)
    assert {kind for _, kind in result.lines} == {"word", "reference"}
    for i in range(len(x)):
        parts = oracle(Pair.enter(x[i], root[i])).parts
        parts = parts.reshape(len(parts), -1)
        weights = torch.linspace(-1, 2, parts.shape[1], dtype=parts.dtype)
        exactly(result.values[i], parts @ weights, tolerance)


def through(f):
    return lambda pair: pair.through(f)


def reduced(f):
    return lambda t: f(t, -1, keepdim=True)


ELEMENTWISE = {
    "abs": torch.abs,
    "prelu": lambda t: F.prelu(t, torch.tensor([0.3], dtype=torch.float64)),
    "logsigmoid": F.logsigmoid,
    "erf": torch.erf,
    "clamp": lambda t: t.clamp(-0.5, 0.4),
    "exp2": torch.exp2,
    "round": lambda t: (2 * t).round(),
    "floor": torch.floor,
    "sign": torch.sign,
    "logit": lambda t: (t.sigmoid() / 2).logit(),
    "lgamma": lambda t: (t.square() + 1).lgamma(),
}


@pytest.mark.parametrize("name", ["abs", "prelu", "logsigmoid", "erf", "clamp", "exp2", "round",
                                  "floor", "sign"])  # fmt: skip
def test_functions_of_one_number_have_the_slope_of_their_secant(name, rng):
    f = ELEMENTWISE[name]
    oracle = through(f)
    if name == "round":
        oracle = lambda pair: pair.linear(lambda t: 2 * t).through(torch.round)  # noqa: E731
    compare(f, oracle, normal(rng, 2, T, D), normal(rng, 2, T, D))


@pytest.mark.parametrize("name", ["logit", "lgamma"])
def test_functions_without_a_value_at_zero_add_up(name, rng):
    secants(ELEMENTWISE[name], normal(rng, 2, T, D), normal(rng, 2, T, D))


def variance(pair):
    centred = pair.linear(lambda t: t - t.mean(-1, keepdim=True))
    return centred.times(centred).linear(lambda t: t.sum(-1) / (D - 1))


def total(pair, p):
    return pair.through(lambda t: t.abs() ** p).linear(lambda t: t.sum(-1, keepdim=True))


def pairs_of(pair, other=None):
    """The differences of all rows with all rows."""
    if other is not None:
        return pair.linear(
            lambda t: t[..., :, None, :] - other, lambda t: t[..., :, None, :] + 0 * other
        )
    return pair.linear(lambda t: t[..., :, None, :] - t.roll(1, -1)[..., None, :, :])


def pairwise(pair, other=None):
    difference = pairs_of(pair, other)
    square = difference.times(difference).linear(lambda t: t.sum(-1))
    return square.through(torch.sqrt)


def normed(pair):
    centred = pair.linear(lambda t: t - t.mean(-1, keepdim=True))
    return centred.scaled(1e-5)


LENGTHS = {
    "instance norm": (F.instance_norm, normed),
    "variance": (lambda t: t.var(-1), variance),
    "deviation": (lambda t: t.std(-1), lambda pair: variance(pair).through(torch.sqrt)),
    "cubes": (lambda t: t.norm(p=3, dim=-1), lambda p: total(p, 3).through(lambda t: t ** (1 / 3))),
    "sum of sizes": (lambda t: torch.linalg.vector_norm(t, 1, -1), lambda pair: total(pair, 1)),
    "share of sizes": (
        lambda t: F.normalize(t, 1.0, -1),
        lambda pair: pair.times(total(pair, 1).through(lambda t: 1 / t)),
    ),
    "distances to rows": (lambda t: torch.cdist(t, FIXED), lambda pair: pairwise(pair, FIXED)),
    "distances of rows": (lambda t: torch.cdist(t, t.roll(1, -1)), pairwise),
    "sizes of complex numbers": (
        lambda t: torch.complex(t, t.roll(1, -1)).abs(),
        lambda pair: pair.times(pair).linear(lambda t: t + t.roll(1, -1)).through(torch.sqrt),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_and_norms_are_split_by_their_parts(name, rng):
    call, oracle = LENGTHS[name]
    compare(call, oracle, normal(rng, 2, T, D), normal(rng, 2, T, D), 1e-8)


def test_the_length_of_nothing_at_both_points_is_nothing(rng):
    x, root = normal(rng, 1, T, D), normal(rng, 1, T, D)
    x[:, 1] = root[:, 1] = 0
    scores = secants(lambda t: t.norm(dim=-1), x, root).values
    assert torch.isfinite(scores).all()
    assert scores[0, 1] == 0


def spaced(rng):
    """Numbers of which no two are close."""
    numbers = torch.stack([torch.randperm(T * D, generator=rng) for _ in range(2)])
    return numbers.view(2, T, D).double() / 4 + 0.1


def windows(t):
    return t.unfold(-1, 2, 2)


def with_next(t):
    return torch.stack([t, t.roll(1, -1)], -1)


SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(D // 2)
LARGEST = {
    "amax": (lambda t: t.amax(-1), Pair.largest),
    "over two axes": (
        lambda t: t.amax((1, 2)),
        lambda p: p.linear(lambda t: t.flatten(-2)).largest(),
    ),
    "amin": (lambda t: t.amin(-1), lambda p: p.linear(lambda t: -t).largest().linear(lambda t: -t)),
    "max pooling": (lambda t: F.max_pool1d(t, 2), lambda p: p.linear(windows).largest()),
    "adaptive": (lambda t: F.adaptive_max_pool1d(t, 3), lambda p: p.linear(windows).largest()),
    "maximum": (
        lambda t: torch.maximum(t, t.roll(1, -1)),
        lambda p: p.linear(with_next).largest(),
    ),
    "minimum": (
        lambda t: -torch.min(-t, -t.roll(1, -1)),
        lambda p: p.linear(with_next).largest(),
    ),
    "largest size": (
        lambda t: (t * SIGNS).norm(p=float("inf"), dim=-1),
        lambda p: p.linear(lambda t: t * SIGNS).through(torch.abs).largest(),
    ),
}


@pytest.mark.parametrize("name", LARGEST)
def test_a_maximum_is_the_limit_of_a_log_of_sums(name, rng):
    call, oracle = LARGEST[name]
    compare(call, oracle, spaced(rng), spaced(rng) + 0.07, 1e-8)


@pytest.mark.parametrize("at_root", [False, True])
def test_equal_numbers_share_a_maximum(at_root, rng):
    x, root = spaced(rng), spaced(rng) + 0.07
    tied = root if at_root else x
    tied[:, :2] = 9.0
    compare(lambda t: t.amax(1), lambda p: p.transposed().largest(), x, root, 1e-8)


def test_max_over_an_axis_is_as_amax_and_its_route_adds_nothing(rng):
    x, root = spaced(rng), spaced(rng)
    result = secants(lambda t: t.max(-1)[0], x, root)
    exactly(result.values, secants(lambda t: t.amax(-1), x, root).values)
    assert all(not bool(v.any()) for (_, kind), v in result.lines.items() if kind == "route")


def test_the_maximum_with_a_number_far_below_is_the_other(rng):
    x, root = normal(rng, 2, T, D), normal(rng, 2, T, D)
    result = secants(lambda t: torch.maximum(t * 0 - 1e38, t), x, root)
    exactly(result.values, secants(lambda t: t, x, root).values)


def test_pooled_images_and_padding_add_up(rng):
    def call(t):
        return F.max_pool2d(t.unsqueeze(1), 3, 2, 1)

    secants(call, normal(rng, 2, T, D), normal(rng, 2, T, D))


def posed(t):
    return t @ t.mT + EYE


SMOOTH = {
    "solve": lambda t: torch.linalg.solve(posed(t), t),
    "inverse": lambda t: torch.linalg.inv(posed(t)),
    "determinant": lambda t: torch.logdet(posed(t)),
    "cumulative product": lambda t: t.cumprod(-1),
    "product": lambda t: t.prod(-1),
    "power": lambda t: (t.abs() + 1) ** t,
    "three factors": lambda t: torch.einsum("...td,...sd,...se->...te", t, t, t),
    "matrix power": lambda t: torch.matrix_power(posed(t), 3),
    "log of added exponentials": lambda t: torch.logaddexp(t, t.roll(1, -1)),
    "weight that depends": lambda t: torch.lerp(t, t.roll(1, -1), t),
}


@pytest.mark.parametrize("name", ["cumulative product", "product", "log of added exponentials",
                                  "three factors", "weight that depends"])  # fmt: skip
def test_smooth_calls_have_the_mean_derivative_on_the_line(name, rng):
    call = SMOOTH[name]
    compare(call, lambda pair: pair.smooth(call), normal(rng, 2, T, D), normal(rng, 2, T, D))


@pytest.mark.parametrize("name", ["solve", "inverse", "determinant", "power", "matrix power"])
def test_smooth_calls_add_up(name, rng):
    secants(SMOOTH[name], normal(rng, 1, T, D) / 2, normal(rng, 1, T, D) / 2)


def test_a_triangular_system_adds_up(rng):
    def call(t):
        return torch.linalg.solve_triangular((t @ t.mT).tril(-1) + EYE, t, upper=False)

    secants(call, normal(rng, 2, T, D), normal(rng, 2, T, D))


def test_weights_of_norms_and_convolutions_may_depend_on_the_input(rng):
    kernel = nn.Linear(D, D).double()

    def call(t):
        weight = kernel(t)[0, 0]
        y = F.layer_norm(t, (D,), weight, weight) + F.rms_norm(t, (D,), weight)
        return F.conv1d(y, weight.view(1, 1, D)[..., :3].expand(1, T, 3))

    secants(call, normal(rng, 1, T, D), normal(rng, 1, T, D))
