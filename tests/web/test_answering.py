"""The page of answers in a real chromium: a prompt is typed, the answer comes, a part is chosen."""

import os
import socket
import threading
import time
import warnings
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.web.helpers import BROWSER
from wherefrom import Prompt
from wherefrom.web.app import make_app
from wherefrom.web.models import PASSAGES, QUESTION, Models
from wherefrom.web.request import Limits
from wherefrom.web.serve import make_server
from wherefrom.web.worker import Worker

pytestmark = BROWSER
PICTURES = os.environ.get("WHEREFROM_PICTURES")  # a folder for screenshots


@pytest.fixture(scope="module")
def address(talker, sentiment):
    limits = Limits()
    worker = Worker(limits.job_seconds, limits.queued_jobs)
    app = make_app(Models({"talker": talker, "sentiment": sentiment}), worker, limits=limits)
    server = make_server(app)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()
    worker.close()


@pytest.fixture
def page(browser, address):
    """The page; afterwards its console must show no errors."""
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(f"{address}/answer#model=talker")
    until(browser, lambda: one(browser, "#question").get_attribute("value"))
    yield browser
    entries = [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    assert not [e["message"] for e in entries if "status of 422" not in e["message"]]


def one(page, query):
    return page.find_element(By.CSS_SELECTOR, query)


def until(page, condition):
    return WebDriverWait(page, 60, 0.05).until(lambda _: condition())


def answered(page, count):
    page.execute_script("document.getElementById('prompt').open = true")
    until(page, lambda: one(page, "#run").is_enabled())
    box = one(page, "#count")
    page.execute_script("arguments[0].value = arguments[1]", box, str(count))
    one(page, "#run").click()
    until(page, lambda: "click a word" in one(page, "#message").text)


def shares(page):
    return {
        card.text.split("\n")[0]: float(
            card.find_element(By.TAG_NAME, "b").text.replace("−", "-").removesuffix(" %")
        )
        for card in page.find_elements(By.CSS_SELECTOR, ".part:not(.template) h2")
    }


def expected_shares(answer, part):
    return {s.name: round(100 * s.share) for s in answer.sources("passage", part)}


def test_an_answer_to_the_example_is_explained_by_part(page, talker):
    answered(page, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = talker.generate(Prompt(QUESTION, PASSAGES), 8)
    spans = page.find_elements(By.CSS_SELECTOR, "#answer span")
    assert "".join(span.get_attribute("textContent") for span in spans) == answer.text
    assert not one(page, "#growing").is_displayed()
    one(page, "#choices button").click()
    assert shares(page) == pytest.approx(expected_shares(answer, None), abs=1)
    visible = [number for number, span in enumerate(spans) if span.text.strip()]
    first, last = visible[0], visible[-1]
    ActionChains(page).move_to_element(spans[last]).click().perform()
    marked = [span.get_attribute("class") == "on" for span in spans]
    assert marked[last]
    part = slice(marked.index(True), len(marked) - marked[::-1].index(True))
    assert shares(page) == pytest.approx(expected_shares(answer, part), abs=1)
    sweep = ActionChains(page).move_to_element(spans[first]).click_and_hold()
    sweep.move_to_element(spans[last]).release().perform()
    assert all(span.get_attribute("class") == "on" for span in spans[first : last + 1])
    # a second answer takes the place of the first
    answered(page, 3)
    assert len(page.find_elements(By.CSS_SELECTOR, "#answer span")) == 3
    assert len(shares(page)) == 4


def test_the_answer_is_shown_while_it_grows(page):
    page.execute_script(
        "window.texts = new Set(); const growing = document.getElementById('growing');"
        "new MutationObserver(() => window.texts.add(growing.textContent))"
        ".observe(growing, {childList: true})"
    )
    answered(page, 12)
    texts = sorted(filter(None, page.execute_script("return [...window.texts]")), key=len)
    assert len(texts) > 3
    assert texts[-1].startswith(texts[0])


def test_passages_come_and_go_and_an_own_answer_is_explained(page, address):
    for button in page.find_elements(By.CSS_SELECTOR, "#passages button")[1:]:
        button.click()
    one(page, "#add").click()
    page.switch_to.active_element.send_keys("Paris <b>is</b> lovely.")
    one(page, "#ask summary").click()
    one(page, "#own").send_keys(" it is Paris.")
    answered(page, 3)
    assert set(shares(page)) == {"passage 1", "passage 2", "question"}
    assert "<b>is</b>" in one(page, "#parts").text
    assert one(page, "#answer").text.strip() == "it is Paris."
    link = page.current_url
    page.get("about:blank")
    page.get(link)
    until(page, lambda: one(page, "#own").get_attribute("value") == " it is Paris.")
    assert len(page.find_elements(By.CSS_SELECTOR, "#passages li")) == 2


def test_the_page_opens_with_the_example_explained(page, address, talker):
    page.get("about:blank")
    page.get(f"{address}/#")
    until(page, lambda: page.current_url.startswith(f"{address}/answer"))
    until(page, lambda: "click a word" in one(page, "#message").text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = talker.generate(Prompt(QUESTION, PASSAGES), 32)
        passages = {
            word: max(s.relevance for s in answer.sources("passage", word) if "passage" in s.name)
            for word in answer.words
        }
    marked = [span.get_attribute("class") == "on" for span in
              page.find_elements(By.CSS_SELECTOR, "#answer span")]  # fmt: skip
    decisive = max(passages, key=passages.get)
    assert [i for i, on in enumerate(marked) if on] == list(range(decisive.first, decisive.last))
    share = shares(page)
    assert one(page, ".part.lit h2").text.split("\n")[0] == max(share, key=share.get)
    assert not one(page, "#prompt").get_attribute("open")
    assert one(page, "#ledger").is_displayed()
    assert not one(page, ".part.template .heat").is_displayed()
    assert "of the template" in one(page, ".part.template summary").text
    one(page, "#predictions-link").click()
    until(page, lambda: "took" in one(page, "#message").text)


def test_an_error_is_a_line_and_a_running_answer_can_be_stopped(page):
    one(page, "#question").clear()
    for button in page.find_elements(By.CSS_SELECTOR, "#passages button"):
        button.click()
    one(page, "#run").click()
    until(page, lambda: "the prompt is empty" in one(page, "#message").text)
    assert one(page, "#run").is_enabled()
    one(page, "#question").send_keys("the movie is")
    page.execute_script("document.getElementById('count').value = '128'")
    one(page, "#run").click()
    until(page, lambda: one(page, "#growing").text)
    one(page, "#stop").click()
    until(page, lambda: one(page, "#message").text == "stopped.")
    assert not one(page, "#stop").is_displayed()


def test_the_other_page_leads_here(page, address):
    page.get(f"{address}/#model=sentiment")
    until(page, lambda: "took" in one(page, "#message").text)
    assert not one(page, "#beside-menu").is_displayed()  # the other model is a language model
    until(page, lambda: one(page, "#answers-link").is_displayed())
    one(page, "#answers-link").click()
    until(page, lambda: page.current_url.startswith(f"{address}/answer"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1000])
def test_nothing_sticks_out(page, scheme, width):
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    size = {"width": width, "height": 1700, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        answered(page, 8)
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        if PICTURES:
            page.save_screenshot(str(Path(PICTURES) / f"answering-{scheme}-{width}.png"))
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
