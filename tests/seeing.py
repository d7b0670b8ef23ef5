"""Tiny models that see, with processors of their own: made from configs, no file is read."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = (
    "what is in the picture ? a red blue square on left right of dog cat and it there describe "
    "user assistant system : , . ! answer in one word"
).split()
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} : "
    "{% for block in message['content'] %}"
    "{% if block['type'] == 'image' %}IMAGE{% else %}{{ block['text'] }}{% endif %}{% endfor %} "
    "{% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
_TEXT = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


def tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """Words of a small vocabulary, with the special tokens that a processor needs."""
    names = ["<pad>", "<s>", "</s>", "<unk>", *special]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys([*names, *WORDS]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    own = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>", extra_special_tokens=named,
    )  # fmt: skip
    own.add_special_tokens({"additional_special_tokens": list(special)}, replace_extra_special_tokens=False) if special else None
    return own


def picture(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """Smooth random colours."""
    noise = np.random.default_rng(seed).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def _llava() -> tuple[Any, Any]:
    words = tokenizer("<image>", image_token="<image>")
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_VISION),
        text_config=transformers.LlamaConfig(**_TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    processor = transformers.LlavaProcessor(
        transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE.replace("IMAGE", "<image>"),
    )
    return transformers.LlavaForConditionalGeneration(config), processor


_MAKERS = {"llava": _llava}
FAMILIES = tuple(_MAKERS)


@cache
def seeing(family: str) -> tuple[Any, Any]:
    """A random model in float64 that reads images with texts, and its processor."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, processor = _MAKERS[family]()
        for name, weight in model.named_parameters():  # biases and norms that say something
            if weight.ndim == 1:
                weight.data.add_(0.1 * torch.randn_like(weight))
            elif "embed" not in name:
                weight.data.mul_(3)
    return model.double().eval(), processor
