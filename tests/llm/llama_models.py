"""Tiny models of the llama, qwen, olmo, phi and gemma lines, by name: the architecture, and keys of
the metadata that a tiny llama does not have."""

from __future__ import annotations

import numpy as np

from tests.llm.made_models import EXPERTS, WINDOW, YARN

__all__ = ["RELATIVES"]

SIGMOID = EXPERTS | {
    "expert_shared_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
    "leading_dense_block_count": 1,
}

GEMMA4 = WINDOW | {
    "block_count": 5, "attention.shared_kv_layers": 2, "attention.key_length": 12,
    "attention.value_length": 12, "attention.key_length_swa": 8, "attention.value_length_swa": 8,
    "rope.dimension_count": 12, "rope.dimension_count_swa": 8, "final_logit_softcapping": 6.0,
    "attention.sliding_window_pattern": np.array([True, False, True, True, False]),
    "embedding_length_per_layer_input": 4,
}  # fmt: skip

RELATIVES: dict[str, tuple[str, dict[str, object]]] = {
    "llama4": ("llama4", EXPERTS | WINDOW | {"block_count": 4, "interleave_moe_layer_step": 2}),
    "llama4 whole": ("llama4", EXPERTS | {"attention.sliding_window": 0}),
    "mistral3": (
        "mistral3",
        # all of its tokens are of the first span, because later ones do not just move
        YARN | {"attention.temperature_scale": 0.5, "rope.scaling.original_context_length": 64},
    ),
    "mistral3 experts": ("mistral3", EXPERTS),
    "qwen2vl": ("qwen2vl", {"rope.dimension_sections": np.array([1, 1, 0, 0], np.int32)}),
    "qwen3vl": ("qwen3vl", {}),
    "qwen3vlmoe": ("qwen3vlmoe", EXPERTS),
    "afmoe": ("afmoe", SIGMOID | WINDOW | {"block_count": 4}),
    "apertus": ("apertus", {}),
    "dots1": ("dots1", SIGMOID),
    "ernie4_5-moe": ("ernie4_5-moe", SIGMOID | {"interleave_moe_layer_step": 2}),
    "exaone-moe": ("exaone-moe", SIGMOID | WINDOW | {"block_count": 4}),
    "glm4moe": ("glm4moe", SIGMOID | {"rope.dimension_count": 2}),
    # one layer: gains behind the rotation make scores differ by position, so later layers move
    "hunyuan-dense": ("hunyuan-dense", {"block_count": 1}),
    "hunyuan_vl": (
        "hunyuan_vl",
        {
            "block_count": 1,
            "rope.scaling.alpha": 3.0,
            "rope.dimension_sections": np.array([1, 1, 1, 1], np.int32),
        },
    ),
    "paddleocr": ("paddleocr", {"rope.dimension_sections": np.array([2, 1, 1, 0], np.int32)}),
    "granite_swa": (
        "granite_swa",
        WINDOW | {"block_count": 4, "logit_scale": 2.0, "attention.rope_pattern": np.arange(4) < 2},
    ),
    "hy_v3": ("hy_v3", SIGMOID),
    "jais2": ("jais2", {}),
    "laguna": (
        "laguna",
        SIGMOID
        | YARN
        | WINDOW
        | {"block_count": 4, "rope.dimension_count": 4, "rope.dimension_count_swa": 8},
    ),
    "mellum": ("mellum", EXPERTS | YARN | WINDOW | {"block_count": 4, "rope.freq_base_swa": 50.0}),
    "hunyuan-moe": ("hunyuan-moe", EXPERTS | {"block_count": 1}),
    "minimax-m2": ("minimax-m2", EXPERTS | {"rope.dimension_count": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2 yarn": ("qwen2", YARN),
    "qwen2moe": ("qwen2moe", EXPERTS | {"expert_shared_feed_forward_length": 12}),
    "qwen2moe normed": ("qwen2moe", EXPERTS | {"expert_weights_norm": True}),
    "qwen3": ("qwen3", {"attention.key_length": 8, "attention.value_length": 8}),
    "qwen3 linear": ("qwen3", {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
    "qwen3moe": ("qwen3moe", EXPERTS | {"expert_weights_scale": 2.5}),
    "arcee": ("arcee", {}),
    "ernie4_5": ("ernie4_5", {}),
    "exaone4": ("exaone4", {}),
    "exaone4 windows": ("exaone4", WINDOW | {"block_count": 4}),
    "olmo": ("olmo", {"attention.clamp_kqv": 0.8}),
    "seed_oss": ("seed_oss", {"attention.key_length": 8, "attention.value_length": 8}),
    "olmo2": ("olmo2", {}),
    "olmo2 windows": ("olmo2", YARN | WINDOW | {"attention.sliding_window_pattern": 2}),
    "olmoe": ("olmoe", EXPERTS),
    "granite": ("granite", {"logit_scale": 2.0, "residual_scale": 0.5, "attention.scale": 0.3}),
    "granite experts": ("granite", EXPERTS | {"logit_scale": 2.0, "embedding_scale": 3.0}),
    "granite shared": ("granitemoe", EXPERTS | {"expert_shared_feed_forward_length": 6}),
    "granite nope": ("granite", {"rope.scaling.finetuned": False}),
    "smollm3": ("smollm3", {"block_count": 4}),
    "starcoder2": ("starcoder2", YARN),
    "stablelm": ("stablelm", {"rope.dimension_count": 2}),
    "phi2": ("phi2", {"rope.dimension_count": 2}),
    "phi3": ("phi3", WINDOW),
    "phimoe": ("phimoe", EXPERTS),
    "phi3 longrope": (
        "phi3",
        {
            "rope.scaling.type": "longrope",
            "rope.scaling.attn_factor": 1.2,
            "rope.scaling.original_context_length": 32,
        },
    ),
    "gemma": ("gemma", {"attention.key_length": 8, "attention.value_length": 8}),
    "gemma2": ("gemma2", WINDOW | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 6.0}),
    "gemma2 bases": ("gemma2", WINDOW | {"rope.freq_base_swa": 50.0}),
    "gemma3": ("gemma3", YARN | WINDOW | {"attention.sliding_window_pattern": 2}),
    "gemma3 flags": (
        "gemma3",
        WINDOW | {"attention.sliding_window_pattern": np.array([False, True])},
    ),
    "gemma3n": (
        "gemma3n",
        WINDOW
        | {
            "block_count": 5,
            "attention.shared_kv_layers": 2,
            "altup.num_inputs": 3,
            "attention.sliding_window_pattern": np.array([True, False, True, True, False]),
            "altup.active_idx": 1,
            "embedding_length_per_layer_input": 4,
            "activation_sparsity_scale": np.array([0.5] + [-np.inf] * 4, np.float32),
        },
    ),
    "gemma4": ("gemma4", GEMMA4),
    "gemma4 experts": (
        "gemma4",
        GEMMA4 | EXPERTS | {"attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0},
    ),
    "gemma3 global": ("gemma3", {"final_logit_softcapping": 4.0}),
}
