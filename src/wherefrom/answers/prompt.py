"""Prompts of named parts: texts, chat messages, or passages with a question."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from wherefrom.errors import InputError, first_line

TEMPLATE = "template"
"""The name of text that a template adds: chat markup, or the number of a passage."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


@dataclass(frozen=True)
class Passage:
    """A text that the answer may come from.

    `trusted=False` marks a text that others can write to, such as a web page: verdicts say how much
    of a sentence comes from it.
    """

    text: str
    title: str = ""
    trusted: bool = True


@dataclass(frozen=True)
class Prompt:
    """A question, passages to answer it from, and an instruction to the model.

    With a chat template, `system` is the system message, and passages and question are the user's;
    without one, they follow each other with blank lines between them. Images come first.
    """

    question: str = ""
    passages: Sequence[str | Passage] = ()
    system: str = ""
    images: Sequence[Any] = ()


Message = Mapping[str, Any]  # {"role": …, "content": …}
PromptLike = str | Prompt | Sequence[Message] | Sequence[int]
Prompts = (
    list[str] | list[Prompt] | list[list[Any]]
)  # several texts, Prompts, message lists or id lists


@dataclass(frozen=True)
class Part:
    """A named part of the prompt and its span in the text."""

    name: str  # "system", "passage 2", "question"; "paragraph 1" of a text; "user 1" of messages
    kind: str  # system, passage, question, text, message, image
    title: str
    start: int
    end: int
    trusted: bool = True


@dataclass(frozen=True)
class PromptPiece:
    """A stretch of a message: the text of a part, or scaffold around it (a number, a label)."""

    text: str
    name: str  # of the part with which it is removed
    kind: str = ""
    title: str = ""
    scaffold: bool = False
    trusted: bool = True


IMAGE = PromptPiece("", TEMPLATE, "image", scaffold=True)
"""An image in a message."""


@dataclass(frozen=True)
class Turn:
    """A message; a plain text has no role."""

    role: str | None
    pieces: tuple[PromptPiece, ...]

    @property
    def blocks(self) -> list[tuple[PromptPiece, ...] | None]:
        """The texts before, between and after the images of the message; None is an image."""
        blocks: list[tuple[PromptPiece, ...] | None] = []
        for is_image, group in groupby(self.pieces, lambda piece: piece is IMAGE):
            pieces = tuple(group)
            blocks += [None] * len(pieces) if is_image else [pieces]
        return blocks or [()]


class ContentSpan(NamedTuple):
    """The span of a message's content in the text; `cut` characters were stripped at its start."""

    start: int
    cut: int
    length: int


@dataclass(frozen=True)
class Script:
    """A prompt before it is rendered as text, from which parts can be removed."""

    turns: tuple[Turn, ...]
    images: tuple[Any, ...] = ()  # in the order of the prompt
    notes: tuple[str, ...] = ()  # on what was left out

    @staticmethod
    def of(
        prompt: PromptLike, chat: bool, images: Sequence[Any] = (), placeholder: str = ""
    ) -> Script:
        """The script of a text, of chat messages, or of named parts.

        `chat`: whether a template renders messages as one text. Images go where the prompt marks
        them, in a text by a `placeholder`, or else come first.
        """
        if isinstance(prompt, Prompt):
            if images and prompt.images:
                raise InputError(
                    "images were passed both in the call and in the Prompt: pass them only once."
                )
            images = tuple(images or prompt.images)
            return replace(_of_parts(prompt, chat, len(images), placeholder), images=images)
        if isinstance(prompt, str):
            if images and placeholder not in prompt:
                prompt = placeholder * len(images) + prompt
            pieces = _paragraphs(prompt, "paragraph", "prompt", "text")
            return Script((Turn(None, tuple(pieces)),), tuple(images))
        if not chat:
            raise InputError(
                "the tokenizer has no chat template to render messages with.",
                "Pass a text or a Prompt, or set tokenizer.chat_template.",
                command="Pass a text: --prompt, or --question with --passages.",
            )
        return _of_messages(prompt, images)

    def without(self, *names: str) -> Script:
        """The script without these parts and their scaffold."""
        turns = (
            replace(turn, pieces=tuple(piece for piece in turn.pieces if piece.name not in names))
            for turn in self.turns
        )
        return replace(
            self, turns=tuple(turn for turn in turns if any(map(_has_content, turn.pieces)))
        )

    @property
    def is_chat(self) -> bool:
        """Whether a chat template renders the text."""
        return bool(self.turns) and self.turns[0].role is not None

    def rendered(self, template: Any, lists: bool = False) -> tuple[str, tuple[Part, ...]]:
        """The text that the model reads, and its parts with their spans.

        `template` is the tokenizer or processor with the chat template; processors take the
        content of messages as `lists`.
        """
        blocks = [pieces for turn in self.turns for pieces in turn.blocks if pieces is not None]
        if self.is_chat:
            text, places = _with_template(template, self.turns, lists)
        else:
            text = "".join(map(_text, blocks))
            places = [ContentSpan(0, 0, len(text))]
        parts: list[Part] = []
        for pieces, place in zip(blocks, places, strict=True):
            position = place.start - place.cut
            for piece in pieces:
                first = max(position, place.start)
                end = min(position + len(piece.text), place.start + place.length)
                if not piece.scaffold and end > first:
                    parts.append(
                        Part(piece.name, piece.kind, piece.title, first, end, piece.trusted)
                    )
                position += len(piece.text)
        return text, tuple(sorted(parts, key=lambda part: part.start))


def _has_content(piece: PromptPiece) -> bool:
    return piece is IMAGE or bool(piece.text.strip())


def _text(pieces: Sequence[PromptPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def is_messages(prompt: Any) -> bool:
    """Whether this is a list of chat messages."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) for message in prompt)
    )


def _of_parts(prompt: Prompt, chat: bool, images: int, placeholder: str) -> Script:
    if not prompt.question.strip() and not prompt.passages:
        raise InputError("the prompt is empty: it needs a question or passages.")
    pieces: list[PromptPiece] = []
    if images:
        marks = PromptPiece(f"{placeholder * images}\n", TEMPLATE, scaffold=True)
        pieces += [IMAGE] * images if chat else [marks]
    for number, passage in enumerate(prompt.passages, 1):
        passage = Passage(passage) if isinstance(passage, str) else passage
        name = f"passage {number}"
        if not passage.text.strip():
            raise InputError(f"{name} is empty.")
        title = f"{passage.title.strip()}\n" if passage.title.strip() else ""
        pieces.append(PromptPiece(f"[{number}] ", name, scaffold=True))
        text, known = title + passage.text.strip(), passage.title.strip()
        pieces.append(PromptPiece(text, name, "passage", known, trusted=passage.trusted))
        pieces.append(PromptPiece("\n\n", name, scaffold=True))
    if prompt.question.strip():
        if prompt.passages or not chat:
            pieces.append(PromptPiece("Question: ", "question", scaffold=True))
        pieces.append(PromptPiece(prompt.question.strip(), "question", "question"))
    system = PromptPiece(prompt.system.strip(), "system", "system")
    if chat:
        turns = [Turn("system", (system,))] if system.text else []
        return Script((*turns, Turn("user", tuple(pieces))))
    if system.text:
        pieces = [system, PromptPiece("\n\n", "system", scaffold=True), *pieces]
    pieces.append(PromptPiece("\nAnswer:", TEMPLATE, scaffold=True))
    return Script((Turn(None, tuple(pieces)),))


def _of_messages(messages: Sequence[Any], images: Sequence[Any]) -> Script:
    roles: dict[str, int] = {}
    turns: list[Turn] = []
    inline: list[Any] = []  # images in the messages; None: one of `images`
    notes: list[str] = []
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= message.keys():
            raise InputError(
                f'a chat message is {{"role": …, "content": …}}, got {str(message)[:80]!r}.'
            )
        role = str(message["role"])
        roles[role] = roles.get(role, 0) + 1
        name = f"{role} {roles[role]}"
        others = [str(key) for key in message if key not in _READ and message[key]]
        if others:
            notes.append(f"{', '.join(others)} of the message {name} were left out of the prompt.")
            warnings.warn(notes[-1], stacklevel=2)
        pieces: list[PromptPiece] = []
        for texts, pictures in _blocks_of(message["content"]):
            inline += pictures
            pieces += [IMAGE] * len(pictures)
            if texts:
                pieces += _paragraphs(texts, f"{name}, paragraph", name, "message")
        turns.append(Turn(role, tuple(pieces)))
    if images and not inline:  # images come first
        first = next((i for i, turn in enumerate(turns) if turn.role == "user"), 0)
        turns[first] = replace(turns[first], pieces=(*[IMAGE] * len(images), *turns[first].pieces))
        return Script(tuple(turns), tuple(images), tuple(notes))
    following = iter(images)
    resolved = tuple(next(following, None) if image is None else image for image in inline)
    if None in resolved or next(following, None) is not None:
        count = sum(image is None for image in inline)
        raise InputError(
            f"the messages have {count} image placeholder{'s' * (count != 1)} "
            f'{{"type": "image"}}, but {len(images)} images were passed.'
        )
    return Script(tuple(turns), resolved, tuple(notes))


_READ = ("role", "content")


def _blocks_of(content: Any) -> Iterator[tuple[str, list[Any]]]:
    """The texts of a message, each with the images before it; None is one of images=.

    A message that only calls tools has the content None.
    """
    if content is None or isinstance(content, str):
        yield content or "", []
        return
    images: list[Any] = []
    texts: list[str] = []
    for block in content if isinstance(content, Sequence) else [content]:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "image" or kind == "image_url":
            if texts:
                yield "".join(texts), images
                images, texts = [], []
            images.append(_image_of(block))
        elif isinstance(block, Mapping) and isinstance(block.get("text"), str):
            texts.append(block["text"])
        else:
            raise InputError(
                "the content of a chat message must be text, or a list of "
                '{"type": "text", "text": …} and {"type": "image", "image": …}, '
                f"got {str(content)[:80]!r}."
            )
    yield "".join(texts), images


def _image_of(block: Mapping[str, Any]) -> Any:
    source = next((block[key] for key in ("image", "path", "url") if block.get(key)), None)
    if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
        raise InputError(
            f"an image of a chat message must be a picture or the path of a file, got "
            f"{source[:60]!r}: nothing is fetched from the network."
        )
    return source


def _paragraphs(text: str, many: str, single: str, kind: str) -> Iterator[PromptPiece]:
    """The paragraphs of a text, each with the blank lines after it."""
    ends = [match.end() for match in _PARAGRAPH.finditer(text) if match.start() > 0]
    cuts = [0, *(end for end in ends if end < len(text)), len(text)]
    for number, (start, end) in enumerate(pairwise(cuts), 1):
        name = single if len(cuts) == 2 else f"{many} {number}"
        yield PromptPiece(text[start:end], name, kind if len(cuts) == 2 else "passage")


def _with_template(
    template: Any, turns: Sequence[Turn], lists: bool
) -> tuple[str, list[ContentSpan]]:
    """The rendered text, and the span of each text between the images of the messages."""
    contents = [_text(block) for turn in turns for block in turn.blocks if block is not None]

    def rendered(texts: Sequence[str]) -> str:
        following = iter(texts)
        messages = [
            {"role": turn.role, "content": _content(turn, following, lists)} for turn in turns
        ]
        try:
            return str(
                template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        except Exception as error:  # a template may raise anything, for example for unknown roles
            raise InputError(
                f"the chat template rejects these messages "
                f"({', '.join(str(turn.role) for turn in turns)}): {first_line(error)}"
            ) from error

    text = rendered(contents)
    # the template with a mark for each content
    marks = [f"\ue000{number}\ue001" for number in range(len(contents))]
    skeleton = rendered(marks)
    if all(skeleton.count(mark) == 1 for mark in marks):
        for change in (str, str.strip):
            rebuilt, places = _in_skeleton(skeleton, marks, contents, change)
            if rebuilt == text:
                return text, places
    return text, _searched(text, contents)


def _content(turn: Turn, texts: Iterator[str], lists: bool) -> str | list[dict[str, str]]:
    """The content of a message in the template's format."""
    if not lists and turn.blocks.count(None) == 0:
        return next(texts)
    return [
        {"type": "image"} if block is None else {"type": "text", "text": next(texts)}
        for block in turn.blocks
    ]


def _in_skeleton(
    skeleton: str, marks: Sequence[str], contents: Sequence[str], change: Callable[[str], str]
) -> tuple[str, list[ContentSpan]]:
    """The skeleton filled with the contents, and their spans."""
    order = sorted(range(len(marks)), key=lambda number: skeleton.index(marks[number]))
    places = [ContentSpan(0, 0, 0)] * len(marks)
    text, at = "", 0
    for number in order:
        place = skeleton.index(marks[number])
        text += skeleton[at:place]
        places[number] = _place(len(text), contents[number], change)
        text += change(contents[number])
        at = place + len(marks[number])
    return text + skeleton[at:], places


def _place(start: int, content: str, change: Callable[[str], str]) -> ContentSpan:
    cut = 0 if change(content) == content else len(content) - len(content.lstrip())
    return ContentSpan(start, cut, len(change(content)))


def _searched(text: str, contents: Sequence[str]) -> list[ContentSpan]:
    """The span of each content, found by search, for templates that depend on the contents."""
    places: list[ContentSpan] = []
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
                f"the chat template changes the content of message {number}, so its tokens "
                "cannot be distinguished from those of the template.",
                "Pass the rendered text instead: tokenizer.apply_chat_template(messages, "
                "tokenize=False, add_generation_prompt=True).",
                command="Pass the rendered text instead.",
            )
    return places
