"""Commands over a whole corpus: `bias`, `corpus`, `run`."""

from __future__ import annotations

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
from wherefrom.cli.output import (
    NOT_ALL,
    exit_after_rows,
    interrupted,
    progress,
    saved_to_resume,
    say,
)
from wherefrom.cli.reading import model_options, with_setting
from wherefrom.errors import InputError, MissingExtra
from wherefrom.storage.text_file import decoded, lines_of, read_bytes
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    from wherefrom.corpus import Corpus
    from wherefrom.corpus.bias_study import Bias
    from wherefrom.corpus.explain import CorpusJob

Data = Annotated[
    list[str], typer.Argument(help="CSV, TSV, JSONL or Parquet files, optionally gzipped.")
]
Out = Annotated[Path, typer.Option(help="Folder for the tables and the report.")]
TargetClass = Annotated[
    str | None,
    typer.Option("--target", help="Class to explain. Default: the second of two classes."),
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="Ignore the labels.")]


def bias(
    data: Data,
    groups: Annotated[Path, typer.Option(help="File of names with their groups.")],
    out: Out,
    model: Model = None,
    method: MethodName = "auto",
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
    from wherefrom.corpus import read_lexicon
    from wherefrom.corpus.studies import bias_study

    lexicon = read_lexicon(groups, name_column, group_column)
    options: dict[str, Any] = {
        "ambiguous": ambiguous,
        "ordinary": ordinary,
        "stop": _read_lines(stop),
        "min_capitalised": min_capitalised,
    }
    job = _job(
        data, out, (model, dtype, device), (text_column, label_column, None, encoding),
        (with_setting(method, settings), target, against, tokens, truncate, no_labels),
        (engine, address, workers, gpus_per_worker),
    )  # fmt: skip
    with (
        progress("explaining", lines=True) as advance,
        bias_study(job, lexicon, options, resume=resume, progress=advance) as study,
        saved_to_resume(None),
    ):
        _write_bias_report(study, out)
    _finish(out, str(study), study.corpus)


def corpus(
    data: Data,
    out: Out,
    model: Model = None,
    method: MethodName = "auto",
    target: TargetClass = None,
    against: Against = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    no_labels: NoLabels = False,
    min_count: Annotated[
        int, typer.Option(help="Minimum number of texts with a word, to rank it.")
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
    from wherefrom.corpus.studies import corpus_overview
    from wherefrom.show.corpus import render_overview

    job = _job(
        data, out, (model, dtype, device), (text_column, label_column, None, encoding),
        (with_setting(method, settings), target, against, tokens, truncate, no_labels),
        (engine, address, workers, gpus_per_worker),
    )  # fmt: skip
    with (
        progress("explaining", lines=True) as advance,
        corpus_overview(job, min_count, resume=resume, progress=advance) as view,
        saved_to_resume(None),
    ):
        write_text(out / "report.html", render_overview(view))
    _finish(out, str(view), view.corpus)


def run(
    data: Annotated[
        list[str],
        typer.Argument(help="CSV, TSV, JSONL or Parquet: files, folders, patterns, s3://, …"),
    ],
    out: Annotated[str, typer.Option(help="Folder for the results: a path, or s3://, …")],
    model: Model = None,
    method: MethodName = "auto",
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
        int, typer.Option(help="Rows per result file; an unfinished part is repeated by --resume.")
    ] = 2048,
    truncate: Truncate = False,
    resume: Resume = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    settings: Settings = None,
) -> None:
    """Explain every row of a corpus and write Parquet files."""
    from wherefrom.runs.parts import Location
    from wherefrom.runs.run import run as run_all

    if engine == "local":  # imports torch, which would delay Ray
        from wherefrom.runs.explain_rows import prepare_for_many_rows

        prepare_for_many_rows()
    # without settings just the name, since the method's class imports torch
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
    if result.rejected:
        raise typer.Exit(NOT_ALL)


def _job(
    data: list[str],
    out: Path,
    model: tuple[str | None, str | None, str | None],
    columns: tuple[str | None, ...],
    settings: tuple[Any, ...],
    engine: tuple[Any, ...],
) -> CorpusJob:
    """The job for `corpus_overview` and `bias_study`, from the options of a command."""
    from wherefrom.corpus.explain import CorpusJob, CorpusSettings
    from wherefrom.runs.engine import Engine, ModelSource
    from wherefrom.runs.explain_rows import prepare_for_many_rows
    from wherefrom.runs.parts import ColumnNames, Location

    prepare_for_many_rows()
    name, dtype, device = model
    return CorpusJob(
        ModelSource(name or "sentiment", model_options(dtype, device)),
        [Location(entry) for entry in data],
        out,
        CorpusSettings(*settings),
        ColumnNames(*columns),
        Engine(*engine),
    )


def _write_bias_report(study: Bias, out: Path) -> None:
    from wherefrom.show.corpus import render_bias

    try:
        histogram = study.plot("histogram", out / "histogram.png")
    except MissingExtra as error:
        say(f"wherefrom: no histogram: {error}", err=True)
        histogram = None
    write_text(out / "report.html", render_bias(study, histogram))


def _finish(out: Path, summary: str, corpus: Corpus) -> None:
    say(summary)
    say(f"wrote {out / 'report.html'}", err=True)
    if not corpus.complete:
        raise interrupted(f"{corpus.interruption}. Continue with --resume.")
    rejected = sum(corpus.skipped.values())
    exit_after_rows(corpus.rows_total, explained=corpus.explained, rejected=rejected)


def _read_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    return [line for line in lines_of(decoded(path, read_bytes(path))) if line.strip()]
