"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Texts = Annotated[
    list[str] | None, typer.Argument(help="Texts or image files to explain; - reads stdin.")
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="An embedded model, a folder or a hub id. Default: the "
                 "embedded model for this kind of input."),
]  # fmt: skip
Dtype = Annotated[
    Literal["auto", "float16", "bfloat16", "float32", "float64"] | None,
    typer.Option(help="Precision of the weights; auto: as stored. Default: as stored, but "
                 "float32 instead of half precision on a CPU."),
]  # fmt: skip
Device = Annotated[
    str | None, typer.Option(help="Device of the model: cpu, cuda, cuda:1, mps, or auto.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write a figure to this .png, .pdf or .svg file.")
]
Smiles = Annotated[list[str] | None, typer.Option("--smiles", help="A molecule to explain.")]
Units = Annotated[
    str | None, typer.Option(help="Units of an image: patches, pixels, or a cell size.")
]
FromFile = Annotated[
    Path | None, typer.Option("--file", "-f", help="A file with one text per line.")
]
TargetOption = Annotated[
    str | None, typer.Option(help="Class (label or index) or next token. Default: most likely.")
]
Against = Annotated[str | None, typer.Option(help="Explain the difference to this class or token.")]
MethodNames = Annotated[str | None, typer.Option(help="Comma-separated method names.")]
Numbers = Annotated[bool, typer.Option("--numbers", help="Show scores even with colours.")]
Words = Annotated[bool, typer.Option("--words", help="Join tokens to words.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write JSON to this file; - prints it.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write an HTML page to this file.")]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of text files. Default: UTF-8 or UTF-16, else a guess.")
]
Truncate = Annotated[bool, typer.Option("--truncate", help="Truncate texts that are too long.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting of the method, as key=value.")
]
Budget = Annotated[
    int | None, typer.Option(help="Forward passes for each input, for --method shapley.")
]
Seed = Annotated[int | None, typer.Option(help="The seed of a method that samples.")]
SettingsOfAll = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", help="A setting as key=value, for all methods that have it."),
]
PairOption = Annotated[
    str | None, typer.Option("--pair", help="The second text of a pair: hypothesis, context, …")
]
Position = Annotated[
    int | None, typer.Option(help="Token to explain, for models with an output for every token.")
]
EntityOption = Annotated[
    str | None, typer.Option("--entity", help="Words to explain, for models that classify tokens.")
]
MethodName = Annotated[
    str,
    typer.Option(
        "--method", help="auto: secant for texts to classify, else lrp. See `wherefrom methods`."
    ),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of the texts. Default: text, sentence, review, …")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the true classes. Default: label, class, target, …")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run into OUT.")]
BatchTokens = Annotated[
    int,
    typer.Option(
        "--batch-tokens", "--tokens", help="Maximum tokens per batch; fewer need less memory."
    ),
]
EngineOption = Annotated[
    Literal["local", "ray"],
    typer.Option("--engine", help="local: this process; ray: Ray Data, here or on a cluster."),
]
Address = Annotated[
    str | None,
    typer.Option(help="A Ray cluster: auto or ray://HOST:PORT. Default: start Ray here."),
]
Workers = Annotated[
    int | None, typer.Option(help="Ray processes, each with its own model. Default: all CPUs.")
]
GpusPerWorker = Annotated[float, typer.Option(help="GPUs per worker; 0.5 shares one.")]
