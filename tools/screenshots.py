"""Takes the pictures of the page that the documentation shows, with the embedded models.

python -m tools.screenshots [FOLDER]    # by default docs/images; needs chromium and chromium-driver
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tools.widget import STORED
from wherefrom import Answer, load
from wherefrom.models.embedded import embedded
from wherefrom.web.app import make_app
from wherefrom.web.models import Models
from wherefrom.web.request import Limits
from wherefrom.web.serve import make_server, serve_on
from wherefrom.web.worker import Worker

IMAGES = Path(__file__).parents[1] / "docs" / "images"
REVIEW = (
    "the film begins as a gorgeous and witty portrait of a family, and for an hour every scene is "
    "alive; then the plot collapses, the jokes become dull, and the actors look lost."
)
TABLE = (
    "text,label\na gorgeous and witty film,POSITIVE\na dull film,NEGATIVE\n"
    "I expected to love it,NEGATIVE\nnot bad at all,POSITIVE\nthe plot is fine,POSITIVE"
)
FILL = (
    "document.querySelector('#many details').open = true;"
    f"document.getElementById('table-text').value = {TABLE!r};"
    "document.getElementById('table-run').click();"
)
# name: address, width, height, script, what must be there, what is at the top
SHOTS = {
    "serve": (f"/#text={quote(REVIEW)}", 1440, 900, "", "#panel tbody tr:nth-child(4)", None),
    "serve-compare": ("/", 1440, 760, "", "#panel tbody tr:nth-child(20)", "#tabs"),
    "serve-digits": ("/#model=digits&tab=layers", 1440, 900, "", "#panel .matrix", None),
    "serve-table": ("/#tab=layers", 1440, 900, FILL, "#table tr:nth-child(5) .heat", "#many"),
}


def main() -> None:
    """Serves the embedded models and takes each picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    limits = Limits()
    worker = Worker(limits.job_seconds, limits.queued_jobs)
    names = sorted(embedded(), key=lambda name: name != "sentiment")
    server = make_server(make_app(Models({name: load(name) for name in names}), worker))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(serve_on(server, listener)))
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            take(f"http://127.0.0.1:{listener.getsockname()[1]}", folder)
        finally:
            server.should_exit = True
            thread.join()
            worker.close()


def take(address: str, folder: Path) -> None:
    """Takes all pictures of the page at an address, and that of the stored answer."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    answer = folder / "answer.html"
    Answer.from_json(STORED).to_html(answer)
    shots = {name: (address + place, *rest) for name, (place, *rest) in SHOTS.items()}
    shots["answer-page"] = (answer.as_uri(), 980, 900, "", ".part.lit", None)
    try:
        for name, (place, width, height, script, shown, top) in shots.items():
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            browser.get("about:blank")
            browser.get(place)
            wait = WebDriverWait(browser, 120, 0.2)
            wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".ledger .total"))
            scroll = "document.querySelector(arguments[0] || 'body').scrollIntoView()"
            browser.execute_script(script + scroll, top)
            wait.until(lambda _, shown=shown: browser.find_elements(By.CSS_SELECTOR, shown))
            browser.execute_script(scroll, top)
            path = folder / f"{name}.png"
            browser.save_screenshot(str(path))
            Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    finally:
        browser.quit()
        answer.unlink()


if __name__ == "__main__":
    main()
