"""Writes the heatmap of the documentation's first page, from an answer that was explained before.

    python -m tools.widget site/assets/answer.html
    python -m tools.widget --generate    # explains the answer anew; needs the model smollm2

The page is the one that `answer.to_html` writes, so it shows what the library shows now; only the
numbers in docs/data/answer.json are stored.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import wherefrom
from wherefrom import Answer, Passage, Prompt

STORED = Path(__file__).parents[1] / "docs" / "data" / "answer.json"


def generate() -> None:
    """Lets SmolLM2 answer from three passages, and stores the relevance of every token."""
    prompt = Prompt(
        question="What is the password of the garden gate?",
        passages=[
            "Tom moved to Oslo in 1990. He likes fish.",
            Passage("The red car belongs to Paul. It is fast.", title="Cars"),
            "The password of the garden gate is banana.",
        ],
    )
    answer = wherefrom.load("smollm2").generate(prompt, max_new_tokens=24)
    answer.rows()
    answer.to_json(STORED)


def main() -> None:
    """Writes the page, or the numbers that it shows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path, help="the page to write")
    parser.add_argument("--generate", action="store_true", help="explain the answer anew")
    options = parser.parse_args()
    if options.generate:
        generate()
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        Answer.from_json(STORED).to_html(options.out)


if __name__ == "__main__":
    main()
