"""The calls of the README pass a strict type checker."""

import textwrap
from pathlib import Path

import pytest

mypy = pytest.importorskip("mypy.api")
ROOT = Path(__file__).parents[1]
SNIPPET = """
from pathlib import Path

import wherefrom
from wherefrom import Explainer, Explanation, Graph, Method, ModelRunner, Reader, Scores, Target
from wherefrom import load

explainer: Explainer = load("sentiment")
explainer("text").scores.sum()
explainer("text", "lrp", "POSITIVE", against=0, truncate=True).ledger
explainer([101, 7, 102]).units
explainer(Path("image.png"), units="pixels").scene
explainer(Graph([[1.0]], [])).top(3)  # type: ignore[arg-type]
for explanation in explainer(["one", "two"], target=["POSITIVE", 0]):
    explanation.words().to_html()
for explanation in explainer([[101, 7, 102], [101, 102]]):
    explanation.scores
texts: tuple[str, ...] = ("one", "two")
explanations: list[Explanation] = explainer(texts)
compared: list[Explanation] = explainer.compare("text", ["lrp", wherefrom.method("gradient")])
version: str = wherefrom.__version__
kinds: list[type[Method]] = list(wherefrom.METHODS.values())
reveal_type(explainer("text"))
reveal_type(explainer(["text"]))
"""


@pytest.mark.slow
def test_calls_of_an_explainer_are_typed(tmp_path):
    path = tmp_path / "snippet.py"
    path.write_text(textwrap.dedent(SNIPPET), encoding="utf-8")
    config = ["--config-file", str(ROOT / "pyproject.toml"), "--strict"]
    out, errors, status = mypy.run([*config, "--cache-dir", str(ROOT / ".mypy_cache"), str(path)])
    assert status == 0, out + errors
    notes = [line.rpartition("note: ")[2] for line in out.splitlines() if "note:" in line]
    assert notes == [
        'Revealed type is "wherefrom.core.explanation.Explanation"',
        'Revealed type is "list[wherefrom.core.explanation.Explanation]"',
    ]
