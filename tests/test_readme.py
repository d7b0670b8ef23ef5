"""What the README shows is what happens."""

import re
from pathlib import Path

import wherefrom

README = Path(__file__).parents[1] / "README.md"


def blocks(kind):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.M)
    return [text for name, text in fenced if name == kind]


def test_the_five_lines_print_what_stands_below_them(capsys, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    exec(blocks("python")[0], {})
    printed = capsys.readouterr().out.splitlines()
    shown = next(block for block in blocks("") if "residual" in block).splitlines()
    assert printed[:2] == shown[:2]
    # the residual is rounding, and differs from machine to machine
    assert re.sub(r"residual \S+", "", printed[2]) == re.sub(r"residual \S+", "", shown[2])


def test_every_method_is_listed():
    text = README.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in wherefrom.METHODS)


def test_every_page_that_is_linked_is_there():
    for page in (README, *README.parent.glob("docs/**/*.md")):
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
