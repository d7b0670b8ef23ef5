"""An answer read from a file, without its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np

from wherefrom.answers.attribution import AnsweredPrompt, Measured, Of
from wherefrom.answers.multi_hop import RelevanceRow
from wherefrom.answers.prompt import Part
from wherefrom.answers.tokens import AnswerTokens, PromptTokens
from wherefrom.core.explanation import unit_of
from wherefrom.errors import InputError
from wherefrom.inputs.image_text_processor import PromptImages
from wherefrom.methods import Method
from wherefrom.methods import method as find_method
from wherefrom.methods.base import Advance

AnswerData = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Recorded(AnsweredPrompt):
    """Replaces an `AnswerAttribution` where there is no model."""

    method: Method
    prompt: PromptTokens
    answer: AnswerTokens
    of: Of
    tokenizer: None = None

    @staticmethod
    def of_data(data: Mapping[str, Any]) -> Recorded:
        """Reads prompt, answer and method from a dict."""
        units = tuple(unit_of(unit) for unit in data["units"][: data["start"]])
        count, scenes = len(data["prompt_ids"]), tuple(data.get("images", ()))
        prompt = PromptTokens(
            tuple(data["prompt_ids"]),
            units,
            data["prompt"],
            tuple(Part(**part) for part in data["parts"]),
            opening=tuple(data["opening"]),
            images=PromptImages(units[: len(units) - count], scenes) if scenes else None,
        )
        tokens = data["tokens"]
        answer = AnswerTokens(
            tuple(token["id"] for token in tokens), tuple(token["text"] for token in tokens)
        )
        if len(units) != len(prompt.ids) + len(prompt.opening) + prompt.patches:
            raise ValueError(f"{len(units)} units for {len(prompt.ids)} tokens of the prompt")
        return Recorded(
            find_method(data["method"]["name"], **data["method"]["settings"]),
            prompt,
            answer,
            data["of"],
        )

    def span(self, measured: Measured, first: int, last: int) -> RelevanceRow:
        """Raises InputError, since this needs the model."""
        self._refuse("this part of the answer was not explained before it was saved")

    def each(self, measured: Measured, advance: Advance | None = None) -> list[RelevanceRow]:
        """Raises InputError, since this needs the model."""
        self._refuse("the matrix of the answer was not computed before it was saved")

    def log_probabilities_without(self, *names: str) -> NoReturn:
        """Raises InputError, since this needs the model."""
        self._refuse("a passage can be left out only with the model")

    def _refuse(self, reason: str) -> NoReturn:
        raise InputError(
            f"{reason}.",
            "Explain the answer again, and call answer.rows() before to_json.",
            command="",
        )


def answered_prompt_data(answered: AnsweredPrompt) -> AnswerData:
    """Prompt, answer and method as plain data."""
    prompt = answered.prompt
    return {
        "method": {"name": answered.method.name, "settings": answered.method.settings()},
        "of": answered.of,
        "prompt": prompt.text,
        "parts": [asdict(part) for part in prompt.parts],
        "answer": answered.answer.text,
        "start": answered.start,
        "prompt_ids": list(prompt.ids),
        "opening": list(prompt.opening),
        "images": [] if prompt.images is None else [dict(scene) for scene in prompt.images.scenes],
    }


def row_data(row: RelevanceRow) -> AnswerData:
    """A row as plain data."""
    lines = None
    if row.lines is not None:
        lines = [
            {"label": label, "kind": kind, "value": value}
            for (label, kind), value in row.lines.items()
        ]
    return {
        "values": row.values.tolist(),
        "errors": None if row.errors is None else row.errors.tolist(),
        "lines": lines,
        "output": row.output,
        "warnings": list(row.warnings),
    }


def row_of(data: Mapping[str, Any], length: int) -> RelevanceRow:
    """Reads a row from plain data."""
    values = np.array(data["values"], dtype=np.float64)
    errors = data.get("errors")
    errors = None if errors is None else np.array(errors, dtype=np.float64)
    if any(numbers.shape != (length,) for numbers in (values, errors) if numbers is not None):
        raise ValueError(f"{length} units but {values.size} values")
    lines = data["lines"]
    if lines is not None:
        lines = {(line["label"], line["kind"]): float(line["value"]) for line in lines}
    warnings = tuple(map(str, data["warnings"]))
    return RelevanceRow(values, lines, float(data["output"]), warnings, errors)


def measured_data(measured: Measured) -> AnswerData:
    """Logits and log-probabilities as plain data."""
    return {
        name: list(value) if isinstance(value, tuple) else value.tolist()
        for name, value in vars(measured).items()
    }


def measured_of(data: Mapping[str, Any]) -> Measured:
    """Reads logits and log-probabilities from plain data."""
    return Measured(
        np.array(data["logits"], dtype=np.float64),
        np.array(data["log_probabilities"], dtype=np.float64),
        tuple(data["others"]),
        np.array(data["other_log_probabilities"], dtype=np.float64),
        tuple(map(str, data.get("warnings", ()))),
    )
