"""The one policy for failing batches: halve, then run alone, then reject with the reason."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from wherefrom.core.memory import is_out_of_memory, release_memory
from wherefrom.errors import InputError, NotEnoughMemory, NotFinite, SamplesRunAlone, WherefromError

Result = TypeVar("Result")
INPUT_ERRORS = (InputError, NotFinite, NotEnoughMemory)
"""Errors that one input of a batch can cause; all others concern the model or the method."""


class RowsUnclear(Exception):
    """The rows of a batch cannot be assigned to its samples: each sample must run alone."""


@dataclass(frozen=True)
class Rejected:
    """An input that could not be explained, and why."""

    index: int
    error: WherefromError


def split_on_failure(
    indices: Sequence[int],
    work: Callable[[Sequence[int]], Sequence[Result]],
    *,
    reject: bool = False,
    device: torch.device | None = None,
) -> Iterator[tuple[int, Result | Rejected]]:
    """Calls `work` on the indices and yields each index with its result.

    A batch that fails because of one input, or for lack of memory, is halved. An input that fails
    alone raises its error, or with `reject` yields a `Rejected`.
    """
    out_of_memory = False
    try:
        results = work(indices)
    except RowsUnclear as reason:
        if len(indices) == 1:
            raise
        warnings.warn(
            f"{reason}; the {len(indices)} inputs of this batch run one by one. The scores are the "
            "same.",
            SamplesRunAlone,
            stacklevel=3,
        )
        pieces = [indices[i : i + 1] for i in range(len(indices))]
    except Exception as error:
        out_of_memory = is_out_of_memory(error)
        if not (out_of_memory or isinstance(error, INPUT_ERRORS)):
            raise
        if len(indices) == 1:
            if not (reject and isinstance(error, WherefromError)):
                raise
            yield indices[0], Rejected(indices[0], error)
            return
        pieces = [indices[: len(indices) // 2], indices[len(indices) // 2 :]]
    else:
        yield from zip(indices, results, strict=True)
        return
    if out_of_memory and device is not None:
        release_memory(device)  # here, after the error and the tensors that it references are gone
    for piece in pieces:
        yield from split_on_failure(piece, work, reject=reject, device=device)
