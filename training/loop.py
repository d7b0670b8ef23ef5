"""A seeded training loop that can be stopped at any step and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor, nn


@dataclass(frozen=True)
class Plan:
    """What a run of `fit` does, and where it leaves its checkpoint."""

    name: str
    steps: int
    learning_rate: float
    checkpoint: Path
    warmup: float = 0.06
    weight_decay: float = 0.01
    average_last: float = 0.0
    every: int = 200
    seed: int = 0


class Batches:
    """Batches of like length in an order that is a function of (seed, step) alone."""

    def __init__(self, lengths: Sequence[int], size: int, seed: int = 0) -> None:
        self.lengths = torch.tensor(lengths)
        self.size = size
        self.seed = seed
        self.per_epoch = -(-len(lengths) // size)
        self._epoch = -1
        self._plan: list[Tensor] = []

    def __getitem__(self, step: int) -> Tensor:
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._plan, self._epoch = self._shuffle(epoch), epoch
        return self._plan[place]

    def _shuffle(self, epoch: int) -> list[Tensor]:
        """Sorts within runs of fifty batches, so that little is padding and much is chance."""
        generator = torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        plan: list[Tensor] = []
        for run in order.split(50 * self.size):
            run = run[self.lengths[run].argsort(stable=True)]
            plan.extend(run.split(self.size))
        return [plan[i] for i in torch.randperm(len(plan), generator=generator).tolist()]


def progress() -> Progress:
    """The bar that every stage of a training shows."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        refresh_per_second=1,
    )


def fit(model: nn.Module, loss_at: Callable[[int], Tensor], plan: Plan) -> None:
    """Runs AdamW for `plan.steps` steps with linear warm-up and decay, from the last checkpoint on.

    With `average_last`, the weights become their mean over that last share of the steps.
    """
    torch.manual_seed(plan.seed)
    decayed = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in model.parameters() if p.requires_grad and p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": decayed, "weight_decay": plan.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=plan.learning_rate,
        fused=True,  # one pass over the weights instead of five
    )
    warm = max(1, int(plan.warmup * plan.steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, (plan.steps - step) / max(1, plan.steps - warm)),
    )
    average_from = plan.steps - int(plan.average_last * plan.steps)
    mean: dict[str, Tensor] = {}
    start, recent = 0, float("nan")
    if plan.checkpoint.exists():
        state = torch.load(plan.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"])
        start, recent, mean = state["step"], state["recent"], state["mean"]

    model.train()
    with progress() as bar:
        task = bar.add_task(plan.name, total=plan.steps, completed=start)
        for step in range(start, plan.steps):
            loss = loss_at(step)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step >= average_from:
                share = 1 / (step - average_from + 1)
                for name, value in model.state_dict().items():
                    kept = mean.setdefault(name, value.clone())
                    if value.is_floating_point():
                        kept.lerp_(value, share)
            recent = loss.item() if recent != recent else 0.98 * recent + 0.02 * loss.item()
            bar.update(task, completed=step + 1, description=f"{plan.name}  loss {recent:.3f}")
            if (step + 1) % plan.every == 0 or step + 1 == plan.steps:
                _save(
                    plan.checkpoint,
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    schedule=schedule.state_dict(),
                    rng=torch.get_rng_state(),
                    step=step + 1,
                    recent=recent,
                    mean=mean,
                )
    if mean:
        model.load_state_dict(mean)
    model.eval()


def _save(path: Path, **state: object) -> None:
    """Writes beside and then renames, so that a stop in the middle leaves the old file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    torch.save(state, beside)
    beside.replace(path)
