"""Which method points at the right words of a language model's prompt: the evidence for decoders.

    python -m benchmarks.language --model MODEL [--out FILE]

Two sets of prompts whose next token has one source: capitals ("The capital of France is", the
country) and planted facts (four sentences about things and their colours, one of which is asked
for). Of the generated prompts, those count of which the model says the right token: first, or, for
capitals, among the first five. Explained is the logit of the right token, and its contrast with
the most likely other token. For each method: how often the source has the highest score of all
tokens, and of all but the first, which attracts attention whatever it is; the share of |score| on
that token; and the rank correlation with leave-one-out (a token is deleted). "--split validation"
takes the even prompts, "test" the odd ones, "all" both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import spearmanr
from torch import Tensor

import wherefrom
from wherefrom import Method
from wherefrom.evaluation.recommendation import difference
from wherefrom.methods import method
from wherefrom.storage.writing import write_text

CAPITALS = (
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Japan Tokyo, China Beijing, "
    "Russia Moscow, Egypt Cairo, Greece Athens, Austria Vienna, Poland Warsaw, Ireland Dublin, "
    "Cuba Havana, Canada Ottawa, Hungary Budapest, Portugal Lisbon, Sweden Stockholm, "
    "Norway Oslo, Finland Helsinki, Denmark Copenhagen, Belgium Brussels, Turkey Ankara, "
    "Iran Tehran, Iraq Baghdad, Peru Lima, Chile Santiago, Kenya Nairobi, Thailand Bangkok, "
    "Vietnam Hanoi, Cyprus Nicosia, Ukraine Kyiv, Romania Bucharest, Bulgaria Sofia, "
    "Serbia Belgrade, Croatia Zagreb, Slovakia Bratislava, Lebanon Beirut, Syria Damascus, "
    "Jordan Amman, Nepal Kathmandu"
)
NAMES = "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Luke".split()
COLOURS = "red blue green yellow black white purple gray pink brown".split()
THINGS = "car hat bag bike cup coat lamp chair phone book".split()
SPLITS = {"validation": slice(0, None, 2), "test": slice(1, None, 2), "all": slice(None)}
ASIDE = "source first, first token aside"
MEASURES = ("source first", ASIDE, "on the first token", "ρ with leave-one-out")


@dataclass(frozen=True)
class Case:
    """A prompt, the tokens that the answer comes from, the answer, and its best rival."""

    kind: str
    prompt: str
    ids: tuple[int, ...]
    source: tuple[int, ...]
    answer: int
    rival: int


def prompts(count: int) -> Iterator[tuple[str, str, tuple[int, int], str]]:
    """The kind, the prompt, the characters of the source, and the answer."""
    for pair in CAPITALS.split(", "):
        country, capital = pair.split()
        prompt = f"The capital of {country} is"
        start = prompt.index(country)
        yield "capital", prompt, (start, start + len(country)), f" {capital}"
    draw = np.random.default_rng(0)
    for _ in range(count):
        names, colours = draw.choice(NAMES, 4, False), draw.choice(COLOURS, 4, False)
        things = draw.choice(THINGS, 4, False)
        facts = [
            f"{name} has a {colour} {thing}."
            for name, colour, thing in zip(names, colours, things, strict=True)
        ]
        asked = int(draw.integers(4))
        prompt = " ".join(facts) + f" The color of {names[asked]}'s {things[asked]} is"
        start = len(" ".join([*facts[:asked], ""])) + facts[asked].index(colours[asked])
        yield "planted", prompt, (start, start + len(colours[asked])), f" {colours[asked]}"


def logits(model: Any, ids: list[list[int]]) -> Tensor:
    """The next token's logits, (batch, vocabulary)."""
    with torch.no_grad():
        out: Tensor = model(torch.tensor(ids)).logits[:, -1]
    return out


def cases(explainer: Any, count: int) -> Iterator[Case]:
    """Those prompts of which the model knows the answer."""
    model, tokenizer = explainer.runner.model, explainer.tokenizer
    for kind, prompt, (start, end), text in prompts(count):
        encoded = tokenizer(prompt, return_offsets_mapping=True)
        answer = tokenizer(text, add_special_tokens=False)["input_ids"][0]
        best = logits(model, [encoded["input_ids"]])[0].topk(5).indices.tolist()
        if answer in (best if kind == "capital" else best[:1]):
            offsets = enumerate(encoded["offset_mapping"])
            source = tuple(i for i, (first, last) in offsets if last > start and first < end)
            rival = next(token for token in best if token != answer)
            yield Case(kind, prompt, tuple(encoded["input_ids"]), source, answer, rival)


def leave_one_out(model: Any, case: Case, contrast: bool) -> list[float]:
    """What the output loses when a token is deleted, for each token."""
    ids = list(case.ids)
    rows = torch.cat(
        [logits(model, [ids]), logits(model, [ids[:i] + ids[i + 1 :] for i in range(len(ids))])]
    )
    outputs = rows[:, case.answer] - (rows[:, case.rival] if contrast else 0)
    changes: list[float] = (outputs[0] - outputs[1:]).tolist()
    return changes


def contenders() -> list[Method]:
    """The rules with and without a root, gates frozen or shared."""
    return [
        method("gradient_x_input"),
        method("attn_lrp"),
        method("lrp", gate="frozen", root=None),
        method("lrp", gate="shared", root=None),
        method("lrp", gate="frozen", root="mean"),
        method("lrp", gate="shared", root="mean"),
        method("lrp", gate="shared", root="mean", attention=0.1),
        method("lrp", gate="shared", root="mean", attention=0.25),
        method("secant", root="mean"),
        method("attn_lrp", root="mean"),
        method("integrated_gradients", steps=16),
    ]


def full_label(contender: Method) -> str:
    """The label with the settings that are compared here."""
    settings = contender.settings()
    names = [name for name in ("gate", "attention", "root") if name in settings]
    shown = [f"{name}={settings[name]}" for name in names if settings[name] not in ("auto", "zero")]
    return f"{contender.name}({', '.join(shown)})" if shown else contender.name


def measure(explainer: Any, chosen: list[Case], contrast: bool) -> dict[str, Any]:
    """Each method's values of each case."""
    model = explainer.runner.model
    effects = [leave_one_out(model, case, contrast) for case in chosen]
    results: dict[str, Any] = {}
    for contender in contenders():
        values: dict[str, list[float]] = {name: [] for name in MEASURES}
        for case, effect in zip(chosen, effects, strict=True):
            against = {"against": case.rival} if contrast else {}
            explanation = explainer(case.prompt, contender, target=case.answer, **against)
            scores = explanation.scores.astype(np.float64)
            measured = (
                int(scores.argmax()) in case.source,
                1 + int(scores[1:].argmax()) in case.source,
                abs(scores[0]) / np.abs(scores).sum(),
                spearmanr(scores, effect).statistic,
            )
            for name, value in zip(MEASURES, measured, strict=True):
                values[name].append(float(value))
        results[full_label(contender)] = values
    return results


def markdown(kind: str, count: int, plain: dict[str, Any], contrast: dict[str, Any]) -> str:
    """A table: the logit, and in brackets the contrast."""
    lines = [
        f"**{kind}**, {count} prompts",
        "",
        f"| method | {' | '.join(MEASURES)} |",
        f"|---|{'---|' * len(MEASURES)}",
    ]
    default = full_label(method("lrp", gate="shared", root="mean"))
    for label in plain:
        cells = []
        for name in MEASURES:
            texts = []
            for values in (plain, contrast):
                low, high = difference(values[label][name], values[default][name])
                mark = "" if low <= 0 <= high else " ▲" if low > 0 else " ▼"
                mean = float(np.mean(values[label][name]))
                texts.append((f"{mean:.2f}" if name.startswith("ρ") else f"{mean:.0%}") + mark)
            cells.append(f"{texts[0]} ({texts[1]})")
        lines.append(f"| `{label}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(
    model: Annotated[str, typer.Option(help="A language model: a folder or a name.")],
    split: Annotated[
        str, typer.Option(help="validation (even prompts), test (odd ones) or all.")
    ] = "test",
    count: Annotated[int, typer.Option(help="Prompts with planted facts.")] = 400,
    limit: Annotated[int, typer.Option(help="Cases of each kind.")] = 60,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the numbers.")] = None,
) -> None:
    """Prints a table for each kind of prompt."""
    if split not in SPLITS:
        raise typer.BadParameter(f'there is no split "{split}"; there are: {", ".join(SPLITS)}')
    torch.set_num_threads(1)
    explainer = wherefrom.load(model)
    report: dict[str, Any] = {}
    known = list(cases(explainer, count))
    for kind in ("capital", "planted"):
        of_kind = [case for case in known if case.kind == kind]
        chosen = of_kind[SPLITS[split]][:limit]
        plain, contrast = (measure(explainer, chosen, by) for by in (False, True))
        report[kind] = {"cases": len(chosen), "logit": plain, "contrast": contrast}
        typer.echo(markdown(kind, len(chosen), plain, contrast))
        if out is not None:
            write_text(out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
