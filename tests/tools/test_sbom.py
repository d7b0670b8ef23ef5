"""The list of parts of a release names the package, its version and what it needs itself."""

import hashlib
import tomllib

from tools.sbom import HOME, completed, contents


def test_the_version_and_the_direct_parts_are_filled_in():
    bom = {
        "metadata": {"component": {"bom-ref": "root", "name": "wherefrom"}},
        "components": [
            {"bom-ref": "r1", "name": "NumPy"},
            {"bom-ref": "r2", "name": "mpmath"},
            {"bom-ref": "r3", "name": "torch"},
        ],
        "dependencies": [{"ref": "root"}, {"ref": "r2"}],
    }
    filled = completed(bom, "1.2", ["torch", "numpy"])
    assert filled["metadata"]["component"]["version"] == "1.2"
    assert filled["metadata"]["component"]["purl"] == "pkg:pypi/wherefrom@1.2"
    assert filled["dependencies"] == [{"ref": "root", "dependsOn": ["r1", "r3"]}, {"ref": "r2"}]
    assert filled["components"] == bom["components"]


def test_embedded_models_and_words_have_their_licences():
    licences = {part["name"]: part["licenses"][0]["license"] for part in contents()}
    assert licences == {
        "ordinary_words.txt": {"name": "Names Corpus by Mark Kantrowitz and Bill Ross: see NOTICE"},
        "bace": {"id": "MIT"},
        "digits": {"id": "MIT"},
        "sentiment": {"id": "Apache-2.0"},
    }
    for part in contents()[1:]:
        weights = HOME / "src/wherefrom/models" / part["name"] / "model.safetensors"
        assert part["hashes"][0]["content"] == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_the_wheel_has_every_licence_that_its_notice_names():
    project = tomllib.loads((HOME / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license-files"] == ["LICENSE", "LICENSE-APACHE", "NOTICE"]
    notice = (HOME / "NOTICE").read_text("utf-8")
    for licence, first in (("LICENSE", "MIT License"), ("LICENSE-APACHE", "Apache License")):
        assert f"(see {licence})" in notice
        assert (HOME / licence).read_text("utf-8").strip().startswith(first)
    assert "provide the\n    recipients with a copy of this README file" in notice
