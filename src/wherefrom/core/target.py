"""The scalar that is explained: a class, a contrast, a next token, or a span of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from wherefrom.errors import TargetError


@dataclass(frozen=True)
class Target:
    """One number for each sample: a logit, or the difference of two.

    `index` None means the most likely class of each sample. `position` selects the row of the
    logits if the model has one for each token.
    """

    index: Tensor | None = None  # (B,)
    against: Tensor | None = None  # (B,)
    position: Tensor | None = None  # (B,)

    def row(self, logits: Tensor) -> Tensor:
        """The logits at the position, (B, classes)."""
        if logits.ndim == 2:
            return logits
        if logits.shape[1] == 1:  # only the row at the position was computed
            return logits[:, 0]
        samples = torch.arange(logits.shape[0])
        positions = -1 if self.position is None else self.position
        if self.position is not None and int(self.position.max()) >= logits.shape[1]:
            raise TargetError(
                f"there is no position {int(self.position.max())}: the model's output has "
                f"{logits.shape[1]}."
            )
        return logits[samples, positions]

    def resolved(self, logits: Tensor) -> Target:
        """The same target, with the most likely class if it has none."""
        if self.index is not None:
            return self
        return replace(self, index=self.row(logits.detach()).argmax(-1))

    def __call__(self, logits: Tensor) -> Tensor:
        row = self.row(logits)  # (B, C)
        for classes in (self.index, self.against):
            if classes is None:
                continue
            beyond = classes[(classes < 0) | (classes >= row.shape[1])]
            if len(beyond):
                raise TargetError(
                    f"there is no class {int(beyond[0])}: the model has 0 to {row.shape[1] - 1}."
                )
        index = self.index if self.index is not None else row.detach().argmax(-1)
        out = row.gather(1, index.unsqueeze(1)).squeeze(1)
        if self.against is not None:
            out = out - row.gather(1, self.against.unsqueeze(1)).squeeze(1)
        return out  # (B,)

    def offset(self, logits: Tensor) -> Tensor | None:
        """What the target adds to a weighted sum of logits, (B,); None for nothing."""
        return None

    def take(self, rows: list[int]) -> Self:
        """The target of some of the samples."""
        at = torch.tensor(rows)
        return self._mapped(lambda tensor: tensor[at])

    def to(self, device: torch.device) -> Self:
        """The target with its tensors on a device."""
        return self._mapped(lambda tensor: tensor.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(self, **{k: change(v) for k, v in values if isinstance(v, Tensor)})


@dataclass(frozen=True)
class SpanTarget(Target):
    """A weighted sum of logits, contrasts or log-probabilities at several positions.

    Σ_r w_r z_r[y_r], Σ_r w_r (z_r[y_r] − z_r[a_r]), or with `log` Σ_r w_r log p_r[y_r]. All
    tensors are (B, R), and so is `position`: the rows of the logits, in increasing order.
    """

    weights: Tensor | None = None  # (B, R); None: all one
    log: bool = False

    @property
    def first(self) -> Target:
        """The target at the first of its positions."""
        first = self._mapped(lambda tensor: tensor[:, 0])
        return Target(first.index, first.against, first.position)

    def row(self, logits: Tensor) -> Tensor:
        """The logits at the first position, (B, classes)."""
        return self.rows(logits)[:, 0]

    def rows(self, logits: Tensor) -> Tensor:
        """The logits at the positions, (B, R, classes)."""
        assert self.position is not None
        if logits.ndim != 3:
            raise TargetError(
                f"the model has outputs of shape {tuple(logits.shape)}: it is not a language model "
                "with outputs for each token."
            )
        if logits.shape[1] == self.position.shape[1]:  # only these rows were computed
            return logits
        samples = torch.arange(len(logits), device=logits.device).unsqueeze(1)
        return logits[samples, self.position.to(logits.device)]

    def resolved(self, logits: Tensor) -> SpanTarget:
        """The target itself, since its tokens are known."""
        return self

    def within(self, first: int, last: int) -> SpanTarget:
        """The same target at its positions `first` to `last` − 1 only."""
        assert self.index is not None
        weights = torch.zeros(self.index.shape, dtype=torch.float64)
        own = 1 if self.weights is None else self.weights[:, first:last].double()
        weights[:, first:last] = own
        return replace(self, weights=weights)

    def _counted(self, samples: int) -> slice:
        """The positions with a weight; for several samples all positions.

        The others stay out of the graph: most of them, if a single token is explained.
        """
        if self.weights is None or samples > 1:
            return slice(None)
        counted = self.weights[0].nonzero().flatten()
        return slice(int(counted[0]), int(counted[-1]) + 1) if len(counted) else slice(0, 1)

    def __call__(self, logits: Tensor) -> Tensor:
        return self.terms(logits).sum(1)  # (B,)

    def terms(self, logits: Tensor) -> Tensor:
        """The terms of the sum, one for each position with a weight, (B, R)."""
        assert self.index is not None
        rows = self.rows(logits)  # (B, R, C)
        counted = self._counted(len(rows))
        rows = rows[:, counted]
        out = _chosen(rows, self.index[:, counted])
        if self.log:
            out = out - rows.logsumexp(-1)
        elif self.against is not None:
            out = out - _chosen(rows, self.against[:, counted])
        if self.weights is not None:
            out = out * self.weights[:, counted].to(out)
        return out

    def offset(self, logits: Tensor) -> Tensor | None:
        """For log-probabilities −Σ_r w_r H_r, with the entropy H of each row's softmax.

        log p_y = z_y − log Σ_v exp z_v = Σ_v (1[v = y] − p_v) z_v − H(p): the gradient distributes
        the first term; the second one remains.
        """
        if not self.log:
            return None
        rows = self.rows(logits.detach())
        counted = self._counted(len(rows))
        logs = rows[:, counted].double().log_softmax(-1)
        entropies = -(logs.exp() * logs).nan_to_num(nan=0.0).sum(-1)  # (B, R)
        weights = 1 if self.weights is None else self.weights[:, counted].to(entropies)
        return -(weights * entropies).sum(1)


@dataclass(frozen=True)
class AnswerTarget(SpanTarget):
    """The start and the end of an answer in its context: z_start[s] + z_end[e], or one of them.

    The logits of a question answering model are (B, 2, tokens); `index` (B, 2) has s and e.
    """

    def rows(self, logits: Tensor) -> Tensor:
        """The logits themselves: one row for the start, one for the end."""
        return logits


def _chosen(rows: Tensor, index: Tensor) -> Tensor:
    """The logits (B, R) of these classes."""
    return rows.gather(2, index.to(rows.device).unsqueeze(2)).squeeze(2)
