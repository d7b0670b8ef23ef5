"""Errors carry a remedy for each front end: Python, the command line and the page."""

import ast
import pickle
import re
from pathlib import Path

import pytest

import wherefrom
from wherefrom import errors
from wherefrom.errors import (
    CONTINUE,
    GIVE_ANSWER,
    FileError,
    GuessedEncoding,
    InputError,
    MissingExtra,
    NotEnoughMemory,
    NothingIntercepted,
    TooLong,
    use_method,
)

HOME = Path(wherefrom.__file__).parent
PYTHON = re.compile(r"(?<![\w-])(?!key=)[a-z_]\w*=(?!=)|[Ee]xplainer[.(]|\b[a-z]\w*\.[a-z_]+\(")
WORDED = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.WherefromError | errors.WherefromWarning)
}
EXAMPLES = [
    (
        NothingIntercepted("no attention.", **use_method("lrp", "gae", verb="Try")),
        'no attention. Try method="lrp" or "gae".',
        "no attention. Try --method lrp or gae.",
        "no attention. Try the method lrp or gae.",
    ),
    (
        InputError("it cannot generate.", **GIVE_ANSWER),
        "it cannot generate. Give the answer: explainer.answer(prompt, …).",
        "it cannot generate. Give the answer with --answer.",
        "it cannot generate. Type the answer to explain.",
    ),
    (
        FileError("out has 2 parts.", **CONTINUE),
        "out has 2 parts. Continue it with resume=True, or choose another folder.",
        "out has 2 parts. Continue it with --resume, or choose another folder.",
        "out has 2 parts.",
    ),
    (
        TooLong("9 tokens.", "Pass truncate=True.", command="Pass --truncate.", page="Cut it."),
        "9 tokens. Pass truncate=True.",
        "9 tokens. Pass --truncate.",
        "9 tokens. Cut it.",
    ),
    (
        InputError("no tokenizer.", "Pass Explainer(model, tokenizer).", command=""),
        "no tokenizer. Pass Explainer(model, tokenizer).",
        "no tokenizer.",
        "no tokenizer.",
    ),
    (InputError("plain.", "The same."), "plain. The same.", "plain. The same.", "plain. The same."),
    (
        GuessedEncoding("a guess.", 'Pass encoding="…".', command="Pass --encoding."),
        'a guess. Pass encoding="…".',
        "a guess. Pass --encoding.",
        "a guess.",
    ),
]


@pytest.mark.parametrize(("error", "python", "command", "page"), EXAMPLES)
def test_each_front_end_words_its_own_remedy(error, python, command, page):
    for same in (error, pickle.loads(pickle.dumps(error))):
        assert type(same) is type(error)
        assert (str(same), same.for_command(), same.for_page()) == (python, command, page)


@pytest.mark.parametrize(
    "error",
    [InputError("bad.", "Mend it."), NotEnoughMemory(5e9, 1e9), MissingExtra("peft", "x", "an X")],
)
def test_an_error_can_say_where_it_happened(error):
    placed = pickle.loads(pickle.dumps(error.at("line 3").at("a.txt")))
    assert type(placed) is type(error)
    assert str(placed) == f"a.txt: line 3: {error}"
    assert placed.for_command() == f"a.txt: line 3: {error.for_command()}"
    assert error.where == ""


def test_a_lack_of_memory_has_a_remedy_everywhere():
    error = NotEnoughMemory(2e9, 1e9)
    assert 'memory="2.2GB"' in str(error)
    for text in (error.for_command(), error.for_page()):
        assert text.startswith("this pass needs about 2 GB of memory, and 1 GB may be used. Expl")
        assert not PYTHON.search(text)


def _constants(node):
    nodes = [] if node is None else ast.walk(node)
    return "".join(n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is str)


def _messages():
    """(place, what, remedy, options) of each error and warning that the package makes."""
    for path in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            is_warning = ast.unparse(node.func) == "warnings.warn"
            if getattr(node.func, "id", "") not in WORDED and not is_warning:
                continue
            if is_warning and isinstance(node.args[0], ast.Call):  # of a class that is in WORDED
                continue
            what, remedy = [*map(_constants, node.args[:2]), "", ""][:2]
            options = {word.arg: _constants(word.value) for word in node.keywords}
            place = f"{path.relative_to(HOME)}:{node.lineno}"
            yield place, what, "" if is_warning else remedy, options


def test_no_message_shows_python_to_those_who_do_not_write_it():
    """A remedy with Python in it stands apart from what went wrong, and has a `command=`."""
    messages = list(_messages())
    assert len(messages) > 300
    shown = [
        (place, text)
        for place, what, remedy, options in messages
        for text in (what, "" if "command" in options else remedy, *options.values())
        if PYTHON.search(re.sub(r"--set \S+", "", text))
    ]
    assert shown == []
