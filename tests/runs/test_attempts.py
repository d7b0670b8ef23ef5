"""A row that ends its process is found and given up; rows that were near it are not."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import wherefrom
from tests.corpus import planted
from tests.runs.crashing import POISONED, TEXTS
from wherefrom.runs.crash_isolation import REASON, Attempts
from wherefrom.storage.arrow import Folder
from wherefrom.storage.store import Store

parquet = pytest.importorskip("pyarrow.parquet")


def test_a_run_that_a_row_kills_ends_after_some_resumes_without_that_row(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.crashing", str(tmp_path)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # of `run` two parts with one such row each: twice all rows, a group, twice the row alone;
    # of `corpus` one part with both: its other row is found in another group
    assert done.stdout.splitlines()[-2:] == [f"run {2 * (2 + 1 + 2)}", f"corpus {2 + 2 * (1 + 2)}"]
    check_rows(tmp_path / "run", tmp_path / "whole")
    assert not list(tmp_path.rglob("attempts-*"))


def check_rows(out, whole):
    """All rows but the poisoned ones are those of a model that ends no process."""
    wherefrom.run(planted.explainer(0, 0.0), TEXTS, whole, part_rows=18)
    rejected = parquet.read_table(out / "rejected.parquet").to_pylist()
    assert [(row["id"], row["text"], row["reason"]) for row in rejected] == [
        (str(number), TEXTS[number], REASON) for number in POISONED
    ]
    rows = {row["id"]: row for row in parquet.read_table(out / "results.parquet").to_pylist()}
    expected = parquet.read_table(whole / "results.parquet").to_pylist()
    assert rows.keys() == {row["id"] for row in expected} - {row["id"] for row in rejected}
    for row in expected:
        if row["id"] in rows:
            assert rows[row["id"]]["scores"] == pytest.approx(row["scores"], abs=1e-5)
            assert rows[row["id"]]["tokens"] == row["tokens"]


class Died(Exception):
    """Stands for the end of a process: what it has noted until then stays on the disk."""


def attempt(store, size, poisoned, lost):
    """One process that works on a part: what it gives, or what was in work when it died."""
    note = Path(store.folder.path) / "checkpoint" / "attempts-part.json"

    def work(rows):
        dead = lost() or any(rows.start <= row < rows.stop for row in poisoned)
        if dead:
            raise Died(rows, note.read_bytes())
        return list(range(rows.start, rows.stop))

    try:
        return list(Attempts.at(store, "part").results(size, work))
    except Died as end:
        rows, content = end.args
        note.write_bytes(content)
        return rows


@pytest.mark.parametrize("size", [1, 2, 3, 10, 400])
def test_only_rows_that_died_alone_twice_are_given_up(tmp_path, size):
    chance = random.Random(size)
    for trial in range(20):
        poisoned = chance.sample(range(size), min(size, chance.randrange(3)))
        share = chance.choice([0, 0.05, 0.5])  # of works in which a healthy machine is lost
        store = Store(Folder.at(tmp_path / str(trial)))
        alone = dict.fromkeys(range(size), 0)
        for number in range(2000):
            lost_machine = number < 40 and chance.random() < share
            countdown = chance.randrange(size + 1) if lost_machine else -1

            def lost(left=[countdown]):  # noqa: B006
                left[0] -= 1
                return left[0] == -1

            result = attempt(store, size, poisoned, lost)
            if isinstance(result, list):
                break
            if result.stop - result.start == 1:
                alone[result.start] += 1
        given_up = [rows.start for rows, value in result if value == REASON]
        assert given_up == [row for row, deaths in alone.items() if deaths >= 2]
        assert set(poisoned) <= set(given_up)
        done = [row for _, value in result if value != REASON for row in value]
        assert sorted(done + given_up) == list(range(size))
        if share == 0:
            assert set(given_up) == set(poisoned)


def test_an_error_is_no_death(tmp_path):
    store = Store(Folder.at(tmp_path))

    def fail(rows):
        raise KeyboardInterrupt

    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            list(Attempts.at(store, "part").results(9, fail))
    assert list(Attempts.at(store, "part").results(9, lambda rows: 1)) == [(slice(0, 9), 1)]


def test_notes_of_another_run_or_damaged_ones_count_for_nothing(tmp_path):
    store = Store(Folder.at(tmp_path))
    store.note_attempts("part", {"0-9": 7})
    assert store.attempts("part") == {"0-9": 7}
    assert Store(store.folder, {"data": "other"}).attempts("part") == {}
    store.folder.write("checkpoint/attempts-part.json", b"{half")
    assert store.attempts("part") == {}
    store.add("part", [], {})
    assert not list(tmp_path.rglob("attempts-*"))
