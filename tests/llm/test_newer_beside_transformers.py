"""Step 3.5, by the text model of Step 3.7, and Muse Glimmer against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import keys_of
from tests.llm.test_beside_transformers import (
    BEHIND,
    GLM,
    IDS,
    SHAPE,
    adjacent,
    randomised,
    renamed,
    same,
)
from tests.llm.test_beside_transformers import weft_rows as rows_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NAMES = {
    **GLM,
    **{name: to for name, to in BEHIND.items() if "self_attn" in name},
    "self_attn.g_proj": "attn_gate",
}


def test_step35(tmp_path: Path) -> None:
    """Of four layers two have a window and other heads, and two experts, with limits."""
    kinds = ["full_attention", "sliding_attention"] * 2
    ropes = {
        kinds[0]: {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 0.5},
        kinds[1]: {"rope_type": "default", "rope_theta": 50.0},
    }
    config = transformers.Step3p7TextConfig(
        **SHAPE | {"rope_parameters": ropes, "pad_token_id": 0}, head_dim=8, layer_types=kinds,
        mlp_layer_types=["dense", "dense", "sparse", "sparse"], sliding_window=6,
        n_routed_experts=5,
        num_experts_per_tok=2, moe_intermediate_size=10, share_expert_dim=12,
        num_sliding_attention_heads=2, moe_router_scaling_factor=1.5,
        swiglu_limits=[0, 0, 0.3, 0.3], swiglu_limits_shared=[0, 0, 0, 0.2],
    )  # fmt: skip
    model = randomised(transformers.models.step3p7.modeling_step3p7.Step3p7TextModel(config))
    state = {name: p.detach().numpy() for name, p in model.state_dict().items()}
    tensors = renamed(model, NAMES, "layers.")
    tensors["token_embd.weight"] = state["embed_tokens.weight"]
    tensors["output_norm.weight"] = state["norm.weight"]
    tensors = {
        name: a + 1 if "norm" in name else a
        for name, a in tensors.items()
        if "correction" not in name  # has another name
    }
    head = torch.randn(SHAPE["vocab_size"], 16)
    tensors["output.weight"] = head.numpy()
    for il in (2, 3):
        mlp = f"layers.{il}.mlp"
        gate_up = state[f"{mlp}.experts.gate_up_proj"]
        tensors |= {
            f"blk.{il}.ffn_gate_exps.weight": gate_up[:, :10].copy(),
            f"blk.{il}.ffn_up_exps.weight": gate_up[:, 10:].copy(),
            f"blk.{il}.ffn_down_exps.weight": state[f"{mlp}.experts.down_proj"],
            f"blk.{il}.exp_probs_b.bias": state[f"{mlp}.gate.e_score_correction_bias"],
        }
    meta: dict[str, Any] = {
        "block_count": 4, "attention.head_count": np.array([4, 2] * 2, np.int32),
        "attention.head_count_kv": np.array([2] * 4, np.int32), "attention.key_length": 8,
        "attention.value_length": 8, "attention.sliding_window": 6,
        "attention.sliding_window_pattern": np.array([False, True] * 2),
        "rope.freq_base": 1e3, "rope.freq_base_swa": 50.0, "expert_count": 5,
        "expert_used_count": 2, "expert_feed_forward_length": 10,
        "expert_shared_feed_forward_length": 12, "expert_weights_norm": True,
        "expert_weights_scale": 1.5, "leading_dense_block_count": 2,
        "swiglu_clamp_exp": np.array([0, 0, 0.3, 0.3], np.float32),
        "swiglu_clamp_shexp": np.array([0, 0, 0, 0.2], np.float32),
    }  # fmt: skip
    got = rows_of(tmp_path / "m.gguf", keys_of("step35", meta), tensors)
    same(got, model(torch.tensor([IDS])).last_hidden_state @ head.T)


def test_muse_glimmer(tmp_path: Path) -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    config = transformers.MuseGlimmerTextConfig(
        **SHAPE, head_dim=8, layer_types=kinds, sliding_window=6
    )
    module = transformers.models.muse_glimmer.modeling_muse_glimmer
    model = randomised(module.MuseGlimmerTextModel(config))
    names = NAMES | {
        "self_attn.gate_proj": "attn_gate",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    tensors = adjacent(renamed(model, names, "layers."), 4, 2)
    tensors = {name: a + 1 if "norm" in name else a for name, a in tensors.items()}
    head = torch.randn(SHAPE["vocab_size"], 16)
    state = {name: p.detach().numpy() for name, p in model.state_dict().items()}
    tensors |= {
        "token_embd.weight": state["embed_tokens.weight"],
        "output_norm.weight": state["norm.weight"],
        "output.weight": head.numpy(),
    }
    for il in range(4):
        tensors[f"blk.{il}.attn_q_norm.weight"] = np.full(8, config.qk_scale_factor, np.float32)
        tensors[f"blk.{il}.attn_k_norm.weight"] = np.ones(8, np.float32)
    meta: dict[str, Any] = {
        "block_count": 4, "attention.key_length": 8, "attention.value_length": 8,
        "attention.sliding_window": 6, "rope.freq_base": 1e3, "logit_scale": 0.2,
        "attention.sliding_window_pattern": np.array([True] * 3 + [False]),
        "rope.freq_base_swa": 1e3, "final_logit_softcapping": 20.0,
    }  # fmt: skip
    got = rows_of(tmp_path / "m.gguf", keys_of("muse-glimmer", meta), tensors)
    logits = model(torch.tensor([IDS])).last_hidden_state @ head.T * 0.2
    same(got, 20 * torch.tanh(logits / 20))
