"""The examples for Streamlit and Gradio run with the real packages; run by make test-apps."""

import runpy
from html import unescape
from pathlib import Path

import pytest

from wherefrom import load

pytestmark = [
    pytest.mark.apps,
    # their own imports, not ours
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
EXAMPLES = Path(__file__).parents[1] / "examples"
SKIPPED = "*** NO APP IS TESTED: pip install streamlit gradio ***"


def test_the_streamlit_example_shows_the_explanation_of_what_is_typed():
    testing = pytest.importorskip("streamlit.testing.v1", reason=SKIPPED)
    app = testing.AppTest.from_file(str(EXAMPLES / "streamlit_app.py"), default_timeout=300).run()
    assert not app.exception
    app.text_input[0].set_value("a dull movie").run()
    assert not app.exception
    (element,) = app.get("html")
    assert element.proto.body == load("sentiment")("a dull movie").to_html(fragment=True)


def test_the_gradio_example_returns_the_explanation():
    pytest.importorskip("gradio", reason=SKIPPED)
    example = runpy.run_path(str(EXAMPLES / "gradio_app.py"))
    shown = example["app"].fn("a dull movie")
    assert "The model says NEGATIVE" in unescape(
        shown.replace("<strong>", "").replace("</strong>", "")
    )
    assert shown == load("sentiment")("a dull movie").to_html(fragment=True)
    assert example["explain"]("  ") == ""
