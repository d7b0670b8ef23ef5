"""The list of parts of a release names the package, its version and what it needs itself."""

from tools.sbom import completed


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
