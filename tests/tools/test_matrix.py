"""The matrix of versions: what a report counts, and how rows enter the page."""

from pathlib import Path

from tools.matrix import BEGIN, CORE, END, PAGE, Row, counted, merged, row_key

HOME = Path(__file__).parents[2]


def test_a_report_is_counted(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"/></testsuites>'
    )
    assert counted(report) == (4, 3, 3)


def test_a_row_takes_the_place_of_an_older_one_of_the_same_versions_and_rows_are_sorted():
    page = f"before\n{BEGIN}\n{END}\nafter\n"
    first = merged(
        page, [Row("5.0.0", "2.13.0", 9, 0, 1, 2.0), Row("4.57.6", "2.13.0", 8, 1, 0, 1)]
    )
    second = merged(first, [Row("5.0.0", "2.13.0", 10, 0, 0, 2.0)])
    rows = [line for line in second.splitlines() if line.startswith(("| 4", "| 5"))]
    assert [row_key(row)[0] for row in rows] == ["4.57.6", "5.0.0"]
    assert rows[1].split(" | ")[4:7] == ["10", "0", "0"]
    assert second.startswith("before\n")
    assert second.endswith(f"{END}\nafter\n")


def test_the_page_has_a_place_for_the_rows_and_every_core_test_exists():
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    assert all((HOME / name).exists() for name in CORE)
