"""The examples for Streamlit and Gradio run with the real packages; run by make -C tools apps."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from wherefrom import load

pytestmark = pytest.mark.apps
EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = {  # in processes of their own, since both packages leave warnings and event loops behind
    "streamlit": """
from streamlit.testing.v1 import AppTest
app = AppTest.from_file("streamlit_app.py", default_timeout=300).run()
app.text_input[0].set_value("a dull movie").run()
assert not app.exception, app.exception
(element,) = app.get("html")
print(element.proto.body)
""",
    "gradio": """
from gradio_app import app, explain
assert explain("  ") == ""
print(app.fn("a dull movie"))
""",
}


@pytest.mark.parametrize("package", PROGRAMS)
def test_an_example_shows_the_explanation_of_what_is_typed(package):
    if find_spec(package) is None:
        pytest.skip(f"*** THE EXAMPLE FOR {package} IS NOT TESTED: pip install {package} ***")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[package]],
        cwd=EXAMPLES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert load("sentiment")("a dull movie").to_html(fragment=True) in done.stdout
