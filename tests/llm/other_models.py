"""Tiny models of the gpt, falcon, cohere, glm, deepseek and mamba lines, by name: the architecture,
and the keys of the metadata that a tiny llama does not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.llm.made_models import EXPERTS, WINDOW, YARN, Tensors, configure, keys_of, made_up
from tests.llm.rare_models import RARE
from tests.llm.recurrent_models import RECURRENT

__all__ = ["DEEPSEEK_YARN", "GROUPS", "MLA", "OTHERS", "PLAIN_MLA", "make_other"]

MLA = {
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
}
PLAIN_MLA = MLA | {
    "attention.q_lora_rank": 0,
    "attention.head_count_kv": 4,
    "attention.key_length": 7,
    "attention.value_length": 3,
    "attention.key_length_mla": 0,
    "attention.value_length_mla": 0,
}
DEEPSEEK_YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
GROUPS = {
    "expert_count": 8,
    "expert_used_count": 3,
    "expert_feed_forward_length": 10,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.5,
}

SPARSE = MLA | EXPERTS | {
    "attention.indexer.head_count": 32, "attention.indexer.key_length": 6,
    "attention.indexer.top_k": 5,
}  # fmt: skip

OTHERS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt2": ("gpt2", {}),
    "gptneox": ("gptneox", {"rope.dimension_count": 2}),
    "gptneox serial": ("gptneox", {"use_parallel_residual": False}),
    "falcon": ("falcon", {}),
    "falcon yarn": ("falcon", YARN),
    "bloom": ("bloom", {}),
    "bloom heads": ("bloom", {"attention.head_count": 1, "attention.head_count_kv": 1}),
    "mpt": ("mpt", {"attention.clamp_kqv": 0.8, "attention.max_alibi_bias": 6.0}),
    "command-r": ("command-r", {"logit_scale": 0.5}),
    "cohere2": ("cohere2", WINDOW | {"block_count": 4, "logit_scale": 2.0}),
    "cohere2 pattern": ("cohere2", WINDOW | {"attention.sliding_window_pattern": 2}),
    "chatglm": ("chatglm", {"rope.dimension_count": 2}),
    "cohere2moe": (
        "cohere2moe",
        EXPERTS
        | WINDOW
        | {"block_count": 4, "expert_shared_count": 2, "leading_dense_block_count": 1},
    ),
    "dbrx": ("dbrx", EXPERTS | {"attention.clamp_kqv": 0.8}),
    "starcoder": ("starcoder", {"attention.head_count_kv": 1}),
    "glm4": ("glm4", {"rope.dimension_count": 2}),
    "nemotron": ("nemotron", YARN | {"rope.dimension_count": 4}),
    "deepseek2": ("deepseek2", MLA | EXPERTS),
    "deepseek2 yarn": ("deepseek2", MLA | DEEPSEEK_YARN),
    "deepseek2 yarn log": (
        "deepseek2",
        MLA | EXPERTS | DEEPSEEK_YARN | {"rope.scaling.yarn_log_multiplier": 0.07},
    ),
    "deepseek2 groups": ("deepseek2", MLA | GROUPS),
    "deepseek2 expanded": ("deepseek2", PLAIN_MLA | EXPERTS),
    "deepseek2 expanded yarn": ("deepseek2", PLAIN_MLA | DEEPSEEK_YARN),
}
OTHERS |= {
    "bailingmoe2": ("bailingmoe2", GROUPS | {"expert_shared_count": 1, "rope.dimension_count": 2}),
    "deci": (
        "deci",
        {
            "block_count": 4,
            "attention.key_length": 4,
            "attention.value_length": 4,
            "attention.head_count": np.array([4, 0, 4, 4], np.int32),
            "attention.head_count_kv": np.array([2, 0, 0, 4], np.int32),
            "feed_forward_length": np.array([24, 16, 24, 0], np.int32),
        },
    ),
    # one layer: gains behind the rotation make scores differ by position, so later layers move
    "maincoder": ("maincoder", {"block_count": 1}),
    "mimo2": (
        "mimo2",
        EXPERTS
        | WINDOW
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([1, 2, 4], np.int32),
            "attention.key_length": 6,
            "attention.value_length": 4,
            "attention.value_scale": 0.7,
            "attention.sliding_window_pattern": np.array([False, True, True]),
            "rope.dimension_count": 4,
            "rope.freq_base_swa": 50.0,
        },
    ),
    # all of its tokens are of the first span, because later ones do not just move
    "mistral4": (
        "mistral4",
        MLA | EXPERTS | {"attention.temperature_scale": 0.5, "attention.temperature_length": 64},
    ),
    "openelm": (
        "openelm",
        {
            "attention.head_count": np.array([2, 4], np.int32),
            "attention.head_count_kv": np.array([1, 2], np.int32),
            "attention.key_length": 4,
            "attention.value_length": 4,
            "feed_forward_length": np.array([8, 24], np.int32),
        },
    ),
    "pangu-embedded": ("pangu-embedded", {}),
    "deepseek32": ("deepseek32", SPARSE),
    "glm-dsa": ("glm-dsa", SPARSE),
    "hrm_text": (
        "hrm_text",
        {"block_count": 4, "hrm.layers_per_stack": 1, "hrm.h_cycles": 2, "hrm.l_cycles": 1},
    ),
    "minicpm3": (
        "minicpm3",
        {
            "attention.q_lora_rank": 5,
            "attention.kv_lora_rank": 6,
            "rope.dimension_count": 4,
            "attention.head_count_kv": 4,
            "attention.key_length": 7,
            "attention.value_length": 3,
        },
    ),
    "kimi": (
        "kimi-linear",
        MLA
        | EXPERTS
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([0, 1, 0], np.int32),
            "ssm.conv_kernel": 3,
            "kda.head_dim": 5,
            "expert_gating_func": 2,
        },
    ),
    "kimi k3": (
        "kimi-k3",
        MLA
        | EXPERTS
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([0, 1, 0], np.int32),
            "ssm.conv_kernel": 3,
            "kda.head_dim": 5,
            "kda.gate_lower_bound": -0.2,
            "expert_gating_func": 2,
            "expert_latent_length": 6,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "activation.situ_beta": 0.9,
            "activation.situ_linear_beta": 0.7,
            "attn_res.block_size": 2,
        },
    ),
    "ling3": (
        "bailingmoe3",
        MLA
        | GROUPS
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([0, 1, 0], np.int32),
            "ssm.conv_kernel": 3,
            "kda.head_dim": 5,
            "kda.gate_lower_bound": -0.2,
            "swiglu_clamp_exp": 0.5,
        },
    ),
    "minimax-m3": (
        "minimax-m3",
        EXPERTS
        | {
            "expert_gating_func": 2,
            "expert_shared_count": 1,
            "leading_dense_block_count": 1,
            "block_count": 3,
            "rope.dimension_count": 2,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 4,
            "attention.indexer.top_k": 2,
            "attention.indexer.block_size": 3,
            "attention.indexer.local_blocks": 1,
        },
    ),
    "kimi expanded": (
        "kimi-linear",
        PLAIN_MLA
        | {
            "block_count": 3,
            "attention.head_count_kv": np.array([4, 0, 4], np.int32),
            "ssm.conv_kernel": 3,
            "kda.head_dim": 6,
        },
    ),
}
OTHERS |= {"plm": ("plm", PLAIN_MLA)} | RARE
OTHERS |= RECURRENT


def make_other(
    tmp_path: Path, name: str, *, without: str = ""
) -> tuple[dict[str, object], Tensors]:
    """Metadata and weights of a model of the table."""
    arch, changes = OTHERS[name]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    return meta, {n: a for n, a in tensors.items() if not without or without not in n}
