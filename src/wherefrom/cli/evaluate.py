"""Commands that test explanations: `wherefrom evaluate` and `wherefrom audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wherefrom.cli.options import (
    Address,
    Device,
    Dtype,
    Encoding,
    EngineOption,
    FromFile,
    GpusPerWorker,
    Html,
    Json,
    LabelColumn,
    MethodNames,
    Model,
    Resume,
    Smiles,
    TextColumn,
    Truncate,
    Workers,
)
from wherefrom.cli.output import (
    exit_after_rows,
    interrupted,
    progress,
    saved_to_resume,
    say,
    say_styled,
)
from wherefrom.cli.prompts import is_lines, read_lines
from wherefrom.cli.reading import check_molecules, listed, load, read_texts
from wherefrom.errors import InputError, MissingExtra
from wherefrom.storage.writing import write_text


def evaluate(
    data: Annotated[
        Path,
        typer.Argument(
            help="CSV, TSV, JSONL or Parquet (also .gz), a folder of images, or for a language "
            "model JSONL of answers: question, passages, answer, supporting (numbers of passages)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for tables, plots and the report.")],
    model: Model = None,
    methods: Annotated[
        str | None, typer.Option(help="Comma-separated method names; default: all but shapley.")
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(help="Comma-separated metrics and studies (attention_erasure, layers)."),
    ] = "activation,pruning,conservation,layers",
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    sample: Annotated[
        int | None, typer.Option(help="Number of rows to draw at random; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed for --sample.")] = 0,
    blank: Annotated[
        str | None,
        typer.Option(help="Replacement for erased units: a token, or zero, mean or blur."),
    ] = None,
    keep_special: Annotated[bool, typer.Option(help="Never erase special tokens.")] = False,
    every: Annotated[bool, typer.Option(help="One step per token instead of ten steps.")] = False,
    truncate: Truncate = False,
    resume: Resume = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    pair_column: Annotated[
        str | None, typer.Option(help="Column of the second texts of pairs.")
    ] = None,
    engine: EngineOption = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0,
) -> None:
    """Measure which methods can be trusted on this model and data."""
    if _has_answers(data):
        _evaluate_answers(data, out, model, dtype, device)
        return
    from wherefrom.evaluation.evaluate import evaluate as run_evaluation
    from wherefrom.inputs.table import read_table
    from wherefrom.show.report import render_evaluation

    rows = read_table(data, text_column, label_column, pair_column=pair_column, encoding=encoding)
    explainer = load(model, rows.texts, dtype, device)
    executor = None
    if engine != "local":
        from wherefrom.runs.engine import Engine, ModelSource
        from wherefrom.runs.evaluations import recorded_by

        where = Engine(engine, address, workers, gpus_per_worker)
        executor = recorded_by(where, ModelSource(explainer))
    with progress("evaluating") as advance:
        result = run_evaluation(
            explainer,
            rows,
            listed(methods),
            listed(metrics) or (),
            sample=sample,
            seed=seed,
            blank=blank,
            keep_special=keep_special,
            every=every,
            truncate=truncate,
            out=out,
            resume=resume,
            progress=advance,
            executor=executor,
        )
    with saved_to_resume(out):
        result.to_csvs(out)
        result.to_json(out / "evaluation.json")
        try:
            pictures = result.plots(out)
        except MissingExtra as error:
            say(f"wherefrom: the report has no plots: {error}", err=True)
            pictures = []
        write_text(out / "report.html", render_evaluation(result, pictures))
    say(str(result))
    say(f"wrote {out / 'report.html'}", err=True)
    if not result.complete:
        total = min(len(rows), sample or len(rows))
        raise interrupted(
            f"interrupted: {result.samples:,} of {total:,} samples were evaluated. Continue with "
            "--resume."
        )
    drawn = min(len(rows), len(rows) if sample is None else sample)
    exit_after_rows(
        len(rows) + len(rows.rejected),
        evaluated=result.samples,
        rejected=sum(result.skipped.values()),
        not_drawn=len(rows) - drawn,
    )


def _has_answers(data: Path) -> bool:
    """Whether this is a file of answers, labelled with the passages that support them."""
    if not is_lines(str(data)) or not data.is_file():
        return False
    with data.open(encoding="utf-8", errors="replace") as file:
        return '"supporting"' in file.readline()


def _evaluate_answers(
    data: Path, out: Path, model: str | None, dtype: str | None, device: str | None
) -> None:
    """Measures citations and verdicts on answers whose support is known."""
    from wherefrom.evaluation.answers import evaluate_answers

    lines = read_lines(str(data))
    unlabelled = [i for i, line in enumerate(lines, 1) if None in (line.answer, line.supporting)]
    if unlabelled:
        raise InputError(f"answer {unlabelled[0]} of {data} has no answer or no supporting.")
    explainer = load(model or "smollm2", dtype=dtype, device=device)
    prompts = [line.prompt for line in lines]
    answers = [line.answer or "" for line in lines]
    supporting = [line.supporting or () for line in lines]
    with progress("evaluating") as advance:
        result = evaluate_answers(explainer, prompts, answers, supporting, advance)
    out.mkdir(parents=True, exist_ok=True)
    result.to_json(out / "evaluation.json")
    say(str(result))


def audit(
    texts: Annotated[
        list[str] | None, typer.Argument(help="Texts or image files; default: three texts.")
    ] = None,
    model: Model = None,
    methods: MethodNames = None,
    smiles: Smiles = None,
    file: FromFile = None,
    json: Json = None,
    html: Html = None,
    truncate: Truncate = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
) -> None:
    """Report which axioms each method satisfies on this model."""
    from wherefrom.audits.audit import audit as run_audit

    inputs = smiles
    if not smiles and (texts or file is not None):
        inputs = read_texts(texts, file, encoding).all_texts()
    explainer = load(model or ("bace" if smiles else None), inputs, dtype, device)
    check_molecules(explainer, smiles)
    with progress("auditing") as advance:
        result = run_audit(explainer, inputs, listed(methods), truncate=truncate, progress=advance)
    if html is not None:
        result.to_html(html)
        say(f"wrote {html}", err=True)
    if json is not None and str(json) != "-":
        result.to_json(json)
        say(f"wrote {json}", err=True)
    if str(json) == "-":
        say(result.to_json())
    else:
        say_styled(str(result))
