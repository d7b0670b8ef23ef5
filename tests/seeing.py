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


def tokenizer(*special: str) -> PreTrainedTokenizerFast:
    """Words of a small vocabulary, with the special tokens that a processor needs."""
    names = ["<pad>", "<s>", "</s>", "<unk>", *special, *WORDS]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        pad_token="<pad>", additional_special_tokens=list(special),
    )  # fmt: skip


def picture(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """Smooth random colours."""
    noise = np.random.default_rng(seed).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def _llava() -> tuple[Any, Any]:
    words = tokenizer("<image>")
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


def _qwen(kind: str) -> tuple[Any, Any]:
    words = tokenizer("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    number = words.convert_tokens_to_ids
    vision = {
        "embed_dim": 32, "hidden_size": 32, "depth": 2, "num_heads": 4, "patch_size": 4,
        "mlp_ratio": 2, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "intermediate_size": 48, "out_hidden_size": 32, "fullatt_block_indexes": [1],
        "window_size": 16,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        text_config={**_TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        vision_config=vision,
        image_token_id=number("<|image_pad|>"),
        video_token_id=number("<|video_pad|>"),
        vision_start_token_id=number("<|vision_start|>"),
        vision_end_token_id=number("<|vision_end|>"),
    )
    images = transformers.Qwen2VLImageProcessorPil(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=64, max_pixels=4096
    )
    template = _TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = _without_videos(getattr(transformers, f"{kind}Processor"))(
        images, words, chat_template=template
    )
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config), processor


def _without_videos(kind: type[Any]) -> type[Any]:
    """The processor without the part that reads videos, which needs torchvision."""
    return type(
        kind.__name__,
        (kind,),
        {"get_attributes": classmethod(lambda cls: ["image_processor", "tokenizer"])},
    )


def _paligemma() -> tuple[Any, Any]:
    words = tokenizer("<image>")
    config = transformers.PaliGemmaConfig(
        vision_config={**_VISION, "model_type": "siglip_vision_model", "projection_dim": 32},
        text_config={**_TEXT, "model_type": "gemma"},
        image_token_index=words.convert_tokens_to_ids("<image>"),
        projection_dim=32,
    )
    images = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    model = transformers.PaliGemmaForConditionalGeneration(config)
    return model, transformers.PaliGemmaProcessor(images, words)


def _idefics3() -> tuple[Any, Any]:
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 4) for j in range(1, 4)]
    words = tokenizer(
        "<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *rows
    )
    config = transformers.Idefics3Config(
        vision_config={**_VISION},
        text_config={**_TEXT, "model_type": "llama"},
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    images = transformers.Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = transformers.Idefics3Processor(
        images, words, image_seq_len=4, chat_template=_TEMPLATE.replace("IMAGE", "<image>")
    )
    return transformers.Idefics3ForConditionalGeneration(config), processor


_MAKERS = {
    "llava": _llava,
    "qwen2_vl": lambda: _qwen("Qwen2VL"),
    "qwen2_5_vl": lambda: _qwen("Qwen2_5_VL"),
    "paligemma": _paligemma,
    "idefics3": _idefics3,
}
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
