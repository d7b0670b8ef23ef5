"""The explainer: every kind of input, every kind of target."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import wherefrom
from benchmarks.tiny import model as tiny
from tests.helpers import exactly, normal
from tests.modules import Block, D
from wherefrom import METHODS, Explainer, method
from wherefrom.errors import InputError, TargetError

TEXT = "The film is great, and not dull."
TEXTS = [
    TEXT,
    "a movie",
    "Unlikely",
    "I love it .",
    "bad",
    "the script was good and great",
    "it is not un like the film I hate",
    "dull , dull , dull",
]


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float64) for name in ("lrp", "lrp_ah", "integrated_gradients", "gae")),
        ("lrp", torch.float32),
    ],
)
def test_a_batch_of_mixed_lengths_is_its_samples_one_by_one(name, dtype, wordpiece):
    explainer = Explainer(tiny("bert", "classify").to(dtype), wordpiece)
    tol = 1e-6 if dtype == torch.float64 else 1e-5  # scores are float32 either way
    together = explainer(TEXTS, name, target=1)
    assert len(together) == 8
    for text, explanation in zip(TEXTS, together, strict=True):
        alone = explainer(text, name, target=1)
        assert explanation.units == alone.units
        assert explanation.text == alone.text == text
        exactly(explanation.scores, alone.scores, tol=tol)
        exactly(explanation.output, alone.output, tol=1e-10 if dtype == torch.float64 else 1e-5)
        if alone.ledger is not None:
            tight = 1e-10 if dtype == torch.float64 else 1e-5
            exactly(explanation.ledger.total, alone.ledger.total, tol=tight)


@pytest.mark.parametrize("size", [1, 3])
def test_batch_size_changes_nothing(size, explainer):
    explanations = explainer(TEXTS, batch_size=size)
    for explanation, expected in zip(explanations, explainer(TEXTS), strict=True):
        exactly(explanation.scores, expected.scores, tol=1e-6)
        exactly(explanation.ledger.of("bias"), expected.ledger.of("bias"))


def test_a_language_model_in_a_batch_is_its_samples_one_by_one(gpt2, bytepairs):
    explainer = Explainer(gpt2, bytepairs)
    for explanation, text in zip(explainer(TEXTS), TEXTS, strict=True):
        alone = explainer(text)
        assert explanation.target == alone.target
        exactly(explanation.scores, alone.scores, tol=1e-6)


def test_every_way_to_give_the_ids_is_the_same(bert, explainer):
    ids = [2, 5, 9, 8, 3]
    expected = explainer(ids).scores.tolist()
    for single in (tuple(ids), torch.tensor(ids), np.array(ids), (i for i in ids)):
        assert explainer(single).scores.tolist() == expected
    for batch in ([ids], torch.tensor([ids]), np.array([ids]), [np.array(ids)]):
        (explanation,) = explainer(batch)
        assert explanation.scores.tolist() == expected
    assert [unit.text for unit in Explainer(bert)(ids).units] == ["#2", "#5", "#9", "#8", "#3"]


def test_text_and_its_ids_are_explained_alike(explainer, wordpiece):
    by_text = explainer(TEXT)
    by_ids = explainer(wordpiece(TEXT)["input_ids"])
    exactly(by_text.scores, by_ids.scores, tol=1e-6)
    assert by_text.units[0].special
    assert by_text.units[-1].special
    assert by_text.text == TEXT
    assert by_ids.text is None


def test_a_single_input_gives_one_explanation_and_a_list_gives_a_list(explainer):
    assert explainer("good").text == "good"
    (explanation,) = explainer(["good"])
    assert explanation.text == "good"


def test_a_pipeline_is_taken_as_it_is(bert, wordpiece, explainer):
    pipeline = transformers.pipeline("text-classification", model=bert, tokenizer=wordpiece)
    expected = explainer(TEXT).scores.tolist()
    assert Explainer(pipeline)(TEXT).scores.tolist() == expected
    stand_in = SimpleNamespace(model=bert, tokenizer=wordpiece)
    assert Explainer(stand_in)(TEXT).scores.tolist() == expected


def wrapped_in(kind, model):
    """A copy of a model, wrapped or compiled."""
    model = copy.deepcopy(model)
    if kind == "torch.compile(model)":
        return torch.compile(model, backend="eager")
    if kind == "model.compile()":
        model.compile(backend="eager")
    elif kind == "a part compiled in place":
        model.bert.encoder.layer[1].compile(backend="eager")
    elif kind == "a part replaced":
        model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")
    elif kind == "model.forward":
        model.forward = torch.compile(model.forward, backend="eager")
    elif kind == "DataParallel":
        return nn.DataParallel(model)
    elif kind == "both":
        return nn.DataParallel(torch.compile(model, backend="eager"))
    return model


@pytest.mark.parametrize(
    "kind",
    [
        "torch.compile(model)",
        "model.compile()",
        "a part compiled in place",
        "a part replaced",
        "model.forward",
        "DataParallel",
        "both",
    ],
)
def test_a_compiled_or_parallel_model_is_explained_as_the_plain_one(
    kind, bert, wordpiece, explainer
):
    model = wrapped_in(kind, bert)
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    compiled = Explainer(model, wordpiece)
    assert compiled.labels() == explainer.labels()
    for method_name in ("lrp", "gradient", "attention_rollout"):
        expected = explainer(TEXT, method_name)
        explanation = compiled(TEXT, method_name)
        assert explanation.target == expected.target
        exactly(explanation.scores, expected.scores, tol=1e-7)
    # the weights are shared, and what was wrapped is as it was
    assert {id(p) for p in compiled.runner.model.parameters()} == set(before.values())
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before


def test_a_compiled_model_stays_compiled_for_its_owner(bert, wordpiece):
    model = wrapped_in("model.compile()", bert)
    compiled_call = model._compiled_call_impl
    explainer = Explainer(model, wordpiece)
    explainer(TEXT)
    assert compiled_call is not None
    assert model._compiled_call_impl is compiled_call
    with torch.no_grad():
        model.classifier.bias.fill_(3.0)  # trained on: the explainer sees it
    assert explainer.runner.model.classifier.bias is model.classifier.bias


def test_a_plain_model_is_taken_as_it_is(bert):
    assert Explainer(bert).runner.model is bert


def test_a_tokenizer_set_later_is_used_at_once(bert, wordpiece):
    explainer = Explainer(bert, wordpiece)
    expected = explainer("good").units
    explainer.tokenizer = None
    assert explainer.output_names.tokenizer is None
    with pytest.raises(InputError, match="no tokenizer"):
        explainer("good")
    explainer.tokenizer = wordpiece
    assert explainer("good").units == expected


class Bag(nn.Module):
    """The mean of embeddings, read by a forward function."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(60, 4), nn.Linear(4, 2)
        self.double()

    def forward(self, ids, mask):
        mask = mask.unsqueeze(-1).double()
        return self.head((self.table(ids) * mask).sum(1) / mask.sum(1))


def test_a_plain_module_with_a_forward_function_reads_text(wordpiece):
    explainer = Explainer(
        Bag(),
        wordpiece,
        forward=lambda model, tensors: model(tensors["input_ids"], tensors["attention_mask"]),
        labels=["no", "yes"],
    )
    explanations = explainer(["good film", "bad"], "lrp", target="yes", root=None)
    module = explainer.runner.model
    for explanation, count in zip(explanations, (4, 3), strict=True):
        ids = torch.tensor(wordpiece(explanation.text)["input_ids"])
        expected = (module.table(ids) @ module.head.weight[1]).detach() / count
        exactly(explanation.scores, expected.float(), tol=1e-6)
        exactly(explanation.ledger.of("bias"), float(module.head.bias[1].detach()))
        assert str(explanation.target) == "yes"


def test_float_tensors_have_a_unit_for_each_row(rng):
    module, x = Block(), normal(rng, 2, 4, D)
    explainer = Explainer(module)
    first, second = explainer(x)
    assert [unit.text for unit in first.units] == ["0", "1", "2", "3"]
    exactly(first.scores, explainer(x[0]).scores, tol=1e-6)
    exactly(second.output, float(module(x)[1].max().detach()))


def test_the_default_target_is_the_most_likely(bert, explainer, wordpiece):
    logits = bert(**wordpiece(TEXT, return_tensors="pt")).logits[0].detach()
    explanation = explainer(TEXT)
    assert explanation.target.index == int(logits.argmax())
    assert explanation.target.label == ["bad", "good", "mixed"][explanation.target.index]
    exactly(explanation.output, float(logits.max()))
    exactly(explanation.probability, float(logits.softmax(-1).max()))


@pytest.mark.parametrize("spec", [1, "1", "good", "GOOD"])
def test_a_class_is_named_by_index_or_by_label_in_any_case(spec, explainer):
    explanation = explainer(TEXT, target=spec, against="bad")
    assert (explanation.target.index, explanation.target.label) == (1, "good")
    assert str(explanation.target) == "good − bad"


def test_a_label_that_is_a_number_goes_before_an_index(bert, wordpiece):
    stars = Explainer(bert, wordpiece, labels=["1", "2", "3"])
    assert stars(TEXT, target="1").target.index == 0
    assert stars(TEXT, target="3").target.index == 2
    assert stars(TEXT, target="0").target.index == 0  # no label "0": an index
    assert stars(TEXT, target=1).target.label == "2"  # an integer is always an index
    with pytest.raises(TargetError, match="no class 7: the model has 0 to 2"):
        stars(TEXT, target="7")


def test_the_label_column_of_a_table_names_classes_before_indices(bert, wordpiece, tmp_path):
    (tmp_path / "stars.csv").write_text("text,label\ngood film,1\nbad film,3\n", encoding="utf-8")
    labels = wherefrom.read_table(tmp_path / "stars.csv").labels
    assert labels == ["1", "3"]
    stars = Explainer(bert, wordpiece, labels=["1", "2", "3"])
    assert [stars.index_of(label) for label in labels] == [0, 2]
    plain = Explainer(bert, wordpiece)
    assert plain.index_of(labels[0]) == 1
    (tmp_path / "stars.jsonl").write_text('{"text": "good film", "label": 1}\n', encoding="utf-8")
    (number,) = wherefrom.read_table(tmp_path / "stars.jsonl").labels
    assert stars.index_of(number) == 1  # a number in the file is an index


def test_a_number_is_the_token_with_this_text_before_it_is_an_id(gpt2, bytepairs):
    writer = Explainer(gpt2, bytepairs)
    assert writer.index_of("7") == bytepairs.convert_tokens_to_ids("7") != 7
    assert writer.index_of("123") == 123  # three tokens: an id
    assert Explainer(gpt2).index_of("7") == 7


def test_an_unknown_word_is_not_explained_as_the_unknown_token(wordpiece):
    filler = Explainer(tiny("bert", "fill"), wordpiece)
    assert filler.index_of("[UNK]") == wordpiece.unk_token_id
    assert filler.index_of("film") == wordpiece.convert_tokens_to_ids("film")
    assert filler.index_of("77") == 77
    with pytest.raises(TargetError, match="'xyzzy' is not in the vocabulary"):
        filler.index_of("xyzzy")


def test_a_single_output_has_no_probability(wordpiece):
    explanation = Explainer(tiny("bert", "classify", num_labels=1), wordpiece)(TEXT)
    assert explanation.probability is None
    assert explanation.output != 0


def test_numbers_of_numpy_and_torch_are_numbers(explainer):
    expected = explainer(TEXT, target=1).scores.tolist()
    for index in (np.int64(1), torch.tensor(1)):
        assert explainer(TEXT, target=index).scores.tolist() == expected


def test_each_input_can_have_its_own_target(explainer):
    explanations = explainer(
        TEXTS[:3], target=["good", 0, "mixed"], against=[0, 1, 1], batch_size=2
    )
    assert [explanation.target.index for explanation in explanations] == [1, 0, 2]
    assert [explanation.target.against for explanation in explanations] == [0, 1, 1]
    for explanation, text, target in zip(explanations, TEXTS[:3], (1, 0, 2), strict=True):
        exactly(
            explanation.scores,
            explainer(text, target=target, against=explanation.target.against).scores,
            1e-6,
        )


def test_a_next_token_is_asked_for_by_its_text(gpt2, bytepairs):
    explainer = Explainer(gpt2, bytepairs)
    number = bytepairs.convert_tokens_to_ids("ĠParis")
    explanation = explainer("the movie is", target=" Paris")
    logits = gpt2(torch.tensor([bytepairs("the movie is")["input_ids"]])).logits[0].detach()
    assert explanation.target.index == number
    assert explanation.target.label == " Paris"
    exactly(explanation.output, float(logits[-1, number]))
    assert explainer("the movie is", target=number).scores.tolist() == explanation.scores.tolist()
    assert explainer("the movie is").target.index == int(logits[-1].argmax())


@pytest.mark.parametrize("position", [0, 2, -1, -2])
def test_the_next_token_at_any_position(position, gpt2, bytepairs):
    ids = bytepairs("the movie is")["input_ids"]
    logits = gpt2(torch.tensor([ids])).logits[0].detach()
    explanation = Explainer(gpt2, bytepairs)("the movie is", target=9, position=position)
    exactly(explanation.output, float(logits[position, 9]))
    place = position % len(ids)
    assert explanation.target.position == place
    assert not explanation.scores[place + 1 :].any()  # what comes later has no say
    assert explanation.scores[: place + 1].all()


def test_the_decoder_of_a_writer_begins_with_the_prefix(t5, wordpiece):
    explainer = Explainer(t5, wordpiece)
    explanation = explainer("good film", prefix="the movie", target=5)
    written = wordpiece("the movie", add_special_tokens=False)["input_ids"]
    ids = torch.tensor([wordpiece("good film")["input_ids"]])
    logits = t5(input_ids=ids, decoder_input_ids=torch.tensor([[1, *written]])).logits
    exactly(explanation.output, float(logits[0, -1, 5].detach()))
    assert [unit.text for unit in explanation.units if unit.field == "decoder"][1:] == [
        "the",
        "movie",
    ]


def test_compare_gives_each_method_that_the_model_has_a_use_for(explainer):
    explanations = explainer.compare(TEXT)
    expected = [name for name in METHODS if name != "shapley"]
    assert [explanation.method for explanation in explanations] == expected
    few = explainer.compare(TEXT, ["random", method("lrp", gate="shared")], target="bad")
    assert [(explanation.method, explanation.target.label) for explanation in few] == [
        ("random", "bad"),
        ("lrp", "bad"),
    ]
    mamba = Explainer(tiny("mamba", "write")).compare([5, 9, 8], ["lrp_ah", "lrp"])
    assert [explanation.method for explanation in mamba] == ["lrp"]


def test_compare_runs_on_a_model_of_a_single_block(rng):
    explanations = Explainer(Block()).compare(normal(rng, 4, D))
    assert {"lrp", "lrp_ah", "gradient", "random"} <= {
        explanation.method for explanation in explanations
    }


def test_settings_reach_the_method_and_the_explanation(explainer):
    explanation = explainer(TEXT, "lrp", gate="shared")
    assert explanation.settings["gate"] == "shared"
    exactly(explanation.scores, explainer(TEXT, method("lrp", gate="shared")).scores, tol=1e-6)
    assert method(method("lrp"), gate="shared") == method("lrp", gate="shared")


def test_explanation_says_where_it_comes_from(explainer):
    explanation = explainer(TEXT)
    assert explanation.method == "secant"
    assert explanation.model == "BertForSequenceClassification"
    assert set(explanation.versions) == {"wherefrom", "torch", "transformers"}
    assert repr(explainer) == "Explainer(BertForSequenceClassification)"
