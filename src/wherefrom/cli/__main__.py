"""`python -m wherefrom.cli`."""

from wherefrom.cli import app

app()
