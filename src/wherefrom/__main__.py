"""The start of the command line: `wherefrom`, or `python -m wherefrom`."""

# built in: while Python imports the file signal.py, Ctrl-C would show a traceback
import _signal  # type: ignore[import-not-found]
import os


def _quit(number, frame):  # type: ignore[no-untyped-def]
    os.write(2, b"wherefrom: interrupted\n")
    os._exit(130)


if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _quit)


def main() -> None:
    """Runs the command line; until its modules are imported, Ctrl-C ends the process at once.

    An exception would show a traceback, or get lost, in the imports of typer and torch.
    """
    from wherefrom.cli import run

    run()


if __name__ == "__main__":
    main()
