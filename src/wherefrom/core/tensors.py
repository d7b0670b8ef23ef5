"""Whether a value is a tensor, asked without torch: its import takes a second."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; where torch was not imported, there is none."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)
