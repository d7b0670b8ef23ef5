"""The scalar that is explained: a class, a contrast of two, a next token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wherefrom.errors import TargetError


@dataclass(frozen=True)
class Target:
    """One number for each sample: a logit, or the difference of two.

    `index` None means the most likely class of each sample; `position` is the row of the logits
    of a model that has one for each token.
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
        """The same target with the most likely class filled in."""
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

    def take(self, rows: list[int]) -> Target:
        """The target of some of the samples."""
        at = torch.tensor(rows)
        tensors = (self.index, self.against, self.position)
        return Target(*(None if tensor is None else tensor[at] for tensor in tensors))
