"""Where a method reads the input, and whether samples lie on the first axis in a model."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Literal, TypeVar

from torch import nn

from wherefrom.core.batching import RowsUnclear
from wherefrom.core.runner import Case
from wherefrom.errors import NoBlock
from wherefrom.methods.conservation_check import ConservationCheck
from wherefrom.methods.forward_graph import ForwardGraph
from wherefrom.rules.tables import CONSERVATIVE
from wherefrom.tracing.observers.entry_points import Place

At = Literal["auto", "first_block", "embeddings"]
"""Where a method reads the input: at its embeddings, or as the state that enters the first block.

"auto" is the first block for tokens and nodes if its rows are the units, else the embeddings; for
images it is the pixels.
"""
Result = TypeVar("Result")


def read_at(at: At, case: Case, run: Callable[[Place], Result]) -> Result:
    """The result of `run` for the place that `at` means for these inputs."""
    if at == "embeddings" or (at == "auto" and case.batch.layout is not None):
        return run("embeddings")
    require_samples_as_rows(case)
    try:
        return run("first_block")
    except NoBlock:
        if at != "auto":
            raise
        return run("embeddings")


_SAMPLES_ARE_ROWS: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def samples_are_rows(case: Case) -> bool:
    """Whether the model's tensors have the samples of a batch on the first axis, in order.

    They do if the ledger of `lrp` adds up for each of two samples. Methods without such a ledger
    check this once per model.
    """
    model = case.runner.model
    if model not in _SAMPLES_ARE_ROWS:
        two = case.take([0, 1])
        try:
            graph = ForwardGraph.of(CONSERVATIVE, two)
            scores, output = graph.scores(two.target), two.target(graph.logits).double().cpu()
            ConservationCheck(CONSERVATIVE, two, "lrp").messages(scores, output, graph.forward)
            _SAMPLES_ARE_ROWS[model] = True
        except RowsUnclear:
            _SAMPLES_ARE_ROWS[model] = False
    return _SAMPLES_ARE_ROWS[model]


def require_samples_as_rows(case: Case) -> None:
    """Raises `RowsUnclear` for a batch of a model that mixes the rows of its samples."""
    if len(case.batch) > 1 and not samples_are_rows(case):
        raise RowsUnclear("it is not clear which sample each row belongs to")
