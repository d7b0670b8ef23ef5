"""The reader of texts and token ids; it pads them if the model ignores padding."""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.core.explanation import Unit
from wherefrom.core.runner import Batch, ModelRunner, same_logits
from wherefrom.core.scope import restores_state
from wherefrom.core.target import OutputNames, Target
from wherefrom.errors import InputError, OutputDiffers, TargetError
from wherefrom.inputs.image_text_processor import ImageTextProcessor
from wherefrom.inputs.pictures import is_image
from wherefrom.inputs.reader import (
    Present,
    Reader,
    ReaderContext,
    Replacement,
    resolve_position,
)
from wherefrom.inputs.records import TextPair
from wherefrom.inputs.text import (
    Encoded,
    batch,
    by_length,
    encode_each,
    fitted,
    from_ids,
    from_tensors,
    gets_types,
    has_padding,
    is_pair,
    longest,
    takes_mask,
    vocabulary,
    warnings_of,
)

Ids = NDArray[np.int64]
_PADDINGS = 4  # tests of a model with paddings of other ids
TextForm = tuple[Ids, Ids | None]  # token ids, and token types if the model takes them


@dataclass
class TextReader(Reader[Encoded, TextForm]):
    """Reads texts with the tokenizer, and token ids.

    `decoder_prefix` is what a decoder has generated so far; `joint_processor` reads images in
    prompts.
    """

    name: ClassVar[str] = "text"
    runner: ModelRunner
    tokenizer: Any
    output_names: OutputNames
    decoder_prefix: Encoded | None = None
    joint_processor: ImageTextProcessor | None = None
    tried: dict[str, bool] = field(default_factory=dict, repr=False)
    """Results of test runs of the model, shared by copies of this reader."""
    _blanks: dict[str | int, int] = field(default_factory=dict, repr=False)

    @classmethod
    def accepts(cls, context: ReaderContext, inputs: Any) -> bool:
        """Accepts everything: it is tried last, and `read` raises for what it cannot read."""
        return True

    @classmethod
    def build(cls, context: ReaderContext) -> TextReader:
        runner = context.runner.by_position("input_ids")
        return cls(
            runner, context.tokenizer, context.output_names, joint_processor=context.joint_processor
        )

    @property
    def pads(self) -> bool:  # type: ignore[override]
        """Whether texts of different lengths may share a batch without a further check."""
        return self.tried.get("any padding", True) and self._can_be_padded

    @property
    def alone(self) -> bool:  # type: ignore[override]
        """Classifiers without a padding id take no batches."""
        return not self.output_names.generates and not has_padding(self.runner)

    @property
    def _can_be_padded(self) -> bool:
        return takes_mask(self.runner) and not self.alone

    def __post_init__(self) -> None:
        if self.decoder_prefix is None and self.has_decoder:
            self.decoder_prefix = self._encode_prefix(None)

    @property
    def has_decoder(self) -> bool:
        """Whether the model is an encoder-decoder that generates text."""
        config = getattr(self.runner.model, "config", None)
        return bool(getattr(config, "is_encoder_decoder", False)) and self.output_names.generates

    def with_options(self, *, units: Any = None, prefix: str | None = None) -> TextReader:
        """The same reader with a prefix for the decoder."""
        super().with_options(units=units, prefix=None if self.has_decoder else prefix)
        if prefix is None:
            return self
        return replace(self, decoder_prefix=self._encode_prefix(prefix))

    def _encode_prefix(self, prefix: str | None) -> Encoded:
        config = getattr(self.runner.model, "config", None)
        start = getattr(config, "decoder_start_token_id", None)
        encoded = from_ids(self.tokenizer, [0 if start is None else start])
        if prefix is not None:
            if self.tokenizer is None:
                raise InputError(
                    "a prefix needs a tokenizer.",
                    "Pass it: Explainer(model, tokenizer).",
                    command="",
                )
            ids = self.tokenizer(prefix, add_special_tokens=False)["input_ids"]
            encoded = from_ids(self.tokenizer, [*encoded.ids, *ids])
        units = tuple(Unit(u.text, special=u.special, field="decoder") for u in encoded.units)
        return Encoded(encoded.ids, units, None)

    def listed(self, inputs: Any) -> tuple[list[Any], bool]:
        if isinstance(inputs, (str, Encoded)) or is_pair(inputs):
            return [inputs], True
        if isinstance(inputs, (Tensor, np.ndarray)):
            if inputs.ndim not in (1, 2) or 0 in inputs.shape:
                raise InputError(
                    "token ids must have the shape (tokens) or (batch, tokens), "
                    f"got shape {tuple(inputs.shape)}."
                )
            return (inputs.tolist(), False) if inputs.ndim == 2 else ([inputs.tolist()], True)
        if isinstance(inputs, Mapping):
            return self._listed_tensors(inputs)
        if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, bytearray)):
            raise self._refused(inputs)
        sources = list(inputs)
        if not sources:
            raise InputError("the list of inputs is empty: there is nothing to explain.")
        if all(isinstance(source, (int, np.integer)) for source in sources):
            return [sources], True
        if any(is_image(source) and not isinstance(source, str) for source in sources):
            raise self._refused(next(source for source in sources if is_image(source)))
        if not all(isinstance(source, (Encoded, TextPair, Iterable)) for source in sources):
            kinds = ", ".join(sorted({type(source).__name__ for source in sources}))
            raise InputError(f"cannot explain a list of {kinds}: pass texts or token ids.")
        return sources, False

    def _single(self, tensors: Mapping[str, Any]) -> list[Encoded]:
        items, _ = self._listed_tensors(tensors)
        if len(items) != 1:
            raise InputError(f"one input has {len(items)} rows of input_ids: pass them as a batch.")
        return items

    def _listed_tensors(self, tensors: Mapping[str, Any]) -> tuple[list[Any], bool]:
        """Reads the output of a tokenizer."""
        return from_tensors(self.tokenizer, tensors, vocabulary(self.runner))

    def _refused(self, source: Any) -> InputError:
        return InputError(
            f"cannot explain a {type(source).__name__}: {self.runner.name} reads texts; pass "
            "a text or token ids."
        )

    def read(self, source: Any, truncate: bool = False) -> Encoded:
        return self.read_all([source], truncate)[0]

    def _read(self, sources: Sequence[Any], truncate: bool) -> Iterator[Encoded | InputError]:
        """Reads all texts in one call of the tokenizer; encoded inputs pass through."""
        limit, size = longest(self.runner, self.tokenizer), vocabulary(self.runner)
        sources = [
            TextPair(*source) if is_pair(source) and isinstance(source, tuple) else source
            for source in sources
        ]
        texts = [source for source in sources if isinstance(source, (str, TextPair))]
        encoded = iter(encode_each(self.tokenizer, texts))
        for source in sources:
            try:
                item: Encoded | InputError
                if isinstance(source, Encoded):
                    item = source
                elif isinstance(source, TextPair):
                    item = next(encoded)
                elif isinstance(source, str):
                    item = next(encoded)
                    self._check_text(source)
                elif isinstance(source, Mapping):
                    (item,) = self._single(source)
                elif _is_words(source):
                    raise InputError(
                        f"cannot explain the list {list(source)!r} as one input: a list holds "
                        'token ids. A pair of texts is a tuple, ("first text", "second text").'
                    )
                elif isinstance(source, Iterable):
                    item = from_ids(self.tokenizer, list(source), size)
                else:
                    raise self._refused(source)
                yield fitted(item, limit, truncate) if isinstance(item, Encoded) else item
            except InputError as error:
                yield error

    def _check_text(self, text: str) -> None:
        if os.path.isfile(text) and is_image(text):
            raise InputError(f"{self.runner.name} reads texts, and {text} is an image.")

    def batch(self, items: Sequence[Encoded]) -> Batch:
        prefix = self.decoder_prefix
        return self.batch_after(items, None if prefix is None else [prefix] * len(items))

    def batch_after(self, items: Sequence[Encoded], prefixes: Sequence[Encoded] | None) -> Batch:
        """Items as one batch, each with a prefix for the decoder."""
        if prefixes is not None and self.runner.forward is not None:
            prefixes = prefixes if self._uses_prefix(items[0], prefixes[0]) else None
        inputs = batch(self.runner, self.tokenizer, items, prefixes)
        return replace(inputs, missing=self._missing)

    @property
    def _missing(self) -> str | None:
        """The baseline of a missing unit: the mean embedding for models that generate, else [UNK].

        Some tokenizers use the end-of-text token as [UNK]; it is not used as a baseline.
        """
        if self.output_names.generates:
            return "mean"
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        return "unk" if isinstance(unknown, int) and not self._unknown_ends_a_text else None

    @property
    def _unknown_ends_a_text(self) -> bool:
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        ends = [getattr(self.tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")]
        return unknown is not None and unknown in ends

    def _uses_prefix(self, item: Encoded, prefix: Encoded) -> bool:
        """Whether the user's forward function uses decoder ids: tested once, with other ids."""
        if "prefix" not in self.tried:
            tensors = batch(self.runner, self.tokenizer, [item], [prefix]).tensors
            ids = tensors["decoder_input_ids"]
            other = torch.where(ids == 0, torch.ones_like(ids), ids - 1)
            first, second = (
                self._run({**tensors, "decoder_input_ids": prefix_ids})
                for prefix_ids in (ids, other)
            )
            self.tried["prefix"] = not torch.equal(first, second)
        return self.tried["prefix"]

    def size(self, item: Encoded) -> int:
        return len(item.ids)

    def units_of(self, item: Encoded) -> tuple[Unit, ...]:
        return item.units

    def warnings_of(self, item: Encoded) -> tuple[str, ...]:
        notes = warnings_of(item, getattr(self.tokenizer, "unk_token_id", None))
        return notes if item.padded is None else (*notes, *self._notes_on_padding(item))

    def _notes_on_padding(self, item: Encoded) -> tuple[str, ...]:
        """A caveat if the padding that was passed changes the output."""
        assert item.padded is not None
        mask = torch.tensor([item.padded["attention_mask"]], dtype=torch.bool)
        key = f"padding {mask.int().tolist()}"
        if self.tried.get(key, False):
            return ()
        alone = self.batch([item]).model_tensors()
        padded = {name: torch.tensor([row]) for name, row in item.padded.items() if name in alone}
        expected = self._run({**alone, **{k: v.to(self.runner.device) for k, v in padded.items()}})
        actual = self._run(alone)
        if actual.ndim == 3 and expected.shape[1] == mask.shape[1]:
            expected = expected[:, mask[0]]
        self.tried[key] = expected.shape == actual.shape and same_logits(expected, actual)
        if self.tried[key]:
            return ()
        message = (
            f"{self.runner.name} gives other outputs with the padding that was passed: the input "
            "is explained without it, as if it were passed alone."
        )
        warnings.warn(message, OutputDiffers, stacklevel=2)
        return (message,)

    def chunks(
        self, items: Sequence[Encoded], size: int, tokens: int | None = None
    ) -> list[list[int]]:
        """Groups texts of similar length, or of equal length if the model cannot be padded.

        Texts with and without token types never share a batch: to some models, none is not 0.
        """
        if self.alone:
            return [[i] for i in range(len(items))]
        groups = [[i for i, item in enumerate(items) if (item.types is None) == untyped]
                  for untyped in (True, False)]  # fmt: skip
        chunks: list[list[int]] = []
        for indices in filter(None, groups):
            lengths = [len(items[i].ids) for i in indices]
            short, long = (items[indices[lengths.index(pick(lengths))]] for pick in (min, max))
            self._try_padding(short, long)
            same = not self.tried.get("padding", False)
            parts = by_length(lengths, size, tokens, same)
            if not (same or self.tried["any padding"]) and not all(
                self._is_padding_ignored([items[indices[k]] for k in part]) for part in parts
            ):
                self.tried["padding"] = False
                parts = by_length(lengths, size, tokens, same=True)
            chunks += [[indices[k] for k in part] for part in parts]
        return chunks

    def _try_padding(self, short: Encoded, long: Encoded) -> None:
        """Tests once whether outputs depend on padding, and on the ids of the padding.

        A pooling that ignores the mask may give the same output for one padding by chance, so
        paddings of other ids are tested too.
        """
        if "padding" in self.tried or len(short.ids) == len(long.ids):
            return
        self.tried["padding"] = self.tried["any padding"] = False
        if not self._can_be_padded:
            return
        padded = self.batch([short, long]).take([0])
        self.tried["padding"] = self._same_outputs([self.batch([short]), padded])
        field, tail = padded.fields[0], long.ids[len(short.ids) :]
        others = []
        for shift in range(_PADDINGS):
            ids = padded.tensors[field].clone()
            pool = torch.tensor([*tail, *long.ids]).roll(shift)[: len(tail)]
            ids[0, len(short.ids) :] = pool.to(ids)
            others.append(padded.with_tensors({field: ids}))
        self.tried["any padding"] = self.tried["padding"] and self._same_outputs([padded, *others])

    def _same_outputs(self, batches: Sequence[Batch]) -> bool:
        expected, *others = (
            Target(position=self.positions(inputs, None)).row(self._run(inputs.model_tensors()))
            for inputs in batches
        )
        return all(same_logits(expected, other) for other in others)

    def _is_padding_ignored(self, items: Sequence[Encoded]) -> bool:
        """Whether texts have the same outputs in a padded batch as without padding."""
        together = self.batch(items)
        widths = sorted({len(item.ids) for item in items})
        return all(
            self._same_outputs([self.batch([items[i] for i in rows]), together.take(rows)])
            for width in widths[:-1]
            for rows in [[i for i, item in enumerate(items) if len(item.ids) == width]]
        )

    @restores_state
    def _run(self, tensors: Mapping[str, Tensor]) -> Tensor:
        with self.runner.evaluating(gradients=False):
            return self.runner.run(tensors)

    def positions(self, inputs: Batch, position: int | None) -> Tensor:
        """By default, the position of a single [MASK] of a masked language model, else the last."""
        ids = inputs.tensors[inputs.fields[-1]]
        lengths = inputs.mask[:, -ids.shape[1] :].sum(1)
        if position is not None:
            return resolve_position(lengths, position)
        if self.has_decoder and len(inputs.fields) == 1:
            return torch.full_like(
                lengths, -1
            )  # the user's forward function supplies the decoder's ids
        if self.output_names.generates or "mask" not in inputs.blanks:
            return lengths - 1
        is_mask = ids.cpu() == inputs.blanks["mask"]
        return torch.where(is_mask.sum(1) == 1, is_mask.int().argmax(1), lengths - 1)

    def check_position(self, inputs: Batch) -> None:
        """Raises TargetError for models with an output per token, except for a single [MASK]."""
        model = self.runner.model
        if self.output_names.generates or getattr(model, "config", None) is None:
            return  # without a config, the last position is the default
        masks = torch.zeros(len(inputs), dtype=torch.long)
        if self.output_names.is_language_model and "mask" in inputs.blanks:
            ids = inputs.tensors[inputs.fields[-1]].cpu()
            masks = (ids == inputs.blanks["mask"]).sum(1)
        wrong = masks[masks != 1]
        if len(wrong):
            count = f" and the text has {int(wrong[0])} masks" if int(wrong[0]) > 1 else ""
            raise TargetError(
                f"{self.runner.name} has an output for every token{count}: pass the "
                "position to explain (0 is the first token, −1 the last)."
            )

    def erased(self, item: Encoded, present: Present, replacement: Replacement) -> list[TextForm]:
        number = self._blank_id("unk" if replacement is None else replacement)
        typed = gets_types(self.runner, item)
        types = np.array(item.types, dtype=np.int64) if typed else None
        ids = np.where(present, np.array(item.ids, dtype=np.int64), number)
        return [(row, types) for row in ids]

    def note_on_erasing(self, replacement: Replacement) -> str | None:
        if replacement not in (None, "unk") or not self._unknown_ends_a_text:
            return None
        token = getattr(self.tokenizer, "unk_token", None)
        return (
            f"erased tokens become {token!r}, which also ends a text for this tokenizer, so the "
            'model may read the rest as a new text; choose another replacement, such as "pad"'
        )

    def _blank_id(self, token: str | int) -> int:
        if token not in self._blanks:
            self._blanks[token] = self.batch([Encoded([0], (), None)]).token_id(token)
        return self._blanks[token]

    def key(self, form: TextForm) -> bytes:
        ids, types = form
        return ids.tobytes() + (b"" if types is None else types.tobytes())

    def length(self, form: TextForm) -> int:
        return len(form[0])

    def batch_shape(self, form: TextForm) -> Hashable:
        return super().batch_shape(form), form[1] is None

    def collate(self, forms: Sequence[TextForm]) -> dict[str, Tensor]:
        if len({len(ids) for ids, _ in forms}) > 1:
            rows = [
                Encoded(ids.tolist(), (), None, None if types is None else types.tolist())
                for ids, types in forms
            ]
            return dict(self.batch(rows).tensors)
        stacked = {"input_ids": np.stack([ids for ids, _ in forms])}
        types = [types for _, types in forms if types is not None]
        if types:  # all or none: see `batch_shape`
            stacked["token_type_ids"] = np.stack(types)
        tensors = {n: torch.from_numpy(rows).to(self.runner.device) for n, rows in stacked.items()}
        if takes_mask(self.runner):
            tensors["attention_mask"] = torch.ones_like(tensors["input_ids"])
        return tensors


def _is_words(source: Any) -> bool:
    """Whether a list holds texts where token ids are expected."""
    texts = isinstance(source, (list, tuple)) and all(isinstance(part, str) for part in source)
    return texts and bool(source)
