"""The tokens of a prompt and of an answer, with their names, spans and parts."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Any

from wherefrom.answers.prompt import TEMPLATE, Part, Prompt, PromptLike, Script, is_messages
from wherefrom.core.explanation import Unit
from wherefrom.errors import InputError
from wherefrom.inputs.image_text_processor import EncodedImages, ImageTextProcessor, PromptImages
from wherefrom.inputs.text import from_ids, special_ids

ANSWER = "answer"
"""The field of the answer's tokens."""
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
BROKEN = "\ufffd"  # an incomplete character decodes to this


@dataclass(frozen=True)
class PromptTokens:
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    units: tuple[Unit, ...]  # `field` is the name of the part; template tokens are special
    text: str
    parts: tuple[Part, ...]
    script: Script | None = None  # None: token ids, from which no part can be removed
    opening: tuple[int, ...] = ()  # first tokens of the decoder of an encoder–decoder
    images: PromptImages | None = None  # their patches are the first units
    text_ids: tuple[int, ...] = ()  # of the text, without image tokens

    @property
    def start(self) -> int:
        """The number of tokens before the answer."""
        return len(self.units)

    @property
    def encoded_images(self) -> EncodedImages | None:
        """The images with the tensors that the model takes, if there are any."""
        return self.images if isinstance(self.images, EncodedImages) else None

    @property
    def patches(self) -> int:
        """The number of units that are patches of images."""
        return 0 if self.images is None else len(self.images.units)

    @property
    def first_position(self) -> int:
        """The position of the logits that predict the answer's first token."""
        return len(self.opening or self.ids) - 1

    @property
    def lead(self) -> str:
        """The text before the answer; the answer of an encoder–decoder begins a new line."""
        return f"{self.text}\n" if self.opening else self.text

    def with_opening(self, tokenizer: Any, opening: Sequence[int]) -> PromptTokens:
        """The source of an encoder–decoder, with the first tokens of its decoder."""
        names = [f"#{token_id}" for token_id in opening]
        if tokenizer is not None:
            names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(opening))]
        units = tuple(Unit(name, special=True, field=TEMPLATE) for name in names)
        units = self.units[: len(self.ids)] + units
        return replace(self, units=units, opening=tuple(opening))


@dataclass(frozen=True)
class AnswerTokens:
    """An answer as tokens that follow those of the prompt."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]  # the text of each; joined, they are the answer

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)

    def units(self, start: int) -> tuple[Unit, ...]:
        """The units of the answer in a text where it begins at `start`."""
        units = []
        for piece in self.pieces:
            units.append(Unit(piece, start, start + len(piece), field=ANSWER))
            start += len(piece)
        return tuple(units)


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def read_prompt(
    tokenizer: Any,
    prompt: PromptLike,
    closed: bool = False,
    images: Sequence[Any] = (),
    joint_processor: ImageTextProcessor | None = None,
) -> PromptTokens:
    """Tokenizes a text, chat messages or named parts; token ids stay as they are.

    `closed`: keep special tokens at the end, as an encoder expects. `joint_processor` reads
    `images`.
    """
    if not isinstance(prompt, (str, Prompt)) and not is_messages(prompt):
        if images:
            raise InputError("images need a prompt as text, as a Prompt or as chat messages.")
        return _from_ids(tokenizer, prompt)
    if tokenizer is None:
        raise InputError(
            "this explainer has no tokenizer to read a prompt with.",
            "Pass one, Explainer(model, tokenizer), or pass token ids.",
            command="",
        )
    chat = has_template(tokenizer) or (joint_processor is not None and joint_processor.has_template)
    placeholder = "" if joint_processor is None else joint_processor.placeholder
    script = Script.of(prompt, chat, images, placeholder)
    if script.images and joint_processor is None:
        raise InputError(
            "this explainer has no processor for images in prompts.",
            "If the model reads images, pass it: Explainer(model, "
            "processor=AutoProcessor.from_pretrained(…)).",
            command="",
        )
    return tokenized(tokenizer, script, closed, joint_processor)


def tokenized(
    tokenizer: Any,
    script: Script,
    closed: bool = False,
    joint_processor: ImageTextProcessor | None = None,
) -> PromptTokens:
    """The tokens of a script, each with its part."""
    lists = joint_processor is not None and joint_processor.has_template
    text, parts = script.rendered(
        joint_processor.processor if joint_processor and lists else tokenizer, lists
    )
    if not text.strip():
        raise InputError("the prompt is empty: there is nothing to answer.")
    chat = script.is_chat
    ids, spans, special = _encoded(tokenizer, text, chat, closed)
    names = tokenizer.convert_ids_to_tokens(list(ids))
    starts = [part.start for part in parts]
    units = []
    previous_end = 0
    for number, (start, end) in enumerate(spans):
        if (
            start == end
            and not special[number]
            and previous_end < start
            and text[start - 1].isspace()
        ):
            start -= 1  # a space token, which some tokenizers omit from spans
        piece = text[start:end]
        previous_end = max(previous_end, end)
        part = None if special[number] else _part_at(_first_visible(piece, start), parts, starts)
        units.append(
            Unit(
                piece or str(names[number]),
                start if piece else None,
                end if piece else None,
                special=part is None,
                field=TEMPLATE if part is None else part.name,
            )
        )
    tokens = PromptTokens(ids, _with_words(units, text), text, parts, script)
    if not script.images:
        return tokens
    assert joint_processor is not None
    return _with_images(tokenizer, tokens, script, joint_processor)


def _with_images(
    tokenizer: Any, prompt: PromptTokens, script: Script, joint_processor: ImageTextProcessor
) -> PromptTokens:
    """The tokens of a text with images, including those that the processor inserts."""
    count = prompt.text.count(joint_processor.placeholder)
    if count != len(script.images):
        raise InputError(
            f"the prompt has {count} image placeholders {joint_processor.placeholder!r}, but "
            f"{len(script.images)} images were passed."
        )
    ids, images = joint_processor.encode(prompt.text, script.images, script.is_chat)
    names = tokenizer.convert_ids_to_tokens(ids)
    units = [Unit(str(name), special=True, field=TEMPLATE) for name in names]
    unmatched = set(range(len(prompt.ids)))
    matcher = SequenceMatcher(None, prompt.ids, ids, autojunk=False)
    for first, start, size in matcher.get_matching_blocks():
        units[start : start + size] = prompt.units[first : first + size]
        unmatched -= set(range(first, first + size))
    lost = [prompt.units[i].text for i in unmatched if not prompt.units[i].special]
    if lost:
        raise InputError(
            f"{type(joint_processor.processor).__name__} tokenizes the text differently from its "
            f"tokenizer: {lost[0]!r} is not among its tokens."
        )
    parts = tuple(
        Part(f"image {number}", "image", str(scene["name"] or ""), 0, 0)
        for number, scene in enumerate(images.scenes, 1)
    )
    return replace(
        prompt,
        ids=tuple(ids),
        units=(*images.units, *units),
        parts=(*parts, *prompt.parts),
        images=images,
        text_ids=prompt.ids,
    )


def _encoded(
    tokenizer: Any, text: str, chat: bool, closed: bool = False
) -> tuple[tuple[int, ...], list[tuple[int, int]], list[bool]]:
    """Ids, spans and special flags; unless `closed`, without special tokens at the end."""
    fast = bool(getattr(tokenizer, "is_fast", False))
    output = tokenizer(
        text,
        add_special_tokens=not chat,  # the template adds them
        return_special_tokens_mask=True,
        verbose=False,
        **({"return_offsets_mapping": True} if fast else {}),
    )
    ids, added = list(output["input_ids"]), list(output["special_tokens_mask"])
    spans = list(output["offset_mapping"]) if fast else _searched(tokenizer, text, ids, added)
    # the answer follows
    while not closed and ids and added[-1] and spans[-1][0] == spans[-1][1]:
        ids.pop(), spans.pop(), added.pop()
    if not ids:
        raise InputError(f"the tokenizer returns no token for {text[:60]!r}.")
    specials = special_ids(tokenizer)
    special = [
        bool(mark) or token_id in specials for mark, token_id in zip(added, ids, strict=True)
    ]
    return tuple(ids), [(int(start), int(end)) for start, end in spans], special


def _searched(
    tokenizer: Any, text: str, ids: Sequence[int], added: Sequence[int]
) -> list[tuple[int, int]]:
    """The spans of SentencePiece tokens, for a tokenizer that does not return them."""
    spans: list[tuple[int, int]] = []
    at = 0
    for name, mark in zip(tokenizer.convert_ids_to_tokens(list(ids)), added, strict=True):
        if mark:
            spans.append((at, at))
            continue
        piece = str(name).replace("▁", " ")
        start = at
        while piece.strip() and start < len(text) and text[start].isspace():
            start += 1
        if not text.startswith(piece.strip(), start):
            raise InputError(
                f"{type(tokenizer).__name__} returns no spans of its tokens, and {name!r} is not "
                "found in the text. Use a fast tokenizer, or pass token ids."
            )
        at = start + len(piece.strip())
        if not piece.strip():
            at += text[at : at + 1].isspace()  # a token that is a space
        spans.append((start, at))
    return spans


def _first_visible(piece: str, start: int) -> int:
    """The index of the first character that is not a space: tokens may begin with spaces."""
    return start + (len(piece) - len(piece.lstrip()) if piece.strip() else 0)


def _part_at(position: int, parts: Sequence[Part], starts: Sequence[int]) -> Part | None:
    index = bisect_right(starts, position) - 1
    return parts[index] if index >= 0 and position < parts[index].end else None


def _from_ids(tokenizer: Any, prompt: Any) -> PromptTokens:
    if not isinstance(prompt, Sequence) and not hasattr(prompt, "tolist"):
        raise InputError(
            f"cannot answer a {type(prompt).__name__}: a prompt is a text, a Prompt, a list of "
            "chat messages, or token ids."
        )
    numbers = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    encoded = from_ids(tokenizer, numbers)
    pieces = pieces_of(tokenizer, [], encoded.ids)
    units, at = [], 0
    for unit, piece in zip(encoded.units, pieces, strict=True):
        name = TEMPLATE if unit.special else "prompt"
        units.append(Unit(piece, at, at + len(piece), unit.special, field=name))
        at += len(piece)
    text = "".join(pieces)
    part = Part("prompt", "text", "", 0, len(text))
    return PromptTokens(tuple(encoded.ids), _with_words(units, text), text, (part,))


def read_answer(tokenizer: Any, prompt: PromptTokens, answer: str | Sequence[int]) -> AnswerTokens:
    """Tokenizes an answer; the tokens of the prompt stay unchanged."""
    if not hasattr(answer, "__len__"):
        raise InputError(
            f"an answer is a text or a list of token ids, got {type(answer).__name__}."
        )
    if not isinstance(answer, str):
        numbers = from_ids(tokenizer, list(answer)).ids if len(answer) else []
        if not numbers:
            raise InputError("the answer is empty: there is nothing to explain.")
        return answer_of_ids(tokenizer, prompt, numbers)
    if not answer.strip():
        raise InputError("the answer is empty: there is nothing to explain.")
    if tokenizer is None:
        raise InputError("an answer as text needs a tokenizer; pass its token ids instead.")
    if prompt.opening:  # a separate text, maybe in another language
        output = tokenizer(text_target=answer, add_special_tokens=False, verbose=False)
        return answer_of_ids(tokenizer, prompt, output["input_ids"], answer)
    chat = prompt.script is not None and prompt.script.is_chat
    before = prompt.text_ids or prompt.ids
    joins = prompt.text[-1:].isalnum() and answer[0].isalnum() and prompt.ids[-1] == before[-1]
    if not chat and joins:
        warnings.warn(
            f"the answer {answer[:20]!r} follows the prompt without a space: "
            f"{prompt.text[-10:] + answer[:10]!r}. Begin it with a space if it is a new word.",
            stacklevel=5,
        )
    together: tuple[int, ...] = ()
    if prompt.script is not None:
        together = _encoded(tokenizer, prompt.text + answer, chat)[0]
    count = len(before)
    if together[:count] == before and len(together) > count:
        ids = list(together[count:])
    else:
        ids = list(tokenizer(answer, add_special_tokens=False, verbose=False)["input_ids"])
        if prompt.script is not None:
            warnings.warn(
                f"the tokenizer would join the end of the prompt and the start of the answer "
                f"{answer[:20]!r} to one token; the answer is tokenised separately, since the "
                "model read the prompt without it.",
                stacklevel=5,
            )
    return answer_of_ids(tokenizer, prompt, ids, answer)


def answer_of_ids(
    tokenizer: Any, prompt: PromptTokens, ids: Sequence[int], text: str = ""
) -> AnswerTokens:
    """The answer tokens with these ids after a prompt; `text` is for the error message."""
    if not ids:
        raise InputError(f"the tokenizer returns no token for the answer {text[:60]!r}.")
    before = () if prompt.opening else prompt.ids
    return AnswerTokens(tuple(ids), tuple(pieces_of(tokenizer, before, ids)))


def pieces_of(tokenizer: Any, before: Sequence[int], ids: Sequence[int]) -> list[str]:
    """The text of each token; a character of several tokens belongs to the last one."""
    if tokenizer is None:
        return [f"#{number} " for number in ids]

    def decoded(numbers: Sequence[int]) -> str:
        return str(
            tokenizer.decode(
                list(numbers), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    # decode with a few tokens before, since decoders treat the first token differently
    window, pieces = list(before[-4:]), []
    done = len(decoded(window)) if window else 0
    for number in ids:
        window.append(number)
        text = decoded(window)
        whole = text.rstrip(BROKEN)  # an incomplete character waits for its other tokens
        pieces.append(whole[done:])
        done = max(done, len(whole))
        if len(window) > 16 and whole == text:
            window = window[-4:]
            done = len(decoded(window))
    if window and ids:
        pieces[-1] += decoded(window)[done:]  # the character stayed incomplete
    return pieces


def _with_words(units: Sequence[Unit], text: str) -> tuple[Unit, ...]:
    """The units with the index of their word."""
    words = [match.start() for match in _WORD.finditer(text)]
    numbered = []
    for unit in units:
        word = None
        if not unit.special and unit.start is not None and unit.text.strip():
            word = bisect_right(words, _first_visible(unit.text, unit.start)) - 1
        elif not unit.special and unit.start is not None and "\n" not in unit.text:
            word = bisect_left(words, unit.start)  # a space belongs to the word after it
        numbered.append(replace(unit, word=word if word in range(len(words)) else None))
    return tuple(numbered)


def with_answer(prompt: PromptTokens, answer: AnswerTokens) -> tuple[Unit, ...]:
    """The units of prompt and answer, with the indices of their words."""
    units = [*prompt.units, *answer.units(len(prompt.lead))]
    return _with_words(units, prompt.lead + answer.text)


def words_of(text: str) -> list[tuple[int, int]]:
    """The spans of the words and punctuation of a text.

    >>> [("It's 3.5 km."[a:b]) for a, b in words_of("It's 3.5 km.")]
    ["It's", '3', '.', '5', 'km', '.']
    """
    return [match.span() for match in _WORD.finditer(text)]
