"""`python -m wherefrom`: the command line."""

from wherefrom.cli import run

run()
