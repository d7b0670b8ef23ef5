"""Whether a reference makes the secants of a language model point at the right words.

    python -m benchmarks.references --model MODEL [--limit 10] [--out FILE] [--layers]

The prompts of `benchmarks.language`. `secant` splits f(x) − f(x′); what x′ is, is the question: all
words the mean embedding or a newline, only the facts, one sentence at a time, a part of the way to
the mean, the mean of each word's nearest neighbours in the embedding table, the words in another
order, another prompt of the same form. Of several references for one prompt the scores are added up
(sentences) or averaged (orders, prompts).

For each: how often the source has the highest score of all tokens, and of all but the first; the
rank correlation with leave-one-out, special tokens and the first aside; how often the sentence of
the source has the highest sum; and the correlation of these sums with Shapley values of the facts,
exact over all subsets of facts in the text, the question kept. In brackets: the contrast.
`--layers` prints instead, after each block, the relevance of groups of positions beside what the
contrast loses if the states there are those of the reference. `--out` keeps rows; a second call
with the same settings adds those missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

import wherefrom
from benchmarks import language
from benchmarks.language import COLOURS, NAMES, SPLITS, THINGS, cases
from wherefrom import Method
from wherefrom.core.shapley import coalitions
from wherefrom.core.target import Case, Target
from wherefrom.evaluation.recommendation import difference
from wherefrom.inputs.text import batch
from wherefrom.methods import method
from wherefrom.methods.forward_pass import intercepted_forward
from wherefrom.methods.propagation import Lrp, Propagation
from wherefrom.methods.root import root_change
from wherefrom.rules.secants import TWO_POINTS
from wherefrom.storage.writing import write_text
from wherefrom.studies.layer_profile import ActivationRecorder, unit_profile
from wherefrom.tracing.tracer import RootActivations

Floats = NDArray[np.float64]
Both = tuple[Any, Any]  # of the logit, and of the contrast
MEASURES = ("source first", "first token aside", "ρ", "sentence first", "r with Shapley")


@dataclass(frozen=True, eq=False)
class Prompt:
    """A case, its model, and the sentence of each token; the question is the last."""

    explainer: Any
    case: language.Case

    @cached_property
    def table(self) -> Tensor:
        """The embeddings, (vocabulary, D)."""
        table: Tensor = self.explainer.runner.model.get_input_embeddings().weight.detach()
        return table

    @cached_property
    def rows(self) -> Tensor:
        """What enters the model, (T, D)."""
        return self.table[list(self.case.ids)]

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The characters of each token; none of a special token."""
        tokenizer, text = self.explainer.tokenizer, self.case.prompt
        spans: list[tuple[int, int]] = tokenizer(text, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        return spans

    @cached_property
    def words(self) -> Tensor:
        """Which tokens are no special tokens, (T,)."""
        return torch.tensor([end > start for start, end in self.spans])

    @cached_property
    def sentences(self) -> Tensor:
        """The number of each token's sentence, (T,)."""
        dots = [match.start() for match in re.finditer(r"\.", self.case.prompt)]
        return torch.tensor([sum(dot < end - 1 for dot in dots) for _, end in self.spans])

    @property
    def facts(self) -> int:
        """How many sentences come before the question."""
        return int(self.sentences.max())

    def targets(self, copies: int) -> tuple[Target, Target]:
        """The logit of the answer, and its contrast."""
        answer, rival, last = (
            torch.full((copies,), number)
            for number in (self.case.answer, self.case.rival, len(self.case.ids) - 1)
        )
        return Target(answer, position=last), Target(answer, rival, last)

    def copies(self, count: int) -> Case:
        """The prompt, so many times."""
        explainer = self.explainer
        encoded = explainer.encode([self.case.prompt])
        inputs = batch(explainer.runner, explainer.tokenizer, encoded * count)
        return Case(explainer.runner, inputs, self.targets(count)[0])

    def outputs(self, ids: list[list[int]]) -> tuple[Floats, Floats]:
        """Logits and contrasts of token sequences of one length."""
        with torch.no_grad():
            model = self.explainer.runner.model
            logits = model(torch.tensor(ids), logits_to_keep=1).logits[:, -1].double()
        answer = logits[:, self.case.answer]
        return answer.numpy(), (answer - logits[:, self.case.rival]).numpy()

    def without_each(self) -> Both:
        """What is lost when a token is deleted, (T,) each."""
        ids = list(self.case.ids)
        fewer = self.outputs([ids[:i] + ids[i + 1 :] for i in range(len(ids))])
        return tuple(all_ - less for all_, less in zip(self.outputs([ids]), fewer, strict=True))  # type: ignore[return-value]

    def shapley(self) -> Both:
        """The Shapley values of the facts, which are in the text or not."""
        plan, last = coalitions(self.facts), torch.tensor([True])
        outputs = [
            self.outputs([ids[torch.cat([mask, last])[self.sentences] | ~self.words].tolist()])
            for mask in plan.masks
            for ids in [torch.tensor(self.case.ids)]
        ]
        values = [plan.estimate(torch.tensor([o[k][0] for o in outputs])).values for k in (0, 1)]
        return values[0].numpy(), values[1].numpy()


Roots = Callable[[Prompt], Tensor]
"""References of a prompt, (references, T, D)."""


def moved(prompt: Prompt, places: Tensor, blank: Tensor) -> Tensor:
    """The prompt with other embeddings at these places, special tokens aside."""
    return torch.where((places & prompt.words).unsqueeze(-1), blank, prompt.rows)


def mean(prompt: Prompt) -> Tensor:
    """The mean embedding, (D,)."""
    return prompt.table.mean(0)


def token(prompt: Prompt, text: str) -> Tensor:
    """The embedding of a token, (D,)."""
    return prompt.table[prompt.explainer.tokenizer(text, add_special_tokens=False)["input_ids"][-1]]


newline = partial(token, text="\n")


def neighbours(prompt: Prompt, count: int) -> Tensor:
    """The mean of the nearest other tokens by cosine, (T, D)."""
    unit = partial(torch.nn.functional.normalize, dim=-1)
    near = (unit(prompt.rows) @ unit(prompt.table).T).topk(count + 1).indices[:, 1:]
    return prompt.table[near].mean(1)


def whole(blank: Roots) -> Roots:
    """All words are replaced."""
    return lambda prompt: moved(prompt, prompt.words, blank(prompt)).unsqueeze(0)


def only_facts(blank: Roots) -> Roots:
    """All words but those of the question are replaced."""
    return lambda prompt: moved(prompt, prompt.sentences < prompt.facts, blank(prompt)).unsqueeze(0)


def by_sentence(blank: Roots) -> Roots:
    """One sentence is replaced at a time."""

    def roots(prompt: Prompt) -> Tensor:
        numbers = torch.arange(prompt.facts + 1).unsqueeze(1)
        return moved(prompt, prompt.sentences == numbers, blank(prompt))

    return roots


def shuffled(prompt: Prompt, count: int = 4) -> Tensor:
    """The words in other orders."""
    draw, places = torch.Generator().manual_seed(0), prompt.words.nonzero().flatten()
    out = prompt.rows.repeat(count, 1, 1)
    for row in out:
        row[places] = prompt.rows[places[torch.randperm(len(places), generator=draw)]]
    return out


def other(prompt: Prompt, lists: tuple[list[str], ...], count: int = 4) -> Tensor:
    """Each word of these lists becomes another of its list, the same one everywhere."""
    draw, out = np.random.default_rng(0), prompt.rows.repeat(count, 1, 1)
    present, ids = set(re.findall(r"\w+", prompt.case.prompt)), torch.tensor(prompt.case.ids)
    tokens = partial(prompt.explainer.tokenizer, add_special_tokens=False)
    for row in out:
        for words in lists:
            olds = [word for word in words if word in present]
            news = draw.permutation([word for word in words if word not in present])
            for old, new in zip(olds, news.tolist(), strict=False):
                for space in ("", " "):
                    before, after = (tokens(space + word)["input_ids"] for word in (old, new))
                    if len(before) == len(after) == 1:
                        row[ids == before[0]] = prompt.table[after[0]]
    return out


@dataclass(frozen=True)
class Row:
    """A method, or `secant` with references whose scores are added up with a weight."""

    contender: Method | None = None
    roots: Roots | None = None
    weight: float = 1.0
    on: tuple[str, ...] = ("capital", "planted")

    def scores(self, prompt: Prompt) -> Both:
        """The scores of the logit and of the contrast, (T,) each."""
        roots = None if self.roots is None else self.roots(prompt)
        contender = self.contender or method("secant", root=roots)
        copies = 1 if roots is None else len(roots)
        case, results = prompt.copies(copies), []
        assert isinstance(contender, Propagation)
        graph = contender.graph(case)
        for target in prompt.targets(copies):
            scores = (
                contender.scores(case.with_target(target))
                if graph is None
                else graph.scores(target, retain=True, diagnosed=False)
            )
            results.append(self.weight * scores.values.sum(0).numpy())
        return results[0], results[1]


def part(share: float) -> Roots:
    """A part of the way from the prompt to the mean."""
    return whole(lambda prompt: torch.lerp(prompt.rows, mean(prompt), share))


FACTS = ("planted",)
ROWS: dict[str, Row] = {
    "`lrp`": Row(method("lrp", root="mean")),
    "all words the mean": Row(method("secant", root="mean")),
    "all words newlines": Row(roots=whole(newline)),
    "¹⁄₁₀ of the way to the mean": Row(roots=part(0.1), weight=10),
    "¼ of the way": Row(roots=part(0.25), weight=4),
    "½ of the way": Row(roots=part(0.5), weight=2),
    "nearest neighbour": Row(roots=whole(partial(neighbours, count=1))),
    "16 neighbours": Row(roots=whole(partial(neighbours, count=16))),
    "other orders (4)": Row(roots=shuffled, weight=1 / 4),
    "only the facts, the mean": Row(roots=only_facts(mean), on=FACTS),
    "only the facts, newlines": Row(roots=only_facts(newline), on=FACTS),
    "a sentence at a time, the mean": Row(roots=by_sentence(mean), on=FACTS),
    "a sentence at a time, newlines": Row(roots=by_sentence(newline), on=FACTS),
    "other prompts of the form (4)": Row(
        roots=partial(other, lists=(COLOURS, NAMES, THINGS)), weight=1 / 4, on=FACTS
    ),
    "all words the mean, `splits=1`": Row(method("secant", root="mean", splits=1)),
    "all words the mean, `splits=2`": Row(method("secant", root="mean", splits=2)),
}


def measured(prompt: Prompt, scores: Floats, lost: Floats, shapley: Any) -> list[float]:
    """The values of MEASURES."""
    words, source = prompt.words.numpy().copy(), prompt.case.source
    first = int(scores.argmax()) in source
    words[: max(1, int((~words).sum()))] = False  # the first token, or <bos>
    aside = int(np.where(words, scores, -np.inf).argmax()) in source
    values = [first, aside, spearmanr(scores[words], lost[words]).statistic]
    if shapley is not None:
        own = [(prompt.sentences == number).numpy() & words for number in range(prompt.facts)]
        sums = np.array([scores[places].sum() for places in own])
        values += [own[sums.argmax()][source[0]], np.corrcoef(sums, shapley)[0, 1]]
    return list(map(float, values))


def markdown(kind: str, rows: dict[str, Any]) -> str:
    """A table: the logit, and in brackets the contrast; ▲ and ▼ against `lrp`."""
    base = rows["`lrp`"]
    count, width = len(base[0]), len(base[0][0])
    names = MEASURES[:width]
    lines = [f"**{kind}**, {count} prompts", "", f"| reference | {' | '.join(names)} |"]
    lines.append("|---" * (width + 1) + "|")
    for label, both in rows.items():
        cells = []
        for k, name in enumerate(names):
            texts = []
            for values, others in zip(both, base, strict=True):
                own, theirs = ([float(v[k]) for v in each] for each in (values, others))
                low, high = difference(own, theirs)
                mark = "" if low <= 0 <= high else " ▲" if low > 0 else " ▼"
                value = float(np.mean(own))
                texts.append(f"{value:.0%}{mark}" if "first" in name else f"{value:.2f}{mark}")
            cells.append(f"{texts[0]} ({texts[1]})")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def by_block(prompt: Prompt, roots: Tensor) -> dict[int, list[float]]:
    """Values of GROUPS after each block: by `secant`, by `lrp` without a root, and lost.

    Lost is what the contrast loses if the states of the group are those of the reference.
    """
    case = prompt.copies(1).with_target(prompt.targets(1)[1])
    runner, model = case.runner, case.runner.model
    activations, states = RootActivations(), []
    for change in (root_change(case.batch, roots), None):
        recorder = ActivationRecorder.of(model)
        with (
            recorder.open(),
            intercepted_forward(
                TWO_POINTS, case, change=change, root_activations=activations
            ) as forward,
        ):
            states.append({name: value.detach() for name, value in recorder.blocks.items()})
            if change is None:
                gradients = forward.gradients(list(recorder.blocks.values()))
        activations.recording = False
    table = Lrp(root=None).resolved(case.batch).table()
    one_pass = unit_profile(runner, case.batch, case.target, table).units
    places = groups(prompt)
    whole_output, found = prompt.outputs([list(prompt.case.ids)])[1], {}
    for number, (name, gradient) in enumerate(zip(states[1], gradients, strict=True)):
        before, at = states[0][name], states[1][name]
        relevance = (gradient * (at - before)).double().sum(-1)[0].numpy()
        mixed = torch.where(torch.tensor(places).unsqueeze(-1), before, at)  # (groups, T, D)

        def instead(module: Any, args: Any, out: Any, mixed: Tensor = mixed) -> Any:
            return (mixed, *out[1:]) if isinstance(out, tuple) else mixed

        with model.get_submodule(name).register_forward_hook(instead):
            lost = whole_output - prompt.outputs([list(prompt.case.ids)] * len(places))[1]
        found[number] = [*(places @ relevance), *(places @ one_pass[name]), *lost]
    return found


GROUPS = ("source", "other facts", "question", "last token")


def groups(prompt: Prompt) -> NDArray[np.bool_]:
    """The tokens of GROUPS, (groups, T); the rest of the source's sentence is in none."""
    sentences, source = prompt.sentences.numpy(), list(prompt.case.source)
    places = np.arange(len(sentences))
    asked = sentences == prompt.facts
    return np.stack(
        [
            np.isin(places, source),
            ~asked & (sentences != sentences[source[0]]),
            asked & (places < places[-1]),
            places == places[-1],
        ]
    )


def layers(prompts: list[Prompt]) -> str:
    """A table by block: medians over the prompts."""
    blocks = [by_block(prompt, whole(mean)(prompt)) for prompt in prompts]
    lines = [f"| after block | {' | '.join(GROUPS)} |", "|---" * (len(GROUPS) + 1) + "|"]
    for number in blocks[0]:
        medians = np.median([block[number] for block in blocks], 0).reshape(3, -1).T
        cells = [" / ".join(f"{value:+.2f}" for value in of_group) for of_group in medians]
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return "\n".join(["`secant` / `lrp` / lost with the reference's states", "", *lines])


def add_rows(
    prompts: list[Prompt], results: dict[str, Any], labels: list[str], save: Callable[[], None]
) -> None:
    """Measures the rows that the results of a kind lack."""
    if "lost" not in results:
        results["lost"] = [[v.tolist() for v in p.without_each()] for p in prompts]
        results["shapley"] = [
            [v.tolist() for v in p.shapley()] if p.facts else [None, None] for p in prompts
        ]
        save()
    lost, rows = results["lost"], results["rows"]
    for label in ["leaving out", *labels]:
        if label in rows:
            continue
        found = lost if label not in ROWS else [ROWS[label].scores(prompt) for prompt in prompts]
        rows[label] = [
            [
                measured(prompt, np.array(scores[k]), np.array(effects[k]), values[k])
                for prompt, scores, effects, values in zip(
                    prompts, found, lost, results["shapley"], strict=True
                )
            ]
            for k in (0, 1)
        ]
        save()
        typer.echo(label, err=True)


def main(
    model: Annotated[str, typer.Option(help="A language model: a folder or a name.")],
    split: Annotated[str, typer.Option(help="validation (even prompts), test or all.")] = "test",
    count: Annotated[int, typer.Option(help="Prompts with planted facts.")] = 200,
    limit: Annotated[int, typer.Option(help="Cases of each kind.")] = 10,
    kinds: Annotated[str, typer.Option(help="Comma-separated kinds.")] = "planted,capital",
    only: Annotated[str, typer.Option(help="Rows, separated by a semicolon and a space.")] = "",
    by_layer: Annotated[bool, typer.Option("--layers", help="Relevance by block.")] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file; continued if it is there.")] = None,
) -> None:
    """Prints a table for each kind of prompt."""
    torch.set_num_threads(1)
    explainer, report = wherefrom.load(model), {}
    if out is not None and out.exists():
        report = json.loads(out.read_text(encoding="utf-8"))
    if "cases" not in report:
        report["cases"] = [vars(case) for case in cases(explainer, count)]

    def save() -> None:
        if out is not None:
            write_text(out, json.dumps(report) + "\n")

    save()
    for kind in kinds.split(","):
        known = [language.Case(**case) for case in report["cases"] if case["kind"] == kind]
        prompts = [Prompt(explainer, case) for case in known[SPLITS[split]][:limit]]
        if by_layer:
            typer.echo(layers(prompts))
            continue
        results = report.setdefault(kind, {"rows": {}})
        chosen = [label for label in (only.split("; ") if only else ROWS) if kind in ROWS[label].on]
        add_rows(prompts, results, chosen, save)
        typer.echo(markdown(kind, results["rows"]))


if __name__ == "__main__":
    typer.run(main)
