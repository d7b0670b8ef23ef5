"""The library's messages in the words of the command line: options in place of arguments."""

from __future__ import annotations

import re

_OPTIONS = {
    "against": "--against",
    "device": "--device",
    "dtype": "--dtype",
    "entity": "--entity",
    "method": "--method",
    "position": "--position",
    "target": "--target",
    "text_pair": "--pair",
    "truncate": "--truncate",
    "units": "--units",
}
_REPLACED = (
    # advice for both, of which the option is left
    (r" \((?:resume=True|engine='ray'|gpus_per_worker=1)\)", ""),
    (r'\(--encoding, encoding="…"\)', "(--encoding)"),
    (r'--encoding, or encoding="…",', "--encoding"),
    (r'\(--text-column, read_table\(…, text_column="…"\)\)', "(--text-column)"),
    # there is no option for it
    (r', (use [^,]*), or allow more with memory="[^"]*"', r", or \1 (--dtype)"),
    (r'method="(\w+)" or "(\w+)"', r"--method \1 or \2"),
)
_ARGUMENT = re.compile(rf"""(?<![\w-])({"|".join(_OPTIONS)})=("[^"]*"|'[^']*'|[\w.−-]+)?""")


def command_words(message: str) -> str:
    """A message with options in place of the arguments of Python.

    >>> command_words("Shorten it, or pass truncate=True to explain its start.")
    'Shorten it, or pass --truncate to explain its start.'
    >>> command_words('Say how large they are: units=16, or units="pixels".')
    'Say how large they are: --units 16, or --units pixels.'
    >>> command_words("position= is for models with an output for every token.")
    '--position is for models with an output for every token.'
    """
    for pattern, words in _REPLACED:
        message = re.sub(pattern, words, message)
    return _ARGUMENT.sub(_option, message)


def _option(match: re.Match[str]) -> str:
    name, value = _OPTIONS[match[1]], match[2] or ""
    if value == "True" or not value:
        return name
    unquoted = value.strip("\"'")
    return f"{name} {value if ' ' in unquoted or not unquoted else unquoted}"
