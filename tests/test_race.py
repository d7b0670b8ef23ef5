"""The benchmark beside other libraries: processes, peers that cannot run, tables."""

import pytest
import typer

from benchmarks import race
from benchmarks.race import BASELINE, Cell


def missing():
    raise ImportError("No module named 'peer'\nand more")


def failing(length):
    if length > 1:
        raise ValueError("too long for it")
    return lambda: None


@pytest.fixture
def contenders(monkeypatch):
    monkeypatch.setitem(
        race.CONTENDERS,
        "toy",
        {
            BASELINE: lambda: lambda length: lambda: sum(range(30_000 * length)),
            "slow": lambda: lambda length: lambda: sum(range(900_000 * length)),
            "peer": missing,
            "short": lambda: failing,
        },
    )
    return race.CONTENDERS["toy"]


def test_contenders_run_in_turn_and_those_that_cannot_say_why(contenders):
    cells, problems = race.race("toy", contenders, [1, 2], [1], rounds=3)
    assert problems == {
        "peer": "ImportError: No module named 'peer'",
        "short": "ValueError: too long for it",
    }
    assert {key for key in cells if key[0] == BASELINE} == {(BASELINE, 1, 1), (BASELINE, 2, 1)}
    assert len(cells[BASELINE, 1, 1].seconds) == 3
    assert cells["slow", 1, 1].median > race.MOST * cells[BASELINE, 1, 1].median
    assert ("slow", 2, 1) not in cells  # not again on a longer input


def cells_of(**ratios):
    names = {"base": BASELINE, "ours": "wherefrom lrp", "theirs": "LXT CP-LRP"}
    return {
        (names[name], 512, 1): Cell([ratio, ratio * 1.1, ratio * 0.9], 100.0)
        for name, ratio in ratios.items()
    }


def test_tables_show_ratios_of_medians_with_their_spread():
    rows = race.table(cells_of(base=2.0, ours=1.5), [BASELINE, "wherefrom lrp"], 512, 1)
    assert rows[2].startswith(f"| {BASELINE} | 1.00 | 0.90 to 1.10 | 2.00 s | 100 MiB |")
    assert rows[3].startswith("| wherefrom lrp | 0.75 | 0.68 to 0.83 | 1.50 s |")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (0.75, 0.9, "`lrp` 0.75; goal ≤ 0.80 reached; LXT CP-LRP 0.90, slower."),
        (0.95, 0.9, "`lrp` 0.95; goal ≤ 0.80 missed; LXT CP-LRP 0.90, faster."),
    ],
)
def test_a_goal_that_is_missed_and_a_faster_peer_are_said_plainly(ours, theirs, expected):
    (line,) = race.verdicts(cells_of(base=1.0, ours=ours, theirs=theirs), [512], [1])
    assert line == f"- length 512, 1 thread(s): {expected}"


def test_the_page_names_peers_that_did_not_run_and_no_path():
    cells = cells_of(base=1.0, ours=0.8)
    text = race.report(
        cells, {"peer": "ImportError: none"}, {}, [BASELINE, "wherefrom lrp", "peer"], [512], [1], 3
    )
    assert "- peer: ImportError: none." in text
    assert "torch " in text
    assert "/" not in text.replace("BERT", "")


def test_only_what_lies_between_the_marks_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- flow: begin -->\nold\n<!-- flow: end -->\nb\n", encoding="utf-8")
    race.write_part(page, "flow", "new")
    text = "a\n<!-- flow: begin -->\nnew\n<!-- flow: end -->\nb\n"
    assert page.read_text(encoding="utf-8") == text
    with pytest.raises(typer.BadParameter, match="no marks for race"):
        race.write_part(page, "race", "new")
