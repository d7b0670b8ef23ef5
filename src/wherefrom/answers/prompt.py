"""Prompts of named parts: texts, chat messages, or passages with a question."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from wherefrom.errors import InputError

TEMPLATE = "template"
"""The part of all text that no one wrote: of the chat template, or around a passage."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class Passage:
    """A text that the answer may come from."""

    text: str
    title: str = ""


@dataclass(frozen=True)
class Prompt:
    """A question with passages to answer it from, and an instruction to the model.

    With a chat template, `system` is the system message, and passages and question are the user's;
    without one, they follow each other with blank lines between them.
    """

    question: str = ""
    passages: Sequence[str | Passage] = ()
    system: str = ""


Message = Mapping[str, Any]  # {"role": …, "content": …}
PromptLike = str | Prompt | Sequence[Message] | Sequence[int]
Prompts = list[str] | list[Prompt] | list[list[Any]]  # several: texts, parts, messages or ids


@dataclass(frozen=True)
class Part:
    """A named part of the prompt, and its place in the text."""

    name: str  # "system", "passage 2", "question"; "paragraph 1" of a text; "user 1" of messages
    kind: str  # system, passage, question, text, message
    title: str
    start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """Some text of a message: a part's own, or the scaffold around it (a number, a label)."""

    text: str
    name: str  # of the part that it comes and goes with
    kind: str = ""
    title: str = ""
    scaffold: bool = False


@dataclass(frozen=True)
class Turn:
    """A message: who speaks, and what; a plain text has no role."""

    role: str | None
    pieces: tuple[Piece, ...]

    @property
    def content(self) -> str:
        """The whole text of the message."""
        return "".join(piece.text for piece in self.pieces)


class Place(NamedTuple):
    """Where the content of a message lies in the text, and how much of its front was cut off."""

    start: int
    cut: int
    length: int


@dataclass(frozen=True)
class Script:
    """A prompt before it becomes text, so that parts can be left out."""

    turns: tuple[Turn, ...]

    @staticmethod
    def of(prompt: PromptLike, chat: bool) -> Script:
        """The script of a text, of chat messages, or of named parts.

        `chat` says whether there is a template that makes one text of messages.
        """
        if isinstance(prompt, Prompt):
            return _of_parts(prompt, chat)
        if isinstance(prompt, str):
            return Script((Turn(None, tuple(_paragraphs(prompt, "paragraph", "prompt", "text"))),))
        if not chat:
            raise InputError(
                "the tokenizer has no chat template to make a text of messages with. Pass a text "
                "or a Prompt, or set tokenizer.chat_template."
            )
        return Script(tuple(_turns(prompt)))

    def without(self, name: str) -> Script:
        """The script with one part left out, and the scaffold that belongs to it."""
        turns = (
            replace(turn, pieces=tuple(piece for piece in turn.pieces if piece.name != name))
            for turn in self.turns
        )
        return Script(tuple(turn for turn in turns if turn.content.strip()))

    def rendered(self, tokenizer: Any) -> tuple[str, tuple[Part, ...]]:
        """The text that the model reads, and where its parts lie."""
        if self.turns and self.turns[0].role is not None:
            text, places = _with_template(tokenizer, self.turns)
        else:
            text = "".join(turn.content for turn in self.turns)
            places = [Place(0, 0, len(text))]
        parts: list[Part] = []
        for turn, place in zip(self.turns, places, strict=True):
            at = place.start - place.cut
            for piece in turn.pieces:
                first = max(at, place.start)
                end = min(at + len(piece.text), place.start + place.length)
                if not piece.scaffold and end > first:
                    parts.append(Part(piece.name, piece.kind, piece.title, first, end))
                at += len(piece.text)
        return text, tuple(sorted(parts, key=lambda part: part.start))


def is_messages(prompt: Any) -> bool:
    """Whether this is a list of chat messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) for message in prompt)
    )


def _of_parts(prompt: Prompt, chat: bool) -> Script:
    if not prompt.question.strip() and not prompt.passages:
        raise InputError("the prompt is empty: give it a question, or passages.")
    pieces: list[Piece] = []
    for number, passage in enumerate(prompt.passages, 1):
        passage = Passage(passage) if isinstance(passage, str) else passage
        name = f"passage {number}"
        if not passage.text.strip():
            raise InputError(f"{name} is empty.")
        title = f"{passage.title.strip()}\n" if passage.title.strip() else ""
        pieces.append(Piece(f"[{number}] ", name, scaffold=True))
        pieces.append(Piece(title + passage.text.strip(), name, "passage", passage.title.strip()))
        pieces.append(Piece("\n\n", name, scaffold=True))
    if prompt.question.strip():
        if pieces or not chat:
            pieces.append(Piece("Question: ", "question", scaffold=True))
        pieces.append(Piece(prompt.question.strip(), "question", "question"))
    system = Piece(prompt.system.strip(), "system", "system")
    if chat:
        turns = [Turn("system", (system,))] if system.text else []
        return Script((*turns, Turn("user", tuple(pieces))))
    if system.text:
        pieces = [system, Piece("\n\n", "system", scaffold=True), *pieces]
    pieces.append(Piece("\nAnswer:", TEMPLATE, scaffold=True))
    return Script((Turn(None, tuple(pieces)),))


def _turns(messages: Sequence[Any]) -> Iterator[Turn]:
    roles: dict[str, int] = {}
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InputError(
                f'a chat message is {{"role": …, "content": …}}, got {str(message)[:80]!r}.'
            )
        role, content = str(message["role"]), _text_of(message["content"])
        roles[role] = roles.get(role, 0) + 1
        name = f"{role} {roles[role]}"
        yield Turn(role, tuple(_paragraphs(content, f"{name}, paragraph", name, "message")))


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = [block.get("text") for block in content if isinstance(block, Mapping)]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return "".join(str(text) for text in texts)
    raise InputError(
        "the content of a chat message must be text, or a list of "
        f'{{"type": "text", "text": …}}, got {str(content)[:80]!r}.'
    )


def _paragraphs(text: str, many: str, single: str, kind: str) -> Iterator[Piece]:
    """A text cut at blank lines, these at the end of the paragraph before."""
    ends = [match.end() for match in _PARAGRAPH.finditer(text) if match.start() > 0]
    cuts = [0, *(end for end in ends if end < len(text)), len(text)]
    for number, (start, end) in enumerate(pairwise(cuts), 1):
        name = single if len(cuts) == 2 else f"{many} {number}"
        yield Piece(text[start:end], name, kind if len(cuts) == 2 else "passage")


def _with_template(tokenizer: Any, turns: Sequence[Turn]) -> tuple[str, list[Place]]:
    """The rendered text, and where the content of each message lies in it."""
    contents = [turn.content for turn in turns]

    def rendered(texts: Sequence[str]) -> str:
        pairs = zip(turns, texts, strict=True)
        messages = [{"role": turn.role, "content": text} for turn, text in pairs]
        try:
            return str(
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        except Exception as error:  # whatever a template raises: roles that it does not know, …
            first_line = str(error).strip().partition("\n")[0]
            raise InputError(
                f"the chat template does not take these messages "
                f"({', '.join(str(turn.role) for turn in turns)}): {first_line}"
            ) from error

    text = rendered(contents)
    # the template around the contents, seen with marks in their places
    marks = [f"\ue000{number}\ue001" for number in range(len(turns))]
    skeleton = rendered(marks)
    if all(skeleton.count(mark) == 1 for mark in marks):
        for change in (str, str.strip):
            rebuilt, places = _in_skeleton(skeleton, marks, contents, change)
            if rebuilt == text:
                return text, places
    return text, _searched(text, contents)


def _in_skeleton(
    skeleton: str, marks: Sequence[str], contents: Sequence[str], change: Callable[[str], str]
) -> tuple[str, list[Place]]:
    """The skeleton with the contents put in, and where they lie."""
    order = sorted(range(len(marks)), key=lambda number: skeleton.index(marks[number]))
    places = [Place(0, 0, 0)] * len(marks)
    text, at = "", 0
    for number in order:
        place = skeleton.index(marks[number])
        text += skeleton[at:place]
        places[number] = _place(len(text), contents[number], change)
        text += change(contents[number])
        at = place + len(marks[number])
    return text + skeleton[at:], places


def _place(start: int, content: str, change: Callable[[str], str]) -> Place:
    cut = 0 if change(content) == content else len(content) - len(content.lstrip())
    return Place(start, cut, len(change(content)))


def _searched(text: str, contents: Sequence[str]) -> list[Place]:
    """Where each content lies, looked for in order: for templates that depend on the contents."""
    places: list[Place] = []
    at = 0
    for number, content in enumerate(contents, 1):
        for change in (str, str.strip):
            start = text.find(change(content), at)
            if start >= 0:
                places.append(_place(start, content, change))
                at = start + len(change(content))
                break
        else:
            raise InputError(
                f"the chat template changes the content of message {number}, so that its tokens "
                "cannot be told from the template's. Pass the rendered text instead: "
                "tokenizer.apply_chat_template(messages, tokenize=False, "
                "add_generation_prompt=True)."
            )
    return places
