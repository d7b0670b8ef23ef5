"""Attacks the commands and the library for some minutes, and counts what held.

Every trial runs in a process of its own, forked from this one, which has imported everything: a
process is interrupted or killed at a random time, two work in one folder, the disk is full,
threads explain at once, inputs are hostile. Afterwards the run is resumed, and its result must be
that of a run that nobody disturbed.

    python -m tools.soak --seconds 600 --seed 0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["NO_COLOR"] = "1"

import numpy as np
import torch

import wherefrom.corpus
from tests.hostile.corpus import EXPLAINED, SETTINGS, TABLES, TEXTS
from wherefrom import loading
from wherefrom.cli import run as run_cli
from wherefrom.storage.fingerprint import weights_digest

IMPORTED = (
    "matplotlib.backends.backend_agg", "matplotlib.figure", "matplotlib.image", "pyarrow.parquet",
    "wherefrom.evaluation.evaluate", "wherefrom.show.corpus", "wherefrom.show.figure",
    "wherefrom.show.report", "wherefrom.show.terminal",
)  # fmt: skip
METHODS = ("lrp", "gradient_x_input", "attention_rollout", "random")
SUBJECTS = "the film|a long plot|this cast|the second half|it".split("|")
VERBS = "is|was never|seems|turns out".split("|")
JUDGEMENTS = "good|dull and bad|a delight|not worth it|charming".split("|")
SENTENCES = [f"{s} {v} {j}" for s in SUBJECTS for v in VERBS for j in JUDGEMENTS]
CRASHED = 70  # exit code of a process that ended with a traceback
CLOSE = 1e-4  # a resumed run fills its batches differently


class Failed(Exception):
    """What should have held did not."""


def check(holds: bool, what: str) -> None:
    """Raises an error if something does not hold."""
    if not holds:
        raise Failed(what)


@dataclass
class Process:
    """A forked process that runs a function; its output goes to files."""

    number: int
    folder: Path
    code: int | None = None

    @staticmethod
    def start(function: Callable[[], Any]) -> Process:
        """Forks; the exit code is that of SystemExit, or `CRASHED` for any other exception."""
        folder = Path(tempfile.mkdtemp(prefix="soak-process-"))
        sys.stdout.flush()
        number = os.fork()
        if number:
            return Process(number, folder)
        code = CRASHED
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for stream, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), stream)
            code = _exit_code(function)
        finally:
            os._exit(code)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        if self.code is None:
            number, status = os.waitpid(self.number, os.WNOHANG)
            if number:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None

    def wait(self, seconds: float = 300.0) -> int:
        """Its exit code; it is killed if it does not end in time."""
        limit = time.monotonic() + seconds
        while self.running and time.monotonic() < limit:
            time.sleep(0.005)
        if self.running:
            self.send(signal.SIGKILL)
            os.waitpid(self.number, 0)
            raise Failed(f"did not end within {seconds:.0f} s")
        assert self.code is not None
        return self.code

    def send(self, number: signal.Signals) -> None:
        """Sends a signal if it is still running."""
        if self.running:
            os.kill(self.number, number)

    def text(self, name: str) -> str:
        """What it has written to "out" or "err"."""
        return (self.folder / name).read_text(encoding="utf-8", errors="replace")


def _exit_code(function: Callable[[], Any]) -> int:
    try:
        function()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        return CRASHED
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


@dataclass
class Soak:
    """The trials, and what they share: a model, data, and the results of undisturbed runs."""

    home: Path
    chance: random.Random
    explainer: Any = None
    data: Path = field(init=False)
    expected: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # of an undisturbed run

    def prepare(self) -> None:
        """Loads the model, writes the data and runs every command undisturbed."""
        torch.set_num_threads(1)
        for name in IMPORTED:  # once, and not by every process
            import_module(name)
        self.explainer = loading.load("sentiment")
        loading.load = lambda *args, **options: self.explainer
        explain_corpus = wherefrom.corpus.explain_corpus
        wherefrom.corpus.explain_corpus = partial(explain_corpus, window=10)
        self.data = self.home / "data.csv"
        rows = [f"{text},{i % 2}" for i, text in enumerate(SENTENCES)]
        self.data.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
        self.expected["texts"] = {
            (text, method): self.explainer(text, method).scores
            for text in SENTENCES[:8]
            for method in METHODS
        }
        self.expected["weights"] = weights_digest(self.explainer.runner.model)
        for name in ("evaluate", "corpus"):
            folder = self.home / f"reference-{name}"
            started = time.monotonic()
            process = self.command(name, folder)
            check(process.wait() == 0, f"{name} fails undisturbed: {process.text('err')}")
            self.seconds[name] = time.monotonic() - started
            self.expected[name] = self.result(name, folder)

    def command(self, name: str, out: Path, *options: str, largest: int | None = None) -> Process:
        """Starts `evaluate` or `corpus` into a folder; no file may grow beyond `largest`."""
        arguments = [name, str(self.data), "--out", str(out), *options]
        if name == "evaluate":
            arguments += ["--methods", "lrp,random", "--metrics", "activation"]

        mark = self.folder()

        def run() -> None:
            if largest is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
            mark.touch()
            run_cli(arguments)

        process = Process.start(run)
        while process.running and not mark.exists():  # no signal before the command begins
            time.sleep(0.001)
        return process

    def result(self, name: str, folder: Path) -> Any:
        """What a finished run has found."""
        if name == "evaluate":
            data = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
            check(data["complete"], "the run is not complete")
            return data["values"]
        return {file: (folder / file).read_bytes() for file in ("texts.csv", "words.csv")}

    def finish(self, name: str, folder: Path) -> None:
        """Resumes the run and compares its result with that of the undisturbed one."""
        process = self.command(name, folder, "--resume")
        check(process.wait() == 0, f"does not resume: {process.text('err')}")
        result, expected = self.result(name, folder), self.expected[name]
        if name == "corpus":
            check(result == expected, "the resumed run has another result")
        else:
            for method, values in expected.items():
                same = np.allclose(values["activation"], result[method]["activation"], atol=CLOSE)
                check(same, f"the resumed run has other values of {method}")
            parts = [json.loads(p.read_bytes()) for p in folder.glob("checkpoint/part-*.json")]
            samples = [record["sample"] for part in parts for record in part["samples"]]
            check(sorted(samples) == list(range(len(SENTENCES))), "a sample is twice or missing")
        check(not list(folder.rglob(".*.partial")), "a half written file is left")

    def ended_well(self, process: Process, *codes: int) -> None:
        """One of these exit codes, and no traceback."""
        code, error = process.wait(), process.text("err")
        check("Traceback" not in error, f"traceback: {error[-1500:]}")
        check(code in codes, f"exit code {code}: {error[-500:]}")

    def moment(self, name: str) -> float:
        """A random time within the duration of a run."""
        return self.chance.uniform(0.01, self.seconds[name])

    # The trials.

    def interrupt(self, name: str) -> None:
        """Ctrl-C at a random time, then resume."""
        folder = self.folder()
        process = self.command(name, folder)
        time.sleep(self.moment(name))
        process.send(signal.SIGINT)
        self.ended_well(process, 0, 130)
        if process.code == 130 and folder.exists():
            check("interrupted" in process.text("err"), "an interrupt is not said")
        self.finish(name, folder)

    def kill(self, name: str) -> None:
        """Kill -9 at random times, several times, then resume."""
        folder = self.folder()
        for _ in range(self.chance.randint(1, 3)):
            process = self.command(name, folder, "--resume")
            time.sleep(self.moment(name))
            process.send(signal.SIGKILL)
            self.ended_well(process, 0, -signal.SIGKILL)
        self.finish(name, folder)

    def together(self, name: str) -> None:
        """Two processes in one folder: one works, the other is refused."""
        folder = self.folder()
        first = self.command(name, folder, "--resume")
        time.sleep(self.chance.uniform(0, 0.3))
        second = self.command(name, folder, "--resume")
        for process in (first, second):
            self.ended_well(process, 0, 2)
            if process.code == 2:
                check("another run" in process.text("err"), process.text("err"))
        check(0 in (first.code, second.code), "both were refused")
        self.finish(name, folder)

    def full_disk(self, name: str) -> None:
        """No file can grow beyond a random size: said, and nothing finished is lost."""
        folder = self.folder()
        largest = int(10 ** self.chance.uniform(2.0, 5.5))
        process = self.command(name, folder, largest=largest)
        self.ended_well(process, 0, 2)
        if process.code == 2:
            check("cannot write" in process.text("err"), process.text("err"))
        self.finish(name, folder)

    def threads(self) -> None:
        """Two threads explain with one model: each gets what it would get alone.

        In this process: torch's own pool of threads does not survive a fork.
        """
        problems: list[str] = []

        def explain(seed: float) -> None:
            chance = random.Random(seed)
            try:
                for _ in range(20):
                    text, method = chance.choice(list(self.expected["texts"]))
                    scores = self.explainer(text, method).scores
                    if not np.allclose(scores, self.expected["texts"][text, method], atol=CLOSE):
                        problems.append(f"{method} differs for {text!r}")
            except Exception:
                problems.append(traceback.format_exc())

        seeds = [self.chance.random() for _ in range(2)]
        workers = [threading.Thread(target=explain, args=(seed,)) for seed in seeds]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.check_model()
        check(not problems, "; ".join(problems))

    def cancel(self) -> None:
        """Calls of the library interrupted at random times leave the model as it was."""
        chance = random.Random(self.chance.random())

        def run() -> None:
            def stop(*_: Any) -> None:
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, stop)
            for _ in range(25):
                text, method = chance.choice(list(self.expected["texts"]))
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.05))
                    self.explainer(text, method)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.check_model()
            for (text, method), scores in self.expected["texts"].items():
                same = np.allclose(self.explainer(text, method).scores, scores, atol=CLOSE)
                check(same, f"{method} differs for {text!r} after an interrupt")

        self.ended_well(Process.start(run), 0)

    def hostile(self) -> None:
        """A hostile input is explained, or refused in one line with exit code 2."""
        kind = self.chance.choice(("text", "table", "setting"))
        if kind == "text":
            text, error = self.chance.choice(list(TEXTS.values()))
            arguments = ["explain", "--", text]
        elif kind == "setting":
            method, setting, error = self.chance.choice(list(SETTINGS.values()))
            arguments = ["explain", "a good film", "--method", method, "--set", setting]
        else:
            table = self.chance.choice([t for t in TABLES.values() if t.error != EXPLAINED])
            folder, error = self.folder(), table.error
            folder.mkdir()
            (folder / table.name).write_bytes(table.content)
            arguments = ["evaluate", str(folder / table.name), "--out", str(folder / "out")]
        process = Process.start(lambda: run_cli(arguments))
        self.ended_well(process, 0 if error == EXPLAINED else 2)
        check(error in process.text("err"), f"{error!r} is not said: {process.text('err')}")
        check("\x1b" not in process.text("out"), "an escape reaches the terminal")

    def check_model(self) -> None:
        """The weights, modes and hooks of the model are as they were."""
        model = self.explainer.runner.model
        check(weights_digest(model) == self.expected["weights"], "the weights have changed")
        check(not any(module.training for module in model.modules()), "the mode has changed")
        hooks = [
            name
            for name, module in model.named_modules()
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        ]
        check(not hooks, f"hooks are left on {hooks[:3]}")

    def folder(self) -> Path:
        """A path for a new folder."""
        return self.home / f"trial-{self.chance.getrandbits(48):012x}"

    def trials(self) -> dict[str, Callable[[], None]]:
        """All trials by name."""
        return {
            "threads explain at once": self.threads,
            "library calls interrupted": self.cancel,
            "hostile inputs": self.hostile,
            **{
                f"{name}: {words}": partial(trial, name)
                for words, trial in (
                    ("Ctrl-C, resumed", self.interrupt),
                    ("kill -9, resumed", self.kill),
                    ("two in one folder", self.together),
                    ("full disk, resumed", self.full_disk),
                )
                for name in ("evaluate", "corpus")
            },
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs trials in turn until the time is over; 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long; default 600")
    parser.add_argument("--seed", type=int, default=0, help="of all random times and choices")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="soak-") as home:
        tempfile.tempdir = home  # of the processes too
        soak = Soak(Path(home), random.Random(options.seed))
        soak.prepare()
        tried, failures = _run(soak, options.seconds)
        tempfile.tempdir = None
    width = max(map(len, tried))
    print(f"{'trial'.ljust(width)}  tried   held  failed")
    for name, count in tried.items():
        failed = len(failures[name])
        print(f"{name.ljust(width)}  {count:5}  {count - failed:5}  {failed:6}")
    total, failed = sum(tried.values()), sum(map(len, failures.values()))
    print(f"{'all'.ljust(width)}  {total:5}  {total - failed:5}  {failed:6}")
    return 1 if failed or not total else 0


def _run(soak: Soak, seconds: float) -> tuple[dict[str, int], dict[str, list[str]]]:
    trials = soak.trials()
    tried, failures = dict.fromkeys(trials, 0), {name: list[str]() for name in trials}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, trial in trials.items():
            if time.monotonic() >= end:
                break
            tried[name] += 1
            try:
                trial()
            except Failed as failure:
                failures[name].append(str(failure))
                print(f"FAILED {name}: {failure}", file=sys.stderr, flush=True)
            for path in (*soak.home.glob("trial-*"), *soak.home.glob("soak-process-*")):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
    return tried, failures


if __name__ == "__main__":
    sys.exit(main())
