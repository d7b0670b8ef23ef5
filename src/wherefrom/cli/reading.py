"""Reads the model, the texts with their locations, and the settings of methods."""

from __future__ import annotations

import os
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wherefrom.cli.output import say
from wherefrom.errors import FileError, InputError, MethodError, WherefromError, nearest
from wherefrom.storage.text_file import bad_byte, decoded, encoding_of, lines_of, read_bytes

if TYPE_CHECKING:
    from wherefrom.explainer import Explainer
    from wherefrom.methods import Method


def load(
    model: str | None,
    sources: list[str] | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Explainer:
    """The model with this name, else the embedded one for this kind of input."""
    from wherefrom.core.memory import keep_heap, set_objects_aside
    from wherefrom.inputs.pictures import is_image
    from wherefrom.loading import load as load_model

    keep_heap()
    are_images = bool(sources) and all(is_image(source) for source in sources or ())
    name = model or ("digits" if are_images else "sentiment")
    explainer = load_model(name, **model_options(dtype, device))
    set_objects_aside()
    return explainer


def model_options(dtype: str | None, device: str | None) -> dict[str, Any]:
    """The options of `wherefrom.load` that are not None."""
    options = {"dtype": dtype, "device": device}
    return {name: value for name, value in options.items() if value is not None}


def listed(names: str | None) -> list[str] | None:
    """Comma-separated names as a list."""
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def image_units(value: str | None) -> Any:
    """The value of `--units` for the explainer: a name, or a cell size."""
    is_size = value is not None and value.isdecimal() and len(value) < 10
    return int(value) if value is not None and is_size else value


def parsed(settings: list[str] | None) -> dict[str, Any]:
    """Parses `steps=64` as {"steps": 64}; values are Python literals, else text."""
    import ast

    values: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise MethodError(f'cannot read the setting "{setting}": write key=value.')
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            values[key] = value
    return values


def with_settings(names: Iterable[str], settings: list[str] | None) -> list[Method]:
    """The methods with these names, each with the settings that it has."""
    from wherefrom.methods import method

    values = parsed(settings)
    methods = [method(name) for name in names]
    unknown = [key for key in values if not any(key in m.settings() for m in methods)]
    if unknown:
        known = dict.fromkeys(key for m in methods for key in m.settings())
        raise MethodError(
            f'none of these methods has a setting "{unknown[0]}"; {nearest(unknown[0], known)}'
        )
    return [
        method(m, **{key: value for key, value in values.items() if key in m.settings()})
        for m in methods
    ]


def with_setting(name: str, settings: list[str] | None) -> Method:
    """The method with this name and these settings."""
    from wherefrom.methods import method

    return method(name, **parsed(settings))


def check_molecules(explainer: Explainer, smiles: list[str] | None) -> None:
    """Refuses `--smiles` for text models."""
    if smiles and explainer._reader(smiles).name == "text":
        raise InputError(
            f"{explainer.runner.name} reads texts, but --smiles needs a model for molecules: leave "
            f'out --model, or pass "{smiles[0]}" without --smiles.'
        )


def check_plot(path: Path | None) -> None:
    """Refuses files whose format is not that of a figure."""
    if path is not None and path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise FileError(f"cannot write {path}: the file name must end in .png, .pdf or .svg.")


@dataclass(frozen=True)
class Sources:
    """Texts with their locations; `unreadable` maps other locations to errors."""

    texts: list[str]
    locations: list[str]
    unreadable: dict[str, WherefromError] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts) + len(self.unreadable)

    def all_texts(self) -> list[str]:
        """The texts; raises if one of them could not be read."""
        for error in self.unreadable.values():
            raise error
        return self.texts


def read_texts(texts: list[str] | None, file: Path | None, encoding: str | None = None) -> Sources:
    """The texts in the arguments, in a file, or on standard input."""
    arguments = list(texts or ())
    is_piped = sys.stdin is not None and not sys.stdin.isatty()
    if arguments == ["-"] or (not arguments and file is None and is_piped):
        sources = _lines("stdin", b"" if sys.stdin is None else sys.stdin.buffer.read(), encoding)
    else:
        arguments = _joined(arguments)
        _hint_at_file(arguments)
        sources = Sources(arguments, [f"text {i + 1}" for i in range(len(arguments))])
        if file is not None:
            if _is_table(str(file)):
                raise FileError(f"{file} is a table: use `wherefrom run {file} --out DIR`.")
            lines = _lines(str(file), read_bytes(file), encoding)
            sources = Sources(
                sources.texts + lines.texts, sources.locations + lines.locations, lines.unreadable
            )
    if not len(sources):
        raise InputError("there is no text to explain. Pass a text, --file, or lines on stdin.")
    return sources


def _joined(arguments: list[str]) -> list[str]:
    """Joins arguments into one text if each is a single word and none is a file."""
    words = [not re.search(r"\s", argument) for argument in arguments]
    if len(arguments) < 2 or not all(words) or any(map(_is_file, arguments)):
        return arguments
    text = " ".join(arguments)
    say(
        f"wherefrom: these {len(arguments)} words are explained as one text. To explain several "
        'texts, put one per line into a file for --file, or quote each text: "…".',
        err=True,
    )
    return [text]


def _hint_at_file(arguments: list[str]) -> None:
    """Prints a hint if the only text is the name of a file other than an image."""
    from wherefrom.inputs.pictures import is_image

    if len(arguments) != 1 or is_image(arguments[0]) or not _is_file(arguments[0]):
        return
    name = arguments[0]
    if os.path.isfile(name):
        lines, rows = f"its lines pass --file {name}", f"its rows: wherefrom run {name} --out DIR"
        advice = rows if _is_table(name) else lines
        say(f"wherefrom: {name} is a file; to explain {advice}", err=True)


def _is_table(name: str) -> bool:
    """Whether a file's suffix is that of a table."""
    from wherefrom.inputs.table import FORMATS

    return name.lower().removesuffix(".gz").endswith(tuple(FORMATS))


def _is_file(argument: str) -> bool:
    from wherefrom.inputs.pictures import is_image

    try:
        return is_image(argument) or os.path.exists(argument)
    except ValueError:  # a null character
        return False


def _lines(name: str, content: bytes, encoding: str | None) -> Sources:
    """The non-blank lines of a file; lines with invalid UTF-8 are `unreadable`."""
    known = encoding_of(name, content, encoding)
    sources = Sources([], [])
    if not known.startswith("utf-8"):
        lines: list[str | bytes] = list(lines_of(decoded(name, content, known)))
    else:
        lines = list(re.split(rb"\r\n|\n|\r", content.removeprefix(BOM_UTF8)))
    for number, line in enumerate(lines, 1):
        location = f"{name}, line {number}"
        try:
            text = line if isinstance(line, str) else line.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{location} is not UTF-8: {bad_byte(error)}."
            sources.unreadable[location] = InputError(reason)
            continue
        if text.strip():
            sources.texts.append(text)
            sources.locations.append(location)
    return sources
