"""The page of the inside of a model in a browser: the map, its zoom, and the linked heads."""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.web.helpers import BROWSER

pytestmark = BROWSER
TEXT = "a charming but dull film with many virtues and a slow start " * 4


@pytest.fixture(scope="module")
def inside(sentiment):
    return sentiment.inside(TEXT)


@pytest.fixture
def page(inside, browser, tmp_path):
    path = inside.to_html(tmp_path / "inside.html")
    browser.get(path.as_uri())
    yield browser
    assert browser.get_log("browser") == []


def note(page):
    return page.find_element(By.CSS_SELECTOR, ".map .note").text


def test_arrow_keys_read_the_numbers_of_a_cell(page, inside):
    canvas = page.find_element(By.TAG_NAME, "canvas")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    words = note(page)
    assert words.startswith("layer 1, 2 “charming”: ")
    values = dict(part.rsplit(" ", 1) for part in words.split(": ")[1].split(" · "))
    expected = {"stream": inside.layers, "attention": inside.attention, "MLP": inside.mlps}
    assert set(values) == set(expected)
    for name, table in expected.items():
        assert float(values[name].replace("−", "-")) == pytest.approx(table[1, 2], rel=0.01)


def test_zooming_shows_fewer_columns_and_whole_shows_all(page):
    column = (
        "const c = document.querySelector('canvas'), r = c.getBoundingClientRect();"
        "c.dispatchEvent(new PointerEvent('pointermove',"
        "{clientX: r.right - 2, clientY: r.top + 5, bubbles: true}))"
    )
    page.execute_script(column)
    last = note(page)
    assert "“[SEP]”" in last
    page.find_element(By.CSS_SELECTOR, "[data-zoom=in]").click()
    page.execute_script(column)
    assert note(page) != last
    page.find_element(By.CSS_SELECTOR, "[data-zoom=all]").click()
    page.execute_script(column)
    assert note(page) == last


def test_a_linked_head_shows_its_tokens_and_hides_the_others(page, inside):
    strongest, second = (name for name, _ in inside.top("head", 2))
    parts = {p.get_attribute("id"): p for p in page.find_elements(By.CLASS_NAME, "through")}
    assert [name for name, part in parts.items() if part.is_displayed()] == [strongest]
    page.find_element(By.CSS_SELECTOR, f"a[href='#{second}']").click()
    assert [name for name, part in parts.items() if part.is_displayed()] == [second]


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_is_wider_than_the_page(page, width):
    page.set_window_size(width, 900)
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.execute_script(overflow) <= 0
