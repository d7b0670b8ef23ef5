"""The output of commands: text, files, errors, warnings and progress."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from warnings import catch_warnings

import typer

from wherefrom.core.progress import Progress, terminal_bar
from wherefrom.errors import FileError, WherefromError, for_command, printable, row_sum
from wherefrom.storage.writing import locked, write_text

Result = TypeVar("Result")

NOT_ALL = 1
"""Exit code: some inputs could not be explained, the others were."""
INVALID = 2
"""Exit code: an error; nothing was explained, or a result could not be written."""
INTERRUPTED = 130
"""Exit code: Ctrl-C; finished results are kept."""
_LONGEST_LINE = 1000


def plainly(command: Callable[..., Result]) -> Callable[..., Result]:
    """Shows an error as one line on stderr, with exit code 2; Ctrl-C exits with code 130."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Result:
        try:
            with catch_warnings():
                warnings.showwarning = _show_warning
                return command(*args, **kwargs)
        except WherefromError as error:
            raise _failed(error) from error
        except KeyboardInterrupt as error:
            raise interrupted(str(error) or "interrupted") from error
        except BrokenPipeError:
            raise  # `wherefrom … | head`: a closed pipe is not an error
        except OSError as error:
            _drop_output()
            raise _failed(f"cannot write the output: {error.strerror or error}.") from error
        except MemoryError as error:
            raise _failed("not enough memory: use shorter or fewer inputs.") from error

    return run


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line on stderr, without its source line."""
    _say_colored(message, typer.colors.YELLOW)


def _failed(message: str | WherefromError) -> typer.Exit:
    complain(message)
    return typer.Exit(INVALID)


def interrupted(message: str) -> typer.Exit:
    """Prints the state after Ctrl-C, and returns the exit."""
    complain(message)
    return typer.Exit(INTERRUPTED)


@contextmanager
def saved_to_resume(out: Path | None) -> Iterator[None]:
    """Locks the folder for the results; a write error says how to write them again."""
    try:
        with locked(out):
            yield
    except FileError as error:
        raise FileError(
            f"{for_command(error)} What was computed is saved. Run again with --resume to write "
            "the results."
        ) from error


def complain(message: str | WherefromError) -> None:
    """Prints one line on stderr."""
    _say_colored(message, typer.colors.RED)


def _say_colored(message: str | Exception, color: str) -> None:
    """Prints one line on stderr; typer drops colours in a pipe, but ignores NO_COLOR."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    line = _one_line(for_command(message))
    typer.secho(f"wherefrom: {line}", err=True, fg=None if plain else color)


def _one_line(message: str) -> str:
    line = " ".join(printable(message).split("\n"))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    return line


def say(text: str, err: bool = False) -> None:
    """Prints untrusted text, with control characters escaped."""
    say_styled(printable(text), err)


def say_styled(text: str, err: bool = False) -> None:
    """Prints styled text; characters that the terminal's encoding lacks are escaped."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    typer.echo(shown, err=err, color=True)  # which was decided when the text was styled


def _drop_output() -> None:
    """Discards the buffer of stdout, which Python would try to write again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_json(path: Path, text: str) -> None:
    """Writes JSON to a file, or prints it if the path is "-"."""
    if str(path) == "-":
        say(text)  # escaped JSON is still valid
    else:
        write_text(path, text)
        say(f"wrote {path}", err=True)


@contextmanager
def progress(what: str, patience: float = 0.0, lines: bool = False) -> Iterator[Progress]:
    """A progress bar, within which Ctrl-C raises KeyboardInterrupt.

    Python drops exceptions raised in finalisers and callbacks of the garbage collector, so an
    interrupt that arrives there is raised again at the next step.
    """
    was_interrupted = False

    def on_interrupt(number: int, frame: object) -> NoReturn:
        nonlocal was_interrupted
        was_interrupted = True
        raise KeyboardInterrupt

    def step(done: float, total: int, note: str) -> None:
        if was_interrupted:
            raise KeyboardInterrupt
        advance(done, total, note)

    is_main = threading.current_thread() is threading.main_thread()
    handles_signal = is_main and signal.getsignal(signal.SIGINT) != signal.SIG_IGN
    if handles_signal:
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        with terminal_bar(what, patience, lines) as advance:
            yield step
    finally:
        if handles_signal:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def exit_after_rows(read: int, **parts: int) -> None:
    """Prints what became of the rows of a table; exits with code 1 if some were rejected."""
    complain(f"{row_sum(read, **parts)}.")
    if parts["rejected"]:
        raise typer.Exit(NOT_ALL)


def exit_if_left_out(count: int, total: int, noun: str) -> None:
    """Exits with code 1 if some inputs have no result."""
    if count:
        complain(f"{count:,} of {total:,} {noun} could not be explained.")
        raise typer.Exit(NOT_ALL)
