"""What bad input gets: an error of the right class that says what was seen and what to do."""

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.tiny import model as tiny
from tests.modules import Block, D, Pooled
from wherefrom import Explainer, WherefromError, load, method
from wherefrom.errors import (
    FileError,
    InputError,
    MethodError,
    MissingExtra,
    ModelError,
    NotFinite,
    NothingIntercepted,
    TargetError,
    TooLong,
    nearest,
)


@pytest.fixture(scope="module")
def explainer(bert, wordpiece):
    return Explainer(bert, wordpiece)


@pytest.fixture(scope="module")
def writer(gpt2, bytepairs):
    return Explainer(gpt2, bytepairs)


INPUTS = {
    "empty text": ("", "text is empty"),
    "blanks": (" \n\t", "text is empty"),
    "one empty of two": (["good", ""], "text is empty"),
    "empty list": ([], "list of inputs is empty"),
    "empty list of ids": ([[]], "list of token ids is empty"),
    "None": (None, "cannot explain a NoneType"),
    "number": (3, "cannot explain a int"),
    "list of None": ([None], "list of NoneType"),
    "list of floats": ([1.5, 2.5], "list of float"),
    "text and number": (["good", 3], "list of int, str"),
    "three axes": (torch.ones(1, 2, 3).long(), r"shape \(1, 2, 3\)"),
    "no axis": (torch.tensor(3), r"shape \(\)"),
    "empty tensor": (torch.zeros(0).long(), r"shape \(0,\)"),
    "no sample": (torch.zeros(0, 4).long(), r"\(0, 4\)|nothing to explain"),
    "words in a list": ([["good", "film"]], "token ids"),
    "fractions as ids": ([[1.5, 2.5]], "token ids"),
    "fractions in numpy": (np.array([1.5, 2.5]), "token ids"),
    "a mapping": ({"pixel_values": [2, 5, 3], "b": 1}, "column"),
    "bytes": (b"good", "bytes"),
    "id too large": ([2, 500, 3], "500"),
    "id below zero": ([2, -4, 3], "-4"),
}


@pytest.mark.parametrize(("inputs", "says"), list(INPUTS.values()), ids=list(INPUTS))
def test_input_that_cannot_be_explained(inputs, says, explainer):
    with pytest.raises(InputError, match=says):
        explainer(inputs)


TARGETS = {
    "label": ({"target": "goood"}, 'no label "goood"; did you mean "good"'),
    "against": ({"target": 1, "against": "baad"}, 'did you mean "bad"'),
    "beyond": ({"target": 3}, "no class 3: the model has 0 to 2"),
    "below": ({"target": -1}, "no class -1: the model has 0 to 2"),
    "fraction": ({"target": 1.5}, "1.5"),
    "too many": ({"target": [0, 1, 2]}, "3 targets for 1 inputs"),
    "some": ({"target": [None, 1]}, "for every input, or for none"),
    "position": ({"position": 1}, "output for every token"),
    "entity": ({"entity": "good"}, "entity applies only to models that classify every token"),
    "against itself": ({"target": "good", "against": 1}, 'same output, "good"'),
}


@pytest.mark.parametrize(("options", "says"), list(TARGETS.values()), ids=list(TARGETS))
def test_target_that_is_not_there(options, says, explainer):
    with pytest.raises(TargetError, match=says):
        explainer("good" if options.get("target") != [None, 1] else ["good", "bad"], **options)


def test_the_most_likely_class_against_itself(explainer):
    predicted = explainer("good").target.index
    with pytest.raises(TargetError, match="target and against are the same output"):
        explainer("good", against=predicted)
    assert explainer("good", against=(predicted + 1) % 3).target.against is not None


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_nothing(size, explainer):
    with pytest.raises(InputError, match=rf"batch_size must be 1 or more, got {size}"):
        explainer("good", batch_size=size)


def test_target_of_a_plain_module_beyond_its_outputs():
    explainer, x = Explainer(Block()), torch.ones(4, D, dtype=torch.float64)
    with pytest.raises(TargetError, match="no class 3: the model has 0 to 2"):
        explainer(x, target=3)
    with pytest.raises(TargetError, match="no class -1: the model has 0 to 2"):
        explainer(x, target=-1)
    with pytest.raises(TargetError, match='no label "good"'):
        explainer(x, target="good")


def test_next_token_of_several_tokens(writer):
    with pytest.raises(TargetError, match=r"' Paris is' is \d tokens.*'ĠParis', 'Ġ', 'is'"):
        writer("the movie", target=" Paris is")


def test_next_token_beyond_the_vocabulary(writer):
    with pytest.raises(TargetError, match="no class 280: the model has 0 to 279"):
        writer("the movie", target=280)


@pytest.mark.parametrize("position", [40, -40])
def test_position_that_is_not_there(position, writer):
    with pytest.raises(TargetError, match=rf"no position {position}: the input has \d+ tokens"):
        writer("the movie", position=position)


def test_prefix_for_a_model_without_a_decoder(explainer):
    with pytest.raises(InputError, match="prefix applies only to models with a decoder"):
        explainer("good", prefix="the")


def test_text_without_a_tokenizer(bert, gpt2, t5):
    with pytest.raises(InputError, match="has no tokenizer"):
        Explainer(bert)("good")
    with pytest.raises(TargetError, match="needs a tokenizer"):
        Explainer(gpt2)([5, 9], target=" Paris")
    with pytest.raises(InputError, match="tokenizer"):
        Explainer(t5)([5, 9], prefix="the")


def test_weights_that_are_not_numbers(wordpiece):
    broken = tiny("bert", "classify")
    with torch.no_grad():
        broken.bert.encoder.layer[0].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(NotFinite, match=r"not finite \(NaN or infinite in 3 of 3 places\)"):
        Explainer(broken, wordpiece)("good")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (("mamba", "write"), "lrp_ah"),
        (("mamba", "write"), "attn_lrp"),
        (("fnet", "classify"), "lrp_ah_ln"),
    ],
)
def test_attention_method_on_a_model_without_attention(family, name):
    model = tiny(*family)
    said = (
        rf"no attention call was seen in {type(model).__name__} \(saw .* ×\d+.*\)\. .*"
        'Try method="lrp" or "integrated_gradients"'
    )
    with pytest.raises(NothingIntercepted, match=said):
        Explainer(model)([5, 9, 8], name)


def test_attention_method_on_a_plain_module_without_attention():
    with pytest.raises(NothingIntercepted, match="in Pooled"):
        Explainer(Pooled())(torch.ones(4, D, dtype=torch.float64), "lrp_ah")


def test_model_that_looks_nothing_up(wordpiece):
    class Deaf(nn.Module):
        def forward(self, input_ids, attention_mask):
            return attention_mask.float() @ torch.ones(attention_mask.shape[1], 2)

    with pytest.raises(NothingIntercepted, match="found no embedding lookup of the input"):
        Explainer(Deaf(), wordpiece)("good film")


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((4,), r"must have the shape \(units, features\)"),
        ((1, 2, 3, 4), "does not take an image of shape"),
    ],
)
def test_float_tensor_without_units(shape, words):
    with pytest.raises(InputError, match=words):
        Explainer(Block())(torch.ones(shape))


def test_model_without_logits(bert):
    with pytest.raises(ModelError, match=r"no logits \(it has: last_hidden_state"):
        Explainer(bert.bert)([2, 5, 3])


@pytest.mark.parametrize("inputs", ["bert-base", 3, None])
def test_what_is_no_model(inputs):
    with pytest.raises(ModelError, match=r"cannot explain a \w+: pass a torch module"):
        Explainer(inputs)


METHODS = {
    "name": (("lpr",), {}, 'no method "lpr"; did you mean "lrp"'),
    "no name": ((None,), {}, 'no method "None"'),
    "setting": (("lrp",), {"steps": 3}, 'lrp has no setting "steps"; it has: gate'),
    "value": (("lrp",), {"gate": "open"}, 'no gate "open"; there are: frozen, shared'),
    "value of gradient": (
        ("gradient",),
        {"reduce": "max"},
        'no reduce "max"; there are: norm, sum',
    ),
}


@pytest.mark.parametrize(("args", "settings", "says"), list(METHODS.values()), ids=list(METHODS))
def test_method_that_is_not_there(args, settings, says, explainer):
    with pytest.raises(MethodError, match=says):
        method(*args, **settings)
    with pytest.raises(MethodError, match=says):
        explainer("good", *args, **settings)


def test_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match="cannot load the model in"):
        load(tmp_path)


def test_path_that_is_not_there_or_is_a_file(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path / "nowhere", tmp_path / "notes.txt"):
        with pytest.raises(FileError, match="is not a folder with a model"):
            load(path)


@pytest.mark.parametrize("damage", ["cut", "garbled", "config"])
def test_damaged_model(damage, tmp_path):
    tiny("bert", "classify").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "garbled":
        weights.write_bytes(b"\xff" * 64)
    else:
        (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the model in"):
        load(tmp_path)


def test_every_error_is_a_wherefrom_error():
    extra = MissingExtra("captum", "captum", "the bridge")
    assert 'pip install "wherefrom[captum]"' in str(extra)
    for kind in (InputError, TooLong, TargetError, ModelError, FileError, MethodError):
        assert issubclass(kind, WherefromError)
    assert isinstance(extra, ImportError)


def test_nearest_shows_the_like_ones_first_and_not_all_of_many():
    assert nearest("x", "abc") == "there are: a, b, c"
    assert nearest("n7", [f"n{i}" for i in range(20)]).endswith("and 8 more")
    assert nearest("Postive", ["A", "POSITIVE"]).startswith('did you mean "POSITIVE"?')


def test_of_several_inputs_the_error_says_which():
    sentiment = load("sentiment")
    with pytest.raises(InputError, match=r"^input 2 of 3, counted from 0: the text is empty"):
        sentiment(["good", "bad", ""])
    with pytest.raises(TooLong, match=r"^input 1 of 2, counted from 0: the text has"):
        sentiment(["good", "bad " * 200])
    with pytest.raises(InputError, match=r"^the text is empty"):
        sentiment("")


def test_a_float_array_is_read_as_rows_where_there_is_no_tokenizer():
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    rows = np.random.default_rng(0).normal(size=(3, 2))
    explainer = Explainer(module, forward=lambda module, inputs: module(inputs["x"]))
    expected = explainer(torch.tensor(rows, dtype=torch.float32), target=1).scores
    assert explainer(rows, target=1).scores.tolist() == expected.tolist()
