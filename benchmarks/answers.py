"""Whether explanations of answers point at what the answer comes from, beside other libraries.

    python -m benchmarks.answers --model FOLDER [--kinds planted,two_hop,passages,needles]
                                 [--count 60] [--needles 4] [--lengths 512,1024,2048,4096]
                                 [--methods NAMES] [--peers FOLDER …] [--tables]
                                 [--out docs/data/answers.json]

Cases are generated with fixed seeds: a prompt of units (sentences or passages), the units that the
answer comes from, and the answer. A case counts if the model gives the answer by greedy decoding,
and no longer does when any of these units is left out; so they are its sources by intervention.

- planted: six facts of one form, one of which is asked for.
- two_hop: who has which key, and which door each key opens. The answer says both, " red key. The
  red key opens door 412"; the key and the door must be the model's, the words between are given.
- passages: five passages of three sentences, one of which holds the answer.
- needles: one fact in a long text of other sentences.

Each library explains the total of the answer in a process of its own, since some patch transformers
globally; the processes take turns case by case. The scores of tokens are added up by unit, for all
methods in the same way: signed, or positive scores only, whichever has the higher recall@1 over
all methods and validation cases (every fourth). Tables show the other cases, and all needles. The
first token and the question are no candidates. Leaving out: the log-probability that the answer
loses without a unit, for each unit. Deletion: the mean of the answer's log-probability while the
first three units of a method's ranking are deleted, as in RISE.

`--out` keeps what was measured: a second call continues where the file ends, and `--tables` only
prints the tables again. Time is processor time, memory the peak of the resident set above that of
the loaded model; "span" is the time without the forward pass, which further spans of an answer
share. Libraries are used where they can be imported; `--peers` adds
folders to look in.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr

Floats = NDArray[np.float64]
KINDS = ("planted", "two_hop", "passages", "needles")
DEFAULT = "wherefrom lrp, contrast"
RANDOM, REFERENCE = "random", "leave one out"
LOGIT = "wherefrom lrp, logit"
PEERS = ("LXT CP-LRP", "LXT AttnLRP", "FlashTrace, 1 hop")
STANDARD = (
    DEFAULT, "wherefrom lrp, logprob", LOGIT,
    "wherefrom attn_lrp, contrast", *PEERS,
)  # fmt: skip
WAYS = ("signed", "positive")
DELETED = 3  # units of a method's ranking, one after the other
LONG = 20  # units; beyond, only the first is deleted

NAMES = "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Luke".split()
COLOURS = "red blue green yellow black white purple gray pink brown".split()
TOWNS = "Bremen Lyon Porto Krakow Ghent Turin Malmo Bergen Graz Seville Leeds Basel".split()
BUILDINGS = "bridge tower castle library museum church theater school".split()
REMARKS = (
    "Many tourists come in summer.", "The town is known for its market.",
    "It lies near a wide river.", "Local people are proud of it.",
    "The streets around it are quiet.", "It was painted by many artists.",
)  # fmt: skip
THINGS = "apple river stone candle garden window pencil bottle mirror ladder".split()
SUBJECTS = (
    "The old man", "A young girl", "The teacher", "My neighbor",
    "The farmer", "A tall woman", "The driver", "Our cousin",
)  # fmt: skip
VERBS = (
    "walked to", "looked at", "talked about", "dreamed of",
    "painted", "remembered", "forgot", "visited",
)  # fmt: skip
OBJECTS = (
    "the market", "a small house", "the green hills", "the harbor",
    "an empty road", "the old school", "a quiet lake", "the railway",
)  # fmt: skip
TIMES = (
    "in the morning", "after lunch", "last summer", "every Sunday",
    "before the storm", "at night", "in silence", "with a smile",
)  # fmt: skip
TOKENS_OF_A_SENTENCE = 10.3  # of a long text, with the space before it; about


# Cases.


@dataclass(frozen=True)
class Case:
    """A prompt of units and a question, the answer, and the units that it comes from."""

    units: tuple[str, ...]
    question: str
    answer: str
    sources: tuple[int, ...]
    own: tuple[str, ...]  # the parts of the answer that must be the model's
    join: str = " "

    def prompt(self, without: Sequence[int] = ()) -> str:
        """The text, with some units left out."""
        units = [unit for number, unit in enumerate(self.units) if number not in without]
        return self.join.join(units) + self.question

    def spans(self) -> list[tuple[int, int]]:
        """The characters of each unit in the whole prompt."""
        spans, at = [], 0
        for unit in self.units:
            spans.append((at, at + len(unit)))
            at += len(unit) + len(self.join)
        return spans


def question(text: str, beginning: str) -> str:
    """A question and the beginning of its answer."""
    return f"\n\nQuestion: {text}\nAnswer: {beginning}"


def planted(draw: np.random.Generator) -> Case:
    """Six facts of one form, one of which is asked for."""
    names = draw.choice(NAMES, 6, False)
    codes = draw.choice(np.arange(1000, 10_000), 6, False)
    place = int(draw.integers(6))
    name, code = names[place], str(codes[place])
    facts = tuple(f"The code of {a} is {b}." for a, b in zip(names, codes, strict=True))
    ask = question(f"What is the code of {name}?", f"The code of {name} is")
    return Case(facts, ask, f" {code}", (place,), (code,))


def two_hop(draw: np.random.Generator) -> Case:
    """Three people with keys, three keys with doors; the answer needs a fact of each sort."""
    names, colours = draw.choice(NAMES, 3, False), draw.choice(COLOURS, 3, False)
    doors = draw.choice(np.arange(100, 1000), 3, False)
    facts = [f"{a} has the {b} key." for a, b in zip(names, colours, strict=True)]
    facts += [f"The {a} key opens door {b}." for a, b in zip(colours, doors, strict=True)]
    order = draw.permutation(6).tolist()
    place = int(draw.integers(3))
    name, colour, door = names[place], colours[place], str(doors[place])
    return Case(
        tuple(facts[number] for number in order),
        question(f"Which door can {name} open?", f"{name} has the"),
        f" {colour} key. The {colour} key opens door {door}",
        (order.index(place), order.index(3 + place)),
        (f" {colour}", door),
    )


def passages(draw: np.random.Generator) -> Case:
    """Five passages, each about a building of a town and when it was built."""
    towns, buildings = draw.choice(TOWNS, 5, False), draw.choice(BUILDINGS, 5, False)
    years = draw.choice(np.arange(1200, 1990), 5, False)
    texts = []
    for town, building, year in zip(towns, buildings, years, strict=True):
        before, after = draw.choice(REMARKS, 2, False)
        texts.append(f"{before} The {building} of {town} was built in {year}. {after}")
    place = int(draw.integers(5))
    what, year = f"the {buildings[place]} of {towns[place]}", str(years[place])
    ask = question(f"When was {what} built?", f"{what.capitalize()} was built in")
    ask = ask.replace(what.capitalize(), "T" + what[1:])  # the town keeps its capital
    return Case(tuple(texts), ask, f" {year}", (place,), (year,), "\n")


def needles(draw: np.random.Generator, length: int) -> Case:
    """One fact in a text of about `length` tokens."""
    thing, number = str(draw.choice(THINGS)), str(draw.integers(1000, 10_000))
    count = max(2, round((length - 60) / TOKENS_OF_A_SENTENCE))
    parts = [draw.choice(words, count) for words in (SUBJECTS, VERBS, OBJECTS, TIMES)]
    sentences = [f"{' '.join(words)}." for words in zip(*parts, strict=True)]
    place = int(draw.integers(1, count))
    sentences.insert(place, f"The magic number of the {thing} is {number}.")
    ask = question(
        f"What is the magic number of the {thing}?", f"The magic number of the {thing} is"
    )
    return Case(tuple(sentences), ask, f" {number}", (place,), (number,))


def generated(kind: str, start: int = 0) -> Iterator[tuple[int, Case]]:
    """Numbered cases without end; "needles 512" is of about so many tokens."""
    name, _, length = kind.partition(" ")
    number = start
    while True:
        draw = np.random.default_rng([KINDS.index(name), int(length or 0), number])
        if name == "needles":
            yield number, needles(draw, int(length))
        else:
            yield number, {"planted": planted, "two_hop": two_hop, "passages": passages}[name](draw)
        number += 1


# What the model says.


@dataclass(frozen=True, eq=False)
class Reference:
    """The model itself: whether it gives an answer, and what it makes of fewer units."""

    model: Any
    tokenizer: Any

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, without special ones added."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def judged(self, case: Case, without: Sequence[int] = ()) -> tuple[bool, float]:
        """Whether the parts that must be the model's are; and the answer's log-probability."""
        import torch

        prompt, answer = self.ids(case.prompt(without)), self.ids(case.answer)
        with torch.no_grad():
            output = self.model(
                torch.tensor([prompt + answer]), use_cache=False, logits_to_keep=len(answer) + 1
            )
        logits = output.logits[0, :-1].double()  # (answer tokens, vocabulary)
        best = logits.argmax(-1).tolist()
        right = all(best[i] == answer[i] for i in self.own_tokens(case, answer))
        logs = logits.log_softmax(-1)
        return right, float(sum(logs[i, number] for i, number in enumerate(answer)))

    def own_tokens(self, case: Case, answer: list[int]) -> list[int]:
        """The tokens of the answer that must be the model's; each part where it first occurs."""
        ends, text = [], ""
        for count in range(1, len(answer) + 1):
            text = self.tokenizer.decode(answer[:count])
            ends.append(len(text))
        starts = [0, *ends[:-1]]
        tokens = []
        for part in case.own:
            start = text.index(part)
            end = start + len(part)
            tokens += [i for i in range(len(answer)) if ends[i] > start and starts[i] < end]
        return tokens

    def counts(self, case: Case) -> bool:
        """Whether the model is right, and no longer without any of the sources."""
        return self.judged(case)[0] and not any(
            self.judged(case, (source,))[0] for source in case.sources
        )

    def membership(self, case: Case) -> list[int]:
        """The unit of each token of the prompt, −1 for the question and the first token."""
        output = self.tokenizer(
            case.prompt(), add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        text, spans, units = case.prompt(), case.spans(), []
        for start, end in output["offset_mapping"]:
            inked = start + len(text[start:end]) - len(text[start:end].lstrip())
            units.append(next((i for i, (a, b) in enumerate(spans) if a <= inked < b), -1))
        units[0] = -1  # it gets attention that has nowhere to go, whatever it says
        return units


def by_unit(scores: Sequence[float], units: Sequence[int], count: int, way: str) -> Floats:
    """The scores of tokens added up by unit: signed, or the positive ones only."""
    totals = np.zeros(count)
    for score, unit in zip(scores, units, strict=True):
        if unit >= 0:
            totals[unit] += score if way == "signed" else max(score, 0.0)
    return totals


def ranked(totals: Floats) -> list[int]:
    """The units, the highest first; of equal ones the earlier."""
    return np.argsort(-totals, kind="stable").tolist()  # type: ignore[no-any-return]


def recall(order: Sequence[int], sources: Sequence[int], k: int) -> float:
    """The share of the sources among the first k."""
    return len(set(order[:k]) & set(sources)) / len(sources)


def area(curve: Sequence[float]) -> float:
    """The mean height of a curve over equal steps, by the trapezoidal rule."""
    values = np.asarray(curve)
    return float((values[1:] + values[:-1]).mean() / 2)


# Libraries.


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
            row = replace(answer.runner, of=of).span(answer.measured, 0, len(answer))
            span = time.process_time() - passed
            gap = None if row.lines is None else abs(row.residual / row.output)
            scores = row.values[: answer.start].tolist()
            return Outcome(scores, gap, latest["seconds"] + span, span)

        return explain

    return {
        DEFAULT: by("lrp", "contrast"),
        "wherefrom lrp, logprob": by("lrp", "logprob"),
        LOGIT: by("lrp", "logit"),
        "wherefrom attn_lrp, contrast": by("attn_lrp", "contrast"),
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
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
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


def memory(name: str) -> float:
    """A figure of this process's memory, in MiB: VmRSS is resident now, VmHWM its peak."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def forget_peak() -> None:
    """Lets the peak of the resident set begin anew; where that is refused it is that of all."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back: earlier runs do not count
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def reason(error: BaseException) -> str:
    """The first line of an error."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:160]


@dataclass
class Library:
    """A process that explains answers when it is asked to."""

    name: str
    methods: list[str] = field(default_factory=list)
    problem: str | None = None
    _process: Any = field(default=None, repr=False)
    _orders: Any = field(default=None, repr=False)

    def start(self, folder: str, gibibytes: float) -> None:
        """Starts the process and waits until its model is there."""
        context = multiprocessing.get_context("fork")  # the common imports are made once, before
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(self.name, folder, gibibytes, theirs))
        self._process.start()
        theirs.close()
        answer = self._answer()
        self.problem = answer.get("error")
        self.methods = answer.get("methods", [])

    def explain(self, name: str, task: Task) -> dict[str, Any]:
        """Scores, gap, seconds and mebibytes; or `error`."""
        if self.problem is not None:
            return {"error": self.problem}
        try:
            self._orders.send((name, task))
        except OSError:
            return {"error": self.problem or "the process ended"}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._orders.recv()
        except EOFError:
            self.problem = "the process ended, most likely for want of memory"
            return {"error": self.problem}
        return answer

    def stop(self) -> None:
        """Ends the process."""
        if self._process is None:
            return
        with suppress(OSError):
            self._orders.send(None)
        self._process.join()


# Measuring.


def explained(
    reference: Reference, case: Case, number: int, results: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What is kept of a case: by method the totals of its units, time, memory and gap."""
    count, units = len(case.units), reference.membership(case)
    methods: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        scores = result.pop("scores", None)
        methods[name] = result
        if scores is None:
            continue
        for way in WAYS:
            result[way] = [float(f"{total:.6g}") for total in by_unit(scores, units, count, way)]
        highest = 1 + int(np.argmax(scores[1:]))
        result["token"] = float(units[highest] in case.sources)
    noise = np.random.default_rng(number).random(count).round(6).tolist()
    methods[RANDOM] = dict.fromkeys(WAYS, noise)
    return {
        "number": number,
        "tokens": len(units),
        "units": count,
        "sources": list(case.sources),
        "methods": methods,
    }


def delete(reference: Reference, case: Case, record: dict[str, Any], way: str) -> None:
    """Adds what leaving units out does: each alone, and by each method's ranking.

    Of a long text units are not left out one by one, and only the first of a ranking is deleted.
    """
    cache: dict[frozenset[int], float] = {}

    def log_probability(without: Sequence[int] = ()) -> float:
        key = frozenset(without)
        if key not in cache:
            cache[key] = reference.judged(case, sorted(key))[1]
        return cache[key]

    long = len(case.units) > LONG
    if not long:
        whole = log_probability()
        drops = [whole - log_probability((unit,)) for unit in range(len(case.units))]
        record["methods"][REFERENCE] = dict.fromkeys(WAYS, drops)
    for entry in record["methods"].values():
        if "error" not in entry:
            order = ranked(np.array(entry[way]))
            steps = range(2 if long else DELETED + 1)
            entry["curve"] = [log_probability(order[:step]) for step in steps]
    record["way"] = way


def run(
    libraries: list[Library],
    reference: Reference,
    goals: dict[str, int],
    report: dict[str, Any],
    only: dict[str, list[str]],
    save: Callable[[], None],
    minutes: float,
) -> None:
    """Adds cases to the report, one of each kind in turn, until there are enough or time is up."""
    until = time.monotonic() + 60 * minutes
    sources = {kind: generated(kind, report["generated"].get(kind, 0)) for kind in goals}
    cases: dict[str, list[Any]] = report["cases"]
    while kinds := [kind for kind in goals if len(cases.setdefault(kind, [])) < goals[kind]]:
        if time.monotonic() > until:
            return
        for kind in kinds:
            number, case = next(pair for pair in sources[kind] if reference.counts(pair[1]))
            ids = [reference.ids(text) for text in (case.prompt(), case.answer)]
            task = Task(case.prompt(), case.answer, *ids)
            results = {
                name: library.explain(name, task)
                for library in libraries
                for name in library.methods
                if name in only[kind]
            }
            cases[kind].append(explained(reference, case, number, results))
            report["generated"][kind] = number + 1
            save()
            typer.echo(f"{kind}: {len(cases[kind])} of {goals[kind]}", err=True)


def finish(reference: Reference, report: dict[str, Any], save: Callable[[], None]) -> None:
    """Leaves units out in those cases that are shown and have not been through it."""
    way = best_way(report["cases"])
    for kind, records in report["cases"].items():
        for record in shown(kind, records):
            if record.get("way") != way:
                case = next(generated(kind, record["number"]))[1]
                delete(reference, case, record, way)
                save()
        typer.echo(f"{kind}: units left out", err=True)


# Tables.


def short(kind: str) -> bool:
    """Whether units are left out one by one, and some cases are for validation."""
    return not kind.startswith("needles")


def shown(kind: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases that tables show: of short kinds all but every fourth, of needles all."""
    return [r for place, r in enumerate(records) if place % 4 or not short(kind)]


def names_of(records: Sequence[dict[str, Any]]) -> list[str]:
    """The methods that explained every one of these cases."""
    return [
        name
        for name in records[0]["methods"]
        if all("error" not in r["methods"].get(name, {"error": ""}) for r in records)
    ]


def best_way(cases: dict[str, list[dict[str, Any]]]) -> str:
    """How scores are added up: by the mean recall@1 of all methods on validation cases."""
    means = {
        way: np.mean(
            [
                recall(ranked(np.array(record["methods"][name][way])), record["sources"], 1)
                for kind, records in cases.items()
                if short(kind) and records
                for name in names_of(records[::4])
                if name not in (RANDOM, REFERENCE)
                for record in records[::4]
            ]
            or [0.0]
        )
        for way in WAYS
    }
    return max(WAYS, key=lambda way: means[way])


def value(record: dict[str, Any], name: str, column: str, way: str) -> float:
    """One figure of a method for a case; NaN where there is none."""
    entry = record["methods"][name]
    totals = np.array(entry[way])
    order = ranked(totals)
    if column.startswith("recall@"):
        return recall(order, record["sources"], int(column[7:]))
    if column == "sources":  # recall at their number
        return recall(order, record["sources"], len(record["sources"]))
    if column == "token":
        return float(entry.get("token", np.nan))
    if column == "deletion":
        curve = entry["curve"]
        return area(curve) if len(curve) > 2 else float(curve[1])
    if REFERENCE not in record["methods"]:
        return np.nan
    drops = np.array(record["methods"][REFERENCE][way])
    if column == "first":
        return float(order[0] == int(drops.argmax()))
    rho = float(spearmanr(totals, drops).statistic) if np.ptp(totals) else 0.0
    return rho


def values(records: Sequence[dict[str, Any]], name: str, column: str, way: str) -> list[float]:
    """A figure of a method for each case."""
    return [value(record, name, column, way) for record in records]


COLUMNS = {  # the title of each, and which direction is better
    "recall@1": ("recall@1", 1),
    "recall@3": ("@3", 1),
    "recall@5": ("@5", 1),
    "sources": ("all sources first", 1),
    "token": ("highest token in a source", 1),
    "ρ": ("ρ with leaving out", 1),
    "first": ("same first as leaving out", 1),
    "deletion": ("deletion", -1),
}


def compared(
    records: Sequence[dict[str, Any]], name: str, base: str, column: str, way: str
) -> tuple[float, float, float, str]:
    """The mean difference of two methods, its 95 % interval, and a word for it."""
    from wherefrom.evaluation.recommendation import difference

    ours, theirs = (values(records, method, column, way) for method in (name, base))
    if np.isnan([ours, theirs]).any():
        return np.nan, np.nan, np.nan, "level"
    low, high = difference(ours, theirs)
    sign = COLUMNS[column][1]
    word = "level" if low <= 0 <= high else "ahead" if sign * low > 0 else "behind"
    return float(np.mean(ours) - np.mean(theirs)), low, high, word


def table(records: Sequence[dict[str, Any]], way: str) -> list[str]:
    """A Markdown table; ▲ and ▼: better and worse than the default, beyond chance."""
    present = [c for c in COLUMNS if not np.isnan(values(records, DEFAULT, c, way)).any()]
    counts = {len(record["sources"]) for record in records}
    if counts == {1}:
        present.remove("sources")  # the same as recall@1
    elif len(counts) > 1:
        present = [column for column in present if not column.startswith("recall@")]
    titles = [COLUMNS[column][0] for column in present]
    lines = [
        f"| method | {' | '.join(titles)} | gap | time | span | memory |",
        "|---" * (len(titles) + 5) + "|",
    ]
    for name in names_of(records):
        cells = []
        for column in present:
            mean = float(np.mean(values(records, name, column, way)))
            if np.isnan(mean):
                cells.append("–")
                continue
            word = compared(records, name, DEFAULT, column, way)[-1]
            mark = {"level": "", "ahead": " ▲", "behind": " ▼"}[word]
            text = minus(f"{mean:.2f}") if column in ("ρ", "deletion") else f"{mean:.0%}"
            cells.append(text + mark)
        entries = [record["methods"][name] for record in records]
        gaps = [entry["gap"] for entry in entries if entry.get("gap") is not None]
        cells.append(f"{statistics.median(gaps):.0e}" if gaps else "–")
        if "seconds" in entries[0]:
            cells += [f"{statistics.median(e[key] for e in entries):.2f} s" for key in TIMED]
            peaks = [entry["mebibytes"] for entry in entries if "mebibytes" in entry]
            cells.append(f"{max(peaks):,.0f} MiB" if peaks else "–")
        else:
            cells += ["–"] * 3
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


TIMED = ("seconds", "span")
LABELS = {"sources": "recall", "token": "highest token", "first": "same first"}


def minus(text: str) -> str:
    """A number with a proper minus sign."""
    return text.replace("-", "−")


def verdicts(records: Sequence[dict[str, Any]], way: str) -> list[str]:
    """The default less each peer: means, paired 95 % intervals, and ratios of times.

    LXT explains logits here, so `lrp` of logits is put beside it too.
    """
    lines = []
    pairs = [*((DEFAULT, peer) for peer in PEERS), *((LOGIT, peer) for peer in PEERS[:2])]
    for name, peer in pairs:
        if not {name, peer} <= set(names_of(records)):
            continue
        parts = []
        for column in ("sources", "token", "ρ", "first", "deletion"):
            mean, low, high, word = compared(records, name, peer, column, way)
            if not np.isnan(mean):
                label = LABELS.get(column, column)
                parts.append(f"{label} {minus(f'{mean:+.2f} [{low:+.2f}, {high:+.2f}]')} {word}")
        for key in TIMED:
            ours, theirs = (
                statistics.median(record["methods"][method][key] for record in records)
                for method in (name, peer)
            )
            parts.append(f"{'time' if key == 'seconds' else key} × {ours / theirs:.2f}")
        lines.append(f"- {name} less {peer}: {'; '.join(parts)}.")
    return lines


def markdown(report: dict[str, Any]) -> str:
    """All tables."""
    way = best_way(report["cases"])
    lines = [f"Scores of tokens are added up by unit: {way}."]
    missing: dict[str, str] = dict(report["missing"])
    for kind, every in report["cases"].items():
        records = [record for record in shown(kind, every) if "way" in record]
        if not records:
            continue
        tokens = statistics.median(record["tokens"] for record in records)
        lines += [
            "",
            f"**{kind}**: {len(records)} cases; {len(every)} count of {report['generated'][kind]} "
            f"generated; {tokens:,.0f} tokens, {records[0]['units']} units",
            "",
            *table(records, way),
            "",
            *verdicts(records, way),
        ]
        for record in records:
            for name, entry in record["methods"].items():
                if "error" in entry:
                    missing.setdefault(f"{name}, {kind}", entry["error"])
    pooled = [
        record
        for kind, every in report["cases"].items()
        if short(kind)
        for record in shown(kind, every)
        if "way" in record
    ]
    if pooled:
        lines += ["", f"**short kinds together**: {len(pooled)} cases", "", *table(pooled, way)]
        lines += ["", *verdicts(pooled, way)]
    if missing:
        lines += ["", "Not run:", "", *(f"- {name}: {why}." for name, why in missing.items())]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """The versions of the libraries that can be found."""
    present = {}
    for name in ("torch", "transformers", "lxt", "flashtrace"):
        with suppress(PackageNotFoundError):
            present[name] = version(name)
    return present


def main(
    model: Annotated[str, typer.Option(help="A folder with a Llama and its tokenizer.")] = "",
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds.")] = ",".join(KINDS),
    count: Annotated[int, typer.Option(help="Cases of each short kind.")] = 60,
    many: Annotated[int, typer.Option("--needles", help="Cases of each length of needles.")] = 4,
    lengths: Annotated[str, typer.Option(help="Tokens of needles.")] = "512,1024,2048,4096",
    peers: Annotated[list[Path] | None, typer.Option(help="Folder with libraries.")] = None,
    memory_limit: Annotated[float, typer.Option("--memory", help="GiB for a library.")] = 12.0,
    out: Annotated[Path | None, typer.Option(help="A JSON file; continued if it is there.")] = None,
    minutes: Annotated[float, typer.Option(help="Begin no further round after these.")] = 1e6,
    methods: Annotated[
        str, typer.Option(help="Methods, separated by a semicolon and a space.")
    ] = "",
    tables: Annotated[bool, typer.Option("--tables", help="Only print what `out` has.")] = False,
) -> None:
    """Runs the cases and prints the tables."""
    from wherefrom.storage.writing import write_text

    report: dict[str, Any] = {"versions": {}, "generated": {}, "cases": {}, "missing": {}}
    if out is not None and out.exists():
        report = json.loads(out.read_text(encoding="utf-8"))
    if tables:
        typer.echo(markdown(report))
        return
    if not Path(model).is_dir():
        raise typer.BadParameter(f"{model!r} is no folder with a model.", param_hint="--model")
    goals = {}
    for kind in kinds.split(","):
        if kind not in KINDS:
            raise typer.BadParameter(
                f"{kind!r} is none of {', '.join(KINDS)}.", param_hint="--kinds"
            )
        if kind == "needles":
            goals |= {f"needles {int(length)}": many for length in lengths.split(",")}
        else:
            goals[kind] = count
    sys.path += map(str, peers or ())  # at the end: no other version of torch comes in
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch  # what libraries share is imported before the processes are forked
    import transformers.models.llama.modeling_llama  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import wherefrom.methods  # noqa: F401

    report["versions"] = versions()
    names = methods.split("; ") if methods else list(STANDARD)
    long = [name for name in names if name in (DEFAULT, *PEERS)] if not methods else names
    only = {kind: names if short(kind) else long for kind in goals}
    libraries = [Library(name) for name in LIBRARIES]
    try:
        for library in libraries:
            library.start(model, memory_limit)
            if library.problem is not None:
                report["missing"][library.name] = library.problem
            else:
                report["missing"].pop(library.name, None)
        torch.set_num_threads(1)
        reference = Reference(
            AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(),
            AutoTokenizer.from_pretrained(model),
        )

        def save() -> None:
            if out is not None:
                write_text(out, json.dumps(report) + "\n")

        run(libraries, reference, goals, report, only, save, minutes)
        finish(reference, report, save)
    finally:
        for library in libraries:
            library.stop()
    typer.echo(markdown(report))


if __name__ == "__main__":
    typer.run(main)
