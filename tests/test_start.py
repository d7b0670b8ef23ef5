"""Nothing heavy is imported before it is used."""

import os
import subprocess
import sys

HEAVY = (
    "transformers huggingface_hub sympy scipy pandas sklearn matplotlib PIL torchvision "
    "torch._dynamo torch._inductor torch.distributed.tensor"
)


def loaded(commands, names):
    """Which of these modules commands have imported when they end, one after the other."""
    code = (
        "import sys, wherefrom\ndir(wherefrom)\nfrom wherefrom.cli import run\n"
        f"for command in {commands!r}:\n"
        "    try:\n        run(command)\n"
        "    except SystemExit as end:\n        assert not end.code\n"
        f"print('loaded', *(n for n in {names!r}.split() if n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage") == sum("--help" in command for command in commands)
    return done.stdout.splitlines()[-1].split()[1:]


def test_help_imports_no_library_but_typer():
    commands = [], ["explain"], ["compare"], ["corpus"], ["evaluate"], ["serve"]
    helps = [[*command, "--help"] for command in commands]
    assert loaded(helps, f"torch numpy rich tokenizers {HEAVY}") == []


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


def test_explaining_with_the_embedded_model_imports_torch_and_little_else():
    commands = [
        ["explain", "a fine film"],
        ["explain", "a fine film", "--method", "integrated_gradients", "--words"],
        ["explain", "--model", "sentiment", "--dtype", "float64", "a fine film"],
    ]
    assert loaded(commands, f"torch {HEAVY}") == ["torch"]
