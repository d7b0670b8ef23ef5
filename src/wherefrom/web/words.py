"""The library's messages in the words of the page, which has menus and no Python."""

from __future__ import annotations

import re

_REPLACED = (
    (r'method="(\w+)" or "(\w+)"', r"the method \1 or \2"),
    (r'method="(\w+)"', r"the method \1"),
    (r", or pass truncate=True to explain its start", ", or explain its beginning only"),
    (r", or allow more with memory=\"[^\"]*\"", ""),
    (r", or allow more memory with memory=", ""),
    (r"Leave units= out, or try", "Try"),
)
_PYTHON = re.compile(r"\w=|\b[Ee]xplainer\(|\bpass\b|`|\bdtype\b")
_ELSEWHERE = "The library and the command line have more settings for this."


def page_words(message: str) -> str:
    """A message without Python: what the page offers is named, what it lacks is left out.

    >>> page_words('Nothing was seen. Try method="lrp" or "gradient".')
    'Nothing was seen. Try the method lrp or gradient.'
    >>> page_words("Two places. Say which: position=3.")
    'Two places. The library and the command line have more settings for this.'
    """
    for pattern, words in _REPLACED:
        message = re.sub(pattern, words, message)
    sentences = re.split(r"(?<=[.:;]) +(?=[A-Z])", message)
    kept = [sentence for sentence in sentences if not _PYTHON.search(sentence)]
    if len(kept) == len(sentences):
        return message
    return " ".join([*(kept or [sentences[0].split(":")[0] + "."]), _ELSEWHERE])
