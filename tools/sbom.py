"""Writes the list of parts (SBOM, CycloneDX) of a release; run by `make release`.

The parts are those of locks/base.txt, with their hashes, torch by its version, and the embedded
models and word list.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
_SPDX = {"mit": "MIT", "apache-2.0": "Apache-2.0"}  # by their names in model cards


def completed(bom: dict[str, Any], version: str, needed: list[str]) -> dict[str, Any]:
    """The list with the version of the package, and with the parts that it needs itself."""
    root = bom["metadata"]["component"]
    root["version"] = version
    root["purl"] = f"pkg:pypi/{root['name']}@{version}"
    root["components"] = contents()
    parts = [part["bom-ref"] for part in bom["components"] if part["name"].lower() in needed]
    others = [entry for entry in bom.get("dependencies", []) if entry["ref"] != root["bom-ref"]]
    return {**bom, "dependencies": [{"ref": root["bom-ref"], "dependsOn": sorted(parts)}, *others]}


def contents() -> list[dict[str, Any]]:
    """The embedded models and the word list, with their licences."""
    names = {"type": "data", "bom-ref": "ordinary-words", "name": "ordinary_words.txt"}
    licence: dict[str, str] = {"name": "Names Corpus by Mark Kantrowitz and Bill Ross: see NOTICE"}
    parts: list[dict[str, Any]] = [names | {"licenses": [{"license": licence}]}]
    for card in sorted((HOME / "src/wherefrom/models").glob("*/card.json")):
        about, readme = json.loads(card.read_text("utf-8")), card.with_name("README.md")
        licence = {"id": _SPDX[readme.read_text("utf-8").split("license: ")[1].split()[0]]}
        parts.append(
            {
                "type": "machine-learning-model",
                "bom-ref": f"model-{about['name']}",
                "name": about["name"],
                "hashes": [{"alg": "SHA-256", "content": about["sha256"]}],
                "licenses": [{"license": licence}],
            }
        )
    return parts


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cyclonedx", default="cyclonedx-py", help="the program cyclonedx-py")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    options = parser.parse_args()
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.match(r"[\w.-]+", text) for text in project["dependencies"]]
    source = (HOME / "src/wherefrom/__init__.py").read_text("utf-8")
    version = re.findall(r'^__version__ = "(.+?)"', source, re.MULTILINE)[0]
    with tempfile.TemporaryDirectory() as folder:
        runtime, bom = Path(folder, "runtime.txt"), Path(folder, "bom.json")
        parts = [(HOME / name).read_text("utf-8") for name in ("locks/base.txt", "constraints.txt")]
        runtime.write_text("".join(parts), encoding="utf-8")
        subprocess.run(
            [
                options.cyclonedx, "requirements", str(runtime), "--output-reproducible",
                "--pyproject", str(HOME / "pyproject.toml"), "--mc-type", "library",
                "--output-file", str(bom),
            ],
            check=True,
        )  # fmt: skip
        needed = [name[0].lower() for name in names if name is not None]
        content = completed(json.loads(bom.read_text("utf-8")), version, needed)
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
