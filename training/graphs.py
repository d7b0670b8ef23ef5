"""What the trainings on graphs share."""

from __future__ import annotations

import torch
from torch import Tensor

HOLES = 0.2  # the share of the graphs that have nodes taken out


def with_holes(mask: Tensor, share: float = HOLES) -> Tensor:
    """The mask with nodes taken out of some of the graphs, a part drawn anew for each of them.

    So the model knows what a graph with nodes removed looks like, down to the empty one.
    """
    chosen = torch.rand(len(mask), 1) < share
    rate = torch.rand(len(mask), 1)
    return mask & ~(chosen & (torch.rand(mask.shape) < rate))
