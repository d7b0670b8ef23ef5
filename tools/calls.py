"""Which functions of the source a test calls, in its own process and in those that it starts.

`tools/mutate.py` copies this file as `sitecustomize.py`, which Python imports when it starts.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType

VARIABLE = "MUTANTS_CALLS"  # the folder of the source and the file for the names
_seen: dict[int, CodeType] = {}


@cache
def _tracer() -> Callable[[FrameType, str, object], None]:
    source, path = os.environ[VARIABLE].split(os.pathsep)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def trace(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if id(code) not in _seen:
            _seen[id(code)] = code  # kept, or its id could become that of another
            # a class body or a module runs when it is imported
            if code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(source):
                name = f"{code.co_filename.removeprefix(source)}:{code.co_qualname}\n"
                with suppress(OSError):  # a test may close all files
                    os.write(file, name.encode())

    return trace


def start() -> None:
    """Appends the name of each function to the file when it is called for the first time."""
    _seen.clear()
    threading.settrace(_tracer())
    sys.settrace(_tracer())


if VARIABLE in os.environ:
    start()
