"""Sentences that a model writes about given facts, with the signals of whether they are supported.

    python -m benchmarks.answers.collect --out FOLDER [--rounds 40]

A file for each model, a line for each sentence; a second call continues where the files end.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import wherefrom
from benchmarks.answers.claims import KINDS, Claims, claims, value_in
from wherefrom import Prompt
from wherefrom.answers.answer import Answer
from wherefrom.answers.sources import PromptSpan
from wherefrom.answers.tokens import read_prompt

QUANTITIES = ("contrast", "logprob")
TOKENS = 14  # that the model writes of a sentence, at most


@dataclass(frozen=True)
class Sentence:
    """A completed sentence and what it claims."""

    step: int
    subject: str
    value: str
    start: int  # in the answer
    end: int


def completed(explainer: Any, ids: list[int], numeric: bool) -> tuple[str, str]:
    """The value that the model writes after these tokens, and its text to the end of the sentence.

    The text is empty if the sentence does not end.
    """
    tokenizer = explainer.tokenizer
    inputs, cache, more = torch.tensor([ids]), None, list[int]()
    for _ in range(TOKENS):
        with torch.no_grad():
            output = explainer.runner.model(
                inputs, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
        cache = output.past_key_values
        more.append(int(output.logits[0, -1].argmax()))
        text = tokenizer.decode(more)
        value = value_in(text, numeric)
        stop = text.find(".", text.find(value) + len(value)) if value else -1
        if stop > 0 or more[-1] == tokenizer.eos_token_id or "\n" in text.strip():
            return value, text[: stop + 1] if "\n" not in text[:stop].strip() else ""
        inputs = torch.tensor([more[-1:]])
    return "", ""


def written(explainer: Any, prompt: Prompt, case: Claims) -> tuple[str, list[Sentence]]:
    """The answer as the model completes its sentences, up to one that does not end."""
    tokenizer = explainer.tokenizer
    ids = read_prompt(tokenizer, prompt).ids
    text, value = "" if tokenizer.chat_template else " ", ""
    sentences: list[Sentence] = []
    for number, step in enumerate(case.steps):
        subject, start = step.subject or value, len(text)
        beginning = text + step.beginning.format(subject)
        before = [*ids, *tokenizer(beginning, add_special_tokens=False)["input_ids"]]
        value, more = completed(explainer, before, step.numeric)
        if not value or not more:
            break
        text = beginning + more
        sentences.append(Sentence(number, subject, value, start, len(text)))
        text += " "
    return text[: sentences[-1].end] if sentences else "", sentences


def relevance(answer: Answer, of: Any, span: PromptSpan) -> dict[str, float]:
    """The relevance of each part and of earlier tokens of the answer, and the output."""
    row = replace(answer.attribution, of=of).span(answer.measured, span.first, span.last)
    sums = {name: float(row.values[units].sum()) for name, units in answer.places("passage")}
    earlier = float(row.values[answer.start :].sum())
    return {**sums, "earlier": earlier, "output": row.output}


def records(explainer: Any, kind: str, number: int) -> Iterator[dict[str, Any]]:
    """What is measured for each sentence of a case."""
    case = claims(kind, number)
    prompt = Prompt(case.question, list(case.passages))
    text, sentences = written(explainer, prompt, case)
    if not sentences:
        yield {"kind": kind, "number": number, "step": None}
        return
    answer = explainer.answer(prompt, text)
    names = [part.name for part in answer.parts if part.kind == "passage"]
    measured = answer.measured.log_probabilities
    alone = measured - answer.attribution.log_probabilities_without(*names)
    drops: dict[str, Any] = {}
    for sentence in sentences:
        span = answer._of_characters(sentence.start, sentence.end)
        where = slice(span.first, span.last)
        sums = {of: relevance(answer, of, span) for of in QUANTITIES}
        for of in QUANTITIES:  # the first by each, and the second by log-probability
            for name in sorted(names, key=lambda name: -sums[of][name])[: 1 + (of == "logprob")]:
                if name not in drops:
                    drops[name] = measured - answer.attribution.log_probabilities_without(name)
        fact = case.facts.get((sentence.step, sentence.subject))
        pieces = answer.attribution.answer.pieces[where]
        yield {
            "kind": kind,
            "number": number,
            "step": sentence.step,
            "text": text[sentence.start : sentence.end],
            "value": sentence.value,
            "supported": fact is not None and fact[0] == sentence.value,
            "source": None if fact is None or fact[0] != sentence.value else fact[1],
            "known": bool(case.known) and sentence.value == case.known,
            "poisoned": bool(case.payload) and sentence.value == case.payload,
            "attacked": bool(case.payload) and case.payload in case.passages[-1],
            "tokens": list(pieces),
            "log_probabilities": answer.measured.log_probabilities[where].round(5).tolist(),
            "others": answer.measured.other_log_probabilities[where].round(5).tolist(),
            "drops": {name: drop[where].round(5).tolist() for name, drop in drops.items()},
            "alone": alone[where].round(5).tolist(),
            "relevance": sums,
        }


def main(
    out: Annotated[Path, typer.Option(help="A folder with a file for each model; continued.")],
    models: Annotated[str, typer.Option(help="Comma-separated.")] = "smollm2,gemma3-270m",
    rounds: Annotated[int, typer.Option(help="Cases of each kind.")] = 40,
) -> None:
    """Writes sentences with their signals, one case of each kind in turn."""
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    explainers = {name: wherefrom.load(name) for name in models.split(",")}
    for number in range(rounds):
        for name, explainer in explainers.items():
            path = out / f"{name}.jsonl"
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            done = {(record["kind"], record["number"]) for record in map(json.loads, lines)}
            for kind in KINDS:
                if (kind, number) in done:
                    continue
                began = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = list(records(explainer, kind, number))
                seconds = round(time.process_time() - began, 2)
                with path.open("a", encoding="utf-8") as file:
                    for record in found:
                        file.write(json.dumps({**record, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    typer.run(main)
