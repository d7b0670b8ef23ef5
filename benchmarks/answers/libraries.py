"""Libraries that explain the total of an answer, each in a process of its own."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.processes import Worker, forget_peak, memory, quiet, reason

DEFAULT = "wherefrom lrp, contrast"
LOGIT, LOGPROB = "wherefrom lrp, logit", "wherefrom lrp, logprob"
SHARED = "wherefrom attn_lrp, contrast"
PEERS = ("LXT CP-LRP", "LXT AttnLRP", "FlashTrace, 1 hop")
STANDARD = (DEFAULT, LOGPROB, LOGIT, SHARED, *PEERS)


@dataclass(frozen=True)
class Task:
    """What is explained: the total of an answer."""

    prompt: str
    answer: str
    prompt_ids: list[int]
    answer_ids: list[int]


@dataclass(frozen=True)
class Outcome:
    """The scores of the prompt's tokens, and how much of the output they leave unexplained."""

    scores: list[float]
    gap: float | None  # |output − Σ scores − Σ constants| / |output|
    seconds: float | None = None  # where not all of the call counts, or more than it
    span: float | None = None  # the part that each further span of the answer costs


Explain = Callable[[Task], Outcome]


def of_wherefrom(folder: str) -> dict[str, Explain]:
    """Methods of this library, and what they explain of the answer."""
    import wherefrom

    explainer = wherefrom.load(folder)
    latest: dict[str, Any] = {}

    def by(name: str, of: Any, **settings: Any) -> Explain:
        def explain(task: Task) -> Outcome:
            asked = (task, name, settings)
            began = time.process_time()
            if latest.get("asked") != asked:  # what is explained of it shares the forward pass
                latest.clear()
                answer = explainer.answer(task.prompt, task.answer_ids, method=name, **settings)
                latest.update(asked=asked, answer=answer, seconds=time.process_time() - began)
            answer, passed = latest["answer"], time.process_time()
            row = replace(answer.attribution, of=of).span(answer.measured, 0, len(answer))
            span = time.process_time() - passed
            gap = None if row.lines is None else abs(row.residual / row.output)
            scores = row.values[: answer.start].tolist()
            return Outcome(scores, gap, latest["seconds"] + span, span)

        return explain

    return {
        DEFAULT: by("lrp", "contrast"),
        LOGPROB: by("lrp", "logprob"),
        LOGIT: by("lrp", "logit"),
        SHARED: by("attn_lrp", "contrast"),
    }


def of_lxt(folder: str, name: str, patches: str) -> dict[str, Explain]:
    """Gradient × input of Llama as LXT patches it, of the sum of the answer's logits."""
    import importlib

    import torch
    from lxt.efficient import monkey_patch
    from transformers.models.llama import modeling_llama

    rules = importlib.import_module("lxt.efficient.models.llama")
    monkey_patch(modeling_llama, patch_map=getattr(rules, patches), verbose=False)
    model = modeling_llama.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for parameter in model.parameters():  # as its examples do
        parameter.requires_grad_(False)

    def explain(task: Task) -> Outcome:
        ids = torch.tensor([task.prompt_ids + task.answer_ids[:-1]])
        embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
        count = len(task.answer_ids)
        logits = model(inputs_embeds=embedded, use_cache=False, logits_to_keep=count).logits[0]
        output = logits.gather(1, torch.tensor(task.answer_ids).unsqueeze(1)).sum()
        (gradient,) = torch.autograd.grad(output, embedded)
        scores = (gradient * embedded.detach()).double().sum(-1)[0]
        gap = abs(float((output - scores.sum()) / output))
        return Outcome(scores[: len(task.prompt_ids)].tolist(), gap)

    return {name: explain}


def of_flashtrace(folder: str) -> dict[str, Explain]:
    """FlashTrace of the whole answer, with one hop, as its quick start calls it."""
    import torch
    from flashtrace import FlashTrace
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"  # it reads the attention weights
    ).eval()  # fmt: skip
    tracer = FlashTrace(model, tokenizer)

    def explain(task: Task) -> Outcome:
        span = (0, len(task.answer_ids) - 1)
        trace = tracer.trace(prompt=task.prompt, target=task.answer, output_span=span, hops=1)
        if len(trace.scores) != len(task.prompt_ids):
            raise ValueError(f"{len(trace.scores)} scores of {len(task.prompt_ids)} tokens")
        return Outcome(list(trace.scores), None)

    return {"FlashTrace, 1 hop": explain}


LIBRARIES: dict[str, Callable[[str], dict[str, Explain]]] = {
    "wherefrom": of_wherefrom,
    "LXT CP-LRP": lambda folder: of_lxt(folder, "LXT CP-LRP", "cp_LRP"),
    "LXT AttnLRP": lambda folder: of_lxt(folder, "LXT AttnLRP", "attnLRP"),
    "FlashTrace": of_flashtrace,
}


def serve(library: str, folder: str, gibibytes: float, orders: Any) -> None:
    """A library's process: gets a task and a method's name, answers with one measured run."""
    quiet()
    limit = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import torch

    torch.set_num_threads(1)
    try:
        explainers = LIBRARIES[library](folder)
        first = sample(folder)
        for explain in explainers.values():  # weights are read into memory when they are used
            explain(first)
    except Exception as error:
        orders.send({"error": reason(error)})
        return
    loaded = memory("VmRSS")
    orders.send({"methods": list(explainers)})
    while (order := orders.recv()) is not None:
        name, task = order
        try:
            forget_peak()
            began = time.process_time()
            outcome = explainers[name](task)
            seconds = time.process_time() - began
            peak = memory("VmHWM")
            orders.send(
                {
                    "scores": outcome.scores,
                    "gap": outcome.gap,
                    "seconds": outcome.seconds or seconds,
                    "span": outcome.span or seconds,
                    "mebibytes": peak - loaded,
                }
            )
        except Exception as error:
            orders.send({"error": reason(error)})


def sample(folder: str) -> Task:
    """A short task for a first run that is not measured."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt, answer = "The sky is blue. The grass is", " green"
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
    return Task(prompt, answer, *ids)


@dataclass
class Library(Worker):
    """A process that explains answers when it is asked to."""

    name: str = ""
    methods: list[str] = field(default_factory=list)

    def start(self, folder: str, gibibytes: float) -> None:
        """Starts the process and waits until its model is there."""
        answer = self.begin(serve, self.name, folder, gibibytes)
        self.problem = answer.get("error")
        self.methods = answer.get("methods", [])

    def explain(self, name: str, task: Task) -> dict[str, Any]:
        """Scores, gap, seconds and mebibytes; or `error`."""
        return self.ask((name, task))
