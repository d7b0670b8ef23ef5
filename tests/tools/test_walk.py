"""The page on the design lists the files that an explanation really runs."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_design_lists_the_files_that_an_explanation_runs():
    """In a process of its own, where no other test has filled a cache."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.walk"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    written = page.partition("<!-- walk -->")[2].partition("<!-- end of walk -->")[0]
    names = re.compile(r"^\| `([\w/]+\.py)` \|", re.MULTILINE)
    assert names.findall(written) == names.findall(done.stdout), "python -m tools.walk --write"
    depth = re.compile(r"at most (\d+) calls deep")
    assert depth.findall(written) == depth.findall(done.stdout), "python -m tools.walk --write"
