"""The explainer: one model, the readers of its inputs, and all methods by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from wherefrom.answers.answer import Answer
from wherefrom.answers.attribution import Of
from wherefrom.answers.generate import Generation
from wherefrom.answers.prompt import PromptLike, Prompts
from wherefrom.answers.request import (
    AnswerRequest,
    is_several,
    one_per_prompt,
    optional_per_prompt,
    refuse_images,
)
from wherefrom.answers.sentences import Splitter
from wherefrom.core.explanation import Comparison, Explanation
from wherefrom.core.memory import parse_memory
from wherefrom.core.progress import shown
from wherefrom.core.runner import Batch, Forward, ModelRunner, Rejected
from wherefrom.core.scope import Scope, restores_state
from wherefrom.core.target import Case, OutputNames, Target, TargetSpec, ordered_labels
from wherefrom.core.torch_internals import unwrap
from wherefrom.errors import InputError, ModelError
from wherefrom.explaining.request import Request, has_spans, library_versions
from wherefrom.inputs.graph import Graph
from wherefrom.inputs.image import Picture, Units
from wherefrom.inputs.image_text_processor import ImageTextProcessor
from wherefrom.inputs.readers import READERS, Reader, ReaderContext, find_reader
from wherefrom.inputs.records import TextPair, as_inputs, paired
from wherefrom.inputs.text import Encoded
from wherefrom.inputs.text_reader import TextReader
from wherefrom.inside.component import Component
from wherefrom.inside.inside import Inside
from wherefrom.inside.interventions import Interventions
from wherefrom.inside.patching import Patching
from wherefrom.methods import Method, default_methods
from wherefrom.methods import method as find_method
from wherefrom.methods.embedded_inputs import EmbeddedInputs
from wherefrom.methods.forward_pass import run

Single = str | Path | Encoded | TextPair | Graph | Picture
_TEXT_CLASSES = 8  # explainers cached for a model that compares images with texts
_LOCK = threading.RLock()  # shared: as an attribute it would prevent copying and pickling


class Explainer:
    """Explains the predictions of one model.

    `model` is a Hugging Face model, a pipeline, or any `nn.Module`. `forward(model, inputs)` runs a
    module that takes other arguments: `inputs` is a dict of tensors (`input_ids` and
    `attention_mask`; `pixel_values` for images; `x` for a float tensor), the result its logits.
    `labels` are the names of the classes: a list in their order, or a dict by class number. A
    compiled or parallel model is explained by the plain module inside it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        processor: Any = None,
        forward: Forward | None = None,
        labels: Sequence[str] | Mapping[int, str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) and hasattr(model, "model"):  # a pipeline
            tokenizer = tokenizer or getattr(model, "tokenizer", None)
            processor = processor or getattr(model, "processor", None)
            processor = processor or getattr(model, "image_processor", None)
            model = model.model
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError(
                f"cannot explain a traced or scripted model ({type(model).__name__}): it runs "
                "outside Python, where its calls cannot be intercepted. Pass the original module."
            )
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"cannot explain a {type(model).__name__}: pass a torch module, a Hugging Face "
                "model or pipeline.",
                "A path or hub id is loaded by wherefrom.load(…).",
                command="",
            )
        self.runner = ModelRunner(unwrap(model), forward)
        self._refuse_offloaded()
        # a joint processor contains a tokenizer and an image processor
        self._tokenizer = tokenizer or getattr(processor, "tokenizer", None)
        self._set_processor(processor)
        self._labels = None if labels is None else tuple(ordered_labels(labels, "labels="))
        self._readers: dict[type, Reader[Any, Any]] = {}
        self._by_class_texts: dict[tuple[str, ...], Explainer] = {}  # most recently used last

    def _refuse_offloaded(self) -> None:
        """Refuses weights that are loaded for each pass: the backward pass would lack them."""
        weights = self.runner.model.named_parameters()
        name = next((name for name, weight in weights if weight.device.type == "meta"), None)
        if name is not None:
            raise ModelError(
                f"the weights of {self.runner.name} are not all in memory ({name} is offloaded, "
                "or was never loaded).",
                "Load the model whole: a device_map without cpu or disk offloading, such as "
                'device_map="cpu", or quantise it.',
                command="",
            )

    def __repr__(self) -> str:
        return f"Explainer({self.runner.name})"

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of texts; a new one takes effect at once."""
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._forget()

    @property
    def processor(self) -> Any:
        """The processor of images; a new one takes effect at once."""
        return self._processor

    @processor.setter
    def processor(self, processor: Any) -> None:
        self._set_processor(processor)
        self._forget()

    def _set_processor(self, processor: Any) -> None:
        both = hasattr(processor, "tokenizer") and hasattr(processor, "image_processor")
        self._joint_processor = ImageTextProcessor(self.runner, processor) if both else None
        self._processor = processor.image_processor if both else processor

    def _forget(self) -> None:
        with _LOCK:
            self._readers.clear()
            self._by_class_texts.clear()

    @property
    def _context(self) -> ReaderContext:
        return ReaderContext(
            self.runner, self._tokenizer, self._processor, self._labels, self._joint_processor
        )

    @property
    def output_names(self) -> OutputNames:
        """The names of the model's outputs."""
        return self._context.output_names

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
        method: str | Method = "auto",
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

        An input is a text, its token ids, or the result of a tokenizer or of `encode`; a pair of
        texts (a tuple of two, or `text_pair`); an image; a graph; rows of numbers. A batch as a
        tensor, a data frame, a data set or a list of dicts gives a list.

        `method`: by default `secant` for texts to classify, else `lrp`. `target`: a class by index
        or label, a next token by id or text; by default the most likely. `against`: explain the
        difference to this class or token. `position`: the token whose successor (language models)
        or own output (models with an output for every token) is explained. `entity`: the words
        whose class is explained (token classification; by default the first entity that the model
        finds). For question answering, `target` "start" or "end" explains one end of the answer
        instead of both. `prefix`: the text that the decoder has generated so far. `units` of an
        image: "patches", "pixels", or the side of square cells. `truncate`: cut inputs that are too
        long. `memory`: bytes that a pass may use, or a text such as "4GB"; by default the free
        memory of the device. All other settings go to the method.
        """
        request = Request(
            find_method(method, **settings),
            target,
            against,
            position=position,
            entity=entity,
            batch_size=_checked_size(batch_size) or 16,
            truncate=truncate,
            memory=parse_memory(memory),
        )
        inputs = self._plain(inputs) if text_pair is None else paired(inputs, text_pair)
        results, is_single = self._explained(inputs, request, prefix=prefix, units=units)
        return results[0] if is_single else results

    def each(
        self,
        inputs: Sequence[Any],
        method: str | Method = "auto",
        target: TargetSpec | Sequence[TargetSpec] = None,
        against: TargetSpec | Sequence[TargetSpec] = None,
        *,
        batch_size: int = 16,
        batch_tokens: int | None = None,
        truncate: bool = False,
        **settings: Any,
    ) -> list[Explanation | Rejected]:
        """Explains a list of inputs; one that cannot be explained is `Rejected` with the error.

        `batch_tokens`: the most tokens, padding included, of a batch of texts.
        """
        request = Request(
            find_method(method, **settings),
            target,
            against,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            truncate=truncate,
            reject=True,
        )
        return self._explained(list(inputs), request)[0] if len(inputs) else []

    @restores_state
    def _explained(self, inputs: Any, request: Request, **options: Any) -> tuple[list[Any], bool]:
        """The results in input order, and whether the input was a single one."""
        context, explainer = self._context, self
        if find_reader(context, inputs).needs_class_texts(context):
            specs = (*_flat(request.target), *_flat(request.against))
            explainer = self._with_text_classes([spec for spec in specs if isinstance(spec, str)])
        # tensors made under the caller's inference mode cannot carry gradients
        with Scope(inference=False):
            reader = explainer._reader(inputs, options.get("units"))
            reader = reader.with_options(prefix=options.get("prefix"))
            sources, is_single = reader.listed(inputs)
            return request.explain(reader, sources, explainer.output_names), is_single

    def without(self, *components: str) -> Explainer:
        """An explainer of the model without these components: see `intervene`."""
        return self.intervene(dict.fromkeys(components, 0.0))

    def intervene(self, changes: Mapping[str, float | Tensor]) -> Explainer:
        """An explainer of the model with changed components.

        A number scales a component, such as `layer.5.head.3`; a tensor is added to it, to steer the
        model. The model itself is not changed: components are changed in each pass.
        """
        components = {Component.parse(name): change for name, change in changes.items()}
        if not components or any(component.unit is not None for component in components):
            raise InputError("name at least one component to change, at all units: without @.")
        changed = copy(self)
        changed.runner = replace(self.runner, around=Interventions(components))
        changed._readers, changed._by_class_texts = {}, {}
        return changed

    @restores_state
    def inside(
        self,
        inputs: Any,
        method: str | Method = "lrp",
        target: TargetSpec = None,
        against: TargetSpec = None,
        *,
        position: int | None = None,
        prefix: str | None = None,
        units: Units | None = None,
        truncate: bool = False,
        memory: float | str | None = None,
        reference: Any = None,
        **settings: Any,
    ) -> Inside:
        """Where relevance flows within the model: by layer, head, neuron and expert.

        The arguments are those of a call of the explainer, for a single input. The method is one
        of a single backward pass, such as `lrp` or `secant`. `reference`: another input of the same
        length; `secant` then divides the difference of both outputs.
        """
        if reference is not None:
            read = self._case(reference, Request(find_method("lrp")), prefix=prefix, units=units)
            (root,) = EmbeddedInputs.capture(read).values
            method, settings = "secant", {"root": root}
        request = Request(
            find_method(method, **settings),
            target,
            against,
            position=position,
            truncate=truncate,
            memory=parse_memory(memory),
        )
        with Scope(inference=False):
            case = self._case(inputs, request, prefix=prefix, units=units)
            return Inside.of(case, request.method, self.output_names)

    @restores_state
    def patching(
        self,
        clean: Any,
        corrupted: Any,
        target: TargetSpec = None,
        against: TargetSpec = None,
        *,
        position: int | None = None,
    ) -> Patching:
        """Estimates what patching each component of the corrupted run into the clean one does.

        Both inputs have the same number of units. The target is by default the most likely output
        of the clean input.
        """
        request = Request(find_method("lrp"), target, against, position=position)
        with Scope(inference=False):
            cases = [self._case(inputs, request) for inputs in (clean, corrupted)]
            first = cases[0].resolved(run(cases[0]))
            return Patching.of(first, cases[1].with_target(first.target))

    def _case(self, inputs: Any, request: Request, **options: Any) -> Case:
        """The case of a single input."""
        reader = self._reader(inputs, options.get("units"))
        reader = reader.with_options(prefix=options.get("prefix"))
        sources, is_single = reader.listed(inputs)
        if not is_single:
            raise InputError("this needs a single input, not a list.")
        return request.case_of(reader, sources[0], self.output_names)

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
        method: str | Method = "auto",
        of: Of = "contrast",
        *,
        images: Sequence[Any] = (),
        sentences: Splitter | None = None,
        batch_size: int | None = None,
        memory: float | str | None = None,
        **settings: Any,
    ) -> Answer | list[Answer]:
        """Explains an answer of a language model: which part of the prompt it comes from.

        `prompt`: a text, chat messages, a `Prompt` of named parts, or token ids. `of` is the
        explained quantity of each token: "contrast", its logit minus the runner-up's; "logit";
        "logprob". `against`: another answer; the first token at which the two differ is explained.
        `images` are for vision-language models: pictures or paths, in their order in the prompt.
        `sentences` splits a text into its sentences, such as `nltk.sent_tokenize`.
        `memory`: bytes that a pass may use, or a text such as "4GB". All other settings go to the
        method.

        A list of prompts with a list of answers gives a list: each answer is explained as a whole,
        several in one forward and one backward pass (`batch_size`).
        """
        resolved = find_method(method, **settings)
        request = self._answer_request(resolved, of, memory, sentences)
        if not is_several(prompt):
            return request.explain(prompt, answer, against, images)
        refuse_images(images)
        answers = one_per_prompt(prompt, answer, "answers")
        others = optional_per_prompt(prompt, against, "answers to compare with")
        return request.explain_each(prompt, answers, others, _checked_size(batch_size))

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
        method: str | Method = "auto",
        of: Of = "contrast",
        *,
        seed: int | None = None,
        generation: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        do_sample: bool | None = None,
        on_text: Callable[[str], None] | None = None,
        images: Sequence[Any] = (),
        sentences: Splitter | None = None,
        batch_size: int | None = None,
        memory: float | str | None = None,
        **settings: Any,
    ) -> Answer | list[Answer]:
        """Generates the model's answer to a prompt, and explains it as `answer` does.

        Decoding is greedy unless `temperature`, `top_p` or `do_sample` turn on sampling, which
        `seed` makes reproducible. `generation` holds further options of the model's `generate`. A
        stop token ends the answer and is not part of it. `on_text(text)` is called with the answer
        as it grows. A list of prompts gives a list; greedy answers are generated in batches.
        """
        resolved = find_method(method, **settings)
        options = dict(generation or {})
        sampling = {"temperature": temperature, "top_p": top_p, "do_sample": do_sample}
        options |= {key: value for key, value in sampling.items() if value is not None}
        decoding = Generation(max_new_tokens, seed, options)
        request = self._answer_request(resolved, of, memory, sentences)
        if not is_several(prompt):
            return request.generate(prompt, against, decoding, on_text, images)
        refuse_images(images)
        others = optional_per_prompt(prompt, against, "answers to compare with")
        return request.generate_each(prompt, others, decoding, _checked_size(batch_size), on_text)

    def _answer_request(
        self, method: Method, of: Of, memory: float | str | None, sentences: Splitter | None = None
    ) -> AnswerRequest:
        reader = self._reader("")
        if not isinstance(reader, TextReader) or not self.output_names.is_language_model:
            raise ModelError(
                f"{self.runner.name} is not a language model and generates no answers.",
                "Explain its prediction: explainer(input).",
                command="Explain its prediction: wherefrom explain.",
                page="Explain its prediction.",
            )
        runner = replace(reader.runner, memory=parse_memory(memory))
        return AnswerRequest.create(
            replace(reader, runner=runner), method, of, library_versions(), sentences
        )

    def compare(
        self,
        inputs: Any,
        methods: Iterable[str | Method] | None = None,
        *,
        starting: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Comparison:
        """Explains one input with several methods, except those that do not apply to the model.

        By default they are all but `shapley`, which needs thousands of passes. `starting(name)` is
        called before each method.
        """
        explanations = Comparison()
        errors: list[ModelError] = []
        chosen = list(methods or default_methods())
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

    def _prepared(self, inputs: Any, truncate: bool = False) -> tuple[Batch, Target]:
        """A batch of one input, and its most likely class as the target."""
        inputs = self._plain(inputs)
        reader = self._reader(inputs)
        if has_spans(reader.runner):
            raise ModelError(
                f"{reader.runner.name} predicts spans of its input.",
                "Explain them with explainer(input).",
                command="Explain them with wherefrom explain.",
            )
        batch = reader.batch([reader.read(inputs, truncate)])
        target = Target(position=reader.positions(batch, None))
        logits = run(Case(reader.runner, batch))
        if logits.ndim == 3:
            reader.check_position(batch)
        return batch, target.resolved(logits)

    def labels(self) -> list[str]:
        """The labels of the classes; empty if the model has none."""
        return self.output_names.labels

    def encode(self, texts: Sequence[str], truncate: bool = False) -> list[Encoded | InputError]:
        """Tokenizes each text; a text that the model cannot take gives its InputError."""
        return self._reader("").read_each(texts, truncate)

    def index_of(self, label: str | int) -> int:
        """The index of a class, by its label or index."""
        return self.output_names.index(label)

    def _with_text_classes(self, texts: Sequence[str]) -> Explainer:
        """For a model that compares images with texts: an explainer with these texts as classes."""
        names = tuple(dict.fromkeys(texts))
        with _LOCK:
            # cached: finding patches takes a run; without texts its reader raises the error
            explainer = self._by_class_texts.pop(names, None) or Explainer(
                self.runner.model,
                self._tokenizer,
                processor=self._processor,
                labels=names or None,
            )
            self._by_class_texts[names] = explainer
            if len(self._by_class_texts) > _TEXT_CLASSES:
                del self._by_class_texts[next(iter(self._by_class_texts))]
        return explainer

    def _reader(self, inputs: Any, units: Units | None = None) -> Reader[Any, Any]:
        """The reader of this kind of input: texts, images, graphs, or rows of numbers."""
        context = self._context
        kind = find_reader(context, inputs)
        reader = self._readers.get(kind)
        if reader is None:  # setdefault: concurrent threads get the same one
            reader = self._readers.setdefault(kind, kind.build(context))
        return reader.with_options(units=units)

    def _plain(self, inputs: Any) -> Any:
        """Converts tables to lists of inputs, unless a plugin reader accepts them."""
        context, plugins = self._context, READERS.extras().values()
        if isinstance(inputs, str) or any(kind.accepts(context, inputs) for kind in plugins):
            return inputs
        return as_inputs(inputs)


def _checked_size(size: int | None) -> int | None:
    if size is not None and size < 1:
        raise InputError(f"batch_size must be 1 or more, got {size}.")
    return size


def _flat(specs: Any) -> list[Any]:
    return list(specs) if isinstance(specs, (list, tuple)) else [specs]
