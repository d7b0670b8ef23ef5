"""What all commands share: their options, how errors and progress are shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from wherefrom.errors import FileError, InputError, WherefromError

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
Words = Annotated[bool, typer.Option("--words", help="Join tokens to words.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write JSON here; - prints it.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write an HTML page here.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting of the method, as key=value.")
]


def plainly(command: Callable[..., Result]) -> Callable[..., Result]:
    """Shows an error of ours as one line on stderr, with exit code 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Result:
        try:
            return command(*args, **kwargs)
        except WherefromError as error:
            typer.secho(f"wherefrom: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(2) from error

    return run


@contextmanager
def progress(what: str) -> Iterator[Callable[[float, int, str], None]]:
    """A bar with rate and time left, on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None, pace="")
        first: list[float] = []  # work done by an earlier run is not part of this one's rate

        def advance(done: float, total: int, note: str) -> None:
            first[:] = first or [done]
            bar.update(task, completed=done, total=total)
            elapsed = bar.tasks[task].elapsed or 0.0
            pace = _pace(done - first[0], total - done, elapsed)
            bar.update(task, pace=f"{pace}  {note}")

        yield advance


def _pace(done: float, left: float, seconds: float) -> str:
    """The rate so far and the time left at that rate.

    >>> _pace(30, 60, 20), _pace(1, 9, 100), _pace(0, 5, 1)
    ('1.5/s, 0:00:40 left', '100.0 s each, 0:15:00 left', '')
    """
    from datetime import timedelta

    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    shown = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{shown}, {timedelta(seconds=round(left / rate))} left"


def listed(names: str | None) -> list[str] | None:
    """Comma-separated names as a list."""
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


def load(model: str | None, sources: list[str] | None = None) -> Explainer:
    """The model with this name, else the embedded one for this kind of input."""
    from wherefrom.inputs.pictures import is_image
    from wherefrom.loading import load as load_model

    are_images = bool(sources) and all(is_image(source) for source in sources or ())
    return load_model(model or ("digits" if are_images else "sentiment"))


def image_units(value: str | None) -> Any:
    """`--units` as the explainer takes it: a name, or a cell size."""
    return int(value) if value is not None and value.isdecimal() else value


def write(path: Path, text: str) -> None:
    """Writes a file; failing that, one clear error."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


def read_texts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts in the arguments, in a file, or on standard input."""
    lines = list(texts or ())
    if file is not None:
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {file}: {error}") from error
        lines += [line for line in content.splitlines() if line.strip()]
    if lines == ["-"] or (not lines and file is None and not sys.stdin.isatty()):
        lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise InputError("there is no text to explain. Pass one, or --file, or lines on stdin.")
    return lines
