"""The page in a real chromium: what people do with it, and hostile input."""

import base64
import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.hostile.images import READ
from tests.web.helpers import BROWSER, bar_image
from wherefrom.web.models import MOLECULES

pytestmark = BROWSER
PICTURES = os.environ.get("WHEREFROM_PICTURES")  # a folder for screenshots
TIMEOUT = 30  # s


class Page:
    """What people see and do."""

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
        # an element may be redrawn before it is read: then the condition is checked again
        wait = WebDriverWait(self.browser, TIMEOUT, 0.1)
        return wait.until(lambda _: _holds(condition))

    def explained(self):
        """Waits until the explanation is shown."""
        self.until(
            lambda: (
                "took" in self.one("#message").text
                and self.all(".mirror [data-unit], #heatmap .cell")
            )
        )
        return self

    def type(self, text):
        box = self.one("#text")
        # keys cannot type every character, so the text is set as pasting sets it
        self.browser.execute_script(
            "arguments[0].value = arguments[1];"
            "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))", box, text,
        )  # fmt: skip
        return self

    def predict_all(self, table):
        """Pastes a table of texts and has it predicted."""
        self.browser.execute_script(
            "document.querySelector('#many details').open = true;"
            "document.getElementById('table-text').value = arguments[0]", table,
        )  # fmt: skip
        self.one("#table-run").click()
        # rows are explained when they are in view
        self.browser.execute_script("arguments[0].scrollIntoView()", self.one("#table-status"))

    def tab(self, name):
        """Opens a tab, or just shows it, since its content is computed when it is in view."""
        self.one(f"#tab-{name}").click()
        self.browser.execute_script("arguments[0].scrollIntoView()", self.one("#tabs"))
        return self

    def choose(self, word):
        """Puts the cursor into a word."""
        self.browser.execute_script(
            "const box = arguments[0], at = box.value.indexOf(arguments[1]) + 1;"
            "box.focus(); box.setSelectionRange(at, at)", self.one("#text"), word,
        )  # fmt: skip
        self.until(lambda: self.one("#chosen q").text.strip("“”") == word)
        return self

    def words(self):
        """The coloured words of the text and their colours."""
        return {u.get_attribute("textContent"): u for u in self.all(".mirror .u")}

    def probability(self, label):
        rows = [row.text.split("\n") for row in self.all(".class-row")]
        return {row[0]: row[-1] for row in rows}[label]

    def shot(self, name):
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            self.browser.save_screenshot(str(Path(PICTURES) / f"{name}.png"))


def _holds(condition):
    from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

    try:
        return condition()
    except (NoSuchElementException, StaleElementReferenceException):
        return False


@pytest.fixture
def page(browser, address):
    """The page; afterwards its console must show no errors."""
    browser.get_log("browser")
    yield Page(browser, address)
    entries = [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    refusal = "the server responded with a status of 422"  # of the text that is too long
    assert not [entry["message"] for entry in entries if refusal not in entry["message"]]


def test_the_first_screen_explains_an_example(page):
    page.open().explained()
    page.until(lambda: page.probability("POSITIVE").endswith("%"))
    assert page.one(".class-row.selected .label").text == "POSITIVE"
    assert list(page.words())[:3] == ["has", "a", "lot"]
    assert [added.text for added in page.all("#added [role=button]")] == ["[CLS]", "[SEP]"]
    assert page.one(".ledger .total .num").text.startswith("+")
    page.shot("light")


def test_typing_changes_the_prediction(page):
    page.open().explained()
    box = page.one("#text")
    box.clear()
    box.send_keys("a dull, lifeless and boring film.")
    page.until(lambda: page.one(".class-row.selected .label").text == "NEGATIVE")
    page.until(lambda: "lifeless" in page.words())
    assert "lifeless" in page.browser.current_url


def test_a_removed_token_changes_the_prediction_until_it_is_restored(page):
    page.open("#text=a+gorgeous%2C+dull+film.").explained()
    before = page.probability("POSITIVE")
    page.choose("gorgeous").one("#chosen button").click()
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    page.until(lambda: page.probability("POSITIVE") != before)
    assert "effect when removed" in page.one("#removal").text
    assert "removed=2" in page.browser.current_url
    assert "removed" in page.words()["gorgeous"].get_attribute("class")
    assert page.one("#chosen button").text == "put back"
    page.shot("removed")
    page.one("#removal button").click()
    page.until(lambda: page.probability("POSITIVE") == before)


def test_words_are_removed_by_the_keyboard(page):
    page.open("#text=a+gorgeous+dull+film.").explained()
    box = page.one("#text")
    box.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 3)
    page.until(lambda: "gorgeous" in page.one("#chosen").text)
    box.send_keys(*[Keys.SHIFT, *[Keys.ARROW_RIGHT] * 9])
    page.until(lambda: "the sum of 2 tokens" in page.one("#chosen").text)
    focused = lambda: page.browser.switch_to.active_element  # noqa: E731
    while focused().text != "remove":
        focused().send_keys(Keys.TAB)
    focused().send_keys(Keys.ENTER)
    page.until(lambda: "removed=2.3" in page.browser.current_url)
    page.until(lambda: "gorgeous" in page.one("#removal").text)


def test_an_added_token_is_removed_by_the_keyboard(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.browser.execute_script("document.querySelector('#added [role=button]').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: "[SEP]" in page.one("#removal").text)
    assert page.browser.switch_to.active_element.text == "[SEP]"


def test_a_group_of_the_ledger_opens_into_its_lines(page):
    page.open("#text=a+gorgeous+film.&method=lrp").explained()
    page.one("[data-line=tokens]").click()
    page.until(lambda: len(page.all(".ledger .detail")) == 6)
    page.one("[data-line=biases]").click()
    page.until(lambda: len(page.all(".ledger .detail")) > 9)
    assert page.one("[data-line=biases]").get_attribute("aria-expanded") == "true"


def test_the_default_has_two_lines_words_and_the_reference_by_its_name(page):
    page.open("#text=a+gorgeous+film.").explained()
    lines = [row.get_attribute("data-line") for row in page.all(".ledger [data-line]")]
    assert lines == ["tokens", "a text of unknown words"]


def test_scores_are_checked_against_shapley_values_in_one_click(page):
    page.open("#text=a+gorgeous%2C+dull+film.").explained()
    page.tab("check")
    page.until(lambda: len(page.all("#panel .check tbody tr")) == 6)
    assert "with the Shapley values, but differ in size" in page.one("#panel .verdict").text
    assert "exact" in page.one("#panel .verdict").text
    assert "±" not in page.one("#panel .check").text
    page.type("a gorgeous, witty and seductive movie that never quite comes together as a drama.")
    page.until(lambda: len(page.all("#panel .check tbody tr")) == 16)
    assert "standard error" in page.one("#panel .verdict").text
    cells = [cell.text for cell in page.all("#panel .check tbody tr:nth-child(2) td")]
    assert cells[0] == "gorgeous"
    assert "±" in cells[2]
    assert len(page.all("#panel .check tbody .bars s")) == 16
    page.shot("check")
    assert "tab=check" in page.browser.current_url


def test_methods_are_a_matrix_that_is_sorted_by_agreement(page, sentiment):
    page.open("#text=a+gorgeous+film.").explained().tab("compare")
    page.until(lambda: "20 methods explain" in page.one("#panel").text)
    rows = {row.get_attribute("data-method"): row for row in page.all("#panel tbody tr")}
    assert len(rows) == 20
    assert [head.text for head in page.all("#panel .unit")] == [
        "[CLS]", "a", "gorgeous", "film", ".", "[SEP]",
    ]  # fmt: skip
    own, other, lengths = (
        sentiment("a gorgeous film.", name).scores[1:-1] for name in ("auto", "lrp", "gradient")
    )
    shown = {name: row.find_element(By.CSS_SELECTOR, ".num").text for name, row in rows.items()}
    assert shown["lrp"] == f"{np.corrcoef(own, other)[0, 1]:.2f}".replace("-", "−")
    assert shown["gradient"] == f"{np.corrcoef(abs(own), lengths)[0, 1]:.2f}".replace("-", "−")
    strongest = rows["gradient"].find_elements(By.CSS_SELECTOR, ".cell")[1 + lengths.argmax()]
    assert strongest.value_of_css_property("background-color").startswith("rgba(125, 125, 133")
    page.one("[data-order=agreement]").click()
    agreement = [float(cell.text.replace("−", "-").replace("–", "-2"))
                 for cell in page.all("#panel tbody td:nth-child(2)")]  # fmt: skip
    assert agreement == sorted(agreement, reverse=True)
    page.shot("compare")
    page.one("#panel [data-method=gradient_x_input] button").click()
    page.until(lambda: "gradient_x_input took" in page.one("#message").text)
    assert "do not add up" in page.one("#ledger").text


def test_the_compared_methods_are_chosen(page):
    page.open("#text=a+gorgeous+film.").explained().tab("compare")
    page.until(lambda: "20 methods explain" in page.one("#panel").text)
    page.one("#panel .choices summary").click()
    page.one("[data-choice=gradient]").click()
    page.until(lambda: "19 methods explain" in page.one("#panel").text)
    assert not page.all("#panel [data-method=gradient]")
    assert "off=gradient" in page.browser.current_url


def test_a_contrast_is_selected(page):
    page.open("#text=a+gorgeous+film.").explained()
    Select(page.one("#against")).select_by_visible_text("NEGATIVE")
    page.until(lambda: "against=0" in page.browser.current_url)
    page.until(lambda: "took" in page.one("#message").text)


def test_the_slider_moves_along_the_curve(page):
    page.open("#text=a+gorgeous+film.&tab=curves").explained().tab("curves")
    page.until(lambda: page.all("#step"))
    first = page.one(".curve-status").text
    page.one("#step").send_keys(Keys.HOME)
    page.until(lambda: page.one(".curve-status").text.startswith("0 of 6"))
    assert len(page.all("#panel .removed")) == 6
    page.one("#step").send_keys(Keys.END)
    page.until(lambda: page.one(".curve-status").text.startswith("6 of 6"))
    assert page.one(".curve-status").text != first
    assert page.all("#panel .control")
    assert "of random scores, dashed, the mean of 5:" in page.one("#panel").text
    page.shot("curve")
    page.one("[data-curve=pruning]").click()
    page.until(lambda: "AU-MSE" in page.one("#panel").text)


def test_layers_and_attention(page):
    page.open("#text=a+gorgeous+film.&tab=layers").explained().tab("layers")
    page.until(lambda: len(page.all("#panel tbody tr")) == 5)
    page.shot("layers")
    names = [cell.text for cell in page.all("#panel tbody th")]
    assert names == ["layer 4", "layer 3", "layer 2", "layer 1", "input"]
    # one scale for all rows, and it is stated
    scores = [[float(cell.get_attribute("textContent").replace("−", "-"))
               for cell in row.find_elements(By.CSS_SELECTOR, ".cell")][1:-1]
              for row in page.all("#panel tbody tr")]  # fmt: skip
    stated = page.one("#panel p").text.split("full colour: ")[1].split()[0]
    assert float(stated) == pytest.approx(np.abs(scores).max(), abs=2e-3)
    page.tab("attention")
    page.until(lambda: len(page.all("#panel .weight")) == 36)
    assert [option.text for option in Select(page.one("#layer")).options] == ["1", "2", "3", "4"]
    Select(page.one("#head")).select_by_value("3")
    page.until(lambda: Select(page.one("#head")).first_selected_option.text == "3")
    page.shot("attention")


def test_heads_as_lines_and_all_heads_at_a_glance(page):
    page.open("#text=a+gorgeous+film.&tab=attention").explained().tab("attention")
    page.until(lambda: page.all("[data-view=head]"))
    page.one("[data-view=head]").click()
    page.until(lambda: len(page.all(".heads [data-head]")) == 6)
    shares = [float(b.text.split(": ")[1].rstrip(" %")) for b in page.all(".heads [data-head]")]
    assert shares == sorted(shares, reverse=True)
    pressed = [b.get_attribute("aria-pressed") for b in page.all(".heads [data-head]")]
    assert pressed == ["true"] * 3 + ["false"] * 3  # the strongest are shown first
    some_lines = len(page.all(".head-lines line"))
    page.one(".heads [data-heads=all]").click()
    page.until(lambda: len(page.all(".heads [aria-pressed=true]")) == 6)
    all_lines = len(page.all(".head-lines line"))
    assert 0 < some_lines < all_lines
    page.one(".heads [data-head='0']").click()
    page.until(lambda: len(page.all(".heads [aria-pressed=true]")) == 5)
    page.until(lambda: 0 < len(page.all(".head-lines line")) < all_lines)
    page.shot("heads")
    page.one("[data-view=model]").click()
    page.until(lambda: len(page.all(".thumbnail")) == 24)
    page.shot("model_view")
    page.one(".thumbnail[data-layer='3'][data-head='2']").click()
    page.until(lambda: page.all("#panel .weight"))
    chosen = [Select(page.one(f"#{name}")).first_selected_option.text for name in ("layer", "head")]
    assert chosen == ["3", "2"]


def test_a_large_attention_map_names_the_weight_under_the_mouse_and_is_enlarged(page):
    from selenium.webdriver import ActionChains

    page.open("#tab=attention&text=" + "a+good+film+" * 30).explained().tab("attention")
    canvas = page.until(lambda: page.one("#panel canvas"))
    assert not page.all("#panel .name")
    assert float(page.one("#panel .scale").text.rpartition(" ")[2]) > 0
    ActionChains(page.browser).move_to_element_with_offset(canvas, 20, 20).perform()
    page.until(lambda: " → " in page.one("#panel .pointed").text)
    width = canvas.rect["width"]
    page.one("#zoom").send_keys(*[Keys.ARROW_RIGHT] * 2)
    page.until(lambda: canvas.rect["width"] == pytest.approx(2 * width, rel=0.01))


def test_attention_of_a_clicked_patch_is_drawn_on_the_picture(page):
    page.open("#model=digits&tab=attention&image=" + quote(bar_image())).explained()
    page.tab("attention")
    page.until(lambda: len(page.all("#panel [data-unit]")) == 49)
    opacity = lambda: [c.get_attribute("fill-opacity") for c in page.all("#panel [data-unit]")]  # noqa: E731
    before = opacity()
    page.one("#panel [data-unit='10']").click()
    page.until(lambda: page.all("#panel .chosen"))
    assert opacity() != before
    assert page.one("#panel .chosen").get_attribute("data-unit") == "10"
    page.shot("patch")


def test_the_sentence_comes_first_and_numbers_can_be_shown(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.until(lambda: page.one("#sentence").text.startswith("The model says POSITIVE ("))
    assert "gorgeous" in page.one("#sentence em.for").text
    assert "the logit of POSITIVE" in page.one("#explained").text
    shown = (
        "const token = document.querySelector('#heatmap .u[data-score]');"
        "return getComputedStyle(token, '::after').content"
    )
    assert page.browser.execute_script(shown) in ("none", "normal")
    page.one("#numbers").click()
    assert page.browser.execute_script(shown).strip('"')[0] in "+-"
    assert "numbers=1" in page.browser.current_url


def test_paper_keeps_marks_and_numbers(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        style = "const s = getComputedStyle(arguments[0], arguments[1]); return s[arguments[2]]"
        token = page.one("#heatmap .u[data-score]")
        read = page.browser.execute_script
        assert read(style, token, "::after", "content").strip('"')[0] in "+-"
        assert read(style, token, None, "print-color-adjust") == "exact"
        assert read(style, page.one("#examples"), None, "display") == "none"
        assert read(style, page.one("#text-input"), None, "display") == "none"
        assert "By secant(root=unk) on sentiment." in page.one("#explained").text
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_many_texts_sort_and_open(page):
    page.open().explained()
    table = 'text;label\na dull film;NEGATIVE\n"witty; gorgeous";NEGATIVE\na fine film;POSITIVE'
    page.predict_all(table)
    page.until(lambda: len(page.all("#table tbody tr")) == 3)
    page.one("[data-sort=disagreement]").click()
    first = page.one("#table tbody tr")
    assert first.get_attribute("data-row") == "1"  # labelled NEGATIVE, predicted POSITIVE
    assert "witty; gorgeous" in first.text
    page.one("[data-sort=label]").click()
    assert "NEGATIVE" in page.one("#table tbody tr td:nth-child(3)").text
    page.one("[data-sort=probability]").click()
    chances = [c.text for c in page.all("#table tbody td:nth-child(4)")]
    assert chances == sorted(chances, reverse=True)
    page.shot("table")
    assert "cells than the header" not in page.one("#table-status").text
    next(b for b in page.all("#table tbody button") if "dull" in b.text).click()
    page.until(lambda: page.one("#text").get_attribute("value") == "a dull film")
    page.until(lambda: "dull" in page.one("#sentence").text)


PARTS = ("#first", "#aside", "#second", "#second-aside")


def _places(page):
    """Left and top of the first explanation, its prediction, and those of the second."""
    return [tuple(round(page.one(part).rect[side]) for side in ("x", "y")) for part in PARTS]


def test_two_models_stand_side_by_side_with_their_difference(page):
    page.open("#text=a+gorgeous+film.").explained()
    assert not page.one("#first-title").is_displayed()
    Select(page.one("#beside")).select_by_value("flipped")
    page.until(lambda: "NEGATIVE" in page.one("#second .sentence").text)
    assert "on flipped." in page.one("#second .explained").text
    titles = [title.text for title in page.all(".column-title")]
    assert titles == ["by sentiment", "by flipped"]
    first, aside, second, second_aside = _places(page)
    assert first[0] == aside[0] < second[0] == second_aside[0]
    assert first[1] == second[1] < aside[1] == second_aside[1]
    assert "The models disagree: sentiment says POSITIVE (" in page.one("#difference p").text
    rows = [row.text for row in page.all("#difference tr")]
    assert rows[0].split() == ["class", "sentiment", "flipped", "difference"]
    numbers = {row.split()[0]: row.split()[1::2] for row in rows[1:]}
    assert numbers["NEGATIVE"][:2] == numbers["POSITIVE"][1::-1]  # the labels are exchanged
    assert {row.split()[5][0] for row in rows[1:]} == {"+", "−"}
    page.shot("beside")
    page.predict_all("a dull film")
    page.until(lambda: "99" in page.one("#table tbody td:nth-child(5)").text)
    Select(page.one("#beside")).select_by_value("")
    page.until(lambda: not page.one("#second").is_displayed())
    assert not page.one("#difference-section").is_displayed()


def test_two_models_stand_one_below_the_other_in_a_narrow_window(page):
    metrics = {"width": 390, "height": 1400, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open("#text=a+gorgeous+film.&beside=flipped").explained()
        page.until(lambda: page.all("#second-aside .ledger"))
        places = _places(page)
        assert [top for _, top in places] == sorted(top for _, top in places)
        assert len({left for left, _ in places}) == 1
        assert page.browser.execute_script("return document.documentElement.scrollWidth") == 390
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_second_ledger_opens_apart_from_the_first(page):
    page.open("#text=a+gorgeous+film.&beside=flipped").explained()
    page.until(lambda: page.all("#second-aside .ledger"))
    page.one("#second-aside [data-line=tokens]").click()
    page.until(lambda: len(page.all("#second-aside .ledger .detail")) == 6)
    assert not page.all("#ledger .detail")


def test_a_pinned_text_shows_what_a_change_does(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.one("#pin").click()
    page.until(lambda: page.one("#pin").text == "unpin")
    page.type("a dreadful film.").until(lambda: "dreadful" in page.words())
    page.until(lambda: page.all("#difference tr"))
    words = page.one("#difference").text
    assert "NEGATIVE:" in words
    assert "a change of +" in words
    changed = lambda: [u.text for u in page.all(".mirror .changed, #second .changed")]  # noqa: E731
    assert changed() == ["dreadful", "gorgeous"]
    assert [title.text for title in page.all(".column-title")] == ["now", "before: the pinned text"]
    # one model, one scale
    scales = {key.text.splitlines()[-1] for key in page.all("#key, #second .key")}
    assert len(scales) == 1
    page.shot("pinned")
    page.choose("dreadful").one("#chosen button").click()
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    assert changed() == ["dreadful", "gorgeous"]
    page.one("#pin").click()
    page.until(lambda: not page.one("#second").is_displayed())
    assert not page.all(".changed")


def test_a_second_text_makes_a_pair(page, sentiment):
    page.open("#text=a+gorgeous+film.").explained()
    assert not page.one("#pair").is_displayed()
    page.one("#pair-toggle").click()
    page.until(lambda: page.one("#pair").is_displayed())
    assert page.browser.switch_to.active_element.get_attribute("id") == "pair"
    page.browser.switch_to.active_element.send_keys("a dreadful mess.")
    page.until(lambda: "mess" in page.words())
    expected = sentiment(("a gorgeous film.", "a dreadful mess."))
    assert len(page.all(".mirror .u, #added .u")) == len(expected.units)
    assert page.one(".class-row.selected .label").text == expected.target.label
    assert "pair=a+dreadful+mess." in page.browser.current_url
    page.shot("pair")
    page.browser.refresh()
    page.explained()
    page.until(lambda: "mess" in page.words())
    page.one("#pair-toggle").click()
    page.until(lambda: "mess" not in page.words())
    page.open("#model=bace").explained()
    assert not page.one("#pair-toggle").is_displayed()


TABLE = """film,review,given
A,a gorgeous and witty film,POSITIVE
B,a dull film,NEGATIVE
C,I expected to love it,NEGATIVE
D,not bad at all,POSITIVE
"""


def _rows(page):
    return [row.get_attribute("data-row") for row in page.all("#table tbody tr")]


def test_a_table_asks_which_column_is_the_text(page):
    page.open().explained().predict_all(TABLE.replace("review", "remarks"))
    page.until(lambda: "Which column is the text?" in page.one("#table-status").text)
    assert not page.one("#table").is_displayed()
    Select(page.one("[data-column=text]")).select_by_visible_text("remarks")
    Select(page.one("[data-column=label]")).select_by_visible_text("given")
    page.one("#table-columns button").click()
    page.until(lambda: len(page.all("#table tbody tr")) == 4)
    assert "75.0" in page.one("#accuracy").text
    Select(page.one("[data-column=text]")).select_by_visible_text("none: each line is a text")
    page.one("#table-columns button").click()
    page.until(lambda: len(page.all("#table tbody tr")) == 5)
    page.predict_all("a film, dull\nand a line without a comma")
    page.until(lambda: "2 of 2 texts" in page.one("#table-status").text)


def test_the_rows_of_a_table_are_counted_filtered_and_tinted(page):
    page.open().explained().predict_all(TABLE.replace("given", "label"))
    page.until(lambda: len(page.all("#table tbody tr")) == 4)
    counts = {
        (b.get_attribute("data-given"), b.get_attribute("data-said")): int(b.text)
        for b in page.all(".confusion button")
    }
    assert counts == {
        ("POSITIVE", "POSITIVE"): 2, ("NEGATIVE", "NEGATIVE"): 1, ("NEGATIVE", "POSITIVE"): 1,
    }  # fmt: skip
    page.until(lambda: len(page.all("#table tbody .heat")) == 4)
    tint = lambda word: next(  # noqa: E731
        u.value_of_css_property("background-color") for u in page.all("#table .u") if u.text == word
    )
    assert tint("gorgeous").startswith("rgba(214, 39, 40")
    assert tint("witty") != tint("film")
    page.shot("table")
    page.one("[data-filter=disagrees]").click()
    assert _rows(page) == ["2"]
    page.one("#table-filters .pill").click()
    Select(page.one("[data-filter=label]")).select_by_value("NEGATIVE")
    assert _rows(page) == ["1"]
    page.one("#table-filters .pill").click()
    page.one("[data-filter=word]").send_keys("BAD")
    page.until(lambda: _rows(page) == ["3"])
    assert page.one("#table-count").text == "1 of 4 rows"
    page.one("#table-filters .pill").click()
    confidence = {
        row.get_attribute("data-row"): float(
            row.find_element(By.CSS_SELECTOR, "td:nth-child(4)").text.strip("<> %").split()[0]
        )
        for row in page.all("#table tbody tr")
    }
    least = sorted(confidence.values())[1]
    box = page.one("[data-filter=least]")
    box.clear()
    box.send_keys(str(least - 0.1))
    page.until(lambda: len(_rows(page)) == sum(c >= least - 0.05 for c in confidence.values()))
    assert len(_rows(page)) < 4
    page.one("#table-filters .pill").click()
    page.one(".confusion [data-given=NEGATIVE][data-said=POSITIVE]").click()
    assert _rows(page) == ["2"]


def test_a_click_in_a_table_updates_what_is_in_view(page):
    size = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open().explained().predict_all(TABLE)
        page.until(lambda: len(page.all("#table tbody .heat")) == 4)
        button = page.one("#table [data-row='1'] .text button")
        page.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()
        page.until(lambda: page.one(".class-row.selected .label").text == "NEGATIVE")
        in_view = (
            "const r = arguments[0].getBoundingClientRect();"
            "return r.top >= 0 && r.bottom <= innerHeight"
        )
        for part in ("#prediction", ".ledger", "#table [aria-current=true]"):
            assert page.browser.execute_script(in_view, page.one(part)), part
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_session_restores_its_table_with_columns_and_filters(page):
    page.open().explained().predict_all(TABLE.replace("given", "label"))
    page.until(lambda: len(page.all("#table tbody tr")) == 4)
    page.one("[data-filter=word]").send_keys("film")
    page.one("[data-sort=text]").click()
    page.until(lambda: _rows(page) == ["1", "0"])
    page.one("#session-name").send_keys("with a table")
    page.one("#save-session button").click()
    page.open().explained()
    assert not page.one("#table").is_displayed()
    page.one("[data-session='with a table'] button").click()
    page.until(lambda: _rows(page) == ["1", "0"])
    assert page.one("[data-filter=word]").get_attribute("value") == "film"
    assert "75.0" in page.one("#accuracy").text
    page.one("[data-session] .pill").click()
    page.until(lambda: not page.all("[data-session]"))


SIX_LINES = (
    "the film begins as a gorgeous and witty portrait of a family that has lost its way, and for "
    "the first hour the director keeps every scene alive with sharp dialogue and lovely images; "
    "then the plot collapses, the jokes become dull and repetitive, and the actors look as lost "
    "as we feel by the time the credits roll at last, although the score by the young composer "
    "remains a pleasure and the final shot is worth the wait for patient viewers"
)


def test_heatmap_and_ledger_of_six_lines_are_in_view_side_by_side(page):
    size = {"width": 1440, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.open(f"#text={quote(SIX_LINES)}").explained()
        page.until(lambda: page.all(".ledger"))
        boxes = {name: page.one(name).rect for name in (".editor", "#prediction", ".ledger")}
        assert boxes[".editor"]["height"] > 6 * 35
        assert all(box["y"] + box["height"] <= 900 for box in boxes.values())
        assert boxes[".editor"]["x"] + boxes[".editor"]["width"] < boxes[".ledger"]["x"]
        page.browser.execute_script("window.scrollTo(0, 120)")
        read = "return arguments[0].getBoundingClientRect().top"
        assert page.browser.execute_script(read, page.one("#aside")) >= 0  # it stays
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_colours_stay_on_their_words_while_a_text_is_typed(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.browser.execute_script("window.fetch = () => new Promise(() => {})")  # no answer comes
    colour = page.words()["gorgeous"].value_of_css_property("background-color")
    page.type("a really gorgeous film.")
    words = page.words()
    assert list(words) == ["a", "gorgeous", "film", "."]
    assert words["gorgeous"].value_of_css_property("background-color") == colour
    assert page.one(".mirror").get_attribute("textContent").startswith("a really gorgeous film.")


def test_words_and_their_colours_are_in_the_same_place(page):
    page.open(f"#text={quote(SIX_LINES)}").explained()
    shift = """
        const box = document.querySelector('#text'), mirror = document.querySelector('.mirror');
        const read = (node) => ['width', 'font', 'lineHeight', 'padding', 'letterSpacing',
          'whiteSpace', 'overflowWrap'].map((name) => getComputedStyle(node)[name]).join();
        return [read(box), read(mirror), box.scrollHeight <= box.clientHeight];
    """
    of_box, of_mirror, fits = page.browser.execute_script(shift)
    assert of_box == of_mirror
    assert fits


def test_nothing_of_an_earlier_text_stays(page):
    page.open("#text=a+gorgeous+film.").explained()
    page.type("   ")
    page.until(lambda: "Type a text" in page.one("#message").text)
    ids = ("sentence", "explained", "sum", "prediction", "ledger", "heatmap", "removal", "panel")
    left = lambda: [i for i in ids if page.one(f"#{i}").get_attribute("textContent")]  # noqa: E731
    assert left() == []
    page.type("a gorgeous film.").explained()
    page.until(lambda: len(left()) >= 5)
    page.type("word " * 3000)
    page.until(lambda: "tokens" in page.one("#message").text)
    assert left() == []
    assert not page.one("#prediction").is_displayed()
    page.browser.get_log("browser")  # the refusal is logged


def test_a_bar_shows_what_adds_up(page, sentiment):
    page.open("#text=a+gorgeous+film.&method=lrp").explained()
    ledger = sentiment("a gorgeous film.", "lrp").ledger
    numbers = [float(b.text.replace("−", "-")) for b in page.all("#sum .num")]
    assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.01)
    assert numbers[-1] == pytest.approx(ledger.output, abs=6e-4)
    widths = [float(i.value_of_css_property("width")[:-2]) for i in page.all("#sum i")]
    sizes = np.abs(numbers[:-1])
    assert np.array(widths) / sum(widths) == pytest.approx(sizes / sizes.sum(), abs=0.02)


def test_digits_open_with_a_drawn_digit_that_is_explained(page):
    page.open("#model=digits").explained()
    assert len(page.all("#heatmap .cell")) == 49
    assert len(page.all("#examples button")) == 3
    first = page.one("#sentence").text
    page.all("#examples button")[1].click()
    page.until(lambda: page.one("#sentence").text not in ("", first))


def test_rows_of_a_table_that_do_not_fit_its_header_are_said(page):
    page.open().explained()
    table = "text;label\na film; dull;NEGATIVE\na fine film;POSITIVE"
    page.predict_all(table)
    page.until(lambda: len(page.all("#table tbody tr")) == 2)
    assert "1 of the rows has more or fewer cells than the header" in page.one("#table-status").text


def test_a_table_of_pairs(page):
    page.open().explained()
    table = (
        "premise,hypothesis,label\na film,it is dreadful,NEGATIVE\na film,it is gorgeous,POSITIVE"
    )
    page.predict_all(table)
    page.until(lambda: len(page.all("#table tbody tr")) == 2)
    assert [row.text.split("\n")[-1] for row in page.all("#table tbody tr td:nth-child(4)")] == [
        "NEGATIVE",
        "POSITIVE",
    ]
    page.all("#table tbody .text button")[1].click()
    page.until(lambda: page.one("#pair").get_attribute("value") == "it is gorgeous")
    page.until(lambda: "gorgeous" in page.words())


def test_scores_without_a_sign_have_a_colour_of_their_own(page):
    page.open("#text=a+gorgeous+film.&method=gradient").explained()
    page.shot("unsigned")
    assert "strength, without a sign" in page.one("#key").text
    token = page.words()["gorgeous"]
    assert token.value_of_css_property("background-color").startswith("rgba(0, 130, 90")
    assert not token.get_attribute("data-score").startswith("+")


def test_sessions_are_saved_opened_and_deleted(page):
    page.open("#text=a+gorgeous+film.&method=gradient").explained()
    page.one("#session-name").send_keys("<i>first</i>")
    page.one("#save-session button").click()
    page.until(lambda: page.all("[data-session]"))
    page.open("#text=another+film.").explained()
    page.one("[data-session] button").click()
    page.until(lambda: "gorgeous" in page.words())
    assert Select(page.one("#method")).first_selected_option.text == "gradient"
    page.one("[data-session] .pill").click()
    page.until(lambda: not page.all("[data-session]"))


def test_a_dropped_file_that_is_no_image_is_said_and_clear_clears(page):
    page.open("#model=digits&image=" + quote(bar_image())).explained()
    drop = """
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(['a'], arguments[0], {type: arguments[1]}));
        const options = {dataTransfer, bubbles: true, cancelable: true};
        document.dispatchEvent(new DragEvent('drop', options));
    """
    page.browser.execute_script(drop, "notes.txt", "text/plain")
    page.until(lambda: '"notes.txt" is not an image' in page.one("#message").text)
    assert "error" in page.one("#message").get_attribute("class")
    page.one("#clear").click()
    page.until(lambda: not page.one("#prediction").is_displayed())
    assert "Draw something" in page.one("#message").text
    page.open("#text=a+film.").explained()
    page.browser.execute_script(drop, "x.png", "image/png")
    page.until(lambda: "reads text" in page.one("#message").text)
    page.browser.execute_script(drop, "rows.csv", "text/csv")
    page.until(lambda: page.all("#table tbody tr"))


@pytest.mark.parametrize("kind", ["json", "html", "svg", "png"])
def test_an_explanation_is_downloaded(page, downloads, sentiment, kind):
    page.open("#text=a+gorgeous+film.").explained()
    path = downloads / f"wherefrom.{kind}"
    page.browser.execute_script("arguments[0].click()", page.one(f"#download-{kind}"))
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
def test_any_text_stays_text(page, text):
    page.open().explained()
    page.type(text)
    drawn = lambda: page.one("#heatmap").get_attribute("textContent")  # noqa: E731
    page.until(lambda: drawn() and "eastwood" not in drawn())
    page.explained()
    assert (
        page.browser.execute_script("return document.querySelectorAll('img, main script').length")
        == 0
    )
    shown = page.one(".mirror").get_attribute("textContent")
    assert shown.removesuffix("\u200b") == text  # the colours are where the letters are
    direction = page.one("#heatmap .heat").get_attribute("dir")
    assert direction == ("rtl" if text.startswith("סרט") else "ltr")
    page.browser.refresh()
    page.explained()
    assert page.one("#text").get_attribute("value") == text


def test_a_text_that_is_too_long_is_refused_and_truncated_on_request(page):
    page.open().explained()
    page.type("word " * 3000)
    page.until(lambda: "tokens" in page.one("#message").text)
    page.one("#message button").click()
    page.explained()
    page.type("word " * 5000)
    page.until(lambda: "characters" in page.one("#message").text)


def test_a_link_restores_the_state(page):
    page.open("#text=not+a+bad+film.&method=attn_lrp&target=0&removed=2.3&tab=layers").explained()
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    assert page.one("#text").get_attribute("value") == "not a bad film."
    assert Select(page.one("#method")).first_selected_option.text == "attn_lrp"
    assert page.one(".class-row.selected .label").text == "NEGATIVE"
    assert len(page.all(".mirror .removed")) == 2
    assert page.one("#tab-layers").get_attribute("aria-selected") == "true"


def test_a_patch_of_an_image_is_removed(page):
    from urllib.parse import quote

    page.open(f"#model=digits&image={quote(bar_image(), safe='')}").explained()
    assert len(page.all("#heatmap .cell")) == 49
    page.browser.execute_script(
        "arguments[0].dispatchEvent(new MouseEvent('click'))", page.all("#heatmap .cell")[24]
    )
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    page.shot("image")


@pytest.mark.parametrize("size", [(28, 28), (1500, 900)], ids=["small", "large"])
def test_a_file_is_explained(page, tmp_path, size):
    path = tmp_path / "bar.png"
    path.write_bytes(base64.b64decode(bar_image(size)))
    page.open("#model=digits")
    page.until(lambda: page.one("#file").is_displayed())
    page.one("#file").send_keys(str(path))
    page.explained()
    assert len(page.all("#heatmap .cell")) == 49
    page.tab("layers")
    page.until(lambda: len(page.all("#panel tbody tr")) == 3)
    page.shot(f"file-{size[0]}")


def test_a_file_that_the_browser_cannot_show_is_explained(page, tmp_path):
    path = tmp_path / "bar.tif"
    path.write_bytes(READ["TIFF of 16 bits"])
    page.open("#model=digits")
    page.until(lambda: page.one("#file").is_displayed())
    page.one("#file").send_keys(str(path))
    page.explained()
    assert len(page.all("#heatmap .cell")) == 49


def test_transparency_is_shown_as_the_server_reads_it(page, tmp_path):
    path = tmp_path / "ink.png"
    path.write_bytes(READ["ink on transparency, PNG"])  # from black at the top to white
    page.open("#model=digits")
    page.until(lambda: page.one("#file").is_displayed())
    page.one("#file").send_keys(str(path))
    page.explained()
    page.shot("ink")
    top, bottom = page.browser.execute_script(
        "const canvas = document.querySelector('#drawing'), drawing = canvas.getContext('2d');"
        "return [0, canvas.height - 1].map((y) => [...drawing.getImageData(5, y, 1, 1).data]);"
    )
    assert max(top[:3]) < 10
    assert min(bottom) > 245


def test_an_atom_of_a_molecule_is_removed(page, bace):
    page.open("#model=bace").explained()
    assert len(page.all("#heatmap circle.cell")) == len(bace(MOLECULES[0]))
    named = {em.text for em in page.all("#sentence em")}
    assert {label.text for label in page.all("#heatmap .names text")} == named
    assert len(named) == 6
    page.browser.execute_script("document.querySelector('#heatmap .cell').focus()")
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    page.shot("molecule")


def test_a_drawing_is_explained(page):
    from selenium.webdriver import ActionChains

    page.open("#model=digits")
    canvas = page.until(
        lambda: page.one("#drawing") if page.one("#drawing").is_displayed() else None
    )
    stroke = ActionChains(page.browser).move_to_element_with_offset(canvas, 0, -50).click_and_hold()
    stroke.move_by_offset(0, 100).release().perform()
    page.explained()
    assert len(page.all("#heatmap .cell")) == 49


def test_a_report_opens_and_runs_nothing(page):
    page.open().explained()
    links = {link.text: link.get_attribute("href") for link in page.all("#reports a")}
    page.browser.get(links["one.html"])
    assert page.one("#here").text == "a report"
    assert page.browser.title == "one"
    messages = [entry["message"] for entry in page.browser.get_log("browser")]
    assert any("Content Security Policy" in message for message in messages)


def test_the_script_that_the_library_writes_into_reports_runs(page):
    page.browser.get(f"{page.address}/reports/tables.html")
    messages = [entry["message"] for entry in page.browser.get_log("browser")]
    assert not any("Content Security Policy" in message for message in messages)
    assert any("null" in message for message in messages)  # it ran, and found no data


FRAGMENT = "#text=it's+not+a+bad+film%2C+but+it+never+surprises+you.&removed=3"


def test_the_theme_button_switches_to_dark(page):
    page.open(FRAGMENT).explained()
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = page.browser.execute_script(colour)
    page.one("#theme").click()
    page.one("#theme").click()
    assert page.browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    assert page.browser.execute_script(colour) != light
    page.until(lambda: "effect when removed" in page.one("#removal").text)
    page.shot("dark")
    page.one("#theme").click()
    page.browser.execute_script("document.documentElement.style.filter = 'grayscale(1)'")
    page.shot("grey")


@pytest.mark.parametrize("tab", ["compare", "check", "curves", "layers", "attention"])
def test_a_narrow_window_needs_no_sideways_scrolling(page, tab):
    metrics = {"width": 390, "height": 1400, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.open(f"{FRAGMENT}&tab={tab}").explained()
        page.until(lambda: "effect when removed" in page.one("#removal").text)
        page.shot("narrow")
        page.tab(tab)
        page.until(lambda: page.all("#panel table, #panel svg"))
        page.shot(f"narrow-{tab}")
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        assert page.browser.execute_script(width) == [390, 390]
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
