"""Tensors that rules record in a pass at the root, for a pass at the input with the same calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from wherefrom.errors import MethodError, use_method


@dataclass
class RootActivations:
    """Tensors of the pass at the root, in the order in which the rules recorded them."""

    recording: bool = True
    _recorded: deque[tuple[Tensor, ...]] = field(default_factory=deque)

    def at_root(self, where: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The values of these tensors at the root; in the pass at the root, records them."""
        if self.recording:
            # copies: the model may write into its tensors afterwards
            copies = tuple(tensor.detach().clone() for tensor in tensors)
            self._recorded.append(copies)
            return copies
        at_root = self._recorded.popleft() if self._recorded else ()
        if [recorded.shape for recorded in at_root] != [tensor.shape for tensor in tensors]:
            raise MethodError(
                "the model does not make the same calls at the root as at the input (in "
                f"{where or 'the model itself'}), for example if it routes rows to experts: "
                "secants between the two are undefined.",
                **use_method("lrp"),
            )
        return at_root
