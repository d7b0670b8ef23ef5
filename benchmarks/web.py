"""The page under load: many questions at once, and what a person waits for.

    python -m benchmarks.web [--requests 200] [--at-once 16] [--browser]

Starts `wherefrom serve` on a free port of loopback. Every question is another text; every answer is
held against the library's own. Memory is that of the server, as Linux tells it.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import wherefrom

WORDS = (
    "a an the film script cast story ending good great bad dull witty slow and but never always "
    "very not quite charming boring moving is was it full of heart noise tears"
).split()


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 24))) + "." for _ in range(count)]


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """The process id and the port of a server of the embedded model."""
    command = [
        sys.executable,
        "-m",
        "wherefrom",
        "serve",
        "--model",
        "sentiment",
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        line = server.stderr.readline()
        yield server.pid, int(line.partition("127.0.0.1:")[2].partition("/")[0])
    finally:
        server.terminate()
        server.wait()


def ask(port: int, what: str, text: str) -> tuple[int, Any, float]:
    start = time.perf_counter()
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"model": "sentiment", "text": text})
    line.request("POST", f"/api/{what}", body, {"content-type": "application/json"})
    answer = line.getresponse()
    found = json.loads(answer.read())
    line.close()
    return answer.status, found, time.perf_counter() - start


def megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not tell how large the process is")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def alone(pid: int, port: int, count: int = 20) -> str:
    """One question after the other, each a new text."""
    given = texts(2000)[-count:]
    for text in given[:3]:
        ask(port, "explain", text)
    before = cpu_seconds(pid)
    waited = [ask(port, "explain", text)[2] for text in given[3:]]
    worked = (cpu_seconds(pid) - before) / len(waited)
    return (
        f"a new explanation, warm: median {1000 * statistics.median(waited):.0f} ms waited, "
        f"{1000 * worked:.0f} ms of processor time"
    )


def loaded(pid: int, port: int, given: list[str], at_once: int) -> tuple[str, list[Any]]:
    """All texts, so many at a time; memory after each quarter."""
    sizes, done = [], []
    with ThreadPoolExecutor(at_once) as crowd:
        quarter = -(-len(given) // 4)
        for at in range(0, len(given), quarter):
            part = given[at : at + quarter]
            done += list(crowd.map(lambda text: ask(port, "explain", text), part))
            sizes.append(megabytes(pid))
    statuses = Counter(status for status, _, _ in done)
    waited = sorted(seconds for _, _, seconds in done)
    told = (
        f"{len(given)} questions, {at_once} at a time: answers by status {dict(statuses)}; waited "
        f"{waited[len(waited) // 2]:.2f} s (median), {waited[int(0.95 * len(waited))]:.2f} s (95 %)"
        f"; memory after each quarter {', '.join(f'{size:.0f}' for size in sizes)} MB"
    )
    return told, done


def opened(port: int, times: int = 5) -> str:
    """What a person waits for in a browser."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    marks: dict[str, list[float]] = {"wherefrom-ready": [], "wherefrom-explained": []}
    try:
        for _ in range(times + 1):
            driver.get("about:blank")
            driver.get(f"http://127.0.0.1:{port}/")
            for name, found in marks.items():
                script = f"return performance.getEntriesByName('{name}')[0]?.startTime"
                while (at := driver.execute_script(script)) is None:
                    time.sleep(0.05)
                found.append(at)
    finally:
        driver.quit()
    ready, explained = (statistics.median(found[1:]) for found in marks.values())
    return (
        f"the page: can be used after {ready:.0f} ms, explained after {explained:.0f} ms (median)"
    )


def main(
    requests: Annotated[int, typer.Option(help="Questions in all.")] = 200,
    at_once: Annotated[int, typer.Option(help="At a time.")] = 16,
    burst: Annotated[int, typer.Option(help="At a time, so that some find the line full.")] = 48,
    browser: Annotated[bool, typer.Option("--browser", help="Also time the page.")] = False,
) -> None:
    given = texts(requests)
    with serving() as (pid, port):
        typer.echo(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        typer.echo(alone(pid, port))
        told, done = loaded(pid, port, given, at_once)
        typer.echo(told)
        again, crowded = loaded(pid, port, texts(1000)[-2 * burst :], burst)
        typer.echo(again)
        if browser:
            typer.echo(opened(port))
    explainer = wherefrom.load("sentiment")
    differing = sum(
        found["explanation"] != explainer(text).to_dict()
        for text, (status, found, _) in zip(given, done, strict=True)
        if status == 200
    )
    typer.echo(f"answers that differ from the library's: {differing}")
    strange = [status for status, _, _ in (*done, *crowded) if status not in (200, 503)]
    if strange or differing:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
