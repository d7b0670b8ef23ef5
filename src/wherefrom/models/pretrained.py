"""Options of `from_pretrained` under the names that a version of transformers knows."""

from __future__ import annotations

from typing import Any


def pretrained_options(version: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options for this version: before transformers 4.56 `dtype` was `torch_dtype`.

    Weights are read as they are stored, which is the default of transformers 5 only.
    """
    options = {"dtype": "auto", **options}
    if tuple(map(int, version.split(".")[:2])) >= (4, 56):
        return options
    return {"torch_dtype" if key == "dtype" else key: value for key, value in options.items()}
