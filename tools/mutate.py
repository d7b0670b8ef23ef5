"""Mutation tests: plants small faults in the source and counts those that no test notices.

    make mutate                                  # 200 mutants, seed 0, 2 workers; resumes
    python -m tools.mutate --sample 30 --only audits corpus/names.py
    python -m tools.mutate --id 3f2a…            # one mutant again, with the output of its tests
    python -m tools.mutate --report              # the summary of what has been run so far

A mutant is one fault in one line (`tools/mutants.py` has the kinds). Mutants run in copies of the
project under a temporary folder, never in the working tree, each against the tests that call its
function, until one fails; outside functions, against those that call any of its class or file.

Before that, each test file runs once without a fault. This records the functions that each test
calls, also in the processes that it starts (`tools/calls.py`), and its time. What fixtures call
counts for all tests of the file. Tests that fail are left out, with a warning. A mutant runs
`--budget` seconds of tests: those of its package first, and the quick ones. Times are of the
processor, so a busy machine changes no result: a test times out when it takes `--limit` seconds
more than without the fault, or does nothing for ten times as long.

**Results** are lines of JSON in `build/mutants.jsonl`, appended as they come. A run that was
stopped goes on where it was. A mutant runs again if its file changed, and one that survived also if
its tests changed. The sample is the N mutants with the smallest hash of seed and id, so it hardly
changes when code does, and a larger N adds to it.

**Reading the summary** (also in `build/mutants.txt`):

- *killed*: a test failed, as it should. *timed out*: the tests ran into the limit, usually an
  endless loop; counts as noticed.
- *survived*: all tests passed: a test is missing, or the fault changes nothing that can be seen.
  In the first case write the test. In the second, enter the mutant in `tools/mutants_accepted.json`
  with its id and a reason; these are counted apart. An entry whose line has changed is reported as
  stale.
- *error*: no test was run; look at it with `--id`.

The exit code is 1 if a mutant survived that is not accepted.

**Why not mutmut or cosmic-ray.** mutmut 3 mutates only the bodies of functions, not tables at
module level, wraps each function (the library reads signatures), and runs the whole suite before it
starts. cosmic-ray edits the working tree and has one test command for all mutants. Both run every
mutant: here about 35,000, of seconds each on two cores. This script samples, picks the tests,
and forks each run from a process that has imported torch already.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, to serve: `tools` is not on the path
    sys.path[0] = str(Path(__file__).resolve().parents[1])
from tools import calls
from tools.mutants import Mutant, mutants

_PYTEST = (
    "-q", "--tb=line", "-rfE", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist",
    "-m", "not slow and not browser and not llm and not ray",
    "--assert=plain",  # quicker to collect
)  # fmt: skip
_NOT_COPIED = shutil.ignore_patterns(
    ".*", "__pycache__", "build", "dist", "*.egg-info", "node_modules"
)
_NO_TESTS = 5  # pytest's exit code
_LOCAL = re.compile(r"(\.<locals>)?\.?<(?!locals>).*")  # lambdas, comprehensions, modules


@dataclass(frozen=True)
class Project:
    """A source tree with tests, and how its modules are matched with them."""

    root: Path
    name: str = "wherefrom"
    preload: Sequence[str] = (
        "torch", "hypothesis",
        *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "t5", "vit")),
    )  # fmt: skip

    def files(self) -> list[str]:
        """The source files to mutate, relative to the root."""
        return self._found("src", "*.py")

    def tests(self) -> list[str]:
        """The test files, and the source files with doctests."""
        tests = [test for test in self._found("tests", "test_*.py") if "tests/tools/" not in test]
        return [*(path for path in self.files() if ">>> " in self.read(path)), *tests]

    def _found(self, folder: str, pattern: str) -> list[str]:
        paths = (self.root / folder).rglob(pattern)
        return sorted(path.relative_to(self.root).as_posix() for path in paths)

    def read(self, path: str) -> str:
        """The text of a file."""
        return (self.root / path).read_text(encoding="utf-8")

    def digest(self, paths: Iterable[str]) -> str:
        """A hash of the content of some files."""
        total = hashlib.sha256()
        for path in paths:
            if (self.root / path).is_file():
                total.update(path.encode() + (self.root / path).read_bytes())
        return total.hexdigest()[:12]


def sample(project: Project, count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants, drawn by hash; `only` names packages or files."""
    candidates = []
    for path in project.files():
        short = path.split("/", 2)[2]
        if not only or any(short == name or short.startswith(f"{name}/") for name in only):
            candidates += mutants(path, project.read(path))

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.id}".encode()).digest()

    drawn: list[Mutant] = []
    for mutant in sorted(candidates, key=rank):
        if len(drawn) == count:
            break
        if mutant.valid(project.read(mutant.path)):
            drawn.append(mutant)
    return sorted(drawn, key=lambda mutant: (mutant.path, mutant.line, mutant.start, mutant.new))


# Results.


@dataclass
class Results:
    """A file with a line of JSON for each result; the last of a key counts."""

    path: Path
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:  # the last line of a run that was killed
                    continue
                self.entries[entry["id"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        """Appends one."""
        with self._lock:
            self.entries[entry["id"]] = entry
            self.path.parent.mkdir(parents=True, exist_ok=True)
            broken = _lacks_newline(self.path)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(("\n" if broken else "") + json.dumps(entry, ensure_ascii=False) + "\n")

    def known(self, key: str, source: str, tests: str) -> dict[str, Any] | None:
        """A result that still holds: killed stays killed until the source changes."""
        entry = self.entries.get(key)
        if entry is None or entry["source"] != source or entry["status"] == "error":
            return None
        return entry if entry["status"] == "killed" or entry["tests"] == tests else None


def _lacks_newline(path: Path) -> bool:
    """Whether a file ends within a line, as one of a run that was killed may."""
    text = path.read_bytes() if path.exists() else b""
    return bool(text) and not text.endswith(b"\n")


# Running. A server is a process with a copy of the project that forks a child for each run.


class Server:
    """A copy of the project and a process that runs its tests."""

    def __init__(self, project: Project, folder: Path) -> None:
        shutil.copytree(project.root, folder, ignore=_NOT_COPIED)
        shutil.copy(calls.__file__, folder / "src" / "sitecustomize.py")
        env = {
            **os.environ,
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # a mutant of the same size and second is no other
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(folder)]
        command += ["--name", project.name, "--preload", ",".join(project.preload)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=env,
            start_new_session=True,  # Ctrl-C is for the process that counts the results
        )

    def run(self, tests: Sequence[str], **request: Any) -> dict[str, Any]:
        """Runs tests; see `serve` for what else a request may hold."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"tests": list(tests), **request}) + "\n")
        self.process.stdin.flush()
        reply = self.process.stdout.readline()
        if not reply:
            raise RuntimeError("the process that runs the tests has ended")
        result: dict[str, Any] = json.loads(reply)
        return result

    def close(self) -> None:
        """Ends the process, and the run that it may be in."""
        with self.process:  # closes its streams and waits
            self.process.terminate()


def serve(folder: Path, name: str, preload: Sequence[str]) -> None:
    """Answers requests on standard input until it is closed.

    A request has `tests`, files or ids; `limit`, the seconds for each; `path` and `text`, another
    text for a file; `record`, whether to record what the tests call.
    """
    for module in preload:
        if module and find_spec(module) is not None:
            __import__(module)
    import pytest  # noqa: F401, imported before the fork

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    children: list[int] = []

    def end(*_: object) -> None:
        for pid in children:
            os.killpg(pid, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, end)
    for line in sys.stdin:
        request = json.loads(line)
        path = folder / request["path"] if "path" in request else None
        original = path.read_bytes() if path else b""
        try:
            if path:
                path.write_text(request["text"], encoding="utf-8")
            reply = _forked(folder, name, request, children)
        finally:
            if path:
                path.write_bytes(original)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _forked(
    folder: Path, name: str, request: dict[str, Any], children: list[int]
) -> dict[str, Any]:
    output, recorded = folder / ".mutant_output", folder / ".mutant_tests"
    recorded.write_text("{}", encoding="utf-8")
    output.write_bytes(b"")
    pid = os.fork()
    if pid == 0:
        _child(folder, name, request, output)
    children.append(pid)
    status = None
    # the limit of the processor does not end a test that waits for ever
    while status is None and time.time() - output.stat().st_mtime < 10 * request["limit"]:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # it, and what it started
    if status is None:
        os.waitpid(pid, 0)
    children.remove(pid)
    text = output.read_text(encoding="utf-8", errors="replace")
    tests = json.loads(recorded.read_text(encoding="utf-8"))
    return {"code": status, "output": text[-20000:], "tests": tests}


def _child(folder: Path, name: str, request: dict[str, Any], output: Path) -> None:
    """Runs pytest in a process of its own; never returns."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the server's handler is not the tests'
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.path[0] = str(folder)
        spec = find_spec(name)
        if spec is None or not str(spec.origin).startswith(str(folder)):
            print(f"{name} is not imported from the copy: {spec and spec.origin}")
            os._exit(_NO_TESTS)
        import pytest

        seed = ("--hypothesis-seed=0",) if "hypothesis" in sys.modules else ()
        files = list(dict.fromkeys(test.partition("::")[0] for test in request["tests"]))
        plugin = _Plugin(folder, request, output)
        options = [*_PYTEST, *(() if request.get("record") else ("-x",)), *seed]
        code = int(pytest.main([*options, f"--rootdir={folder}", *files], [plugin]))
        sys.stdout.flush()
    except BaseException as error:
        print(repr(error), flush=True)
    finally:
        os._exit(code)


class _Plugin:
    """Chooses the tests, limits their time, and records how long they take and what they call."""

    def __init__(self, folder: Path, request: dict[str, Any], output: Path) -> None:
        self.request, self.output, self.file = request, output, folder / ".mutant_tests"
        self.names = folder / ".mutant_calls"
        self.tests: dict[str, dict[str, Any]] = {}
        self.fixtures: set[str] = set()
        self.pytest_runtest_logstart("", None)
        if request.get("record"):
            self.names.write_bytes(b"")
            source = folder.as_posix() + "/"
            os.environ[calls.VARIABLE] = os.pathsep.join((source, str(self.names)))
            calls.start()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        ranks = {test: rank for rank, test in enumerate(self.request["tests"]) if "::" in test}
        if ranks:
            items[:] = sorted(
                (item for item in items if item.nodeid in ranks), key=lambda i: ranks[i.nodeid]
            )

    def pytest_collection_finish(self) -> None:
        if self.request.get("record"):
            self._called()  # imports are no part of a test

    def pytest_runtest_logstart(self, nodeid: str, location: object) -> None:
        self.output.touch()
        self.started = _processor_seconds()
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        soft = int(time.process_time() + self.request["limit"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not self.request.get("record"):
            return
        called = self._called()
        test = self.tests.setdefault(report.nodeid, {"passed": True, "calls": set()})
        test["passed"] &= report.outcome == "passed"
        test["seconds"] = round(_processor_seconds() - self.started, 3)
        (test["calls"] if report.when == "call" else self.fixtures).update(called)

    def _called(self) -> set[str]:
        """The functions called since the last time."""
        called = set(self.names.read_text(encoding="utf-8").splitlines())
        self.names.write_bytes(b"")
        calls.start()
        return called

    def pytest_sessionfinish(self) -> None:
        for test in self.tests.values():
            test["calls"] = sorted({_LOCAL.sub("", name) for name in test["calls"] | self.fixtures})
        self.file.write_text(json.dumps(self.tests), encoding="utf-8")


def _processor_seconds() -> float:
    """The time of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


# The run.


@dataclass
class Run:
    """A sample of mutants against their tests, on several servers at once."""

    project: Project
    results: Results
    folder: Path  # for the copies
    workers: int = 2
    limit: float = 60
    budget: float = 60
    recorded: dict[str, tuple[float, set[str]]] = field(default_factory=dict)  # seconds, calls
    left_out: set[str] = field(default_factory=set)

    def all(self, drawn: Sequence[Mutant]) -> None:
        """Runs every mutant whose result is not known yet."""
        with self._servers() as servers:
            self._record(servers)
            tests = {mutant.id: self._tests_of(mutant) for mutant in drawn}
            needed = [m for m in drawn if self._known(m, tests[m.id]) is None]
            print(f"{len(drawn)} mutants, {len(needed)} to run", file=sys.stderr)
            self._parallel(servers, needed, lambda server, m: self._run(server, m, tests[m.id]))

    def _record(self, servers: Sequence[Server]) -> None:
        """Each test file once without a fault: what its tests call, and how long they take."""

        def record(server: Server, path: str) -> str:
            reply = server.run([path], limit=1800, record=True)
            tests = reply["tests"]
            called = {name for test in tests.values() for name in test["calls"]}
            sources = sorted({name.partition(":")[0] for name in called})
            source = self.project.digest([path, *sources])
            self.results.add({"id": path, "source": source, "sources": sources, "seen": tests})
            if not tests and reply["code"] != _NO_TESTS:
                print(f"LEFT OUT: {path} gives no result:\n{reply['output']}", file=sys.stderr)
            return f"{sum(t['seconds'] for t in tests.values()):6.1f} s  {path} without a fault"

        files = self.project.tests()
        self._parallel(servers, [path for path in files if not self._recorded(path)], record)
        for path in files:
            for test, seen in self.results.entries[path]["seen"].items():
                if seen["passed"]:
                    self.recorded[test] = (seen["seconds"], set(seen["calls"]))
                else:
                    self.left_out.add(test)
        if not self.recorded:
            raise SystemExit("no test passes without a fault: there is nothing to compare.")

    def _recorded(self, path: str) -> bool:
        entry = self.results.entries.get(path, {"sources": [], "source": ""})
        return entry["source"] == self.project.digest([path, *entry["sources"]])

    def _tests_of(self, mutant: Mutant) -> list[list[str]]:
        """The tests that call a mutant's function, by file; first its package's, then quick ones.

        Outside functions, or in one that no test calls: those that call any function around it.
        """
        folder = mutant.path.rpartition("/")[0] + "/"
        for place in (f"{mutant.path}:{mutant.scope}", f"{mutant.path}:", folder):
            tests = [test for test, (_, names) in self.recorded.items() if _calls(names, place)]
            if tests:
                break
        parts = Path(mutant.path).parts
        named = f"/test_{Path(mutant.path).stem}.py"

        def rank(test: str) -> tuple[bool, float]:
            file = test.partition("::")[0]
            near = file == mutant.path or file.endswith(named) or file.split("/")[1] in parts[2:-1]
            return not near, self.recorded[test][0]

        total = 0.0
        files: dict[str, list[str]] = {}
        for test in sorted(tests, key=rank):
            total += self.recorded[test][0]
            if total > self.budget and files:
                break
            files.setdefault(test.partition("::")[0], []).append(test)
        return sorted(files.values(), key=lambda file: (rank(file[0])[0], self._seconds(file)))

    def _seconds(self, tests: Sequence[str]) -> float:
        return sum(self.recorded[test][0] for test in tests)

    def _known(self, mutant: Mutant, files: Sequence[Sequence[str]]) -> dict[str, Any] | None:
        source = self.project.digest([mutant.path])
        return self.results.known(mutant.id, source, self._tests_digest(files))

    def _tests_digest(self, files: Sequence[Sequence[str]]) -> str:
        return self.project.digest(tests[0].partition("::")[0] for tests in files)

    def _run(self, server: Server, mutant: Mutant, files: Sequence[Sequence[str]]) -> str:
        source = self.project.read(mutant.path)
        text = mutant.applied(source)
        started = time.perf_counter()
        for part in (files[:4], files[4:]):
            tests = [test for file in part for test in file]
            if tests:
                limit = self.limit + max(self.recorded[test][0] for test in tests)
                reply = server.run(tests, limit=limit, path=mutant.path, text=text)
                if reply["code"] != 0:
                    break
        status = _status(reply["code"])
        seconds = round(time.perf_counter() - started, 1)
        self.results.add(
            {
                "id": mutant.id,
                "source": self.project.digest([mutant.path]),
                "tests": self._tests_digest(files),
                "status": status,
                "seconds": seconds,
                "path": mutant.path,
                "line": mutant.line,
                "operator": mutant.operator,
                "diff": mutant.diff(source),
                "by": _failed_test(reply["output"]) if status == "killed" else None,
            }
        )
        place = f"{mutant.path.split('/', 2)[2]}:{mutant.line}"
        return f"{status:9} {seconds:6.1f} s  {place}  {mutant.old!r} → {mutant.new!r}"

    def _parallel(self, servers: Sequence[Server], jobs: Sequence[Any], act: Any) -> None:
        """Shares jobs among the servers and prints each result with the time left."""
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        reports: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()

        def work(server: Server) -> None:
            try:
                while True:
                    reports.put(act(server, waiting.get_nowait()))
            except queue.Empty:
                reports.put(None)
            except BaseException as error:
                reports.put(error)

        threads = [threading.Thread(target=work, args=(s,), daemon=True) for s in servers]
        for thread in threads:
            thread.start()
        started, done, busy = time.perf_counter(), 0, len(threads)
        while busy:
            report = reports.get()
            if isinstance(report, BaseException):
                raise report
            if report is None:
                busy -= 1
                continue
            done += 1
            left = (time.perf_counter() - started) / done * (len(jobs) - done)
            print(
                f"[{done:4}/{len(jobs)}] {report}   {timedelta(seconds=round(left))} left",
                file=sys.stderr,
                flush=True,
            )

    @contextmanager
    def _servers(self) -> Iterator[list[Server]]:
        servers: list[Server] = []
        try:
            for number in range(self.workers):
                servers.append(Server(self.project, self.folder / f"copy{number}"))
            yield servers
        finally:
            for server in servers:
                server.close()

    def single(self, mutant: Mutant) -> str:
        """The output of one mutant's tests."""
        with self._servers() as (server, *_):
            self._record([server])
            text = mutant.applied(self.project.read(mutant.path))
            tests = [test for file in self._tests_of(mutant) for test in file]
            return str(server.run(tests, limit=self.limit, path=mutant.path, text=text)["output"])


def _calls(names: set[str], place: str) -> bool:
    """Whether a function is among those called, or one of a class, file or folder."""
    if place.endswith((".", ":", "/")):
        return any(name.startswith(place) for name in names)
    return place in names


def _status(code: int | None) -> str:
    """What an exit code of pytest says; of a source that cannot be imported it may be any."""
    known = {None: "timed out", -signal.SIGXCPU: "timed out", 0: "survived", _NO_TESTS: "error"}
    return known.get(code, "killed")


def _failed_test(output: str) -> str | None:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" - ")[0].split(" ", 1)[1]
    last = [line for line in output.splitlines() if line.strip()]
    return last[-1][:200] if last else None


# The summary.


def summary(
    drawn: Sequence[Mutant], results: Results, accepted: Sequence[dict[str, str]], every: set[str]
) -> tuple[str, int]:
    """The counts by package and the survivors, and how many of these are not accepted."""
    reasons = {entry["id"]: entry["reason"] for entry in accepted}
    counts: dict[str, Counter[str]] = {}
    listed: dict[str, list[str]] = {"survived": [], "accepted": [], "timed out": [], "error": []}
    for mutant in drawn:
        entry = results.entries.get(mutant.id)
        status = "not run" if entry is None else entry["status"]
        if status == "survived" and mutant.id in reasons:
            status = "accepted"
        counts.setdefault(mutant.package, Counter())[status] += 1
        if entry is not None and status in listed:
            lines = [f"{mutant.id}  {mutant.path}:{mutant.line}  ({mutant.operator})"]
            lines += entry["diff"].splitlines()
            lines += [f"reason: {reasons[mutant.id]}"] if status == "accepted" else []
            listed[status].append("\n    ".join(lines))
    columns = ("killed", "survived", "timed out", "accepted", "error", "not run")
    rows = [f"{'package':12}" + "".join(f"{column:>11}" for column in columns) + f"{'noticed':>11}"]
    for package, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        noticed = count["killed"] + count["timed out"]
        judged = noticed + count["survived"]
        share = f"{100 * noticed / judged:.0f} %" if judged else "–"
        cells = "".join(f"{count[column]:>11}" for column in columns)
        rows.append(f"{package:12}{cells}{share:>11}")
    parts = ["\n".join(rows)]
    for status, blocks in listed.items():
        if blocks:
            parts.append(f"{status.capitalize()}:\n  " + "\n  ".join(blocks))
    stale = [entry for entry in accepted if entry["id"] not in every]
    if stale:
        names = "\n  ".join(f"{entry['id']}  {entry['file']}  {entry['line']}" for entry in stale)
        parts.append(f"Accepted, but no longer in the source:\n  {names}")
    return "\n\n".join(parts) + "\n", len(listed["survived"])


def main(arguments: Sequence[str] | None = None, project: Project | None = None) -> int:
    """The command line."""
    home = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sample", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--only", nargs="*", default=[], help="packages or files in them")
    parser.add_argument("--workers", type=int, default=2, help="runs at the same time")
    parser.add_argument("--limit", type=float, default=60, help="more seconds for a test")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--results", type=Path, default=Path("build/mutants.jsonl"))
    parser.add_argument("--accepted", type=Path, default=home / "tools/mutants_accepted.json")
    parser.add_argument("--report", action="store_true", help="print the summary, run nothing")
    parser.add_argument("--id", help="run one mutant and print the output of its tests")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--name", default="wherefrom", help=argparse.SUPPRESS)
    parser.add_argument("--preload", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve, options.name, options.preload.split(","))
        return 0
    with _folder() as folder:
        # what is edited during a run is not a part of it
        copy = folder / "project"
        shutil.copytree((project or Project(home)).root, copy, ignore=_NOT_COPIED)
        return _run(replace(project or Project(home), root=copy), options, folder)


def _run(project: Project, options: argparse.Namespace, folder: Path) -> int:
    results = Results(options.results)
    run = Run(project, results, folder, options.workers, options.limit, options.budget)
    if options.id:
        run.workers = 1
        (mutant,) = [m for m in _every(project) if m.id.startswith(options.id)]
        print(mutant.diff(project.read(mutant.path)), run.single(mutant), sep="\n")
        return 0
    drawn = sample(project, options.sample, options.seed, options.only)
    accepted = json.loads(options.accepted.read_text(encoding="utf-8"))
    interrupted = False
    if not options.report:
        try:
            run.all(drawn)
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted: run again to go on", file=sys.stderr)
    text, survivors = summary(drawn, results, accepted, {m.id for m in _every(project)})
    if run.left_out:
        text += "\nTests left out, as they fail or are skipped without a fault:\n  "
        text += "\n  ".join(sorted(run.left_out)) + "\n"
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.with_suffix(".txt").write_text(text, encoding="utf-8")
    print(text)
    return 130 if interrupted else int(survivors > 0)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


def _every(project: Project) -> list[Mutant]:
    return [m for path in project.files() for m in mutants(path, project.read(path))]


if __name__ == "__main__":
    sys.exit(main())
