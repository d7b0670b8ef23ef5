"""The explainer: a model, what reads its inputs, and every method by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from wherefrom.errors import InputError, ModelError, TargetError, WherefromError
from wherefrom.explanation import Explanation, Ledger, Line, TargetInfo
from wherefrom.inputs.graph import Graph
from wherefrom.inputs.graph_reader import GraphReader
from wherefrom.inputs.image import ImageReader, Picture, Units, beside_texts
from wherefrom.inputs.pictures import is_image
from wherefrom.inputs.reader import Reader
from wherefrom.inputs.rows import RowsReader
from wherefrom.inputs.text import Encoded
from wherefrom.inputs.text_reader import TextReader
from wherefrom.methods import METHODS, Method, Scores
from wherefrom.methods import method as find_method
from wherefrom.methods.intercept import run
from wherefrom.naming import Asked, Naming
from wherefrom.subject import Forward, Inputs, Subject
from wherefrom.target import Target


class Explainer:
    """Explains the predictions of one model.

    `model` is a Hugging Face model, a pipeline, or any `nn.Module`; then `forward(model, inputs)`
    may say how to run it on the dict of tensors `inputs` (`input_ids` and `attention_mask`,
    `pixel_values` for images, or `x` for a float tensor), and must return its logits.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        processor: Any = None,
        forward: Forward | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) and hasattr(model, "model"):  # a pipeline
            tokenizer = tokenizer or getattr(model, "tokenizer", None)
            processor = processor or getattr(model, "image_processor", None)
            model = model.model
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"a {type(model).__name__} is no model: give a torch module, a Hugging Face "
                "model or pipeline, or a path or id to wherefrom.load(…)."
            )
        # a processor of texts and images holds one of each
        self.tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        self.processor = getattr(processor, "image_processor", processor)
        self.subject = Subject(model, forward)
        given = None if labels is None else tuple(labels)
        self.naming = Naming(self.subject, self.tokenizer, given)
        self._readers: dict[Any, Reader[Any, Any]] = {}
        self._named: dict[tuple[str, ...], Explainer] = {}

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
        units: Units | None = None,
        batch_size: int | None = None,
        truncate: bool = False,
        **settings: Any,
    ) -> Explanation | list[Explanation]:
        """Explains one input, or a list of them.

        An input is a text, its token ids, or what `encode` made of a text; an image; a graph; rows
        of numbers.

        `target`: a class by id or label, a next token by id or text; the most likely by default.
        `against`: explain the difference to this one. `position`: the place whose next token is
        asked about (language models). `prefix`: what the decoder has written so far. `units`: of
        an image, "patches", "pixels", or the size of square cells. Further settings go to the
        method.
        """
        chosen = find_method(method, **settings)
        if self._lacks_texts(inputs):
            asked = [name for name in (*_flat(target), *_flat(against)) if isinstance(name, str)]
            options: dict[str, Any] = {"target": target, "against": against, "units": units}
            options["batch_size"] = batch_size
            named: Any = self.with_text_classes(asked)
            answer: Explanation | list[Explanation] = named(inputs, chosen, **options)
            return answer
        # tensors made under the caller's inference mode could carry no gradient
        with torch.inference_mode(False):
            reader = self._reading(inputs, prefix, units)
            given, single = reader.listed(inputs)
            items = reader.read_all(given, truncate)
            results: list[Explanation | None] = [None] * len(items)
            for chunk in reader.chunks(items, batch_size or 16):
                group = reader.batch([items[i] for i in chunk])
                wanted = Target(
                    self._indices(_each(target, chunk, len(items))),
                    self._indices(_each(against, chunk, len(items))),
                    reader.positions(group, position),
                )
                explained = self._explain(reader.subject, group, chosen, wanted)
                for i, one in zip(chunk, explained, strict=True):
                    if position is not None and one.target.position is None:
                        raise TargetError("position= is for models with an output at every place.")
                    results[i] = one
            done = [one for one in results if one is not None]
            return done[0] if single else done

    def compare(
        self,
        inputs: Any,
        methods: Iterable[str | Method] | None = None,
        *,
        starting: Callable[[str], None] | None = None,
        **options: Any,
    ) -> list[Explanation]:
        """One input by many methods; those that this model has no use for are left out.

        `starting` hears the name of each method before it is run.
        """
        found: list[Explanation] = []
        failed: dict[str, WherefromError] = {}
        for each in methods or METHODS:
            if starting is not None:
                starting(find_method(each).name)
            try:
                found.append(self(inputs, each, **options))
            except ModelError as error:
                failed[str(each)] = error
        if not found and failed:
            raise next(iter(failed.values()))
        return found

    def prepare(self, given: Any, truncate: bool = False) -> tuple[Inputs, Target]:
        """One input as the methods see it, a batch of one, and its most likely answer."""
        reader = self.reader(given)
        inputs = reader.batch([reader.read(given, truncate)])
        target = Target(position=reader.positions(inputs, None))
        return inputs, target.resolved(run(reader.subject, inputs))

    def labels(self) -> list[str]:
        """The names of the classes, where the model has any."""
        return self.naming.labels

    def encode(self, texts: Sequence[str], truncate: bool = False) -> list[Encoded | InputError]:
        """Each text as tokens, or the reason why it cannot be one of this model's inputs."""
        return self.reader("").read_each(texts, truncate)

    def index_of(self, label: str | int) -> int:
        """The number of a class, by its label or number."""
        return self.naming.index(label)

    def with_text_classes(self, texts: Sequence[str]) -> Explainer:
        """The same model with these texts for classes, of those that hold images against texts."""
        names = tuple(dict.fromkeys(texts))
        if not names:
            raise self._no_texts()
        if names not in self._named:  # its patches are found once
            self._named[names] = Explainer(
                self.subject.model, self.tokenizer, processor=self.processor, labels=names
            )
        return self._named[names]

    def _no_texts(self) -> TargetError:
        return TargetError(
            f"{self.subject.name} holds images against texts: say which, as in "
            'target="a photo of a cat", or give Explainer(…, labels=[…]).'
        )

    @property
    def _holds_images_against_texts(self) -> bool:
        subject = self.subject
        return subject.forward is None and subject.takes("pixel_values", "input_ids")

    def _lacks_texts(self, given: Any) -> bool:
        named = self.naming.given is not None
        return not named and self._holds_images_against_texts and self._kind(given) == "image"

    # Reading what was given.

    def reader(self, given: Any, units: Units | None = None) -> Reader[Any, Any]:
        """What reads inputs such as this one: texts, images, or rows of numbers."""
        kind = self._kind(given)
        if units is not None and kind != "image":
            raise InputError("units= is for images.")
        key = (kind, repr(units))
        if key not in self._readers:
            self._readers[key] = self._new_reader(kind, "patches" if units is None else units)
        return self._readers[key]

    def _kind(self, given: Any) -> str:
        subject = self.subject
        graphs_of = getattr(getattr(subject.model, "config", None), "reads", None)
        first = given[0] if isinstance(given, (list, tuple)) and given else given
        if isinstance(first, Graph) or graphs_of is not None:
            return "graph"
        floats = isinstance(first, Tensor) and first.is_floating_point()
        sees = self.processor is not None or subject.takes("pixel_values")
        reads = self.tokenizer is not None or subject.takes("input_ids")
        pictured = isinstance(first, Picture) or is_image(first)
        if sees and (not reads or pictured or (floats and first.ndim > 2)):
            return "image"
        if floats and first.ndim == 4 - isinstance(given, (list, tuple)) and not reads:
            return "image"
        if not floats and not sees and is_image(first) and not isinstance(first, str):
            raise InputError(f"{subject.name} reads texts; a {type(first).__name__} is none.")
        if not sees and isinstance(first, str) and is_image(first) and Path(first).is_file():
            raise InputError(f"{subject.name} reads texts, and {first} is an image.")
        return "rows" if floats else "text"

    def _new_reader(self, kind: str, units: Units) -> Reader[Any, Any]:
        subject = self.subject
        if kind == "graph":
            return GraphReader(subject)
        if kind == "text":
            return TextReader(subject, self.tokenizer, self.naming)
        name = "pixel_values" if kind == "image" else "x"
        if kind == "image" and self._holds_images_against_texts:
            if self.naming.given is None:
                raise self._no_texts()
            subject = Subject(subject.model, beside_texts(self.tokenizer, self.naming.given))
        if subject.forward is None and not subject.takes(name):
            subject = Subject(subject.model, lambda model, tensors: model(tensors[name]))
        if kind == "rows":
            return RowsReader(subject)
        return ImageReader(subject, self.processor, units)

    def _reading(self, given: Any, prefix: str | None, units: Units | None) -> Reader[Any, Any]:
        reader = self.reader(given, units)
        if isinstance(reader, TextReader):
            return reader.prefixed(prefix)
        if prefix is not None:
            raise InputError("prefix= is for models with a decoder that writes text.")
        return reader

    def _indices(self, asked: list[Asked]) -> Tensor | None:
        if all(one is None for one in asked):
            return None
        if any(one is None for one in asked):
            raise TargetError("give a target for every input, or for none.")
        return torch.tensor([self.naming.index(one) for one in asked], device=self.subject.device)

    # Explaining.

    def _explain(
        self, subject: Subject, inputs: Inputs, chosen: Method, target: Target
    ) -> list[Explanation]:
        scores = chosen(subject, inputs, target)
        logits = scores.logits
        if logits is None:
            logits = run(subject, inputs)
        settled = target.resolved(logits)
        row = settled.row(logits.detach()).cpu()
        outputs = settled(logits.detach()).cpu().double()
        chances = row.double().softmax(-1) if row.shape[1] > 1 else None
        places = settled.position if logits.ndim == 3 else None
        told = replace(settled, position=places)
        return list(self._results(inputs, scores, told, outputs, chances, chosen))

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
                scene=inputs.scenes[i] if inputs.scenes else None,
                **about,
            )


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


def _flat(asked: Any) -> list[Any]:
    return list(asked) if isinstance(asked, (list, tuple)) else [asked]


def _floats(values: Tensor) -> Any:
    return values.detach().cpu().float().numpy()


@cache  # reading them takes longer than explaining a sentence
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("wherefrom", "torch", "transformers")}
