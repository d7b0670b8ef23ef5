"""Prompts of the command line: a text, a file with one, chat messages, or many as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import FileError, InputError, for_command
from wherefrom.storage.text_file import decoded, read_bytes

if TYPE_CHECKING:
    from wherefrom.answers.prompt import PromptLike

_LINES = (".jsonl", ".ndjson")
_FIELDS = ("prompt", "question", "passages", "system", "answer", "against")


@dataclass(frozen=True)
class Line:
    """A prompt of a file of many, with an answer to explain and one to compare with, if any."""

    prompt: PromptLike
    answer: str | None = None
    against: str | None = None


def is_lines(prompt: str) -> bool:
    """Whether this is the name of a file with a prompt on each line."""
    return "\n" not in prompt and prompt.endswith(_LINES)


def read_prompt(prompt: str) -> PromptLike:
    """A text as it is; a file's text without its last line break; messages of a .json file."""
    is_file = len(prompt) < 4096 and "\n" not in prompt and os.path.isfile(prompt)
    if not is_file:
        if prompt.endswith((".json", ".txt")):
            raise FileError(f"there is no file {prompt}.")
        return prompt
    text = text_of(Path(prompt))
    if not prompt.endswith(".json"):
        return text.removesuffix("\n").removesuffix("\r")
    try:
        messages = json.loads(text)
    except ValueError as error:
        raise FileError(f"{prompt} is not JSON: {error}.") from error
    if not isinstance(messages, list):
        raise FileError(f"{prompt} must hold a list of chat messages.")
    return messages


def read_lines(name: str) -> list[Line]:
    """The prompts of a file: on each line a text, chat messages, or an object with its parts."""
    lines = []
    for number, text in enumerate(text_of(Path(name)).splitlines(), 1):
        if not text.strip():
            continue
        try:
            lines.append(_line(json.loads(text)))
        except json.JSONDecodeError as error:
            is_text = not text.lstrip().startswith(("{", "[", '"'))
            advice = "; put a text into quotes" if is_text else f": {error.msg}"
            raise FileError(f"{name}, line {number} is not JSON{advice}.") from error
        except (ValueError, InputError) as error:
            raise FileError(for_command(error), where=f"{name}, line {number}") from error
    if not lines:
        raise FileError(f"{name} is empty: there is nothing to answer.")
    answered = [line.answer is not None for line in lines]
    if any(answered) and not all(answered):
        raise FileError(
            f"{name}: some lines have an answer and others have none, the first of these is "
            f"number {answered.index(False) + 1}. Give one for each, or for none."
        )
    return lines


def _line(data: Any) -> Line:
    from wherefrom.answers.prompt import Passage, Prompt

    if not isinstance(data, Mapping):
        return Line(_prompt_of(data))
    unknown = [str(key) for key in data if key not in _FIELDS]
    if unknown:
        raise InputError(f"there is no field {unknown[0]!r}; there are: {', '.join(_FIELDS)}.")
    for key in ("question", "system", "answer", "against"):
        if not isinstance(data.get(key, ""), str):
            raise InputError(f"{key} must be a text, got {data[key]!r}.")
    extra = data.get("answer"), data.get("against")
    if "prompt" in data:
        if any(data.get(key) for key in ("question", "passages", "system")):
            raise InputError("give either prompt, or question with passages and system, not both.")
        return Line(_prompt_of(data["prompt"]), *extra)
    passages: list[str | Passage] = []
    for passage in data.get("passages") or ():
        if isinstance(passage, Mapping) and isinstance(passage.get("text"), str):
            passages.append(Passage(passage["text"], str(passage.get("title", ""))))
        elif isinstance(passage, str):
            passages.append(passage)
        else:
            raise InputError(
                f'a passage is a text or {{"text": …, "title": …}}, got {str(passage)[:60]!r}.'
            )
    return Line(Prompt(data.get("question", ""), passages, data.get("system", "")), *extra)


def _prompt_of(data: Any) -> PromptLike:
    """A text, or a list of chat messages."""
    if isinstance(data, str):
        return data
    if isinstance(data, Sequence) and data and all(isinstance(one, Mapping) for one in data):
        return list(data)
    raise InputError(f"a prompt is a text or a list of chat messages, got {str(data)[:60]!r}.")


def text_of(path: Path) -> str:
    """The text of a file."""
    return decoded(path, read_bytes(path))
