"""`python -m wherefrom`: the command line."""

from wherefrom.cli import app

app(prog_name="wherefrom")
