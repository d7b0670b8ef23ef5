"""Commands that explain single inputs, and what they list."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.common import (
    Against,
    Asked,
    FromFile,
    Html,
    Json,
    Model,
    Png,
    Settings,
    Smiles,
    Texts,
    Truncate,
    Units,
    Words,
    asked,
    listed,
    load,
    progress,
    read_texts,
    write,
)  # fmt: skip
from wherefrom.errors import InputError, MethodError

if TYPE_CHECKING:
    from wherefrom.explanation import Explanation


def explain(
    texts: Texts = None,
    model: Model = None,
    method: Annotated[str, typer.Option(help="See `wherefrom methods`.")] = "lrp",
    target: Asked = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    png: Png = None,
    units: Units = None,
    smiles: Smiles = None,
    file: FromFile = None,
    truncate: Truncate = False,
    settings: Settings = None,
) -> None:
    """Explain a text, an image or a molecule: the heatmap and the ledger of one method."""
    model = model or ("bace" if smiles else None)
    given = smiles or read_texts(texts, file)
    explainer = load(model, given)
    found: list[Explanation] = []
    with progress("explaining") as advance:
        for at in range(0, len(given), 16):
            advance(at, len(given), method)
            made = explainer(
                given[at : at + 16],
                method,
                target=asked(target),
                against=asked(against),
                units=asked(units),
                truncate=truncate,
                **parsed(settings),
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
    smiles: Smiles = None,
    file: FromFile = None,
    truncate: Truncate = False,
) -> None:
    """Explain a text, an image or a molecule by all methods, a row each."""
    from wherefrom.methods import METHODS
    from wherefrom.show.terminal import render_rows

    model = model or ("bace" if smiles else None)
    given = smiles or read_texts(texts, file)
    explainer = load(model, given)
    chosen = listed(methods)
    classes = [asked(target)] + ([asked(beside)] if beside is not None else [])
    tables = []
    with progress("explaining") as advance:
        count = len(chosen or METHODS) * len(given) * len(classes)
        ran = itertools.count()
        for text, wanted in itertools.product(given, classes):
            tables.append(
                explainer.compare(
                    text,
                    chosen,
                    target=wanted,
                    against=asked(against),
                    units=asked(units),
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


def methods() -> None:
    """List the methods with a sentence each."""
    from rich.console import Console
    from rich.table import Table

    from wherefrom.methods import METHODS

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("method", "what it is", "published", "settings"):
        table.add_column(column, no_wrap=column == "method")
    for name, kind in METHODS.items():
        sentence = (kind.__doc__ or "").strip().splitlines()[0]
        settings = ", ".join(f"{k}={v}" for k, v in kind().settings().items())
        table.add_row(name, sentence, kind.paper, settings)
    Console().print(table)


def models() -> None:
    """List the embedded models."""
    from rich.console import Console
    from rich.table import Table

    from wherefrom.models.embedded import embedded

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("model", "what it tells", "data", "measured", "parameters", "size"):
        table.add_column(column, no_wrap=column == "model")
    for name, card in embedded().items():
        form = "{} {:.1%}" if card.metric == "accuracy" else "{} {:.3f}"
        figures = ", ".join(
            form.format(split.replace("_", " "), value) for split, value in card.figures.items()
        )
        table.add_row(
            name,
            card.task,
            card.data,
            f"{card.metric}: {figures}",
            f"{card.parameters / 1e6:.1f} M",
            f"{card.megabytes:.1f} MB",
        )
    Console().print(table)


def parsed(settings: list[str] | None) -> dict[str, Any]:
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
        write(path, text)


def _draw(found: list[Explanation], path: Path) -> None:
    from wherefrom.show.svg_figure import scene_plot

    if any(each.scene is None or "png" not in each.scene for each in found):
        raise InputError("--png draws images and molecules; write a text with --html.")
    scene_plot(found, path)
    typer.echo(f"wrote {path}", err=True)


def _write_pages(tables: list[list[Explanation]], path: Path, beside: bool = False) -> None:
    from wherefrom.show.html import render, render_beside, render_many

    if beside:
        write(path, render_beside(tables))
    else:
        write(path, render(tables[0]) if len(tables) == 1 else render_many(tables))
    typer.echo(f"wrote {path}", err=True)
