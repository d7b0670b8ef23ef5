"""Reads prompts of language models from arguments and files."""

from __future__ import annotations

import json as json_text
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.errors import FileError, InputError, for_command
from wherefrom.storage.text_file import decoded, read_bytes

if TYPE_CHECKING:
    from wherefrom.answers.prompt import Passage, PromptLike

_LINES = (".jsonl", ".ndjson")
_FIELDS = ("prompt", "question", "passages", "system", "answer", "against", "supporting")


@dataclass(frozen=True)
class PromptLine:
    """One prompt of a file, optionally with an answer and an answer to compare with.

    `supporting` are the numbers of the passages that support the answer, for `wherefrom evaluate`.
    """

    prompt: PromptLike
    answer: str | None = None
    against: str | None = None
    supporting: tuple[int, ...] | None = None


def is_lines(prompt: str) -> bool:
    """Whether this names a file with one prompt on each line."""
    return "\n" not in prompt and prompt.endswith(_LINES)


def read_prompt(prompt: str) -> PromptLike:
    """The text itself, the content of a text file, or the messages of a .json file."""
    is_file = len(prompt) < 4096 and "\n" not in prompt and os.path.isfile(prompt)
    if not is_file:
        if prompt.endswith((".json", ".txt")):
            raise FileError(f"there is no file {prompt}.")
        return prompt
    text = text_of(Path(prompt))
    if not prompt.endswith(".json"):
        return text.removesuffix("\n").removesuffix("\r")
    try:
        messages = json_text.loads(text)
    except ValueError as error:
        raise FileError(f"{prompt} is not JSON: {error}.") from error
    if not isinstance(messages, list):
        raise FileError(f"{prompt} must contain a list of chat messages.")
    return messages


def read_lines(name: str) -> list[PromptLine]:
    """The prompts of a file; each line is a text, chat messages, or an object with fields."""
    lines = []
    for number, text in enumerate(text_of(Path(name)).splitlines(), 1):
        if not text.strip():
            continue
        try:
            lines.append(_line(json_text.loads(text)))
        except json_text.JSONDecodeError as error:
            is_text = not text.lstrip().startswith(("{", "[", '"'))
            advice = "; put the text in quotes" if is_text else f": {error.msg}"
            raise FileError(f"{name}, line {number} is not JSON{advice}.") from error
        except (ValueError, InputError) as error:
            raise FileError(for_command(error), where=f"{name}, line {number}") from error
    if not lines:
        raise FileError(f"{name} is empty: there is nothing to answer.")
    answered = [line.answer is not None for line in lines]
    if any(answered) and not all(answered):
        raise FileError(
            f"{name}: some lines have an answer but prompt "
            f"{answered.index(False) + 1} has none. Give answers to all prompts, or to none."
        )
    return lines


def _line(data: Any) -> PromptLine:
    from wherefrom.answers.prompt import Passage, Prompt

    if not isinstance(data, Mapping):
        return PromptLine(_one_prompt(data))
    unknown = [str(key) for key in data if key not in _FIELDS]
    if unknown:
        raise InputError(f"there is no field {unknown[0]!r}; there are: {', '.join(_FIELDS)}.")
    for key in ("question", "system", "answer", "against"):
        if not isinstance(data.get(key, ""), str):
            raise InputError(f"{key} must be a text, got {data[key]!r}.")
    extra = data.get("answer"), data.get("against"), _supporting(data)
    if "prompt" in data:
        if any(data.get(key) for key in ("question", "passages", "system")):
            raise InputError("pass either prompt, or question with passages and system, not both.")
        return PromptLine(_one_prompt(data["prompt"]), *extra)
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
    return PromptLine(Prompt(data.get("question", ""), passages, data.get("system", "")), *extra)


def _supporting(data: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The numbers of the passages that support an answer, from 1 on."""
    numbers, count = data.get("supporting"), len(data.get("passages") or ())
    if numbers is None:
        return None
    if not isinstance(numbers, list) or not all(
        isinstance(number, int) and 1 <= number <= count for number in numbers
    ):
        raise InputError(
            f"supporting must be a list of numbers of passages, 1 to {count}, got {numbers!r:.60}."
        )
    return tuple(numbers)


def _one_prompt(data: Any) -> PromptLike:
    """A text, or a list of chat messages."""
    if isinstance(data, str):
        return data
    if isinstance(data, Sequence) and data and all(isinstance(entry, Mapping) for entry in data):
        return list(data)
    raise InputError(f"a prompt is a text or a list of chat messages, got {str(data)[:60]!r}.")


def text_of(path: Path) -> str:
    """The text of a file."""
    return decoded(path, read_bytes(path))
