"""Reads texts and token ids, and pads them where the model lets itself be padded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wherefrom.errors import InputError
from wherefrom.explanation import Unit
from wherefrom.inputs.reader import Present, Reader, placed
from wherefrom.inputs.text import (
    Encoded,
    batch,
    can_pad,
    encode_each,
    fitted,
    from_ids,
    has_padding,
    like_lengths,
    longest,
    vocabulary,
)
from wherefrom.naming import Naming
from wherefrom.subject import Inputs, Subject
from wherefrom.target import Target

Ids = NDArray[np.int64]


@dataclass
class TextReader(Reader[Encoded, Ids]):
    """Reads texts by the tokenizer, token ids as they are.

    `opening` is what a decoder has written so far.
    """

    subject: Subject
    tokenizer: Any
    naming: Naming
    opening: Encoded | None = None
    _pads: bool | None = field(default=None, repr=False)
    _blanks: dict[str | int, int] = field(default_factory=dict, repr=False)

    @property
    def pads(self) -> bool:  # type: ignore[override]
        """Whether texts of several lengths may share a batch, as far as was tried."""
        return self._pads is not False and can_pad(self.subject)

    @property
    def alone(self) -> bool:  # type: ignore[override]
        """A classifier without a padding id takes no batch."""
        return not has_padding(self.subject)

    def __post_init__(self) -> None:
        if self.opening is None and self._decodes:
            self.opening = self._opened(None)

    @property
    def _decodes(self) -> bool:
        config = getattr(self.subject.model, "config", None)
        return bool(getattr(config, "is_encoder_decoder", False)) and self.naming.writes

    def prefixed(self, prefix: str | None) -> TextReader:
        """The same with something already written by the decoder."""
        if prefix is None:
            return self
        if not self._decodes:
            raise InputError("prefix= is for models with a decoder that writes text.")
        return replace(self, opening=self._opened(prefix))

    def _opened(self, prefix: str | None) -> Encoded:
        config = getattr(self.subject.model, "config", None)
        first = getattr(config, "decoder_start_token_id", None)
        opening = from_ids(self.tokenizer, [0 if first is None else first])
        if prefix is not None:
            if self.tokenizer is None:
                raise InputError("a prefix needs a tokenizer to be read.")
            written = self.tokenizer(prefix, add_special_tokens=False)["input_ids"]
            opening = from_ids(self.tokenizer, [*opening.ids, *written])
        units = tuple(Unit(u.text, special=u.special, field="decoder") for u in opening.units)
        return Encoded(opening.ids, units, None)

    def listed(self, given: Any) -> tuple[list[Any], bool]:
        if isinstance(given, (str, Encoded)):
            return [given], True
        if isinstance(given, (Tensor, np.ndarray)):
            if given.ndim not in (1, 2) or 0 in given.shape:
                raise InputError(
                    f"token ids of shape {tuple(given.shape)}: give (tokens) or (batch, tokens)."
                )
            return (given.tolist(), False) if given.ndim == 2 else ([given.tolist()], True)
        if isinstance(given, Mapping):
            raise InputError(
                f"a {type(given).__name__} of {', '.join(map(str, given))} cannot be explained: "
                'give a text, or the token ids themselves (inputs["input_ids"]).'
            )
        if not isinstance(given, Iterable) or isinstance(given, (bytes, bytearray)):
            raise InputError(
                f"a {type(given).__name__} cannot be explained: give a text or token ids."
            )
        items = list(given)
        if not items:
            raise InputError("the list of inputs is empty: there is nothing to explain.")
        if all(isinstance(item, (int, np.integer)) for item in items):
            return [items], True
        if not all(isinstance(item, (Encoded, Iterable)) for item in items):
            kinds = ", ".join(sorted({type(item).__name__ for item in items}))
            raise InputError(
                f"a list of {kinds} cannot be explained: give texts or lists of token ids."
            )
        return items, False

    def read(self, given: Any, truncate: bool = False) -> Encoded:
        return self.read_all([given], truncate)[0]

    def read_all(self, given: Sequence[Any], truncate: bool = False) -> list[Encoded]:
        found = []
        for row in self._rows(given, truncate):
            if isinstance(row, InputError):
                raise row
            found.append(row)
        return found

    def read_each(self, given: Sequence[Any], truncate: bool = False) -> list[Encoded | InputError]:
        return list(self._rows(given, truncate))

    def _rows(self, given: Sequence[Any], truncate: bool) -> Iterator[Encoded | InputError]:
        """Texts by one call of the tokenizer, ids as they are, what is encoded as it is."""
        limit, words = longest(self.subject, self.tokenizer), vocabulary(self.subject)
        texts = [one for one in given if isinstance(one, str)]
        encoded = iter(encode_each(self.tokenizer, texts))
        for one in given:
            try:
                row: Encoded | InputError
                if isinstance(one, Encoded):
                    row = one
                elif isinstance(one, str):
                    row = next(encoded)
                else:
                    row = from_ids(self.tokenizer, one, words)
                yield fitted(row, limit, truncate) if isinstance(row, Encoded) else row
            except InputError as error:
                yield error

    def batch(self, items: Sequence[Encoded]) -> Inputs:
        return batch(self.subject, self.tokenizer, items, self.opening)

    def size(self, item: Encoded) -> int:
        return len(item.ids)

    def units_of(self, item: Encoded) -> tuple[Unit, ...]:
        return item.units

    def chunks(self, items: Sequence[Encoded], size: int) -> list[list[int]]:
        """Texts of like length together; of one length where the model cannot be padded."""
        if self.alone:
            return [[i] for i in range(len(items))]
        lengths = [len(item.ids) for item in items]
        short, long = (items[lengths.index(pick(lengths))] for pick in (min, max))
        return like_lengths(lengths, size, same=not self._can_pad(short, long))

    def _can_pad(self, short: Encoded, long: Encoded) -> bool:
        """Whether a text padded to another's length is the same to the model: tried, once."""
        if self._pads is None and len(short.ids) < len(long.ids):
            self._pads = can_pad(self.subject) and self._same_padded(short, long)
        return bool(self._pads)

    def _same_padded(self, short: Encoded, long: Encoded) -> bool:
        alone, padded = self.batch([short]), self.batch([short, long]).take([0])
        one, other = (
            Target(position=self.positions(each, None)).row(self._logits(each))
            for each in (alone, padded)
        )
        return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())))

    def _logits(self, inputs: Inputs) -> Tensor:
        with self.subject.evaluating(), torch.no_grad():
            return self.subject.run(inputs.model_tensors())

    def positions(self, inputs: Inputs, position: int | None) -> Tensor:
        """By default that of the one [MASK] in a model that fills such holes, else the last."""
        ids = inputs.tensors[inputs.fields[-1]]
        lengths = inputs.mask[:, -ids.shape[1] :].sum(1)
        if position is not None:
            return placed(lengths, position)
        if self.naming.writes or "mask" not in inputs.blanks:
            return lengths - 1
        holes = ids.cpu() == inputs.blanks["mask"]
        return torch.where(holes.sum(1) == 1, holes.int().argmax(1), lengths - 1)

    def erased(self, item: Encoded, present: Present, blank: str | int | None) -> list[Ids]:
        number = self._blank("unk" if blank is None else blank)
        return list(np.where(present, np.array(item.ids, dtype=np.int64), number))

    def _blank(self, token: str | int) -> int:
        if token not in self._blanks:
            self._blanks[token] = self.batch([Encoded([0], (), None)]).token_id(token)
        return self._blanks[token]

    def key(self, form: Ids) -> bytes:
        return form.tobytes()

    def length(self, form: Ids) -> int:
        return len(form)

    def collate(self, forms: Sequence[Ids]) -> dict[str, Tensor]:
        if len({len(form) for form in forms}) > 1:
            rows = [Encoded(form.tolist(), (), None) for form in forms]
            return dict(self.batch(rows).tensors)
        ids = torch.from_numpy(np.stack(forms)).to(self.subject.device)
        made = {"input_ids": ids}
        if self.subject.forward is not None or self.subject.takes("attention_mask"):
            made["attention_mask"] = torch.ones_like(ids)
        return made
