"""Runs the core tests on several versions of transformers, each in an environment of its own.

    python -m tools.matrix [--only 4.48.0,newest | --here] [--out docs/compatibility.md]

An environment holds transformers and what it asks for in other versions than .venv has; all else,
torch above all, is taken from .venv. With --here the tests run on what this interpreter has, which
is how other versions of Python and torch are tried. Rows of the page that were not run now stay
as they are.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import sysconfig
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[1]
ENVIRONMENTS = HOME / ".venv-matrix"
PAGE = HOME / "docs" / "compatibility.md"
NEWEST, HERE = "newest", "here"
VERSIONS = ("4.48.0", "4.57.6", "5.0.0", NEWEST)
# what meets transformers: loading, tokenizers, methods on several architectures, families, ledgers
CORE = (
    "tests/models", "tests/test_explain.py", "tests/test_families.py", "tests/test_ledger.py",
    "tests/test_loading.py", "tests/answers/test_answer.py", "tests/inputs/test_image.py",
    "tests/inputs/test_text.py", "tests/methods/test_every_method.py", "tests/test_any_module.py",
    "tests/test_untouched.py",
)  # fmt: skip
# said by old versions of transformers when a test saves a tiny model
QUIET = ("Some non-default generation parameters", "Moving the following attributes in the config")
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
HEAD = (
    "| transformers | torch | Python | system | passed | skipped | failed | minutes | date |",
    "|---|---|---|---|--:|--:|--:|--:|---|",
)


@dataclass(frozen=True)
class Row:
    """What came of the core tests on one version."""

    transformers: str
    torch: str
    passed: int
    skipped: int
    failed: int
    minutes: float

    def __str__(self) -> str:
        system = f"{platform.system()} {platform.machine()}"
        cells = [
            self.transformers, self.torch, platform.python_version(), system, f"{self.passed:,}",
            str(self.skipped), str(self.failed), f"{self.minutes:.0f}",
            datetime.date.today().isoformat(),
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |"


def environment(version: str) -> Path:
    """The interpreter of an environment with this version of transformers; made if missing."""
    folder = ENVIRONMENTS / version
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        shared = sysconfig.get_path("purelib")
        place = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip
        # its own packages come first on the path
        link = f"import site; site.addsitedir({shared!r})\n"
        Path(place, "shared.pth").write_text(link, encoding="utf-8")
    if version != NEWEST and versions(python)[0] == version:
        return python
    wanted = "transformers" if version == NEWEST else f"transformers=={version}"
    options = ["--quiet", "--disable-pip-version-check", "--constraint", "constraints.txt"]
    command = [str(python), "-m", "pip", "install", *options, "--upgrade", wanted]
    subprocess.run(command, check=True, cwd=HOME)
    return python


def versions(python: Path) -> tuple[str, str]:
    """The versions of transformers and torch that an interpreter imports."""
    code = "import torch, transformers; print(transformers.__version__, torch.__version__)"
    done = subprocess.run(
        [str(python), "-c", code], check=True, capture_output=True, text=True, cwd=HOME
    )
    first, second = done.stdout.split()
    return first, second.partition("+")[0]


def counted(report: Path) -> tuple[int, int, int]:
    """Tests that passed, were skipped and failed, by a report in JUnit's form."""
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    total, skipped, failed = (
        sum(int(suite.attrib[name]) for name in names)
        for names in (("tests",), ("skipped",), ("failures", "errors"))
    )
    return total - skipped - failed, skipped, failed


def run(version: str) -> Row:
    """Runs the core tests on one version."""
    python = Path(sys.executable) if version == HERE else environment(version)
    found, torch = versions(python)
    ENVIRONMENTS.mkdir(exist_ok=True)
    report = ENVIRONMENTS / f"{version}.xml"
    quiet = [option for message in QUIET for option in ("-W", f"ignore:{message}")]
    start = time.monotonic()
    # 0: all passed, 1: some failed; anything else is no result
    done = subprocess.run(
        [
            str(python), "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", str(report),
            "-m", "not slow and not browser and not llm", *quiet, *CORE,
        ],
        cwd=HOME, check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise SystemExit(f"the tests of transformers {version} did not run")
    return Row(found, torch, *counted(report), (time.monotonic() - start) / 60)


def merged(text: str, rows: list[Row]) -> str:
    """The page with these rows in its table, in place of older ones of the same version."""
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    kept = {row_key(line): line for line in table.splitlines() if re.match(r"\| \d", line)}
    kept.update({row_key(str(row)): str(row) for row in rows})
    ordered = sorted(kept, key=lambda key: [_numbers(version) for version in key])
    lines = "\n".join([BEGIN, *HEAD, *(kept[key] for key in ordered), END])
    return f"{before}{lines}{after}"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def row_key(line: str) -> tuple[str, str, str]:
    """The versions of transformers, torch and Python that a row is of."""
    cells = [cell.strip() for cell in line.split("|")]
    return cells[1], cells[2], cells[3]


def main() -> int:
    """Runs the versions that are asked for; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(VERSIONS), help="comma-separated versions")
    parser.add_argument(
        "--here", dest="only", action="store_const", const=HERE, help="this interpreter's versions"
    )
    parser.add_argument("--out", type=Path, help="the page to write the rows into")
    options = parser.parse_args()
    rows = []
    for version in options.only.split(","):
        rows.append(run(version))
        print(rows[-1], flush=True)
        if options.out is not None:
            text = merged(options.out.read_text(encoding="utf-8"), rows)
            options.out.write_text(text, encoding="utf-8")
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
