"""Citations and verdicts against labels: figures counted by hand, and advice that follows."""

import json
import math

import pytest

from tests.command_line import caller
from wherefrom import Prompt
from wherefrom.evaluation.answers import AnswerEvaluation, LabelledAnswer, evaluate_answers


def labelled(supporting, first, cited, probabilities):
    return LabelledAnswer(
        tuple(supporting), tuple(first), tuple(cited), ("unclear",) * len(probabilities),
        tuple(probabilities), 2.0,
    )  # fmt: skip


def test_figures_are_those_counted_by_hand():
    result = AnswerEvaluation("m", (
        labelled(["passage 1"], ["passage 1"], ["passage 1", "passage 2"], [0.9]),
        labelled(["passage 1", "passage 2"], ["passage 2", "passage 3"], ["passage 2"], [0.7, 0.3]),
        labelled([], [], ["passage 3"], [0.3, 0.1]),
    ))  # fmt: skip
    assert result.recall == pytest.approx((1 + 0.5) / 2)
    assert result.citation_recall == pytest.approx((1 + 0.5) / 2)
    assert result.citation_precision == pytest.approx(2 / 4)
    # supported .9 .7 .3, others .3 .1: of 6 pairs 5 right and one level
    assert result.area == pytest.approx(5.5 / 6)
    assert result.calibration == [
        (pytest.approx(0.1), 0.0, 1), (pytest.approx(0.3), 0.5, 2),
        (pytest.approx(0.7), 1.0, 1), (pytest.approx(0.9), 1.0, 1),
    ]  # fmt: skip
    assert result.gap == pytest.approx((0.1 + 2 * 0.2 + 0.3 + 0.1) / 5)
    assert result.seconds == 2.0
    assert AnswerEvaluation.from_json(result.to_json()) == result


def of_many(supported, others, count=20):
    good = [labelled(["passage 1"], ["passage 1"], [], [supported])] * count
    return AnswerEvaluation("m", tuple(good + [labelled([], [], [], [others])] * count))


@pytest.mark.parametrize(
    ("result", "advice"),
    [
        (of_many(0.95, 0.05), "Show verdicts"),
        (of_many(0.6, 0.4), "Sort sentences by the probability, but do not show it"),
        (of_many(0.4, 0.6), "Do not show verdicts"),
        (of_many(0.5, 0.5), "Do not show verdicts"),
        (of_many(0.95, 0.05, count=14), "No recommendation"),
    ],
)
def test_the_advice_follows_from_the_figures(result, advice):
    assert result.recommendation.startswith(advice)
    assert advice in str(result)


def test_without_labels_of_a_sort_there_are_no_figures():
    result = AnswerEvaluation("m", (labelled([], [], [], [0.2]),))
    assert math.isnan(result.recall)
    assert math.isnan(result.area)
    assert result.recommendation.startswith("No recommendation")
    assert "0 and 1" in result.recommendation


def test_answers_are_compared_with_their_labels(talker):
    prompt = Prompt("who is it?", ["the movie is lovely.", "Paris is the movie."])
    text = " it is Paris."
    result = evaluate_answers(talker, [prompt, prompt], [text, text], [[2], []])
    answer = talker.answer(prompt, text)
    (verdict,) = answer.verdicts()
    best = next(s.name for s in answer.sources("passage") if s.name != "question")
    first, second = result.answers
    assert first.supporting == ("passage 2",)
    assert first.first == (best,)
    assert (second.supporting, second.first) == ((), ())
    for labels in result.answers:
        assert labels.probabilities == pytest.approx((verdict.probability,), abs=1e-6)
        assert labels.cited == tuple(support.passage for support in verdict.passages)


def test_the_command_reads_a_labelled_file(talker, tmp_path, monkeypatch):
    folder, file = tmp_path / "model", tmp_path / "answers.jsonl"
    talker.runner.model.save_pretrained(folder)
    talker.tokenizer.save_pretrained(folder)
    line = {"question": "who?", "passages": ["the movie.", "a film."], "answer": " it is."}
    file.write_text("".join(json.dumps({**line, "supporting": s}) + "\n" for s in ([1], [])))
    run = caller(folder, monkeypatch)
    done = run("evaluate", file, "--out", tmp_path / "out")
    assert "2 answers, 2 sentences, 1 in supported answers" in done.stdout
    saved = AnswerEvaluation.from_json(tmp_path / "out" / "evaluation.json")
    assert saved.answers[0].supporting == ("passage 1",)
    file.write_text(json.dumps({**line, "supporting": [3]}) + "\n")
    done = run("evaluate", file, "--out", tmp_path / "out")
    assert "supporting must be a list of numbers of passages, 1 to 2" in done.stderr
