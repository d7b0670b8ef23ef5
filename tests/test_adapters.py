"""Adapters of PEFT: read from a folder, and explained as the model that they make."""

import json
import sys

import pytest
import torch

from benchmarks.tiny import model as tiny
from tests.helpers import assert_unchanged, exactly
from wherefrom import Explainer, load
from wherefrom.errors import FileError, MissingExtra, ModelError
from wherefrom.testing import snapshot

IDS = [1, 17, 45, 8, 99, 23]
ANSWER = [33, 71, 5]


def peft():
    return pytest.importorskip(
        "peft", reason="ADAPTERS ARE NOT TESTED: pip install --no-deps peft accelerate"
    )


def config_of(name):
    library = peft()
    task = {"task_type": "CAUSAL_LM"}
    linear = {"target_modules": ["q_proj", "v_proj"]}
    if name == "lora":
        return library.LoraConfig(init_lora_weights=False, **linear, **task)
    if name == "ia3":
        return library.IA3Config(feedforward_modules=[], init_ia3_weights=False, **linear, **task)
    if name == "prompt tuning":
        return library.PromptTuningConfig(num_virtual_tokens=3, **task)
    return library.PrefixTuningConfig(num_virtual_tokens=3, **task)


KINDS = ("lora", "ia3", "prompt tuning", "prefix tuning")


@pytest.fixture(params=KINDS)
def folders(request, tmp_path):
    """A base model and an adapter for it, saved; with the model that they make."""
    library, config = peft(), config_of(request.param)
    base = tiny("llama", "write").float()
    base.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")
    torch.manual_seed(3)
    tuned = library.get_peft_model(base, config).eval()
    tuned.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    tuned.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", tuned


@pytest.mark.filterwarnings("ignore:Position ids are not supported")
def test_an_adapter_is_explained_as_the_model_that_it_makes(folders):
    folder, tuned = folders
    explainer = load(folder)
    assert explainer.runner.name == "adapter"
    before = snapshot(explainer.runner.model)
    with torch.no_grad():
        rows = tuned(input_ids=torch.tensor([IDS + ANSWER])).logits[0, -len(IDS + ANSWER) :]
    place = len(IDS) - 1
    (explanation, other) = explainer([IDS, IDS[:4]], target=9)
    exactly(explanation.output, rows[place, 9], 1e-5)
    exactly(other.output, rows[3, 9], 1e-5)
    assert explanation.ledger.relative < 1e-5
    answer = explainer.answer(IDS, ANSWER, of="logit")
    chosen = rows[place:-1].gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0]
    exactly([token.output for token in answer.tokens], chosen, 1e-5)
    assert answer.of().ledger.relative < 1e-5
    written = [token.id for token in explainer.generate(IDS, 3).tokens]
    with torch.no_grad():
        rows = tuned(input_ids=torch.tensor([IDS + written])).logits[0, -len(written) - 1 : -1]
    assert rows.argmax(-1).tolist() == written
    assert_unchanged(before, snapshot(explainer.runner.model))


def test_an_adapter_with_a_head_of_its_own_needs_no_trained_base(tmp_path):
    library = peft()
    base = tiny("bert", "classify", num_labels=4).float()
    base.bert.save_pretrained(tmp_path / "base")  # without the head, which the adapter has
    config = library.LoraConfig(task_type="SEQ_CLS", target_modules=["query"])
    tuned = library.get_peft_model(base, config).eval()
    tuned.save_pretrained(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = "elsewhere"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match=r"cannot load elsewhere, the base model .* base=folder"):
        load(tmp_path / "adapter")
    explainer = load(tmp_path / "adapter", base=tmp_path / "base")
    with torch.no_grad():
        expected = tuned(input_ids=torch.tensor([IDS])).logits[0]
    assert len(expected) == 4
    exactly(explainer(IDS, target=3).output, expected[3], 1e-5)


def test_a_translator_with_an_adapter_answers():
    library = peft()
    model = tiny("t5", "translate").float()
    config = library.LoraConfig(
        task_type="SEQ_2_SEQ_LM", target_modules=["q", "v"], init_lora_weights=False
    )
    tuned = library.get_peft_model(model, config).eval()
    answer = Explainer(tuned).answer(IDS, ANSWER, of="logit")
    with torch.no_grad():
        out = tuned(
            input_ids=torch.tensor([IDS]), decoder_input_ids=torch.tensor([[1, *ANSWER[:-1]]])
        )
    chosen = out.logits[0].gather(1, torch.tensor(ANSWER).unsqueeze(1))[:, 0]
    exactly(answer.of().output, chosen.sum(), 1e-4)
    assert answer.of().ledger.relative < 1e-4


# Without the library.


@pytest.fixture
def folder(tmp_path):
    """An adapter for a base model that is there, made by hand."""
    from safetensors.torch import save_file

    tiny("gpt2", "write").float().save_pretrained(tmp_path / "base")
    path = tmp_path / "adapter"
    path.mkdir()
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "../base"}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"base_model.model.x": torch.zeros(2)}, path / "adapter_model.safetensors")
    return path


def test_a_missing_library_is_named_with_the_line_that_installs_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r'needs peft.*pip install "wherefrom\[peft\]"'):
        load(folder)


def test_a_folder_that_is_no_adapter_to_read_is_refused_in_a_line(folder):
    with pytest.raises(ModelError, match="only adapters have a base"):
        load(folder.parent / "base", base="x")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match="read from safetensors only"):
        load(folder)
    (folder / "adapter_config.json").write_text("[]", encoding="utf-8")
    with pytest.raises(FileError, match="is not the config of an adapter"):
        load(folder)
