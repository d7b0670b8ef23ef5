"""What rules note in a pass at the root, for a pass at the input that makes the same calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from torch import Tensor

from wherefrom.errors import MethodError


@dataclass
class RootActivations:
    """Tensors of the pass at the root, in the order in which the rules noted them."""

    recording: bool = True
    _notes: deque[tuple[Tensor, ...]] = field(default_factory=deque)

    def at_root(self, where: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The same tensors at the root; in the pass at the root itself, these."""
        if self.recording:
            # copies: the model may go on to write into what it has
            notes = tuple(tensor.detach().clone() for tensor in tensors)
            self._notes.append(notes)
            return notes
        notes = self._notes.popleft() if self._notes else ()
        if [note.shape for note in notes] != [tensor.shape for tensor in tensors]:
            raise MethodError(
                "the model does not make the same calls at the root as at the input (in "
                f"{where or 'the model itself'}), as where rows "
                "are sent to experts: secants between the two are not defined.",
                'Use secants="zero".',
                command="Use --set secants=zero.",
            )
        return notes
