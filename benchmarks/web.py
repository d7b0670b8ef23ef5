"""The web server under load: response times, memory, and whether answers equal the library's.

    python -m benchmarks.web [--requests 200] [--parallel 16] [--browser]

Starts `wherefrom serve` on a free local port. Every request has another text. Memory and processor
time are those of the server process (Linux only).
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
from typing import Annotated, Any, NamedTuple

import typer

import wherefrom

WORDS = (
    "a an the film script cast story ending good great bad dull witty slow and but never always "
    "very not quite charming boring moving is was it full of heart noise tears"
).split()


class Response(NamedTuple):
    """What the server sent, and after how many seconds."""

    status: int
    content: Any
    seconds: float


def random_texts(count: int) -> list[str]:
    generator = random.Random(0)
    lengths = (generator.randint(4, 24) for _ in range(count))
    return [" ".join(generator.choices(WORDS, k=length)) + "." for length in lengths]


@contextmanager
def serving() -> Iterator[tuple[int, int]]:
    """The process id and the port of a running server."""
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


def explain(port: int, text: str) -> Response:
    start = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"model": "sentiment", "text": text})
    connection.request("POST", "/api/explain", body, {"content-type": "application/json"})
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return Response(response.status, content, time.perf_counter() - start)


def memory_megabytes(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not report the memory of a process")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sequential_times(pid: int, port: int, count: int = 20) -> str:
    """The time of one request after the other, each with a new text."""
    texts = random_texts(2000)[-count:]
    for text in texts[:3]:  # the first runs of a model are slower
        explain(port, text)
    cpu_before = cpu_seconds(pid)
    seconds = [explain(port, text).seconds for text in texts[3:]]
    cpu = (cpu_seconds(pid) - cpu_before) / len(seconds)
    return (
        f"one explanation, sequentially: median {1000 * statistics.median(seconds):.0f} ms, "
        f"{1000 * cpu:.0f} ms of processor time"
    )


def explain_all(pid: int, port: int, texts: list[str], parallel: int) -> tuple[str, list[Response]]:
    """Explains all texts, `parallel` at a time; reads the memory after each quarter."""
    memory: list[float] = []
    responses: list[Response] = []
    with ThreadPoolExecutor(parallel) as clients:
        quarter = -(-len(texts) // 4)
        for start in range(0, len(texts), quarter):
            part = texts[start : start + quarter]
            responses += clients.map(lambda text: explain(port, text), part)
            memory.append(memory_megabytes(pid))
    statuses = Counter(response.status for response in responses)
    seconds = sorted(response.seconds for response in responses)
    summary = (
        f"{len(texts)} requests, {parallel} in parallel: responses by status {dict(statuses)}; "
        f"median {seconds[len(seconds) // 2]:.2f} s, 95 % {seconds[int(0.95 * len(seconds))]:.2f} s"
        f"; memory after each quarter {', '.join(f'{size:.0f}' for size in memory)} MB"
    )
    return summary, responses


def page_times(port: int, times: int = 5) -> str:
    """How long a browser takes to open the page and to show the first explanation."""
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
            for name, milliseconds in marks.items():
                script = f"return performance.getEntriesByName('{name}')[0]?.startTime"
                while (start := driver.execute_script(script)) is None:
                    time.sleep(0.05)
                milliseconds.append(start)
    finally:
        driver.quit()
    ready, explained = (statistics.median(milliseconds[1:]) for milliseconds in marks.values())
    return f"page: ready after {ready:.0f} ms, explanation after {explained:.0f} ms (medians)"


def main(
    requests: Annotated[int, typer.Option(help="Number of requests.")] = 200,
    parallel: Annotated[int, typer.Option(help="Requests at a time.")] = 16,
    burst: Annotated[int, typer.Option(help="Requests at a time that overfill the queue.")] = 48,
    browser: Annotated[bool, typer.Option("--browser", help="Also time the page.")] = False,
) -> None:
    texts = random_texts(requests)
    with serving() as (pid, port):
        typer.echo(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
        typer.echo(sequential_times(pid, port))
        summary, responses = explain_all(pid, port, texts, parallel)
        typer.echo(summary)
        summary, burst_responses = explain_all(pid, port, random_texts(1000)[-2 * burst :], burst)
        typer.echo(summary)
        if browser:
            typer.echo(page_times(port))
    explainer = wherefrom.load("sentiment")
    different = sum(
        response.content["explanation"] != explainer(text).to_dict()
        for text, response in zip(texts, responses, strict=True)
        if response.status == 200
    )
    typer.echo(f"answers that differ from the library's: {different}")
    statuses = {response.status for response in (*responses, *burst_responses)}
    if different or not statuses <= {200, 503}:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
