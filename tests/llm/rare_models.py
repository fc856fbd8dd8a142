"""Tiny models of newer and rarer architectures: what their metadata has besides that of a tiny
llama."""

from __future__ import annotations

import numpy as np

from tests.llm.made_models import EXPERTS, WINDOW

__all__ = ["RARE"]

RARE: dict[str, tuple[str, dict[str, object]]] = {
    "arctic": ("arctic", EXPERTS),
    "deepseek4": (
        "deepseek4",
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.head_count": 4,
            "attention.head_count_kv": 1,
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.q_lora_rank": 6,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": 5,
            "attention.compress_ratios": np.array([0, 4, 8], np.int32),
            "attention.compress_rope_freq_base": 50.0,
            "attention.indexer.head_count": 32,
            "attention.indexer.key_length": 6,
            "attention.indexer.top_k": 2,
            "expert_gating_func": 4,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
            "hash_layer_count": 1,
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 5,
            "hyper_connection.epsilon": 1e-6,
            "rope.dimension_count": 4,
            "swiglu_clamp_exp": np.array([0.5, 0.5, 0.5], np.float32),
        },
    ),
    "deepseek2-ocr": (
        "deepseek2-ocr",
        EXPERTS
        | {
            "attention.head_count_kv": 4,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "rope.dimension_count": 0,
        },
    ),
    "dots3note": (
        "dots3note",
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.sliding_window_pattern": np.array([False, True, False]),
            "attention.head_count": np.array([4, 2, 4], np.int32),
            "attention.head_count_kv": 1,
            "attention.kv_lora_rank": 8,
            "attention.kv_lora_rank_swa": 5,
            "attention.q_lora_rank": 5,
            "attention.key_length": 12,
            "attention.value_length": 8,
            "attention.key_length_mla": 7,
            "attention.value_length_mla": 3,
            "attention.key_length_mla_swa": 9,
            "attention.value_length_mla_swa": 2,
            "rope.dimension_count": 4,
            "rope.freq_base_swa": 50.0,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "attention.indexer.head_count": 32,
            "attention.indexer.key_length": 6,
            "attention.indexer.top_k": 5,
        },
    ),
    "hy_v4": (
        "hy_v4",
        EXPERTS
        | {
            "block_count": 3,
            "attention.kv_lora_rank": 6,
            "attention.q_lora_rank": 5,
            "attention.head_count_kv": 1,
            "attention.key_length": 10,
            "attention.value_length": 6,
            "attention.key_length_mla": 7,
            "attention.value_length_mla": 3,
            "rope.dimension_count": 4,
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "attention.indexer.head_count": 32,
            "attention.indexer.key_length": 6,
            "attention.indexer.top_k": 5,
            "hyper_connection.count": 3,
            "hyper_connection.epsilon": 1e-6,
            "hyper_connection.magnitude": 1.5,
            "swiglu_clamp_exp": 0.4,
        },
    ),
    "glm5-next": (
        "glm5-next",
        EXPERTS
        | {
            "block_count": 4,
            "attention.head_count": 4,
            "attention.head_count_kv": np.array([0, 1, 1, 0], np.int32),
            "attention.kv_lora_rank": 6,
            "attention.q_lora_rank": 5,
            "attention.key_length": 6,
            "attention.value_length": 6,
            "attention.key_length_mla": 7,
            "attention.value_length_mla": 3,
            "rope.dimension_count": 0,
            "ssm.conv_kernel": 3,
            "kda.head_dim": 5,
            "kda.gate_lower_bound": -0.2,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "attention.indexer.head_count": 32,
            "attention.indexer.key_length": 6,
            "attention.indexer.top_k": 6,
            "attention.indexer.kpool": 3,
            "attention.indexer.types": np.array([True, True, False, True]),
            "hyper_connection.count": 4,
            "hyper_connection.sinkhorn_iterations": 3,
            "swiglu_clamp_exp": 0.4,
        },
    ),
    "qwen4exp": (
        "qwen4exp",
        EXPERTS
        | {
            "block_count": 4,
            "full_attention_interval": 2,
            "ssm.conv_kernel": 3,
            "ssm.state_size": 6,
            "ssm.group_count": 2,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 24,
            "expert_shared_feed_forward_length": 12,
            "rope.dimension_count": 2,
            "attention.indexer.head_count": 3,
            "attention.indexer.key_length": 6,
            "attention.indexer.top_k": 6,
            "attention.compress_ratios": np.array([0, 3, 0, 3], np.int32),
            "hyper_connection.count": 3,
            "hyper_connection.low_rank": 5,
            "ple.layers": np.array([2], np.int32),
            "ple.ngram_size": 3,
            "ple.heads_per_ngram": 2,
            "ple.conv_kernel": 3,
            "ple.eos_token_id": 60,
            "ple.layer_multipliers": np.array([1 << 40 | 1, 3 << 38 | 5, 77777777777], np.uint64),
            "ple.head_offsets": np.array([0, 11, 24, 41], np.uint64),
            "ple.head_vocab_sizes": np.array([11, 13, 17, 19], np.uint64),
            "embedding_length_per_layer_input": 4,
        },
    ),
    "graniteswitch": (
        "graniteswitch",
        {
            "attention.scale": 0.3,
            "embedding_scale": 2.0,
            "residual_scale": 0.5,
            "logit_scale": 3.0,
            "adapters.count": 3,
            "adapters.lora_rank": 2,
            "adapters.token_ids_activate": np.array([255, 270, 5], np.int32),
            "adapters.token_ids_substitute": np.array([3, 270, 7], np.int32),
        },
    ),
    "jais": ("jais", {"attention.max_alibi_bias": 8.0}),
    "nanbeige": ("nanbeige", {"num_loops": 3}),
    "maple": (
        "maple",
        EXPERTS
        | WINDOW
        | {"attention.sliding_window_pattern": np.array([False, True]), "swiglu_clamp_exp": 0.3},
    ),
    "spark2_5": (
        "spark2_5",
        WINDOW
        | {
            "attention.sliding_window_pattern": np.array([False, True]),
            "rope.dimension_count": 2,
            "rope.dimension_count_swa": 4,
        },
    ),
    "muse-glimmer": (
        "muse-glimmer",
        WINDOW | {"block_count": 4, "logit_scale": 0.5, "final_logit_softcapping": 6.0},
    ),
    "plamo": ("plamo", {}),
    "plamo3": (
        "plamo3",
        WINDOW | {"rope.freq_base_swa": 50.0, "attention.sliding_window_pattern": 2},
    ),
    "plamo3 whole": ("plamo3", {}),
    "grovemoe": (
        "grovemoe",
        EXPERTS
        | {
            "expert_count": 6,
            "experts_per_group": 2,
            "expert_group_scale": 0.4,
            "expert_chunk_feed_forward_length": 7,
        },
    ),
    "chameleon": ("chameleon", {}),
    "chameleon swin": ("chameleon", {"swin_norm": True}),
    "cogvlm": ("cogvlm", {"attention.head_count_kv": 4}),
    "talkie": ("talkie", {"logit_scale": 0.5}),
    "smallthinker": ("smallthinker", EXPERTS | WINDOW | {"block_count": 5}),
    "smallthinker whole": ("smallthinker", EXPERTS | {"attention.sliding_window": 0}),
    "step35": (
        "step35",
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.head_count": np.array([4, 2, 4], np.int32),
            "attention.head_count_kv": np.array([2, 1, 2], np.int32),
            "attention.key_length": 8,
            "attention.value_length": 8,
            "attention.sliding_window_pattern": np.array([False, True, True]),
            "leading_dense_block_count": 1,
            "swiglu_clamp_exp": 0.3,
        },
    ),
}
"""By name: the architecture and its metadata."""
