"""What a process that explains many rows does first."""

from __future__ import annotations

import wherefrom.runs.explain_parts  # noqa: F401 (all that explaining needs, before it is set aside)
from wherefrom.core.memory import keep_heap, set_objects_aside


def prepare_for_many_rows() -> None:
    """Saves time in every batch; for a process of our own: a command or a worker."""
    keep_heap()
    set_objects_aside()
