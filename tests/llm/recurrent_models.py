"""Metadata of tiny models with recurrent layers."""

from __future__ import annotations

import numpy as np

from tests.llm.made_models import EXPERTS

__all__ = ["RECURRENT"]

DELTA = {
    "block_count": 4, "full_attention_interval": 2, "ssm.conv_kernel": 3, "ssm.state_size": 6,
    "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 24,
}  # fmt: skip
SHARED_DELTA = DELTA | EXPERTS | {"expert_shared_feed_forward_length": 12}

SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 24, "ssm.state_size": 5}

HYBRID = SSM | {
    "block_count": 3, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    "attention.head_count_kv": np.array([0, 2, 0], np.int32),
}  # fmt: skip
NEMOTRON = HYBRID | {
    "block_count": 4, "attention.head_count_kv": np.array([0, 0, 2, 0], np.int32),
    "feed_forward_length": np.array([0, 12, 0, 12], np.int32),
}  # fmt: skip

RWKV = {
    "block_count": 3, "wkv.head_size": 4, "attention.head_count": 0, "attention.head_count_kv": 0,
}  # fmt: skip
RWKV7 = RWKV | {
    "attention.decay_lora_rank": 3, "attention.iclr_lora_rank": 4,
    "attention.value_residual_mix_lora_rank": 5,
}  # fmt: skip

# name: architecture, and what its metadata has besides that of a tiny llama
RECURRENT: dict[str, tuple[str, dict[str, object]]] = {
    "qwen3next": ("qwen3next", SHARED_DELTA),
    "qwen35": ("qwen35", DELTA | {"rope.dimension_count": 2}),
    "qwen35moe": (
        "qwen35moe",
        SHARED_DELTA
        | {
            "attention.recurrent_layers": np.array([False, True, True, False]),
        },
    ),
    "mamba": ("mamba", SSM | {"ssm.time_step_rank": 3}),
    "mamba wide": ("mamba", SSM | {"ssm.conv_kernel": 2, "ssm.time_step_rank": 5}),
    "falcon-mamba": ("mamba", SSM | {"ssm.time_step_rank": 3, "ssm.dt_b_c_rms": True}),
    "mamba2": ("mamba2", SSM | {"ssm.time_step_rank": 6, "ssm.group_count": 1}),
    "mamba2 groups": ("mamba2", SSM | {"ssm.time_step_rank": 4, "ssm.group_count": 2}),
    "granitehybrid": (
        "granitehybrid",
        HYBRID
        | EXPERTS
        | {
            "expert_shared_feed_forward_length": 12,
            "rope.scaling.finetuned": False,
            "residual_scale": 2.0,
            "logit_scale": 2.0,
        },
    ),
    "granitehybrid rotating": ("granitehybrid", HYBRID | {"rope.dimension_count": 2}),
    "jamba": (
        "jamba",
        SSM
        | {
            "ssm.time_step_rank": 3,
            "attention.head_count_kv": np.array([0, 2], np.int32),
        },
    ),
    "falcon-h1": ("falcon-h1", SSM | {"ssm.time_step_rank": 4, "ssm.group_count": 2}),
    "plamo2": (
        "plamo2",
        HYBRID
        | {
            "ssm.group_count": 0,
            "attention.head_count": np.array([0, 4, 0], np.int32),
            "attention.key_length": 4,
            "attention.value_length": 4,
        },
    ),
    "minimax-01": (
        "minimax-01",
        {
            "expert_count": 5,
            "expert_used_count": 2,
            "block_count": 3,
            "full_attention_interval": 3,
            "residual_scale": 2.0,
            "rope.dimension_count": 2,
        },
    ),
    "nemotron_h": ("nemotron_h", NEMOTRON),
    "nemotron_h_moe": (
        "nemotron_h_moe",
        NEMOTRON
        | EXPERTS
        | {
            "moe_latent_size": 10,
            "expert_shared_feed_forward_length": 12,
        },
    ),
    "lfm2moe": (
        "lfm2moe",
        EXPERTS
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([0, 2, 0], np.int32),
            "shortconv.l_cache": 3,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        },
    ),
    "rwkv6": ("rwkv6", RWKV | {"time_mix_extra_dim": 3, "time_decay_extra_dim": 5}),
    "rwkv6 halved": (
        "rwkv6",
        RWKV
        | {
            "time_mix_extra_dim": 3,
            "time_decay_extra_dim": 5,
            "rescale_every_n_layers": 1,
        },
    ),
    "rwkv6qwen2": (
        "rwkv6qwen2",
        RWKV
        | {
            "time_mix_extra_dim": 3,
            "time_decay_extra_dim": 5,
            "token_shift_count": 1,
            "attention.head_count_kv": 2,
        },
    ),
    "rwkv7": ("rwkv7", RWKV7 | {"attention.gate_lora_rank": 6}),
    "arwkv7": ("arwkv7", RWKV7 | {"token_shift_count": 1}),
    "lfm2": (
        "lfm2",
        {
            "block_count": 3,
            "attention.head_count_kv": np.array([0, 2, 0], np.int32),
            "shortconv.l_cache": 4,
        },
    ),
}
