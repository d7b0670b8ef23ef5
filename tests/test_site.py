"""The documentation site: every page has its place, every public name its entry."""

import inspect
import re
from pathlib import Path

import pytest
import yaml

import wherefrom
from tools.widget import STORED
from wherefrom import Answer, corpus, errors, methods

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
API = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
ENTRIES = re.findall(r"^::: (\S+)$", API, re.MULTILINE)


def pages(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from pages(value) if isinstance(value, list) else [value]


def test_the_navigation_has_every_page_once():
    listed = list(pages(SETTINGS["nav"]))
    there = [path for ending in ("md", "ipynb") for path in DOCS.rglob(f"*.{ending}")]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in there)


def test_every_entry_of_the_reference_exists():
    assert len(ENTRIES) == len(set(ENTRIES))
    for entry in ENTRIES:
        module, _, name = entry.rpartition(".")
        assert hasattr(__import__(module, fromlist=[name]), name), entry


@pytest.mark.parametrize("module", [wherefrom, corpus, methods], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference(module):
    assert set(module.__all__) <= {entry.rpartition(".")[2] for entry in ENTRIES}


def test_every_method_and_every_error_is_in_the_reference():
    named = {entry.rpartition(".")[2] for entry in ENTRIES}
    assert {type(wherefrom.method(name)).__name__ for name in wherefrom.METHODS} <= named
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    own = [kind.__name__ for kind in kinds if kind.__module__ == errors.__name__]
    assert {name for name in own if name[0] != "_"} <= named


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_a_blank_line_precedes_every_list(path):
    """Without one, Python-Markdown renders the list as part of the paragraph above it."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    for block in re.split(r"\n\s*\n", text):
        first, *rest = block.strip("\n").splitlines() or [""]
        if not re.match(r"\s*(- |\d+\. )", first):
            assert not any(line.startswith("- ") for line in rest), block


def test_no_page_fetches_anything():
    assert SETTINGS["theme"]["font"] is False
    sheet = (DOCS / "assets" / "site.css").read_text(encoding="utf-8")
    assert "url(" not in sheet
    assert "@import" not in sheet
    assert "extra_javascript" not in SETTINGS


def test_the_stored_answer_makes_a_page_without_a_model():
    page = Answer.from_json(STORED).to_html()
    assert "default-src 'none'" in page
    assert "banana" in page
