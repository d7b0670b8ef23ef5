"""A resumed evaluation is one run: same weights, data, settings and versions, one process."""

import copy
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from PIL import Image

from examples.draw import DIGITS, drawn
from tests.helpers import contents, full_disk
from wherefrom import Explainer, evaluate, load
from wherefrom.errors import FileError, NotFinite
from wherefrom.evaluation.evaluate import FIRST_WINDOW
from wherefrom.evaluation.metrics import METRICS
from wherefrom.methods import Method
from wherefrom.methods.base import Scores
from wherefrom.storage.writing import locked

TEXTS = [f"the film is {word}" for word in "good bad great dull not of i love hate it".split()]
OPTIONS = {"methods": ["random"], "metrics": ["activation"]}


@pytest.fixture
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


def parts(folder):
    """The finished parts, in the order of their samples."""
    return sorted((folder / "checkpoint").glob("part-*.json"))


def saved(folder):
    """The numbers of the saved samples."""
    records = [json.loads(path.read_bytes()) for path in parts(folder)]
    return sorted(sample["sample"] for record in records for sample in record["samples"])


def refused(match, folder, *args, **options):
    """Not resumed, and nothing of what was finished is touched."""
    before = contents(folder)
    with pytest.raises(FileError, match=match):
        evaluate(*args, out=folder, **OPTIONS | options)
    assert contents(folder) == before


def test_other_weights_under_the_same_name_are_refused(explainer, bert, wordpiece, tmp_path):
    evaluate(explainer, TEXTS, out=tmp_path, **OPTIONS)
    other = copy.deepcopy(bert)
    with torch.no_grad():
        other.classifier.bias += 1e-9
    other = Explainer(other, wordpiece)
    assert other.runner.name == explainer.runner.name
    refused(r"changed \(other weights\)", tmp_path, other, TEXTS, resume=True)


def test_other_images_under_the_same_paths_are_refused(tmp_path):
    paths = [tmp_path / f"{name}.png" for name in ("three", "seven")]
    for path in paths:
        Image.fromarray(drawn(DIGITS[path.stem])).save(path)
    explainer, names = load("digits"), [str(path) for path in paths]
    evaluate(explainer, names, out=tmp_path / "out", **OPTIONS)
    again = evaluate(explainer, names, out=tmp_path / "out", resume=True, **OPTIONS)
    assert again.timing["computed"] == 0
    Image.fromarray(drawn(DIGITS["seven"])).save(paths[0])
    refused(r"changed \(other data\)", tmp_path / "out", explainer, names, resume=True)


def test_other_versions_and_labels_are_refused(explainer, tmp_path, monkeypatch):
    evaluate(explainer, TEXTS, out=tmp_path, **OPTIONS)
    pairs = [(text, 1) for text in TEXTS]
    refused(r"changed \(other data\)", tmp_path, explainer, pairs, resume=True)
    monkeypatch.setattr("wherefrom.storage.fingerprint.__version__", "99")
    refused(r"changed \(wherefrom \S+ → 99\)", tmp_path, explainer, TEXTS, resume=True)


def test_a_metric_of_the_same_name_with_other_settings_is_refused(explainer, tmp_path):
    evaluate(explainer, TEXTS, out=tmp_path, **OPTIONS)
    other = copy.copy(METRICS["activation"])
    object.__setattr__(other, "title", "another")
    refused("other metric settings", tmp_path, explainer, TEXTS, metrics=[other], resume=True)


def test_without_resume_a_run_with_results_is_never_emptied(explainer, tmp_path):
    evaluate(explainer, TEXTS, out=tmp_path, **OPTIONS)
    refused(r"has 2 finished parts .*resume=True", tmp_path, explainer, TEXTS)
    refused(r"has 2 finished parts", tmp_path, explainer, TEXTS[:2], methods=["lrp"])


def test_a_run_without_results_may_be_started_over(explainer, tmp_path):
    def stop(done, total, step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="before the first samples"):
        evaluate(explainer, TEXTS, out=tmp_path, progress=stop, **OPTIONS)
    assert saved(tmp_path) == []
    assert evaluate(explainer, TEXTS[:3], out=tmp_path, **OPTIONS).samples == 3


def test_a_second_run_in_the_folder_is_refused_while_the_first_is_on(explainer, tmp_path):
    def other_run(done, total, step):
        with pytest.raises(FileError, match=r"another run .* is writing to"):
            evaluate(explainer, TEXTS, out=tmp_path, resume=True, **OPTIONS)

    result = evaluate(explainer, TEXTS, out=tmp_path, progress=other_run, **OPTIONS)
    assert result.samples == len(saved(tmp_path)) == 10
    with locked(tmp_path):  # free again
        pass


@pytest.mark.parametrize("damage", ["other run", "half written", "missing"])
def test_a_part_that_is_damaged_or_of_another_run_is_computed_again(explainer, tmp_path, damage):
    whole = evaluate(explainer, TEXTS, out=tmp_path, **OPTIONS)
    path = parts(tmp_path)[1]
    record = json.loads(path.read_bytes())
    if damage == "other run":
        record["samples"][0]["values"] = {"random": {"activation": 99.0}}
        path.write_text(json.dumps(record | {"run": "0" * 16}))
    elif damage == "half written":
        path.write_bytes(path.read_bytes()[:-40])
    else:
        path.unlink()
    again = evaluate(explainer, TEXTS, out=tmp_path, resume=True, **OPTIONS)
    assert again.values == whole.values
    assert again.timing["computed"] > 0
    assert saved(tmp_path) == list(range(10))


def test_parts_that_disappear_during_a_run_are_an_error(explainer, tmp_path):
    def delete(done, total, step):
        for path in parts(tmp_path):
            path.unlink()

    with pytest.raises(
        FileError, match=r"files of \d finished parts? .* are missing .*resume=True"
    ):
        evaluate(explainer, TEXTS, out=tmp_path, progress=delete, **OPTIONS)


def test_a_full_disk_loses_nothing_and_says_so(explainer, tmp_path):
    whole = evaluate(explainer, TEXTS, **OPTIONS)
    message = r"cannot write .*part-.*json: .* The parts finished before are saved.*resume=True"
    evaluate(explainer, TEXTS, out=tmp_path, progress=stop_after(FIRST_WINDOW), **OPTIONS)
    before = contents(tmp_path)
    with full_disk(1000), pytest.raises(FileError, match=message):
        evaluate(explainer, TEXTS, out=tmp_path, resume=True, **OPTIONS)
    assert contents(tmp_path) == before
    again = evaluate(explainer, TEXTS, out=tmp_path, resume=True, **OPTIONS)
    assert again.values == whole.values
    assert not list(tmp_path.rglob("*.partial"))


def stop_after(samples):
    """Progress that raises Ctrl-C after so many samples."""

    def stop(done, total, step):
        if done > samples:
            raise KeyboardInterrupt

    return stop


# Ctrl-C.


def test_ctrl_c_soon_after_the_start_leaves_a_result(explainer):
    part = evaluate(explainer, TEXTS, progress=stop_after(FIRST_WINDOW), **OPTIONS)
    assert not part.complete
    assert part.samples == FIRST_WINDOW < 10
    assert "(interrupted: partial result)" in str(part)


@dataclass(frozen=True)
class FailsFirst(Method):
    """Fails on so many different inputs, and then works."""

    name: ClassVar[str] = "fails_first"
    inputs: int = 0
    seen: ClassVar[set] = set()

    def scores(self, case):
        for text in case.batch.texts:
            if len(self.seen) < self.inputs or text in self.seen:
                self.seen.add(text)
                raise NotFinite("not yet")
        return Scores(case.batch.mask.double())


def test_a_method_is_not_given_up_for_the_few_samples_of_the_first_window(explainer):
    texts = [f"{text} {'film ' * n}" for n in range(4) for text in TEXTS]
    few, many = FailsFirst(6), FailsFirst(40)
    FailsFirst.seen.clear()
    result = evaluate(explainer, texts, ["random", few], ["entropy"])
    assert result.methods == ["random", few.label]
    assert result.skipped == {"a method failed": 6}
    FailsFirst.seen.clear()
    result = evaluate(explainer, texts, ["random", many], ["entropy"])
    assert result.methods == ["random"]
    assert result.settings["failed"] == {many.label: "not yet"}
    assert result.skipped == {}
    assert result.samples == 40
