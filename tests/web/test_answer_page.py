"""The page of an answer in a real chromium: what is chosen is what is shown."""

import os
import re
import warnings
from pathlib import Path

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from benchmarks.tiny import model as tiny
from tests.seeing import picture, seeing
from tests.web.helpers import BROWSER
from wherefrom import Explainer, Prompt
from wherefrom.show.answer import alignment
from wherefrom.show.line_kinds import LINE_KINDS, group_name

pytestmark = BROWSER
PICTURES = os.environ.get("WHEREFROM_PICTURES")  # a folder for screenshots


@pytest.fixture(scope="module")
def answer(bytepairs):
    model = tiny("llama", "write", vocab_size=len(bytepairs), max_position_embeddings=512)
    passages = ["the movie is lovely.", "Paris <b>is</b> the movie."]
    return Explainer(model, bytepairs).answer(Prompt("who is it?", passages), " it is Paris. Love!")


@pytest.fixture
def page(browser, answer, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer.to_html(tmp_path / "answer.html")
    browser.get((tmp_path / "answer.html").as_uri())
    yield browser
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []


def total(page):
    text = page.find_element(By.CSS_SELECTOR, "#ledger .total .num").text
    return float(text.replace("−", "-"))


def shares(page):
    cards = page.find_elements(By.CSS_SELECTOR, ".part:not(.template) h2")
    return {
        re.split(r"\n", card.text)[0]: float(
            card.find_element(By.TAG_NAME, "b").text.replace("−", "-").removesuffix(" %")
        )
        for card in cards
    }


def expected_shares(answer, part, **options):
    return {s.name: round(100 * s.share) for s in answer.sources("passage", part, **options)}


def chosen(page):
    return "".join(
        node.get_attribute("textContent")
        for node in page.find_elements(By.CSS_SELECTOR, "#answer .on")
    )


@pytest.fixture
def whole(page):
    """The page with the whole answer chosen."""
    page.find_element(By.CSS_SELECTOR, "#choices button").click()
    return page


def test_the_decisive_word_is_chosen_first_and_its_passage_lit(page, answer):
    best = {
        word: max(s.relevance for s in answer.sources("passage", word) if "passage" in s.name)
        for word in answer.words
    }
    decisive = max(best, key=best.get)
    assert chosen(page) == "".join(t.text for t in answer.tokens[decisive.first : decisive.last])
    lit = page.find_element(By.CSS_SELECTOR, ".part.lit h2").text.split("\n")[0]
    assert lit == max(answer.sources("passage", decisive), key=lambda s: s.share).name
    template = page.find_element(By.CSS_SELECTOR, ".part.template")
    assert template.get_attribute("open") is None
    assert not template.find_element(By.CSS_SELECTOR, ".heat").is_displayed()


def test_the_whole_answer_can_be_chosen(whole, answer):
    page = whole
    assert chosen(page) == answer.text
    assert total(page) == pytest.approx(answer.of().output, abs=0.006)
    assert shares(page) == pytest.approx(expected_shares(answer, None), abs=1)
    assert page.find_elements(By.CSS_SELECTOR, ".part b b") == []  # text is no markup
    assert "<b>is</b>" in page.find_element(By.ID, "parts").text


def test_a_sentence_and_the_legend_come_first(whole, answer):
    page = whole
    blocks = page.find_elements(By.CSS_SELECTOR, ".wherefrom > :not(style)")
    assert [block.get_attribute("id") for block in blocks[:2]] == ["sentence", "what"]
    assert "key" in blocks[2].get_attribute("class")
    sources = answer.sources("passage")
    named = [node.text for node in page.find_elements(By.CSS_SELECTOR, "#sentence strong")]
    explanation = answer.of()
    prompt = explanation.ledger.of("prompt") / explanation.output
    mostly = explanation.output > 0 and 0.5 <= prompt <= 1.5
    assert blocks[0].text.startswith("The answer comes mostly from " if mostly else "In the prompt")
    assert named[0] == max(sources, key=lambda source: source.share).name
    against = min(sources, key=lambda source: source.share)
    assert (against.name in named) == (against.share < 0)
    label, output = answer.of().label, answer.of().output
    assert f"By {label} on {answer.model}." in blocks[1].text
    assert f"summed over the chosen tokens, {output:+.3f}".replace("-", "−") in blocks[1].text
    page.find_elements(By.CSS_SELECTOR, "#choices button")[2].click()
    assert "“Love!”" in page.find_element(By.ID, "sentence").text
    best = max(answer.sources("word", "Love!"), key=lambda source: source.relevance)
    assert best.text.strip() == page.find_element(By.CSS_SELECTOR, "#sentence em").text


def test_the_ledger_says_what_its_lines_are(whole, answer):
    page = whole
    names = [group_name(line.kind) for line in answer.of().ledger.lines if line.value]
    assert list(ledger(page)) == [*dict.fromkeys(names), "residual", "output"]
    note = page.find_element(By.ID, "ledger-note").text
    assert all(LINE_KINDS[line.kind].meaning in note for line in answer.of().ledger.lines)


def test_a_click_takes_a_word_and_a_sweep_several(page, answer):
    spans = page.find_elements(By.CSS_SELECTOR, "#answer span")
    paris = answer.span("Paris")
    spans[paris.first].click()
    assert chosen(page).strip() == "Paris"
    assert total(page) == pytest.approx(answer.of("Paris").output, abs=0.006)
    assert shares(page) == pytest.approx(expected_shares(answer, "Paris"), abs=1)
    love = answer.span("Love")
    sweep = ActionChains(page).move_to_element(spans[paris.first]).click_and_hold()
    sweep.move_to_element(spans[love.last - 1]).release().perform()
    assert chosen(page).strip() == "Paris. Love"
    part = slice(paris.first, love.last)
    assert total(page) == pytest.approx(answer.of(part).output, abs=0.006)


def test_keys_and_sentences(page):
    buttons = page.find_elements(By.CSS_SELECTOR, "#choices button")
    assert [button.text for button in buttons] == ["whole answer", "it is Paris.", "Love!"]
    buttons[2].click()
    assert chosen(page).strip() == "Love!"
    assert buttons[2].get_attribute("aria-pressed") == "true"
    page.find_element(By.ID, "answer").send_keys(Keys.ARROW_LEFT)
    assert chosen(page).strip() == "."


def test_hops_are_steps(page, answer):
    page.find_elements(By.CSS_SELECTOR, "#choices button")[2].click()
    steps = page.find_elements(By.CSS_SELECTOR, "#hops button")
    assert [step.text for step in steps[:3]] == ["direct", "1 hop", "2 hops"]
    assert steps[-1].text == "all hops"
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, step in enumerate(steps):
            step.click()
            assert step.get_attribute("aria-pressed") == "true"
            how = {"multi_hop": True} if step is steps[-1] else {"hops": number}
            assert total(page) == pytest.approx(answer.of("Love!").output, abs=0.006)
            assert shares(page) == pytest.approx(expected_shares(answer, "Love!", **how), abs=1)
            line = ledger(page).get("earlier answer", 0.0)
            assert line == pytest.approx(answer.of("Love!", **how).ledger.of("answer"), abs=0.006)
            seen.append(shares(page))
    assert seen[0] != seen[1]


def ledger(page):
    rows = page.find_elements(By.CSS_SELECTOR, "#ledger tr")
    cells = [row.find_elements(By.TAG_NAME, "td") for row in rows]
    return {name.text: float(value.text.replace("−", "-")) for name, value in cells}


def test_the_matrix_is_a_picture_whose_rows_can_be_chosen(page, answer):
    rows = page.find_elements(By.CSS_SELECTOR, "#matrix .row")
    assert len(rows) == len(answer)
    columns = page.find_elements(By.CSS_SELECTOR, "#matrix > svg > text")
    words = alignment(answer)
    assert [column.text for column in columns] == [column.text or "␣" for column in words]
    token = 2
    cells = rows[token].find_elements(By.CSS_SELECTOR, "title")
    drawn = [title.get_attribute("textContent").rpartition(": ")[2] for title in cells]
    kept = [column for column in words if not column.earlier]
    kept += [column for column in words if column.earlier][:token]
    expected = [f"{100 * column.share[token]:.0f} %" for column in kept]
    assert [text.replace("-0 %", "0 %") for text in drawn] == [
        text.replace("-0 %", "0 %") for text in expected
    ]
    rows[token].find_element(By.CSS_SELECTOR, "rect.band").click()
    assert chosen(page) == answer.tokens[token].text
    assert "on" in rows[token].get_attribute("class")


def test_an_image_has_its_patches_and_its_share(browser, tmp_path):
    model, processor = seeing("llava")
    prompt = Prompt("what is it ?", images=[picture(), picture(seed=1)])
    seen = Explainer(model, processor=processor).answer(prompt, "red square")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen.to_html(tmp_path / "seen.html")
    browser.get((tmp_path / "seen.html").as_uri())
    assert shares(browser) == pytest.approx(expected_shares(seen, None), abs=1)
    patches = browser.find_elements(By.CSS_SELECTOR, ".picture rect")
    assert len(patches) == 32
    strongest = max(patches, key=lambda node: float(node.value_of_css_property("fill-opacity")))
    values = seen.row().values[:32]
    assert patches.index(strongest) == int(abs(values).argmax())
    shown = browser.execute_script(
        "return [...document.querySelectorAll('.picture img')].map(i => i.naturalWidth)"
    )
    assert shown == [48, 48]
    if PICTURES:
        browser.save_screenshot(str(Path(PICTURES) / "answer-images.png"))
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1000])
def test_nothing_sticks_out(page, scheme, width):
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    size = {"width": width, "height": 1100, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        scroll = page.execute_script("return document.documentElement.scrollWidth")
        assert scroll <= width
        if PICTURES:
            page.save_screenshot(str(Path(PICTURES) / f"answer-{scheme}-{width}.png"))
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
