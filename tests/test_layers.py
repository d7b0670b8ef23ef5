"""Imports go downwards only, and nothing heavy comes in before it is needed."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

import wherefrom

HOME = Path(wherefrom.__file__).parent
LEVELS = [
    {"errors"},
    {"core", "storage"},
    {"models", "rules", "tracing"},
    {"inputs"},
    {"answers", "audits", "evaluation", "methods", "show", "studies"},
    {"explainer", "explaining", "inside", "loading", "testing"},
    {"corpus", "runs"},
    {"__main__", "cli", "integrations", "web"},
]  # fmt: skip
HEIGHT = {name: height for height, names in enumerate(LEVELS) for name in names}
# in one layer, side by side or one on the other
APART = [
    ("answers", "audits"),
    ("answers", "corpus"),
    ("answers", "evaluation"),
    ("answers", "show"),
    ("answers", "studies"),
    ("audits", "evaluation"),
    ("audits", "show"),
    ("audits", "corpus"),
    ("evaluation", "show"),
    ("studies", "show"),
    ("studies", "corpus"),
    ("corpus", "show"),
    ("corpus", "evaluation"),
    ("show", "methods"),
    ("models", "rules"),
]


def part_of(path):
    return path.relative_to(HOME).with_suffix("").parts[0]


@cache
def imported(path):
    """The modules that a file imports, those for the type checker aside."""
    return tuple(_imported(path))


def _imported(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports by dots"
            assert node.module is not None
            yield node.module
            if node.module == "wherefrom":
                modules = (alias.name for alias in node.names if alias.name != "__version__")
                yield from (f"wherefrom.{name}" for name in modules)


FILES = sorted(path for path in HOME.rglob("*.py") if path != HOME / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOME)))
def test_a_file_imports_only_what_lies_below_it(path):
    part = part_of(path)
    assert part in HEIGHT, f"{part} is in no layer"
    for name in imported(path):
        if not name.startswith("wherefrom."):
            continue
        other = name.split(".")[1]
        assert other in HEIGHT, f"{other} is in no layer"
        assert HEIGHT[other] <= HEIGHT[part], f"{part} imports {other}, which lies above"
        if other != part:
            assert (part, other) not in APART, f"{part} and {other} lie side by side"
            assert (other, part) not in APART, f"{part} and {other} lie side by side"


def test_show_sees_only_an_explanation():
    for path in (HOME / "show").glob("*.py"):
        for name in imported(path):
            assert name.split(".")[0] not in ("torch", "transformers")
            if name.startswith("wherefrom."):
                assert name.split(".")[1] in ("core", "errors", "show")


def test_methods_and_rules_never_see_a_tokenizer():
    for folder in ("methods", "rules"):
        for path in (HOME / folder).glob("*.py"):
            assert "transformers" not in {name.split(".")[0] for name in imported(path)}


def test_no_line_of_the_core_names_a_model_family():
    families = ("bert", "gpt", "llama", "t5", "bart", "mamba", "mixtral", "roberta", "xlnet")
    for folder in ("methods", "rules", "inputs"):
        for path in (HOME / folder).glob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            names |= set(imported(path))
            for name in names:
                assert not any(name.lower().startswith(family) for family in families), name


@pytest.mark.parametrize(
    "library",
    [
        "IPython",
        "PIL",
        "captum",
        "langchain_core",
        "llama_index",
        "matplotlib",
        "pandas",
        "peft",
        "pyarrow",
        "pydantic",
        "ray",
        "rdkit",
        "skimage",
        "starlette",
        "uvicorn",
    ],
)
def test_an_optional_library_is_imported_in_one_file(library):
    users = [
        path for path in FILES if any(name.split(".")[0] == library for name in imported(path))
    ]
    assert len(users) == 1


def test_public_names_are_sorted_and_all_there():
    assert wherefrom.__all__ == sorted(wherefrom.__all__, key=_constants_first)
    assert set(wherefrom.__all__) == set(wherefrom._HOMES)
    assert dir(wherefrom) == sorted([*wherefrom.__all__, "__version__"])
    tree = ast.parse((HOME / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name for node in checked.body for alias in node.names}
    assert typed == set(wherefrom.__all__)
    for name in wherefrom.__all__:
        assert getattr(wherefrom, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        wherefrom.nothing  # noqa: B018


def test_every_public_class_and_function_has_a_docstring_and_lives_at_its_home():
    for name, home in wherefrom._HOMES.items():
        value = getattr(wherefrom, name)
        assert value.__doc__, name
        if not name.isupper():
            assert value.__module__.startswith(home), name


def test_the_version_is_written_once():
    import tomllib
    from importlib.metadata import version

    project = tomllib.loads((HOME.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/wherefrom/__init__.py"
    assert wherefrom.__version__ == version("wherefrom")


def test_nothing_of_the_explainer_is_public_by_accident():
    """The reference (docs/api/explaining.md) shows every public member."""
    assert sorted(name for name in vars(wherefrom.Explainer) if name[0] != "_") == [
        *("answer", "compare", "each", "encode", "generate", "index_of", "inside", "intervene"),
        *("labels", "output_names", "patching", "processor", "tokenizer", "without"),
    ]


def _constants_first(name):
    """The order that the linter keeps: CONSTANTS, Classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_no_public_name_is_also_the_name_of_a_module():
    packages = [HOME, *(path for path in HOME.iterdir() if (path / "__init__.py").exists())]
    for folder in packages:
        package = importlib.import_module(".".join(folder.relative_to(HOME.parent).parts))
        modules = {path.stem for path in folder.glob("*.py")}
        modules |= {path.name for path in folder.iterdir() if path.is_dir()}
        assert not modules & set(getattr(package, "__all__", ())), folder.name


def test_every_name_of_the_errors_docstring_is_an_error_and_the_other_way_round():
    from wherefrom import errors

    drawn = {word for word in errors.__doc__.split() if hasattr(errors, word)}
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, (errors.WherefromError, Warning))
    }
    assert drawn == kinds
    page = (HOME.parents[1] / "docs/api/errors.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^::: wherefrom\.errors\.(\w+)$", page, re.MULTILINE)) == kinds
