"""Fuzzes the API of the page by its own description, with schemathesis (`make -C tools fuzz`).

Serves the embedded models, and runs the fuzzer with one seed after the other until the server has
answered so many requests. Fails if an answer has a status from 500 on, or if the fuzzer finds an
answer that the description does not have.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from wherefrom.loading import load
from wherefrom.models.embedded import embedded
from wherefrom.web.app import make_app
from wherefrom.web.models import Models
from wherefrom.web.request import DESCRIPTION, Limits
from wherefrom.web.security import App, AsgiMessage, Receive, Send
from wherefrom.web.serve import make_server
from wherefrom.web.worker import Worker

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,unsupported_method"
)


class Counted:
    """An application, with the number of its answers by path and status."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.answers: Counter[tuple[str, int]] = Counter()

    async def __call__(self, scope: AsgiMessage, receive: Receive, send: Send) -> None:
        async def counting(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"].isprintable() else "other"
                self.answers[path, message["status"]] += 1
            await send(message)

        await self.app(scope, receive, counting)


@contextmanager
def serving(app: App) -> Iterator[str]:
    """The address of an application that is served."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def main() -> int:
    """Runs the fuzzer and prints what was answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fuzzer", default="schemathesis", help="the program schemathesis")
    parser.add_argument("--cases", type=int, default=20_000, help="requests to answer")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    # absolute: it runs in a folder of its own
    program = os.path.abspath(shutil.which(options.fuzzer) or options.fuzzer)
    limits = Limits()
    worker = Worker(limits.job_seconds, limits.queued_jobs)
    models = Models({name: load(name) for name in embedded()})
    app = Counted(make_app(models, worker, limits=limits))
    failed, seed, phases = False, options.seed, "examples,coverage,fuzzing"
    start = time.monotonic()
    with serving(app) as address, tempfile.TemporaryDirectory() as folder:
        while not failed and app.answers.total() < options.cases:
            done = subprocess.run(
                [
                    program, "run", address + DESCRIPTION, "--checks", CHECKS,
                    "--seed", str(seed), "--max-examples", "200", "--warnings", "off",
                    "--phases", phases, "--suppress-health-check", "all",
                    "--continue-on-failure", "--generation-database", "none", "--no-color",
                ],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            failed, phases = done.returncode != 0, "fuzzing"  # the others have no chance in them
            if failed:
                print(done.stdout[-6000:], done.stderr[-2000:])
            print(f"seed {seed}: {app.answers.total():,} requests answered", flush=True)
            seed += 1
    worker.close()
    statuses: Counter[int] = Counter()
    for (_, status), count in app.answers.items():
        statuses[status] += count
    print(f"{app.answers.total():,} requests in {time.monotonic() - start:.0f} seconds, by status:")
    print(", ".join(f"{status}: {count:,}" for status, count in sorted(statuses.items())))
    errors = {key: count for key, count in app.answers.items() if key[1] >= 500}
    for (path, status), count in sorted(errors.items()):
        print(f"status {status} from {path}: {count}")
    return int(failed or bool(errors))


if __name__ == "__main__":
    raise SystemExit(main())
