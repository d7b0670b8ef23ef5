"""The command that looks into a model: layers, heads, neurons and experts."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Literal

import typer

from wherefrom.cli.options import (
    Against,
    Device,
    Dtype,
    Html,
    Json,
    Model,
    Plot,
    Position,
    Settings,
    TargetOption,
    Texts,
    Truncate,
)
from wherefrom.cli.output import progress, say, say_styled, write_json
from wherefrom.cli.reading import load, parsed, read_texts
from wherefrom.core.progress import PATIENCE
from wherefrom.errors import InputError


def inside(
    texts: Texts = None,
    model: Model = None,
    method: Annotated[
        str, typer.Option(help="A method of one backward pass: lrp, secant, attn_lrp, …")
    ] = "lrp",
    target: TargetOption = None,
    against: Against = None,
    through: Annotated[
        list[str] | None,
        typer.Option(
            help="Also explain what flows through this component, such as layer.5.head.3; several: "
            "in turn, those of one layer and kind together."
        ),
    ] = None,
    json: Json = None,
    html: Html = None,
    plot: Plot = None,
    kind: Annotated[
        Literal["layers", "heads", "flow"], typer.Option(help="The figure of --plot.")
    ] = "layers",
    position: Position = None,
    truncate: Truncate = False,
    settings: Settings = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Show what carries an output: layers, heads, neurons, experts."""
    sources = read_texts(texts, None).all_texts()
    if len(sources) != 1:
        raise InputError(f"inside takes one input, got {len(sources)}.")
    explainer = load(model, sources, dtype, device)
    with progress("explaining", PATIENCE) as advance:
        advance(0, 1, method)
        result = explainer.inside(
            sources[0],
            method,
            target,
            against,
            position=position,
            truncate=truncate,
            **parsed(settings),
        )
        part = result.through(*through) if through else None
    if html is not None:
        result.to_html(html)
        say(f"wrote {html}", err=True)
    if plot is not None:
        result.plot(kind, path=plot)
        say(f"wrote {plot}", err=True)
    if json is not None:
        data = result.to_dict() | ({} if part is None else {"through": part.to_dict()})
        write_json(json, json_format.dumps(data, ensure_ascii=False))
    if json is None or str(json) != "-":
        say_styled(str(result) if part is None else f"{result}\n\n{part}")
