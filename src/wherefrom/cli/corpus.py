"""Commands over a whole corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wherefrom.cli.common import Against, Model, Truncate, load, progress, write
from wherefrom.errors import FileError, MissingExtra

if TYPE_CHECKING:
    from wherefrom.corpus import Corpus
    from wherefrom.explain import Explainer
    from wherefrom.inputs.table import Rows

Data = Annotated[list[Path], typer.Argument(help="CSV, TSV, JSONL or Parquet; .gz too; several.")]
Out = Annotated[Path, typer.Option(help="Folder for tables and the report.")]
With = Annotated[str, typer.Option(help="See `wherefrom methods`.")]
Asked = Annotated[str | None, typer.Option(help="Class; of two the second by default.")]
TextColumn = Annotated[str | None, typer.Option(help="Default: by usual names.")]
LabelColumn = Annotated[str | None, typer.Option(help="Default: by usual names.")]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Leave the labels aside.")]
Tokens = Annotated[int, typer.Option(help="In a batch; less needs less memory.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a run into OUT stopped.")]


def bias(
    data: Data,
    groups: Annotated[Path, typer.Option(help="A file of names and their groups.")],
    out: Out,
    model: Model = None,
    method: With = "lrp",
    target: Asked = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    no_labels: NoLabels = False,
    name_column: Annotated[str | None, typer.Option(help="Of the file of names.")] = None,
    group_column: Annotated[str | None, typer.Option(help="Of the file of names.")] = None,
    ambiguous: Annotated[
        Literal["drop", "group"], typer.Option(help="Names of several groups.")
    ] = "drop",
    ordinary: Annotated[
        Literal["drop", "keep"], typer.Option(help="In lower-case texts: will, may, rose …")
    ] = "drop",
    stop: Annotated[Path | None, typer.Option(help="Names that never count, a line each.")] = None,
    min_capitalised: Annotated[
        float, typer.Option(help="In cased texts: share of a name's uses with a capital.")
    ] = 0.5,
    tokens: Tokens = 4096,
    truncate: Truncate = False,
    resume: Resume = False,
) -> None:
    """Compare what groups of names contribute to a model's output on your data."""
    from wherefrom.corpus import bias as study_of
    from wherefrom.corpus import read_lexicon
    from wherefrom.corpus.bias_study import check_groups
    from wherefrom.corpus.names import find_entities
    from wherefrom.show.corpus import render_bias

    lexicon = read_lexicon(groups, name_column, group_column)
    rows = _rows(data, text_column, label_column, no_labels)
    never = _lines(stop)
    # names that are not there are told before the model runs, not after
    check_groups(
        find_entities(
            rows.texts,
            lexicon,
            ambiguous=ambiguous,
            ordinary=ordinary,
            stop=never,
            min_capitalised=min_capitalised,
        ),
        lexicon,
    )
    corpus = _explained(load(model), rows, method, target, against, tokens, truncate, out, resume)
    study = study_of(
        corpus,
        lexicon,
        ambiguous=ambiguous,
        ordinary=ordinary,
        stop=never,
        min_capitalised=min_capitalised,
    )
    study.write(out)
    picture = _histogram(study.distribution(), corpus.question, out / "histogram.png")
    write(out / "report.html", render_bias(study, picture))
    typer.echo(str(study))
    typer.echo(f"wrote {out / 'report.html'}", err=True)


def corpus(
    data: Data,
    out: Out,
    model: Model = None,
    method: With = "lrp",
    target: Asked = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    no_labels: NoLabels = False,
    min_count: Annotated[int, typer.Option(help="Texts that a word must be in.")] = 5,
    tokens: Tokens = 4096,
    truncate: Truncate = False,
    resume: Resume = False,
) -> None:
    """Find the words that push a model on your data, and those that mislead it."""
    from wherefrom.corpus import overview
    from wherefrom.show.corpus import render_overview

    rows = _rows(data, text_column, label_column, no_labels)
    found = _explained(load(model), rows, method, target, against, tokens, truncate, out, resume)
    view = overview(found, min_count)
    view.write(out)
    write(out / "report.html", render_overview(view))
    typer.echo(str(view))
    typer.echo(f"wrote {out / 'report.html'}", err=True)


def _rows(data: list[Path], text: str | None, label: str | None, no_labels: bool) -> Rows:
    from wherefrom.inputs.table import Rows, read_table

    tables = [read_table(path, text, label) for path in data]
    skipped: dict[str, int] = {}
    labels: list[str | int] | None = []
    for table in tables:
        for why, times in table.skipped.items():
            skipped[why] = skipped.get(why, 0) + times
        labels = None if labels is None or table.labels is None else labels + table.labels
    texts = [text for table in tables for text in table.texts]
    return Rows(texts, None if no_labels else labels, skipped)


def _explained(
    explainer: Explainer,
    rows: Rows,
    method: str,
    target: str | None,
    against: str | None,
    tokens: int,
    truncate: bool,
    out: Path,
    resume: bool,
) -> Corpus:
    from wherefrom.corpus import explain_corpus

    with progress("explaining") as advance:
        return explain_corpus(
            explainer,
            rows,
            method,
            target,
            against,
            tokens=tokens,
            truncate=truncate,
            out=out,
            resume=resume,
            progress=advance,
        )


def _histogram(values: dict[str, list[float]], question: str, path: Path) -> Path | None:
    from wherefrom.show.figure import histogram_plot

    try:
        return histogram_plot(values, f"relevance for {question}", path)
    except MissingExtra as error:
        typer.echo(f"wherefrom: no picture: {error}", err=True)
        return None


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from error
