"""The tree of errors, and the warnings.

WherefromError
├── InputError          the text, ids or tensor cannot be explained
│   ├── TooLong         more units than the model takes
│   └── TargetError     no such class, label, token or position
├── ModelError          the model could not be loaded, run or understood
│   ├── NothingIntercepted   the model makes no call of the kind that a method needs
│   ├── NoBlock         the state that enters the first block was not found
│   └── NotFinite       the model's output is NaN or infinite
│       └── ScoresNotFinite  the scores of a method are, although the output is finite
├── NotEnoughMemory     a pass needs more memory than it may use
├── FileError           a file is missing, damaged or of the wrong type
├── MethodError         no such method, or no such setting
├── PluginError         a class cannot be added to the methods or readers
└── MissingExtra        an optional library is not installed

Warnings
--------
├── WherefromWarning    a warning with a remedy for each front end, like the errors
│   └── GuessedEncoding a text file declares no encoding, so it is guessed
├── SamplesRunAlone     the samples of a batch run one by one
├── NotConserved        scores that should add up to the output do not
├── OutputDiffers       the explained output is not that of a plain pass of the model
├── NotComplete         a path integral does not equal the difference of the outputs at its ends
├── RoundingOnly        scores are at the level of rounding and explain nothing
├── TextCut             a text is too long for the model; only its start is explained
└── PluginWarning       an installed package adds something that cannot be used
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from copy import copy
from difflib import get_close_matches
from functools import partial
from typing import Any, Self


class _Worded(Exception):
    """A message whose remedy differs between Python, the command line and the web page.

    `what` went wrong, `where` (a file, a row, a layer), and what to do about it: `remedy` in
    Python, `command` on the command line, `page` on the web page. `remedy` alone serves all
    three; with `command`, the page shows `page` or no remedy.
    """

    def __init__(
        self,
        what: str,
        remedy: str = "",
        *,
        where: str = "",
        command: str | None = None,
        page: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what, self.remedy, self.where = what, remedy, where
        self._command, self._page = command, page

    def __str__(self) -> str:
        return self._with(self.remedy)

    def for_command(self) -> str:
        """The message with the remedy of the command line."""
        return self._with(self.remedy if self._command is None else self._command)

    def for_page(self) -> str:
        """The message with the remedy of the page."""
        if self._page is None and self._command is None:
            return self._with(self.remedy)
        return self._with(self._page or "")

    def at(self, where: str) -> Self:
        """A copy of the error with the location where it happened."""
        placed = copy(self)
        placed.where = f"{where}: {self.where}" if self.where else where
        return placed

    def _with(self, remedy: str) -> str:
        message = f"{self.what} {remedy}" if remedy else self.what
        return f"{self.where}: {message}" if self.where else message

    def __reduce__(self) -> tuple[Any, ...]:
        remedies: dict[str, Any] = {"command": self._command, "page": self._page}
        return partial(type(self), self.what, self.remedy, **remedies), (), {"where": self.where}


class WherefromError(_Worded):
    """Every error that this library raises on purpose."""


class WherefromWarning(_Worded, UserWarning):
    """A warning with a remedy that differs between Python, the command line and the page."""


def for_command(message: BaseException | str) -> str:
    """The text of an error or warning on the command line."""
    return message.for_command() if isinstance(message, _Worded) else str(message)


def for_page(message: BaseException | str) -> str:
    """The text of an error or warning on the page."""
    return message.for_page() if isinstance(message, _Worded) else str(message)


def use_method(*names: str, verb: str = "Use") -> dict[str, str]:
    """The remedy "use another method", worded for Python, the command line and the page.

    >>> use_method("lrp", "occlusion")["command"]
    'Use --method lrp or occlusion.'
    """
    quoted, plain = " or ".join(f'"{name}"' for name in names), " or ".join(names)
    return {
        "remedy": f"{verb} method={quoted}.",
        "command": f"{verb} --method {plain}.",
        "page": f"{verb} the method {plain}.",
    }


GIVE_ANSWER = {
    "remedy": "Give the answer: explainer.answer(prompt, …).",
    "command": "Give the answer with --answer.",
    "page": "Type the answer to explain.",
}
"""The remedy where a model cannot generate."""
CONTINUE = {
    "remedy": "Continue it with resume=True, or choose another folder.",
    "command": "Continue it with --resume, or choose another folder.",
}
"""The remedy where a folder has results of an earlier run."""


class InputError(WherefromError, ValueError):
    """The text, ids or tensor cannot be explained."""


class TooLong(InputError):
    """More units than the model takes."""


class TargetError(InputError):
    """No such class, label, token or position."""


class ModelError(WherefromError):
    """The model could not be loaded, run or understood."""


class NothingIntercepted(ModelError):
    """The model makes no call of the kind that a method needs."""


class NoBlock(ModelError):
    """The state that enters the first block was not found, or its rows are not the units."""


class NotFinite(ModelError):
    """The model's output is NaN or infinite."""


class ScoresNotFinite(NotFinite):
    """The scores of a method are NaN or infinite, although the output is finite."""


class NotEnoughMemory(WherefromError, MemoryError):
    """A pass needs more memory than it may use: `needed` and `allowed` are in bytes.

    With `at_least`, the pass was stopped early and may need more.
    """

    def __init__(
        self, needed: float, allowed: float, at_least: bool = False, what: str = "this pass"
    ) -> None:
        amount = f"{'more than' if at_least else 'about'} {readable_bytes(needed)}"
        more = _rounded_up(needed * (2 if at_least else 1.1))
        super().__init__(
            f"{what} needs {amount} of memory, and {readable_bytes(allowed)} may be used.",
            "Explain a shorter input, load the model in a smaller dtype, or allow more with "
            f'memory="{more}".',
            command="Explain a shorter input, or use a smaller --dtype.",
            page="Explain a shorter input, or serve the model in a smaller dtype.",
        )
        self.needed, self.allowed, self.at_least = needed, allowed, at_least
        self._what = what

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.needed, self.allowed, self.at_least, self._what)
        return type(self), arguments, {"where": self.where}


class FileError(WherefromError, OSError):
    """A file is missing, damaged or of the wrong type."""


class MethodError(WherefromError, ValueError):
    """No such method, or no such setting."""


class NotConserved(UserWarning):
    """Scores do not add up to the output, although the method conserves relevance."""


class OutputDiffers(UserWarning):
    """The explained output is not that of a plain pass of the model."""


class NotComplete(UserWarning):
    """A path integral does not equal the difference of the outputs at its ends."""


class RoundingOnly(UserWarning):
    """Scores are at the level of rounding: they explain nothing."""


class GuessedEncoding(WherefromWarning):
    """A text file is not UTF-8 and declares no encoding, so it is guessed."""


class TextCut(UserWarning):
    """A text is too long for the model; only its start is explained."""


class PluginWarning(UserWarning):
    """An installed package adds something that cannot be used."""


class SamplesRunAlone(UserWarning):
    """The samples of a batch run one by one: its rows cannot be assigned to samples."""


class PluginError(WherefromError, ValueError):
    """A class cannot be added to the methods or readers."""


class MissingExtra(WherefromError, ImportError):
    """An optional library is not installed."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed.",
            f'Install it with: pip install "wherefrom[{extra}]"',
        )
        self._needs = (library, extra, purpose)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._needs, {"where": self.where}


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message that is not blank; its repr if there is none.

    >>> first_line(ValueError("\n bad size \nmore")), first_line(StopIteration())
    ('bad size', 'StopIteration()')
    """
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), repr(error))


def counted(number: int, noun: str) -> str:
    """A count with its noun, in the plural if needed.

    >>> counted(1, "name"), counted(12, "name")
    ('1 name', '12 names')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def row_sum(read: int, **parts: int) -> str:
    """What became of the rows that were read; an error if some are missing.

    >>> row_sum(1_011, explained=1_000, rejected=11)
    '1,011 read = 1,000 explained + 11 rejected'
    """
    if read != sum(parts.values()):
        counts = " + ".join(f"{count:,} {name}" for name, count in parts.items())
        raise FileError(
            f"rows were lost: {read:,} were read, but {counts} make {sum(parts.values()):,}.",
            "Please report this as a bug: the results are incomplete.",
        )
    first, *others = parts.items()
    shown = [first, *((name, count) for name, count in others if count)]
    return f"{read:,} read = " + " + ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in shown
    )


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""A text that cannot control a terminal: control characters are escaped as in JSON.

    Line breaks and tabs stay; bidirectional marks and lone surrogates are escaped too.

    >>> printable("\x1b[31mred")
    '\\u001b[31mred'
    """
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_BYTES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "KB": 1e3}


def readable_bytes(size: float) -> str:
    """A size in bytes, formatted for a message.

    >>> readable_bytes(1.234e9), readable_bytes(2.5e6), readable_bytes(12)
    ('1.23 GB', '2.5 MB', '12 bytes')
    """
    for unit, factor in _BYTES.items():
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def _rounded_up(size: float) -> str:
    """A size in bytes as an option's value, rounded up to two digits.

    >>> _rounded_up(1.234e9), _rounded_up(123.4e6)
    ('1.3GB', '130MB')
    """
    for unit, factor in _BYTES.items():
        if size >= factor:
            digits = 10 ** (len(str(int(size / factor))) - 2)
            return f"{-(-size // (factor * digits)) * digits:.3g}{unit}"
    return f"{math.ceil(size)}B"


def nearest(wanted: str, known: Iterable[str]) -> str:
    """The known names for an error message, those similar to the wanted one first.

    >>> nearest("positiv", ["NEGATIVE", "POSITIVE"])
    'did you mean "POSITIVE"? There are: POSITIVE, NEGATIVE'
    >>> nearest("GOOD", ["NEGATIVE", "POSITIVE"])
    'there are: NEGATIVE, POSITIVE'
    """
    names = [str(name) for name in known]
    folded = {name.lower(): name for name in names}
    close = [folded[hit] for hit in get_close_matches(wanted.lower(), folded)]
    listed = close + [name for name in names if name not in close]
    shown = ", ".join(listed[:12]) + (f" and {len(listed) - 12} more" if len(listed) > 12 else "")
    return f'did you mean "{close[0]}"? There are: {shown}' if close else f"there are: {shown}"
