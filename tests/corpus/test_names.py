"""Names in texts: several words, runs, case, and ordinary words."""

import pytest

from training import ordinary_words as script
from wherefrom.corpus import Lexicon, read_lexicon
from wherefrom.corpus.names import AMBIGUOUS, find_entities, ordinary_words
from wherefrom.errors import FileError, InputError

NAMES = Lexicon.of(
    [
        ("Mary", "female"), ("Poppins", "female"), ("Mary Ann", "female"), ("Jean-Luc", "male"),
        ("Robin", "female"), ("Robin", "male"), ("Will", "male"), ("John", "male"),
        ("Rose", "female"), ("José", "male"), ("O'Neil", "male"),
    ]
)  # fmt: skip


def names(texts, **options):
    return [each.name for each in find_entities(texts, NAMES, **options).occurrences]


def spans(text):
    entities = find_entities([text], NAMES)
    return [(text[e.start : e.end], e.name, e.group) for e in entities.occurrences]


def test_the_longest_name_is_taken_and_only_whole_words():
    assert spans("Mary Ann met Johnny and Maryann.") == [("Mary Ann", "mary ann", "female")]


def test_a_run_of_names_is_one_entity_in_the_group_of_the_first():
    assert spans("So Mary Poppins sang.") == [("Mary Poppins", "mary poppins", "female")]
    assert spans("Mary John sang.") == [("Mary John", "mary john", "female")]


@pytest.mark.parametrize("between", [", ", ". ", " and ", " / ", "; "])
def test_names_apart_are_two(between):
    assert names([f"X Mary{between}John"]) == ["mary", "john"]


def test_hyphens_apostrophes_and_accents():
    text = "Then Jean-Luc, O'Neil and JOSÉ came, John's friends; jean - luc."
    assert names([text]) == ["jean luc", "o neil", "josé", "john"]
    assert names([text.lower()]) == ["jean luc", "o neil", "josé", "john", "jean luc"]


def test_ambiguous_names_are_dropped_and_counted_or_a_group():
    entities = find_entities(["Robin and Mary"], NAMES)
    assert [each.name for each in entities.occurrences] == ["mary"]
    assert entities.dropped == {"in several groups": {"robin": 1}}
    entities = find_entities(["Robin and Mary"], NAMES, ambiguous="group")
    assert [each.group for each in entities.occurrences] == [AMBIGUOUS, "female"]


def test_in_cased_texts_a_name_is_capitalised_and_mostly_so():
    texts = ["I will see John.", "Will it do?", "They will not.", "Mary saw a rose.", "Rose left.",
             "Rose stayed."]  # fmt: skip
    entities = find_entities(texts, NAMES)
    assert entities.cased
    assert [each.name for each in entities.occurrences] == ["john", "mary", "rose", "rose"]
    assert entities.dropped == {
        "not capitalised": {"will": 2, "rose": 1},
        "mostly not capitalised": {"will": 1},
    }
    assert names(texts, min_capitalised=0) == ["john", "will", "mary", "rose", "rose"]


@pytest.mark.parametrize(("capitals", "cased"), [(0, False), (1, False), (2, True), (4, True)])
def test_texts_are_cased_if_half_of_them_have_a_capital(capitals, cased):
    """One text with a capital, as a headline or a film title, does not make a corpus cased."""
    texts = ["It was john."] * capitals + ["it was john."] * (4 - capitals)
    entities = find_entities(texts, NAMES)
    assert entities.cased is cased
    assert len(entities.occurrences) == (0 if cased else 4)
    assert names(texts, cased=False) == ["john"] * 4


def test_in_lower_case_texts_ordinary_words_are_excluded_unless_kept():
    texts = ["john will give mary a rose .", "will smith and john"]
    entities = find_entities(texts, NAMES)
    assert not entities.cased
    assert [each.name for each in entities.occurrences] == ["john", "mary", "john"]
    assert entities.dropped == {"also an ordinary word": {"will": 2, "rose": 1}}
    assert names(texts, ordinary="keep") == ["john will", "mary", "rose", "will", "john"]


def test_a_stop_list_is_heeded_in_any_case():
    entities = find_entities(["Mary Ann saw John."], NAMES, stop=["mary ann", "JOHN"])
    assert not entities.occurrences
    assert entities.dropped == {"on the stop list": {"mary ann": 1, "john": 1}}


def test_names_after_articles_are_suspects():
    texts = ["the john is here", "a john", "john came", "mary came", "mary left", "mary stayed"]
    assert find_entities(texts, NAMES).suspects == {"john": (2, 3)}


def test_a_share_beyond_one_is_an_error():
    with pytest.raises(InputError, match="must be between 0 and 1, got 2"):
        find_entities(["Mary"], NAMES, min_capitalised=2)


def test_names_are_read_by_usual_columns_and_bad_rows_counted(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text("name,gender\nAnna,female\n,male\n???,male\nBob,\nBob,1\n", encoding="utf-8")
    lexicon = read_lexicon(path)
    assert lexicon.groups == {("anna",): {"female"}, ("bob",): {"1"}}
    assert lexicon.skipped == {"no name": 2, "no group": 1}


@pytest.mark.parametrize(
    ("text", "options", "kind", "message"),
    [
        ("who,gender\nAnna,f\n", {}, InputError, "no column looks like the name .*name_column"),
        ("name,kind\nAnna,f\n", {}, InputError, "no column looks like the group"),
        ("name,group\nAnna,f\n", {"group_column": "grup"}, InputError, 'did you mean "group"'),
        ("name,group\n", {}, FileError, "no rows"),
        ("name,group\n,f\n", {}, InputError, "no name with a group"),
    ],
)
def test_a_bad_file_of_names_is_an_error(tmp_path, text, options, kind, message):
    path = tmp_path / "names.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(kind, match=message):
        read_lexicon(path, **options)


def test_the_list_of_ordinary_words_is_what_its_script_writes(tmp_path):
    """Over made-up texts in which each counted word is written small, as in the real ones."""
    by_hand, removed = set(script.ADDED), set(script.REMOVED)
    assert not removed & ordinary_words()
    assert by_hand < ordinary_words()
    texts = [f"Some {word} here" for word in ordinary_words() - by_hand | removed] * 5
    texts += ["Bill the rare", "Rare and Once"] * 4 + ["once"] * 4
    lines = ["text", *texts]
    (tmp_path / "data.csv").write_text("\n".join(lines), encoding="utf-8")
    names = [*ordinary_words(), *removed, "rare", "once", "unused"]
    rows = ["name,group", *(f"{name.title()},x" for name in names)]
    (tmp_path / "names.csv").write_text("\n".join(rows), encoding="utf-8")
    script.main([tmp_path / "data.csv"], tmp_path / "names.csv", tmp_path / "list.txt")
    assert (tmp_path / "list.txt").read_bytes() == script.LIST.read_bytes()


def test_a_word_is_ordinary_if_written_small_five_times_and_one_time_in_five():
    texts = ["will"] * 5 + ["Will"] * 20 + ["rose"] * 5 + ["Rose"] * 21 + ["may"] * 4
    assert script.lower_case_names(texts, {"will", "rose", "may"}) == ["will"]
