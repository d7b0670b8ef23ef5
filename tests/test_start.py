"""Nothing heavy is imported before it is used."""

import os
import subprocess
import sys

import pytest

HEAVY = (
    "transformers huggingface_hub sympy scipy pandas sklearn matplotlib PIL torchvision "
    "torch._dynamo torch._inductor torch.distributed.tensor"
)
REPORT = "import sys; print('loaded', *(n for n in {names!r}.split() if n in sys.modules))"


def loaded(arguments, names):
    """Which of these modules a command has imported when it ends."""
    code = (
        "from wherefrom.cli import run\n"
        f"try:\n    run({arguments!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        + REPORT.format(names=names)
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


@pytest.mark.parametrize("command", [[], ["explain"], ["corpus"], ["evaluate"], ["serve"]])
def test_help_imports_no_library_but_typer(command):
    assert loaded([*command, "--help"], f"torch numpy rich tokenizers {HEAVY}") == []


def test_the_list_of_commands_fits_a_narrow_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "wherefrom", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "80", "TERMINAL_WIDTH": "80"},
    )
    commands = done.stdout.partition("Commands:")[2].strip().splitlines()
    assert len(commands) >= 9
    assert not [line for line in commands if line.endswith("...")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "a fine film"],
        ["explain", "a fine film", "--method", "integrated_gradients", "--words"],
        ["explain", "--model", "sentiment", "--dtype", "float64", "a fine film"],
    ],
)
def test_explaining_with_the_embedded_model_imports_torch_and_little_else(arguments):
    assert loaded(arguments, f"torch {HEAVY}") == ["torch"]
