"""Kills workers, nodes and drivers of `wherefrom run` on a real Ray cluster, and looks at the rest.

    python -m tools.ray_soak --kills 20 --seed 0

The cluster has several nodes on this machine. Kills are SIGKILL, at random moments. A killed driver
is started again with --resume. When a run is through, its rows must be those of a local run that
nobody has disturbed, each id once; then the next run starts, until there were enough kills.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

WORDS = "the a film movie is was good bad great dull and not of plot cast".split()
NODES = 3  # those that work; the head only coordinates
STORE = 100_000_000  # bytes of a node's object store
KINDS = ("worker", "node", "driver")


def write_data(folder: Path, rows: int, chance: random.Random) -> Path:
    """Two files of short texts, with rows that cannot be explained here and there."""
    data = folder / "data"
    data.mkdir()
    bad = ["", "good " * 700, None, 3.5]
    for number in range(2):
        texts: list[Any] = [" ".join(chance.choices(WORDS, k=4)) for _ in range(rows // 2)]
        for place in chance.sample(range(len(texts)), 10):
            texts[place] = chance.choice(bad)
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (data / f"{number}.jsonl").write_text(lines, encoding="utf-8")
    return data


class Trial:
    """A cluster, and runs on it that are killed."""

    def __init__(self, home: Path, seed: int, rows: int, part_rows: int, nodes: int) -> None:
        # Ray runs its workers at niceness 15: beside other work they would hardly run
        os.environ.setdefault("RAY_worker_niceness", "0")
        from ray.cluster_utils import Cluster

        self.home, self.chance, self.part_rows = home, random.Random(seed), part_rows
        self.data = write_data(home, rows, self.chance)
        self.kills: Counter[str] = Counter()
        self.runs = 0
        self.next_kinds: list[str] = []
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self._add_node() for _ in range(nodes)]

    def _add_node(self) -> Any:
        return self.cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def close(self) -> None:
        """Ends all processes of the cluster."""
        self.cluster.shutdown()

    def start(self, out: Path, resume: bool, engine: str = "ray") -> subprocess.Popen[bytes]:
        """A driver, as a process of its own."""
        command = [
            sys.executable, "-m", "wherefrom", "run", str(self.data), "--out", str(out),
            "--part-rows", str(self.part_rows),
            "--engine", engine, *(["--resume"] if resume else []),
        ]  # fmt: skip
        if engine == "ray":
            command += ["--address", self.cluster.address, "--workers", "2"]
        log = (self.home / "driver.log").open("ab")
        return subprocess.Popen(command, stdout=log, stderr=log, env=_environment())

    def run_once(self, kills: int, longest_wait: float) -> None:
        """One run with up to so many kills, compared with the local one."""
        out = self.home / f"out-{self.runs}"
        driver = self.start(out, resume=False)
        self._await_first_part(out, driver)
        while kills and driver.poll() is None:
            time.sleep(self.chance.uniform(0, longest_wait))
            self.next_kinds = self.next_kinds or self.chance.sample(KINDS, len(KINDS))
            kind = self.next_kinds[-1]
            if driver.poll() is None and self._kill(kind, driver):
                self.next_kinds.pop()
                kills -= 1
                print(f"killed a {kind} ({_parts(out)} parts are finished)", flush=True)
                if kind == "driver":
                    driver = self.start(out, resume=True)
        code = driver.wait()
        log = (self.home / "driver.log").read_text()
        check(code == 1, f"the driver ended with {code}, not 1 for rejected rows: {log}")
        self.runs += 1
        compare(self.home / "local", out)
        print(f"run {self.runs}: rows and ids are those of the local run", flush=True)

    def _await_first_part(self, out: Path, driver: subprocess.Popen[bytes]) -> None:
        while driver.poll() is None and not _parts(out):
            time.sleep(0.2)

    def _kill(self, kind: str, driver: subprocess.Popen[bytes]) -> bool:
        if kind == "driver":
            driver.kill()
            driver.wait()
        elif kind == "node":
            node = self.nodes.pop(self.chance.randrange(len(self.nodes)))
            self.cluster.remove_node(node, allow_graceful=False)
            self.nodes.append(self._add_node())
        else:
            workers = _workers(self.nodes)
            if not workers:
                return False
            os.kill(self.chance.choice(workers), signal.SIGKILL)
        self.kills[kind] += 1
        return True


def _parts(out: Path) -> int:
    return len(list((out / "checkpoint").glob("part-*.json")))


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _workers(nodes: list[Any]) -> list[int]:
    """The processes in which actors of this cluster work."""
    raylets = {
        info.process.pid
        for node in nodes
        for kind, several in node.all_processes.items()
        if kind == "raylet"
        for info in several
    }
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            name = (folder / "cmdline").read_bytes()
        except (OSError, ValueError, IndexError):
            continue
        if parent in raylets and name.startswith(b"ray::MapWorker"):
            found.append(int(folder.name))
    return found


def compare(expected: Path, actual: Path) -> None:
    """Two results have the same rows, in any order; each id once."""
    for name in ("results", "rejected"):
        one, other = (_rows(folder / f"{name}.parquet") for folder in (expected, actual))
        check(one.keys() == other.keys(), f"{name}: other ids")
        for key, row in one.items():
            for column, value in row.items():
                check(_same(value, other[key][column]), f"{name}, {key}: another {column}")


def _rows(folder: Path) -> dict[str, dict[str, Any]]:
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(folder).to_pylist()
    by_id = {row["id"]: row for row in rows}
    check(len(by_id) == len(rows), f"{folder} has an id twice")
    return by_id


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 1e-6
    if isinstance(one, list) and one and isinstance(one[0], float):
        return len(one) == len(other) and bool(np.allclose(one, other, rtol=0, atol=1e-6))
    return bool(one == other)


def check(holds: bool, what: str) -> None:
    """Ends the trial if something does not hold."""
    if not holds:
        raise SystemExit(f"FAILED: {what}")


def soak(
    kills: int, seed: int, rows: int = 3000, part_rows: int = 32, wait: float = 8.0,
    a_run: int = 10, nodes: int = NODES,
) -> Counter[str]:  # fmt: skip
    """So many kills, up to `a_run` of them in one run; the numbers of each kind."""
    with tempfile.TemporaryDirectory(prefix="ray-soak-") as folder:
        trial = Trial(Path(folder), seed, rows, part_rows, nodes)
        try:
            check(trial.start(trial.home / "local", False, "local").wait() == 1, "the local run")
            while trial.kills.total() < kills:
                trial.run_once(min(a_run, kills - trial.kills.total()), wait)
        finally:
            trial.close()
        return trial.kills


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=3000)
    options = parser.parse_args()
    begin = time.monotonic()
    counts = soak(options.kills, options.seed, options.rows)
    print(f"{dict(counts)} killed in {time.monotonic() - begin:.0f} s: nothing lost, nothing twice")
