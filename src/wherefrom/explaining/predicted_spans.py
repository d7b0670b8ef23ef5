"""Explains predicted spans: the answer to a question in its context, an entity in a text."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wherefrom.core.explanation import Explanation, TargetInfo, Unit, word_groups
from wherefrom.core.runner import Batch, ModelRunner
from wherefrom.core.target import AnswerTarget, Case, OutputNames, SpanTarget, TargetSpec
from wherefrom.errors import InputError, TargetError
from wherefrom.inputs.reader import resolve_position
from wherefrom.methods.forward_pass import run

ENDS = ("start", "end")
LONGEST_ANSWER = 15
"""The longest answer considered, in tokens, as in the pipelines of transformers."""
_OUTSIDE = "O"  # the class of tokens outside every entity
_CHUNKED = ("B-", "I-", "E-", "S-", "L-", "U-")  # begin, inside, end, single, last, unit
Explain = Callable[[SpanTarget], list[Explanation]]


def explain_answer(
    case: Case, explain: Explain, target: TargetSpec, against: TargetSpec, position: int | None
) -> Explanation:
    """Explains the answer's span: z_start of its first token plus z_end of its last.

    `target` "start" or "end" explains one of them, at `position` instead of the most likely token.
    """
    runner, units = case.runner, case.batch.units[0]
    if target not in (None, *ENDS) or against is not None:
        raise TargetError(
            f'{runner.name} predicts the start and end of an answer: the target must be "start", '
            '"end", or left out for the sum of both; there is no class to subtract.'
        )
    if position is not None and target is None:
        raise TargetError('a position needs the target "start" or "end".')
    logits = run(case).detach().cpu().double()  # (1, 2, tokens)
    context = _context(runner, units)
    logs = torch.full_like(logits[0], -torch.inf)
    logs[:, context] = logits[0][:, context].log_softmax(-1)
    first, last = _best_span(logs)
    ends, weights = (first, last), torch.ones(1, 2, dtype=torch.float64)
    if target is not None:
        row = ENDS.index(str(target))
        token = ends[row] if position is None else _within(case.batch, position)
        ends = (token, token)
        weights[0, 1 - row] = 0
        log = float(logs[row, token])
        description = f'the {target} of an answer at token {token}, "{units[token].text}"'
    else:
        log = float(logs[0, first] + logs[1, last])
        description = f"start and end of the answer, {_tokens(range(first, last + 1))}"
    index = torch.tensor([ends], device=runner.device)
    (explanation,) = explain(AnswerTarget(index, weights=weights))
    info = TargetInfo(ends[0], _text(units, *ends, case.batch.texts[0]), place=description)
    # a start is not a class: there are no other outputs to name
    return replace(explanation, target=info, probability=math.exp(log), largest=())


def _context(runner: ModelRunner, units: Sequence[Unit]) -> list[int]:
    """The tokens of the context, the second text."""
    fields = list(dict.fromkeys(unit.field for unit in units if unit.field))
    if len(fields) < 2:
        raise InputError(
            f"{runner.name} answers a question from a context: pass both.",
            'As in explainer(("Who wrote it?", "It was written by …")) or {"question": …, '
            '"context": …}.',
            command="The question is the text, the context --pair.",
        )
    return [i for i, unit in enumerate(units) if unit.field == fields[1]]


def _best_span(logs: Tensor) -> tuple[int, int]:
    """The most likely start and end, the start not after the end."""
    both = logs[0].unsqueeze(1) + logs[1].unsqueeze(0)  # (start, end)
    allowed = torch.ones_like(both).triu() - torch.ones_like(both).triu(LONGEST_ANSWER)
    best = int(both.masked_fill(allowed == 0, -torch.inf).argmax())
    return best // len(both), best % len(both)


@dataclass(frozen=True)
class Entity:
    """Consecutive words with one predicted class, which the first token of each word decides."""

    label: str
    text: str
    first_tokens: tuple[int, ...]  # of each word
    last: int  # the last token


def entities(units: Sequence[Unit], tags: Sequence[str], text: str | None) -> list[Entity]:
    """The entities of a text, from the class of each token; B- begins a new one."""
    detected: list[Entity] = []
    previous = ""
    for tokens in _words(units):
        tag = tags[tokens[0]]
        label = _kind(tag)
        if tag == _OUTSIDE:
            previous = ""
            continue
        if label == previous and not tag.startswith(("B-", "S-", "U-")):
            entity = detected.pop()
            first_tokens = (*entity.first_tokens, tokens[0])
        else:
            first_tokens = (tokens[0],)
        words = _text(units, first_tokens[0], tokens[-1], text)
        detected.append(Entity(label, words, first_tokens, tokens[-1]))
        previous = label
    return detected


def explain_entity(
    case: Case,
    explain: Explain,
    output_names: OutputNames,
    target: TargetSpec,
    against: TargetSpec,
    entity: str | None,
) -> Explanation:
    """Explains the class of an entity: the mean of its logits at the first token of each word.

    `entity` quotes its words; by default it is the first entity that the model finds.
    """
    units, text, labels = case.batch.units[0], case.batch.texts[0], output_names.labels
    logits = run(case).detach().cpu().double()[0]  # (tokens, classes)
    tags = [labels[i] for i in logits.argmax(-1).tolist()]
    detected = entities(units, tags, text)
    chosen = _first(detected, labels) if entity is None else _named(units, text, detected, entity)
    predicted = [tags[token] for token in chosen.first_tokens]
    chosen_index = _classes(output_names, target, len(predicted)) or list(
        map(output_names.index, predicted)
    )
    other_index = _classes(output_names, against, len(predicted))
    if other_index is not None and any(map(operator.eq, chosen_index, other_index)):
        raise TargetError("target and against are the same class: their difference is always 0.")

    def row(values: Sequence[int]) -> Tensor:
        return torch.tensor([values], device=case.runner.device)

    count = len(chosen.first_tokens)
    span = SpanTarget(
        row(chosen_index),
        None if other_index is None else row(other_index),
        row(chosen.first_tokens),
        torch.full((1, count), 1 / count, dtype=torch.float64),
    )
    (explanation,) = explain(span)
    chances = logits[list(chosen.first_tokens)].softmax(-1)
    info = replace(
        explanation.target,
        label=_label(labels, chosen_index),
        against_label=None if other_index is None else _label(labels, other_index),
        place=f'"{chosen.text}", {_tokens(range(chosen.first_tokens[0], chosen.last + 1))}',
    )
    probability = float(chances[range(count), chosen_index].mean())
    return replace(explanation, target=info, probability=probability, largest=())


def _first(detected: Sequence[Entity], labels: Sequence[str]) -> Entity:
    if _OUTSIDE not in labels:
        raise TargetError(
            f'the model has no class "{_OUTSIDE}", so its entities are unknown: name the words to '
            f"explain (entity), or a token (position). Classes: {', '.join(labels[:12])}."
        )
    if not detected:
        raise TargetError(
            f"the model finds no entity (every token is {_OUTSIDE}): name the words to explain "
            "(entity), or a token (position)."
        )
    return detected[0]


def _named(
    units: Sequence[Unit], text: str | None, detected: Sequence[Entity], quoted: str
) -> Entity:
    """The entity whose words are quoted from the text."""
    start = -1 if text is None else text.find(quoted)
    end = start + len(quoted)
    words = [
        tokens
        for tokens in _words(units)
        if any((units[i].start or 0) < end and (units[i].end or 0) > start for i in tokens)
    ]
    if start < 0 or not words:
        entities_found = ", ".join(entity.text for entity in detected) or "none"
        raise TargetError(
            f'"{quoted}" is not in the text. Entities that the model finds: {entities_found}.'
        )
    return Entity("", quoted, tuple(word[0] for word in words), words[-1][-1])


def _words(units: Sequence[Unit]) -> list[list[int]]:
    """The tokens of each word, without special tokens; single tokens where words are unknown."""
    return [group for group in word_groups(units) if not units[group[0]].special]


def _classes(output_names: OutputNames, spec: TargetSpec, count: int) -> list[int] | None:
    """The class of each of `count` words; "PER" is B-PER for the first and I-PER for the others."""
    if spec is None:
        return None
    known = set(output_names.labels)
    if isinstance(spec, str) and spec not in known and {f"B-{spec}", f"I-{spec}"} <= known:
        return [output_names.index(f"{'I' if i else 'B'}-{spec}") for i in range(count)]
    return [output_names.index(spec)] * count


def _label(labels: Sequence[str], indices: Sequence[int]) -> str:
    """The classes of tokens without their B- and I- prefixes."""
    return ", ".join(dict.fromkeys(_kind(labels[index]) for index in indices))


def _kind(tag: str) -> str:
    return tag[2:] if tag.startswith(_CHUNKED) else tag


def _text(units: Sequence[Unit], first: int, last: int, text: str | None) -> str:
    start, end = units[first].start, units[last].end
    if text is not None and start is not None and end is not None:
        return text[start:end]
    return " ".join(unit.text for unit in units[first : last + 1])


def _tokens(tokens: range) -> str:
    """Describes a range of tokens.

    >>> _tokens(range(3, 4)), _tokens(range(3, 6))
    ('token 3', 'tokens 3 to 5')
    """
    return f"token {tokens[0]}" if len(tokens) == 1 else f"tokens {tokens[0]} to {tokens[-1]}"


def _within(inputs: Batch, position: int) -> int:
    return int(resolve_position(inputs.mask.sum(1), position)[0])
