"""Prompts of units with a question, the answer, and the units that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

KINDS = ("planted", "two_hop", "passages", "needles")
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
