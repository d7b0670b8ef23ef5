"""Names in texts: several words, runs, case, and words that are no names."""

import pytest

from wherefrom.corpus import Lexicon, read_lexicon
from wherefrom.corpus.names import AMBIGUOUS, find_entities
from wherefrom.errors import FileError, InputError

NAMES = Lexicon.of(
    [
        ("Mary", "female"), ("Poppins", "female"), ("Mary Ann", "female"), ("Jean-Luc", "male"),
        ("Robin", "female"), ("Robin", "male"), ("Will", "male"), ("John", "male"),
        ("Rose", "female"), ("José", "male"), ("O'Neil", "male"),
    ]
)  # fmt: skip


def found(text, **options):
    held = find_entities([text], NAMES, **options)
    return [(text[e.start : e.end], e.name, e.group) for e in held.found]


def test_the_longest_name_is_taken_and_only_whole_words():
    assert found("Mary Ann met Johnny and Maryann.") == [("Mary Ann", "mary ann", "female")]


def test_a_run_of_names_is_one_entity_in_the_group_of_the_first():
    assert found("So Mary Poppins sang.") == [("Mary Poppins", "mary poppins", "female")]
    assert found("Mary John sang.") == [("Mary John", "mary john", "female")]


@pytest.mark.parametrize("between", [", ", ". ", " and ", " / ", "; "])
def test_names_apart_are_two(between):
    assert [name for _, name, _ in found(f"X Mary{between}John")] == ["mary", "john"]


def test_hyphens_apostrophes_and_accents():
    text = "Then Jean-Luc, O'Neil and JOSÉ came, John's friends; jean - luc."
    assert [n for _, n, _ in found(text)] == ["jean luc", "o neil", "josé", "john"]
    assert [n for _, n, _ in found(text.lower())] == [
        "jean luc",
        "o neil",
        "josé",
        "john",
        "jean luc",
    ]


def test_ambiguous_names_are_dropped_and_counted_or_a_group():
    held = find_entities(["Robin and Mary"], NAMES)
    assert [each.name for each in held.found] == ["mary"]
    assert held.dropped == {"in several groups": {"robin": 1}}
    kept = find_entities(["Robin and Mary"], NAMES, ambiguous="group")
    assert [each.group for each in kept.found] == [AMBIGUOUS, "female"]


def test_in_cased_texts_a_name_is_capitalised_and_mostly_so():
    texts = ["I will see John.", "Will it do?", "They will not.", "Mary saw a rose.", "Rose left.",
             "Rose stayed."]  # fmt: skip
    held = find_entities(texts, NAMES)
    assert held.cased
    assert [each.name for each in held.found] == ["john", "mary", "rose", "rose"]
    assert held.dropped == {
        "not capitalised": {"will": 2, "rose": 1},
        "mostly not capitalised": {"will": 1},
    }
    all_of_them = find_entities(texts, NAMES, min_capitalised=0)
    assert [each.name for each in all_of_them.found] == ["john", "will", "mary", "rose", "rose"]


def test_in_lower_case_texts_ordinary_words_are_set_aside_unless_kept():
    texts = ["john will give mary a rose .", "will smith and john"]
    held = find_entities(texts, NAMES)
    assert not held.cased
    assert [each.name for each in held.found] == ["john", "mary", "john"]
    assert held.dropped == {"an ordinary word too": {"will": 2, "rose": 1}}
    kept = find_entities(texts, NAMES, ordinary="keep")
    assert [each.name for each in kept.found] == ["john will", "mary", "rose", "will", "john"]


def test_a_stop_list_is_heeded_in_any_case():
    held = find_entities(["Mary Ann saw John."], NAMES, stop=["mary ann", "JOHN"])
    assert not held.found
    assert held.dropped == {"on the stop list": {"mary ann": 1, "john": 1}}


def test_names_after_articles_are_suspects():
    texts = ["the john is here", "a john", "john came", "mary came", "mary left", "mary stayed"]
    assert find_entities(texts, NAMES).suspects == {"john": (2, 3)}


def test_a_share_beyond_one_is_refused():
    with pytest.raises(InputError, match="share from 0 to 1"):
        find_entities(["Mary"], NAMES, min_capitalised=2)


def test_names_are_read_by_usual_columns_and_bad_rows_counted(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text("name,gender\nAnna,female\n,male\n???,male\nBob,\nBob,1\n", encoding="utf-8")
    held = read_lexicon(path)
    assert held.groups == {("anna",): {"female"}, ("bob",): {"1"}}
    assert held.skipped == {"no name": 2, "no group": 1}


@pytest.mark.parametrize(
    ("text", "options", "kind", "message"),
    [
        ("who,gender\nAnna,f\n", {}, InputError, "no column looks like the name .*--name-column"),
        ("name,kind\nAnna,f\n", {}, InputError, "no column looks like the group"),
        ("name,group\nAnna,f\n", {"group_column": "grup"}, InputError, 'did you mean "group"'),
        ("name,group\n", {}, FileError, "no rows"),
        ("name,group\n,f\n", {}, InputError, "no names with a group"),
    ],
)
def test_a_bad_file_of_names_is_told(tmp_path, text, options, kind, message):
    path = tmp_path / "names.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=message):
        read_lexicon(path, **options)
