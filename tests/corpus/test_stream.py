"""A corpus explained in batches equals each text alone, and an interrupted run resumes."""

import sys
import warnings

import numpy as np
import pytest
import torch

from tests.corpus import planted
from tests.helpers import contents, full_disk
from wherefrom import Explainer
from wherefrom.corpus import explain_corpus, overview
from wherefrom.corpus.corpus import NO_LABEL
from wherefrom.errors import FileError, InputError, TargetError
from wherefrom.inputs.table import Rows, read_table
from wherefrom.inputs.text import by_length, encode, encode_each
from wherefrom.runs.rows import word_sums
from wherefrom.show.sentence import sentence

TEXTS = planted.texts(0)[:50]
FIELDS = ("rows", "labels", "predicted", "outputs", "bounds", "starts", "ends", "scores")


@pytest.fixture
def explainer():
    return planted.explainer(0, 0.0)


def same(one, other):
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.texts == other.texts
    assert one.skipped == other.skipped


def test_words_in_a_corpus_are_those_of_each_text_alone(explainer):
    corpus = explain_corpus(explainer, TEXTS[:14], window=6, batch_size=3)
    for i, text in enumerate(TEXTS[:14]):
        alone = explainer(text, target=1, against=0)
        words = [(u, s) for u, s in zip(alone.words().units, alone.words().scores, strict=True)]
        plain = [(u.text, u.start, s) for u, s in words if not u.special]
        shown = corpus.explanation(i)
        assert [(u.text, u.start) for u in shown.units] == [(t, start) for t, start, _ in plain]
        assert shown.scores == pytest.approx([s for _, _, s in plain], abs=1e-5)
        assert corpus.outputs[i] == pytest.approx(alone.output, abs=1e-5)
        assert corpus.predicted[i] == explainer(text).target.index
        assert str(shown.target) == "POSITIVE − NEGATIVE"
        for claim in sentence(shown).split(". "):  # the corpus keeps no ledger to speak of
            assert claim.rstrip(".") in sentence(alone)
        assert shown.settings == corpus.settings


@pytest.mark.parametrize("kind", ["wordpiece", "bytepairs"])
def test_sums_over_words_equal_the_explanations_own(request, bert, gpt2, kind):
    words = request.getfixturevalue(kind)
    model, options = (bert, {}) if kind == "wordpiece" else (gpt2, {"target": 1})
    for text in ["unlikeable  movies, in Paris is lov", "the film.", "is love isParis"]:
        explanation = Explainer(model, words)(text, **options)
        joined = explanation.words()
        starts, ends, sums = word_sums(explanation)
        plain = [
            (u.start, u.end, s)
            for u, s in zip(joined.units, joined.scores, strict=True)
            if not u.special and u.start is not None
        ]
        assert [(a, b) for a, b, _ in plain] == list(zip(starts, ends, strict=True))
        assert sums == pytest.approx([s for _, _, s in plain], abs=1e-6)


@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupted_run_resumes_to_the_same_result(explainer, tmp_path, after):
    whole = explain_corpus(explainer, TEXTS, window=16)
    calls = []

    def stop(done, total, note):
        calls.append(done)
        if len(calls) == after:
            raise KeyboardInterrupt

    partly = explain_corpus(explainer, TEXTS, window=16, out=tmp_path, progress=stop)
    assert not partly.complete
    assert len(partly) == 16 * after
    assert partly.interruption == f"interrupted: {16 * after} of 50 texts were read"
    assert f"interrupted: {16 * after} of 50 texts were read" in str(overview(partly))
    ran = []
    explainer.runner.model.register_forward_hook(lambda *_: ran.append(1))
    again = explain_corpus(explainer, TEXTS, window=16, out=tmp_path, resume=True)
    assert again.complete
    same(again, whole)
    windows = len(ran)
    once_more = explain_corpus(explainer, TEXTS, window=16, out=tmp_path, resume=True)
    same(once_more, whole)
    assert len(ran) == windows  # nothing was left to do
    assert windows > 0


def test_the_first_and_the_tenth_run_give_the_same_bits(explainer):
    alone, first = explainer(TEXTS[0]), explain_corpus(explainer, TEXTS, window=16)
    for _ in range(9):
        again = explain_corpus(explainer, TEXTS, window=16)
    same(again, first)
    np.testing.assert_array_equal(explainer(TEXTS[0]).scores, alone.scores)


def test_a_model_that_reads_all_rows_is_run_as_it_is(explainer):
    class Mean(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.bert, self.head = model.bert, torch.nn.Linear(16, 2)

        def forward(self, input_ids, attention_mask):
            hidden = self.bert(input_ids, attention_mask).last_hidden_state
            weights = attention_mask.unsqueeze(-1).to(hidden)
            return self.head((hidden * weights).sum(1) / weights.sum(1))

    torch.manual_seed(0)
    pooled = Explainer(Mean(explainer.runner.model).eval(), explainer.tokenizer)
    first = explain_corpus(pooled, TEXTS, window=16, target=1)
    same(explain_corpus(pooled, TEXTS, window=16, target=1), first)
    assert first.outputs[0] == pytest.approx(pooled(TEXTS[0], target=1).output, abs=1e-6)


def test_without_resume_a_finished_run_is_not_replaced(explainer, tmp_path):
    explain_corpus(explainer, TEXTS[:10], out=tmp_path, window=4)
    before = contents(tmp_path)
    with pytest.raises(FileError, match=r"has 3 finished parts of an earlier run.*resume=True"):
        explain_corpus(explainer, TEXTS[:4], out=tmp_path, window=4)
    assert contents(tmp_path) == before


def test_a_run_resumes_only_with_the_same_data_settings_and_model(explainer, tmp_path):
    explain_corpus(explainer, TEXTS[:10], out=tmp_path)
    with pytest.raises(FileError, match="other data"):
        explain_corpus(explainer, TEXTS[:9], out=tmp_path, resume=True)
    with pytest.raises(FileError, match=r"method .*auto.* → .*gradient_x_input"):
        explain_corpus(explainer, TEXTS[:10], "gradient_x_input", out=tmp_path, resume=True)
    with pytest.raises(FileError, match=r"changed \(other weights\)"):
        explain_corpus(planted.explainer(1, 0.0), TEXTS[:10], out=tmp_path, resume=True)
    (table,) = (tmp_path / "checkpoint" / "texts.parquet").iterdir()
    table.write_bytes(b"PAR1")
    with pytest.warns(UserWarning, match=r"files of 1 finished part .* computed again"):
        again = explain_corpus(explainer, TEXTS[:10], out=tmp_path, resume=True)
    same(again, explain_corpus(explainer, TEXTS[:10]))


def test_a_run_in_a_folder_that_another_run_uses_is_refused(explainer, tmp_path):
    def other_run(done, total, note):
        with pytest.raises(FileError, match=r"another run .* is writing to"):
            explain_corpus(explainer, TEXTS, out=tmp_path, resume=True)

    assert explain_corpus(explainer, TEXTS, out=tmp_path, window=16, progress=other_run).complete


def test_a_window_of_another_run_is_not_taken(explainer, tmp_path):
    whole = explain_corpus(explainer, TEXTS, out=tmp_path / "one", window=16)
    explain_corpus(planted.explainer(1, 0.0), TEXTS, out=tmp_path / "other", window=16)
    name = "checkpoint/part-00000-000001.json"
    (tmp_path / "one" / "checkpoint" / ".killed.partial").write_bytes(b"half")
    (tmp_path / "one" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    ran = []
    explainer.runner.model.register_forward_hook(lambda *_: ran.append(1))
    same(explain_corpus(explainer, TEXTS, out=tmp_path / "one", window=16, resume=True), whole)
    assert ran
    assert not list(tmp_path.rglob("*.partial"))


def test_classes_of_one_name_stay_apart_in_the_tables(tmp_path):
    model = planted.explainer(0, 0.0).runner.model
    explainer = Explainer(model, planted.explainer(0, 0.0).tokenizer, labels=["same", "same"])
    data = Rows(TEXTS, [i % 2 for i in range(50)])
    kept, read = (explain_corpus(explainer, data, out=out) for out in (None, tmp_path))
    same(kept, read)
    assert set(read.labels.tolist()) == {0, 1}
    assert {*overview(read).classes} == {"same (0)", "same (1)"}


def test_a_full_disk_loses_no_finished_window_and_says_so(explainer, tmp_path):
    whole = explain_corpus(explainer, TEXTS, window=16)
    written = []

    def fill_up(done, total, note):
        written.append(done)
        if len(written) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    resource = pytest.importorskip("resource")
    message = r"cannot write .*000002.*: .* The parts finished before are saved\. Continue with"
    with full_disk(resource.RLIM_INFINITY), pytest.raises(FileError, match=message):
        explain_corpus(explainer, TEXTS, out=tmp_path, window=16, progress=fill_up)
    assert len(list((tmp_path / "checkpoint").glob("part-*.json"))) == 2
    same(explain_corpus(explainer, TEXTS, out=tmp_path, window=16, resume=True), whole)


def test_without_pyarrow_a_corpus_is_saved_and_resumed_as_json(explainer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    whole = explain_corpus(explainer, TEXTS, out=tmp_path, window=16)
    same(explain_corpus(explainer, TEXTS, out=tmp_path, window=16, resume=True), whole)
    assert len(list(tmp_path.rglob("*.json/part-*.json"))) == 8


def test_ctrl_c_before_the_first_window_is_an_interrupt(explainer, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(explainer, "encode", stop)
    message = "interrupted before the first 16 of 50 texts were read"
    with pytest.raises(KeyboardInterrupt, match=message):
        explain_corpus(explainer, TEXTS, window=16)


@pytest.mark.parametrize("name", ["batch_size", "tokens", "window"])
def test_sizes_below_one_are_refused(explainer, name):
    with pytest.raises(InputError, match=f"{name} must be 1 or more, got -5"):
        explain_corpus(explainer, TEXTS, **{name: -5})


def test_rows_that_cannot_be_used_are_counted(explainer, tmp_path):
    path = tmp_path / "data.csv"
    long = " ".join(["film"] * 40)
    path.write_text(
        f"text,label\nAnna is good,1\n,0\nBoba,\n{long},0\nbad film,NEGATIVE\n", "utf-8"
    )
    corpus = explain_corpus(explainer, read_table(path))
    assert corpus.texts == ("Anna is good", "bad film")
    assert corpus.labels.tolist() == [1, 0]  # a number and a name are both a class
    assert corpus.skipped == {"empty text": 1, "no label": 1, "too long": 1}
    cut = explain_corpus(explainer, read_table(path), truncate=True)
    assert (len(cut), cut.cut) == (3, 1)


def test_other_warnings_of_the_tokenizer_are_shown_and_not_counted(explainer, monkeypatch):
    encode = explainer.encode

    def warning(*args):
        warnings.warn("the vocabulary was cut")
        return encode(*args)

    monkeypatch.setattr(explainer, "encode", warning)
    with pytest.warns(UserWarning, match="the vocabulary was cut"):
        corpus = explain_corpus(explainer, ["the film is good"], truncate=True)
    assert corpus.cut == 0


def test_labels_that_are_not_classes_are_an_error(explainer):
    with pytest.raises(InputError, match=r"2 labels are not .*'fine', 7.*NEGATIVE, POSITIVE"):
        explain_corpus(explainer, Rows(["a film"] * 4, [1, "fine", 7, "positive"]))
    with pytest.raises(InputError, match=r"^1 label is not a class of the model: 'fine'"):
        explain_corpus(explainer, Rows(["a film"], ["fine"]))


def test_without_labels_there_are_none(explainer):
    assert set(explain_corpus(explainer, TEXTS[:3]).labels.tolist()) == {NO_LABEL}


@pytest.mark.parametrize("data", ["one text", [], [1, 2]])
def test_other_data_than_a_list_of_texts_is_an_error(explainer, data):
    with pytest.raises(InputError, match="list of texts"):
        explain_corpus(explainer, data)


def test_a_corpus_without_a_usable_text_is_an_error(explainer):
    with pytest.raises(InputError, match=r"no text could be explained \(1 too long\)"):
        explain_corpus(explainer, [" ".join(["film"] * 40)])


def test_a_slow_tokenizer_is_an_error(bert):
    class Slow:
        is_fast, all_special_ids, unk_token_id, mask_token_id, model_max_length = (
            False, [], None, None, 32,
        )  # fmt: skip

        def __call__(self, texts, **_):
            return {
                "input_ids": [[5, 6]] * len(texts),
                "special_tokens_mask": [[0, 0]] * len(texts),
            }

        def convert_ids_to_tokens(self, ids):
            return [str(i) for i in ids]

    with pytest.raises(InputError, match="fast tokenizer"):
        explain_corpus(Explainer(bert, Slow()), ["a film"])


def test_the_other_of_two_classes_is_understood(explainer):
    by_target = explain_corpus(explainer, TEXTS[:3], target="NEGATIVE")
    by_against = explain_corpus(explainer, TEXTS[:3], against="POSITIVE")
    plain = explain_corpus(explainer, TEXTS[:3])
    assert str(by_target.target) == str(by_against.target) == "NEGATIVE − POSITIVE"
    np.testing.assert_allclose(by_target.scores, -plain.scores, atol=1e-6)
    np.testing.assert_array_equal(by_target.predicted, plain.predicted)
    with pytest.raises(TargetError, match="the same class"):
        explain_corpus(explainer, TEXTS[:3], target=1, against=1)


def test_of_more_classes_the_predicted_one_is_explained_or_a_contrast(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    texts = ["the film is good", "a dull movie", "i love it ."]
    plain = explain_corpus(explainer, texts)
    alone = [explainer(text) for text in texts]
    assert plain.target is None
    assert plain.predicted.tolist() == [each.target.index for each in alone]
    assert plain.outputs == pytest.approx([each.output for each in alone])
    pair = explain_corpus(explainer, texts, target="good", against="bad")
    assert pair.predicted.tolist() == plain.predicted.tolist()
    with pytest.raises(TargetError, match="needs a target"):
        explain_corpus(explainer, texts, against="bad")


# What the explainer does for it.


def test_batches_are_of_like_length():
    lengths = [3, 9, 4, 4, 4, 8, 2, 7, 30]
    chunks = by_length(lengths, 4, tokens=40)
    assert sorted(i for chunk in chunks for i in chunk) == list(range(len(lengths)))
    assert [max(lengths[i] for i in c) for c in chunks] == sorted(
        max(lengths[i] for i in c) for c in chunks
    )
    for chunk in chunks:
        width = max(lengths[i] for i in chunk)
        assert len(chunk) <= 4
        assert len(chunk) == 1 or len(chunk) * width <= 40
    assert by_length([4, 4, 5, 4], 8, same=True) == [[0, 1, 3], [2]]


def test_a_square_batch_is_not_run_one_by_one(explainer):
    ran = []
    explainer.runner.model.register_forward_hook(lambda _, args, out: ran.append(len(out.logits)))
    explainer(["the film is good and dull"] * 8, batch_size=8)  # 8 texts of 8 tokens
    assert ran == [8, 8, 1]  # at the reference, at the input, and one alone


def test_texts_encoded_together_are_those_encoded_alone(wordpiece):
    texts = ["the film, unlikeable", "", "a  dull movie [SEP] x", "  "]
    encoded = encode_each(wordpiece, texts)
    assert encoded[0] == encode(wordpiece, texts[0])
    assert encoded[2] == encode(wordpiece, texts[2])
    assert all(isinstance(encoded[i], InputError) for i in (1, 3))


def test_what_was_encoded_is_explained_as_the_text(explainer):
    rows = explainer.encode(TEXTS[:3])
    for one, other in zip(explainer(rows), explainer(TEXTS[:3]), strict=True):
        assert one.units == other.units
        np.testing.assert_array_equal(one.scores, other.scores)
    assert explainer(rows[0]).text == TEXTS[0]


def test_a_corpus_names_the_method_that_ran(explainer, tmp_path):
    for out in (None, tmp_path):
        corpus = explain_corpus(explainer, TEXTS[:4], out=out)
        assert (corpus.method, corpus.settings["root"]) == ("secant", "unk")
