"""Adapters of PEFT (LoRA and others): a small folder of weights for a base model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from wherefrom.errors import FileError, MissingExtra, ModelError

CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_TASKS = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "SEQ_2_SEQ_LM": "AutoModelForSeq2SeqLM",
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
}
_HEADS = ("classifier", "score", "out_proj")  # names of the last layer of a classifier


@dataclass(frozen=True)
class Adapter:
    """The folder of an adapter, and the base model that its config names."""

    folder: Path
    base: str
    task: str | None
    shapes: Mapping[str, tuple[int, ...]]  # of its weights, by name in the base model

    @staticmethod
    def of(folder: Path) -> Adapter | None:
        """The adapter in a folder; None for a folder without one."""
        file = folder / CONFIG
        if not file.is_file():
            return None
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            base, task = config["base_model_name_or_path"], config.get("task_type")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"{file} is not the config of an adapter: it has no base_model_name_or_path."
            ) from error
        if not (folder / _WEIGHTS).is_file():
            raise ModelError(
                f"{folder} is an adapter without {_WEIGHTS}. Weights are read from safetensors "
                "only.",
                "Save it with model.save_pretrained(folder, safe_serialization=True).",
                command="",
            )
        with safe_open(folder / _WEIGHTS, framework="pt") as weights:
            shapes = {
                name.removeprefix("base_model.model."): tuple(weights.get_slice(name).get_shape())
                for name in weights.keys()  # noqa: SIM118
            }
        nested = folder / str(base)
        return Adapter(folder, str(nested) if base and nested.is_dir() else str(base), task, shapes)

    @property
    def model_class(self) -> str | None:
        """The class of transformers that reads the base model for the adapter's task."""
        return _TASKS.get(self.task or "")

    def options(self) -> dict[str, Any]:
        """Options for reading the base model: the number of classes of the adapter's head."""
        for name, shape in self.shapes.items():
            path = name.split(".")
            if path[-1] == "weight" and path[-2] in _HEADS and "LM" not in (self.task or ""):
                return {"num_labels": shape[0]}
        return {}

    def applied(self, model: Any) -> Any:
        """The base model with the adapter applied."""
        return _peft().PeftModel.from_pretrained(model, str(self.folder))


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "peft", "an adapter") from error
    return peft
