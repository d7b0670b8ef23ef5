"""The command that serves the web page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wherefrom.cli.options import Device, Dtype
from wherefrom.cli.output import say
from wherefrom.cli.reading import model_options


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
            help="Token that every visitor needs; random if --host is reachable by others.",
        ),
    ] = None,
    reports: Annotated[
        Path | None, typer.Option(help="Folder of HTML reports to list on the page.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    dtype: Dtype = None,
    device: Device = None,
) -> None:
    """Serve a local web page for exploring predictions."""
    from wherefrom.web.serve import serve as run_server

    run_server(
        model or (),
        host,
        port,
        token,
        reports,
        browse,
        say=lambda text: say(text, err=True),
        **model_options(dtype, device),
    )
