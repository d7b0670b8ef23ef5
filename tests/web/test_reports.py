"""Reports: only those of the folder, by the names that are listed."""

import os

import pytest

from tests.web.helpers import error_kind
from wherefrom.web.security import Reports


def test_only_html_files_of_the_folder_are_listed_and_read(make_client, tmp_path):
    folder = tmp_path / "reports"
    (folder / "run").mkdir(parents=True)
    (folder / "a & b.html").write_text("<p>one</p>", encoding="utf-8")
    (folder / "run" / "report.html").write_text("<p>two</p>", encoding="utf-8")
    (folder / "data.csv").write_text("x", encoding="utf-8")
    outside = tmp_path / "outside.html"
    outside.write_text("<p>secret</p>", encoding="utf-8")
    (folder / "link.html").symlink_to(outside)
    client = make_client(reports=folder)
    assert set(client.get("/api/about").json()["reports"]) == {"a & b.html", "run/report.html"}
    assert client.get("/reports/run/report.html").text == "<p>two</p>"
    assert client.get("/reports/a%20%26%20b.html").text == "<p>one</p>"
    for name in ("..%2foutside.html", "%2fetc%2fpasswd", "link.html", "data.csv", "run"):
        error_kind(client.get(f"/reports/{name}"), 404, "no such report")
    for name in ("../outside.html", "run/../../outside.html", str(outside), ""):
        assert Reports(folder).read(name) is None


def test_the_newest_reports_are_listed_first_and_at_most_200(tmp_path):
    for i in range(203):
        path = tmp_path / f"{i}.html"
        path.touch()
        os.utime(path, (i, i))
    assert list(Reports(tmp_path).by_name()) == [f"{i}.html" for i in range(202, 2, -1)]


def test_a_folder_that_is_gone_has_no_reports(tmp_path):
    assert Reports(tmp_path / "gone").by_name() == {}
    assert Reports().read("one.html") is None


def test_names_that_look_the_same_are_numbered(tmp_path):
    for age, name in enumerate((b"\xff.html", b"\xfe.html", b"\xfd.html")):  # no UTF-8
        path = tmp_path / os.fsdecode(name)
        try:
            path.write_bytes(name)
        except OSError:
            pytest.skip("this file system takes only names in UTF-8")
        os.utime(path, (9 - age, 9 - age))
    reports = Reports(tmp_path)
    assert list(reports.by_name()) == ["\ufffd.html", "\ufffd.html (2)", "\ufffd.html (3)"]
    assert reports.read("\ufffd.html (3)") == b"\xfd.html"
