"""The explainer: a model, what reads its inputs, and every method by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from wherefrom.answers.answer import Answer
from wherefrom.answers.ask import answer_generated, answer_given, is_several, no_images, one_of_each
from wherefrom.answers.defaults import Of
from wherefrom.answers.prompt import PromptLike, Prompts
from wherefrom.assemble import explain_batch, library_versions
from wherefrom.comparison import Comparison
from wherefrom.errors import InputError, ModelError, TargetError
from wherefrom.explanation import Explanation
from wherefrom.inputs.graph import Graph
from wherefrom.inputs.image import Picture, Units
from wherefrom.inputs.readers import READERS, Reader, ReaderContext, find_reader
from wherefrom.inputs.records import as_inputs, paired
from wherefrom.inputs.sight import Sight
from wherefrom.inputs.text import Encoded
from wherefrom.inputs.text_pair import TextPair
from wherefrom.inputs.text_reader import TextReader
from wherefrom.memory import parse_memory
from wherefrom.methods import METHODS, Method
from wherefrom.methods import method as find_method
from wherefrom.methods.intercept import run
from wherefrom.naming import Naming, TargetSpec
from wherefrom.progress import shown
from wherefrom.scope import Scope, restores_state
from wherefrom.spans import explain_answer, explain_entity, has_spans
from wherefrom.subject import Forward, Inputs, Subject
from wherefrom.target import Target
from wherefrom.unwrap import unwrap

Single = str | Path | Encoded | TextPair | Graph | Picture
_TEXT_CLASSES = 8  # explainers kept for a model that compares images with texts


class Explainer:
    """Explains the predictions of one model.

    `model` is a Hugging Face model, a pipeline, or any `nn.Module`. For the latter,
    `forward(model, inputs)` can say how to run it: `inputs` is a dict of tensors (`input_ids` and
    `attention_mask`; `pixel_values` for images; `x` for a float tensor), the result its logits.
    A compiled or parallel model is explained by the plain one inside it.
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
            processor = processor or getattr(model, "processor", None)
            processor = processor or getattr(model, "image_processor", None)
            model = model.model
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError(
                f"cannot explain a traced or scripted model ({type(model).__name__}): it runs "
                "outside Python, where its calls cannot be seen. Pass the module that it was "
                "made from."
            )
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"cannot explain a {type(model).__name__}: pass a torch module, a Hugging Face "
                "model or pipeline, or load one by path or id with wherefrom.load(…)."
            )
        self.subject = Subject(unwrap(model), forward)
        self._refuse_offloaded()
        # a processor of texts and images has one of each
        self._tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        self._set_processor(processor)
        self._labels = None if labels is None else tuple(labels)
        self._readers: dict[type, Reader[Any, Any]] = {}
        self._by_class_texts: dict[tuple[str, ...], Explainer] = {}  # the last used last

    def _refuse_offloaded(self) -> None:
        """Weights that come from elsewhere for each pass are not there for the backward pass."""
        weights = self.subject.model.named_parameters()
        name = next((name for name, weight in weights if weight.device.type == "meta"), None)
        if name is not None:
            raise ModelError(
                f"the weights of {self.subject.name} are not all in memory ({name} is offloaded, "
                "or was never loaded). Load the model whole: a device_map without cpu or disk "
                'offloading, such as device_map="cpu", or fewer bits a weight.'
            )

    def __repr__(self) -> str:
        return f"Explainer({self.subject.name})"

    @property
    def tokenizer(self) -> Any:
        """What texts are read with; a new one takes effect at once."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._forget()

    @property
    def processor(self) -> Any:
        """What images are read with; a new one takes effect at once."""
        return self._processor

    @processor.setter
    def processor(self, processor: Any) -> None:
        self._set_processor(processor)
        self._forget()

    def _set_processor(self, processor: Any) -> None:
        both = hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")
        self._sight = Sight(self.subject, processor) if both else None
        self._processor = processor.image_processor if both else processor

    def _forget(self) -> None:
        self._readers.clear()
        self._by_class_texts.clear()

    @property
    def _context(self) -> ReaderContext:
        return ReaderContext(
            self.subject, self._tokenizer, self._processor, self._labels, self._sight
        )

    @property
    def naming(self) -> Naming:
        """What the model's outputs are called."""
        return self._context.naming

    @overload
    def __call__(
        self,
        inputs: Single | list[int] | tuple[int, ...],
        method: str | Method = ...,
        target: TargetSpec = ...,
        against: TargetSpec = ...,
        **options: Any,
    ) -> Explanation: ...
    @overload
    def __call__(
        self,
        inputs: Sequence[Single] | Sequence[Sequence[int]] | Sequence[Tensor],
        method: str | Method = ...,
        target: TargetSpec | Sequence[TargetSpec] = ...,
        against: TargetSpec | Sequence[TargetSpec] = ...,
        **options: Any,
    ) -> list[Explanation]: ...
    @overload
    def __call__(
        self,
        inputs: Any,
        method: str | Method = ...,
        target: TargetSpec | Sequence[TargetSpec] = ...,
        against: TargetSpec | Sequence[TargetSpec] = ...,
        **options: Any,
    ) -> Any: ...

    def __call__(
        self,
        inputs: Any,
        method: str | Method = "lrp",
        target: TargetSpec | Sequence[TargetSpec] = None,
        against: TargetSpec | Sequence[TargetSpec] = None,
        *,
        position: int | None = None,
        prefix: str | None = None,
        units: Units | None = None,
        batch_size: int | None = None,
        truncate: bool = False,
        memory: float | str | None = None,
        text_pair: str | Sequence[str] | None = None,
        entity: str | None = None,
        **settings: Any,
    ) -> Explanation | list[Explanation]:
        """Explains one input, or a list of inputs.

        An input is a text, its token ids, or what a tokenizer or `encode` returns; a pair of texts
        (a tuple of two, or `text_pair`); an image; a graph; rows of numbers. A tensor may be one
        input or a batch, which gives a list, as a data frame, a data set or a list of dicts does.

        `target`: a class by index or label, a next token by id or text; by default the most
        likely. `against`: explain the difference to this class or token. `position`: the token
        whose successor is explained (language models), or whose own output is (models with an
        output for every token). `entity`: the words whose class is explained (token
        classification; by default the first entity that the model finds). Of a model that answers
        questions, `target` "start" or "end" explains one end of the answer instead of both.
        `prefix`: what the decoder has generated so far. `units` of an image: "patches", "pixels",
        or the side of square cells. `truncate`: cut what is too long. `memory`: bytes that a pass
        may use, or a text such as "4GB"; by default what is free on the device. All other settings
        go to the method.
        """
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, got {batch_size}.")
        resolved, limit = find_method(method, **settings), parse_memory(memory)
        context = self._context
        explainer = self
        inputs = self._plain(inputs) if text_pair is None else paired(inputs, text_pair)
        if find_reader(context, inputs).needs_class_texts(context):
            texts = [spec for spec in (*_flat(target), *_flat(against)) if isinstance(spec, str)]
            explainer = self.with_text_classes(texts)
        options = (position, prefix, units, batch_size, truncate, limit, entity)
        return explainer._explain_all(inputs, resolved, target, against, *options)

    @restores_state
    def _explain_all(
        self,
        inputs: Any,
        method: Method,
        target: TargetSpec | Sequence[TargetSpec],
        against: TargetSpec | Sequence[TargetSpec],
        position: int | None,
        prefix: str | None,
        units: Units | None,
        batch_size: int | None,
        truncate: bool,
        memory: float | None,
        entity: str | None,
    ) -> Explanation | list[Explanation]:
        # tensors made under the caller's inference mode could carry no gradient
        with Scope(inference=False), ExitStack() as stack:
            reader = self.reader(inputs, units).with_options(prefix=prefix)
            sources, is_single = reader.listed(inputs)
            items = reader.read_all(sources, truncate)
            subject = replace(reader.subject, memory=memory)
            of_spans = isinstance(reader, TextReader) and has_spans(subject)
            if entity is not None and not (of_spans and subject.task == "TokenClassification"):
                raise TargetError("entity= is for models that classify every token.")
            explanations: dict[int, Explanation] = {}
            chunks = list(reader.chunks(items, batch_size or 16))
            report = stack.enter_context(shown("explaining", None if len(chunks) > 1 else False))
            for chunk in chunks:
                report(len(explanations), len(items), method.name)
                specs = [_spec_of_each(each, chunk, len(items)) for each in (target, against)]
                if of_spans and (position is None or subject.task == "QuestionAnswering"):
                    for i, index, other in zip(chunk, *specs, strict=True):
                        batch = reader.batch([items[i]])
                        explanations[i] = self._explain_span(
                            subject, batch, method, index, other, position, entity
                        )
                    continue
                batch = reader.batch([items[i] for i in chunk])
                indices, others = map(self._indices, specs)
                self._check_contrast(indices, others)
                batch_target = Target(indices, others, reader.positions(batch, position))
                results = explain_batch(subject, batch, method, batch_target, self.naming)
                predicted = torch.tensor([result.target.index for result in results])
                self._check_contrast(predicted, others)
                per_token = results[0].target.position is not None
                if position is not None and not per_token:
                    raise TargetError("position= is for models with an output for every token.")
                if position is None and per_token:
                    reader.check_position(batch)
                if per_token and not self.naming.generates:
                    results = [_placed(explanation) for explanation in results]
                explanations.update(zip(chunk, results, strict=True))
        if is_single:
            return explanations[0]
        return [explanations[i] for i in range(len(items))]

    @overload
    def answer(
        self,
        prompt: PromptLike,
        answer: str | Sequence[int],
        against: str | Sequence[int] | None = ...,
        method: str | Method = ...,
        of: Of = ...,
        **settings: Any,
    ) -> Answer: ...
    @overload
    def answer(
        self,
        prompt: Prompts,
        answer: Sequence[str] | Sequence[Sequence[int]],
        against: Sequence[str] | Sequence[Sequence[int]] | None = ...,
        method: str | Method = ...,
        of: Of = ...,
        **settings: Any,
    ) -> list[Answer]: ...

    def answer(
        self,
        prompt: Any,
        answer: Any,
        against: Any = None,
        method: str | Method = "lrp",
        of: Of = "contrast",
        *,
        images: Sequence[Any] = (),
        memory: float | str | None = None,
        **settings: Any,
    ) -> Answer | list[Answer]:
        """Explains an answer of a language model: which part of the prompt it comes from.

        `prompt`: a text, chat messages, a `Prompt` of named parts, or token ids. `of` is what of
        each token is explained: "contrast", its logit less the runner-up's; "logit"; "logprob".
        `against`: another answer; the first token at which the two differ is explained. `images`
        are for a model that sees: pictures or paths, in the order of their places in the prompt.
        `memory`: bytes that a pass may use, or a text such as "4GB". All other settings go to the
        method. A list of prompts, with a list of as many answers, gives a list.
        """
        resolved = find_method(method, **settings)
        if is_several(prompt):
            no_images(images)
            answers = one_of_each(prompt, answer, "answers")
            others = [None] * len(prompt)
            if against is not None:
                others = one_of_each(prompt, against, "answers to compare with")
            return [
                self.answer(*each, method=resolved, of=of, memory=memory)
                for each in zip(prompt, answers, others, strict=True)
            ]
        return answer_given(
            self._text_reader(memory),
            prompt,
            answer,
            against,
            resolved,
            of,
            library_versions(),
            images,
        )

    @overload
    def generate(
        self,
        prompt: PromptLike,
        max_new_tokens: int = ...,
        against: str | Sequence[int] | None = ...,
        method: str | Method = ...,
        of: Of = ...,
        **options: Any,
    ) -> Answer: ...
    @overload
    def generate(
        self,
        prompt: Prompts,
        max_new_tokens: int = ...,
        against: Sequence[str] | Sequence[Sequence[int]] | None = ...,
        method: str | Method = ...,
        of: Of = ...,
        **options: Any,
    ) -> list[Answer]: ...

    def generate(
        self,
        prompt: Any,
        max_new_tokens: int = 64,
        against: Any = None,
        method: str | Method = "lrp",
        of: Of = "contrast",
        *,
        seed: int | None = None,
        generation: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        do_sample: bool | None = None,
        tell: Callable[[str], None] | None = None,
        images: Sequence[Any] = (),
        memory: float | str | None = None,
        **settings: Any,
    ) -> Answer | list[Answer]:
        """Lets the model answer a prompt, and explains the answer as `answer` does.

        Greedy, unless `temperature`, `top_p` or `do_sample` ask for sampling, which `seed` makes
        repeatable. `generation` has further options of the model's `generate`. A stop token ends
        the answer and is no part of it. `tell(text)` is called with the answer as it grows.
        A list of prompts gives a list.
        """
        resolved = find_method(method, **settings)
        options = dict(generation or {})
        sampling = {"temperature": temperature, "top_p": top_p, "do_sample": do_sample}
        options |= {key: value for key, value in sampling.items() if value is not None}
        if is_several(prompt):
            no_images(images)
            others = [None] * len(prompt)
            if against is not None:
                others = one_of_each(prompt, against, "answers to compare with")
            return [
                self.generate(
                    single, max_new_tokens, other, resolved, of, seed=seed, generation=options,
                    tell=tell, memory=memory,
                )
                for single, other in zip(prompt, others, strict=True)
            ]  # fmt: skip
        return answer_generated(
            self._text_reader(memory),
            prompt,
            against,
            resolved,
            of,
            library_versions(),
            max_new_tokens,
            seed,
            options,
            tell,
            images,
        )

    def _text_reader(self, memory: float | str | None) -> TextReader:
        reader = self.reader("")
        if not isinstance(reader, TextReader) or not self.naming.is_language_model:
            raise ModelError(
                f"{self.subject.name} is no language model: it gives no answers. Explain its "
                "prediction: explainer(input)."
            )
        subject = replace(reader.subject, memory=parse_memory(memory))
        return replace(reader, subject=subject)

    def compare(
        self,
        inputs: Any,
        methods: Iterable[str | Method] | None = None,
        *,
        starting: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Comparison:
        """Explains one input with several methods, without those that do not apply to the model.

        `starting(name)` is called before each method.
        """
        explanations = Comparison()
        errors: list[ModelError] = []
        chosen = list(methods or METHODS)
        with shown("comparing", None if starting is None else False) as report:
            for position, method in enumerate(chosen):
                name = find_method(method).name
                report(position, len(chosen), name)
                if starting is not None:
                    starting(name)
                try:
                    explanations.append(self(inputs, method, **options))
                except ModelError as error:
                    errors.append(error)
        if errors and not explanations:
            raise errors[0]
        return explanations

    def prepare(self, inputs: Any, truncate: bool = False) -> tuple[Inputs, Target]:
        """One input as the methods see it, a batch of one, and its most likely class."""
        inputs = self._plain(inputs)
        reader = self.reader(inputs)
        if has_spans(reader.subject):
            raise ModelError(
                f"{reader.subject.name} predicts spans of its input: it is explained by "
                "explainer(input) only."
            )
        batch = reader.batch([reader.read(inputs, truncate)])
        target = Target(position=reader.positions(batch, None))
        logits = run(reader.subject, batch)
        if logits.ndim == 3:
            reader.check_position(batch)
        return batch, target.resolved(logits)

    def labels(self) -> list[str]:
        """The labels of the classes; empty if the model has none."""
        return self.naming.labels

    def encode(self, texts: Sequence[str], truncate: bool = False) -> list[Encoded | InputError]:
        """Each text as tokens, or the reason why the model cannot take it."""
        return self.reader("").read_each(texts, truncate)

    def index_of(self, label: str | int) -> int:
        """The index of a class, by its label or index."""
        return self.naming.index(label)

    def with_text_classes(self, texts: Sequence[str]) -> Explainer:
        """For a model that compares images with texts: the same with these texts as classes."""
        names = tuple(dict.fromkeys(texts))
        # kept, since the patches are found once; no texts: the reader says what is missing
        explainer = self._by_class_texts.pop(names, None) or Explainer(
            self.subject.model,
            self._tokenizer,
            processor=self._processor,
            labels=names or None,
        )
        self._by_class_texts[names] = explainer
        if len(self._by_class_texts) > _TEXT_CLASSES:
            del self._by_class_texts[next(iter(self._by_class_texts))]
        return explainer

    def reader(self, inputs: Any, units: Units | None = None) -> Reader[Any, Any]:
        """The reader of inputs such as these: texts, images, graphs, or rows of numbers."""
        context = self._context
        kind = find_reader(context, inputs)
        if kind not in self._readers:
            self._readers[kind] = kind.build(context)
        return self._readers[kind].with_options(units=units)

    def _check_contrast(self, index: Tensor | None, against: Tensor | None) -> None:
        """Refuses the difference of an output to itself, also of the most likely one."""
        if index is None or against is None:
            return
        same = index[index == against.to(index.device)]
        if len(same):
            raise TargetError(
                f'target and against are the same output, "{self.naming.name(int(same[0]))}": '
                "their difference is always 0."
            )

    def _plain(self, inputs: Any) -> Any:
        """Tables as lists of inputs, unless a reader of another package takes them."""
        context = self._context
        others = READERS.extras().values()
        return inputs if any(o.accepts(context, inputs) for o in others) else as_inputs(inputs)

    def _explain_span(
        self,
        subject: Subject,
        inputs: Inputs,
        method: Method,
        target: TargetSpec,
        against: TargetSpec,
        position: int | None,
        entity: str | None,
    ) -> Explanation:
        """An answer in its context, or an entity."""
        if subject.task == "QuestionAnswering":
            return explain_answer(subject, inputs, method, self.naming, target, against, position)
        return explain_entity(subject, inputs, method, self.naming, target, against, entity)

    def _indices(self, specs: list[TargetSpec]) -> Tensor | None:
        if all(spec is None for spec in specs):
            return None
        if any(spec is None for spec in specs):
            raise TargetError("pass a target for every input, or for none.")
        return torch.tensor([self.naming.index(spec) for spec in specs], device=self.subject.device)


def _spec_of_each(specs: Any, chunk: list[int], count: int) -> list[TargetSpec]:
    """The target of each sample of a chunk, from one for all or one for each."""
    if isinstance(specs, (Tensor, np.ndarray)):
        specs = specs.tolist()
    if not isinstance(specs, (list, tuple)):
        return [specs] * len(chunk)
    if len(specs) != count:
        raise TargetError(f"there are {len(specs)} targets for {count} inputs.")
    return [specs[i] for i in chunk]


def _placed(explanation: Explanation) -> Explanation:
    """The explanation, saying in words which token's output it is of."""
    target = explanation.target
    assert target.position is not None
    text = explanation.units[target.position].text
    return replace(explanation, target=replace(target, place=f'token {target.position}, "{text}"'))


def _flat(specs: Any) -> list[Any]:
    return list(specs) if isinstance(specs, (list, tuple)) else [specs]
