"""The two propositions of Ali et al. 2022 on conservation, measured call by call."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from wherefrom.core.scope import restores_state
from wherefrom.core.target import Case
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import AH_LN, PLAIN
from wherefrom.rules.attention import attention_scores, dot_product_of, masked_softmax
from wherefrom.tracing.catalogue import Kind, TorchCall, depends_on_input
from wherefrom.tracing.tags import like, role_of
from wherefrom.tracing.tracer import Rule, Table, Tracer


@dataclass
class Probe:
    """Inputs and outputs of norms and attention heads, recorded for their gradients."""

    norms: list[tuple[Tensor, Tensor, float]] = field(default_factory=list)  # x, y, ε
    heads: list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    scores: list[tuple[Tensor, Tensor, Tensor]] = field(
        default_factory=list
    )  # not yet matched with values


@dataclass(frozen=True)
class Collapse:
    """Σ relevance before and after one LayerNorm, and the factor that proposition 2 predicts."""

    layer: int
    before: float
    after: float
    factor: float  # 1 − Var / (ε + Var), mean over positions


@dataclass(frozen=True)
class Conserved:
    """The largest error of each proposition on one batch, and the collapse at each norm.

    An error is NaN if the model made no call of the proposition's kind that could be split.
    """

    collapse: list[Collapse]
    norm_error: float
    attention_error: float
    attention_excess: list[float]  # 2 Σ q·∂f/∂q by layer: relevance created or lost
    conserved_by_rules: float  # gap of the norms under the AH and LN rules

    @property
    def heads(self) -> int:
        """The number of attention calls that were probed."""
        return len(self.attention_excess)


@restores_state
def propositions(case: Case) -> Conserved:
    """Checks both propositions for every call of a model, by autograd.

    1. Attention: R(q) + R(k) + R(v) = R(y) + 2 Σ R(scores), with R gradient × input. Scores are
       bilinear in queries and keys, so they count twice. Stated for the projected queries, keys
       and values, it also holds for projections with biases (the general form).
    2. LayerNorm without its affine part: Σ R(x) = (1 − Var/(ε + Var)) Σ R(y) at each position.
    """
    probe = Probe()
    with intercepted_forward(_probed(PLAIN, probe), case) as forward:
        flat = [t for x, y, _ in probe.norms for t in (x, y)]
        flat += [t for head in probe.heads for t in head]
        gradients = forward.gradients(flat) if flat else []
    relevance = [(g * t.detach()) for g, t in zip(gradients, flat, strict=True)]
    collapse, norm_errors = [], []
    for layer, (x, _, eps) in enumerate(probe.norms):
        before, after = relevance[2 * layer], relevance[2 * layer + 1]
        variance = x.detach().var(-1, correction=0)
        factor = 1 - variance / (eps + variance)
        gap = (before.sum(-1) - factor * after.sum(-1)).abs().max()
        scale = after.sum(-1).abs().max().clamp_min(1e-30)
        norm_errors.append(float(gap / scale))
        collapse.append(
            Collapse(layer, float(before.sum()), float(after.sum()), float(factor.mean()))
        )
    rest = relevance[2 * len(probe.norms) :]
    errors, excess = [], []
    for i in range(0, len(rest), 5):
        q, k, v, scores, out = (float(part.double().sum()) for part in rest[i : i + 5])
        excess.append(2 * scores)
        errors.append(abs(q + k + v - out - 2 * scores) / max(abs(out), 1e-30))
    return Conserved(
        collapse,
        max(norm_errors, default=math.nan),
        max(errors, default=math.nan),
        excess,
        _under_rules(case),
    )


def _under_rules(case: Case) -> float:
    """The largest relative gap of a norm with its scale held constant."""
    probe = Probe()
    with intercepted_forward(_probed(AH_LN, probe), case) as forward:
        pairs = [(x, y) for x, y, _ in probe.norms]
        if not pairs:  # without a LayerNorm, proposition 2 does not apply
            return math.nan
        gradients = forward.gradients([t for pair in pairs for t in pair])
    worst = 0.0
    for i, (x, y) in enumerate(pairs):
        before = float((gradients[2 * i] * x.detach()).double().sum())
        after = float((gradients[2 * i + 1] * y.detach()).double().sum())
        worst = max(worst, abs(before - after) / max(abs(after), 1e-30))
    return worst


def _probed(table: Table, probe: Probe) -> Table:
    """The table, with rules that also record the inputs and outputs of norms and attention."""

    def norm(tracer: Tracer, call: TorchCall) -> Any:
        x, weight, bias, eps = (
            call["input"], call.get("weight"), call.get("bias"), call.get("eps", 1e-5),
        )  # fmt: skip
        if not depends_on_input(x):
            return call.run()
        x = x.view_as(x)  # a view, to distinguish it from a residual around the norm
        y = table[Kind.LAYER_NORM](tracer, call.with_(input=x, weight=None, bias=None, eps=eps))
        probe.norms.append((x, y, eps))
        out = y if weight is None else y * weight
        return out if bias is None else out + bias

    def attention(tracer: Tracer, call: TorchCall) -> Any:
        query, key, value, settings = dot_product_of(call)
        if (
            not (depends_on_input(query) and depends_on_input(key) and depends_on_input(value))
            or table is not PLAIN
        ):
            return table[Kind.ATTENTION](tracer, call)
        parts = (query.view_as(query), key.view_as(key), value.view_as(value))
        scores, spread = attention_scores(*parts, **settings)
        out = masked_softmax(scores, **settings) @ spread
        probe.heads.append((*parts, scores, out))
        return out

    def product(tracer: Tracer, call: TorchCall) -> Any:
        a, b = call["left"], call["right"]
        if not (depends_on_input(a) and depends_on_input(b)) or call.name not in ("matmul", "bmm"):
            return table[Kind.CONTRACTION](tracer, call)
        left, right = like(a.view_as(a), a), like(b.view_as(b), b)
        out = table[Kind.CONTRACTION](tracer, call.with_(left=left, right=right))
        if role_of(a) != "softmax":
            probe.scores.append((left, right, out))
        elif probe.scores:  # the weights were computed from the last scores
            query, key, scores = probe.scores.pop()
            probe.heads.append((query, key, right, scores, out))
        return out

    rules: dict[Kind, Rule] = {**table, Kind.LAYER_NORM: norm, Kind.ATTENTION: attention}
    if table is PLAIN:
        rules[Kind.CONTRACTION] = product
    return rules
