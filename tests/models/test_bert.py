"""The embedded model of text, without transformers, is the one that transformers computes."""

import copy
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

import wherefrom
from wherefrom.errors import FileError, InputError
from wherefrom.models import bert
from wherefrom.models.embedded import HOME
from wherefrom.models.tokenizer import TextTokenizer
from wherefrom.testing import untouched

FOLDER = HOME / "sentiment"
TEXTS = [
    "has a lot of the virtues of eastwood at his best.",
    "dull.",
    "  A gorgeous,\twítty 中 [MASK] movie; unbelievabilityness 🙂 isn't it?",
]


@pytest.fixture(scope="module")
def light():
    return wherefrom.load("sentiment")


@pytest.fixture(scope="module")
def full():
    return wherefrom.load(FOLDER, dtype="float32")


@pytest.fixture(scope="module")
def theirs():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def ours():
    return TextTokenizer.load(FOLDER)


def test_modules_and_weights_have_the_same_names(light, full):
    ours, theirs = light.runner.model, full.runner.model
    weights = theirs.state_dict()
    assert ours.state_dict().keys() == weights.keys()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in ours.state_dict().items())
    with_weights = {name.rpartition(".")[0] for name in weights}
    assert with_weights <= {name for name, _ in ours.named_modules()}
    assert not ours.training


@pytest.mark.parametrize("padded", [True, False])
def test_logits_are_those_of_transformers_in_float64(padded):
    theirs = BertForSequenceClassification.from_pretrained(FOLDER).double().eval()
    ours = bert.BertForSequenceClassification.load(FOLDER, torch.float64)
    ids = torch.randint(5, 10_000, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 4:], mask[1, 9:] = 0, 0
    types = (torch.arange(11) > 5).long().expand(3, -1)
    embedded = theirs.get_input_embeddings()(ids)
    with torch.no_grad():
        for inputs in (
            {"input_ids": ids, "attention_mask": mask, "token_type_ids": types},
            {"input_ids": ids, "attention_mask": mask},
            {"input_ids": ids},
            {"inputs_embeds": embedded, "attention_mask": mask},
        ):
            expected = theirs(**inputs).logits
            torch.testing.assert_close(ours(**inputs).logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", wherefrom.METHODS)
def test_explanations_are_identical_by_every_method(light, full, method):
    settings = {"budget": 100} if method == "shapley" else {}
    with untouched(light.runner.model):
        explanations = light(TEXTS, method, **settings)
    for explanation, expected in zip(explanations, full(TEXTS, method, **settings), strict=True):
        data, expected_data = explanation.to_dict(), expected.to_dict()
        np.testing.assert_allclose(data.pop("scores"), expected_data.pop("scores"), rtol=1e-6)
        assert data.keys() == expected_data.keys()
        assert data["units"] == expected_data["units"]
        lines, expected_lines = (
            () if e.ledger is None else e.ledger.lines for e in (explanation, expected)
        )
        names = [[(line.kind, line.label) for line in part] for part in (lines, expected_lines)]
        values = [[line.value for line in part] for part in (lines, expected_lines)]
        assert names[0] == names[1]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)


def test_it_trains_with_dropout_and_can_be_copied_and_pickled(light):
    model = copy.deepcopy(light.runner.model).train()
    ids = torch.tensor([[2, 137, 43, 3]])
    torch.manual_seed(0)
    first, second = model(ids).logits, model(ids).logits
    assert not torch.equal(first, second)
    first.sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters())
    again = pickle.loads(pickle.dumps(light))
    assert (again(TEXTS[0]).scores == light(TEXTS[0]).scores).all()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("auto", torch.float16), ("float64", torch.float64), (torch.bfloat16, torch.bfloat16)],
)
@pytest.mark.parametrize("name", ["sentiment", "bace"])
def test_the_number_type_can_be_chosen(name, dtype, expected):
    model = wherefrom.load(name, dtype=dtype).runner.model
    assert {parameter.dtype for parameter in model.parameters()} == {expected}


def test_an_unknown_number_type_says_which_there_are():
    with pytest.raises(wherefrom.WherefromError, match=r'no dtype "float23"; did you mean "float'):
        wherefrom.load("sentiment", dtype="float23")


def test_only_what_it_computes_is_taken_for_its_own(tmp_path):
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert bert.is_bert(FOLDER)
    assert not bert.is_bert(tmp_path)
    for change in ({"hidden_act": "relu"}, {"is_decoder": True}, {"architectures": ["BertModel"]}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}), encoding="utf-8")
        assert not bert.is_bert(tmp_path)


def test_files_that_do_not_fit_are_named(tmp_path):
    def load():
        return bert.BertForSequenceClassification.load(tmp_path)

    with pytest.raises(FileError, match=r"config\.json is missing"):
        load()
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(FileError, match=r"model\.safetensors is missing"):
        load()
    shutil.copy(FOLDER / "model.safetensors", tmp_path)
    config["hidden_size"] = 96
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(FileError, match="do not fit"):
        load()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(FileError, match="not the config of a BertFor"):
        load()
    with pytest.raises(FileError, match="cannot read the tokenizer"):
        TextTokenizer.load(tmp_path)


def test_the_tokenizer_is_that_of_transformers(ours, theirs):
    settings = {
        "return_offsets_mapping": True,
        "return_special_tokens_mask": True,
        "verbose": False,
    }
    long = "a fine film " * 60  # beyond 128 tokens: the reader decides what to do
    for texts in ([*TEXTS, long], TEXTS[0]):
        output, expected = ours(texts, **settings), theirs(texts, **settings)
        assert dict(output) == {**expected}
        assert output.word_ids(0) == expected.word_ids(0)
    assert ours("film", add_special_tokens=False)["input_ids"] == [
        theirs.convert_tokens_to_ids("film")
    ]
    output = ours(TEXTS, padding=True, return_tensors="pt")
    expected = theirs(TEXTS, padding=True, return_tensors="pt")
    assert output.keys() == expected.keys()
    assert all(torch.equal(output[name], expected[name]) for name in expected)
    with pytest.raises(InputError, match='return_tensors must be "pt"'):
        ours(TEXTS, return_tensors="np")


def test_ids_names_and_limits_are_those_of_transformers(ours, theirs):
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert ours.special_tokens_map == {**theirs.special_tokens_map}
    assert ours.model_max_length == theirs.model_max_length
    for role in ("unk", "sep", "pad", "cls", "mask"):
        for name in (f"{role}_token", f"{role}_token_id"):
            assert getattr(ours, name) == getattr(theirs, name)
    ids = [2, 137, 43, 5000, 3]
    assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert ours.convert_ids_to_tokens(137) == "has"
    tokens = ["has", "##qqqq", "[SEP]"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    for skip in (False, True):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    with pytest.raises(AttributeError, match="no attribute 'chat_template'"):
        ours.chat_template  # noqa: B018
