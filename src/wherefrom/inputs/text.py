"""Texts and token ids as inputs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from wherefrom.core.explanation import Unit, word_groups
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.errors import InputError, TextCut, TooLong
from wherefrom.inputs.pictures import is_image
from wherefrom.inputs.records import TextPair


@dataclass(frozen=True)
class Encoded:
    """One text as ids with named units, before it is padded into a batch.

    `cut_from` is its number of tokens before truncation, `padded` the rows of tensors that were
    passed with padding, by name.
    """

    ids: list[int]
    units: tuple[Unit, ...]
    text: str | None
    types: list[int] | None = None
    cut_from: int | None = None
    padded: Mapping[str, list[int]] | None = None


def is_pair(source: Any) -> bool:
    """Whether this is one input of two texts: a `TextPair`, or a tuple of two texts."""
    two = isinstance(source, tuple) and len(source) == 2
    return isinstance(source, TextPair) or (two and all(isinstance(part, str) for part in source))


def encode(tokenizer: Any, text: str | TextPair) -> Encoded:
    """The tokens of a text, each with its exact span and the index of its word."""
    encoded = encode_each(tokenizer, [text])[0]
    if isinstance(encoded, InputError):
        raise encoded
    return encoded


def encode_each(tokenizer: Any, texts: Sequence[str | TextPair]) -> list[Encoded | InputError]:
    """Encodes many texts in one call of the tokenizer; an invalid text gives an error instead."""
    results: dict[int, Encoded | InputError] = {}
    for kind in (str, TextPair):  # one call of a tokenizer takes only one of the two
        problems = {i: _problem(text) for i, text in enumerate(texts) if isinstance(text, kind)}
        good = [i for i, problem in problems.items() if problem is None]
        bad = {i: InputError(problem) for i, problem in problems.items() if problem is not None}
        if tokenizer is None:
            results |= {
                i: InputError(
                    "this explainer has no tokenizer to read a text with.",
                    "Pass one, Explainer(model, tokenizer), or pass token ids.",
                    command="",
                )
                for i in good
            }
        elif good:
            encoded = _encoded(tokenizer, [texts[i] for i in good])
            results |= dict(zip(good, encoded, strict=True))
        results |= bad
    return [results[i] for i in range(len(texts))]


def _problem(text: str | TextPair) -> str | None:
    """Why a text cannot be explained; None if it can."""
    if isinstance(text, TextPair):
        halves = zip(text.fields, (text.first, text.second), strict=True)
        return next(
            (f"the {name} text of the pair: {problem}" for name, half in halves
             if (problem := _problem(half)) is not None),
            None,
        )  # fmt: skip
    if not text.strip():
        return "the text is empty: there is nothing to explain."
    surrogate = _SURROGATE.search(text)
    if surrogate is None:
        return None
    return (
        f"character {surrogate.start() + 1} of the text is U+{ord(surrogate[0]):04X}, half of a "
        "character (a lone surrogate): the text was not UTF-8, or was cut inside a character."
    )


_SURROGATE = re.compile("[\ud800-\udfff]")


def _encoded(tokenizer: Any, texts: Sequence[str | TextPair]) -> Iterator[Encoded | InputError]:
    """Tokenizes texts, or pairs."""
    pairs = [text for text in texts if isinstance(text, TextPair)]
    halves: tuple[list[str], ...] = ([text for text in texts if isinstance(text, str)],)
    if pairs:
        halves = [pair.first for pair in pairs], [pair.second for pair in pairs]
    fast = bool(getattr(tokenizer, "is_fast", False))
    settings: dict[str, Any] = {"return_offsets_mapping": True} if fast else {}
    # lengths are checked in `fitted`, with a better message than the tokenizer's
    output = tokenizer(*halves, return_special_tokens_mask=True, verbose=False, **settings)
    specials = special_ids(tokenizer)
    token_of = cache(lambda number: str(tokenizer.convert_ids_to_tokens([number])[0]))
    for row, source in enumerate(texts):
        pair = source if isinstance(source, TextPair) else None
        text = source if isinstance(source, str) else source.text
        ids: list[int] = list(output["input_ids"][row])
        if not ids:
            yield InputError(f"the tokenizer returns no token for {text!r}.")
            continue
        rows_of_types = output.get("token_type_ids")
        types = None if rows_of_types is None else list(rows_of_types[row])
        sides: Sequence[int | None] = [None] * len(ids)  # 0 or 1; None for a special token
        if pair is not None:
            sides = output.sequence_ids(row) if fast else types or sides
        spans = output["offset_mapping"][row] if fast else [(0, 0)] * len(ids)
        words = output.word_ids(row) if fast else [None] * len(ids)
        marks = output["special_tokens_mask"][row]
        units: list[Unit] = []
        for token_id, (start, end), word, mark, side in zip(
            ids, spans, words, marks, sides, strict=True
        ):
            special = bool(mark) or token_id in specials
            field = "" if pair is None or side is None or special else pair.fields[side]
            if end > start and not special:
                shift = len(pair.first) + 1 if pair is not None and side == 1 else 0
                start, end = start + shift, end + shift
                units.append(Unit(text[start:end], start, end, False, word, field))
            else:
                units.append(Unit(token_of(token_id), special=special, word=word, field=field))
        yield Encoded(ids, tuple(units), text, types)


def from_ids(tokenizer: Any, ids: Sequence[Any], vocabulary: int | None = None) -> Encoded:
    """Token ids without a text; the tokenizer names them if there is one."""
    for number in ids:
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise InputError(f"token ids must be integers, got {number!r}.")
    numbers = [int(number) for number in ids]
    if not numbers:
        raise InputError("the list of token ids is empty: there is nothing to explain.")
    for number in numbers:
        if number < 0 or (vocabulary is not None and number >= vocabulary):
            allowed = "0 or more" if vocabulary is None else f"0 to {vocabulary - 1}"
            raise InputError(f"there is no token {number}: the ids of this model are {allowed}.")
    if tokenizer is None:
        return Encoded(numbers, tuple(Unit(f"#{i}") for i in numbers), None)
    names = tokenizer.convert_ids_to_tokens(numbers)
    special = special_ids(tokenizer)
    units = tuple(
        Unit(str(name), special=i in special) for i, name in zip(numbers, names, strict=True)
    )
    return Encoded(numbers, units, None)


_TENSORS = ("input_ids", "attention_mask", "token_type_ids")
_NOTES = ("special_tokens_mask", "offset_mapping", "length", "labels", "label")  # not for the model


def from_tensors(
    tokenizer: Any, tensors: Mapping[str, Any], vocabulary: int | None = None
) -> tuple[list[Encoded], bool]:
    """Reads the output of a tokenizer; also returns whether it is a single text.

    Positions that the attention mask excludes are padding, on either side.
    """
    unknown = [str(name) for name in tensors if name not in (*_TENSORS, *_NOTES)]
    if "input_ids" not in tensors or unknown:
        raise InputError(
            f"cannot explain a {type(tensors).__name__} of {', '.join(map(str, tensors))}: pass a "
            "text, a pair of texts, or the output of a tokenizer (input_ids, with optional "
            "attention_mask and token_type_ids)."
        )
    rows: dict[str, list[Any]] = {}
    for name in _TENSORS:
        if name in tensors:
            values = tensors[name]
            rows[name] = values.tolist() if hasattr(values, "tolist") else list(values)
    is_single = bool(rows["input_ids"]) and not isinstance(rows["input_ids"][0], Sequence)
    if is_single:
        rows = {name: [values] for name, values in rows.items()}
    if len({len(values) for values in rows.values()}) > 1:
        raise InputError(f"{', '.join(rows)} have different numbers of rows.")
    items = []
    for number, ids in enumerate(rows["input_ids"]):
        mask, types = (
            None if name not in rows else list(rows[name][number]) for name in _TENSORS[1:]
        )
        if any(part is not None and len(part) != len(ids) for part in (mask, types)):
            raise InputError(f"{', '.join(rows)} have different numbers of tokens.")
        kept = [i for i in range(len(ids)) if mask is None or mask[i]]
        item = from_ids(tokenizer, [ids[i] for i in kept], vocabulary)
        if types is not None:
            types = [int(types[i]) for i in kept]
            fields = ("first", "second") if any(types) else ("", "")
            units = tuple(
                unit if unit.special or kind > 1 else replace(unit, field=fields[kind])
                for unit, kind in zip(item.units, types, strict=True)
            )
            item = Encoded(item.ids, units, None, types)
        if len(kept) < len(ids):
            item = replace(item, padded={name: list(rows[name][number]) for name in rows})
        items.append(item)
    return items, is_single


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of tokens that are not part of a text, unlike [UNK] and [MASK]."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}


def longest(runner: ModelRunner, tokenizer: Any) -> int | None:
    """The largest number of tokens the model takes; None if unknown."""
    config = getattr(runner.model, "config", None)
    configs = (config, getattr(config, "text_config", None))  # the latter in vision-language models
    limits = [
        getattr(tokenizer, "model_max_length", None),
        *(getattr(part, "max_position_embeddings", None) for part in configs),
        *(getattr(part, "n_positions", None) for part in configs),
    ]
    known = [n for n in limits if isinstance(n, int) and 0 < n < 10**9]
    return min(known) - runner.virtual_tokens if known else None


def vocabulary(runner: ModelRunner) -> int | None:
    """The size of the model's vocabulary; None if unknown."""
    get_embeddings = getattr(runner.model, "get_input_embeddings", None)
    try:
        embeddings = get_embeddings() if callable(get_embeddings) else None
    except NotImplementedError:
        embeddings = None
    return getattr(embeddings, "num_embeddings", None)


def fitted(encoded: Encoded, limit: int | None, truncate: bool) -> Encoded:
    """Checks the length of a text: raises TooLong, or with `truncate` cuts it.

    Up to two special tokens at the end, such as [SEP], are kept.
    """
    length = len(encoded.ids)
    if limit is None or length <= limit:
        return encoded
    if not truncate:
        raise TooLong(
            f"the text has {length} tokens, but the model takes {limit}.",
            "Shorten it, or pass truncate=True to explain its start.",
            command="Shorten it, or pass --truncate to explain its start.",
            page="Shorten it, or explain its beginning only.",
        )
    closing = 0
    while closing < 2 and encoded.units[-1 - closing].special:
        closing += 1
    kept = [*range(limit - closing), *range(length - closing, length)]
    warnings.warn(
        f"the text was cut from {length} to {limit} tokens: "
        f"{length - limit} are not part of the explanation",
        TextCut,
        stacklevel=4,
    )
    return Encoded(
        [encoded.ids[i] for i in kept],
        tuple(encoded.units[i] for i in kept),
        encoded.text,
        [encoded.types[i] for i in kept] if encoded.types else None,
        length,
    )


def warnings_of(encoded: Encoded, unknown: int | None) -> tuple[str, ...]:
    """Caveats about a text that was truncated, or that has unknown words."""
    length, notes = len(encoded.ids), []
    if encoded.cut_from is not None:
        notes.append(
            f"The text was cut from {encoded.cut_from} to {length} tokens: "
            f"{encoded.cut_from - length} are not part of the explanation."
        )
    if encoded.text is not None and len(encoded.text.split()) == 1 and is_image(encoded.text):
        notes.append("The text looks like the name of a picture: it is explained as a text.")
    if encoded.text is not None and all(unit.special for unit in encoded.units):
        notes.append("The tokenizer finds no word in this text: all tokens are special tokens.")
    if encoded.text is None or unknown not in encoded.ids:
        return tuple(notes)
    pairs = [
        (unit, number == unknown and not _is_written_out(unit))
        for unit, number in zip(encoded.units, encoded.ids, strict=True)
        if not unit.special
    ]
    words = [
        all(pairs[k][1] for k in group)
        for group in word_groups([unit for unit, _ in pairs])
        if any(flag or re.search(r"\w", unit.text) for unit, flag in (pairs[k] for k in group))
    ]
    count = sum(words)
    if count:
        verb = "is" if count == 1 else "are"
        notes.append(
            "The tokenizer knows none of these words, so the prediction does not depend on them."
            if count == len(words)
            else f"{count} of {len(words)} words {verb} unknown to the tokenizer."
        )
    return tuple(notes)


def _is_written_out(unit: Unit) -> bool:
    """Whether the text itself contains the token, such as "<|endoftext|>", unknown in GPT-2."""
    return unit.start is not None and re.fullmatch(r"<.*>|\[.*\]", unit.text) is not None


def batch(
    runner: ModelRunner,
    tokenizer: Any,
    rows: Sequence[Encoded],
    prefixes: Sequence[Encoded] | None = None,
) -> Batch:
    """Encoded texts padded on the right to one length, with all tensors that the model takes.

    `prefixes` are what the decoder has generated for each of them.
    """
    padding = padding_id(runner, tokenizer)
    ids, mask = padded([row.ids for row in rows], padding)
    types = padded([row.types or [0] * len(row.ids) for row in rows], 0)[0]
    tensors = {"input_ids": ids}
    if takes_mask(runner):
        tensors["attention_mask"] = mask.long()
    if any(gets_types(runner, row) for row in rows):
        tensors["token_type_ids"] = types
    fields: tuple[str, ...] = ("input_ids",)
    units = [row.units for row in rows]
    if prefixes is not None:
        # no position of a prefix attends to the padding after it
        written, mask_of_prefixes = padded([prefix.ids for prefix in prefixes], padding)
        tensors["decoder_input_ids"] = written
        fields += ("decoder_input_ids",)
        mask = torch.cat([mask, mask_of_prefixes], 1)
        units = [row + prefix.units for row, prefix in zip(units, prefixes, strict=True)]
    device = runner.device
    return Batch(
        tensors={name: tensor.to(device) for name, tensor in tensors.items()},
        fields=fields,
        units=tuple(units),
        mask=mask,
        texts=tuple(row.text for row in rows),
        blanks=_blanks(tokenizer),
        vocabulary=vocabulary(runner),
    )


def padded(
    rows: Sequence[Sequence[int]], padding: int, *, left: bool = False
) -> tuple[Tensor, Tensor]:
    """Pads rows of ids to one tensor; also returns the mask of the positions without padding."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), padding)
    mask = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, row in enumerate(rows):
        columns = slice(width - len(row), None) if left else slice(len(row))
        ids[i, columns] = torch.tensor(row)
        mask[i, columns] = True
    return ids, mask


def gets_types(runner: ModelRunner, row: Encoded) -> bool:
    """Whether the model gets token types, which distinguish two texts.

    A user's forward function gets them only if there are two texts.
    """
    if not row.types or not runner.takes("token_type_ids"):
        return False
    return runner.forward is None or any(row.types)


def by_length(
    lengths: Sequence[int], size: int, tokens: int | None = None, same: bool = False
) -> list[list[int]]:
    """Groups samples of similar length: at most `size`, and at most `tokens` with padding.

    With `same`, only samples of equal length share a group.
    """
    chunks: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        chunk = chunks[-1] if chunks else []
        fits = len(chunk) < size and (tokens is None or (len(chunk) + 1) * lengths[i] <= tokens)
        if chunk and fits and not (same and lengths[chunk[0]] != lengths[i]):
            chunk.append(i)
        else:
            chunks.append([i])
    return chunks


def _blanks(tokenizer: Any) -> dict[str, int]:
    ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "unk", "mask")}
    return {name: number for name, number in ids.items() if isinstance(number, int)}


def takes_mask(runner: ModelRunner) -> bool:
    """Whether the model takes an attention mask."""
    return runner.forward is not None or runner.takes("attention_mask")


def has_padding(runner: ModelRunner) -> bool:
    """Whether the model has a padding id, without which some classifiers take no batch."""
    config = getattr(runner.model, "config", None)
    return config is None or getattr(config, "pad_token_id", None) is not None


def padding_id(runner: ModelRunner, tokenizer: Any) -> int:
    """The id for padding: any id works for models that ignore padding."""
    config = getattr(runner.model, "config", None)
    for owner in (config, tokenizer):
        number = getattr(owner, "pad_token_id", None)
        if isinstance(number, int) and number >= 0:
            return number
    return 0
