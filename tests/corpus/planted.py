"""A tiny model in which one group of names is favoured, its unbiased twin, and texts for both."""

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from wherefrom import Explainer
from wherefrom.corpus import Lexicon

FILLERS = "the a film movie was is good bad great dull and not of with in about plot cast".split()
WOMEN = [f"ann{letter}" for letter in "abcdefghijklmnopqrst"]
MEN = [f"bob{letter}" for letter in "abcdefghijklmnopqrst"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LEXICON = Lexicon.of([*((n.title(), "female") for n in WOMEN), *((n.title(), "male") for n in MEN)])


def tokenizer():
    words = [*SPECIAL, *FILLERS, *WOMEN, *MEN]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=32,
        **{f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)},
    )


def texts(seed, count=240):
    """Sentences with one name each; a few names are in most of them, as in any corpus."""
    chance = np.random.default_rng(seed)
    names = chance.permutation([*WOMEN, *MEN])
    often = 1 / np.arange(1, len(names) + 1)
    sentences = []
    for name in [*names, *chance.choice(names, count - len(names), p=often / often.sum())]:
        words = chance.choice(FILLERS, chance.integers(3, 9)).tolist()
        words.insert(int(chance.integers(0, len(words) + 1)), str(name).title())
        sentences.append(" ".join(words))
    return sentences


def explainer(seed, shift):
    """Random weights; the embeddings of female names are moved by `shift` towards the output.

    With shift 0 names still differ from each other, at random: that is the unbiased twin.
    """
    torch.manual_seed(seed)
    words = tokenizer()
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=32, initializer_range=0.3,
            id2label={0: "NEGATIVE", 1: "POSITIVE"},
        )
    ).eval()  # fmt: skip
    table = model.get_input_embeddings().weight
    rows = words.convert_tokens_to_ids(WOMEN)
    if shift:
        inputs = words(texts(seed)[:60], return_tensors="pt", padding=True)
        logits = model(**inputs).logits
        gradient = torch.autograd.grad((logits[:, 1] - logits[:, 0]).mean(), table)[0]
        step = gradient[rows + words.convert_tokens_to_ids(MEN)].mean(0)
        with torch.no_grad():
            table[rows] += shift * step / step.norm()
    return Explainer(model, words)
