"""The command line: thin, and light until something is explained."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from whence.errors import FileError, InputError, MethodError, MissingExtra, WhenceError

if TYPE_CHECKING:
    from whence.explain import Explainer
    from whence.explanation import Explanation

app = typer.Typer(
    help="Where a Transformer's prediction comes from, in scores that add up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Result = TypeVar("Result")

Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts or image files to explain; - reads lines.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="An embedded model, a folder, a hub id; by default the "
                 "embedded one for what is given."),
]  # fmt: skip
Png = Annotated[Path | None, typer.Option("--png", help="Draw the image's heatmaps here.")]
Units = Annotated[str | None, typer.Option(help="Of an image: patches, pixels, or a size.")]
FromFile = Annotated[Path | None, typer.Option("--file", "-f", help="A text in each line.")]
Asked = Annotated[str | None, typer.Option(help="Class or next token; default: most likely.")]
Against = Annotated[str | None, typer.Option(help="Explain the difference to this one.")]
Words = Annotated[bool, typer.Option("--words", help="Join tokens to words.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write JSON here; - prints it.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page here.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut what is too long.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting of the method, as key=value.")
]


def _plainly(command: Callable[..., Result]) -> Callable[..., Result]:
    """Errors made for people are shown as such, and the exit code is 2."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Result:
        try:
            return command(*args, **kwargs)
        except WhenceError as error:
            typer.secho(f"whence: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(2) from error

    return run


@app.command()
@_plainly
def explain(
    texts: Texts = None,
    model: Model = None,
    method: Annotated[str, typer.Option(help="See `whence methods`.")] = "lrp",
    target: Asked = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    png: Png = None,
    units: Units = None,
    file: FromFile = None,
    truncate: Truncate = False,
    settings: Settings = None,
) -> None:
    """Explain a text or an image: the heatmap and the ledger of one method."""
    given = _given(texts, file)
    explainer = _load(model, given)
    found: list[Explanation] = []
    with _progress("explaining") as advance:
        for at in range(0, len(given), 16):
            advance(at, len(given), method)
            made = explainer(
                given[at : at + 16],
                method,
                target=_asked(target),
                against=_asked(against),
                units=_asked(units),
                truncate=truncate,
                **_parsed(settings),
            )
            assert isinstance(made, list)
            found += made
    found = [each.words() for each in found] if words else found
    if json is not None:
        _write_json(found, json)
    if html is not None:
        _write_pages([[each] for each in found], html)
    if png is not None:
        _draw(found, png)
    if json is None or str(json) != "-":
        typer.echo("\n\n".join(str(each) for each in found))


@app.command()
@_plainly
def compare(
    texts: Texts = None,
    model: Model = None,
    methods: Annotated[str | None, typer.Option(help="Some of them, by commas.")] = None,
    target: Asked = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    png: Png = None,
    units: Units = None,
    beside: Annotated[
        str | None, typer.Option(help="Of an image: show the answer for this class beside.")
    ] = None,
    file: FromFile = None,
    truncate: Truncate = False,
) -> None:
    """Explain a text or an image by all methods, a row each."""
    from whence.methods import METHODS
    from whence.show.terminal import render_rows

    given = _given(texts, file)
    explainer = _load(model, given)
    chosen = _listed(methods)
    classes = [_asked(target)] + ([_asked(beside)] if beside is not None else [])
    tables = []
    with _progress("explaining") as advance:
        count = len(chosen or METHODS) * len(given) * len(classes)
        ran = itertools.count()
        for text, wanted in itertools.product(given, classes):
            tables.append(
                explainer.compare(
                    text,
                    chosen,
                    target=wanted,
                    against=_asked(against),
                    units=_asked(units),
                    truncate=truncate,
                    starting=lambda name: advance(next(ran), count, name),
                )
            )
    if words:
        tables = [[each.words() for each in table] for table in tables]
    if json is not None:
        _write_json([each for table in tables for each in table], json)
    if html is not None:
        _write_pages(tables, html, beside=beside is not None)
    if png is not None:
        _draw([each for table in tables for each in table], png)
    if json is None or str(json) != "-":
        typer.echo("\n\n".join(render_rows(table) for table in tables))


@app.command()
def methods() -> None:
    """List the methods with a sentence each."""
    from rich.console import Console
    from rich.table import Table

    from whence.methods import METHODS

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("method", "what it is", "published", "settings"):
        table.add_column(column, no_wrap=column == "method")
    for name, kind in METHODS.items():
        sentence = (kind.__doc__ or "").strip().splitlines()[0]
        settings = ", ".join(f"{k}={v}" for k, v in kind().settings().items())
        table.add_row(name, sentence, kind.paper, settings)
    Console().print(table)


@app.command()
@_plainly
def evaluate(
    data: Annotated[Path, typer.Argument(help="CSV, TSV, JSONL or Parquet; .gz too.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, pictures and the report.")],
    model: Model = None,
    methods: Annotated[str | None, typer.Option(help="Some of them, by commas.")] = None,
    metrics: Annotated[
        str, typer.Option(help="By commas; also studies: attention_erasure, layers.")
    ] = "activation,pruning,conservation,layers",
    text_column: Annotated[str | None, typer.Option(help="Default: by usual names.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Default: by usual names.")] = None,
    sample: Annotated[int | None, typer.Option(help="Only so many, drawn at random.")] = None,
    seed: Annotated[int, typer.Option(help="Of the drawing.")] = 0,
    blank: Annotated[str | None, typer.Option(help="What erased units become.")] = None,
    keep_special: Annotated[bool, typer.Option(help="Never erase special tokens.")] = False,
    every: Annotated[bool, typer.Option(help="A step for every token, not ten.")] = False,
    truncate: Truncate = False,
    resume: Annotated[bool, typer.Option(help="Go on where a run into OUT stopped.")] = False,
) -> None:
    """Test which methods can be trusted on this model and data."""
    from whence.evaluation.run import evaluate as run_evaluation
    from whence.inputs.table import read_table
    from whence.show.report import render_evaluation

    rows = read_table(data, text_column, label_column)
    explainer = _load(model)
    with _progress("evaluating") as advance:
        result = run_evaluation(
            explainer,
            rows,
            _listed(methods),
            _listed(metrics) or (),
            sample=sample,
            seed=seed,
            blank=blank,
            keep_special=keep_special,
            every=every,
            truncate=truncate,
            out=out,
            resume=resume,
            progress=advance,
        )
    result.to_csvs(out)
    result.to_json(out / "evaluation.json")
    try:
        pictures = result.plot(out)
    except MissingExtra as error:
        typer.echo(f"whence: the report has no pictures: {error}", err=True)
        pictures = []
    _write(out / "report.html", render_evaluation(result, pictures))
    typer.echo(str(result))
    typer.echo(f"wrote {out / 'report.html'}", err=True)
    if not result.complete:
        typer.echo("interrupted: go on with --resume", err=True)
        raise typer.Exit(130)


@app.command()
@_plainly
def audit(
    texts: Annotated[list[str] | None, typer.Argument(help="Default: a few of our own.")] = None,
    model: Model = "sentiment",
    methods: Annotated[str | None, typer.Option(help="Some of them, by commas.")] = None,
    file: FromFile = None,
    json: Json = None,
    html: Html = None,
    truncate: Truncate = False,
) -> None:
    """Say in words which axioms each method keeps on this model."""
    from whence.evaluation.audit import TEXTS
    from whence.evaluation.audit import audit as run_audit

    given = _given(texts, file) if texts or file is not None else TEXTS
    explainer = _load(model)
    with _progress("auditing") as advance:
        found = run_audit(explainer, given, _listed(methods), truncate=truncate, progress=advance)
    if html is not None:
        found.to_html(html)
        typer.echo(f"wrote {html}", err=True)
    if json is not None and str(json) != "-":
        found.to_json(json)
    typer.echo(found.to_json() if str(json) == "-" else str(found))


@contextmanager
def _progress(what: str) -> Iterator[Callable[[float, int, str], None]]:
    """A bar with rate and time left, on stderr."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[pace]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, pace="")
        first: list[float] = []  # what an earlier run has done says nothing of this one's pace

        def advance(done: float, total: int, note: str) -> None:
            first[:] = first or [done]
            bar.update(task, completed=done, total=total)
            elapsed = bar.tasks[task].elapsed or 0.0
            pace = _pace(done - first[0], total - done, elapsed)
            bar.update(task, pace=f"{pace}  {note}")

        yield advance


def _pace(done: float, left: float, seconds: float) -> str:
    """The rate so far and the time left at that rate.

    >>> _pace(30, 60, 20), _pace(1, 9, 100), _pace(0, 5, 1)
    ('1.5/s, 0:00:40 left', '100.0 s each, 0:15:00 left', '')
    """
    from datetime import timedelta

    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    told = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f"{told}, {timedelta(seconds=round(left / rate))} left"


def _listed(names: str | None) -> list[str] | None:
    return [name.strip() for name in names.split(",") if name.strip()] if names else None


@app.command()
@_plainly
def serve(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="May be repeated; by default the embedded ones."),
    ] = None,
    host: Annotated[str, typer.Option(help="Others can reach it only if asked for.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(envvar="WHENCE_TOKEN", help="Asked of every visitor; made up for --host."),
    ] = None,
    reports: Annotated[
        Path | None, typer.Option(help="A folder whose pages open from here too.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Explore predictions on a page of your own machine."""
    from whence.web.serve import serve as run_server

    run_server(
        model or (), host, port, token, reports, browse, say=lambda t: typer.echo(t, err=True)
    )


@app.command()
@_plainly
def models() -> None:
    """List the embedded models."""
    from rich.console import Console
    from rich.table import Table

    from whence.models.embedded import embedded

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("model", "what it tells", "data", "measured", "parameters", "size"):
        table.add_column(column, no_wrap=column == "model")
    for name, card in embedded().items():
        figures = ", ".join(f"{split} {100 * value:.1f} %" for split, value in card.figures.items())
        table.add_row(
            name,
            card.task,
            card.data,
            f"{card.metric}: {figures}",
            f"{card.parameters / 1e6:.1f} M",
            f"{card.megabytes:.1f} MB",
        )
    Console().print(table)


def _load(model: str | None, given: list[str] | None = None) -> Explainer:
    """The model that was named, else the embedded one for what is given."""
    from whence.inputs.image import is_image
    from whence.loading import load

    pictures = bool(given) and all(is_image(one) for one in given or ())
    return load(model or ("digits" if pictures else "sentiment"))


def _given(texts: list[str] | None, file: Path | None) -> list[str]:
    given = list(texts or ())
    if file is not None:
        try:
            given += [
                line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {file}: {error}") from error
    if given == ["-"] or (not given and file is None and not sys.stdin.isatty()):
        given = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not given:
        raise InputError("there is no text to explain. Give one, or --file, or lines on stdin.")
    return given


def _asked(value: str | None) -> int | str | None:
    """A class by number or by name."""
    return int(value) if value is not None and value.isdigit() else value


def _parsed(settings: list[str] | None) -> dict[str, Any]:
    """`steps=64` as {"steps": 64}: numbers and truth values are read as such."""
    import ast

    parsed: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise MethodError(f'"{setting}" is no setting: write key=value.')
        try:
            parsed[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            parsed[key] = value
    return parsed


def _write_json(found: list[Explanation], path: Path) -> None:
    import json

    data = [each.to_dict() for each in found]
    text = json.dumps(data[0] if len(data) == 1 else data, ensure_ascii=False, indent=1)
    if str(path) == "-":
        typer.echo(text)
    else:
        _write(path, text)


def _draw(found: list[Explanation], path: Path) -> None:
    from whence.show.image_figure import image_plot

    if any(each.scene is None for each in found):
        raise InputError("--png draws images; write a text with --html.")
    image_plot(found, path)
    typer.echo(f"wrote {path}", err=True)


def _write_pages(tables: list[list[Explanation]], path: Path, beside: bool = False) -> None:
    from whence.show.html import render, render_beside, render_many

    if beside:
        _write(path, render_beside(tables))
    else:
        _write(path, render(tables[0]) if len(tables) == 1 else render_many(tables))
    typer.echo(f"wrote {path}", err=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from error


if __name__ == "__main__":
    app()
