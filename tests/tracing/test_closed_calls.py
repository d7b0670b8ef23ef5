"""Rules of less common calls, each against its formula."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.helpers import exactly, normal, through
from tests.modules import CLASSES, D, Plain
from wherefrom import Explainer
from wherefrom.methods.propagation import CONSERVATIVE, PLAIN


def conserved(run):
    exactly(sum(float(part.sum()) for part in run.relevance) + run.recorded, float(run.out.sum()))


@pytest.mark.parametrize("affine", [False, True])
def test_instance_norm_is_centred_with_a_constant_scale(affine, rng):
    norm, x = nn.InstanceNorm1d(3, affine=affine).double(), normal(rng, 2, 3, 7)
    if affine:
        nn.init.normal_(norm.weight, generator=rng)
        nn.init.normal_(norm.bias, generator=rng)
    seed = normal(rng, 2, 3, 7)
    run = through(CONSERVATIVE, norm, x, seed=seed)
    exactly(run.out, norm(x).detach())
    weight = norm.weight.detach()[:, None] if affine else 1.0
    scaled = seed * weight / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    exactly(run.relevance[0], x * (scaled - scaled.mean(-1, keepdim=True)))
    bias = norm.bias.detach()[:, None] if affine else torch.zeros(1)
    exactly(run.recorded, float((seed * bias).sum()))


def test_instance_norm_by_running_statistics_is_affine(rng):
    norm, x = (
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True).double(),
        normal(rng, 2, 3, 7),
    )
    norm(x * 2 + 1)
    norm.eval()
    run = through(CONSERVATIVE, norm, x)
    exactly(run.out, norm(x).detach())
    slope = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()[:, None]
    exactly(run.relevance[0], x * slope)
    conserved(run)


def test_cosine_with_a_constant_divides_by_constant_lengths(rng):
    x, other = normal(rng, 2, D), normal(rng, 2, D)
    run = through(CONSERVATIVE, lambda t: F.cosine_similarity(t, other, -1), x)
    exactly(run.out, F.cosine_similarity(x, other, -1))
    exactly(run.relevance[0], x * other / (x.norm(dim=1) * other.norm(dim=1))[:, None])
    assert run.recorded == 0


def test_cosine_of_two_live_vectors_is_shared(rng):
    x, y = normal(rng, 1, 2, D), normal(rng, 1, 2, D)
    run = through(CONSERVATIVE, lambda a, b: F.cosine_similarity(a, b, dim=2), x, y)
    half = 0.5 * x * y / (x.norm(dim=2) * y.norm(dim=2))[..., None]
    exactly(run.relevance[0], half)
    exactly(run.relevance[1], half)
    conserved(run)


def test_cosine_has_its_true_derivative_under_the_plain_table(rng):
    x, other = normal(rng, 2, D), normal(rng, 1, D)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cosine_similarity(leaf, other).sum(), leaf)
    exactly(through(PLAIN, lambda t: F.cosine_similarity(t, other), x).relevance[0], x * gradient)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_distance_to_prototypes_is_the_sum_of_both_ends(p, rng):
    x, prototypes = normal(rng, 1, 4, D), normal(rng, 3, D)
    seed = normal(rng, 1, 4, 3)
    run = through(CONSERVATIVE, lambda t: torch.cdist(t, prototypes, p), x, seed=seed)
    difference = x[0][:, None] - prototypes  # (4, 3, D)
    distance = difference.abs().pow(p).sum(-1).pow(1 / p)
    exactly(run.out[0], distance)
    slope = difference.sign() * (difference.abs() / distance[..., None]).pow(p - 1)
    exactly(run.relevance[0][0], (seed[0, ..., None] * slope).sum(1) * x[0])
    exactly(run.recorded, float(-(seed[0, ..., None] * slope * prototypes).sum()))
    assert {kind for _, kind in run.tracer.ledger.entries} == {"prototype"}


def test_log_softmax_is_its_logit_less_the_mean_and_the_entropy(rng):
    x = normal(rng, 1, 4, D)
    seed = normal(rng, 1, 4, D)
    run = through(CONSERVATIVE, lambda t: t.log_softmax(-1), x, seed=seed)
    p = x.softmax(-1)
    exactly(run.relevance[0], x * (seed - p * seed.sum(-1, keepdim=True)))
    entropy = -(p * p.log()).sum(-1, keepdim=True)
    exactly(run.recorded, float(-(seed * entropy).sum()))
    exactly(float(run.relevance[0].sum()) + run.recorded, float((seed * run.out).sum()))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [1, -1])
def test_logsumexp_is_a_mean_and_the_entropy(dim, keepdim, rng):
    x = normal(rng, 1, 4, D)
    run = through(CONSERVATIVE, lambda t: t.logsumexp(dim, keepdim), x)
    p = x.softmax(dim)
    exactly(run.relevance[0], x * p)
    exactly(run.recorded, float(-(p * p.log()).sum()))
    conserved(run)


def test_a_masked_class_has_no_entropy(rng):
    x, mask = normal(rng, 1, 4, D), torch.arange(D) == 2
    run = through(
        CONSERVATIVE, lambda t: t.masked_fill(mask, -torch.inf).log_softmax(-1)[..., :2], x
    )
    assert torch.isfinite(run.relevance[0]).all()
    conserved(run)


class Head(Plain):
    def __init__(self, name):
        super().__init__()
        self.inner, self.head = nn.Linear(D, D), nn.Linear(D, CLASSES)
        self.prototypes = nn.Parameter(torch.zeros(CLASSES, D))
        self.norm = nn.InstanceNorm1d(5, affine=True)
        self.name = name
        self.shaken()

    def forward(self, x):
        return getattr(self, self.name)(self.inner(x))

    def cosine(self, x):
        return F.cosine_similarity(x.mean(1)[:, None], self.prototypes, -1)

    def distance(self, x):
        return -torch.cdist(x.mean(1), self.prototypes)

    def log_probability(self, x):
        return self.head(x.mean(1)).log_softmax(-1)

    def pooled(self, x):
        return self.head(x).logsumexp(1)

    def normed(self, x):
        return self.head(self.norm(x).relu().mean(1))

    def hyperbolic(self, x):
        return self.head(torch.sinh(x).mean(1))


@pytest.mark.parametrize(
    "name", ["cosine", "distance", "log_probability", "pooled", "normed", "hyperbolic"]
)
def test_ledger_closes_alone_and_in_a_batch(name, rng):
    module, x = Head(name), normal(rng, 3, 5, D)
    for row, explanation in zip(x, Explainer(module)(x), strict=True):
        assert explanation.ledger.relative < 1e-12
        assert explanation.warnings == ()
        exactly(explanation.scores, Explainer(module)(row).scores, 1e-6)
