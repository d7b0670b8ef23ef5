"""A type check for tensors that does not import torch, which takes a second."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a tensor; before torch is imported, nothing is."""
    kind = getattr(sys.modules.get("torch"), "Tensor", None)
    return kind is not None and isinstance(value, kind)
