"""Tiny random models of any family that transformers has, made from its config alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto as auto

TASKS = {
    "classify": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "write": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "translate": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "fill": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "see": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}
# its name before transformers 5
_CONFIG = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
_NEEDS_DICTS = transformers.__version__ < "5.1"  # many want the configs of their parts so
# What a size is called in one config or another; only those that a config has are set.
_SIZES: dict[str, Any] = {
    "vocab_size": 120, "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "dim": 32,
    "emb_dim": 32, "embedding_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 2,
    "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "d_ff": 48, "ffn_dim": 48, "hidden_dim": 48, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "n_inner": 48, "d_inner": 48, "d_kv": 8, "d_head": 8, "head_dim": 8,
    "max_position_embeddings": 64, "n_positions": 64, "max_seq_len": 64, "num_experts": 4,
    "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "ffn_hidden_size": 48, "expert_capacity": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "sep_token_id": 2, "cls_token_id": 1, "mask_token_id": 3, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "qk_head_dim": 16, "rotary_dim": 8,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "attention_window": 8, "image_size": 32,
    "patch_size": 8, "state_size": 8, "type_vocab_size": 2, "attention_dropout": 0.0,
    "moe_num_experts": 4, "moe_k": 2, "ffn_config": None, "num_buckets": 8, "hidden_sizes": None,
    "is_decoder": None, "decoder_start_token": 1, "forced_eos_token_id": 2, "forced_bos_token_id": None,
    "num_experts_per_token": 2, "moe_topk": 2, "block_size": 8, "sliding_window": 8, "window_size": 4,
    "vocab_size_per_layer_input": 120, "hidden_size_per_layer_input": 8, "num_labels": 3,
    "hidden_size_global": 32, "audio_hidden_size": 32, "blank_token_id": 0, "use_mamba_kernels": False,
}  # fmt: skip


_WINDOWS = {
    "num_heads": [2, 4], "depths": [2, 2], "patch_size": 4, "hidden_size": None,
    "num_attention_heads": None, "num_hidden_layers": None, "num_layers": None,
}  # fmt: skip
_STAGES = {
    "image_size": 64, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32],
    "num_attention_heads": [1, 2, 3, 4], "mlp_ratios": [2, 2, 2, 2],
}  # fmt: skip
_CONVOLUTIONS = {
    "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "patch_size": 4,
    "num_hidden_layers": None,
}  # fmt: skip
_TOWER = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_TOWERS = {
    "vision_config": {**_TOWER, "image_size": 32, "patch_size": 8},
    "text_config": {**_TOWER, "vocab_size": 120, "eos_token_id": 2},
    "num_attention_heads": None, "num_hidden_layers": None, "hidden_size": None,
}  # fmt: skip
_STATES = {  # of state-space layers: heads times their size is twice the hidden size
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8,
}  # fmt: skip
_GEMMA = {
    "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0,
    "global_head_dim": 8,
}  # fmt: skip
_ZAMBA = {
    "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    "layer_types": None, "num_key_value_heads": 4, "mamba_d_state": 8, "chunk_size": 8,
}  # fmt: skip
_SAM = {"global_attn_indexes": [1], "mlp_dim": 48, "output_channels": 8, "window_size": 2}
# Sizes that hang together in one family's own way.
_OWN: dict[str, dict[str, Any]] = {
    "funnel": {"num_hidden_layers": None, "block_sizes": [1, 1], "d_head": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "hidden_size": 32},
    "reformer": {
        "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "local"],
        "num_hidden_layers": None, "attention_head_size": 8, "is_decoder": False,
        "local_attn_chunk_length": 8, "num_buckets": None,
    },
    "xlnet": {"max_position_embeddings": None, "n_positions": None, "d_head": None},
    "transfo-xl": {"max_position_embeddings": None},
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6, "visual_embed": False},
    "lilt": {"channel_shrink_ratio": 2, "hidden_size": 48, "intermediate_size": 48},
    "swin": {**_WINDOWS}, "swinv2": {**_WINDOWS}, "donut-swin": {**_WINDOWS},
    "pvt": {**_STAGES, "sequence_reduction_ratios": [4, 2, 1, 1]},
    "pvt_v2": {**_STAGES, "sr_ratios": [4, 2, 1, 1]},
    "segformer": {**_STAGES, "sr_ratios": [4, 2, 1, 1]},
    "cvt": {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]},
    "regnet": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "groups_width": 8},
    "resnet": {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "embedding_size": 8},
    "bit": {"hidden_sizes": [128, 128, 128, 128], "depths": [1, 1, 1, 1], "embedding_size": 32},
    "levit": {
        "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1],
        "key_dim": [8, 8, 8], "image_size": 64, "patch_size": 16,
    },
    "hiera": {
        "image_size": [64, 64], "patch_size": None, "embed_dim": 8, "depths": [1, 1, 1, 1],
        "num_heads": [1, 1, 2, 2], "num_attention_heads": None, "num_hidden_layers": None,
        "num_layers": None, "hidden_size": None,
    },
    "mobilevitv2": {
        "image_size": 64, "patch_size": 2, "n_attn_blocks": [1, 1, 1],
        "base_attn_unit_dims": [16, 24, 32],
    },
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 16, 24, 32]},
    "efficientnet": {
        "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320, "image_size": 64,
        "num_hidden_layers": None,
    },
    "pp_lcnet": {  # as deep as it comes, a random one forgets its input
        "block_configs": [
            [[3, 16, 16, 1, False]], [[3, 16, 24, 2, False]], [[3, 24, 32, 2, False]],
            [[5, 32, 32, 1, True]], [[5, 32, 48, 2, True]],
        ],
        "depths": [1] * 5, "class_expand": 64,
    },
    "convnext": {**_CONVOLUTIONS}, "convnextv2": {**_CONVOLUTIONS},
    "clip": {**_TOWERS}, "siglip": {**_TOWERS}, "metaclip_2": {**_TOWERS},
    "siglip2": {**_TOWERS, "vision_config": {**_TOWER, "num_patches": 16, "patch_size": 8}},
    "dinat": {"num_heads": [2, 4], "depths": [2, 2]},
    "bamba": {**_STATES, "layer_types": None, "attn_layer_indices": [1]},
    "falcon_h1": {**_STATES, "layer_types": None, "mamba_d_ssm": 64},
    "granitemoehybrid": {**_STATES, "layer_types": ["mamba", "attention"], "shared_intermediate_size": 24},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "dots1": {"n_shared_experts": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "prophetnet": {
        "num_hidden_layers": None, "num_encoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4,
    },
    "longcat_flash": {"head_dim": 8, "expert_ffn_hidden_size": 24, "zero_expert_num": 2},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
    "zamba": {**_ZAMBA}, "zamba2": {**_ZAMBA, "n_mamba_heads": 4, "adapter_rank": 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
        "indexer_compress_ratio": 2, "hc_lowrank": 8, "ngram_vocab_size_base": 50,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "ple_layer_ids": [1], "heads_per_ngram": 2,
    },
    "gemma4_text": {**_GEMMA}, "gemma4_unified_text": {**_GEMMA},
    "gemma3n_text": {**_GEMMA, "laurel_rank": 8, "activation_sparsity_pattern": [0.0, 0.0]},
    "neomme": {
        "layer_types": ["sliding_attention", "full_attention"], "embedding_rank": 16,
        "head_dim": 16,
    },
    "esmc": {"num_key_value_heads": 4},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "blt": {"encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3, 4]},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4, "depths": [1] * 7},
    "musicgen_decoder": {"num_codebooks": 1}, "musicgen_melody_decoder": {"num_codebooks": 1},
    # parts of models that read images with texts
    "llama4_vision_model": {
        "intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32,
        "vision_output_dim": 32,
    },
    "mllama_vision_model": {
        "vision_output_dim": 64, "intermediate_layers_indices": [0], "num_global_layers": 1,
        "attention_heads": 4,
    },
    "mllama_text_model": {"cross_attention_layers": [1]},
    "florence_vision": {
        "depths": [1] * 4, "embed_dim": [8, 16, 24, 32], "num_heads": [1, 2, 3, 4],
        "num_groups": [1, 2, 3, 4], "window_size": 4, "projection_dim": 32, "patch_size": None,
    },
    "cosmos3_edge_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma_text": {**_GEMMA, "top_k_experts": 2},
    "nemotron_h": {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
    "align_vision_model": {
        "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 64,
        "num_hidden_layers": None,
    },
    "videoprism_vision_model": {"num_frames": 2},
    "molmo2_vision": {"image_size": [32, 32], "num_position_embeddings": 16},
    "molmo2_adapter": {"vision_feature_layer": [1, 0], "text_hidden_size": 32},
    "glm5_next_text": {
        "qk_rope_head_dim": 0, "head_dim": 0, "qk_head_dim": 8, "index_head_dim": 8,
        "index_n_heads": 2, "index_topk": 16, "linear_head_dim": 8, "linear_num_heads": 4,
    },
    "muse_spark_audio": {"num_hidden_layers": None},
    "radio": {"video_temporal_patch_size": 2, "max_img_size": 64},
    "pp_formulanet_vision": {
        "decoder_hidden_size": 32, "post_conv_in_channels": 8, "post_conv_mid_channels": 16,
        "post_conv_out_channels": 32, "output_channels": 8, "global_attn_indexes": [1],
        "mlp_dim": 48, "window_size": 2,
    },
    "sam_vision_model": {**_SAM}, "deepseek_ocr2_sam_vision_model": {**_SAM, "downsample_channels": [16, 32]},
    "unlimited_ocr_sam_vision_model": {**_SAM, "downsample_channels": [16, 32]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}  # fmt: skip


def config(kind: type[Any], more: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """The family's config with every size made small; `more` has sizes for its parts too."""
    plain = kind()
    latent = hasattr(plain, "kv_lora_rank")  # latent attention has one key for each head
    latent_sizes = {"num_key_value_heads": 4, "head_dim": None} if latent else {}
    own = _OWN.get(kind.model_type, {})
    sizes = {**_SIZES, **(more or {}), **latent_sizes, **own}
    small = {k: v for k, v in sizes.items() if v is not None and _settable(plain, k)}
    if more is not None:
        small = {k: v for k, v in small.items() if k in own or _is_of_kind(plain, k, v)}
    if getattr(plain, "forced_eos_token_id", None) is None:  # an end is forced by few families
        small.pop("forced_eos_token_id", None)
    for key in ("layer_types", "mlp_layer_types"):
        if key not in own and _settable(plain, key) and isinstance(getattr(plain, key), list):
            small[key] = list(dict.fromkeys(getattr(plain, key)))[:2]
            small[key] = (small[key] * 2)[:2]
    for key in getattr(kind, "sub_configs", {}):
        part = getattr(plain, key, None)
        if key not in own and isinstance(part, _CONFIG):
            small[key] = config(type(part), more)
    small |= changes
    if _NEEDS_DICTS:
        small |= {k: v.to_dict() for k, v in small.items() if isinstance(v, _CONFIG)}
    made = kind(**small)
    for key, number in (("decoder_start_token_id", 1), ("pad_token_id", 0)):
        if not hasattr(made, key):
            setattr(made, key, number)
    return made


def _is_of_kind(plain: Any, name: str, value: Any) -> bool:
    """Whether a config that has a list, or none, is given one."""
    try:
        before = getattr(plain, name, None)
    except Exception:  # of sizes that differ by layer some configs refuse to name one
        return True
    return before is None or isinstance(before, (list, tuple)) == isinstance(value, (list, tuple))


def _settable(plain: Any, name: str) -> bool:
    stored = getattr(plain, "attribute_map", {}).get(name, name)  # another name for the same
    own = getattr(type(plain), stored, None)
    try:
        has = hasattr(plain, name)
    except Exception:  # of sizes that differ by layer some configs refuse to name one
        has = True
    return has and not (isinstance(own, property) and own.fset is None)


def model_class(name: str, task: str) -> Any:
    """The family's class for this task."""
    named = TASKS[task][name]
    with warnings.catch_warnings():  # of modules that are imported only now
        warnings.simplefilter("ignore")
        return getattr(transformers, named if isinstance(named, str) else named[0])


def model(name: str, task: str, seed: int = 0, **changes: Any) -> Any:
    """A tiny random model of a family, in float64; see `prepared`."""
    return prepared(model_class(name, task), seed, **changes)


def prepared(kind: Any, seed: int = 0, settings: Any = None, **changes: Any) -> Any:
    """A tiny random model in float64, biases and norms made anything but zero and one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        settings = config(kind.config_class, **changes) if settings is None else settings
        settings._experts_implementation = "eager"  # the fused kernels have no float64
        made = kind(settings).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif (
                parameter.numel() and parameter.abs().max() < 1e-6
            ):  # through which next to nothing would pass
                parameter.normal_(0.0, 0.1)
            elif parameter.ndim == 4:  # of many convolutions on end: neither to fade nor to burst
                torch.nn.init.kaiming_normal_(parameter)
            else:
                parameter.mul_(3.0)
        for module in made.modules():
            if isinstance(module, torch.nn.BatchNorm2d):  # some start at zero, and pass nothing on
                module.weight.normal_(1.0, 0.2)
    return made
