"""The reproduction on generated data: end to end, stopped and gone on with, its CSV and tables."""

import csv
import gzip
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

import reproduction.__main__ as command
from reproduction import document, evaluation, registry, report, table
from reproduction.graphs import Molecules, Superpixels
from reproduction.methods import PAPER, methods_of
from reproduction.result import SetResult
from reproduction.sets import class_figures
from reproduction.texts import TextSet, clipped, encode
from tests.helpers import contents
from training import superpixels
from training.bace import Setting
from training.sentiment import SPECIAL, student_tokenizer

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "dull")
OTHERS = ("a", "film", "plot", "the", "is", "and", "very", "long")
SMILES = ["CCO", "CCN", "c1ccccc1O", "CC(=O)N", "CCCl", "c1ccncc1", "CCCCO", "OCCN", "CCS", "CC=O"]


def write_texts(folder, sizes):
    chance = random.Random(0)
    folder.mkdir(parents=True)
    for part, size in sizes.items():
        with gzip.open(folder / f"{part}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("text", "label"))
            for _ in range(size):
                label = chance.randrange(2)
                words = chance.choices(OTHERS, k=chance.randint(3, 9))
                words.insert(chance.randrange(len(words)), chance.choice((BAD, GOOD)[label]))
                rows.writerow((" ".join(words), label))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    student_tokenizer([*SPECIAL, *GOOD, *BAD, *OTHERS]).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    vocab = len(SPECIAL) + len(GOOD) + len(BAD) + len(OTHERS)
    BertModel(BertConfig(vocab_size=vocab, num_hidden_layers=3, **size)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "films", {"train": 96, "test": 14})
    (folder / "molecules").mkdir()
    with gzip.open(folder / "molecules" / "bace.csv.gz", "wt", encoding="utf-8") as file:
        file.write("smiles,label\n")
        file.writelines(f"{'C' * n}{s},{n % 2}\n" for n in range(4) for s in SMILES)
    return folder


FILMS = TextSet("films", "SST-2", "films", 0.1, 0.1, ("bad", "good"), pieces=8, held=6)
DRUGS = Molecules("drugs", "BACE", "molecules", 0.1, 0.1, (Setting(16, 0.0, 1),))
PAGE = "".join(
    f"<!-- {part}: begin -->\nold\n<!-- {part}: end -->\n"
    for part in ("models", "AUAC", "AU-MSE", "best", "gradients", "between", "default", "seconds",
                 "conservation")
)  # fmt: skip


@pytest.fixture
def sets(monkeypatch):
    monkeypatch.setattr(evaluation, "PART", 8)
    monkeypatch.setattr(command, "PART", 8)
    tiny = {"films": FILMS, "drugs": DRUGS}
    for module in (registry, command, report, document):
        monkeypatch.setattr(module, "SETS", tiny)
    return tiny


@pytest.fixture
def run(tmp_path, sets, data, base):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    app = command.typer.Typer()
    app.command()(command.main)

    def call(*options):
        names = {"data": data, "base": base, "out": tmp_path / "out", "document": page,
                 "results": tmp_path / "results"}  # fmt: skip
        fixed = [word for name, value in names.items() for word in (f"--{name}", str(value))]
        return CliRunner().invoke(app, [*fixed, *options], catch_exceptions=False)

    call.folder = tmp_path
    return call


def test_one_command_trains_evaluates_and_writes_everything(run):
    found = run("--samples", "16", "--sets", "films,drugs")
    assert found.exit_code == 0, found.output
    results = run.folder / "results"
    names = {
        "results.csv", "curves-auac.png", "curves-au-mse.png", "conservation.png", "collapse.png",
        "films.json.gz", "drugs.json.gz", "heatmap-films.png", "heatmap-drugs.png",
    }  # fmt: skip
    assert names <= {path.name for path in results.iterdir()}
    numbers = table.Numbers(table.read_numbers(results))
    for of, kind, count in (("films", "text", 14), ("drugs", "graph", 4)):
        for method in methods_of(kind):
            for measure in ("AUAC", "AU-MSE"):
                number = numbers.get(of, measure, method)
                assert number.samples == count
                assert number.low <= number.value <= number.high
                assert json.loads(number.settings) is not None
            assert numbers.value(of, "seconds", method) > 0
        assert 0 <= numbers.value(of, "majority") <= 1
    assert numbers.get("films", "roc_auc") is None
    assert 0 <= numbers.value("drugs", "roc_auc") <= 1
    page = (run.folder / "page.md").read_text(encoding="utf-8")
    assert "old" not in page
    assert "missing" not in page
    mean = numbers.value("films", "AUAC", "LRP(AH+LN)")
    assert f"0.908 → {mean:.3f} ± " in page
    card = json.loads((run.folder / "out" / "films" / "model" / "card.json").read_text())
    assert card["figures"]["accuracy"] == pytest.approx(
        numbers.value("films", "accuracy"), abs=1e-6
    )


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(report, "draw", lambda *_: None)
    monkeypatch.setattr(command, "heatmap", lambda *_: None)


def test_it_goes_on_where_it_stopped_and_adds_samples(run, monkeypatch, no_pictures):
    assert run("--samples", "8", "--sets", "films").exit_code == 0
    checkpoint = run.folder / "out" / "films" / "part-0" / "checkpoint"
    before = contents(checkpoint)
    monkeypatch.setattr(TextSet, "train", lambda *_: pytest.fail("trained a second time"))
    assert run("--samples", "16", "--sets", "films").exit_code == 0
    assert contents(checkpoint) == before
    result = SetResult.read(run.folder / "results" / "films.json.gz")
    assert result.samples == 14
    parts = [
        json.loads(file.read_bytes())["samples"]
        for file in sorted(run.folder.glob("out/films/part-*/checkpoint/part-*.json"))
    ]
    values = [record["values"]["lrp"]["activation"] for part in parts for record in part]
    np.testing.assert_allclose(result.values["lrp"]["AUAC"], values, rtol=1e-6)
    curves = [record["series"]["lrp"]["pruning"] for part in parts for record in part]
    np.testing.assert_allclose(result.curves["lrp"]["AU-MSE"], np.mean(curves, axis=0), rtol=1e-6)


def test_a_stop_leaves_results_of_the_samples_so_far(run, monkeypatch, no_pictures):
    assert run("--samples", "8", "--sets", "films").exit_code == 0

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Molecules, "train", stop)
    stopped = run("--samples", "8", "--sets", "films,drugs")
    assert stopped.exit_code == 130
    assert "again to go on" in stopped.output
    page = (run.folder / "page.md").read_text(encoding="utf-8")
    assert "missing" in page
    assert "Not evaluated yet: BACE." in page
    assert "old" not in page


def test_digits_become_graphs_that_a_model_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(superpixels, "HELD", 2)
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 8), ("t10k", 3)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        parts = {"images-idx3": bytes(16) + images.tobytes(), "labels-idx1": bytes(8 + count)}
        for name, content in parts.items():
            (tmp_path / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    digits = Superpixels("digits", "MNIST", ".", 0.1, 0.1, epochs=1, drawn=2)
    digits.train(tmp_path, "", tmp_path / "work", tmp_path / "model")
    card = json.loads((tmp_path / "model" / "card.json").read_text(encoding="utf-8"))
    assert card["figures"].keys() == {"accuracy", "macro_f1", "majority", "validation"}
    assert card["figures"]["majority"] == 1
    samples = digits.samples(tmp_path, tmp_path / "model")
    assert [label for _, label in samples.rows] == [0, 0]
    assert len(samples.explainer(samples.rows[0][0]).scores) == len(samples.rows[0][0])


def test_the_time_left_follows_the_pace_of_the_run(tmp_path, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    films = replace(FILMS, minutes=1, seconds=2)
    estimate = command.Estimate([films], 60, tmp_path, start=0.0)
    (tmp_path / "films" / "model").mkdir(parents=True)
    (tmp_path / "films" / "model" / "card.json").touch()
    clock[0] = 120.0  # twice as long as the training took when it was measured
    estimate.trained(films)
    clock[0] = 240.0
    estimate.evaluated(films, 30, "lrp")
    # 120 s of the 180 s that it should take have taken 240 s, so 60 s take 2 min
    assert "films: 30 samples (lrp); about 2 min left in all" in capsys.readouterr().out
    estimate.evaluated(films, 31, "lrp")
    assert not capsys.readouterr().out  # a line every few seconds only


def test_an_unknown_set_is_named(run):
    found = run("--sets", "films,imbd")
    assert found.exit_code == 2
    assert "imbd" in found.output


def test_long_texts_are_read_from_their_end(base):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = ["the film is very long and good", "a good film"]
    assert clipped(tokenizer, texts, 5) == ["long and good", "a good film"]
    ids = encode(tokenizer, texts, 5)
    assert tokenizer.convert_ids_to_tokens(ids[0]) == ["[CLS]", "long", "and", "good", "[SEP]"]


def test_held_texts_are_not_trained_on(data):
    parts = {part: FILMS.split(data, part)[0] for part in ("train", "validation", "test")}
    assert {part: len(texts) for part, texts in parts.items()} == {
        "train": 90, "validation": 6, "test": 14,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_figures_of_classes_are_those_written_out(seed):
    rng = np.random.default_rng(seed)
    likely, labels = rng.random((50, 3)), rng.integers(0, 3, 50)
    predicted = likely.argmax(1)
    f1 = []
    for label in range(3):
        precision = np.mean(labels[predicted == label] == label)
        recall = np.mean(predicted[labels == label] == label)
        f1.append(2 * precision * recall / (precision + recall))
    found = class_figures(likely, labels.tolist())
    assert found["macro_f1"] == pytest.approx(np.mean(f1), abs=1e-12)
    assert found["majority"] == np.bincount(labels).max() / 50


def test_a_verdict_needs_an_interval_without_zero():
    better = table.Difference(0.1, 0.05, 0.15)
    assert (better.verdict("AUAC"), better.verdict("AU-MSE")) == (1, -1)
    assert table.Difference(0.1, -0.01, 0.2).verdict("AUAC") == 0


def test_a_pair_is_stored_once_and_found_both_ways():
    row = table.Number("s", "AUAC", "GI", "lrp", -0.2, -0.3, -0.1, 9, "")
    numbers = table.Numbers([row])
    assert numbers.difference("s", "AUAC", "GI", "lrp") == table.Difference(-0.2, -0.3, -0.1)
    assert numbers.difference("s", "AUAC", "lrp", "GI") == table.Difference(0.2, 0.1, 0.3)


def test_the_figures_of_the_paper_are_whole_but_for_attention_flow():
    paper = table.paper_figures()
    titles = {of.title for of in registry.SETS.values()}
    for measure in ("AUAC", "AU-MSE"):
        for method in PAPER:
            there = {title for m, row, title in paper if (m, row) == (measure, method)}
            assert there == ({"SST-2", "BACE"} if method == "A-Flow" else titles)
