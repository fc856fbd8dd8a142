"""Folders of classes that transformers lacks: the tensors of a tiny file under the names, and in
the order of rows, that such a folder has, and config.json, give the logits of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.made_models import TOKENS, Tensors, configure, context, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm.weights import Row

folders = pytest.importorskip("tests.llm.hf_folders")
safetensors = pytest.importorskip("safetensors.numpy")

N_VOCAB = 400
LLAMA = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "attn_gate": "self_attn.g_proj",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}_exps": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")},
}  # fmt: skip
"""Names in a layer of the folder, by the names in files; a star stands for the number of an
expert."""
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONFIG = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1000.0, "head_dim": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 10}
Change = Callable[[str, Any], Any]


def same(name: str, x: Any) -> Any:
    return x


def halves(name: str, x: Any) -> Any:
    """Rows of queries and keys in the order in which halves of a head of 4 rotate."""
    if name.endswith(("attn_q.weight", "attn_k.weight")):
        return x.reshape(-1, 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    return x


def talkie(name: str, x: Any) -> Any:
    if name.endswith(("attn_q.weight", "attn_k.weight")):
        return x * np.tile(np.array([1, 1, -1, -1], np.float32), len(x) // 4)[:, None]
    return x[:, 0] if name.endswith("attn_q_norm.weight") else x


def jais(name: str, x: Any) -> Any:
    """Matrices of layers are transposed, and there are factors."""
    if x.ndim == 2 and name.startswith("blk."):
        return x.T
    return x / {"token_embd.weight": 2.0, "output.weight": 0.5}.get(name, 1.0)


def plamo(name: str, x: Any) -> Any:
    if name.endswith("attn_q.weight"):  # 2 keys for 2 queries each
        return x.reshape(2, 2, 4, 16).swapaxes(0, 1).reshape(x.shape)
    if name.endswith("attn_output.weight"):
        return x.reshape(16, 2, 2, 4).swapaxes(1, 2).reshape(x.shape)
    return x


def plamo2(name: str, x: Any) -> Any:
    for end, added in (("attn_norm.weight", 1), ("ffn_norm.weight", 1), ("output_norm.weight", 1),
                       ("post_attention_norm", 1 / 5), ("post_ffw_norm", 1 / 5**1.5)):  # fmt: skip
        if name.endswith(end):
            return x - np.float32(added)
    if name.endswith("ssm_a"):
        return np.log(-x)
    return x[:, None] if "conv1d" in name else x


def plamo3(name: str, x: Any) -> Any:
    return x - 1 if re.search("attn_[qk]_norm", name) else plamo2(name, x)


def step(name: str, x: Any) -> Any:
    return x - 1 if name.endswith("norm.weight") else x


PLAMO = LLAMA | {
    "attn_norm": "pre_mixer_norm", "ffn_norm": "pre_mlp_norm", "attn_output": "mixer.o_proj",
    "post_attention_norm": "post_mixer_norm.weight", "post_ffw_norm": "post_mlp_norm.weight",
    "attn_qkv": "mixer.qkv_proj", "attn_q_norm": "mixer.q_norm", "attn_k_norm": "mixer.k_norm",
    "ffn_up": "mlp.gate_up_proj",
}  # fmt: skip
PLAMO2 = PLAMO | {
    "attn_q_norm.weight": "mixer.q_weight", "attn_k_norm.weight": "mixer.k_weight",
    "ssm_in": "mixer.in_proj", "ssm_conv1d": "mixer.conv1d", "ssm_x": "mixer.bcdt_proj",
    "ssm_dt.weight": "mixer.dt_proj.weight", "ssm_dt.bias": "mixer.dt_bias",
    "ssm_a": "mixer.A_log", "ssm_d": "mixer.D", "ssm_out": "mixer.out_proj",
    "ssm_dt_norm": "mixer.dt_norm_weight", "ssm_b_norm": "mixer.B_norm_weight",
    "ssm_c_norm": "mixer.C_norm_weight",
}  # fmt: skip
WINDOW = {"sliding_window": 6}
LAYERS = {"layer_types": ["full_attention", "sliding_attention"]}
BASES = {"rope_parameters": {
    "full_attention": {"rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_theta": 50.0, "partial_rotary_factor": 1.0}}}  # fmt: skip

Case = tuple[str, str, dict[str, object], dict[str, Any], dict[str, str], Change, dict[str, str]]
# the class, the architecture, metadata beside that of a tiny llama, config.json, names in layers,
# what is done to values, and other names
CASES: list[Case] = [
    ("NanbeigeForCausalLM", "nanbeige", {"num_loops": 3}, {"num_loops": 3}, LLAMA, halves, OUTER),
    ("GroveMoeForCausalLM", "grovemoe", {
        "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 10,
        "experts_per_group": 2, "expert_group_scale": 0.05, "expert_chunk_feed_forward_length": 4},
     MIXTURE | {"num_experts": 6}, LLAMA | {
        f"ffn_{part}_chexps": f"mlp.chunk_experts.*.{part}_proj"
        for part in ("gate", "up", "down")}, same, OUTER),
    ("MapleForCausalLM", "maple", {
        "expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 10,
        "attention.sliding_window": 6, "swiglu_clamp_exp": 7.0,
        "attention.sliding_window_pattern": np.array([False, True])},
     MIXTURE | WINDOW | LAYERS, LLAMA, same, OUTER),
    ("Spark2_5ForCausalLM", "spark2_5", OTHERS["spark2_5"][1] | {"rope.freq_base_swa": 50.0},
     WINDOW | LAYERS | BASES | {"hidden_act": "gelu"},
     LLAMA | {"attn_qkv": "self_attn.q_k_v_proj"}, same, OUTER),
    ("SmallThinkerForCausalLM", "smallthinker", OTHERS["smallthinker"][1] | {
        "expert_gating_func": 2, "feed_forward_length": 10},
     {"moe_num_primary_experts": 5, "moe_num_active_primary_experts": 2, "moe_ffn_hidden_size": 10,
      "sliding_window_size": 6, "sliding_window_layout": [0, 1, 1, 1, 0],
      "rope_layout": [0, 1, 1, 1, 0], "num_hidden_layers": 5},
     LLAMA | {"ffn_gate_inp": "block_sparse_moe.primary_router"} | {
        f"ffn_{part}_exps": f"block_sparse_moe.experts.*.{part}"
        for part in ("gate", "up", "down")}, same, OUTER),
    ("Step3p5ForCausalLM", "step35", OTHERS["step35"][1] | {
        "expert_gating_func": 2, "rope.freq_base_swa": 50.0, "expert_weights_scale": 1.5,
            "expert_weights_norm": True,
        "attention.head_count": np.array([4, 2, 2], np.int32),
        "attention.head_count_kv": np.array([2, 1, 1], np.int32),
        "expert_shared_feed_forward_length": 12, "swiglu_clamp_shexp": 0.2},
     {"num_hidden_layers": 3, "head_dim": 8, "num_attention_groups": 2, "num_key_value_heads": None,
      "attention_other_setting": {"num_attention_heads": 2, "num_attention_groups": 1},
      "layer_types": ["full_attention"] + ["sliding_attention"] * 2, "sliding_window": 6,
      "moe_num_experts": 5, "moe_top_k": 2, "moe_intermediate_size": 10, "share_expert_dim": 12,
      "moe_layers_enum": "1,2", "rope_theta": [1000.0, 50.0, 50.0],
      "moe_router_scaling_factor": 1.5, "swiglu_limits": [0.3] * 3,
      "swiglu_limits_shared": [0.2] * 3},
     LLAMA | {"ffn_gate_inp": "moe.gate", "exp_probs_b.bias": "moe.router_bias"} | {
        f"ffn_{part}_exps": f"moe.{part}_proj" for part in ("gate", "up", "down")} | {
        f"ffn_{part}_shexp": f"share_expert.{part}_proj" for part in ("gate", "up", "down")},
     step, OUTER),
    ("TalkieForCausalLM", "talkie", {"attention.layer_norm_rms_epsilon": 1.1920929e-07,
                                     "logit_scale": 0.5}, {"num_key_value_heads": 2},
     {"attn_q": "attn.attn_query", "attn_k": "attn.attn_key", "attn_v": "attn.attn_value",
      "attn_output.weight": "attn.attn_resid.weight", "attn_output.scale": "attn_gain.a_g",
      "ffn_down.weight": "mlp.mlp_resid.weight", "ffn_down.scale": "mlp_gain.a_g",
      "ffn_gate": "mlp.mlp_gate", "ffn_up": "mlp.mlp_linear",
      "attn_q_norm.weight": "attn.head_gain.head_g", "layer_output_scale.weight": "embed_skip.a_g"},
     talkie, {"token_embd": "model.embed", "output.weight": "lm_head"}),
    ("ArcticForCausalLM", "arctic", {"expert_count": 5, "expert_used_count": 2},
     {"num_local_experts": 5, "num_experts_per_tok": 2}, LLAMA | {
        "ffn_norm": "residual_layernorm", "ffn_norm_exps": "post_attention_layernorm",
        "ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate": "residual_mlp.w1",
        "ffn_down": "residual_mlp.w2", "ffn_up": "residual_mlp.w3",
        "ffn_gate_exps": "block_sparse_moe.experts.*.w1",
        "ffn_down_exps": "block_sparse_moe.experts.*.w2",
        "ffn_up_exps": "block_sparse_moe.experts.*.w3"}, halves, OUTER),
    ("PLMForCausalLM", "plm", OTHERS["plm"][1] | {"leading_dense_block_count": 0}, {
        "kv_lora_rank": 6, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "v_head_dim": 3,
        "num_key_value_heads": 4, "head_dim": None, "hidden_act": "relu2"}, LLAMA | {
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa", "attn_kv_a_norm":
        "self_attn.kv_a_layernorm", "attn_kv_b": "self_attn.kv_b_proj"}, same, OUTER),
    ("JAISLMHeadModel", "jais", {"attention.max_alibi_bias": 8.0, "attention.head_count_kv": 4}, {
        "n_positions": 64, "n_embd": 16, "n_inner": 24, "n_head": 4, "n_layer": 2,
        "layer_norm_epsilon": 1e-5, "activation_function": "swiglu", "embeddings_scale": 2.0,
        "position_embedding_type": "alibi", "width_scale": 0.5},
     {"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn",
      "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_gate": "mlp.c_fc2",
      "ffn_down": "mlp.c_proj"}, jais,
     {"token_embd": "transformer.wte", "output_norm": "transformer.ln_f", "output": "lm_head"}),
    ("QWenLMHeadModel", "qwen", {
        "feed_forward_length": 48, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.head_count_kv": 4},
     {"intermediate_size": 48, "layer_norm_epsilon": 1e-6, "kv_channels": 4, "head_dim": None,
      "rms_norm_eps": None, "rope_theta": None, "rotary_emb_base": 1000.0, "seq_length": 64,
      "num_key_value_heads": None, "use_dynamic_ntk": True, "use_logn_attn": True},
     {"attn_norm": "ln_1", "ffn_norm": "ln_2", "attn_qkv": "attn.c_attn",
      "attn_qkv.bias": "attn.c_attn.bias", "attn_output": "attn.c_proj", "ffn_up": "mlp.w1",
      "ffn_gate": "mlp.w2", "ffn_down": "mlp.c_proj"}, same,
     {"token_embd": "transformer.wte", "output_norm": "transformer.ln_f", "output": "lm_head"}),
    ("PlamoForCausalLM", "plamo", {}, {"n_shared_head": 2},
     LLAMA | {"attn_norm": "norm"}, plamo, OUTER),
    ("Plamo3ForCausalLM", "plamo3", {
        "attention.sliding_window": 6, "rope.freq_base_swa": 50.0,
        "attention.sliding_window_pattern": 2},
     {"window_size": 6, "sliding_window_pattern": 2, "rope_local_theta": 50.0}, PLAMO, plamo3,
     OUTER),
    ("Plamo2ForCausalLM", "plamo2", OTHERS["plamo2"][1] | {"ssm.inner_size": 16}, {
        "num_hidden_layers": 3, "mamba_step": 3, "hidden_size_per_head": 4, "mamba_d_state": 5,
        "mamba_num_heads": 4, "mamba_d_conv": 4}, PLAMO2, plamo2, OUTER),
    ("OpenELMForCausalLM", "openelm", OTHERS["openelm"][1] | {
        "attention.layer_norm_rms_epsilon": 1e-6}, {
        "num_transformer_layers": 2, "num_hidden_layers": 2, "max_context_length": 64,
        "model_dim": 16, "ffn_multipliers": [0.5, 1.5], "ffn_dim_divisor": 8,
        "num_query_heads": [2, 4], "num_kv_heads": [1, 2], "rope_freq_constant": 1000.0},
     {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "attn_qkv": "attn.qkv_proj",
      "attn_q_norm": "attn.q_norm", "attn_k_norm": "attn.k_norm", "attn_output": "attn.out_proj",
      "ffn_gate": "ffn.proj_1", "ffn_up": "ffn.proj_1", "ffn_down": "ffn.proj_2"}, same,
     {"token_embd": "transformer.token_embeddings", "output_norm": "transformer.norm"}),
    ("CogVLMForCausalLM", "cogvlm", {"attention.head_count_kv": 4, "rope.freq_base": 10000.0},
     {"num_key_value_heads": 4, "rope_theta": 10000.0}, LLAMA | {
        "attn_qkv": "self_attn.language_expert_query_key_value",
        "attn_output": "self_attn.language_expert_dense",
        "vis_attn_qkv": "self_attn.vision_expert_query_key_value",
        "vis_attn_output": "self_attn.vision_expert_dense"} | {
        f"ffn_{part}": f"mlp.language_mlp.{part}_proj" for part in ("gate", "up", "down")} | {
        f"vis_{part}": f"mlp.vision_mlp.{part}_proj" for part in ("gate", "up", "down")},
     same, OUTER),
]  # fmt: skip
TOKENIZERS = {"PlamoForCausalLM": "model", "ArcticForCausalLM": "model"}
ROOTS = {
    "TalkieForCausalLM": "model.blocks",
    "JAISLMHeadModel": "transformer.h",
    "QWenLMHeadModel": "transformer.h",
    "OpenELMForCausalLM": "transformer.layers",
    "PlamoForCausalLM": "model.layers.layers",
    "Plamo2ForCausalLM": "model.layers.layers",
    "Plamo3ForCausalLM": "model.layers.layers",
}


def wanted(names: dict[str, str], row: Row) -> bool:
    """True for the tensors that the folder has names for."""
    stem = re.sub(r"^blk\.\d+\.", "", row.name)
    found = names.get(stem, names.get(stem.removesuffix(".weight")))
    if row.unless:
        return re.sub(r"^blk\.\d+\.", "", row.unless).removesuffix(".weight") not in names
    return found is not None or (not row.optional and stem != "output.weight")


def in_folder(case: Case, tensors: Tensors) -> dict[str, Any]:
    """The tensors under the names of the folder."""
    cls, _, _, _, names, change, outer = case
    out: dict[str, Any] = {}
    for name, array in tensors.items():
        layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        table, stem = (names, layer[2]) if layer else (outer, name)
        bare, _, kind = stem.rpartition(".")
        new = table.get(stem) or f"{table[bare]}.{kind}"
        if layer:
            new = f"{ROOTS.get(cls, 'model.layers')}.{layer[1]}.{new}"
        x = np.ascontiguousarray(change(name, array), np.float32)
        if "*" in new:
            out |= {new.replace("*", str(i)): np.ascontiguousarray(e) for i, e in enumerate(x)}
        elif new in out:  # the second half of a joined matrix
            out[new] = np.concatenate([out[new], x])
        else:
            out[new] = x
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_logits_of_the_file(tmp_path: Path, case: Case) -> None:
    cls, arch, changes, config, names, _, outer = case
    meta = keys_of(arch, changes)
    for key in [key for key in meta if key.startswith("tokenizer.")]:
        del meta[key]
    n_vocab = 380 if TOKENIZERS.get(cls) else N_VOCAB
    meta[f"{arch}.vocab_size"] = n_vocab
    both = names | outer
    tensors = made_up(configure(tmp_path, meta), lambda row: wanted(both, row))
    tensors = {n: np.log1p(np.exp(a)) * -1 if n.endswith("ssm_a") else a
               for n, a in tensors.items()}  # fmt: skip
    want = context(write_model(tmp_path / "file.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    assert want.std() > 0.1
    state = in_folder(case, tensors)
    if cls == "TalkieForCausalLM":
        state["lm_head_gain.w_g"] = np.array([0.5], np.float32)
    safetensors.save_file(state, tmp_path / "model.safetensors")
    n_layer = changes.get("block_count", 2)
    whole = {"num_hidden_layers": n_layer, **CONFIG, **config, "vocab_size": n_vocab}
    whole = {key: value for key, value in whole.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"architectures": [cls]}))
    if cls.startswith(("Plamo2", "Plamo3")):
        lines = [
            ["<|plamo:unk|>", 0.0, "UNKNOWN"],
            ["<|plamo:bos|>", 0.0, "CONTROL"],
            *([f"<0x{b:02X}>", 0.0, "BYTE"] for b in range(256)),
            ["a", -3.5, "NORMAL"],
        ]
        text = "\n".join(json.dumps(line) for line in lines)
        (tmp_path / "tokenizer.jsonl").write_text(text)
        (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|plamo:bos|>"}')
    else:
        folders.save_tokenizer(TOKENIZERS.get(cls, "gpt2"), tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        got = context(path).decode(TOKENS, outputs="all")
        assert context(path).model.file.architecture == arch
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize(
    ("case", "changes", "match"),
    [
        ("MapleForCausalLM", {"num_shared_experts": 1}, "num_shared_experts"),
        ("Spark2_5ForCausalLM", {"headwise_attn_output_gate": False}, "headwise"),
        ("SmallThinkerForCausalLM", {"rope_layout": [1] * 5}, "rope_layout"),
        ("JAISLMHeadModel", {"position_embedding_type": "learned"}, "position_embedding_type"),
    ],
)
def test_settings_that_files_lack_are_refused(
    tmp_path: Path, case: str, changes: dict[str, Any], match: str
) -> None:
    config = next(row[3] for row in CASES if row[0] == case)
    whole = {"num_hidden_layers": 2, **CONFIG, **config, **changes, "vocab_size": N_VOCAB}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"architectures": [case]}))
    safetensors.save_file({"model.norm.weight": np.ones(16, np.float32)},
                          tmp_path / "model.safetensors")  # fmt: skip
    folders.save_tokenizer("gpt2", tmp_path)
    with pytest.raises(FormatError, match=match):
        convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
