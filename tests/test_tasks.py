"""What a model's head says: several labels, a number, entities, answers, masks."""

import pytest
import torch
import transformers

from benchmarks.tiny import config
from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import Explainer, audit, evaluate
from wherefrom.errors import InputError, ModelError, TargetError
from wherefrom.show.text_marks import heading

TEXT = "the film is great and not unlikeable"


def made(kind, **changes):
    """A tiny random model of this class."""
    torch.manual_seed(0)
    model = kind(config(kind.config_class, **changes)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pipeline(model, tokenizer):
    return transformers.pipeline(
        "text-classification", model=model, tokenizer=tokenizer, top_k=None
    )


def test_several_labels_at_once_have_a_sigmoid_each(pair_wordpiece):
    model = tiny("bert", "classify", problem_type="multi_label_classification")
    expected = {r["label"]: r["score"] for r in pipeline(model, pair_wordpiece)([TEXT])[0]}
    explainer = Explainer(model, pair_wordpiece)
    for label, score in expected.items():
        explained = explainer(TEXT, target=label)
        exactly(explained.probability, score, tol=1e-6)
        assert f"{100 * score:.1f} %" in heading(explained)
    assert sum(expected.values()) != pytest.approx(1, abs=0.05)
    renamed = Explainer(model, pair_wordpiece, labels=["a", "b", "c"])(TEXT, target="a")
    exactly(renamed.probability, expected["LABEL_0"], tol=1e-6)


def test_a_forward_of_the_users_keeps_the_kind_of_its_labels(pair_wordpiece):
    model = tiny("bert", "classify", problem_type="multi_label_classification")

    def explained(forward):
        return Explainer(model, pair_wordpiece, forward=forward)(TEXT, target=0).probability

    expected = Explainer(model, pair_wordpiece)(TEXT, target=0).probability
    exactly(explained(lambda m, x: m(**x).logits), expected)
    exactly(
        explained(lambda m, x: m(**x).logits[:, :2]),
        float(
            torch.tensor(
                [
                    e.output
                    for e in (Explainer(model, pair_wordpiece)(TEXT, target=t) for t in (0, 1))
                ]
            ).softmax(0)[0]
        ),
        tol=1e-6,
    )


@pytest.mark.parametrize(
    ("labels", "problem", "says"),
    [
        (3, None, "softmax"),
        (3, "single_label_classification", "softmax"),
        (3, "regression", None),
        (1, None, None),
        (1, "regression", None),
        (1, "multi_label_classification", "sigmoid"),
    ],
)
def test_the_problem_type_says_whether_there_is_a_probability(
    labels, problem, says, pair_wordpiece
):
    model = tiny("bert", "classify", num_labels=labels, problem_type=problem)
    explained = Explainer(model, pair_wordpiece)(TEXT, target=0)
    with torch.no_grad():
        logits = model(**pair_wordpiece(TEXT, return_tensors="pt")).logits[0]
    expected = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid()}.get(says)
    if expected is None:
        assert explained.probability is None
        assert "%" not in heading(explained)
    else:
        exactly(explained.probability, float(expected[0]))


def test_metrics_use_the_models_own_probability(pair_wordpiece):
    outcomes = {}
    for problem in (None, "multi_label_classification", "regression"):
        model = tiny("bert", "classify", problem_type=problem)
        explainer = Explainer(model, pair_wordpiece)
        result = evaluate(explainer, [(TEXT, 0)], ["lrp"], ["activation"], every=True)
        outcomes[problem] = result.series["lrp"]["activation"][0]
        logits = torch.tensor(explainer(TEXT, target=0).output)
        assert ("no probabilities" in " ".join(result.notes)) == (problem == "regression")
    exactly(outcomes["multi_label_classification"][-1], float(logits.sigmoid()), tol=1e-6)
    exactly(outcomes["regression"][-1], float(logits), tol=1e-6)
    assert outcomes[None][-1] != pytest.approx(outcomes["multi_label_classification"][-1])


TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
OF_WORDS = {"great": 1, "and": 2, "film": 3, "un": 2}  # all other words are outside
TAGGED = ["is great and not film", "not unable", "is film", "great", "is not"]


@pytest.fixture(scope="module")
def tagger(pair_wordpiece):
    """A model whose head is fitted to the classes of a few words, by least squares."""
    model = made(transformers.BertForTokenClassification, num_labels=4)
    model.config.id2label = TAGS
    states, classes = [], []
    with torch.no_grad():
        for text in TAGGED:
            encoded = pair_wordpiece(text, return_tensors="pt")
            states.append(model.bert(**encoded).last_hidden_state[0])
            classes += [OF_WORDS.get(token, 0) for token in encoded.tokens()]
        rows = torch.cat(states)
        wanted = 5 * torch.nn.functional.one_hot(torch.tensor(classes), 4).to(rows)
        model.classifier.weight.copy_(torch.linalg.lstsq(rows, wanted).solution.T)
        model.classifier.bias.zero_()
    return Explainer(model, pair_wordpiece)


def tag_logits(explainer, text):
    with torch.no_grad():
        return explainer.runner.model(**explainer.tokenizer(text, return_tensors="pt")).logits[0]


def test_an_entity_is_explained_over_its_words(tagger):
    explained = tagger("is great and not film")
    rows = tag_logits(tagger, "is great and not film")
    assert rows.argmax(-1).tolist()[1:-1] == [0, 1, 2, 0, 3]
    exactly(explained.output, float((rows[2, 1] + rows[3, 2]) / 2))
    chances = rows.softmax(-1)
    exactly(explained.probability, float((chances[2, 1] + chances[3, 2]) / 2))
    assert explained.target.label == "PER"
    assert explained.target.position == 2
    assert explained.target.place == '"great and", tokens 2 to 3'
    assert '"great and", tokens 2 to 3' in str(explained)
    exactly(explained.ledger.residual, 0, tol=1e-9)


def test_another_entity_is_asked_for_by_its_words(tagger):
    rows = tag_logits(tagger, "is great and not film")
    explained = tagger("is great and not film", entity="film")
    assert (explained.target.label, explained.target.position) == ("LOC", 5)
    exactly(explained.output, float(rows[5, 3]))
    as_person = tagger("is great and not film", entity="not film", target="PER", against="O")
    exactly(as_person.output, float((rows[4, 1] + rows[5, 2] - rows[4, 0] - rows[5, 0]) / 2))
    for label in ("B-PER", 1):
        explained = tagger("is great and not film", entity="not film", target=label)
        exactly(explained.output, float((rows[4, 1] + rows[5, 1]) / 2))


def test_a_word_of_several_tokens_counts_once(tagger):
    explained = tagger("not unable")
    assert [unit.text for unit in explained.units] == ["[CLS]", "not", "un", "able", "[SEP]"]
    assert explained.target.place == '"unable", tokens 2 to 3'
    exactly(explained.output, float(tag_logits(tagger, "not unable")[2, 2]))


def test_one_token_is_explained_by_its_position_and_said(tagger):
    explained = tagger("is great and not film", position=2)
    exactly(explained.output, float(tag_logits(tagger, "is great and not film")[2, 1]))
    assert explained.target.place == 'token 2, "great"'
    assert 'token 2, "great"' in str(explained)


def test_a_list_of_texts_has_an_entity_each(tagger):
    explanations = tagger(["is film", "great"])
    assert [e.target.label for e in explanations] == ["LOC", "PER"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "the model finds no entity"),
        ({"entity": "Paris"}, '"Paris" is not in the text. Entities that the model finds: none'),
        ({"entity": "not", "target": "O", "against": "O"}, "same class"),
    ],
)
def test_no_such_entity(options, says, tagger):
    with pytest.raises(TargetError, match=says):
        tagger("is not", **options)


def test_classes_without_an_outside_ask_for_words(pair_wordpiece):
    explainer = Explainer(made(transformers.BertForTokenClassification), pair_wordpiece)
    with pytest.raises(TargetError, match='the model has no class "O"'):
        explainer(TEXT)
    assert explainer(TEXT, entity="film").target.place == '"film", token 2'


def test_models_of_spans_are_not_evaluated(tagger, reader):
    for explainer in (tagger, reader):
        with pytest.raises(ModelError, match="predicts spans of its input, which cannot be evalu"):
            evaluate(explainer, [TEXT], ["lrp"])
        with pytest.raises(ModelError, match="predicts spans of its input"):
            audit(explainer, [TEXT], ["lrp"])


@pytest.fixture(scope="module")
def reader(pair_wordpiece):
    return Explainer(made(transformers.BertForQuestionAnswering, num_labels=2), pair_wordpiece)


def answered(explainer, question, context):
    """Start and end by brute force: the likeliest within the context, not longer than 15."""
    encoded = explainer.tokenizer(question, context, return_tensors="pt")
    with torch.no_grad():
        out = explainer.runner.model(**encoded)
    places = [i for i, side in enumerate(encoded.sequence_ids()) if side == 1]
    start, end = (
        dict(zip(places, logits[0, places].softmax(-1).tolist(), strict=True))
        for logits in (out.start_logits, out.end_logits)
    )
    pairs = [(s, e) for s in places for e in places if s <= e < s + 15]
    best = max(pairs, key=lambda pair: start[pair[0]] * end[pair[1]])
    return best, start[best[0]] * end[best[1]], out.start_logits[0], out.end_logits[0]


@pytest.mark.parametrize("question", ["is it good", "was the movie dull", "love or hate"])
def test_the_answer_to_a_question_is_explained_at_both_ends(question, reader):
    context = (
        "the film is great and not dull . i love it and the script was good and not bad at all"
    )
    (first, last), probability, start, end = answered(reader, question, context)
    explained = reader({"question": question, "context": context})
    exactly(explained.output, float(start[first] + end[last]))
    exactly(explained.probability, probability)
    exactly(explained.ledger.residual, 0, tol=1e-9)
    span = explained.units[first].start, explained.units[last].end
    assert explained.target.label == explained.text[slice(*span)]
    assert "start and end of the answer" in explained.target.place
    assert str(first) in explained.target.place
    assert explained.target.label in str(explained)
    only_start = reader((question, context), target="start")
    exactly(only_start.output, float(start[first]))
    exactly(
        only_start.probability,
        float(start[_places(explained)].softmax(-1)[_places(explained).index(first)]),
    )
    exactly(reader((question, context), target="end", position=-2).output, float(end[-2]))


def _places(explained):
    return [i for i, unit in enumerate(explained.units) if unit.field == "context"]


def test_every_kind_of_method_explains_an_answer(reader):
    expected = reader(("is it good", TEXT)).output
    for name in ("gradient_x_input", "integrated_gradients", "gae", "occlusion"):
        exactly(reader(("is it good", TEXT), name).output, expected)
    # the sum of both ends is explained as the sum of their explanations, where that is linear
    both, start, end = (
        reader(("is it good", TEXT), "gradient_x_input", **options).scores
        for options in ({}, {"target": "start", "position": 7}, {"target": "end", "position": 9})
    )
    assert both.shape == start.shape == end.shape
    first, last = answered(reader, "is it good", TEXT)[0]
    halves = [
        reader(("is it good", TEXT), "gradient_x_input", target=t, position=p).scores
        for t, p in (("start", first), ("end", last))
    ]
    exactly(sum(halves), both, tol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "options", "error", "says"),
    [
        ("good film", {}, InputError, "answers a question from a context: pass both"),
        (("is it", TEXT), {"target": 1}, TargetError, '"start", "end", or'),
        (("is it", TEXT), {"against": "end"}, TargetError, "there is no class to subtract"),
        (("is it", TEXT), {"position": 3}, TargetError, "a position needs the target"),
        (("is it", TEXT), {"target": "end", "position": 99}, TargetError, "no position 99"),
    ],
)
def test_a_question_that_cannot_be_explained(inputs, options, error, says, reader):
    with pytest.raises(error, match=says):
        reader(inputs, **options)


def test_a_masked_word_is_explained_and_said(pair_wordpiece):
    explainer = Explainer(tiny("bert", "fill"), pair_wordpiece)
    explained = explainer("the [MASK] is great")
    assert explained.target.place == 'token 2, "[MASK]"'
    assert 'token 2, "[MASK]"' in str(explained)
    for text in ("the film", "[MASK] is [MASK]"):
        with pytest.raises(TargetError, match="pass the position to explain"):
            explainer(text)
    assert explainer("the film", position=1).target.place == 'token 1, "the"'
