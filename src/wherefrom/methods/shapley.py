"""Shapley values of units that are present or missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from wherefrom.core.explanation import plural, word_groups
from wherefrom.core.runner import Batch
from wherefrom.core.shapley import BUDGET, coalitions
from wherefrom.core.target import Case
from wherefrom.errors import InputError
from wherefrom.methods.base import Method, Scores
from wherefrom.methods.masked_inputs import Baseline, MaskedInputs, mask_name


@dataclass(frozen=True)
class Shapley(Method):
    """Shapley values: the mean effect of adding a unit, over all orders; sums to f(x) − f(x′).

    Exact where `budget` evaluations of the model are enough for all subsets, else estimated along
    random orders and their reverses, with standard errors. The baseline "auto" is the root of
    `secant`: [UNK], or the mean embedding for texts of a generative model; nodes are removed, and
    all else becomes zero. `players` are added one by one: units, words, or the parts of a prompt;
    the value of a player is divided equally among its units.
    """

    name: ClassVar[str] = "shapley"
    paper: ClassVar[str] = "Shapley 1953; Mitchell et al. 2022"
    closes: ClassVar[bool] = True
    baseline: Baseline = "auto"
    players: Literal["units", "words", "parts"] = "units"
    budget: int = BUDGET
    seed: int = 0

    def resolved(self, inputs: Batch) -> Self:
        if not isinstance(self.baseline, str) or self.baseline != "auto":
            return self
        is_graph = mask_name(inputs) == "mask"
        return replace(self, baseline=inputs.missing or ("remove" if is_graph else "zero"))

    def scores(self, case: Case) -> Scores:
        inputs = MaskedInputs.of(case, self.resolved(case.batch).baseline)
        whole, removable = inputs.whole, inputs.removable
        players = [self._players(case.batch, i, removable[i]) for i in range(len(case.batch))]
        plans = [coalitions(len(units), self.budget, self.seed) for units in players]
        present = [  # (evaluations, units)
            (plan.masks.double() @ units.double() > 0) | ~units.any(0)
            for plan, units in zip(plans, players, strict=True)
        ]
        # random orders share subsets, such as those of one player
        distinct = [masks.unique(dim=0, return_inverse=True) for masks in present]
        outputs = [torch.zeros(len(masks), dtype=torch.float64) for masks, _ in distinct]
        pairs = [(i, m) for i, (masks, _) in enumerate(distinct) for m in range(len(masks))]
        for rows, results in inputs.outputs(pairs, lambda i, m: distinct[i][0][m]):
            for (i, m), result in zip(rows, results, strict=True):
                outputs[i][m] = result
        values, errors = torch.zeros(2, *case.batch.mask.shape, dtype=torch.float64)
        low = torch.zeros_like(whole)
        for i, (plan, units) in enumerate(zip(plans, players, strict=True)):
            masks, places = distinct[i]
            outputs[i][masks.all(1)] = whole[i]  # in other batches it rounds differently
            estimate = plan.estimate(outputs[i][places])
            low[i] = outputs[i][places[0]]  # of the empty subset
            shares = units.double() / units.sum(1, keepdim=True)
            values[i], errors[i] = estimate.values @ shares, estimate.errors @ shares
        noun = case.batch.noun
        lines = {(plural(noun), noun): values.sum(1), ("reference", "reference"): low}
        return Scores(values, inputs.logits, {noun: values}, lines, errors=errors)

    def _players(self, inputs: Batch, row: int, removable: Tensor) -> Tensor:
        """The units of each player that has removable ones, (players, units) bool."""
        units, places = inputs.units[row], inputs.mask[row].cpu().nonzero().flatten()
        groups = [[i] for i in range(len(units))]
        if self.players == "words":
            groups = word_groups(units)
        elif self.players == "parts":
            fields = dict.fromkeys(unit.field for unit in units)
            if len(fields) < 2:
                raise InputError(
                    "the input has no parts to add one by one: these are the passages of a prompt, "
                    "or both texts of a pair."
                )
            groups = [[i for i, unit in enumerate(units) if unit.field == f] for f in fields]
        players = torch.zeros(len(groups), len(removable), dtype=torch.bool)
        for player, group in zip(players, groups, strict=True):
            player[places[group]] = True
        players &= removable
        return players[players.any(1)]
