"""The library's messages in the words of the page, which has menus and no Python."""

from __future__ import annotations

import re

REPLACED = (
    (r'method="(\w+)" or "(\w+)"', r"the method \1 or \2"),
    (r'method="(\w+)"', r"the method \1"),
    (r"pass truncate=True to explain its start", "explain its beginning only"),
)
_PYTHON = re.compile(r"\w=|\b[Ee]xplainer\(|(?<!this )(?<!backward )\b[Pp]ass\b|`|\bdtype\b")
_ELSEWHERE = "The library and the command line have more settings for this."


def page_words(message: str) -> str:
    """A message without Python: what the page offers is named, what it lacks is left out.

    >>> page_words('Nothing was seen. Try method="lrp" or "gradient".')
    'Nothing was seen. Try the method lrp or gradient.'
    >>> page_words('Nothing was seen. Set steps=9, or use method="lrp".')
    'Nothing was seen. Use the method lrp.'
    >>> page_words("Two places. Say which: position=3.")
    'Two places. The library and the command line have more settings for this.'
    """
    for pattern, words in REPLACED:
        message = re.sub(pattern, words, message)
    sentences = re.split(r"(?<=[.:;]) +(?=[A-Z])", message)
    kept = [words for words in map(_without_python, sentences) if words]
    if len(kept) == len(sentences):
        return " ".join(kept)
    start = " ".join(kept) or sentences[0].split(":")[0]
    return f"{start.rstrip('.:')}. {_ELSEWHERE}"


def _without_python(sentence: str) -> str:
    """The sentence without what has Python of its alternatives ("…, or …"); empty if none is left.

    Without its first one it is kept only if it names a method.
    """
    if not _PYTHON.search(sentence):
        return sentence
    alternatives = sentence.removesuffix(".").split(", or ")
    kept = [words for words in alternatives if not _PYTHON.search(words)]
    if kept[:1] == alternatives[:1]:
        return f"{', or '.join(kept)}."
    methods = ", or ".join(words for words in kept if "the method " in words)
    return methods and f"{methods[0].upper()}{methods[1:]}."
