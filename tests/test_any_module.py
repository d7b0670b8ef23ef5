"""Any torch module is explained, or refused in one clear line."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.tiny import model as tiny
from tests.helpers import exactly
from wherefrom import Explainer
from wherefrom.errors import InputError, ModelError, TargetError

IDS = [3, 4, 5]


class Nano(nn.Module):
    """As nanoGPT: its argument is idx, its output a pair."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.wte, self.wpe = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.norm, self.attention = nn.LayerNorm(16), nn.Linear(16, 48)
        self.head = nn.Linear(16, 30)

    def hidden(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        q, k, v = (part.unsqueeze(1) for part in self.attention(self.norm(x)).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)

    def forward(self, idx, targets=None):
        return self.head(self.hidden(idx)), None


class Wrapper(Nano):
    """As x-transformers: its argument is x."""

    def forward(self, x, mask=None, return_embeddings=False):
        return self.head(self.hidden(x))


class Named(Nano):
    def forward(self, input_ids):
        return self.head(self.hidden(input_ids))


@pytest.mark.parametrize("module", [Nano, Wrapper])
@pytest.mark.parametrize("method", ["lrp", "integrated_gradients", "attention_rollout"])
def test_an_argument_of_another_name_is_passed_by_position(module, method):
    rows = [IDS, [7, 8], [9, 1]]
    expected = Explainer(Named())(rows, method, target=2)
    explanations = Explainer(module())(rows, method, target=2)
    for explanation, same in zip(explanations, expected, strict=True):
        exactly(explanation.scores, same.scores, tol=1e-5)
        assert explanation.target.position == len(explanation.units) - 1


def test_a_model_that_is_given_another_forward_is_asked_anew():
    model = Named()
    runner = Explainer(model).runner
    assert runner.takes("input_ids")
    assert not runner.takes("attention_mask")
    model.forward = lambda input_ids, attention_mask: Named.forward(model, input_ids)
    assert runner.takes("input_ids", "attention_mask")


def test_a_sequential_of_embeddings_is_explained():
    module = nn.Sequential(nn.Embedding(30, 8), nn.Flatten(), nn.Linear(24, 3)).double()
    explanation = Explainer(module)(IDS, target=1)
    weights = module[2].weight[1].reshape(3, 8)
    exactly(explanation.scores, (weights * module[0].weight[IDS]).sum(-1).detach(), tol=1e-6)


def test_a_module_that_needs_more_than_ids_is_refused():
    class Two(Nano):
        def forward(self, tokens, context):
            return self.head(self.hidden(tokens))

    with pytest.raises(
        ModelError,
        match=r"^Two needs context in addition to tokens\. Pass a function that runs it: ",
    ):
        Explainer(Two())(IDS)
    explainer = Explainer(Two(), forward=lambda model, inputs: model(inputs["input_ids"], None))
    exactly(explainer(IDS, target=2).scores, Explainer(Named())(IDS, target=2).scores)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # on Python 3.14
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_traced_or_scripted_model_is_refused():
    ids = torch.tensor([IDS])
    for model in (torch.jit.trace(Wrapper(), ids), torch.jit.script(nn.Linear(4, 3))):
        with pytest.raises(ModelError, match="cannot explain a traced or scripted model"):
            Explainer(model)


class Hashed(nn.Module):
    """As CANINE: characters are looked up by hashes of their numbers, in several tables."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.Embedding(11, 4, dtype=torch.float64) for _ in range(2))
        self.head = nn.Linear(8, 3, dtype=torch.float64)

    def embedded(self, ids):
        parts = (
            table((ids + 1) * prime % 11)
            for table, prime in zip(self.tables, (31, 43), strict=True)
        )
        return torch.cat(list(parts), -1)

    def forward(self, input_ids):
        return self.head(self.embedded(input_ids).sum(1))


def test_ids_that_are_hashed_are_those_of_their_units():
    module, rows = Hashed(), [[3, 400, 5], [70, 8]]
    explanations = Explainer(module)(rows, target=1, root=None)
    for ids, explanation in zip(rows, explanations, strict=True):
        with torch.no_grad():
            expected = module.embedded(torch.tensor([ids]))[0] @ module.head.weight[1]
        exactly(explanation.scores, expected, tol=1e-6)
        assert explanation.ledger.relative < 1e-12


class Embedded(nn.Module):
    """The sum of looked-up rows, under weights that differ from place to place."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.change = change
        self.embed, self.head = nn.Embedding(30, 6), nn.Linear(6, 3, bias=False)

    def forward(self, input_ids):
        rows = self.embed(self.change(input_ids))
        return self.head((rows * torch.arange(1.0, rows.shape[1] + 1)[:, None]).sum(1))


def replaced(ids):
    """As models do with the tokens that stand for an image, which are all 9 here."""
    other = ids.clone()
    other[ids == 9] = 0
    return other


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (replaced, slice(0, 6)),
        (lambda ids: torch.where(ids == 9, 0, ids), slice(0, 6)),
        (lambda ids: ids[:, 2:], slice(2, 6)),
        (lambda ids: ids[:, :-1], slice(0, 5)),
        (lambda ids: ids.flip(1), [5, 4, 3, 2, 1, 0]),
    ],
)
def test_ids_of_which_some_are_replaced_moved_or_cut_off_are_those_of_their_units(change, kept):
    module, ids = Embedded(change).double(), [9, 3, 9, 5, 7, 3]
    with torch.no_grad():
        looked_up = change(torch.tensor([ids]))
        weights = torch.arange(1.0, looked_up.shape[1] + 1)
        expected = torch.zeros(6, dtype=torch.float64)
        expected[kept] = module.embed(looked_up)[0] @ module.head.weight[1] * weights
    explanation = Explainer(module)(ids, target=1, root=None)
    exactly(explanation.scores, expected, tol=1e-6)
    assert explanation.ledger.relative < 1e-12


class Prompted(Nano):
    """As CPM-Ant: puts tokens of its own in front of the input, and takes them away at the end."""

    def forward(self, input_ids):
        prompt = torch.arange(20, 24).expand(len(input_ids), -1)
        return self.head(self.hidden(torch.cat([prompt, input_ids], 1))[:, 4:])


@pytest.mark.parametrize("method", ["lrp", "gradient_x_input", "attention_rollout"])
def test_units_behind_a_prompt_of_the_models_own_have_their_own_scores(method):
    module, given = Prompted().double(), Named().double()
    with_prompt = Explainer(given)([20, 21, 22, 23, *IDS], method, target=1)
    own = Explainer(module)(IDS, method, target=1)
    assert len(own) == len(IDS)
    exactly(own.output, with_prompt.output)
    exactly(own.scores, with_prompt.scores[4:], tol=1e-6)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_model_with_gradient_checkpointing_is_explained(reentrant):
    model = tiny("bert", "classify")
    expected = Explainer(model)(IDS).scores
    settings = {"use_reentrant": reentrant}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    exactly(Explainer(model.train())(IDS).scores, expected)


class Checkpointed(Nano):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def step(self, x):
        return torch.tanh(self.attention(self.norm(x))[..., :16])

    def forward(self, idx):
        x = self.wte(idx)
        added = (
            self.step(x)
            if self.reentrant is None
            else checkpoint(self.step, x, use_reentrant=self.reentrant)
        )
        return self.head(x + added)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.cpu.amp.autocast:FutureWarning")  # of torch 2.4
@pytest.mark.parametrize(
    ("method", "reentrant"),
    [
        ("lrp", True),
        ("lrp", False),
        ("integrated_gradients", True),
        ("integrated_gradients", False),
    ],
)
def test_checkpointing_outside_of_training_is_refused(reentrant, method):
    with pytest.raises(ModelError, match=r"^Checkpointed calls torch\.utils\.checkpoint"):
        Explainer(Checkpointed(reentrant))(IDS, method)


class Caches(Nano):
    """Keeps what it makes of its parameters in its first pass, with the graph of that pass."""

    def __init__(self, add):
        super().__init__()
        self.shift, self.kept, self.add = torch.nn.Parameter(torch.randn(16)), None, add

    def forward(self, idx):
        self.kept = self.shift * 2 if self.kept is None else self.kept
        return self.head(self.add(self.wte(idx), self.kept))


ADDED = {
    "by position": lambda x, kept: x + kept,
    "by name": lambda x, kept: torch.add(x, other=kept),
    "in a list": lambda x, kept: torch.stack([x, kept.expand_as(x)]).sum(0),
}


@pytest.mark.parametrize("add", list(ADDED.values()), ids=list(ADDED))
def test_what_a_model_cached_of_its_parameters_is_a_bias(add):
    torch.manual_seed(0)
    model = Caches(add).double()
    model(torch.tensor([IDS]))  # gradients are on
    assert model.kept.requires_grad
    explanation = Explainer(model)(IDS, target=3, root=None)
    assert explanation.ledger.relative < 1e-12
    expected = (model.head.weight[3] @ model.kept + model.head.bias[3]).detach()
    assert sum(x.value for x in explanation.ledger.lines if x.kind == "bias") == pytest.approx(
        float(expected), rel=1e-9
    )
    assert model.kept.requires_grad


def test_flex_attention_is_refused_where_it_has_no_backward_pass():
    from torch.nn.attention.flex_attention import flex_attention

    class Flex(Nano):
        def forward(self, idx):
            x = self.wte(idx)
            q, k, v = (part.unsqueeze(1) for part in self.attention(x).chunk(3, -1))
            return self.head(x + flex_attention(q, k, v).squeeze(1))

    with pytest.raises(ModelError, match=r'FlexAttention .*attn_implementation="sdpa"'):
        Explainer(Flex())(IDS)


def test_a_multiple_choice_model_is_run_by_a_forward_of_ones_own():
    config = tiny("bert", "classify").config
    torch.manual_seed(0)
    model = transformers.BertForMultipleChoice(config).double().eval()
    with pytest.raises(ModelError, match=r"MultipleChoice cannot be run on input_ids \(1, 3"):
        Explainer(model)(IDS)

    def score(model, inputs):
        return model(**{name: tensor.unsqueeze(1) for name, tensor in inputs.items()}).logits

    explanation = Explainer(model, forward=score)(IDS)
    assert explanation.ledger.relative < 1e-9
    assert explanation.scores.shape == (3,)


def test_whisper_is_run_by_a_forward_of_ones_own():
    sizes = dict.fromkeys(
        ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
        2,
    )
    config = transformers.WhisperConfig(
        vocab_size=60, d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, num_mel_bins=8,
        max_source_positions=10, max_target_positions=20, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1, begin_suppress_tokens=None, **sizes,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(config).double().eval()
    frames = torch.randn(8, 20, dtype=torch.float64)
    with pytest.raises(ModelError, match="WhisperForConditionalGeneration cannot be run on input_"):
        Explainer(model)(frames)

    def next_token(model, inputs):
        start = torch.ones(len(inputs["input_features"]), 1, dtype=torch.long)
        return model(**inputs, decoder_input_ids=start).logits[:, -1]

    explanation = Explainer(model, forward=next_token)(frames)
    assert explanation.ledger.relative < 1e-9
    assert [unit.text for unit in explanation.units] == ["0–0.1 s", "0.1–0.2 s"]


def test_a_forward_of_ones_own_does_not_borrow_the_names_of_classes():
    model = tiny("bert", "classify", id2label={0: "NEGATIVE", 1: "POSITIVE", 2: "MIXED"})

    def cosine(model, inputs):
        pooled = model.bert(**inputs).pooler_output
        return F.cosine_similarity(pooled, torch.ones_like(pooled[:1])).unsqueeze(1)

    assert Explainer(model, forward=cosine)(IDS).target.label == "0"
    labelled = Explainer(model, forward=cosine, labels=["similarity"])
    assert labelled(IDS).target.label == "similarity"
    assert Explainer(model)(IDS, target=0).target.label == "NEGATIVE"


def test_a_forward_of_ones_own_does_not_borrow_the_names_of_tokens(gpt2, bytepairs):
    def score(model, inputs):
        return model(**inputs).logits[:, -1, :2]

    explainer = Explainer(gpt2, bytepairs, forward=score)
    assert explainer("love", target=1).target.label == "1"
    whole = Explainer(gpt2, bytepairs, forward=lambda model, inputs: model(**inputs).logits)
    assert whole("love", target=70).target.label == bytepairs.decode([70])


# The position that is explained.


def test_a_token_classifier_needs_a_position():
    torch.manual_seed(0)
    model = transformers.BertForTokenClassification(tiny("bert", "classify").config).eval()
    explainer = Explainer(model)
    with pytest.raises(
        TargetError, match=r"so its entities are unknown: name the words .*position"
    ):
        explainer(IDS)
    with pytest.raises(ModelError, match="predicts spans"):
        explainer._prepared(IDS)
    assert explainer(IDS, position=1).target.position == 1


@pytest.mark.parametrize(("text", "count"), [("the [MASK] is [MASK]", 2), ("the film is good", 0)])
def test_a_masked_language_model_needs_one_mask_or_a_position(text, count, wordpiece):
    explainer = Explainer(tiny("bert", "fill"), wordpiece)
    match = (
        "the text has 2 masks: pass the position" if count else "for every token: pass the position"
    )
    with pytest.raises(TargetError, match=match):
        explainer(text)
    with pytest.raises(TargetError, match=match):
        explainer(["the film is [MASK]", text])
    assert explainer(text, position=2).target.position == 2
    assert explainer("the film is [MASK]").target.position == 4


def test_a_masked_language_model_does_not_generate_even_if_it_says_so(monkeypatch):
    model = tiny("bert", "fill")
    monkeypatch.setattr(type(model), "can_generate", classmethod(lambda kind: True))
    with pytest.raises(TargetError, match="for every token: pass the position"):
        Explainer(model)(IDS)


def test_an_output_that_is_shorter_than_the_input_has_no_such_position():
    def short(model, inputs):
        return model(inputs["input_ids"])[0][:, :2]

    with pytest.raises(TargetError, match=r"there is no position 2: the model's output has 2\."):
        Explainer(Nano(), forward=short)(IDS)


# A decoder that is run by a forward of one's own.


def own_decoder(length):
    def forward(model, inputs):
        ids = torch.arange(4, 4 + length).expand(len(inputs["input_ids"]), -1)
        encoder = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return model(**encoder, decoder_input_ids=ids).logits

    return forward


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_units_are_those_that_a_forward_of_ones_own_reads(t5, length):
    (explanation, _) = Explainer(t5, forward=own_decoder(length))([IDS, [7, 8]], target=9)
    assert len(explanation.units) == 3
    assert explanation.target.position == -1
    logits = own_decoder(length)(
        t5, {"input_ids": torch.tensor([IDS]), "attention_mask": torch.ones(1, 3)}
    )
    exactly(explanation.output, logits[0, -1, 9].detach())


def test_a_forward_that_passes_the_decoder_ids_on_has_their_units(t5):
    expected = Explainer(t5)(IDS, target=9)
    explanation = Explainer(t5, forward=lambda model, inputs: model(**inputs).logits)(IDS, target=9)
    exactly(explanation.scores, expected.scores)
    assert [unit.field for unit in explanation.units] == ["", "", "", "decoder"]


@pytest.mark.parametrize("length", [2, 3])
def test_attention_of_a_sequence_that_is_no_input_is_not_mixed_up(t5, length):
    with pytest.raises(ModelError, match="such as latents or a decoder"):
        Explainer(t5, forward=own_decoder(length))(IDS, "gae", target=9)


# Settings that make no sense.


def test_a_contrast_of_an_output_with_itself_is_refused(bert):
    with pytest.raises(TargetError, match=r'^target and against are the same output, "good"'):
        Explainer(bert)(IDS, target="good", against=1)
    with pytest.raises(TargetError, match='the same output, "bad"'):
        Explainer(bert)([IDS, IDS], target=[1, 0], against=0)


@pytest.mark.parametrize("size", [0, -3])
def test_a_batch_of_no_inputs_is_refused(bert, size):
    with pytest.raises(InputError, match=f"^batch_size must be 1 or more, got {size}"):
        Explainer(bert)(IDS, batch_size=size)
