"""`wherefrom run`: every row of a corpus explained, as Parquet."""

from __future__ import annotations

from typing import Annotated

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
from wherefrom.cli.output import NOT_ALL, complain, interrupted, progress, say
from wherefrom.cli.reading import with_setting
from wherefrom.errors import InputError


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
        from wherefrom.runs.explain_rows import prepare_for_many_rows

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
    if result.rejected:
        complain(f"{result.rejected:,} rows could not be explained.")
        raise typer.Exit(NOT_ALL)
