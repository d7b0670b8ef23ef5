"""What is read from a folder: safetensors alone, never a pickle."""

import copy
import json
import logging
import pickle
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import load, loading
from wherefrom.errors import MissingExtra, ModelError
from wherefrom.loading import _companion, find_device
from wherefrom.models import packaged
from wherefrom.models.weights import pretrained_options


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.fixture
def folder(tmp_path):
    """A model whose only weights are a pickle, and a good one at that."""
    model = tiny("bert", "classify").float()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    return tmp_path / "model"


def test_weights_in_a_pickle_are_refused(folder):
    with pytest.raises(ModelError, match=r"are in pytorch_model\.bin, a pickle, .*convert it"):
        load(folder)


def test_a_pickle_is_never_unpickled(folder, tmp_path):
    mark = tmp_path / "was_run"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(ModelError):
        load(folder)
    assert not mark.exists()


@pytest.fixture
def sharded(tmp_path):
    """A model in shards, and a function that writes what its index lists and its config says."""
    home = tmp_path / "model"
    tiny("bert", "classify").float().save_pretrained(home, max_shard_size="20KB")
    assert load(home).runner.model is not None  # shards of safetensors
    usual = home / "model.safetensors.index.json"
    index = json.loads(usual.read_text(encoding="utf-8"))

    def write(shard, file=usual.name, **config):
        usual.unlink(missing_ok=True)
        weights = index["weight_map"] | {next(iter(index["weight_map"])): shard}
        (home / file).write_text(json.dumps(index | {"weight_map": weights}), encoding="utf-8")
        settings = json.loads((home / "config.json").read_text(encoding="utf-8"))
        (home / "config.json").write_text(json.dumps(settings | config), encoding="utf-8")
        return home

    return write


@pytest.mark.parametrize(
    ("file", "config", "reason"),
    [
        ("model.safetensors.index.json", {}, r"index\.json in .* lists more\.bin, which is not a"),
        (
            "of.safetensors.index.json",
            {"transformers_weights": "of.safetensors.index.json"},
            r"of\.safetensors\.index\.json in .* lists more\.bin",
        ),
        (
            "model.safetensors.index.json",
            {"transformers_weights": "adapter_model.bin"},
            r"config\.json in .* lists adapter_model\.bin",
        ),
    ],
)
def test_a_pickle_that_an_index_or_the_config_names_is_refused(
    sharded, tmp_path, file, config, reason
):
    mark = tmp_path / "was_run"
    home = sharded("more.bin", file, **config)
    for name in ("more.bin", "adapter_model.bin"):
        (home / name).write_bytes(pickle.dumps(Payload(mark)))
    with pytest.raises(ModelError, match=reason):
        load(home)
    assert not mark.exists()


@pytest.mark.parametrize("shard", ["../out.safetensors", "/out.safetensors"])
def test_weights_outside_of_the_folder_are_refused(sharded, shard):
    with pytest.raises(ModelError, match=r"lists \S*/out\.safetensors, which is not in its folder"):
        load(sharded(shard))


def test_a_base_model_whose_own_adapter_is_a_pickle_is_refused(sharded, tmp_path):
    home = sharded("more.safetensors")
    (home / "adapter_config.json").write_text("{}", encoding="utf-8")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file({"x": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    settings = json.dumps({"base_model_name_or_path": str(home)})
    (adapter / "adapter_config.json").write_text(settings, encoding="utf-8")
    with pytest.raises(ModelError, match=r"has an adapter without adapter_model\.safetensors"):
        load(adapter)


def test_a_damaged_index_is_refused(sharded):
    home = sharded("more.safetensors")
    for text in ("", "[]", "{}", '{"weight_map": 3}'):
        (home / "model.safetensors.index.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelError, match=r"is not an index of weights"):
            load(home)


def test_a_model_without_the_weights_of_its_head_is_refused(tmp_path):
    model = tiny("bert", "classify").float()
    model.bert.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text(encoding="utf-8")
    changed = config.replace('"BertModel"', '"BertForSequenceClassification"')
    (tmp_path / "config.json").write_text(changed, encoding="utf-8")
    with pytest.raises(ModelError, match=r"has no weights for classifier\.bias"):
        load(tmp_path)


def test_a_config_with_fewer_layers_than_the_weights_is_refused(tmp_path):
    tiny("bert", "classify").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_hidden_layers"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = r"weights of blocks that its config.json leaves out \(bert\.encoder\.layer\.1\."
    with pytest.raises(ModelError, match=said):
        load(tmp_path)


def test_weights_that_the_model_does_not_use_are_named(tmp_path):
    tiny("bert", "classify").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["extra.head.weight"] = torch.zeros(2)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match=r"does not use: extra\.head\.weight$"):
        load(tmp_path)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_on_a_cpu_unless_it_is_given(bert, tmp_path, stored):
    copy.deepcopy(bert).to(stored).save_pretrained(tmp_path)
    weights = {}
    for options in ({}, {"dtype": "auto"}, {"dtype": torch.float16}):
        model = load(tmp_path, **options).runner.model
        weights[str(options)] = {parameter.dtype for parameter in model.parameters()}
    assert list(weights.values()) == [{torch.float32}, {stored}, {torch.float16}]


@pytest.mark.parametrize("source", [None, "", 3, " "])
def test_nothing_to_load_is_said_with_what_there_is(source):
    with pytest.raises(ModelError, match=r"pass the name of an embedded model \(.*sentiment"):
        load(source)


def test_a_misspelled_name_is_not_looked_up(monkeypatch):
    monkeypatch.setattr(loading, "_read", None)
    for name, meant in (("sentimnet", "sentiment"), ("Digit", "digits"), ("smollm", "smollm2")):
        with pytest.raises(ModelError, match=f'there is no model "{name}"; did you mean "{meant}"'):
            load(name)


def test_a_hub_that_is_out_of_reach(monkeypatch, caplog):
    def unreachable(*args):
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
        raise OSError("We couldn't connect to the hub.")

    monkeypatch.setattr(loading, "_read", unreachable)
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    for name in ("nosuch", "owner/sentiment"):
        with pytest.raises(ModelError) as caught:
            load(name)
        assert "(smollm2 after pip install" in str(caught.value)
        assert str(caught.value).endswith("pass a folder, or set HF_HUB_OFFLINE=1.")
    assert not caplog.records
    assert logging.getLogger("huggingface_hub").level != logging.ERROR


def test_a_model_is_moved_to_the_device():
    moved = load("sentiment", device="cpu")
    assert moved.runner.device == torch.device("cpu")
    exactly(moved("good").scores, load("sentiment")("good").scores)
    with pytest.raises(ModelError, match=r'cannot use the device "cuda:99": .*\w\. Available: c'):
        load("sentiment", device="cuda:99")
    with pytest.raises(ModelError, match='there is no device "nonsense"; available: cpu'):
        load("sentiment", device="nonsense")
    with pytest.raises(ModelError, match="either device or device_map"):
        load("sentiment", device="cpu", device_map="auto")


def test_auto_is_the_accelerator_where_there_is_one(monkeypatch):
    assert find_device("auto") == torch.device("cpu") or torch.accelerator.is_available()
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert find_device("auto") == torch.device("meta")


def test_half_precision_stays_on_a_gpu(tmp_path, monkeypatch):
    tiny("bert", "classify").half().save_pretrained(tmp_path)
    assert next(load(tmp_path).runner.model.parameters()).dtype == torch.float32
    monkeypatch.setattr("wherefrom.loading.find_device", torch.device)
    model = load(tmp_path, device="meta").runner.model
    assert next(model.parameters()).dtype == torch.float16
    assert next(model.parameters()).device.type == "meta"


def test_a_model_of_images_without_pillow_names_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=re.escape('pip install "wherefrom[vision]"')):
        load("digits")("three.png")


def test_a_tokenizer_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    tiny("bert", "classify").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{not json")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(ModelError, match=r"cannot read the tokenizer of .*: \w+: \S+"):
        load(tmp_path)


def test_an_image_processor_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    tiny("vit", "see").save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "NoSuchClass"}')
    with pytest.raises(ModelError, match=r"cannot read the image processor of .*: \w+: \S+"):
        load(tmp_path)


def test_a_hub_id_without_a_tokenizer_is_warned_of():
    class Absent:
        def from_pretrained(self, source):
            raise OSError(f"{source} has no file tokenizer.json")

    said = r"some/model has no tokenizer: some/model has no file tokenizer\.json"
    with pytest.warns(UserWarning, match=said):
        assert _companion(Absent(), "tokenizer", "some/model") is None


@pytest.mark.parametrize(("version", "name"), [("4.55.4", "torch_dtype"), ("4.56.0", "dtype")])
def test_the_number_type_has_the_name_that_this_transformers_knows(version, name):
    options = {"dtype": torch.float16, "revision": "main"}
    assert pretrained_options(version, options) == {name: torch.float16, "revision": "main"}


@pytest.mark.parametrize(("version", "name"), [("4.48.0", "torch_dtype"), ("5.0.0", "dtype")])
def test_smollm2_is_read_with_that_name_too(version, name, monkeypatch, tmp_path):
    passed = {}

    def read(source, **options):
        passed.update(options)
        raise ValueError("no weights here")

    monkeypatch.setattr("transformers.__version__", version)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *a, **k: None)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", read)
    monkeypatch.setattr(packaged, "find_spec", lambda library: library)
    with pytest.raises(ModelError, match="no weights here"):
        packaged.LANGUAGE_MODELS["smollm2"]._convert(tmp_path / "model.gguf", tmp_path)
    assert passed == {"gguf_file": "model.gguf", name: torch.float32}
