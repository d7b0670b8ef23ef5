"""The commands; they import torch only when they need it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from wherefrom import __version__
from wherefrom.cli.answer import answer
from wherefrom.cli.corpus import bias, corpus
from wherefrom.cli.corpus import run as run_rows
from wherefrom.cli.evaluate import audit, evaluate
from wherefrom.cli.explain import compare, explain, methods, models
from wherefrom.cli.inside import inside
from wherefrom.cli.options import Device, Dtype
from wherefrom.cli.output import plainly, say
from wherefrom.cli.reading import model_options, parsed

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
    rich_markup_mode=None,  # plain help, since rich help takes longer to import than all the rest
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"wherefrom {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Where a Transformer's prediction comes from, in scores that add up."""


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Embedded model, folder or hub id; may be repeated. Default: the embedded models.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. The default is reachable from this machine only."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="WHEREFROM_TOKEN",
            help="Access token for visitors; random if --host is reachable by others.",
        ),
    ] = None,
    reports: Annotated[
        Path | None, typer.Option(help="Folder of HTML reports to list on the page.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    api: Annotated[
        bool, typer.Option("--api", help="Also serve the API for programs, compatible with OpenAI.")
    ] = False,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            envvar="WHEREFROM_API_KEYS",
            help="Key that programs must send; may be repeated. Default: the token, if there is "
            "one.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="A limit as name=value, such as answer_tokens=512."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Serve a local web page to explore predictions, and an API."""
    from wherefrom.web.serve import serve as run_server

    run_server(
        model or (),
        host,
        port,
        token,
        reports,
        browse,
        api,
        api_key or (),
        parsed(limit),
        say=lambda text: say(text, err=True),
        **model_options(dtype, device),
    )


SECTIONS = {
    "Input": "file encoding pair pair_column smiles units truncate text_column label_column "
    "id_column no_labels prompt passages question system image groups name_column group_column "
    "sample",
    "What is explained": "target against position entity beside answer of",
    "Model": "model dtype device",
    "Method": "method methods every settings budget seed through",
    "Answer": "max_new_tokens temperature",
    "Output": "out words numbers json html plot check resume reports",
    "Resources": "batch_tokens tokens engine address workers gpus_per_worker part_rows",
}
"""The parameters in each section of the help of a command; all others are in the last."""
EXAMPLES = {
    "explain": (
        'wherefrom explain "a charming film"',
        'wherefrom explain "a charming film" --method shapley --budget 1000',
        'wherefrom explain "a charming film" --plot film.pdf --html film.html',
        "wherefrom explain photo.png --model FOLDER --target cat",
        'wherefrom explain --smiles "CC(=O)Nc1ccc(O)cc1"',
    ),
    "compare": (
        'wherefrom compare "a charming film" --methods secant,lrp,gae --plot methods.pdf',
        "wherefrom compare three.png --beside 8 --html classes.html",
    ),
    "answer": (
        'wherefrom answer --prompt "The capital of France is" --max-new-tokens 1',
        'wherefrom answer --question "Who wrote it?" --passages a.txt --passages b.txt --check',
        "wherefrom answer --prompt prompts.jsonl --json answers.jsonl",
    ),
    "evaluate": (
        "wherefrom evaluate reviews.csv --out report --sample 200",
        "wherefrom evaluate reviews.csv --out report --methods secant,lrp,gae --metrics flip",
    ),
    "audit": (
        'wherefrom audit "a charming film" --methods secant,gae',
        "wherefrom audit --model FOLDER --html audit.html",
    ),
    "bias": (
        "wherefrom bias reviews.csv --groups names.csv --out study",
        "wherefrom bias reviews.csv --groups names.csv --out study --target joy --against anger",
    ),
    "corpus": (
        "wherefrom corpus reviews.csv --out report",
        "wherefrom corpus reviews.csv --out report --min-count 20 --resume",
    ),
    "run": (
        "wherefrom run reviews.parquet --out scores",
        "wherefrom run s3://bucket/reviews --out s3://bucket/scores --engine ray --address auto",
    ),
    "serve": (
        "wherefrom serve --open",
        "wherefrom serve --model FOLDER --model smollm2 --port 8000",
    ),
}


class Command(TyperCommand):
    """A command whose plain help has its options in sections, and examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        of_name = {name: title for title, names in SECTIONS.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in ("Arguments", *SECTIONS, "Other options")
        }
        for param in self.get_params(ctx):
            section = of_name.get(param.name or "", "Other options")
            line = param.get_help_record(ctx)
            if line is not None:
                sections["Arguments" if isinstance(param, TyperArgument) else section].append(line)
        for name, lines in sections.items():
            if lines:
                with formatter.section(name):
                    formatter.write_dl(lines)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        examples = EXAMPLES.get(self.name or "", ())
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in examples))


def run(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; an interrupt outside a command also ends it with one line."""
    try:
        app(args=arguments, prog_name="wherefrom")
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(130) from None


for _command in (
    explain, compare, inside, answer, evaluate, audit, bias, corpus, run_rows, serve, methods,
    models,
):  # fmt: skip
    app.command(_command.__name__, cls=Command)(plainly(_command))
