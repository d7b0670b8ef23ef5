"""axe-core finds no violation in any view of the page, nor in any page that the library writes."""

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.web.helpers import BROWSER, bar_image
from wherefrom import Prompt, evaluate
from wherefrom.corpus import explain_corpus, overview
from wherefrom.show.html import render

AXE = find_spec("axe_playwright_python")  # the package that ships axe-core, used without playwright
pytestmark = [
    *BROWSER,
    pytest.mark.skipif(AXE is None, reason="*** NO PAGE WAS CHECKED BY AXE: make test-web ***"),
]
TEXT = "text=a+gorgeous%2C+dull+film."
TABLE = "text,label\na gorgeous film,POSITIVE\na dull film,NEGATIVE"
VIEWS = {
    "compare": (f"/#{TEXT}&tab=compare", "20 methods explain"),
    "layers": (f"/#{TEXT}&tab=layers", "full colour"),
    "attention": (f"/#{TEXT}&tab=attention", "rows are queries"),
    "large attention": ("/#tab=attention&text=" + "a+good+film+" * 30, "Point at the map"),
    "curves": (f"/#{TEXT}&tab=curves", "of random scores"),
    "check": (f"/#{TEXT}&tab=check", "Shapley value is"),
    "removed": (f"/#{TEXT}&removed=2&numbers=1&method=lrp&tab=layers", "full colour"),
    "beside": (f"/#{TEXT}&beside=flipped&pair=a+mess.&tab=layers", "full colour"),
    "pinned": (f"/#{TEXT}&pinned=a+film&tab=layers", "full colour"),
    "unsigned": (f"/#{TEXT}&method=gradient&tab=layers", "full colour"),
    "image": ("/#model=digits&tab=layers&image=" + quote(bar_image()), "full colour"),
    "attention of an image": (
        "/#model=digits&tab=attention&image=" + quote(bar_image()), "Average over",
    ),
    "molecule": ("/#model=bace&tab=layers", "full colour"),
}  # fmt: skip
ACTIONS = {
    "heads": ("attention", "[data-view=head]", ".head-lines line"),
    "model view": ("attention", "[data-view=model]", ".thumbnail"),
    "ledger": ("layers", "[data-line=tokens]", ".ledger .detail"),
    "choices": ("compare", ".choices summary", ".choices[open] input"),
}


def violations(browser):
    """The broken rules of axe in light and, as for contrast, in dark, with the elements."""
    script = Path(AXE.submodule_search_locations[0], "axe.min.js").read_text(encoding="utf-8")
    # the script enters as a debugger's does: the pages allow no script but their own
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": script})
    runs = {"light": "axe.run()", "dark": "axe.run({runOnly: ['color-contrast']})"}
    found = []
    for scheme, run in runs.items():
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        answer = browser.execute_cdp_cmd(
            "Runtime.evaluate",
            {
                "expression": f"{run}.then(({{violations}}) => JSON.stringify(violations))",
                "awaitPromise": True, "returnByValue": True,
            },
        )  # fmt: skip
        for rule in json.loads(answer["result"]["value"]):
            found += [f"{scheme}, {rule['id']}: {node['html'][:200]}" for node in rule["nodes"]]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return found


def opened(browser, address, text):
    browser.get("about:blank")
    browser.get(address)
    browser.execute_script(
        "localStorage.setItem('wherefrom-theme', 'auto');"
        "document.querySelector('#tabs')?.scrollIntoView()"
    )
    wait = WebDriverWait(browser, 60, 0.1)
    wait.until(lambda _: "took" in browser.find_element(By.ID, "message").text)
    browser.execute_script("document.querySelector('#tabs').scrollIntoView()")
    wait.until(lambda _: text in browser.find_element(By.ID, "panel").text)


@pytest.mark.parametrize("view", VIEWS)
def test_no_violation_in_a_view(browser, address, view):
    opened(browser, address + VIEWS[view][0], VIEWS[view][1])
    assert violations(browser) == []


@pytest.mark.parametrize("action", ACTIONS)
def test_no_violation_after_an_action(browser, address, action):
    tab, query, shown = ACTIONS[action]
    opened(browser, f"{address}/#{TEXT}&tab={tab}", "")
    wait = WebDriverWait(browser, 60, 0.1)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, query))
    browser.execute_script("document.querySelector(arguments[0]).click()", query)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, shown))
    assert violations(browser) == []


def test_no_violation_in_a_table(browser, address):
    opened(browser, f"{address}/#{TEXT}&tab=layers", "full colour")
    browser.execute_script(
        "document.querySelector('#many details').open = true;"
        "document.getElementById('table-text').value = arguments[0];"
        "document.getElementById('table-run').click();"
        "document.getElementById('table-status').scrollIntoView()", TABLE,
    )  # fmt: skip
    wait = WebDriverWait(browser, 60, 0.1)
    wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, "#table tbody .heat")) == 2)
    assert violations(browser) == []


def test_no_violation_in_an_error_and_an_empty_page(browser, address):
    browser.get("about:blank")
    browser.get(f"{address}/#text=")
    wait = WebDriverWait(browser, 60, 0.1)
    wait.until(lambda _: "Type a text" in browser.find_element(By.ID, "message").text)
    assert violations(browser) == []
    browser.get("about:blank")
    browser.get(f"{address}/answer")
    wait.until(lambda _: "no language model" in browser.find_element(By.ID, "message").text)
    assert violations(browser) == []


@pytest.fixture(scope="module")
def pages(sentiment, digits, bace, talker, tmp_path_factory):
    """One file of each kind that the library writes."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [("a gorgeous film", "POSITIVE"), ("a dull film", "NEGATIVE")] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sentiment("a gorgeous, dull film.", "lrp").to_html(folder / "text.html")
        compared = [sentiment("a gorgeous film.", name) for name in ("lrp", "gradient")]
        (folder / "compare.html").write_text(render(compared), encoding="utf-8")
        bace("CCO").to_html(folder / "molecule.html")
        evaluate(sentiment, rows, ["lrp", "random"]).to_html(folder / "evaluation.html")
        answer = talker.answer(Prompt("who is it?", ["the movie is lovely."]), " it is Paris.")
        answer.to_html(folder / "answer.html")
        words = overview(explain_corpus(sentiment, rows))
        words.to_html(folder / "corpus.html")
    return folder


@pytest.mark.parametrize("name", ["text", "compare", "molecule", "evaluation", "answer", "corpus"])
def test_no_violation_in_a_page_that_the_library_writes(browser, pages, name):
    browser.get((pages / f"{name}.html").as_uri())
    assert violations(browser) == []
