"""Hugging Face folders of tiny random models, made by transformers and tokenizers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.chars_map import chars_map
from weft.llm import Context
from weft.llm.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

__all__ = [
    "HEADLESS", "IDS", "MODELS", "SEEING", "context", "logits", "made_model", "make_folder",
    "save_tokenizer", "with_modules", "writer",
]  # fmt: skip

IDS = [5, 90, 17, 201, 8, 90, 44, 3, 120, 66, 9, 250, 33, 71, 2, 19]
"""The text that models read."""

SHAPE: dict[str, Any] = {
    "vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
NO_KV = {k: v for k, v in SHAPE.items() if k not in ("num_key_value_heads", "rms_norm_eps")}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXTURE = {"num_local_experts": 4, "num_experts_per_tok": 2}
TIED = {"tie_word_embeddings": True}
LATENT = {
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "topk_group": 1,
}  # fmt: skip
INDEXER = {"q_lora_rank": 12, "index_topk": 8, "index_head_dim": 8, "index_n_heads": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 16}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
}  # fmt: skip
TEMPERATURE = YARN | {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 4,
                      "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
SHARED = MOE | {"n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.5, "norm_topk_prob": True}  # fmt: skip
PARTIAL = {"head_dim": 16, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5,
                                               "rope_type": "default"}}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
BOTH_ROPES = {"full_attention": PLAIN, "sliding_attention": PLAIN | {"rope_theta": 100.0}}
HALF_ROPE = BOTH_ROPES | {"full_attention": PLAIN | {"partial_rotary_factor": 0.5}}
WINDOWS = {"sliding_window": 6, "num_hidden_layers": 4, "head_dim": 16,
           "layer_types": ["full_attention"] + ["sliding_attention"] * 3}  # fmt: skip
BOTH_PARTS = {
    "full_attention": PLAIN | {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "sliding_attention": PLAIN | {"rope_theta": 1000.0}}  # fmt: skip
SHARED_KV = {
    "head_dim": 16, "num_hidden_layers": 6, "sliding_window": 6, "num_kv_shared_layers": 2,
    "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 400,
    "final_logit_softcapping": 6.0,
}  # fmt: skip
GPT = {"vocab_size": 400, "n_layer": 2, "n_head": 4}
DELTA = {"head_dim": 16, "num_hidden_layers": 4, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
         "linear_conv_kernel_dim": 4}  # fmt: skip
SSM = {"num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16,
       "mamba_n_groups": 2, "mamba_expand": 2}  # fmt: skip
GRANITE = SSM | {"layer_types": ["mamba", "attention", "mamba", "mamba"], "pad_token_id": 0,
                 "shared_intermediate_size": 16}  # fmt: skip
NO_EXPERTS = {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 24}
FALCON = SSM | {
    "head_dim": 16, "mamba_d_ssm": 64, "ssm_multipliers": [1.1, 0.9, 0.8, 1.2, 0.7],
    "mlp_multipliers": [1.2, 0.8], "key_multiplier": 0.9, "lm_head_multiplier": 0.5,
    "embedding_multiplier": 2.0, "attention_in_multiplier": 1.1, "ssm_out_multiplier": 0.8,
    "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.1, "mamba_norm_before_gate": False,
}  # fmt: skip
NEMOTRON = {k: v for k, v in NO_KV.items() if k != "num_hidden_layers"} | {
    "head_dim": 16, "num_key_value_heads": 2, "mamba_num_heads": 8, "mamba_head_dim": 8,
    "ssm_state_size": 16, "n_groups": 2, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 1.5,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
}  # fmt: skip
IMAGE_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
                                  "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
                                  "mrope_interleaved": True}}  # fmt: skip

_PICTURES = {"base_channels": 32, "latent_channels": 8, "embed_dim": 8, "num_embeddings": 8,
             "channel_multiplier": [1], "num_res_blocks": 1, "resolution": 16}  # fmt: skip

# the class of transformers, its options beside SHAPE or instead of it, and the tokenizer
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "apertus": ("Apertus", SHAPE, "llama3"),
    "dbrx": ("Dbrx", {"vocab_size": 400, "d_model": 32, "n_heads": 4, "n_layers": 2,
                      "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "clip_qkv": 2.0,
                                                         "rope_theta": 10000.0},
                      "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2,
                                     "hidden_size": 32}}, "llama3"),
    "starcoder": ("GPTBigCode", GPT | {"n_embd": 32, "n_positions": 64, "bos_token_id": 0,
                                       "eos_token_id": 0}, "gpt2"),
    "afmoe": ("Afmoe", SHAPE | MOE | {
        "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 6, "mup_enabled": True,
        "num_dense_layers": 1, "route_scale": 1.5}, "llama3"),
    "arcee": ("Arcee", SHAPE | {"hidden_act": "relu2"}, "llama3"),
    "bamba": ("Bamba", SHAPE | SSM | {"attn_layer_indices": [1]}, "gpt2"),
    "bert": ("Bert", NO_KV, "words"),
    "bloom": ("Bloom", GPT | {"hidden_size": 32}, "gpt2"),
    "chatglm": ("Glm", SHAPE | {"head_dim": 8, "pad_token_id": 0}, "llama3"),
    "cohere": ("Cohere", SHAPE | TIED, "gpt2"),
    "cohere2": ("Cohere2", SHAPE | TIED | {"sliding_window": 6}, "gpt2"),
    "cohere2 moe": ("Cohere2Moe", SHAPE | MOE | WINDOWS | TIED | {
        "first_k_dense_replace": 1, "num_shared_experts": 2, "expert_selection_fn": "sigmoid"},
        "gpt2"),
    "cohere2 rms": ("Cohere2Moe", SHAPE | MOE | WINDOWS | TIED | {"rms_norm_eps": None}, "gpt2"),
    "deepseek2": ("DeepseekV2", SHAPE | LATENT | {"q_lora_rank": None, "n_group": 1}, "qwen2"),
    "deepseek2 ocr": ("DeepseekOcr2", SHAPE | {
        "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "n_shared_experts": 2, "routed_scaling_factor": 1.5, "num_attention_heads": 4,
        "mlp_layer_types": ["dense", "sparse"]}, "qwen2"),
    "deepseek3": ("DeepseekV3", SHAPE | LATENT | {"q_lora_rank": 24, "n_group": 2}, "qwen2"),
    "deepseek32": ("DeepseekV32", SHAPE | LATENT | INDEXER | {"n_group": 2}, "qwen2"),
    "deepseek4": ("DeepseekV4", SHAPE | {
        "num_key_value_heads": 1, "head_dim": 16, "partial_rotary_factor": 0.5, "q_lora_rank": 24,
        "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "num_hidden_layers": 3, "o_groups": 2, "o_lora_rank": 12, "index_n_heads": 16,
        "index_head_dim": 8, "index_topk": 2, "sliding_window": 6, "num_hash_layers": 1,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "layer_types": ["sliding_attention", "compressed_sparse_attention",
                        "heavily_compressed_attention"],
        "rope_parameters": YARN}, "qwen2"),
    "dots3note": ("Dots3NoteText", SHAPE | LATENT | INDEXER | {
        "num_hidden_layers": 3, "sliding_window": 6, "layer_types": [
            "indexed_attention", "sliding_attention", "indexed_attention"],
        "swa_num_attention_heads": 2, "swa_num_key_value_heads": 2, "swa_kv_lora_rank": 12,
        "swa_q_lora_rank": 12, "swa_head_dim": 20, "swa_qk_nope_head_dim": 12,
        "swa_v_head_dim": 6, "head_dim": 16, "moe_shared_expert_intermediate_size": 20,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "n_group": 2,
        "routed_scaling_factor": 1.5, "rope_theta": 1e4, "swa_rope_theta": 100.0}, "qwen2"),
    "glm dsa": ("GlmMoeDsa", SHAPE | LATENT | INDEXER | {
        "n_group": 1, "mlp_layer_types": ["dense", "sparse"]}, "qwen2"),
    "glm5-next": ("Glm5Next", SHAPE | LATENT | INDEXER | {
        "num_hidden_layers": 4, "qk_rope_head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 4,
        "linear_lower_bound": -2.0, "index_kpool": 2, "index_topk": 4, "indexer_types": [
            "full", "full", "shared", "full"], "layer_types": ["linear_attention"] + [
            "indexed_attention"] * 2 + ["linear_attention"], "mlp_layer_types": [
            "dense"] + ["sparse"] * 3, "swiglu_limit": 0.5, "pad_token_id": 0}, "qwen2"),
    "distilbert": ("DistilBert", {"vocab_size": 400, "dim": 32, "hidden_dim": 48, "n_layers": 2,
                                  "n_heads": 4, "max_position_embeddings": 64}, "words"),
    "dots1": ("Dots1", SHAPE | SHARED | {"n_group": 1, "topk_group": 1}, "qwen2"),
    "ernie4_5": ("Ernie4_5", SHAPE | {"head_dim": 16}, "pieces"),
    "paddleocr": ("PaddleOCRVL", SHAPE | {
        "head_dim": 16, "rope_parameters": PLAIN | {"mrope_section": [4, 2, 2]}}, "pieces"),
    "ernie4_5 moe": ("Ernie4_5_Moe", SHAPE | {
        "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1}, "pieces"),
    "exaone moe": ("ExaoneMoe", SHAPE | SHARED | {
        "head_dim": 16, "num_shared_experts": 1, "sliding_window": 6, "num_hidden_layers": 4,
        "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense"] + ["sparse"] * 3}, "gpt2"),
    "exaone4": ("Exaone4", SHAPE | {"sliding_window": 6, "sliding_window_pattern": 2}, "gpt2"),
    "falcon": ("Falcon", NO_KV | {"multi_query": True}, "gpt2"),
    "falcon2": ("Falcon", NO_KV | {"num_kv_heads": 2, "new_decoder_architecture": True}, "gpt2"),
    "falcon-mamba": ("FalconMamba", {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2},
                     "gpt2"),
    "falcon-h1": ("FalconH1", SHAPE | FALCON, "gpt2"),
    "falcon-h1 normed": ("FalconH1", SHAPE | FALCON | {"mamba_rms_norm": True}, "gpt2"),
    "gemma": ("Gemma", SHAPE | TIED | {"head_dim": 8}, "pieces"),
    "gemma2": ("Gemma2", SHAPE | TIED | {"head_dim": 8, "sliding_window": 6,
                                         "query_pre_attn_scalar": 8}, "pieces"),
    "gemma3": ("Gemma3Text", SHAPE | TIED | {"head_dim": 8, "sliding_window": 6,
                                             "query_pre_attn_scalar": 8, "num_hidden_layers": 7},
               "pieces"),
    "gemma3n": ("Gemma3nText", SHAPE | TIED | SHARED_KV | {
        "laurel_rank": 4, "altup_num_inputs": 4, "intermediate_size": [48] * 6,
        "activation_sparsity_pattern": [0.9, 0.95] + [0.0] * 4}, "pieces"),
    "gemma4": ("Gemma4Text", SHAPE | TIED | SHARED_KV | {
        "vocab_size": 380, "vocab_size_per_layer_input": 380, "global_head_dim": 24,
        "rope_parameters": BOTH_PARTS}, "pieces"),
    "gemma4 moe": ("Gemma4Text", SHAPE | TIED | SHARED_KV | {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
        "num_global_key_value_heads": 1, "enable_moe_block": True, "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 16, "rope_parameters": BOTH_PARTS,
        "global_head_dim": 24, "vocab_size": 380}, "pieces"),
    "glm4": ("Glm4", SHAPE | {"head_dim": 8, "pad_token_id": 0}, "llama3"),
    "glm4 images": ("Glm4v", SHAPE | {"rope_parameters": PLAIN | {
        "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}}, "llama3"),
    "glm4 moe images": ("Glm4vMoe", SHAPE | SHARED | {
        "head_dim": 16, "use_qk_norm": True, "n_group": 1, "topk_group": 1,
        "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}},
        "llama3"),
    "glm4 moe": ("Glm4Moe", SHAPE | SHARED | PARTIAL | {
        "use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1,
        "pad_token_id": 0}, "llama3"),
    "gpt2": ("GPT2", GPT | {"n_embd": 32, "n_positions": 64, "bos_token_id": 0,
                            "eos_token_id": 0}, "gpt2"),
    "gptneox": ("GPTNeoX", NO_KV, "gpt2"),
    "gpt-oss": ("GptOss", SHAPE | MIXTURE | {
        "head_dim": 16, "sliding_window": 6,
        "rope_parameters": YARN | {"truncate": False}}, "llama3"),
    "granite": ("Granite", SHAPE | {"attention_multiplier": 0.1, "embedding_multiplier": 2.0,
                                    "residual_multiplier": 0.5, "logits_scaling": 3.0}, "digits"),
    "granitemoe": ("GraniteMoeShared", SHAPE | MIXTURE | {"shared_intermediate_size": 16},
                   "digits"),
    "granitehybrid": ("GraniteMoeHybrid", SHAPE | MIXTURE | GRANITE, "gpt2"),
    "granitehybrid dense": ("GraniteMoeHybrid", SHAPE | GRANITE | NO_EXPERTS, "gpt2"),
    "granitehybrid attention": ("GraniteMoeHybrid", SHAPE | GRANITE | NO_EXPERTS | {
        "layer_types": ["attention"] * 4, "position_embedding_type": "rope"}, "gpt2"),
    "hunyuan images": ("HunYuanVL", SHAPE | {
        "head_dim": 8, "pad_token_id": 0, "rope_parameters": PLAIN | {
            "rope_type": "dynamic", "alpha": 3.0, "factor": 1.0, "mrope_section": [1, 1, 1, 1]}},
        "gpt2"),
    "hunyuan": ("HunYuanDenseV1", SHAPE | {"head_dim": 16}, "gpt2"),
    "hunyuan stretched": ("HunYuanDenseV1", SHAPE | {
        "head_dim": 16, "rope_parameters": PLAIN | {
            "rope_type": "dynamic", "alpha": 50.0, "factor": 1.0}}, "gpt2"),
    "hunyuan moe": ("HunYuanMoEV1", SHAPE | {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
                    "gpt2"),
    "granite windows": ("GraniteSWA", SHAPE | WINDOWS | {
        "num_local_experts": 0, "attention_multiplier": 0.1, "logits_scaling": 3.0}, "digits"),
    "hy_v4": ("HYV4", SHAPE | LATENT | INDEXER | {
        "n_group": 1, "index_head_dim": 12, "index_topk": 6, "num_hidden_layers": 3,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "swiglu_limit": 0.4,
        "indexer_types": ["full", "shared", "full"], "hc_mult": 3, "hc_magnitude": 1.5,
        "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}, "gpt2"),
    "hy_v3": ("HYV3", SHAPE | MOE | {"head_dim": 16, "num_shared_experts": 1}, "gpt2"),
    "jais2": ("Jais2", SHAPE, "gpt2"),
    "jamba": ("Jamba", SHAPE | MOE | {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8,
        "use_mamba_kernels": False}, "pieces"),
    "kimi": ("KimiLinear", SHAPE | LATENT | MOE | {
        "num_hidden_layers": 4, "q_lora_rank": None, "linear_head_dim": 8, "linear_num_heads": 4,
        "layer_types": ["linear_attention"] * 2 + ["full_attention", "linear_attention"],
        "num_local_experts": 4, "routed_scaling_factor": 1.5, "pad_token_id": 0, "bos_token_id": 0,
        "eos_token_id": 0}, "qwen2"),
    "ling3": ("BailingHybrid", SHAPE | LATENT | {
        "num_hidden_layers": 4, "head_dim": 8, "layer_group_size": 2, "kda_lower_bound": -2.0,
        "num_local_experts": 8, "n_group": 2, "q_lora_rank": 12, "num_mtp_layers": 0,
        "routed_scaling_factor": 1.5, "rope_theta": 1e4, "pad_token_id": 0, "eos_token_id": 0},
        "qwen2"),
    "laguna": ("Laguna", SHAPE | MOE | WINDOWS | {"rope_parameters": HALF_ROPE}, "gpt2"),
    "lfm2": ("Lfm2", SHAPE | {"layer_types": ["conv", "full_attention"],
                              "block_multiple_of": 16}, "gpt2"),
    "lfm2 moe": ("Lfm2Moe", SHAPE | MOE | TIED | {
        "num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "norm_eps": 1e-5,
        "num_dense_layers": 1}, "gpt2"),
    "llama": ("Llama", SHAPE, "pieces"),
    "llama biases": ("Llama", SHAPE | {"head_dim": 16, "attention_bias": True,
                                       "rope_parameters": LINEAR}, "pieces"),
    "llama3": ("Llama", SHAPE | {"rope_parameters": LLAMA3}, "llama3"),
    "llama4": ("Llama4Text", SHAPE | {
        "head_dim": 16, "num_local_experts": 4, "num_hidden_layers": 4, "intermediate_size_mlp": 40,
        "interleave_moe_layer_step": 2, "moe_layers": None, "no_rope_layers": None}, "llama3"),
    "hrm_text": ("HrmText", SHAPE | {"head_dim": 16, "num_key_value_heads": 4}, "gpt2"),
    "minicpm3": ("MiniCPM3", SHAPE | LATENT | {
        "q_lora_rank": 12, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}, "model"),
    "phimoe": ("Phimoe", SHAPE | MIXTURE | {
        "attention_bias": True, "lm_head_bias": True, "pad_token_id": 0}, "pieces"),
    "mamba": ("Mamba", {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2}, "gpt2"),
    "mamba2": ("Mamba2", {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 2,
                          "head_dim": 8, "num_heads": 8, "n_groups": 2, "state_size": 16}, "gpt2"),
    "mellum": ("Mellum", SHAPE | MOE | WINDOWS | {"rope_parameters": BOTH_ROPES}, "qwen2"),
    "minimax 01": ("MiniMax", SHAPE | MIXTURE | {
        "head_dim": 16, "num_hidden_layers": 3, "block_size": 8, "full_attn_alpha_factor": 1.3,
        "linear_attn_alpha_factor": 1.3, "mlp_alpha_factor": 1.3, "layer_types": [
            "linear_attention", "full_attention", "linear_attention"]}, "gpt2"),
    "chameleon": ("Chameleon", SHAPE | {
        "vocabulary_map": {"<image>": 300}, "vq_config": _PICTURES}, "gpt2"),
    "chameleon swin": ("Chameleon", SHAPE | {
        "swin_norm": True, "vocabulary_map": {"<image>": 300}, "vq_config": _PICTURES}, "gpt2"),
    "exaone4.5": ("Exaone4_5_", SHAPE | {
        "model_type": "exaone4", "sliding_window": 6, "sliding_window_pattern": 2}, "gpt2"),
    "glm ocr": ("GlmOcr", SHAPE | {"rope_parameters": PLAIN | {
        "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}}, "llama3"),
    "minicpm v4.6": ("MiniCPMV4_6", SHAPE | DELTA | IMAGE_ROPE | {
        "model_type": "qwen3_5_text"}, "qwen2"),
    "kimi k2.5": ("Kimi_K25", SHAPE | LATENT | {
        "model_type": "deepseek_v3", "q_lora_rank": 24, "n_group": 1}, "qwen2"),
    "janus": ("Janus", SHAPE | {"model_type": "llama"}, "pieces"),
    "step3p7": ("Step3p7", SHAPE | {
        "head_dim": 16, "num_hidden_layers": 4, "layer_types": [
            "full_attention", "sliding_attention"] * 2, "sliding_window": 6,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"], "n_routed_experts": 5,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "share_expert_dim": 12,
        "num_sliding_attention_heads": 2, "moe_router_scaling_factor": 1.5, "pad_token_id": 0,
        "rope_parameters": BOTH_ROPES | {"full_attention": PLAIN | {"partial_rotary_factor": 0.5}},
        "swiglu_limits": [0, 0, 0.3, 0.3], "swiglu_limits_shared": [0, 0, 0, 0.2]}, "gpt2"),
    "muse-glimmer": ("MuseGlimmer", SHAPE | {
        "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 6, "layer_types": [
            "sliding_attention"] * 3 + ["full_attention"]}, "gpt2"),
    "granite moe windows": ("GraniteMoeSWA", SHAPE | MIXTURE | WINDOWS | {
        "attention_multiplier": 0.1, "logits_scaling": 3.0, "shared_intermediate_size": 20},
        "digits"),
    "minimax m3": ("MiniMaxM3VLText", SHAPE | MIXTURE | {
        "head_dim": 16, "num_hidden_layers": 3, "dense_intermediate_size": 40, "rotary_dim": 8,
        "rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}, "index_n_heads": 2,
        "index_head_dim": 8, "index_block_size": 2, "index_topk_blocks": 3,
        "shared_intermediate_size": 20, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention"] + ["minimax_m3_sparse"] * 2,
        "routed_scaling_factor": 1.5}, "gpt2"),
    "minimax": ("MiniMaxM2", SHAPE | MIXTURE | PARTIAL, "gpt2"),
    "mistral3": ("Ministral3", SHAPE | {"head_dim": 16, "rope_parameters": TEMPERATURE}, "llama3"),
    "mixtral": ("Mixtral", SHAPE | MIXTURE, "pieces"),
    "mpt": ("Mpt", {"vocab_size": 400, "d_model": 32, "n_layers": 2, "n_heads": 4,
                    "max_seq_len": 64}, "gpt2"),
    "nemotron": ("Nemotron", SHAPE | {"head_dim": 8}, "pieces"),
    "nemotron_h": ("NemotronH", NEMOTRON | {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}, "gpt2"),
    "nemotron_h moe": ("NemotronH", NEMOTRON, "gpt2"),
    "nemotron_h latent": ("NemotronH", NEMOTRON | {"moe_latent_size": 24}, "gpt2"),
    "olmo": ("Olmo", SHAPE | {"clip_qkv": 0.5}, "gpt2"),
    "olmo2": ("Olmo2", SHAPE, "gpt2"),
    "olmo3": ("Olmo3", SHAPE | {"sliding_window": 6, "num_hidden_layers": 4}, "gpt2"),
    "olmoe": ("Olmoe", SHAPE | MOE, "gpt2"),
    "phi2": ("Phi", NO_KV | {"intermediate_size": 128}, "gpt2"),
    "phi3": ("Phi3", SHAPE | {"pad_token_id": 0, "original_max_position_embeddings": 64},
             "pieces"),
    "phi3 window": ("Phi3", SHAPE | {"pad_token_id": 0, "sliding_window": 6}, "pieces"),
    "phi3 long": ("Phi3", SHAPE | {"pad_token_id": 0, "rope_parameters": LONG,
                                   "original_max_position_embeddings": 64,
                                   "max_position_embeddings": 128}, "pieces"),
    "qwen2": ("Qwen2", SHAPE | TIED, "qwen2"),
    "qwen2moe": ("Qwen2Moe", SHAPE | MOE | {"shared_expert_intermediate_size": 32}, "qwen2"),
    "qwen2vl": ("Qwen2VL", SHAPE | {"rope_parameters": PLAIN | {"mrope_section": [2, 1, 1]}},
                "qwen2"),
    "qwen3vl": ("Qwen3VL", SHAPE | {"head_dim": 16, "rope_parameters": PLAIN | {
        "mrope_section": [4, 2, 2], "mrope_interleaved": True}}, "qwen2"),
    "qwen3vlmoe": ("Qwen3VLMoe", SHAPE | MOE | {"head_dim": 16, "rope_parameters": PLAIN | {
        "mrope_section": [4, 2, 2], "mrope_interleaved": True}}, "qwen2"),
    "qwen3": ("Qwen3", SHAPE | {"head_dim": 16, "rope_parameters": YARN}, "qwen2"),
    "qwen3next": ("Qwen3Next", SHAPE | MOE | DELTA | {"shared_expert_intermediate_size": 24},
                  "qwen2"),
    "qwen35": ("Qwen3_5Text", SHAPE | DELTA | IMAGE_ROPE, "qwen2"),
    "qwen35moe": ("Qwen3_5MoeText", SHAPE | MOE | DELTA | IMAGE_ROPE | {
        "shared_expert_intermediate_size": 24}, "qwen2"),
    "qwen4exp": ("Qwen4ExpText", SHAPE | MOE | DELTA | IMAGE_ROPE | {
        "shared_expert_intermediate_size": 24,
        "layer_types": ["linear_attention", "indexed_attention"] * 2, "eos_token_id": 9,
        "hc_count": 3, "hc_lowrank": 12, "ple_layer_ids": [3], "heads_per_ngram": 2,
        "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8,
        "indexer_budget": 4, "indexer_compress_ratio": 2, "output_gate_type": "sigmoid"}, "qwen2"),
    "qwen3moe": ("Qwen3Moe", SHAPE | MOE | {"head_dim": 16, "norm_topk_prob": True}, "qwen2"),
    "roberta": ("Roberta", NO_KV | {"pad_token_id": 1}, "gpt2"),
    "seed_oss": ("SeedOss", SHAPE | {"head_dim": 16}, "gpt2"),
    "smollm3": ("SmolLM3", SHAPE | {"no_rope_layer_interval": 4, "num_hidden_layers": 4,
                                     "pad_token_id": None}, "llama3"),
    "stablelm": ("StableLm", SHAPE, "gpt2"),
    "starcoder2": ("Starcoder2", SHAPE, "digits"),
}  # fmt: skip
HEADLESS = ("bert", "distilbert", "roberta")
# models that see have a tower, too, of these sizes
_QWEN_TOWER = {"depth": 2, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16,
               "out_hidden_size": 32, "deepstack_visual_indexes": [0]}  # fmt: skip
_GLM_TOWER = {"depth": 1, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32,
              "intermediate_size": 16}  # fmt: skip
_DOCUMENTS = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "patch_size": 4, "image_size": 8,
              "max_image_size": 8}  # fmt: skip
_SMALL_TOWER = {
    "depth": 1,
    "hidden_size": 16,
    "num_heads": 2,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "out_hidden_size": 32,
}
SEEING: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("Exaone4_5_", "GlmOcr", "MiniCPMV4_6", "Kimi_K25", "Janus", "Step3p7",
                     "MuseGlimmer", "Glm5Next"), _SMALL_TOWER),
    "Glm4v": _GLM_TOWER, "Glm4vMoe": _GLM_TOWER, "Qwen3VL": _QWEN_TOWER, "Qwen3VLMoe": _QWEN_TOWER,
    "Qwen2VL": {"depth": 1, "embed_dim": 16, "num_heads": 2, "hidden_size": 32},
    "HunYuanVL": _DOCUMENTS, "PaddleOCRVL": _DOCUMENTS,
    "DeepseekOcr2": {
        "sam_config": _DOCUMENTS | {"output_channels": 8, "downsample_channels": [8, 16],
                                    "window_size": 2, "global_attn_indexes": [0]},
        "encoder_config": _DOCUMENTS | {"num_key_value_heads": 1, "vocab_size": 8}},
}  # fmt: skip
# their norms multiply by 1 + weight
_SHIFTED = ("Gemma", "Gemma2", "Gemma3Text", "Nemotron", "Qwen3Next", "Qwen3_5Text",
            "Qwen3_5MoeText", "MiniMaxM3VLText", "Qwen4ExpText")  # fmt: skip

_TEXT = ["the quick brown fox jumps over the lazy dog, again and again. " * 3,
         "Once upon a time there was a little girl. She liked to play in the sun. " * 3,
         "def f(x):\n    return x + 1\n" * 4, "1234567 89 äöü 你好 世界"] * 5  # fmt: skip
_RULES = {"Ａ": "a", "ﬀ": "ff", "\t": " ", "\n": " ", "\u200b": "", "É": "é"}
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = (
    _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_REGEXES = {"llama3": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}
ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>")


def make_folder(name: str, folder: Path, dtype: str = "float32", shards: str = "5GB") -> Any:
    """Saves the model `name` of `MODELS` with its tokenizer; returns it in float32."""
    kind, options, tokenizer = MODELS[name]
    made = made_model(kind, "Model", options) if name in HEADLESS else writer(kind, options)
    model = made.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shards)
    save_tokenizer(tokenizer, folder)
    return model.float()


def writer(kind: str, options: dict[str, Any]) -> Any:
    """A random model that writes, with its tower if it sees."""
    suffix = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
    if kind == "Chameleon" or kind in SEEING:
        suffix = "ForConditionalGeneration"
    if kind in SEEING:
        options = {"text_config": options, "vision_config": SEEING[kind]}
    return made_model(kind, suffix, options)


def made_model(kind: str, suffix: str, options: dict[str, Any]) -> Any:
    """A random model of the class of transformers that the names make."""
    # transformers writes into dicts of options, which several models here share
    config = getattr(transformers, f"{kind}Config")(**copy.deepcopy(options))
    found = getattr(transformers, kind + suffix, None)
    model = (found or getattr(transformers, kind.removesuffix("Text") + suffix))(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            scale = 1.5 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2
            is_norm = p.dim() == 1 and "bias" not in parameter and kind not in _SHIFTED
            p.copy_(torch.randn_like(p) * scale + is_norm)
        for buffer, table in model.named_buffers():
            if buffer.endswith("tid2eid"):  # different experts of each token
                scores = torch.rand(len(table), config.n_routed_experts)
                table.copy_(scores.argsort(dim=1)[:, : table.shape[1]])
    return model


def save_tokenizer(kind: str, folder: Path) -> None:
    """Trains a tokenizer on a few lines and saves it: `gpt2`, `digits`, `llama3`, `qwen2` (bytes),
    `pieces` (SentencePiece in tokenizer.json), `model` (in a file of its own), `unigrams`,
    `classes` (bytes) or `words`."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors, trainers
    from tokenizers import pre_tokenizers as pre

    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if kind == "model":
        import sentencepiece

        settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        with (folder / "tokenizer.model").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(_TEXT), model_writer=file, vocab_size=380, model_type="bpe",
                byte_fallback=True, character_coverage=0.99, minloglevel=2,
            )  # fmt: skip
        return
    if kind == "words":
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre.BertPreTokenizer()
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer: Any = trainers.WordPieceTrainer(vocab_size=200, special_tokens=names)
        made.train_from_iterator(_TEXT, trainer)
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        made.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", pair, ends)
        settings |= dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"),
                             names, strict=True))  # fmt: skip
    elif kind == "unigrams":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Precompiled(chars_map(_RULES).tobytes())
        made.pre_tokenizer = pre.Sequence([pre.WhitespaceSplit(), pre.Metaspace()])
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=names, unk_token="<unk>",
                                          show_progress=False)  # fmt: skip
        made.train_from_iterator(_TEXT, trainer)
        pair, ends = "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
        made.post_processor = processors.TemplateProcessing("<s> $A </s>", pair, ends)
        settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                     "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}  # fmt: skip
    elif kind == "classes":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.BpeTrainer(vocab_size=350, initial_alphabet=pre.ByteLevel.alphabet(),
                                      special_tokens=names, show_progress=False)  # fmt: skip
        made.train_from_iterator(_TEXT, trainer)
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        settings |= {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>",
                     "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}  # fmt: skip
    elif kind == "pieces":
        made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        made.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
        names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=380, special_tokens=names, show_progress=False)
        made.train_from_iterator([line.replace(" ", "\u2581") for line in _TEXT], trainer)
        made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
        settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        data = json.loads(made.to_str())  # bytes are pieces, not added tokens
        data["added_tokens"] = data["added_tokens"][:3]
        made = Tokenizer.from_str(json.dumps(data))
    else:
        made = Tokenizer(models.BPE(ignore_merges=kind == "llama3"))
        regex = kind not in _REGEXES
        steps = [pre.ByteLevel(add_prefix_space=False, use_regex=regex)]
        if not regex:
            steps.insert(0, pre.Split(tokenizers.Regex(_REGEXES[kind]), "isolated"))
        if kind == "digits":
            steps.insert(0, pre.Digits(individual_digits=True))
        made.pre_tokenizer = pre.Sequence(steps) if len(steps) > 1 else steps[0]
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=350, initial_alphabet=pre.ByteLevel.alphabet(),
                                      show_progress=False)  # fmt: skip
        made.train_from_iterator(_TEXT, trainer)
        made.add_special_tokens(list(ENDS))
        settings |= {"eos_token": ENDS[0], "chat_template": "{{ messages[0].content }}"}
        if kind == "llama3":
            begin = (ENDS[0], made.token_to_id(ENDS[0]))
            made.post_processor = processors.TemplateProcessing(f"{ENDS[0]} $A", None, [begin])
            settings["bos_token"] = ENDS[0]
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def with_modules(folder: Path, *dense: int, act: str = "torch.nn.modules.linear.Identity") -> None:
    """Files of sentence-transformers: the mean, and dense layers of these widths behind it."""
    from safetensors.torch import save_file

    modules = [{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    for number, (n_in, n_out) in enumerate(zip((32, *dense), dense, strict=False), 2):
        inner = folder / f"{number}_Dense"
        inner.mkdir()
        config = {"in_features": n_in, "out_features": n_out, "activation_function": act}
        (inner / "config.json").write_text(json.dumps(config))
        save_file({"linear.weight": torch.randn(n_out, n_in) / 6}, inner / "model.safetensors")
        modules.append({"path": inner.name, "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))


def context(path: Path, n_ctx: int = 64, **options: Any) -> Context:
    """A context of a folder or file whose numbers are all float32."""
    exact: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "devices": ["cpu"], "n_threads": 1}
    return Context(Model.open(path), n_ctx, **exact | options)


def logits(path: Path, n_ubatch: int = 64, device: str = "cpu") -> NDArray[np.float32]:
    """Logits of `IDS`, or embeddings of a model without them."""
    return context(path, n_ubatch=n_ubatch, devices=[device]).decode(IDS, outputs="all")
