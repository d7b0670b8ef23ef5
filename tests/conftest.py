"""Small models and tokenizers that every test may use, made in memory."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("COLUMNS", None)  # the width of the terminal that the tests are run from

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.tiny import model as tiny
from wherefrom.core.memory import set_objects_aside

torch.set_num_threads(1)
# no limit of time, which a busy machine exceeds
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")
_full = torch.full


def _wide_full(size, fill_value, **options):
    """`torch.full`, of float64 where float32 has no such number.

    Old versions of transformers fill their masks with the least float64 and name no number type.
    """
    if isinstance(fill_value, float) and abs(fill_value) > torch.finfo(torch.float32).max:
        options.setdefault("dtype", torch.float64)
    return _full(size, fill_value, **options)


if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 0):
    torch.full = _wide_full
WORDS = "the a film movie is was good bad great dull and not of i love hate it un like script in ."
PIECES = "##able ##ly ##s ##ing ##d"
PAIRS = "t h|th e|o v|l ov|lov e|i s|Ġ i|Ġi s|Ġ P|a r|ĠP ar|i s|ĠPar is|m o|mo v|mov i|movi e"


@pytest.fixture
def rng():
    """A generator with a fixed seed."""
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="session")
def wordpiece():
    """A lower-casing WordPiece tokenizer with the classic [CLS] … [SEP], 58 tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [f"{mark}{letter}" for letter in "abcdehilmnorst," for mark in ("", "##")]
    listed = dict.fromkeys([*special, *WORDS.split(), *PIECES.split(), *letters])
    vocabulary = {word: i for i, word in enumerate(listed)}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.decoder = decoders.WordPiece()
    names = ("pad", "unk", "cls", "sep", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        **{f"{name}_token": token for name, token in zip(names, special, strict=True)},
    )


@pytest.fixture(scope="session")
def bytepairs():
    """A byte-level BPE tokenizer as GPT-2 has, with a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = list(dict.fromkeys(tuple(pair.split()) for pair in PAIRS.split("|")))
    listed = dict.fromkeys(["<|end|>", *letters, *("".join(pair) for pair in merges)])
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(listed)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token="<|end|>",
        model_input_names=["input_ids", "attention_mask"],  # of old transformers types are default
    )


@pytest.fixture(scope="session")
def bert():
    """A BERT classifier of two layers and three classes, float64, all biases non-zero."""
    return tiny("bert", "classify", id2label={0: "bad", 1: "good", 2: "mixed"})


@pytest.fixture(scope="session")
def gpt2():
    """A GPT-2 language model of two layers, float64, with a token for padding."""
    return tiny("gpt2", "write", vocab_size=280)


@pytest.fixture(scope="session")
def t5():
    """A T5 that writes, of two and two layers, float64."""
    return tiny("t5", "translate")


@pytest.fixture(scope="session")
def pair_wordpiece(wordpiece):
    """The same tokenizer as BERT has it: pairs of texts, with a type for each half."""
    made = Tokenizer.from_str(wordpiece.backend_tokenizer.to_str())
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **wordpiece.special_tokens_map,
    )


@pytest.fixture(scope="session", autouse=True)
def objects_set_aside():
    """Garbage collections, which commands start with, pass over all modules and collected tests."""
    given(none())(lambda _: None)()  # Hypothesis first looks for what refers to its generator
    set_objects_aside()
