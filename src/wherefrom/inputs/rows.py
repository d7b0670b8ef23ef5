"""Float tensors with a row for each unit, for any model that takes such."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.explanation import Unit
from wherefrom.inputs.reader import Present, Reader
from wherefrom.subject import Inputs, Subject


@dataclass(frozen=True)
class RowsReader(Reader[Tensor, Tensor]):
    """Reads (units, features), or a batch of them."""

    subject: Subject
    pads = False

    def listed(self, given: Any) -> tuple[list[Any], bool]:
        if isinstance(given, (list, tuple)):
            return list(given), False
        if given.ndim not in (2, 3):
            raise InputError(
                f"a float tensor of shape {tuple(given.shape)} has no units: give (units, "
                "features) or (batch, units, features)."
            )
        return ([given], True) if given.ndim == 2 else (list(given), False)

    def read(self, given: Any, truncate: bool = False) -> Tensor:
        return torch.as_tensor(given)

    def size(self, item: Tensor) -> int:
        return len(item)

    def units_of(self, item: Tensor) -> tuple[Unit, ...]:
        return tuple(Unit(str(i)) for i in range(len(item)))

    def batch(self, items: Sequence[Tensor]) -> Inputs:
        rows = torch.stack(list(items))
        return Inputs(
            tensors={"x": rows},
            fields=("x",),
            units=(self.units_of(items[0]),) * len(rows),
            mask=torch.ones(rows.shape[:2], dtype=torch.bool),
            texts=(None,) * len(rows),
        )

    def erased(self, item: Tensor, present: Present, blank: str | int | None) -> list[Tensor]:
        kept = torch.from_numpy(present).to(item).unsqueeze(-1)
        return list(item * kept)

    def key(self, form: Tensor) -> bytes:
        return form.detach().cpu().numpy().tobytes()

    def length(self, form: Tensor) -> int:
        return len(form)

    def collate(self, forms: Sequence[Tensor]) -> dict[str, Tensor]:
        return {"x": torch.stack(list(forms))}
