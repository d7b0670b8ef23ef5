"""`python -m whence.cli`."""

from whence.cli import app

app()
