"""The command that opens the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="May be repeated; by default the embedded ones."),
    ] = None,
    host: Annotated[str, typer.Option(help="Others can reach it only if asked for.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(envvar="WHEREFROM_TOKEN", help="Asked of every visitor; made up for --host."),
    ] = None,
    reports: Annotated[
        Path | None, typer.Option(help="A folder whose pages open from here too.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Explore predictions on a page of your own machine."""
    from wherefrom.web.serve import serve as run_server

    def say(text: str) -> None:
        typer.echo(text, err=True)

    run_server(model or (), host, port, token, reports, browse, say=say)
