"""The command line: thin, and light until something is explained."""

from __future__ import annotations

import typer

from wherefrom.cli.common import plainly
from wherefrom.cli.corpus import bias, corpus
from wherefrom.cli.evaluate import audit, evaluate
from wherefrom.cli.explain import compare, explain, methods, models
from wherefrom.cli.serve import serve

app = typer.Typer(
    help="Where a Transformer's prediction comes from, in scores that add up.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for _command in (explain, compare, evaluate, audit, bias, corpus, serve, methods, models):
    app.command()(plainly(_command))
