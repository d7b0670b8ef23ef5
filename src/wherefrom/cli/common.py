"""What all commands share: their options, how errors and progress are shown."""

from __future__ import annotations

import os
import re
import sys
import warnings
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from warnings import catch_warnings

import typer

from wherefrom.errors import (
    FileError,
    InputError,
    NotFinite,
    TargetError,
    WherefromError,
    printable,
)
from wherefrom.progress import terminal_bar
from wherefrom.storage.folder_lock import locked
from wherefrom.storage.text_file import bad_byte, decoded, encoding_of, lines_of, read_bytes

if TYPE_CHECKING:
    from wherefrom.explain import Explainer

Result = TypeVar("Result")

Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts or image files to explain; - reads stdin.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="An embedded model, a folder or a hub id. Default: the "
                 "embedded model for this kind of input."),
]  # fmt: skip
Dtype = Annotated[
    Literal["auto", "float16", "bfloat16", "float32", "float64"] | None,
    typer.Option(help="Number type of the weights; auto: as stored. Default: as stored, but "
                 "float32 instead of half precision on a CPU."),
]  # fmt: skip
Device = Annotated[
    str | None, typer.Option(help="Where to run the model: cpu, cuda, cuda:1, mps, or auto.")
]
Png = Annotated[Path | None, typer.Option("--png", help="Write the heatmaps of images here.")]
Smiles = Annotated[list[str] | None, typer.Option("--smiles", help="A molecule to explain.")]
Units = Annotated[
    str | None, typer.Option(help="Units of an image: patches, pixels, or a cell size.")
]
FromFile = Annotated[Path | None, typer.Option("--file", "-f", help="A file with a text per line.")]
TargetOption = Annotated[
    str | None, typer.Option(help="Class by label or index, or next token. Default: most likely.")
]
Against = Annotated[str | None, typer.Option(help="Explain the difference to this class or token.")]
MethodNames = Annotated[str | None, typer.Option(help="Comma-separated method names.")]
Numbers = Annotated[
    bool, typer.Option("--numbers", help="Show scores with the colours; without colours always.")
]
Words = Annotated[bool, typer.Option("--words", help="Join tokens to words.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write JSON here; - prints it.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write an HTML page here.")]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of text files. Default: UTF-8 or UTF-16, else a guess.")
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting of the method, as key=value.")
]
SettingsOfAll = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting as key=value, of those methods that have it."),
]
PairOption = Annotated[
    str | None, typer.Option("--pair", help="The second text of a pair: hypothesis, context, …")
]
Position = Annotated[
    int | None, typer.Option(help="Token to explain, of models with an output for every token.")
]
EntityOption = Annotated[
    str | None, typer.Option("--entity", help="Words to explain, of models that tag tokens.")
]


NOT_ALL = 1
"""Exit code: some inputs could not be explained, the others are."""
INVALID = 2
"""Exit code: an error; nothing was explained, or a result could not be written."""
INTERRUPTED = 130
"""Exit code: Ctrl-C; what was finished before is kept."""
_LONGEST_LINE = 1000


def plainly(command: Callable[..., Result]) -> Callable[..., Result]:
    """Shows an error as one line on stderr, with exit code 2; Ctrl-C has exit code 130."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Result:
        try:
            with catch_warnings():
                warnings.showwarning = _show_warning
                return command(*args, **kwargs)
        except WherefromError as error:
            raise _failed(str(error)) from error
        except KeyboardInterrupt as error:
            raise interrupted(str(error) or "interrupted") from error
        except BrokenPipeError:
            raise  # `wherefrom … | head`: nobody reads on, which is no error
        except OSError as error:
            _drop_output()
            raise _failed(f"cannot write the output: {error.strerror or error}.") from error
        except MemoryError as error:
            raise _failed("not enough memory: use shorter or fewer inputs.") from error

    return run


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line on stderr, without the line of code that gave it."""
    _say_colored(str(message), typer.colors.YELLOW)


def _failed(message: str) -> typer.Exit:
    complain(message)
    return typer.Exit(INVALID)


def interrupted(message: str) -> typer.Exit:
    """Says what Ctrl-C has left, and makes the exit for it."""
    complain(message)
    return typer.Exit(INTERRUPTED)


@contextmanager
def saved_to_resume(out: Path) -> Iterator[None]:
    """Locks the folder for the results; if they cannot be written, says that the run is saved."""
    try:
        with locked(out):
            yield
    except FileError as error:
        raise FileError(
            f"{error} What was computed is saved: run again with --resume to write the results."
        ) from error


def complain(message: str) -> None:
    """One line on stderr, of a length to be read."""
    _say_colored(message, typer.colors.RED)


def _say_colored(message: str, color: str) -> None:
    """One line on stderr; typer itself drops colours in a pipe, but does not ask for NO_COLOR."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    typer.secho(f"wherefrom: {_one_line(message)}", err=True, fg=None if plain else color)


def _one_line(message: str) -> str:
    line = " ".join(printable(message).split("\n"))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    return line


def say(text: str, err: bool = False) -> None:
    """Prints a text that may hold anything: control characters become escapes."""
    say_styled(printable(text), err)


def say_styled(text: str, err: bool = False) -> None:
    """Prints a text with its colours; what the terminal's encoding lacks becomes an escape."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def _drop_output() -> None:
    """Lets what stdout could not take go: at exit Python would try to write it again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


progress = terminal_bar


def listed(names: str | None) -> list[str] | None:
    """Comma-separated names as a list."""
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def load(
    model: str | None,
    sources: list[str] | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Explainer:
    """The model with this name, else the embedded one for this kind of input."""
    from wherefrom.inputs.pictures import is_image
    from wherefrom.loading import load as load_model
    from wherefrom.memory import keep_heap, set_objects_aside

    keep_heap()
    are_images = bool(sources) and all(is_image(source) for source in sources or ())
    given = {"dtype": dtype, "device": device}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    explainer = load_model(model or ("digits" if are_images else "sentiment"), **options)
    set_objects_aside()
    return explainer


def image_units(value: str | None) -> Any:
    """`--units` as the explainer takes it: a name, or a cell size."""
    is_size = value is not None and value.isdecimal() and len(value) < 10
    return int(value) if value is not None and is_size else value


@dataclass(frozen=True)
class Sources:
    """Texts with the places they come from; `unreadable` are places of no text, and why."""

    texts: list[str]
    places: list[str]
    unreadable: dict[str, WherefromError] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts) + len(self.unreadable)

    def all_texts(self) -> list[str]:
        """The texts; an error if a place could not be read."""
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
        sources = Sources(arguments, [f"text {number + 1}" for number in range(len(arguments))])
        if file is not None:
            lines = _lines(str(file), read_bytes(file), encoding)
            sources = Sources(
                sources.texts + lines.texts, sources.places + lines.places, lines.unreadable
            )
    if not len(sources):
        raise InputError("there is no text to explain. Pass one, or --file, or lines on stdin.")
    return sources


def _joined(arguments: list[str]) -> list[str]:
    """Several arguments of one word each, none of them a file, as the one text that they are."""
    words = [not re.search(r"\s", argument) for argument in arguments]
    if len(arguments) < 2 or not all(words) or any(map(_is_file, arguments)):
        return arguments
    text = " ".join(arguments)
    say(
        f"wherefrom: these {len(arguments)} words are explained as one text. To explain several "
        'texts, put them into a file, a line each, and pass --file; quote a text: "…".',
        err=True,
    )
    return [text]


def _is_file(argument: str) -> bool:
    from wherefrom.inputs.pictures import is_image

    try:
        return is_image(argument) or os.path.exists(argument)
    except ValueError:  # a null character
        return False


def _lines(name: str, content: bytes, encoding: str | None) -> Sources:
    """The lines of a file that are not blank; of damaged UTF-8 the damaged ones aside."""
    known = encoding_of(name, content, encoding)
    sources = Sources([], [])
    if not known.startswith("utf-8"):
        lines: list[str | bytes] = list(lines_of(decoded(name, content, known)))
    else:
        lines = list(re.split(rb"\r\n|\n|\r", content.removeprefix(BOM_UTF8)))
    for number, line in enumerate(lines, 1):
        place = f"{name}, line {number}"
        try:
            text = line if isinstance(line, str) else line.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{place} is not UTF-8: {bad_byte(error)}."
            sources.unreadable[place] = InputError(reason)
            continue
        if text.strip():
            sources.texts.append(text)
            sources.places.append(place)
    return sources


def each_explained(
    sources: Sources, size: int, explain: Callable[[list[str]], list[Result]]
) -> tuple[list[Result], int]:
    """The result of each text, in batches of this size, and the number of texts without one.

    A text that cannot be explained is named on stderr and the others go on; if there is only one,
    or if none can be explained, it is an error.
    """
    results: list[Result] = []
    failures: dict[str, WherefromError] = {}
    for start in range(0, len(sources.texts), size):
        texts = sources.texts[start : start + size]
        try:
            results += explain(texts)
            continue
        except _OF_ONE_INPUT as error:
            if len(sources) == 1 or isinstance(error, TargetError):
                raise
        for text, place in zip(texts, sources.places[start:], strict=False):
            try:
                results += explain([text])
            except _OF_ONE_INPUT as error:
                failures[place] = error
    for unreadable in sources.unreadable.values():
        complain(str(unreadable))
    for place, failure in failures.items():
        complain(f"{place}: {failure}")
    count = len(failures) + len(sources.unreadable)
    if not results:
        raise InputError(f"none of the {len(sources)} inputs could be explained.")
    return results, count


_OF_ONE_INPUT = (InputError, NotFinite, FileError)  # a target is the same for all, though


def exit_if_not_all(failures: int, sources: Sources) -> None:
    """Ends with exit code 1 if some of the inputs have no result."""
    if failures:
        complain(f"{failures} of {len(sources)} inputs could not be explained.")
        raise typer.Exit(NOT_ALL)
