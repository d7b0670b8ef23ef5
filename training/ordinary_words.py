"""Makes the list of first names that are also ordinary words, for texts in lower case.

    python -m training.ordinary_words --names names.csv imdb/train.csv.gz imdb/test.csv.gz

A name is counted as an ordinary word if cased texts write it with a small first letter at least
five times, and at least one time in five. Counted were the 7,536 names of one word of Kantrowitz
and Ross (the NLTK corpus `names`) over the 50,000 IMDB reviews of Maas et al. (2011). The count
alone misses words that films mostly capitalise (places, months, titles, flowers that are
characters), and it includes a few names that are merely misspelt: both are corrected by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer

import wherefrom.corpus
from wherefrom.corpus.names import WORD, read_lexicon
from wherefrom.inputs.table import read_table

LIST = Path(wherefrom.corpus.__file__).with_name("ordinary_words.txt")
MIN_COUNT, MIN_SHARE = 5, 0.2
ADDED = """
abbey abbot al amber april asia august austin autumn baron belle bill brit bud buster canada
chastity chelsea christ christian constance daffy daisy dove duke earl easter ed fox france
frank french gentle georgia ginger grant hardy harvard hazel heather holly iris israel ivy
jade june kitty lane laurel lily mart max modesty moss myrtle olive opal oscar pearl pepper
pip porter prudence randy ray rod roman ruby sage scarlet shepherd sissy solace spike summer
sydney temperance valentine velvet verity violet virtue viva washington welsh willy wood yale
""".split()
REMOVED = "beck blanche dory ki tiff".split()
HEADER = """\
# First names that are also ordinary English words or places, written by training/ordinary_words.py.
# Names: Kantrowitz and Ross. Counts: IMDB reviews, Maas et al. 2011.
"""


def lower_case_names(
    texts: Iterable[str],
    names: Collection[str],
    min_count: int = MIN_COUNT,
    min_share: float = MIN_SHARE,
) -> list[str]:
    """The names that texts write with a small first letter often enough.

    >>> lower_case_names(["I will go.", "Will will.", "Ann, ann?"], {"will", "ann"}, 2, 0.5)
    ['will']
    """
    uses: Counter[str] = Counter()
    lower: Counter[str] = Counter()
    for text in texts:
        for word in WORD.findall(text):
            name = word.casefold()
            if name in names:
                uses[name] += 1
                lower[name] += word[0].islower()
    return sorted(name for name in uses if lower[name] >= max(min_count, min_share * uses[name]))


def main(
    data: Annotated[list[Path], typer.Argument(help="Cased texts: CSV, JSONL or Parquet files.")],
    names: Annotated[Path, typer.Option(help="A file of names and their groups.")],
    out: Annotated[Path, typer.Option(help="The list to write.")] = LIST,
) -> None:
    """Counts, corrects, and writes the list."""
    single = {words[0] for words in read_lexicon(names).groups if len(words) == 1}
    texts = (text for path in data for text in read_table(path).texts)
    counted = [name for name in lower_case_names(texts, single) if name not in REMOVED]
    added = [name for name in ADDED if name not in counted]
    lines = ["# By count:", *counted, "# By hand:", *added]
    out.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    typer.echo(f"wrote {len(counted)} counted and {len(added)} added words to {out}")


if __name__ == "__main__":
    typer.run(main)
