"""The explainer: a model, its tokenizer, and every method by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from whence.errors import InputError, ModelError, TargetError, WhenceError
from whence.explanation import Explanation, Ledger, Line, TargetInfo, Unit
from whence.inputs.text import (
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
from whence.methods import METHODS, Method, Scores
from whence.methods import method as find_method
from whence.methods.passes import run
from whence.naming import Asked, Naming
from whence.subject import Forward, Inputs, Subject
from whence.target import Target

Given = str | Encoded | Sequence[int]


class Explainer:
    """Explains the predictions of one model.

    `model` is a Hugging Face model, a pipeline, or any `nn.Module`; then `forward(model, inputs)`
    may say how to run it on the dict of tensors `inputs` (`input_ids` and `attention_mask`, or
    `x` for a float tensor), and must return its logits.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        forward: Forward | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) and hasattr(model, "model"):  # a pipeline
            tokenizer = tokenizer or getattr(model, "tokenizer", None)
            model = model.model
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"a {type(model).__name__} is no model: give a torch module, a Hugging Face "
                "model or pipeline, or a path or id to whence.load(…)."
            )
        self.subject = Subject(model, forward)
        self.tokenizer = tokenizer
        self.naming = Naming(self.subject, tokenizer, None if labels is None else tuple(labels))
        self._pads: bool | None = None

    def __repr__(self) -> str:
        return f"Explainer({self.subject.name})"

    @overload
    def __call__(self, inputs: str, method: str | Method = ..., **options: Any) -> Explanation: ...
    @overload
    def __call__(
        self, inputs: Any, method: str | Method = ..., **options: Any
    ) -> Explanation | list[Explanation]: ...

    def __call__(
        self,
        inputs: Any,
        method: str | Method = "lrp",
        target: Asked | Sequence[Asked] = None,
        against: Asked | Sequence[Asked] = None,
        *,
        position: int | None = None,
        prefix: str | None = None,
        batch_size: int | None = None,
        truncate: bool = False,
        **settings: Any,
    ) -> Explanation | list[Explanation]:
        """Explains one input, or a list of them.

        An input is a text, its token ids, or what `encode` made of a text.

        `target`: a class by id or label, a next token by id or text; the most likely by default.
        `against`: explain the difference to this one. `position`: the place whose next token is
        asked about (language models). `prefix`: what the decoder has written so far. Further
        settings go to the method.
        """
        chosen = find_method(method, **settings)
        # tensors made under the caller's inference mode could carry no gradient
        with torch.inference_mode(False):
            if isinstance(inputs, Tensor) and inputs.is_floating_point():
                return self._explain_tensor(inputs, chosen, target, against, position)
            single, rows = self._read(inputs, truncate)
            opening = self._prefix(prefix)
            results: list[Explanation | None] = [None] * len(rows)
            for chunk in self._chunks(rows, batch_size or 16, opening):
                group = batch(self.subject, self.tokenizer, [rows[i] for i in chunk], opening)
                wanted = self._target(
                    group,
                    _each(target, chunk, len(rows)),
                    _each(against, chunk, len(rows)),
                    position,
                )
                for i, found in zip(chunk, self._explain(group, chosen, wanted), strict=True):
                    if position is not None and found.target.position is None:
                        raise TargetError("position= is for models with an output at every place.")
                    results[i] = found
            done = [found for found in results if found is not None]
            return done[0] if single else done

    def compare(
        self, inputs: Any, methods: Iterable[str | Method] | None = None, **options: Any
    ) -> list[Explanation]:
        """One input by many methods; those that this model has no use for are left out."""
        found: list[Explanation] = []
        failed: dict[str, WhenceError] = {}
        for each in methods or METHODS:
            try:
                found.append(self(inputs, each, **options))
            except ModelError as error:
                failed[str(each)] = error
        if not found and failed:
            raise next(iter(failed.values()))
        return found

    def labels(self) -> list[str]:
        """The names of the classes, where the model has any."""
        return self.naming.labels

    def encode(self, texts: Sequence[str], truncate: bool = False) -> list[Encoded | InputError]:
        """Each text as tokens, or the reason why it cannot be one of this model's inputs."""
        limit = longest(self.subject, self.tokenizer)
        found = encode_each(self.tokenizer, texts)
        for i, row in enumerate(found):
            try:
                found[i] = fitted(row, limit, truncate) if isinstance(row, Encoded) else row
            except InputError as error:
                found[i] = error
        return found

    def index_of(self, label: str | int) -> int:
        """The number of a class, by its label or number."""
        return self.naming.index(label)

    # Reading what was given.

    def _read(self, inputs: Any, truncate: bool) -> tuple[bool, list[Encoded]]:
        given, single = _as_list(inputs)
        limit, words = longest(self.subject, self.tokenizer), vocabulary(self.subject)
        texts = [item for item in given if isinstance(item, str)]
        encoded = iter(encode_each(self.tokenizer, texts))
        rows: list[Encoded] = []
        for item in given:
            row: Encoded | InputError
            if isinstance(item, Encoded):
                row = item
            elif isinstance(item, str):
                row = next(encoded)
            else:
                row = from_ids(self.tokenizer, item, words)
            if isinstance(row, InputError):
                raise row
            rows.append(row)
        return single, [fitted(row, limit, truncate) for row in rows]

    def _prefix(self, prefix: str | None) -> Encoded | None:
        config = getattr(self.subject.model, "config", None)
        if not (getattr(config, "is_encoder_decoder", False) and self.naming.writes):
            if prefix is not None:
                raise InputError("prefix= is for models with a decoder that writes text.")
            return None
        first = getattr(config, "decoder_start_token_id", None)
        opening = from_ids(self.tokenizer, [0 if first is None else first])
        if prefix is not None:
            if self.tokenizer is None:
                raise InputError("a prefix needs a tokenizer to be read.")
            written = self.tokenizer(prefix, add_special_tokens=False)["input_ids"]
            opening = from_ids(self.tokenizer, [*opening.ids, *written])
        units = tuple(Unit(u.text, special=u.special, field="decoder") for u in opening.units)
        return Encoded(opening.ids, units, None)

    def _chunks(self, rows: list[Encoded], size: int, opening: Encoded | None) -> list[list[int]]:
        """Rows of like length together; of one length where the model cannot be padded."""
        lengths = [len(row.ids) for row in rows]
        shortest = rows[lengths.index(min(lengths))]
        pads = len(rows) == 1 or self._can_pad(shortest, rows[lengths.index(max(lengths))], opening)
        chunks = like_lengths(lengths, size, same=not pads)
        return chunks if has_padding(self.subject) else [[i] for chunk in chunks for i in chunk]

    def _can_pad(self, short: Encoded, long: Encoded, opening: Encoded | None) -> bool:
        """Whether a text padded to another's length is the same to the model: tried, once."""
        if self._pads is None and len(short.ids) < len(long.ids):
            self._pads = can_pad(self.subject) and self._same_padded(short, long, opening)
        return bool(self._pads)

    def _same_padded(self, short: Encoded, long: Encoded, opening: Encoded | None) -> bool:
        alone = batch(self.subject, self.tokenizer, [short], opening)
        padded = batch(self.subject, self.tokenizer, [short, long], opening).take([0])
        at = [Target(position=self._positions(each, None)) for each in (alone, padded)]
        one = at[0].row(run(self.subject, alone))
        other = at[1].row(run(self.subject, padded))
        return bool(torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(one.abs().max())))

    # Targets.

    def _target(
        self, inputs: Inputs, target: list[Asked], against: list[Asked], position: int | None
    ) -> Target:
        return Target(
            self._indices(target),
            self._indices(against),
            self._positions(inputs, position),
        )

    def _indices(self, asked: list[Asked]) -> Tensor | None:
        if all(one is None for one in asked):
            return None
        if any(one is None for one in asked):
            raise TargetError("give a target for every input, or for none.")
        return torch.tensor([self.naming.index(one) for one in asked], device=self.subject.device)

    def _positions(self, inputs: Inputs, position: int | None) -> Tensor:
        """The row of the logits that is asked about.

        By default that of the one [MASK] in a model that fills such holes, else the last.
        """
        ids = inputs.tensors[inputs.fields[-1]]
        lengths = inputs.mask[:, -ids.shape[1] :].sum(1)
        if position is None:
            holes = ids.cpu() == inputs.blanks.get("mask", -1)
            one = not self.naming.writes and bool((holes.sum(1) == 1).all())
            return holes.int().argmax(1) if one and holes.ndim == 2 else lengths - 1
        shortest = int(lengths.min())
        if not -shortest <= position < shortest:
            raise TargetError(f"there is no position {position}: the input has {shortest} tokens.")
        return lengths + position if position < 0 else torch.full_like(lengths, position)

    # Explaining.

    def _explain_tensor(
        self, x: Tensor, chosen: Method, target: Any, against: Any, position: int | None
    ) -> Explanation | list[Explanation]:
        if x.ndim not in (2, 3):
            raise InputError(
                f"a float tensor of shape {tuple(x.shape)} has no units: give (units, features) "
                "or (batch, units, features)."
            )
        rows = x.unsqueeze(0) if x.ndim == 2 else x
        subject = self.subject
        if subject.forward is None:
            subject = Subject(subject.model, lambda model, tensors: model(tensors["x"]))
        inputs = Inputs(
            tensors={"x": rows},
            fields=("x",),
            units=(tuple(Unit(str(i)) for i in range(rows.shape[1])),) * len(rows),
            mask=torch.ones(rows.shape[:2], dtype=torch.bool),
            texts=(None,) * len(rows),
        )
        every = list(range(len(rows)))
        wanted = self._target(
            inputs, _each(target, every, len(rows)), _each(against, every, len(rows)), None
        )
        if position is not None:
            wanted = Target(wanted.index, wanted.against, self._positions(inputs, position))
        found = self._explain(inputs, chosen, wanted, subject)
        return found[0] if x.ndim == 2 else found

    def _explain(
        self, inputs: Inputs, chosen: Method, target: Target, subject: Subject | None = None
    ) -> list[Explanation]:
        subject = subject or self.subject
        scores = chosen(subject, inputs, target)
        logits = scores.logits
        if logits is None:
            logits = run(subject, inputs)
        settled = target.settled(logits)
        row = settled.row(logits.detach()).cpu()
        outputs = settled(logits.detach()).cpu().double()
        chances = row.double().softmax(-1) if row.shape[1] > 1 else None
        places = settled.position if logits.ndim == 3 else None
        return list(
            self._results(
                inputs, scores, replace(settled, position=places), outputs, chances, chosen
            )
        )

    def _results(
        self,
        inputs: Inputs,
        scores: Scores,
        target: Target,
        outputs: Tensor,
        chances: Tensor | None,
        chosen: Method,
    ) -> Iterator[Explanation]:
        # brought over once for the whole batch: for a small model this is not for nothing
        name = cache(self.naming.name)
        kept = inputs.mask.cpu().numpy()
        values = _floats(scores.values)
        parts = {part: _floats(held) for part, held in scores.parts.items()}
        lines = [(*key, held.tolist()) for key, held in (scores.lines or {}).items()]
        asked = [
            [None] * len(inputs) if each is None else each.tolist()
            for each in (target.index, target.against, target.position)
        ]
        about: dict[str, Any] = {
            "method": chosen.name,
            "settings": chosen.settings(),
            "model": self.subject.name,
            "versions": dict(_versions()),
        }
        for i, (index, against, position) in enumerate(zip(*asked, strict=True)):
            output = float(outputs[i])
            ledger = Ledger(tuple(Line(text, kind, held[i]) for text, kind, held in lines), output)
            yield Explanation(
                units=inputs.units[i],
                scores=values[i][kept[i]],
                target=TargetInfo(
                    index,
                    name(index),
                    against,
                    None if against is None else name(against),
                    position,
                ),
                output=output,
                probability=None if chances is None else float(chances[i, index]),
                ledger=None if scores.lines is None else ledger,
                parts={part: held[i][kept[i]] for part, held in parts.items()},
                text=inputs.texts[i],
                **about,
            )


def _as_list(inputs: Any) -> tuple[list[Given], bool]:
    """What was given as a list of inputs, and whether it was a single one."""
    if isinstance(inputs, str):
        return [inputs], True
    if isinstance(inputs, (Tensor, np.ndarray)):
        if inputs.ndim not in (1, 2) or 0 in inputs.shape:
            raise InputError(
                f"token ids of shape {tuple(inputs.shape)}: give (tokens) or (batch, tokens)."
            )
        return (inputs.tolist(), False) if inputs.ndim == 2 else ([inputs.tolist()], True)
    if isinstance(inputs, Mapping):
        raise InputError(
            f"a {type(inputs).__name__} of {', '.join(map(str, inputs))} cannot be explained: "
            'give a text, or the token ids themselves (inputs["input_ids"]).'
        )
    if isinstance(inputs, Encoded):
        return [inputs], True
    if not isinstance(inputs, Iterable) or isinstance(inputs, (bytes, bytearray)):
        raise InputError(
            f"a {type(inputs).__name__} cannot be explained: give a text or token ids."
        )
    given = list(inputs)
    if not given:
        raise InputError("the list of inputs is empty: there is nothing to explain.")
    if all(isinstance(item, (int, np.integer)) for item in given):
        return [given], True
    if not all(isinstance(item, (Encoded, Iterable)) for item in given):
        kinds = ", ".join(sorted({type(item).__name__ for item in given}))
        raise InputError(
            f"a list of {kinds} cannot be explained: give texts or lists of token ids."
        )
    return given, False


def _each(asked: Any, chunk: list[int], count: int) -> list[Asked]:
    """The target of each sample of a chunk, from one for all or one for each."""
    if isinstance(asked, (Tensor, np.ndarray)):
        asked = asked.tolist()
    if not isinstance(asked, (list, tuple)):
        return [asked] * len(chunk)
    listed = list(asked)
    if len(listed) != count:
        raise TargetError(f"there are {len(listed)} targets for {count} inputs.")
    return [listed[i] for i in chunk]


def _floats(values: Tensor) -> Any:
    return values.detach().cpu().float().numpy()


@cache  # reading them takes longer than explaining a sentence
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("whence", "torch", "transformers")}
