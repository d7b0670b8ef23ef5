"""Every route answers with the library's own results."""

import base64
import json

import numpy as np
import pytest
import torch
import transformers

from benchmarks.tiny import model as tiny
from tests.web.helpers import JSON, TEXT, bar_image, body, error_kind
from wherefrom import METHODS, Explainer, Explanation, evaluate
from wherefrom.core.runner import ModelRunner
from wherefrom.core.target import Case
from wherefrom.errors import InputError, ModelError
from wherefrom.evaluation.forward_cache import ForwardCache
from wherefrom.inputs.pictures import decoded
from wherefrom.inputs.records import FILES, LABEL, PAIRS
from wherefrom.inputs.records import TEXT as TEXT_COLUMNS
from wherefrom.methods.attention_maps import capture
from wherefrom.methods.propagation import Lrp
from wherefrom.show.html import render
from wherefrom.show.sentence import explained
from wherefrom.show.text_marks import quoted
from wherefrom.studies.layer_profile import relevance_sums
from wherefrom.web import answers as answers_module
from wherefrom.web.answers import Answers
from wherefrom.web.models import MOLECULES, Models
from wherefrom.web.request import Body, CurveBody, EraseBody, Limits, parse_request


def test_about_lists_models_methods_and_limits(client):
    about = client.get("/api/about").json()
    kinds = {model["name"]: model["input_kind"] for model in about["models"]}
    assert kinds == {"sentiment": "text", "digits": "image", "bace": "text", "flipped": "text"}
    assert about["methods"] == [
        {"name": name, "summary": kind.__doc__.split("\n")[0], "paper": kind.paper}
        for name, kind in METHODS.items()
    ]
    assert about["limits"] == {
        "text_characters": 20_000,
        "answer_tokens": 128,
        "table_texts": 1000,
    }
    assert about["reports"] == []


def test_predict_gives_every_class_its_probability(client, sentiment):
    answer = client.post("/api/predict", json=body()).json()
    inputs, target = sentiment._prepared(TEXT)
    with torch.no_grad():
        logits = sentiment.runner.run(inputs.model_tensors())[0]
    outputs = answer["outputs"]
    assert [output["output"] for output in outputs] == logits.tolist()
    assert [output["probability"] for output in outputs] == logits.double().softmax(0).tolist()
    assert [output["label"] for output in outputs] == ["NEGATIVE", "POSITIVE"]
    assert answer["target"] == int(target.index)
    assert [unit["text"] for unit in answer["units"]] == [unit.text for unit in inputs.units[0]]


@pytest.mark.parametrize("method", ["lrp", "attention_rollout"])
def test_explain_is_the_explainers(client, sentiment, method):
    answer = client.post("/api/explain", json=body(method=method)).json()
    assert answer["explanation"] == sentiment(TEXT, method).to_dict()
    assert answer["seconds"] > 0
    assert len(answer["marks"]) == len(answer["explanation"]["units"])


def test_explain_passes_on_the_librarys_warnings(client):
    answer = client.post("/api/explain", json=body(text="good " * 600, truncate=True)).json()
    assert any("600" in warning or "602" in warning for warning in answer["warnings"])


def test_explain_passes_on_what_the_explanation_warns_of(client):
    answer = client.post("/api/explain", json=body(text="привет мир")).json()
    assert any("knows none of these words" in warning for warning in answer["warnings"])


def test_target_and_contrast_by_number_and_by_name(client, sentiment):
    answer = client.post("/api/explain", json=body(target="NEGATIVE", against=1)).json()
    expected = sentiment(TEXT, target=0, against=1)
    assert answer["explanation"] == expected.to_dict()
    assert expected.target.against_label == "POSITIVE"


def test_compare_sends_a_line_for_each_method(client, sentiment):
    methods = ["lrp", "gradient", "gae"]
    with client.stream("POST", "/api/compare", json=body(methods=methods)) as response:
        rows = [json.loads(line) for line in response.iter_lines()]
    expected = sentiment.compare(TEXT, methods)
    assert [row["method"] for row in rows] == methods
    assert [row["explanation"] for row in rows] == [each.to_dict() for each in expected]


def test_compare_uses_all_methods_but_shapley_by_default(client):
    response = client.post("/api/compare", json=body(text="good"))
    expected = [name for name in METHODS if name != "shapley"]
    assert [json.loads(line)["method"] for line in response.text.splitlines()] == expected


def test_check_has_the_score_and_the_shapley_value_of_each_word(client, sentiment):
    answer = client.post("/api/check", json=body()).json()
    own, shapley = (
        sentiment(TEXT, name, **settings).words()
        for name, settings in (("secant", {}), ("shapley", {"players": "words"}))
    )
    plain = [i for i, unit in enumerate(own.units) if not unit.special]
    rows = answer["rows"]
    assert [row["name"] for row in rows] == [own.units[i].text for i in plain]
    np.testing.assert_allclose([row["score"] for row in rows], own.scores[plain], rtol=1e-5)
    np.testing.assert_allclose([row["value"] for row in rows], shapley.scores[plain], rtol=1e-4)
    assert [row["error"] for row in rows] == [0.0] * len(plain)
    scores, values = own.scores[plain].astype(float), shapley.scores[plain].astype(float)
    r = np.corrcoef(scores, values)[0, 1]
    difference = abs(scores - values).mean() / abs(values).mean()
    assert f"r = {r:.2f}, and the mean difference is {100 * difference:.0f} %" in answer["sentence"]
    assert "exact" in answer["sentence"]
    assert answer["missing"] == "are unknown words"


def test_check_of_a_long_text_has_standard_errors_and_of_a_molecule_atoms(client):
    long = "a gorgeous, witty and seductive movie that never quite comes together in the end."
    answer = client.post("/api/check", json=body(text=long, method="gradient")).json()
    assert all(row["error"] > 0 for row in answer["rows"])
    assert "The scores by gradient are no shares of the output" in answer["sentence"]
    atoms = client.post("/api/check", json=body(model="bace", text="CCO")).json()
    assert (atoms["noun"], atoms["missing"]) == ("atom", "are left out")
    assert [row["name"] for row in atoms["rows"]] == ["C1", "C2", "O3"]


@pytest.mark.parametrize("failing", ["gae", "lrp"], ids=["first", "later"])
def test_compare_gives_the_reason_for_a_method_that_does_not_apply(
    make_client, monkeypatch, failing
):
    explain = Answers.explain

    def refuse(self, request):
        if request.method == failing:
            raise ModelError("no attention here")
        return explain(self, request)

    monkeypatch.setattr(Answers, "explain", refuse)
    response = make_client().post("/api/compare", json=body(methods=["gae", "lrp"]))
    rows = {row["method"]: row for row in map(json.loads, response.text.splitlines())}
    assert rows.pop(failing) == {"method": failing, "error": "no attention here"}
    ((method, row),) = rows.items()
    assert row["explanation"]["method"]["name"] == method


def test_erase_removes_units_as_evaluations_do(client, sentiment):
    answer = client.post("/api/erase", json=body(removed=[2, 4, 2])).json()
    reader = sentiment._reader(TEXT)
    item = reader.read(TEXT)
    present = np.ones((1, reader.size(item)), dtype=bool)
    present[0, [2, 4]] = False
    cache = ForwardCache(reader)
    numbers = cache.request(reader.erased(item, present, None))
    cache.run()
    (logits,) = cache.logits(numbers)
    assert [output["output"] for output in answer["outputs"]] == logits.tolist()
    explanation = sentiment(TEXT)
    assert answer["output"] == logits[explanation.target.index]
    assert answer["output_before"] == pytest.approx(explanation.output, abs=1e-6)


def test_erase_of_nothing_changes_nothing(client):
    answer = client.post("/api/erase", json=body(removed=[])).json()
    assert answer["output"] == pytest.approx(answer["output_before"], abs=1e-6)


def test_erase_of_a_contrast_is_a_difference_of_outputs(client):
    answer = client.post("/api/erase", json=body(removed=[2], target=1, against=0)).json()
    negative, positive = (output["output"] for output in answer["outputs"])
    assert answer["output"] == pytest.approx(positive - negative, abs=1e-6)


@pytest.mark.parametrize("curve", ["activation", "pruning"])
def test_curve_is_the_evaluations(client, sentiment, curve):
    answer = client.post("/api/curve", json=body(curve=curve, method="gradient")).json()
    label = sentiment(TEXT).target.index
    expected = evaluate(sentiment, [(TEXT, label)], ["gradient"], [curve], every=True)
    assert answer["area"] == pytest.approx(expected.rows()[0]["mean"], abs=1e-6)
    steps = len(answer["present"])
    assert steps == len(answer["fractions"]) == len(answer["probabilities"])
    counts = [row.count("1") for row in answer["present"]]
    assert counts == (list(range(steps)) if curve == "activation" else list(range(steps))[::-1])


@pytest.mark.parametrize("curve", ["activation", "pruning"])
@pytest.mark.parametrize(
    ("outputs", "options", "probability"),
    [
        (3, {"problem_type": "multi_label_classification"}, torch.sigmoid),
        (3, {}, lambda logits: logits.softmax(-1)),
        (1, {}, lambda logits: logits),
    ],
    ids=["multi-label", "classes", "regression"],
)
def test_curve_uses_the_probability_of_the_task(wordpiece, curve, outputs, options, probability):
    """Recomputed by erasing the units that each step lacks; the class is not the predicted one."""
    model = tiny("bert", "classify", num_labels=outputs, **options).float()
    explainer = Explainer(model, wordpiece)
    predicted = explainer(TEXT).target.index
    target = (predicted + 1) % outputs
    content = json.dumps({"model": "m", "text": TEXT, "target": target, "curve": curve}).encode()
    models = Models({"m": explainer})
    request = parse_request(content, CurveBody, models, Limits())
    answer = Answers(Limits()).curve(request)
    ids = torch.tensor(explainer.tokenizer(TEXT)["input_ids"])
    rows = []
    for present in answer["present"]:
        erased = torch.tensor([bit == "0" for bit in present])
        tensors = {"input_ids": ids.masked_fill(erased, explainer.tokenizer.unk_token_id)[None]}
        with torch.no_grad():
            rows.append(model(**tensors, attention_mask=torch.ones_like(ids)[None]).logits[0])
    expected = probability(torch.stack(rows))[:, target]
    if curve == "activation":
        assert answer["curve"] == pytest.approx(expected.tolist(), abs=1e-5)
        middle = (expected[1:] + expected[:-1]).mean() / 2
        assert answer["area"] == pytest.approx(float(middle), abs=1e-5)
    if answer["probabilities"] is not None:
        assert answer["probabilities"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert (answer["probabilities"] is None) == (outputs == 1)


@pytest.mark.parametrize("curve", ["activation", "pruning"])
def test_the_control_of_a_curve_is_the_mean_of_shuffled_scores(client, sentiment, curve):
    request = body(text="a gorgeous, dull film.")
    control = client.post("/api/curve", json={**request, "curve": curve}).json()["control"]
    explanation = sentiment(request["text"])
    count, label = len(explanation.scores), explanation.target.index
    shuffle, curves = np.random.default_rng(0).permutation, []
    for _ in range(control["count"]):
        scores = shuffle(explanation.scores)
        order = np.argsort(-scores if curve == "activation" else abs(scores), kind="stable")
        chances = []
        for step in range(count + 1):
            removed = order[step:] if curve == "activation" else order[:step]
            answer = client.post("/api/erase", json={**request, "removed": removed.tolist()})
            chances.append(answer.json()["outputs"][label]["probability"])
        curves.append(chances)
    assert control["probabilities"] == pytest.approx(np.mean(curves, 0).tolist(), abs=1e-5)


def test_curve_of_a_long_text_has_ten_steps(client):
    answer = client.post("/api/curve", json=body(text="good " * 70, curve="activation")).json()
    assert len(answer["present"]) == 11


@pytest.mark.parametrize(("units", "steps"), [(64, 65), (65, 11)])
def test_curve_has_a_step_for_each_of_up_to_64_units(client, units, steps):
    text = "good " * (units - 2)  # and the two special tokens
    answer = client.post("/api/curve", json=body(text=text, curve="activation")).json()
    assert {len(row) for row in answer["present"]} == {units}
    assert len(answer["present"]) == steps


def test_layers_sum_to_the_layer_profile(client, sentiment):
    answer = client.post("/api/layers", json=body()).json()
    inputs, target = sentiment._prepared(TEXT)
    expected = relevance_sums(sentiment.runner, inputs, target, Lrp().resolved(inputs).table())
    sums = {row["name"]: sum(row["units"]) + row["others"] for row in answer["rows"][1:]}
    assert sums == pytest.approx({k: v for k, v in expected.blocks.items() if k != "input"})
    assert answer["rows"][0]["units"] == sentiment(TEXT, "lrp").to_dict()["scores"]


def test_attention_is_the_map_of_a_layer_and_a_head(client, sentiment):
    inputs, target = sentiment._prepared(TEXT)
    maps = capture(Case(sentiment.runner, inputs, target), gradients=False).maps
    head = client.post("/api/attention", json=body(layer=3, head=3)).json()
    mean = client.post("/api/attention", json=body(layer=3, head=0)).json()
    assert np.array(head["weights"]) == pytest.approx(maps[2][0, 2].numpy(), abs=1e-5)
    assert np.array(mean["weights"]) == pytest.approx(maps[2][0].mean(0).numpy(), abs=1e-5)
    assert (head["layers"], head["heads"]) == (len(maps), maps[0].shape[1])
    assert head["queries"][0] == "[CLS]"
    heads = maps[2].shape[1]
    last = client.post("/api/attention", json=body(layer=3, head=heads)).json()
    assert np.array(last["weights"]) == pytest.approx(maps[2][0, -1].numpy(), abs=1e-5)
    beyond = client.post("/api/attention", json=body(layer=3, head=heads + 1))
    error_kind(beyond, 422, "head must be an integer")
    error_kind(client.post("/api/attention", json=body(layer=99)), 422, "layer must be an integer")


def test_positions_of_a_map_say_their_units(client):
    text = client.post("/api/attention", json=body()).json()
    assert text["query_units"] == text["key_units"] == list(range(len(text["queries"])))
    image = {"model": "digits", "image": bar_image()}
    patches = client.post("/api/attention", json=image).json()
    assert patches["key_units"] == [None, *range(49)]  # the class token is no patch


def test_heads_are_all_maps_in_bytes(client, sentiment):
    inputs, target = sentiment._prepared(TEXT)
    maps = capture(Case(sentiment.runner, inputs, target), gradients=False).maps
    layers = client.post("/api/heads", json=body()).json()["layers"]
    assert [len(layer["heads"]) for layer in layers] == [m.shape[1] for m in maps]
    shape = (len(layers[1]["queries"]), len(layers[1]["keys"]))
    content = np.frombuffer(base64.b64decode(layers[1]["heads"][2]), dtype=np.uint8).reshape(shape)
    assert content / 255 == pytest.approx(maps[1][0, 2].numpy(), abs=0.5 / 255 + 1e-6)


def test_heads_of_a_long_text_are_refused_in_words(make_client):
    client = make_client(Limits(view_positions=4))
    answer = client.post("/api/heads", json=body())
    error_kind(answer, 422, "up to 4 tokens", "Choose the map of one head")


def test_an_explanation_comes_with_its_sentence(client, sentiment):
    answer = client.post("/api/explain", json=body()).json()
    explanation = sentiment(TEXT)
    assert "".join(text for _, text in answer["sentence"]).startswith("The model says POSITIVE (")
    assert answer["explained"] == f"{explained(explanation)} By secant(root=unk) on sentiment."
    assert answer["largest"] == pytest.approx(float(abs(explanation.scores).max()))


def test_a_table_has_a_line_for_each_text(client, sentiment):
    texts = ["a dull film", TEXT, "\ud800", ""]
    content = json.dumps({"model": "sentiment", "text": "", "texts": texts})
    answer = client.post("/api/table", content=content, headers=JSON)
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    for row, text in zip(rows[:2], texts, strict=False):
        explanation = sentiment(text)
        assert row["label"] == explanation.target.label
        assert row["probability"] == pytest.approx(explanation.probability)
    assert "half of a character" in rows[2]["error"]


PAIR = ("a gorgeous film.", "it is dreadful.")


@pytest.mark.parametrize("route", ["predict", "explain", "erase", "curve", "layers", "attention"])
def test_a_pair_of_texts_is_one_input(client, sentiment, route):
    request = body(text=PAIR[0], text_pair=PAIR[1], removed=[2], curve="pruning")
    answer = client.post(f"/api/{route}", json=request).json()
    expected = sentiment(PAIR)
    size = len(expected.units)
    if route == "explain":
        assert answer["explanation"] == expected.to_dict()
        assert {unit["field"] for unit in answer["explanation"]["units"]} >= {"first", "second"}
    elif route == "predict":
        assert [unit["text"] for unit in answer["units"]] == [u.text for u in expected.units]
        best = max(answer["outputs"], key=lambda output: output["output"])
        assert best["output"] == pytest.approx(expected.output)
    elif route == "erase":
        assert answer["output_before"] == pytest.approx(expected.output)
        assert answer["output"] != answer["output_before"]
    elif route == "curve":
        assert len(answer["present"][0]) == size
    elif route == "layers":
        assert len(answer["rows"][0]["units"]) == size
    else:
        assert len(answer["weights"]) == size


def test_the_cache_tells_a_pair_from_a_text(client, sentiment):
    for text, second in ((*PAIR,), (f"{PAIR[0]}\n{PAIR[1]}", None), (json.dumps(PAIR), None)):
        expected = sentiment(text) if second is None else sentiment((text, second))
        answer = client.post("/api/explain", json=body(text=text, text_pair=second)).json()
        assert answer["explanation"] == expected.to_dict()


def test_a_table_of_pairs_has_a_line_for_each(client, sentiment):
    request = {"model": "sentiment", "text": "", "texts": ["a film"] * 2}
    seconds = ["it is dreadful", "it is gorgeous"]
    answer = client.post("/api/table", json={**request, "text_pairs": seconds})
    rows = [json.loads(line) for line in answer.text.splitlines()]
    for row, second in zip(rows, seconds, strict=True):
        expected = sentiment(("a film", second))
        assert (row["label"], row["probability"]) == (
            expected.target.label,
            pytest.approx(expected.probability),
        )
    refused = client.post("/api/table", json={**request, "text_pairs": ["one"]})
    error_kind(refused, 422, "2 texts, but 1 text_pairs")


def test_only_models_of_two_texts_take_pairs(client):
    about = client.get("/api/about").json()
    takes = {model["name"]: model["takes_pairs"] for model in about["models"]}
    assert takes == {"sentiment": True, "digits": False, "bace": False, "flipped": True}
    refused = client.post("/api/explain", json=body(model="bace", text="CCO", text_pair="CC"))
    error_kind(refused, 422, "bace reads a single text")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("QuestionAnswering", "a start and an end in a context"),
        ("TokenClassification", "every token"),
    ],
)
def test_models_of_spans_are_refused_in_words(make_client, pair_wordpiece, kind, words):
    model = getattr(transformers, f"BertFor{kind}")
    config = transformers.BertConfig(
        vocab_size=len(pair_wordpiece), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=2,
    )  # fmt: skip
    served = Models({"spans": Explainer(model(config).eval(), pair_wordpiece)})
    client = make_client(models=served)
    for route in ("predict", "explain", "table"):
        request = {"model": "spans", "text": "is it good", "text_pair": "it is", "texts": ["a"]}
        refused = client.post(f"/api/{route}", json=request)
        error_kind(refused, 422, words, "Use the command line")


def test_columns_are_guessed_on_the_page_as_in_the_library(client):
    columns = client.get("/api/about").json()["columns"]
    assert columns["text"] == [name for name in TEXT_COLUMNS if name not in FILES]
    assert columns["label"] == list(LABEL)
    assert columns["pairs"] == [list(pair) for pair in PAIRS]


def test_a_table_that_is_too_long_is_refused(make_client):
    client = make_client(Limits(table_texts=2))
    request = {"model": "sentiment", "text": "", "texts": ["a", "b", "c"]}
    error_kind(client.post("/api/table", json=request), 422, "up to 2 texts", "got 3")
    request["texts"] = "abc"
    error_kind(client.post("/api/table", json=request), 422, "texts: input should be a valid list")
    image = {"model": "digits", "text": "", "texts": ["a"]}
    error_kind(client.post("/api/table", json=image), 422, "takes images")


def test_html_is_the_file_of_the_command_line(client, sentiment):
    single = client.post("/api/html", json=body())
    assert single.text == sentiment(TEXT).to_html()
    both = client.post("/api/html", json=body(methods=["lrp", "gradient"]))
    assert both.text == render(sentiment.compare(TEXT, ["lrp", "gradient"]))


def test_an_image_is_explained_and_its_patches_removed(client, digits):
    content = bar_image()
    request = {"model": "digits", "image": content}
    image = decoded(base64.b64decode(content), 1 << 20)
    explanation = client.post("/api/explain", json=request).json()["explanation"]
    assert explanation == json.loads(digits(image).to_json())
    assert Explanation.from_dict(explanation).scene["kind"] == "image"
    assert client.post("/api/predict", json=request).json()["scene"] == explanation["scene"]
    erased = client.post("/api/erase", json={**request, "removed": [20, 21, 22]}).json()
    assert erased["output"] != erased["output_before"]
    curve = client.post("/api/curve", json={**request, "curve": "activation"}).json()
    assert len(curve["present"]) == 50
    rows = client.post("/api/layers", json=request).json()["rows"]
    assert len(rows[1]["units"]) == 49
    assert rows[1]["others"] != 0  # the class token's
    keys = client.post("/api/attention", json=request).json()["keys"]
    assert keys[:2] == ["·", "0,0"]


def test_a_molecule_is_explained_and_its_atoms_removed(client, bace):
    request = {"model": "bace", "text": MOLECULES[0]}
    explanation = client.post("/api/explain", json=request).json()["explanation"]
    assert explanation == json.loads(bace(MOLECULES[0]).to_json())
    assert explanation["scene"]["kind"] == "molecule"
    erased = client.post("/api/erase", json={**request, "removed": [0, 1]}).json()
    assert erased["output"] != erased["output_before"]
    curve = client.post("/api/curve", json={**request, "curve": "pruning"}).json()
    assert len(curve["present"]) == len(explanation["units"]) + 1
    assert client.post("/api/layers", json=request).json()["rows"][0]["name"] == "input"
    error_kind(client.post("/api/explain", json={**request, "text": "no molecule"}), 422)


def test_a_language_model_predicts_its_next_token(gpt2, bytepairs):
    explainer = Explainer(gpt2, bytepairs)
    content = json.dumps({"model": "gpt2", "text": "I love the movie", "target": 5, "removed": [1]})
    request = parse_request(content.encode(), EraseBody, Models({"gpt2": explainer}), Limits())
    answers = Answers(Limits())
    expected = explainer("I love the movie", target=5)
    outputs = {output["index"]: output for output in answers.predict(request)["outputs"]}
    assert len(outputs) == 11  # the ten most likely, and the target
    assert outputs[5]["output"] == pytest.approx(expected.output, abs=1e-6)
    assert outputs[5]["probability"] == pytest.approx(expected.probability, abs=1e-7)
    assert outputs[5]["label"] == quoted(expected.target.label)  # never blank
    assert answers.explain(request)["explanation"] == expected.to_dict()
    with pytest.raises(InputError, match='no "unk" token'):
        answers.erase(request)


def test_units_of_an_encoder_decoder_model_cannot_be_removed(t5, wordpiece):
    content = json.dumps({"model": "t5", "text": "a good film", "removed": [1]}).encode()
    request = parse_request(content, EraseBody, Models({"t5": Explainer(t5, wordpiece)}), Limits())
    answers = Answers(Limits())
    assert len(answers.predict(request)["units"]) == len(answers.explain(request)["marks"])
    with pytest.raises(InputError, match="encoder-decoder"):
        answers.erase(request)


@pytest.mark.parametrize("classes", [{}, {"target": 1, "against": 0}], ids=["default", "contrast"])
def test_passes_through_the_model_have_their_target_on_its_device(models, monkeypatch, classes):
    """Recorded on "meta", as a machine without a GPU has no other device."""

    class Recorded(Exception):
        pass

    def record(*arguments, **_):
        target = arguments[0].target if isinstance(arguments[0], Case) else arguments[2]
        raise Recorded(*{t.device.type for t in (target.index, target.against) if t is not None})

    request = parse_request(json.dumps(body(**classes)).encode(), Body, models, Limits())
    answers = Answers(Limits())
    answers.predict(request)
    monkeypatch.setattr(ModelRunner, "device", torch.device("meta"))
    monkeypatch.setattr(answers_module, "capture", record)
    monkeypatch.setattr(answers_module, "unit_profile", record)
    for answer in (answers.attention, answers.layers):
        with pytest.raises(Recorded, match=r"^meta$"):
            answer(request)
