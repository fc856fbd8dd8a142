"""Whole models against transformers, where no folder is read or files lack what folders say: random
weights, renamed into a GGUF file as converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import keys_of
from tests.llm.renamed_models import (
    BEHIND,
    GLM,
    IDS,
    LAYER,
    N_VOCAB,
    SHAPE,
    adjacent,
    randomised,
    renamed,
    same,
    weft_rows,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("chunk", [6, 64])
def test_llama4(tmp_path: Path, chunk: int) -> None:
    """Some layers see chunks only, whose size is 8192 in folders; every second one has experts."""
    config = transformers.Llama4TextConfig(
        **SHAPE, head_dim=8, num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=20,
        interleave_moe_layer_step=2, attention_chunk_size=chunk, no_rope_layer_interval=4,
    )  # fmt: skip
    model = randomised(transformers.Llama4ForCausalLM(config))
    parts = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    names = LAYER | {f"feed_forward.{of}": name for of, name in parts.items()}
    names |= {f"feed_forward.shared_expert.{of}": f"{n}_shexp" for of, n in parts.items()}
    tensors = renamed(model, names | {"feed_forward.router": "ffn_gate_inp"}, "model.layers.")
    for il in (1, 3):
        experts = f"model.layers.{il}.feed_forward.experts"
        both = model.state_dict()[f"{experts}.gate_up_proj"].numpy().swapaxes(1, 2)
        down = model.state_dict()[f"{experts}.down_proj"].numpy().swapaxes(1, 2)
        for name, array in (("gate", both[:, :24]), ("up", both[:, 24:]), ("down", down)):
            tensors[f"blk.{il}.ffn_{name}_exps.weight"] = array.copy()
    meta = {
        "block_count": 4, "attention.key_length": 8, "attention.value_length": 8,
        "feed_forward_length": 20, "expert_feed_forward_length": 24, "expert_count": 4,
        "expert_used_count": 1, "interleave_moe_layer_step": 2, "attention.sliding_window": chunk,
    }  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", keys_of("llama4", meta), tensors)
    same(got, model(torch.tensor([IDS])).logits)


@pytest.mark.parametrize("drafts", [False, True])
def test_glm_flash(tmp_path: Path, drafts: bool) -> None:
    """Its files do not say that expert weights are sigmoids, and bring a layer that drafts."""
    config = transformers.Glm4MoeLiteConfig(
        vocab_size=N_VOCAB, hidden_size=16, intermediate_size=24, moe_intermediate_size=12,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, n_shared_experts=1,
        n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True,
        routed_scaling_factor=1.8, kv_lora_rank=6, q_lora_rank=5, qk_nope_head_dim=4,
        qk_rope_head_dim=4, v_head_dim=5, max_position_embeddings=64, rms_norm_eps=1e-5,
        mlp_layer_types=["dense", "sparse"], attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )  # fmt: skip
    model = randomised(transformers.Glm4MoeLiteForCausalLM(config))
    state = {name: p.numpy() for name, p in model.state_dict().items()}
    tensors = renamed(model, GLM, "model.layers.")
    for il in range(2):
        kv = state[f"model.layers.{il}.self_attn.kv_b_proj.weight"].reshape(4, 9, 6)
        tensors[f"blk.{il}.attn_k_b.weight"] = kv[:, :4].transpose(0, 2, 1).copy()
        tensors[f"blk.{il}.attn_v_b.weight"] = kv[:, 4:].copy()
    mlp = "model.layers.1.mlp"
    both = state[f"{mlp}.experts.gate_up_proj"]
    tensors["blk.1.ffn_gate_exps.weight"] = both[:, :12].copy()
    tensors["blk.1.ffn_up_exps.weight"] = both[:, 12:].copy()
    tensors["blk.1.ffn_down_exps.weight"] = state[f"{mlp}.experts.down_proj"]
    tensors["blk.1.exp_probs_b.bias"] = state[f"{mlp}.gate.e_score_correction_bias"]
    tensors.pop("blk.1.ffn_gate_inp.e_score_correction_bias", None)
    changes: dict[str, object] = {
        "attention.kv_lora_rank": 6, "attention.q_lora_rank": 5, "attention.head_count_kv": 1,
        "attention.key_length": 10, "attention.value_length": 6, "attention.key_length_mla": 8,
        "attention.value_length_mla": 5, "rope.dimension_count": 4, "expert_shared_count": 1,
        "leading_dense_block_count": 1, "expert_count": 4, "expert_used_count": 2,
        "expert_feed_forward_length": 12, "expert_weights_scale": 1.8, "expert_weights_norm": True,
    }  # fmt: skip
    if drafts:
        changes |= {"block_count": 3, "nextn_predict_layers": 1}
        tensors["blk.2.nextn.eh_proj.weight"] = np.ones((16, 32), np.float32)
        tensors["blk.2.attn_norm.weight"] = np.ones(16, np.float32)
    got = weft_rows(tmp_path / "m.gguf", keys_of("deepseek2", changes), tensors)
    same(got, model(torch.tensor([IDS])).logits)


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
    got = weft_rows(tmp_path / "m.gguf", keys_of("step35", meta), tensors)
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
    got = weft_rows(tmp_path / "m.gguf", keys_of("muse-glimmer", meta), tensors)
    logits = model(torch.tensor([IDS])).last_hidden_state @ head.T * 0.2
    same(got, 20 * torch.tanh(logits / 20))
