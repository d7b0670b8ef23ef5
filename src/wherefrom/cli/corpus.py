"""Commands over a whole corpus: `bias`, `corpus`, `run`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from wherefrom.cli.options import (
    Address,
    Against,
    BatchTokens,
    Device,
    Dtype,
    Encoding,
    EngineOption,
    GpusPerWorker,
    LabelColumn,
    MethodName,
    Model,
    Resume,
    Settings,
    TargetOption,
    TextColumn,
    Truncate,
    Workers,
)
from wherefrom.cli.output import exit_if_left_out, interrupted, progress, saved_to_resume, say
from wherefrom.cli.reading import load, model_options, with_setting
from wherefrom.errors import InputError, MissingExtra, for_command
from wherefrom.storage.text_file import decoded, lines_of, read_bytes
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    from wherefrom.corpus import Corpus
    from wherefrom.corpus.bias_study import Bias
    from wherefrom.explainer import Explainer
    from wherefrom.inputs.table import Rows
    from wherefrom.methods import Method
    from wherefrom.runs.corpora import CorpusJob

Data = Annotated[list[str], typer.Argument(help="CSV, TSV, JSONL or Parquet files, also gzipped.")]
Out = Annotated[Path, typer.Option(help="Folder for the tables and the report.")]
TargetClass = Annotated[
    str | None, typer.Option("--target", help="Class to explain. Default: the second of two.")
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Ignore the labels.")]


def bias(
    data: Data,
    groups: Annotated[Path, typer.Option(help="File of names and their groups.")],
    out: Out,
    model: Model = None,
    method: MethodName = "lrp",
    target: TargetClass = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    no_labels: NoLabels = False,
    name_column: Annotated[
        str | None, typer.Option(help="Column of the names. Default: name, entity, word, …")
    ] = None,
    group_column: Annotated[
        str | None, typer.Option(help="Column of the groups. Default: group, gender, class, …")
    ] = None,
    ambiguous: Annotated[
        Literal["drop", "group"],
        typer.Option(help="Names in several groups: drop them, or show them as a group."),
    ] = "drop",
    ordinary: Annotated[
        Literal["drop", "keep"],
        typer.Option(help="Lower-case texts: names that are also words (will, may, rose)."),
    ] = "drop",
    stop: Annotated[
        Path | None, typer.Option(help="File of names to exclude, one on each line.")
    ] = None,
    min_capitalised: Annotated[
        float,
        typer.Option(help="Cased texts: share of a name's uses that must be capitalised."),
    ] = 0.5,
    tokens: BatchTokens = 4096,
    truncate: Truncate = False,
    resume: Resume = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    settings: Settings = None,
    engine: EngineOption = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
) -> None:
    """Compare how groups of names contribute to a model's output."""
    from wherefrom.corpus import bias as compare_groups
    from wherefrom.corpus import read_lexicon
    from wherefrom.corpus.bias_study import check_groups
    from wherefrom.corpus.names import find_entities

    lexicon = read_lexicon(groups, name_column, group_column)
    options: dict[str, Any] = {
        "ambiguous": ambiguous,
        "ordinary": ordinary,
        "stop": _read_lines(stop),
        "min_capitalised": min_capitalised,
    }
    if engine != "local":
        from wherefrom.runs.studies import bias_study

        job = _job(
            data, out, (model, dtype, device), (text_column, label_column, None, encoding),
            (with_setting(method, settings), target, against, tokens, truncate, no_labels),
            (engine, address, workers, gpus_per_worker),
        )  # fmt: skip
        with (
            progress("explaining", lines=True) as advance,
            bias_study(job, lexicon, options, resume=resume, progress=advance) as study,
        ):
            study.write_summary(out)
            _write_bias_report(study, out)
        _finish(out, str(study), study.corpus)
        return
    rows = _read_rows(data, text_column, label_column, no_labels, encoding)
    # names that do not occur are an error before the model runs, not after
    check_groups(find_entities(rows.texts, lexicon, **options), lexicon)
    corpus = _explain(
        rows, load(model, dtype=dtype, device=device), with_setting(method, settings), target,
        against, tokens=tokens, truncate=truncate, out=out, resume=resume,
    )  # fmt: skip
    try:
        study = compare_groups(corpus, lexicon, **options)
    except InputError as error:
        if corpus.complete:
            raise
        raise _stopped(corpus, f"Too few for a comparison: {for_command(error)}") from error
    with saved_to_resume(out):
        study.write(out)
        _write_bias_report(study, out)
    _finish(out, str(study), corpus)


def corpus(
    data: Data,
    out: Out,
    model: Model = None,
    method: MethodName = "lrp",
    target: TargetClass = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    no_labels: NoLabels = False,
    min_count: Annotated[
        int, typer.Option(help="Texts in which a word must occur to be ranked.")
    ] = 5,
    tokens: BatchTokens = 4096,
    truncate: Truncate = False,
    resume: Resume = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    settings: Settings = None,
    engine: EngineOption = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
) -> None:
    """Find the words that drive a model, and those that mislead it."""
    from wherefrom.corpus import overview
    from wherefrom.show.corpus import render_overview

    if engine != "local":
        from wherefrom.corpus.io import write_tables
        from wherefrom.runs.studies import corpus_overview

        job = _job(
            data, out, (model, dtype, device), (text_column, label_column, None, encoding),
            (with_setting(method, settings), target, against, tokens, truncate, no_labels),
            (engine, address, workers, gpus_per_worker),
        )  # fmt: skip
        with (
            progress("explaining", lines=True) as advance,
            corpus_overview(job, min_count, resume=resume, progress=advance) as view,
        ):
            write_tables(out, view.tables())
            write_text(out / "report.html", render_overview(view))
        _finish(out, str(view), view.corpus)
        return
    rows = _read_rows(data, text_column, label_column, no_labels, encoding)
    explained = _explain(
        rows, load(model, dtype=dtype, device=device), with_setting(method, settings), target,
        against, tokens=tokens, truncate=truncate, out=out, resume=resume,
    )  # fmt: skip
    view = overview(explained, min_count)
    with saved_to_resume(out):
        view.write(out)
        write_text(out / "report.html", render_overview(view))
    _finish(out, str(view), explained)


def run(
    data: Annotated[
        list[str],
        typer.Argument(help="CSV, TSV, JSONL or Parquet: files, folders, patterns, s3://, …"),
    ],
    out: Annotated[str, typer.Option(help="Folder for the results: a path, or s3://, …")],
    model: Model = None,
    method: MethodName = "lrp",
    target: TargetOption = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    id_column: Annotated[
        str | None, typer.Option(help="Column of unique ids. Default: file and row number.")
    ] = None,
    engine: EngineOption = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
    batch_tokens: BatchTokens = 4096,
    part_rows: Annotated[
        int, typer.Option(help="Rows in a file of the results; a lost part is done again.")
    ] = 2048,
    truncate: Truncate = False,
    resume: Resume = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    settings: Settings = None,
) -> None:
    """Explain every row of a corpus, into Parquet files."""
    from wherefrom.runs.parts import Location
    from wherefrom.runs.run import run as run_all

    if engine == "local":  # who explains in this process; importing torch need not delay Ray
        from wherefrom.runs.process import prepare_for_many_rows

        prepare_for_many_rows()
    # without settings the name: the class of the method comes with torch
    chosen = with_setting(method, settings) if settings else method
    with progress("explaining", lines=True) as advance:
        result = run_all(
            model or "sentiment", [Location(entry) for entry in data], out, chosen, target, against,
            engine=engine, address=address, workers=workers, gpus_per_worker=gpus_per_worker,
            text_column=text_column, label_column=label_column, id_column=id_column,
            batch_tokens=batch_tokens, part_rows=part_rows, truncate=truncate, dtype=dtype,
            device=device, encoding=encoding,
            resume=resume, progress=advance,
        )  # fmt: skip
    if result.complete and not result.explained and not result.rejected:
        raise InputError(f"{', '.join(data)} {'have' if len(data) > 1 else 'has'} no rows.")
    say(str(result))
    if not result.complete:
        raise interrupted(f"interrupted: {result.explained:,} rows are done. Continue: --resume.")
    if not result.explained:
        raise InputError(
            f"no row could be explained: the reasons are in {result.out}/rejected.parquet."
        )
    exit_if_left_out(result.rejected, result.explained + result.rejected, "rows")


def _read_rows(
    paths: list[str], text: str | None, label: str | None, no_labels: bool, encoding: str | None
) -> Rows:
    """The rows of several files; labels only if all files have them."""
    from wherefrom.inputs.table import Rows, read_table

    tables = [read_table(path, text, label, encoding=encoding) for path in paths]
    skipped: Counter[str] = Counter()
    labels: list[str | int] | None = None if no_labels else []
    for table in tables:
        skipped.update(table.skipped)
        labels = None if labels is None or table.labels is None else labels + table.labels
    return Rows([text for table in tables for text in table.texts], labels, dict(skipped))


def _explain(
    rows: Rows,
    explainer: Explainer,
    method: Method,
    target: str | None,
    against: str | None,
    **options: Any,
) -> Corpus:
    from wherefrom.corpus import explain_corpus

    with progress("explaining") as advance:
        return explain_corpus(explainer, rows, method, target, against, progress=advance, **options)


def _job(
    data: list[str],
    out: Path,
    model: tuple[str | None, str | None, str | None],
    columns: tuple[str | None, ...],
    settings: tuple[Any, ...],
    engine: tuple[Any, ...],
) -> CorpusJob:
    """The job of `corpus_overview` and `bias_study`, from the options of a command."""
    from wherefrom.runs.corpora import CorpusJob, CorpusSettings
    from wherefrom.runs.engine import Engine
    from wherefrom.runs.model_source import ModelSource
    from wherefrom.runs.parts import Columns, Location

    name, dtype, device = model
    return CorpusJob(
        ModelSource(name or "sentiment", model_options(dtype, device)),
        [Location(entry) for entry in data],
        out,
        CorpusSettings(*settings),
        Columns(*columns),
        Engine(*engine),
    )


def _write_bias_report(study: Bias, out: Path) -> None:
    from wherefrom.show.corpus import render_bias

    histogram = _histogram(study.distribution(), study.corpus.question, out / "histogram.png")
    write_text(out / "report.html", render_bias(study, histogram))


def _histogram(values: dict[str, list[float]], question: str, path: Path) -> Path | None:
    from wherefrom.show.figure import histogram_plot

    try:
        return histogram_plot(values, f"relevance for {question}", path)
    except MissingExtra as error:
        say(f"wherefrom: no histogram: {error}", err=True)
        return None


def _finish(out: Path, summary: str, corpus: Corpus) -> None:
    say(summary)
    say(f"wrote {out / 'report.html'}", err=True)
    if not corpus.complete:
        raise _stopped(corpus, "Continue with --resume.")
    exit_if_left_out(sum(corpus.skipped.values()), corpus.rows_read, "rows")


def _stopped(corpus: Corpus, advice: str) -> typer.Exit:
    return interrupted(f"{corpus.interruption}. {advice}")


def _read_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    return [line for line in lines_of(decoded(path, read_bytes(path))) if line.strip()]
