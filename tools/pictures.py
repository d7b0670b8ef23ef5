"""Draws the figures of docs/images that need only the embedded models: python -m tools.pictures.

With --data TABLE, also the report of a corpus, as a screenshot by chromium.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import wherefrom
from wherefrom.corpus import explain_corpus, overview

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TEXT = "It was not as bad as they said, but the plot is thin and the leads are charming."
METHODS = ("secant", "lrp", "attn_lrp", "integrated_gradients", "gae", "occlusion")


def draw() -> None:
    """A comparison of methods and a waterfall, as papers print them."""
    explainer = wherefrom.load("sentiment")
    explainer.compare(TEXT, METHODS).plot(path=IMAGES / "methods.png", dpi=150)
    explainer(TEXT).plot("waterfall", IMAGES / "waterfall.png", dpi=150)


def photograph(data: Path) -> None:
    """The report of a corpus in chromium."""
    view = overview(explain_corpus(wherefrom.load("sentiment"), wherefrom.read_table(data)))
    with TemporaryDirectory() as folder:
        page = view.to_html(Path(folder) / "report.html")
        subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--hide-scrollbars",
                "--window-size=1000,900", f"--screenshot={IMAGES / 'corpus.png'}", page.as_uri(),
            ],
            check=True, capture_output=True,
        )  # fmt: skip


def main() -> None:
    """Draws the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a table of texts with their labels")
    options = parser.parse_args()
    draw()
    if options.data is not None:
        photograph(options.data)


if __name__ == "__main__":
    main()
