"""Commands that explain single inputs, and what they list."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wherefrom.cli.common import (
    Against,
    Dtype,
    FromFile,
    Html,
    Json,
    MethodNames,
    Model,
    Png,
    Settings,
    Smiles,
    Sources,
    TargetOption,
    Texts,
    Truncate,
    Units,
    Words,
    each_explained,
    exit_if_not_all,
    image_units,
    listed,
    load,
    progress,
    read_texts,
    say,
    say_styled,
)  # fmt: skip
from wherefrom.errors import FileError, InputError, MethodError
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    from wherefrom.explanation import Explanation

_BATCH = 16  # inputs explained between two steps of the progress bar


def explain(
    texts: Texts = None,
    model: Model = None,
    method: Annotated[str, typer.Option(help="See `wherefrom methods`.")] = "lrp",
    target: TargetOption = None,
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
    dtype: Dtype = None,
) -> None:
    """Explain a text, image or molecule: heatmap and ledger."""
    _check_png(png)
    model = model or ("bace" if smiles else None)
    sources = _molecules(smiles) if smiles else read_texts(texts, file)
    explainer = load(model, sources.texts, dtype)
    options = parsed(settings)
    with progress("explaining") as advance:
        done = itertools.count(0, _BATCH)

        def explain_batch(batch: list[str]) -> list[Explanation]:
            if len(batch) > 1 or len(sources) == 1:  # not again for each of a batch that failed
                advance(next(done), len(sources), method)
            explanations: list[Explanation] = explainer(
                batch,
                method,
                target,
                against,
                units=image_units(units),
                truncate=truncate,
                **options,
            )
            return [explanation.words() for explanation in explanations] if words else explanations

        explanations, failures = each_explained(sources, _BATCH, explain_batch)
    if json is not None:
        _write_json(explanations, json, is_list=len(sources) > 1)
    if html is not None:
        _write_pages([[explanation] for explanation in explanations], html)
    if png is not None:
        _draw(explanations, png)
    if json is None or str(json) != "-":
        say_styled("\n\n".join(str(explanation) for explanation in explanations))
    exit_if_not_all(failures, sources)


def compare(
    texts: Texts = None,
    model: Model = None,
    methods: MethodNames = None,
    target: TargetOption = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    png: Png = None,
    units: Units = None,
    beside: Annotated[
        str | None, typer.Option(help="Also explain an image for this class, side by side.")
    ] = None,
    smiles: Smiles = None,
    file: FromFile = None,
    truncate: Truncate = False,
    dtype: Dtype = None,
) -> None:
    """Explain a text, image or molecule by all methods, a row each."""
    from wherefrom.methods import METHODS
    from wherefrom.show.terminal import render_rows

    _check_png(png)
    model = model or ("bace" if smiles else None)
    sources = _molecules(smiles) if smiles else read_texts(texts, file)
    explainer = load(model, sources.texts, dtype)
    names = listed(methods)
    classes = [target] if beside is None else [target, beside]
    with progress("explaining") as advance:
        total = len(names or METHODS) * len(sources) * len(classes)
        done = itertools.count()

        def compare_one(batch: list[str]) -> list[list[Explanation]]:
            tables = [
                explainer.compare(
                    batch[0],
                    names,
                    target=label,
                    against=against,
                    units=image_units(units),
                    truncate=truncate,
                    starting=lambda name: advance(min(next(done), total), total, name),
                )
                for label in classes
            ]
            return [[e.words() if words else e for e in table] for table in tables]

        tables, failures = each_explained(sources, 1, compare_one)
    explanations = [explanation for table in tables for explanation in table]
    if json is not None:
        _write_json(explanations, json, is_list=len(sources) > 1 or len(explanations) > 1)
    if html is not None:
        _write_pages(tables, html, beside=beside is not None)
    if png is not None:
        _draw(explanations, png)
    if json is None or str(json) != "-":
        say_styled("\n\n".join(render_rows(table) for table in tables))
    exit_if_not_all(failures, sources)


def methods() -> None:
    """List all methods, those of installed packages too."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from wherefrom.methods import METHODS

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("method", "what it is", "published", "settings"):
        table.add_column(column, no_wrap=column == "method")
    for name, kind in METHODS.items():
        sentence = (kind.__doc__ or "").strip().splitlines()[0]
        settings = ", ".join(f"{k}={v}" for k, v in kind().settings().items())
        # as Text: brackets in a plain string would be markup
        table.add_row(*(Text(cell) for cell in (name, sentence, kind.paper, settings)))
    Console().print(table)


def models() -> None:
    """List the embedded models."""
    from rich.console import Console
    from rich.table import Table

    from wherefrom.models.embedded import embedded

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("model", "task", "data", "measured", "parameters", "size"):
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
    """`steps=64` as {"steps": 64}: a value is a Python literal, else text."""
    import ast

    values: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals:
            raise MethodError(f'cannot read the setting "{setting}": write key=value.')
        try:
            values[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            values[key] = value
    return values


def _molecules(smiles: list[str]) -> Sources:
    return Sources(smiles, [f"molecule {number + 1}" for number in range(len(smiles))])


def _write_json(explanations: list[Explanation], path: Path, is_list: bool) -> None:
    import json

    data = [explanation.to_dict() for explanation in explanations]
    text = json.dumps(data if is_list else data[0], ensure_ascii=False, indent=1)
    if str(path) == "-":
        say(text)  # what is escaped is valid JSON still
    else:
        write_text(path, text)


def _check_png(path: Path | None) -> None:
    if path is not None and path.suffix.lower() != ".png":
        raise FileError(f"cannot write {path}: the name of a picture must end in .png.")


def _draw(explanations: list[Explanation], path: Path) -> None:
    from wherefrom.show.svg_figure import scene_plot

    if any("png" not in (explanation.scene or {}) for explanation in explanations):
        raise InputError("--png is for images and molecules; for texts use --html.")
    scene_plot(explanations, path)
    say(f"wrote {path}", err=True)


def _write_pages(tables: list[list[Explanation]], path: Path, beside: bool = False) -> None:
    from wherefrom.show.html import render, render_beside, render_many

    if beside:
        write_text(path, render_beside(tables))
    else:
        write_text(path, render(tables[0]) if len(tables) == 1 else render_many(tables))
    say(f"wrote {path}", err=True)
