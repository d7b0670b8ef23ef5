"""The start of the command line: `wherefrom`, or `python -m wherefrom`."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # Ctrl-C while typing is imported would show a traceback
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    """Runs the command line; until its modules are imported, Ctrl-C ends the process at once.

    An exception would show a traceback, or get lost, in the imports of typer and torch.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    from wherefrom.cli import run

    run()


def _quit(number: int, frame: object) -> NoReturn:
    os.write(2, b"wherefrom: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
