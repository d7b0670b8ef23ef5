"""The page in a real chromium: what a person does with it, and what it must withstand."""

import base64
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.web.conftest import packed
from wherefrom.web.models import MOLECULES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="*** NO BROWSER TEST WAS RUN: install chromium and chromium-driver ***",
    ),
]
PICTURES = os.environ.get("WHEREFROM_PICTURES")  # a folder for screenshots
PATIENCE = 120


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the browser puts what is downloaded."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(kept):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"download.default_directory": str(kept)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    driver.set_window_size(1000, 1250)
    yield driver
    driver.quit()


class Page:
    """What a person sees and does."""

    def __init__(self, browser, address):
        self.browser, self.address = browser, address

    def open(self, fragment=""):
        self.browser.get("about:blank")
        self.browser.get(f"{self.address}/{fragment}")
        return self

    def all(self, query):
        return self.browser.find_elements(By.CSS_SELECTOR, query)

    def one(self, query):
        return self.browser.find_element(By.CSS_SELECTOR, query)

    def until(self, condition):
        # what was found may be redrawn before it is read: then it is looked for again
        waiting = WebDriverWait(self.browser, PATIENCE, 0.1)
        return waiting.until(lambda _: _tried(condition))

    def resolved(self):
        """Waits until the explanation is there."""
        self.until(
            lambda: "took" in self.one("#message").text and self.all("#heat .u, #heat .cell")
        )
        return self

    def type(self, text):
        box = self.one("#text")
        # keys cannot type what lies beyond the first plane, so the text is set as a paste sets it
        self.browser.execute_script(
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", box, text,
        )  # fmt: skip
        return self

    def share(self, label):
        rows = {each.text.split("\n")[0]: each.text.split("\n")[-1] for each in self.all(".class")}
        return rows[label]

    def shot(self, name):
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


def _tried(condition):
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

    try:
        return condition()
    except (NoSuchElementException, StaleElementReferenceException):
        return False


@pytest.fixture
def page(browser, address):
    """The page; afterwards its console must be empty of errors."""
    shown = Page(browser, address)
    browser.get_log("browser")
    yield shown
    told = [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    refused = "the server responded with a status of 422"  # the text that is too long
    assert not [each["message"] for each in told if refused not in each["message"]]


def test_the_first_screen_explains_an_example(page):
    page.open().resolved()
    page.until(lambda: page.share("POSITIVE").endswith("%"))
    assert page.one(".class.chosen .label").text == "POSITIVE"
    assert "".join(each.text for each in page.all("#heat .u")).startswith("[CLS]hasalot")
    assert page.one(".ledger .total .num").text.startswith("+")
    page.shot("light")


def test_typing_changes_the_answer(page):
    page.open().resolved()
    box = page.one("#text")
    box.clear()
    box.send_keys("a dull, lifeless and boring film.")
    page.until(lambda: page.one(".class.chosen .label").text == "NEGATIVE")
    page.until(lambda: "lifeless" in page.one("#heat").text)
    assert "lifeless" in page.browser.current_url


def test_a_token_taken_out_moves_the_prediction_and_comes_back(page):
    page.open("#text=a+gorgeous%2C+dull+film.").resolved()
    before = page.share("POSITIVE")
    token = next(each for each in page.all("#heat [role=button]") if each.text == "gorgeous")
    token.click()
    page.until(lambda: "really moved" in page.one("#check").text)
    page.until(lambda: page.share("POSITIVE") != before)
    assert "foretold" in page.one("#check").text
    assert "without=2" in page.browser.current_url
    assert page.one("#heat [data-unit='2']").get_attribute("aria-pressed") == "true"
    page.shot("removed")
    page.one("#check button").click()
    page.until(lambda: page.share("POSITIVE") == before)


def test_the_keyboard_alone_takes_a_token_out(page):
    page.open("#text=a+gorgeous+film.").resolved()
    page.browser.execute_script("document.querySelector('#heat [role=button]').focus()")
    for _ in range(2):
        page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: "gorgeous" in page.one("#check").text)
    assert page.browser.switch_to.active_element.get_attribute("data-unit") == "2"


def test_the_ledger_opens_into_its_parts(page):
    page.open("#text=a+gorgeous+film.").resolved()
    page.one("[data-line=words]").click()
    page.until(lambda: len(page.all(".ledger .part")) == 6)
    page.one("[data-line=biases]").click()
    page.until(lambda: len(page.all(".ledger .part")) > 9)
    assert page.one("[data-line=biases]").get_attribute("aria-expanded") == "true"


def test_methods_are_compared_and_one_is_chosen(page):
    page.open("#text=a+gorgeous+film.").resolved()
    page.one("#tab-compare").click()
    page.until(lambda: len(page.all("#panel tbody tr")) >= 1)
    page.until(lambda: len(page.all("#panel tbody tr")) == 19)
    page.shot("compare")
    page.one("#panel [data-method=gradient_x_input] button").click()
    page.until(lambda: "gradient_x_input took" in page.one("#message").text)
    assert "loses" in page.one("#ledger").text


def test_a_contrast_is_chosen(page):
    page.open("#text=a+gorgeous+film.").resolved()
    Select(page.one("#against")).select_by_visible_text("NEGATIVE")
    page.until(lambda: "against=0" in page.browser.current_url)
    page.until(lambda: "took" in page.one("#message").text)


def test_the_curve_is_dragged_through(page):
    page.open("#text=a+gorgeous+film.&look=curve").resolved()
    page.until(lambda: page.all("#step"))
    first = page.one(".reading").text
    page.one("#step").send_keys(Keys.HOME)
    page.until(lambda: page.one(".reading").text.startswith("0 of 6"))
    assert len(page.all("#panel .gone")) == 6
    page.one("#step").send_keys(Keys.END)
    page.until(lambda: page.one(".reading").text.startswith("6 of 6"))
    assert page.one(".reading").text != first
    page.shot("curve")
    page.one("[data-curve=empty]").click()
    page.until(lambda: "AU-MSE" in page.one("#panel").text)


def test_layers_and_attention_on_demand(page):
    page.open("#text=a+gorgeous+film.&look=layers").resolved()
    page.until(lambda: len(page.all("#panel tbody tr")) == 5)
    page.shot("layers")
    page.one("#tab-attention").click()
    page.until(lambda: len(page.all("#panel .weight")) == 36)
    Select(page.one("#head")).select_by_value("3")
    page.until(lambda: Select(page.one("#head")).first_selected_option.text == "3")
    page.shot("attention")


@pytest.mark.parametrize("kind", ["json", "html", "svg", "png"])
def test_what_is_shown_is_downloaded(page, kept, sentiment, kind):
    page.open("#text=a+gorgeous+film.").resolved()
    path = kept / f"wherefrom.{kind}"
    page.browser.execute_script("arguments[0].click()", page.one(f"#save-{kind}"))
    page.until(lambda: path.exists() and path.stat().st_size > 100)
    time.sleep(0.2)
    expected = sentiment("a gorgeous film.")
    if kind == "json":
        assert json.loads(path.read_text(encoding="utf-8")) == expected.to_dict()
    elif kind == "html":
        assert path.read_text(encoding="utf-8") == expected.to_html()
    elif kind == "svg":
        assert "gorgeous" in path.read_text(encoding="utf-8")
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script><img src=x onerror=alert(2)>",
        "סרט נפלא ומרגש, פשוט תענוג.",
        "what a 🎬 film 👩‍👩‍👧‍👦 🙂",
        "first line\nsecond line\n\nfourth",
    ],
    ids=["script", "hebrew", "emoji", "lines"],
)
def test_any_text_is_only_text(page, text):
    page.open().resolved()
    page.type(text)
    page.until(
        lambda: page.browser.current_url.count("text=") and "eastwood" not in page.one("#heat").text
    )
    page.resolved()
    assert (
        page.browser.execute_script("return document.querySelectorAll('img, main script').length")
        == 0
    )
    shown = page.browser.execute_script("return document.querySelector('#heat').textContent")
    assert "".join(text.split())[:6] in "".join(shown.split()).replace("[CLS]", "").replace("⏎", "")
    way = page.one("#heat .heat").get_attribute("dir")
    assert way == ("rtl" if text.startswith("סרט") else "ltr")
    page.browser.refresh()
    page.resolved()
    assert page.one("#text").get_attribute("value") == text


def test_a_text_that_is_too_long_is_told_and_cut_on_request(page):
    page.open().resolved()
    page.type("word " * 3000)
    page.until(lambda: "tokens" in page.one("#message").text)
    page.one("#message button").click()
    page.resolved()
    page.type("word " * 5000)
    page.until(lambda: "characters" in page.one("#message").text)


def test_a_link_brings_the_state_back(page):
    page.open("#text=not+a+bad+film.&method=attn_lrp&target=0&without=2.3&look=layers").resolved()
    page.until(lambda: "really moved" in page.one("#check").text)
    assert page.one("#text").get_attribute("value") == "not a bad film."
    assert Select(page.one("#method")).first_selected_option.text == "attn_lrp"
    assert page.one(".class.chosen .label").text == "NEGATIVE"
    assert len(page.all("#heat .gone")) == 2


def test_an_image_is_looked_at_and_a_patch_taken_out(page):
    from urllib.parse import quote

    page.open(f"#model=digits&image={quote(packed(), safe='')}").resolved()
    assert len(page.all("#heat .cell")) == 49
    page.browser.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click'))", page.all("#heat .cell")[24]
    )
    page.until(lambda: "really moved" in page.one("#check").text)
    page.shot("image")


@pytest.mark.parametrize("size", [(28, 28), (1500, 900)], ids=["small", "large"])
def test_a_file_is_explained(page, tmp_path, size):
    path = tmp_path / "bar.png"
    path.write_bytes(base64.b64decode(packed(size)))
    page.open("#model=digits")
    page.until(lambda: page.one("#file").is_displayed())
    page.one("#file").send_keys(str(path))
    page.resolved()
    assert len(page.all("#heat .cell")) == 49
    page.one("#tab-layers").click()
    page.until(lambda: len(page.all("#panel tbody tr")) == 3)
    page.shot(f"file-{size[0]}")


def test_a_molecule_is_looked_at_and_an_atom_taken_out(page, bace):
    page.open("#model=bace").resolved()
    assert len(page.all("#heat circle.cell")) == len(bace(MOLECULES[0]))
    page.browser.execute_script("document.querySelector('#heat .cell').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: "really moved" in page.one("#check").text)
    page.shot("molecule")


def test_a_drawing_is_explained(page):
    from selenium.webdriver import ActionChains

    page.open("#model=digits")
    pad = page.until(lambda: page.one("#pad") if page.one("#pad").is_displayed() else None)
    stroke = ActionChains(page.browser).move_to_element_with_offset(pad, 0, -50).click_and_hold()
    stroke.move_by_offset(0, 100).release().perform()
    page.resolved()
    assert len(page.all("#heat .cell")) == 49


def test_a_report_opens_and_runs_nothing(page):
    page.open().resolved()
    links = {each.text: each.get_attribute("href") for each in page.all("#reports a")}
    page.browser.get(links["one.html"])
    assert page.one("#here").text == "a report"
    assert page.browser.title == "one"
    told = [each["message"] for each in page.browser.get_log("browser")]
    assert any("Content Security Policy" in each for each in told)


def test_the_script_that_the_library_writes_into_reports_is_run(page):
    page.browser.get(f"{page.address}/reports/tables.html")
    told = [each["message"] for each in page.browser.get_log("browser")]
    assert not any("Content Security Policy" in each for each in told)
    assert any("null" in each for each in told)  # it looked for its data, and there is none


def test_dark_narrow_and_grey_are_looked_at(page):
    fragment = "#text=it's+not+a+bad+film%2C+but+it+never+surprises+you."
    page.open(fragment).resolved()
    page.one("#theme").click()
    page.one("#theme").click()
    assert page.browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    page.shot("dark")
    page.one("#theme").click()
    page.browser.execute_script("document.documentElement.style.filter = 'grayscale(1)'")
    page.shot("grey")
    page.browser.set_window_size(400, 1100)
    page.open(fragment).resolved()
    page.shot("narrow")
    wide = page.browser.execute_script("return document.documentElement.scrollWidth - innerWidth")
    page.browser.set_window_size(1000, 1250)
    assert wide <= 0
