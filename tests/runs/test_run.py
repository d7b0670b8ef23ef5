"""`run`: every row once, explained or rejected, as if alone; and resumed after any end."""

import json
import shutil
import sys
import warnings

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

import wherefrom
from tests.corpus import planted
from tests.helpers import contents
from tests.test_readme import ROOT, blocks
from wherefrom import Explainer, explain_frame, load
from wherefrom.cli import app
from wherefrom.errors import FileError, InputError, MissingExtra, ModelError, TargetError, row_sum
from wherefrom.runs.engine import Engine, ModelSource
from wherefrom.runs.evaluations import recorded_by
from wherefrom.runs.explain_rows import RowExplainer
from wherefrom.runs.parts import ColumnNames, open_source
from wherefrom.runs.rows import FRAME, TYPES, explained_row, explanation_of, spark_schema
from wherefrom.runs.run import LoadAndExplain, _follow
from wherefrom.storage.arrow import Folder
from wherefrom.storage.fingerprint import explainer_fingerprint
from wherefrom.storage.store import Store, StoredTable, check_same_run

parquet = pytest.importorskip("pyarrow.parquet")
filesystems = pytest.importorskip("pyarrow.fs")

TEXTS = planted.texts(0)[:40]


@pytest.fixture(scope="module")
def explainer():
    return planted.explainer(0, 0.0)


def rows_of(folder):
    return parquet.read_table(folder).to_pylist()


def test_a_row_is_the_explanation_of_its_text(explainer, tmp_path):
    result = wherefrom.run(
        explainer, list(zip(TEXTS, [1] * 40, strict=True)), tmp_path, part_rows=16
    )
    assert (result.explained, result.rejected, result.parts) == (40, 0, 3)
    table = parquet.read_table(tmp_path / "results.parquet")
    assert table.column_names == list(TYPES)
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == [str(k) for k in range(40)]
    for text, row in zip(TEXTS, rows, strict=True):
        alone = explainer(text)
        again = explanation_of(row)
        assert (again.units, again.target, again.text) == (alone.units, alone.target, alone.text)
        assert (again.method, again.model) == (alone.method, alone.model)
        assert (again.settings, again.versions) == (alone.settings, alone.versions)
        np.testing.assert_allclose(again.scores, alone.scores, atol=1e-5)
        assert again.output == pytest.approx(alone.output, abs=1e-5)
        assert again.probability == pytest.approx(alone.probability, abs=1e-6)
        assert again.ledger.relative < 1e-3
        assert [line.label for line in again.ledger.lines] == [
            line.label for line in alone.ledger.lines
        ]
        words = alone.words()
        spans = [(u.text, u.start, u.end) for u in words.units if not u.special]
        stored = zip(row["words"], row["word_starts"], row["word_ends"], strict=True)
        assert list(stored) == spans
        assert [text[a:b] for _, a, b in spans] == row["words"]
        plain = [s for u, s in zip(words.units, words.scores, strict=True) if not u.special]
        np.testing.assert_allclose(row["word_scores"], plain, atol=1e-5)
        assert row["label"] == "1"


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), "pandas.NA"])
def test_a_missing_value_of_a_table_library_is_none_again(explainer, missing):
    if missing == "pandas.NA":
        missing = pytest.importorskip("pandas").NA
    row = explained_row("0", None, explainer(TEXTS[0]))
    row |= {"probability": missing, "against": missing, "against_index": missing}
    row |= {"target_index": np.float64(row["target_index"])}
    again = explanation_of(row)
    assert again.probability is None
    assert (again.target.against, again.target.against_label) == (None, None)
    assert again.target.index == 1
    assert isinstance(again.target.index, int)


def test_target_and_against_are_those_of_an_explanation(explainer, tmp_path):
    wherefrom.run(explainer, TEXTS[:3], tmp_path, target="NEGATIVE", against=1)
    for text, row in zip(TEXTS, rows_of(tmp_path / "results.parquet"), strict=False):
        alone = explainer(text, target=0, against=1)
        assert row["output"] == pytest.approx(alone.output, abs=1e-5)
        assert (row["target"], row["against"]) == ("NEGATIVE", "POSITIVE")
        assert explanation_of(row).target == alone.target
    with pytest.raises(TargetError, match="no label"):
        wherefrom.run(explainer, TEXTS[:3], tmp_path / "x", target="NONE")


def test_a_poisoned_row_is_rejected_with_its_reason_and_stops_nothing(explainer, tmp_path):
    bad = ["", None, 3.5, "film " * 40, "\ud800 film", b"film", "   "]
    texts = [*TEXTS[:20], *bad, *TEXTS[20:]]
    result = wherefrom.run(explainer, texts, tmp_path, part_rows=16)
    assert (result.explained, result.rejected) == (40, 7)
    rejected = rows_of(tmp_path / "rejected.parquet")
    assert [row["id"] for row in rejected] == [str(k) for k in range(20, 27)]
    reasons = ["empty", "no text", "type float", "42 tokens", "U+D800", "type bytes", "empty"]
    for row, reason in zip(rejected, reasons, strict=True):
        assert reason in row["reason"]
    assert rejected[3]["text"] == "film " * 40
    assert "7 rejected" in str(result)
    good = [row["text"] for row in rows_of(tmp_path / "results.parquet")]
    assert good == TEXTS


def test_a_row_that_makes_the_output_infinite_is_rejected_alone(tmp_path):
    explainer = planted.explainer(0, 0.0)
    table = explainer.runner.model.get_input_embeddings().weight
    with torch.no_grad():
        table[explainer.tokenizer.convert_tokens_to_ids(planted.WOMEN[0])] = torch.inf
    texts = [f"the film {name} was dull" for name in planted.WOMEN[:6]]
    result = wherefrom.run(explainer, texts, tmp_path)
    assert (result.explained, result.rejected) == (5, 1)
    assert rows_of(tmp_path / "rejected.parquet")[0]["id"] == "0"


def test_an_error_of_the_model_stops_the_run(explainer, tmp_path, monkeypatch):
    def fail(self, *_, **__):
        raise ModelError("no such call")

    monkeypatch.setattr(Explainer, "each", fail)
    with pytest.raises(ModelError, match="no such call"):
        wherefrom.run(explainer, TEXTS, tmp_path)


def test_batches_hold_no_more_tokens_than_allowed(explainer, tmp_path):
    sizes = []
    hook = explainer.runner.model.register_forward_hook(
        lambda module, args, kwargs, out: sizes.append(kwargs["input_ids"].numel()),
        with_kwargs=True,
    )
    wherefrom.run(explainer, TEXTS, tmp_path, batch_tokens=48)
    hook.remove()
    assert max(sizes) <= 48
    assert len(sizes) > 5


@pytest.mark.parametrize("ending", ["interrupt", "error"])
def test_a_run_that_ended_early_resumes_to_the_same_rows(explainer, tmp_path, ending):
    wherefrom.run(explainer, TEXTS, tmp_path / "whole", part_rows=8)
    out = tmp_path / "out"

    def stop(done, total, note):
        if done >= 16:
            raise KeyboardInterrupt if ending == "interrupt" else ZeroDivisionError

    if ending == "interrupt":
        partly = wherefrom.run(explainer, TEXTS, out, part_rows=8, progress=stop)
        assert (partly.complete, partly.explained) == (False, 16)
    else:
        with pytest.raises(ZeroDivisionError):
            wherefrom.run(explainer, TEXTS, out, part_rows=8, progress=stop)
    # what a killed process leaves: a table without its record, and a half-written file
    table = out / "results.parquet" / "part-00000-000004.parquet"
    table.write_bytes((out / "results.parquet" / "part-00000-000000.parquet").read_bytes())
    (out / "results.parquet" / ".1234.partial").write_bytes(b"half")
    with pytest.raises(FileError, match=r"2 finished parts.*resume=True"):
        wherefrom.run(explainer, TEXTS, out, part_rows=8)
    seen = []
    result = wherefrom.run(
        explainer, TEXTS, out, part_rows=8, resume=True, progress=lambda *a: seen.append(a[:2])
    )
    assert seen == [(16, 40), (24, 40), (32, 40), (40, 40)]
    assert (result.complete, result.explained, result.parts) == (True, 40, 5)
    assert rows_of(out / "results.parquet") == rows_of(tmp_path / "whole" / "results.parquet")
    assert not list(out.rglob("*.partial"))


def test_a_run_resumes_only_with_the_same_data_settings_and_model(explainer, tmp_path):
    wherefrom.run(explainer, TEXTS, tmp_path, part_rows=8)
    for change, reason in (
        ({"data": TEXTS[:39]}, "other data"),
        ({"batch_tokens": 64}, "batches"),
        ({"target": 1}, "target"),
        ({"explainer": planted.explainer(1, 0.0)}, "other weights"),
    ):
        options = {"explainer": explainer, "data": TEXTS, "part_rows": 8} | change
        with pytest.raises(FileError, match=reason):
            wherefrom.run(out=tmp_path, resume=True, **options)
    record = tmp_path / "checkpoint" / "part-00000-000001.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"run": "another"}))
    (tmp_path / "checkpoint" / "part-00000-000003.json").write_text("{half")
    calls = []
    wherefrom.run(
        explainer, TEXTS, tmp_path, part_rows=8, resume=True, progress=lambda *a: calls.append(a)
    )
    assert len(calls) == 3  # what another run or a damaged file says is done again, no more


def test_results_go_to_any_file_system(explainer, tmp_path):
    inside = filesystems.SubTreeFileSystem(str(tmp_path), filesystems.LocalFileSystem())
    Folder.at("data", inside).write("a.jsonl", b'{"text": "a good film"}\n{"text": ""}\n')
    data = wherefrom.runs.parts.Location("data")
    for resume in (False, True):
        result = wherefrom.run(explainer, data, "out", filesystem=inside, resume=resume)
        assert (result.explained, result.rejected) == (1, 1)
    assert rows_of(tmp_path / "out" / "results.parquet")[0]["id"] == "a.jsonl:0"
    assert not list(tmp_path.rglob("*.partial"))


def test_a_worker_with_another_model_is_refused(explainer):
    fingerprint = explainer_fingerprint(explainer)
    worker = ModelSource(explainer, process=-1)
    assert worker.verified(fingerprint, False) is explainer
    with pytest.raises(ModelError, match=r"differs from that of the driver .*other weights"):
        ModelSource(planted.explainer(1, 0.0), process=-1).verified(fingerprint, False)
    versions = {**fingerprint["versions"], "torch": "1.0"}
    with pytest.raises(ModelError, match=r"torch 1.0 → "):
        worker.verified(fingerprint | {"versions": versions}, False)


PARTS = open_source(TEXTS, ColumnNames(), 8).pieces[0]
OPTIONS = {
    "method": "auto", "target": None, "against": None, "batch_size": 128, "batch_tokens": 4096,
    "truncate": False,
}  # fmt: skip


def test_workers_that_load_the_model_write_the_rows_of_a_run(explainer, tmp_path):
    wherefrom.run(explainer, TEXTS, tmp_path / "run", part_rows=8)
    with Store.opened(tmp_path / "later", "a run", {"data": 1}, False) as (opened, finished):
        assert finished == []
        workers = [LoadAndExplain(ModelSource(explainer), OPTIONS, False, opened) for _ in "ab"]
        for number, part in enumerate(PARTS):
            workers[number % 2](part)
    expected, rows = (rows_of(tmp_path / name / "results.parquet") for name in ("run", "later"))
    assert rows == expected
    with Store.opened(tmp_path / "later", "a run", {"data": 1}, True) as (_, finished):
        assert [record["part"] for record in finished] == [part.name for part in PARTS]


def test_workers_with_different_models_are_refused(explainer, tmp_path):
    part, second = next(iter(PARTS)), planted.explainer(1, 0.0)
    with Store.opened(tmp_path, "a run", {"data": 1}, False) as (opened, _):
        record = LoadAndExplain(ModelSource(explainer), OPTIONS, False, opened)(part)
        with pytest.raises(ModelError, match=r"workers have different models.*other weights"):
            LoadAndExplain(ModelSource(second), OPTIONS, False, opened)(part)
    check_same_run(record, record)
    with pytest.raises(ModelError, match="workers have different models"):
        check_same_run(record, record | {"run": "another"})
    with Store.opened(tmp_path, "a run", {"data": 1}, True) as (opened, finished):
        assert finished == [record]
        LoadAndExplain(ModelSource(explainer), OPTIONS, False, opened).loaded()
        with pytest.raises(FileError, match=r"cannot resume.*other weights"):
            LoadAndExplain(ModelSource(second), OPTIONS, False, opened).loaded()
    with (
        pytest.raises(FileError, match=r"cannot resume.*other data"),
        Store.opened(tmp_path, "a run", {"data": 2}, True),
    ):
        pass


def test_a_run_ends_when_its_parts_are_of_different_runs(tmp_path):
    stores = [Store(Folder.at(tmp_path), {"weights": name}) for name in ("one", "other")]

    def work(part):
        counts = {"read": 8, "explained": 8, "rejected": 0, "size": 8}
        return stores[part.number // 3].add(part.name, [], counts)

    with pytest.raises(ModelError, match=r"different models .part-00000-000000 and .*000003"):
        _follow(Engine(), open_source(TEXTS, ColumnNames(), 8), work, stores[0], [], None, None)


@pytest.mark.parametrize("damage", ["missing", "shorter", "no record"])
def test_parts_that_are_gone_are_not_counted_but_written_again(explainer, tmp_path, damage):
    def spoil(*_):
        for path in (tmp_path / "out" / "results.parquet").glob("*1.parquet"):
            if damage == "missing":
                path.unlink()
            elif damage == "shorter":
                path.write_bytes(path.read_bytes()[:100])
        if damage == "no record":
            (tmp_path / "out" / "checkpoint" / "part-00000-000001.json").unlink(missing_ok=True)

    options = {"part_rows": 8, "out": tmp_path / "out"}
    with pytest.raises(FileError, match=r"files of 1 finished part .*000001. are missing"):
        wherefrom.run(explainer, TEXTS, progress=spoil, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = wherefrom.run(explainer, TEXTS, resume=True, **options)
    assert result.explained == 40
    assert any("computed again" in str(w.message) for w in caught) == (damage != "no record")
    wherefrom.run(explainer, TEXTS, tmp_path / "whole", part_rows=8)
    assert rows_of(tmp_path / "out" / "results.parquet") == rows_of(
        tmp_path / "whole" / "results.parquet"
    )


@pytest.mark.parametrize("damage", ["of another part", "other counts", "other rows", "no counts"])
def test_records_and_tables_that_were_changed_are_written_again(explainer, tmp_path, damage):
    out, options = tmp_path / "out", {"part_rows": 8, "method": "gradient_x_input"}
    wherefrom.run(explainer, TEXTS, out, **options)
    before = rows_of(out / "results.parquet")
    records = sorted((out / "checkpoint").glob("part-*.json"))
    record = json.loads(records[1].read_text())
    if damage == "of another part":
        shutil.copy(records[2], records[1])
    elif damage == "other counts":
        records[1].write_text(json.dumps(record | {"read": 900, "explained": 900}))
    elif damage == "no counts":
        records[1].write_text(json.dumps({name: record[name] for name in ("run", "part")}))
    else:
        (table,) = (out / "results.parquet").glob("*1.parquet")
        content = bytearray(table.read_bytes())
        content[len(content) // 3] ^= 1  # as long as before
        table.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = wherefrom.run(explainer, TEXTS, out, resume=True, **options)
    assert (result.read, result.explained, result.parts) == (40, 40, 5)
    assert rows_of(out / "results.parquet") == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("lost", ["settings.json", "part-*.json", "*"])
def test_rows_of_an_earlier_run_are_not_among_the_results(explainer, tmp_path, lost, resume):
    wherefrom.run(explainer, TEXTS, tmp_path, part_rows=8, method="gradient_x_input")
    before = contents(tmp_path / "results.parquet")
    for path in (tmp_path / "checkpoint").glob(lost):
        path.unlink()
    with pytest.raises(FileError, match=r"earlier run|cannot resume"):
        wherefrom.run(
            explainer, TEXTS[:8], tmp_path, part_rows=8, method="gradient_x_input", resume=resume
        )
    assert contents(tmp_path / "results.parquet") == before


def test_tables_of_unfinished_parts_are_removed_at_resume(tmp_path):
    def opened(resume):
        return Store.opened(tmp_path, "a run", {}, resume, tables=["results"])

    with opened(False) as (store, _):
        table = StoredTable("results", {"x": [1]}, {"x": "int"})
        record = store.completed().add("part-1", [table], {})
        store.folder.write("results.parquet/part-2.parquet", b"of a process that was killed")
        store.folder.write("results.parquet/_SUCCESS", b"of another program")
    with opened(True) as (store, finished):
        assert finished == [record]
        assert set(store.folder.sizes("results.parquet")) == {"part-1.parquet", "_SUCCESS"}


@pytest.mark.parametrize("change", ["longer", "deleted"])
def test_data_that_changes_while_it_is_read_is_an_error(explainer, tmp_path, change):
    data = tmp_path / "data.csv"
    data.write_text("text\n" + "".join(f"{text}\n" for text in TEXTS))

    def spoil(*_):
        data.unlink(missing_ok=True)
        if change == "longer":
            data.write_text("text\n" + "a good film\n" * 100)

    with pytest.raises(FileError, match=r"was changed while|No such file"):
        wherefrom.run(
            explainer, data, tmp_path / "out", part_rows=8, method="gradient_x_input",
            progress=spoil,
        )  # fmt: skip


def test_settings_of_a_run_that_finished_nothing_bind_no_other(tmp_path):
    for model in ("one", "other"):
        with Store.opened(tmp_path, "a run", {}, False) as (opened, _):
            opened.completed({"weights": model})


def test_only_a_named_model_is_left_to_workers_before_torch_is_imported(explainer, monkeypatch):
    assert not ModelSource("sentiment").only_named
    monkeypatch.delitem(sys.modules, "torch")
    assert ModelSource("sentiment").only_named
    assert not ModelSource(explainer).only_named


def test_engines_refuse_what_they_cannot_do():
    for options, reason in (
        ({"name": "spark"}, "no engine"),
        ({"workers": 2}, "one process"),
        ({"address": "auto"}, "one process"),
        ({"gpus_per_worker": 1}, "one process"),
        ({"name": "ray", "workers": 0}, "1 or more"),
        ({"name": "ray", "gpus_per_worker": -1}, "0 or more"),
    ):
        with pytest.raises(InputError, match=reason):
            Engine(**options)


def test_without_ray_its_engine_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "wherefrom.runs.ray_engine", raising=False)
    monkeypatch.delattr(wherefrom.runs, "ray_engine", raising=False)
    with pytest.raises(MissingExtra, match=r"wherefrom\[ray\]"):
        list(Engine("ray").results([[1]], str))


def test_workers_of_an_evaluation_give_the_table_of_one_process(explainer):
    rows = [(text, ["NEGATIVE", "POSITIVE"][k % 2]) for k, text in enumerate(TEXTS)]
    rows.insert(20, ("film " * 40, "POSITIVE"))
    options = {
        "methods": ["lrp", "gradient", "random"],
        "metrics": ["activation", "pruning", "conservation", "layers"],
        "window": 16,
    }
    one = wherefrom.evaluate(explainer, rows, **options)
    seen = []
    executor = recorded_by(Engine(), ModelSource(explainer))
    several = wherefrom.evaluate(
        explainer, rows, **options, executor=executor, progress=lambda *a: seen.append(a[0])
    )
    assert several.values == one.values
    assert several.series == one.series
    assert several.skipped == one.skipped == {"too long": 1}
    assert several.study_summaries == one.study_summaries
    assert several.table() == one.table()
    assert several.timing["computed"] == one.timing["computed"]
    assert seen[-1] == 41


def test_the_command_writes_the_rows(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("review\na fine film\n\ndull and long\n", encoding="utf-8")
    out = tmp_path / "out"
    command = ["run", str(path), "--out", str(out), "--method", "gradient_x_input"]
    app(command, standalone_mode=False)
    assert capsys.readouterr().out.startswith("2 read = 2 explained: ")
    rows = rows_of(out / "results.parquet")
    assert [row["text"] for row in rows] == ["a fine film", "dull and long"]
    expected = load("sentiment")("a fine film", "gradient_x_input").scores
    np.testing.assert_allclose(rows[0]["scores"], expected, atol=1e-4)


def test_the_command_takes_settings_a_device_and_an_encoding(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\na fine film\n", encoding="utf-8")
    command = ["run", str(path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(
        app, [*command, "--method", "lrp", "--set", "root=None", "--device", "cpu"]
    )
    assert done.exit_code == 0, done.stderr
    (row,) = rows_of(tmp_path / "out" / "results.parquet")
    expected = load("sentiment")("a fine film", "lrp", root=None).scores
    np.testing.assert_allclose(row["scores"], expected, atol=1e-4)
    path.write_bytes("text\nça va\n".encode("cp1252"))
    command[-1] = str(tmp_path / "other")
    done = CliRunner().invoke(app, [*command, "--encoding", "cp1252"])
    assert done.exit_code == 0, done.stderr
    assert [row["text"] for row in rows_of(tmp_path / "other" / "results.parquet")] == ["ça va"]
    done = CliRunner().invoke(app, [*command, "--device", "nowhere"])
    assert 'there is no device "nowhere"' in done.stderr
    done = CliRunner().invoke(app, [*command, "--device", "cpu", "--engine", "ray"])
    assert done.exit_code == 2
    assert "device applies only to the local engine: Ray" in done.stderr
    assert done.stderr.endswith("For a GPU use --gpus-per-worker 1.\n")


def test_the_command_says_where_reasons_are_and_that_there_are_no_rows(tmp_path):
    path, out = tmp_path / "a.csv", tmp_path / "out"
    path.write_text("text,label\na fine film,1\n,0\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(out)])
    summary = f"2 read = 1 explained + 1 rejected: {out} (reasons: {out}/rejected.parquet)"
    assert done.stdout.strip() == summary
    path.write_text("text,label\n,0\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert f"the reasons are in {tmp_path}/none/rejected.parquet." in done.stderr
    path.write_text("text,label\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "empty")])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.strip() == f"wherefrom: {path} has no rows."


def test_ids_that_occur_twice_are_refused_before_any_row_is_explained(explainer, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    path = data / "a.csv"
    ids = ["a", "b", "c", "a", "d", "b", "e", "c"]
    path.write_text("id,text\n" + "".join(f"{id},a fine film\n" for id in ids), encoding="utf-8")
    with pytest.raises(InputError, match=r'column "id" are not unique: a, b, c\. '):
        wherefrom.run(explainer, path, out, id_column="id", part_rows=3)
    assert not (out / "results.parquet").exists()
    (data / "b.csv").write_text("id,text\nf,dull\ne,dull\n", encoding="utf-8")
    path.write_text("id,text\ne,dull\ng,dull\n,dull\n,dull\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"not unique: e\. "):  # in another file
        wherefrom.run(explainer, data, tmp_path / "both", id_column="id")
    result = wherefrom.run(explainer, path, tmp_path / "one", id_column="id")
    assert (result.read, result.explained) == (4, 4)
    ids = [row["id"] for row in rows_of(tmp_path / "one" / "results.parquet")]
    assert ids == ["e", "g", "a.csv:2", "a.csv:3"]  # a missing id is file and row


@pytest.mark.parametrize("pair", [("question", "sentence"), ("text", "text_pair")])
def test_a_table_of_pairs_is_refused_unless_one_column_is_named(pair, explainer, tmp_path):
    """Half of a pair would be explained as if it were all."""
    frame = pandas.DataFrame([("a fine film", "what a bore")], columns=pair)
    path = tmp_path / "pairs.csv"
    frame.to_csv(path, index=False)
    refused = {"match": f'"{pair[0]}" and "{pair[1]}"'}
    with pytest.raises(InputError, **refused):
        wherefrom.run(explainer, path, tmp_path / "out")
    with pytest.raises(InputError, **refused):
        explain_frame(frame, explainer)
    for column, text in zip(pair, frame.iloc[0], strict=True):
        wherefrom.run(explainer, path, tmp_path / column, text_column=column)
        assert [row["text"] for row in rows_of(tmp_path / column / "results.parquet")] == [text]


def test_rows_that_are_lost_are_an_error():
    assert row_sum(3, explained=3, rejected=0) == "3 read = 3 explained"
    with pytest.raises(FileError, match="3 were read, but 1 explained \\+ 1 rejected make 2"):
        row_sum(3, explained=1, rejected=1)


def test_the_example_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.csv").write_text("text\na fine film\n", encoding="utf-8")
    exec(blocks(ROOT / "docs" / "scale.md", "python")[0], {})
    assert capsys.readouterr().out.startswith("1 read = 1 explained: ")


def test_one_schema_for_tables_and_spark(explainer):
    schema = spark_schema().split(", ")
    assert [entry.split()[0] for entry in schema] == list(FRAME)
    assert "tokens array<string>" in schema
    assert "token_special array<boolean>" in schema
    assert "scores array<float>" in schema
    assert "target_index bigint" in schema
    (rejected,) = RowExplainer(explainer, wherefrom.method("lrp")).rows(["x"], [""], [None])
    assert set(rejected) < set(FRAME)
