"""Tables that a spreadsheet shows and does not run."""

import csv
import io

import pytest

from wherefrom.storage.tables import csv_text


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_text_that_a_spreadsheet_would_run_gets_an_apostrophe(start):
    text = csv_text(["word", f"{start}1"], [{"word": f"{start}1+1", f"{start}1": "a" + start}])
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows == [["word", f"'{start}1"], [f"'{start}1+1", "a" + start]]


def test_numbers_stay_numbers():
    assert csv_text(["mean"], [{"mean": -2.5}]) == "mean\r\n-2.5\r\n"
