"""Float tensors with a row for each unit, for any model that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.errors import InputError
from wherefrom.inputs.reader import Present, Reader, ReaderContext, Replacement, first_of


@dataclass(frozen=True)
class RowsReader(Reader[Tensor, Tensor]):
    """Reads (units, features), or a batch of them."""

    name: ClassVar[str] = "rows"
    runner: ModelRunner
    pads = False

    @classmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        first = first_of(inputs)
        if isinstance(first, Tensor):
            return first.is_floating_point()
        is_array = isinstance(first, np.ndarray) and first.dtype.kind == "f"
        return is_array and context.tokenizer is None

    @classmethod
    def build(cls, context: ReaderContext) -> RowsReader:
        return cls(context.runner.by_position("x"))

    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        if isinstance(inputs, (list, tuple)):
            return list(inputs), False
        if inputs.ndim not in (2, 3):
            raise InputError(
                f"a float tensor must have the shape (units, features) or (batch, units, "
                f"features), got {tuple(inputs.shape)}."
            )
        return ([inputs], True) if inputs.ndim == 2 else (list(inputs), False)

    def read(self, source: Any, truncate: bool = False) -> Tensor:
        rows = torch.as_tensor(source)
        if isinstance(source, np.ndarray):  # most arrays are float64, most models are not
            rows = rows.to(self.runner.dtype)
        return rows.to(self.runner.device)

    def size(self, item: Tensor) -> int:
        return len(item)

    def units_of(self, item: Tensor) -> tuple[Unit, ...]:
        return tuple(Unit(str(i)) for i in range(len(item)))

    def batch(self, items: Sequence[Tensor]) -> Batch:
        rows = torch.stack(list(items))
        return Batch(
            tensors={"x": rows},
            fields=("x",),
            units=(self.units_of(items[0]),) * len(rows),
            mask=torch.ones(rows.shape[:2], dtype=torch.bool),
            texts=(None,) * len(rows),
        )

    def erased(self, item: Tensor, present: Present, replacement: Replacement) -> list[Tensor]:
        present_rows = torch.from_numpy(present).to(item).unsqueeze(-1)
        return list(item * present_rows)

    def key(self, form: Tensor) -> bytes:
        return form.detach().cpu().numpy().tobytes()

    def length(self, form: Tensor) -> int:
        return len(form)

    def collate(self, forms: Sequence[Tensor]) -> dict[str, Tensor]:
        return {"x": torch.stack(list(forms))}
