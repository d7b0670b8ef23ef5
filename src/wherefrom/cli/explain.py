"""Commands that explain single inputs, and that list methods and models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from wherefrom.cli.options import (
    Against,
    Budget,
    Device,
    Dtype,
    Encoding,
    EntityOption,
    FromFile,
    Html,
    Json,
    MethodName,
    MethodNames,
    Model,
    Numbers,
    PairOption,
    Plot,
    Position,
    Seed,
    Settings,
    SettingsOfAll,
    Smiles,
    TargetOption,
    Texts,
    Truncate,
    Units,
    Words,
)
from wherefrom.cli.output import complain, exit_if_left_out, progress, say, say_styled, write_json
from wherefrom.cli.reading import (
    Sources,
    check_molecules,
    check_plot,
    image_units,
    listed,
    load,
    parsed,
    read_texts,
    with_settings,
)
from wherefrom.core.progress import PATIENCE
from wherefrom.errors import FileError, InputError, TargetError, WherefromError, for_command
from wherefrom.storage.writing import write_text

if TYPE_CHECKING:
    from wherefrom.core.explanation import Explanation

Result = TypeVar("Result")

COMPARED = (
    "secant", "lrp", "attn_lrp", "gradient_x_input", "integrated_gradients", "gae", "occlusion",
)  # fmt: skip
"""Default methods of `compare`: one of each kind, the most informative first."""
_BATCH = 16  # inputs per step of the progress bar


def explain(
    texts: Texts = None,
    model: Model = None,
    method: MethodName = "auto",
    target: TargetOption = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    units: Units = None,
    smiles: Smiles = None,
    file: FromFile = None,
    truncate: Truncate = False,
    settings: Settings = None,
    budget: Budget = None,
    seed: Seed = None,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    pair: PairOption = None,
    position: Position = None,
    entity: EntityOption = None,
    numbers: Numbers = False,
) -> None:
    """Explain a text, image or molecule: heatmap and ledger."""
    check_plot(plot)
    model = model or ("bace" if smiles else None)
    sources = _molecules(smiles) if smiles else read_texts(texts, file, encoding)
    _check_single(pair, plot, sources)
    explainer = load(model, sources.texts, dtype, device)
    check_molecules(explainer, smiles)
    options = parsed(settings) | {"position": position, "entity": entity}
    given = {"budget": budget, "seed": seed}
    options |= {name: value for name, value in given.items() if value is not None}
    options |= {} if pair is None else {"text_pair": [pair]}
    with progress("explaining", PATIENCE) as advance:
        done = itertools.count(0, _BATCH)

        def explain_batch(batch: list[str]) -> list[Explanation]:
            if len(batch) > 1 or len(sources) == 1:  # not for parts of a failed batch
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

        explanations, failures = _explain_all(sources, _BATCH, explain_batch)
    if json is not None:
        _write_json(explanations, json, is_list=len(sources) > 1)
    if html is not None:
        _write_pages([[explanation] for explanation in explanations], html)
    if plot is not None:
        _draw(explanations, plot)
    if json is None or str(json) != "-":
        from wherefrom.show.terminal import render

        def block(explanations: list[Explanation], legend: bool) -> str:
            return render(explanations[0], numbers=numbers or None, legend=legend)

        say_styled(_blocks([[explanation] for explanation in explanations], block))
    exit_if_left_out(failures, len(sources), "inputs")


def compare(
    texts: Texts = None,
    model: Model = None,
    methods: MethodNames = None,
    target: TargetOption = None,
    against: Against = None,
    words: Words = False,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    units: Units = None,
    beside: Annotated[
        str | None, typer.Option(help="Also explain an image for this class, side by side.")
    ] = None,
    smiles: Smiles = None,
    file: FromFile = None,
    truncate: Truncate = False,
    dtype: Dtype = None,
    device: Device = None,
    encoding: Encoding = None,
    pair: PairOption = None,
    position: Position = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Compare all methods. Default: {', '.join(COMPARED)}.")
    ] = False,
    settings: SettingsOfAll = None,
    numbers: Numbers = False,
) -> None:
    """Explain an input by several methods, one row each."""
    from wherefrom.methods import METHODS
    from wherefrom.show.terminal import render_rows

    check_plot(plot)
    if methods and every:
        raise InputError("pass either --methods or --all, not both.")
    model = model or ("bace" if smiles else None)
    sources = _molecules(smiles) if smiles else read_texts(texts, file, encoding)
    _check_single(pair, plot, sources)
    names = with_settings(listed(methods) or (METHODS if every else COMPARED), settings)
    explainer = load(model, sources.texts, dtype, device)
    check_molecules(explainer, smiles)
    classes = [target] if beside is None else [target, beside]
    with progress("explaining", PATIENCE) as advance:
        total = len(names) * len(sources) * len(classes)
        done = itertools.count()

        def compare_one(batch: list[str]) -> list[list[list[Explanation]]]:
            tables = [
                explainer.compare(
                    batch[0],
                    names,
                    target=label,
                    against=against,
                    units=image_units(units),
                    truncate=truncate,
                    position=position,
                    text_pair=pair,
                    starting=lambda name: advance(min(next(done), total), total, name),
                )
                for label in classes
            ]
            return [[[e.words() if words else e for e in table] for table in tables]]

        compared, failures = _explain_all(sources, 1, compare_one)
    tables = [table for tables in compared for table in tables]
    explanations = [explanation for table in tables for explanation in table]
    if json is not None:
        _write_json(explanations, json, is_list=len(sources) > 1 or len(explanations) > 1)
    if html is not None:
        _write_pages(tables, html, beside=beside is not None)
    if plot is not None:
        _draw(explanations, plot)
    if json is None or str(json) != "-":

        def block(explanations: list[Explanation], legend: bool) -> str:
            return render_rows(explanations, numbers=numbers or None, legend=legend)

        say_styled(_blocks(tables, block))
    exit_if_left_out(failures, len(sources), "inputs")


def methods() -> None:
    """List all methods, including those of installed packages."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from wherefrom.methods import METHODS, Method
    from wherefrom.methods.secant import Auto

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("method", no_wrap=True)
    table.add_column("description, paper, settings")
    kinds: tuple[type[Method], ...] = (Auto, *METHODS.values())
    for kind in kinds:
        sentence = (kind.__doc__ or "").strip().splitlines()[0]
        lines = Text(f"{sentence.rstrip('.')} ({kind.paper})" if kind.paper else sentence)
        settings = ", ".join(f"{k}={v}" for k, v in kind().settings().items())
        if settings:
            lines.append(f"\n{settings}", style="dim")
        table.add_row(
            Text(kind.name), lines
        )  # a Text, since brackets in a plain string would be markup
    Console().print(table)


def models() -> None:
    """List the embedded models, and how to get the others."""
    from rich.console import Console
    from rich.table import Table

    from wherefrom.models.embedded import embedded
    from wherefrom.models.packaged import LANGUAGE_MODELS

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
    for name, model in LANGUAGE_MODELS.items():
        state = "installed" if model.is_installed() else f"install it with: {model.install}"
        say(f"{name}: {model.about}, a small language model ({state})")


def _blocks(
    tables: list[list[Explanation]], block: Callable[[list[Explanation], bool], str]
) -> str:
    """A block per input and one legend, which names the class only if all inputs share it."""
    blocks = [block(table, False) for table in tables]
    first = tables[-1][0]
    if len({table[0].target.label for table in tables}) > 1:
        first = replace(first, target=replace(first.target, label="the class above it"))
    last = [first, *tables[-1][1:]]
    legend = block(last, True).removeprefix(block(last, False))  # the legend alone
    return "\n\n".join(blocks) + legend


def _explain_all(
    sources: Sources, size: int, explain: Callable[[list[str]], list[Result]]
) -> tuple[list[Result], int]:
    """The results of all texts, in batches of this size, and the number of failed texts.

    A text that cannot be explained is reported on stderr and left out; it is an error if there is
    only one text, or if no text can be explained.
    """
    from wherefrom.core.runner import Rejected, split_on_failure

    results: list[Result] = []
    failures: list[WherefromError] = list(sources.unreadable.values())

    def work(part: Sequence[int]) -> Sequence[Result]:
        try:
            return explain([sources.texts[i] for i in part])
        except FileError as error:  # one image cannot be read
            raise InputError(for_command(error)) from error

    for start in range(0, len(sources.texts), size):
        batch = range(start, min(start + size, len(sources.texts)))
        for i, result in split_on_failure(batch, work, reject=True):
            if not isinstance(result, Rejected):
                results.append(result)
            elif len(sources) == 1 or isinstance(result.error, TargetError):  # affects all inputs
                raise result.error
            else:
                failures.append(result.error.at(sources.locations[i]))
    for failure in failures:
        complain(failure)
    if not results:
        raise InputError(f"none of the {len(sources)} inputs could be explained.")
    return results, len(failures)


def _check_single(pair: str | None, plot: Path | None, sources: Sources) -> None:
    """Refuses options for a single input if there are several."""
    for name, value in (("--pair", pair), ("--plot", plot)):
        if value is not None and len(sources) != 1:
            raise InputError(f"{name} applies to a single input, got {len(sources)}.")


def _molecules(smiles: list[str]) -> Sources:
    return Sources(smiles, [f"molecule {i + 1}" for i in range(len(smiles))])


def _write_json(explanations: list[Explanation], path: Path, is_list: bool) -> None:
    import json

    data = [explanation.to_dict() for explanation in explanations]
    write_json(path, json.dumps(data if is_list else data[0], ensure_ascii=False, indent=1))


def _draw(explanations: list[Explanation], path: Path) -> None:
    from wherefrom.core.explanation import Comparison

    Comparison(explanations).plot(path=path)
    say(f"wrote {path}", err=True)


def _write_pages(tables: list[list[Explanation]], path: Path, beside: bool = False) -> None:
    from wherefrom.show.html import render, render_classes, render_many

    if beside:
        write_text(path, render_classes(tables))
    else:
        write_text(path, render(tables[0]) if len(tables) == 1 else render_many(tables))
    say(f"wrote {path}", err=True)
