"""Whole models against transformers: random weights, renamed into a GGUF file as converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.made_models import keys_of
from tests.llm.tiny import tokens, write_model
from weft.llm import Context
from weft.llm.model import Model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

N_VOCAB = len(tokens()[0])
IDS = [5, 90, 17, 201, 8, 90, 44, 3, 120, 66, 9, 250, 33, 71, 2, 19]
Tensors = dict[str, NDArray[np.float32]]

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
DISTIL = {
    "attention.q_lin": "attn_q", "attention.k_lin": "attn_k", "attention.v_lin": "attn_v",
    "attention.out_lin": "attn_output", "sa_layer_norm": "attn_output_norm", "ffn.lin1": "ffn_up",
    "ffn.lin2": "ffn_down", "output_layer_norm": "layer_output_norm",
}  # fmt: skip
BEHIND = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
GLM = LAYER | {
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}  # fmt: skip
GEMMA4 = LAYER | BEHIND | {
    "pre_feedforward_layernorm": "ffn_norm", "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "router.proj": "ffn_gate_inp",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "altup.router_norm": "altup_router_norm", "altup.modality_router": "altup_router",
    "altup.prediction_coefs": "altup_predict_coef", "laurel.linear_left": "laurel_l",
    "altup.correction_coefs": "altup_correct_coef", "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip
OUTER = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "embeddings.word_embeddings": "token_embd", "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.position_embeddings": "position_embd",
}  # fmt: skip


def randomised(model: Any) -> Any:
    """The model with weights that make a difference."""
    torch.manual_seed(1)
    saved = model.state_dict()
    with torch.no_grad():
        for name, p in (*model.named_parameters(), *model.named_buffers()):
            if p.dtype == torch.float32 and name in saved:
                scale = 1.5 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2
                p.copy_(torch.randn_like(p) * scale + (p.dim() == 1 and "bias" not in name))
    return model.eval()


def renamed(model: Any, table: dict[str, str], layers: str) -> Tensors:
    """Parameters by their names in a GGUF file; those that `table` does not have are left out."""
    out: Tensors = {}
    for full, p in model.state_dict().items():
        stem, _, kind = full.rpartition(".")
        name = OUTER.get(stem, "")
        if full.startswith(layers):
            number, _, inner = stem.removeprefix(layers).partition(".")
            name = f"blk.{number}.{table[inner]}" if inner in table else ""
        if name:
            out[f"{name}.{kind}"] = p.numpy().astype(np.float32)
    return out


def weft_rows(path: Path, meta: dict[str, object], tensors: Tensors) -> NDArray[np.float32]:
    """What weft computes for IDS: logits, or embeddings of a model without them."""
    model = Model.open(write_model(path, meta, tensors))
    options: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]}
    return Context(model, 64, **options).decode(IDS, outputs="all")


def same(got: NDArray[np.float32], want: Any) -> None:
    want = want.detach().numpy()[0]
    assert want.std() > 0.1
    # float32 sums in another order; what these tests are about differs by 0.1 and more
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


def adjacent(tensors: Tensors, n_head: int, n_head_kv: int) -> Tensors:
    """Puts the rows of queries and keys in the order in which adjacent pairs rotate, as converters
    do for models that rotate halves."""
    out = dict(tensors)
    for name, array in tensors.items():
        n = {"attn_q": n_head, "attn_k": n_head_kv}.get(name.split(".")[-2])
        if n is not None:
            halves = array.reshape(n, 2, len(array) // n // 2, *array.shape[1:])
            out[name] = halves.swapaxes(1, 2).reshape(array.shape)
    return out


SHAPE: dict[str, Any] = {
    "vocab_size": N_VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attn_implementation": "eager",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}, "pad_token_id": None,
}  # fmt: skip
WIDE = {"attention.key_length": 8, "attention.value_length": 8, "rope.dimension_count": 8}
# the class of transformers, its options, keys of the file beside SHAPE's, and names of tensors
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, object], dict[str, str]]] = {
    "arcee": ("Arcee", {"hidden_act": "relu2", "mlp_bias": True}, {}, {}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 8}, WIDE, {}),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}, {},
                BEHIND),
    "exaone4 windows": ("Exaone4", {"sliding_window": 6, "sliding_window_pattern": 4},
                        {"attention.sliding_window": 6}, BEHIND),
    "olmo": ("Olmo", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5}, {}),
    "seed_oss": ("SeedOss", {"head_dim": 8, "attention_out_bias": False}, WIDE, BEHIND),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_relatives_of_llama(tmp_path: Path, name: str) -> None:
    kind, options, changes, names = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(**SHAPE | options)
    model = randomised(getattr(transformers, f"{kind}ForCausalLM")(config))
    arch = name.split()[0]
    tensors = renamed(model, LAYER | names, "model.layers.")
    if arch in ("arcee", "olmo"):
        tensors = adjacent(tensors, 4, 2)
    shape = {
        "block_count": 4, "attention.head_count": 4, "attention.head_count_kv": 2,
        "rope.freq_base": 1000.0, "rope.dimension_count": 4,
    }  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", keys_of(arch, shape | changes), tensors)
    same(got, model(torch.tensor([IDS])).logits)


WINDOWS = {
    "attention.sliding_window": 6, "final_logit_softcapping": 6.0, "attention.key_length": 8,
    "attention.value_length": 8,
    "attention.sliding_window_pattern": np.array([True, False, True, True, False]),
}  # fmt: skip
KINDS = ["sliding_attention", "full_attention"]
LAYERS = {
    "layer_types": [*KINDS, KINDS[0], *KINDS], "num_hidden_layers": 5, "sliding_window": 6,
    "head_dim": 8, "final_logit_softcapping": 6.0, "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": N_VOCAB,
}  # fmt: skip


@pytest.mark.parametrize("experts", [False, True])
def test_gemma4(tmp_path: Path, experts: bool) -> None:
    """Small models have inputs of layers and shared keys and values, large ones experts, and keys
    that are the values."""
    options = {
        "global_head_dim": 12, "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.34,
                               "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}},
    }  # fmt: skip
    mixture = {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_experts": 4,
        "top_k_experts": 2, "moe_intermediate_size": 12,
    }  # fmt: skip
    config = transformers.Gemma4TextConfig(
        **SHAPE | LAYERS | options | (mixture if experts else {})
    )
    model = randomised(transformers.Gemma4ForCausalLM(config))
    tensors = renamed(model, GEMMA4, "model.layers.")
    tensors.pop("output.weight")
    tensors["rope_freqs.weight"] = np.array([1.0, 1.0, *[1e30] * 4], np.float32)
    meta = WINDOWS | {
        "block_count": 5, "attention.key_length": 12, "attention.value_length": 12,
        "attention.key_length_swa": 8, "attention.value_length_swa": 8, "rope.freq_base": 5000.0,
        "rope.freq_base_swa": 1000.0, "rope.dimension_count": 12, "rope.dimension_count_swa": 8,
    }  # fmt: skip
    state = model.state_dict()
    for il in range(5):
        layer = f"model.layers.{il}"
        tensors[f"blk.{il}.layer_output_scale.weight"] = state[f"{layer}.layer_scalar"].numpy()
        if experts:
            for name, of in (("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
                             ("ffn_down_exps.weight", "experts.down_proj"),
                             ("ffn_down_exps.scale", "router.per_expert_scale"),
                             ("ffn_gate_inp.scale", "router.scale")):  # fmt: skip
                tensors[f"blk.{il}.{name}"] = state[f"{layer}.{of}"].numpy()
    if experts:
        kinds = WINDOWS["attention.sliding_window_pattern"]
        meta |= {
            "attention.head_count_kv": np.array([2 if w else 1 for w in kinds], np.int32),
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 12,
        }
    else:
        meta |= {"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 4}
    got = weft_rows(tmp_path / "m.gguf", keys_of("gemma4", meta), without_empty(tensors))
    same(got, model(torch.tensor([IDS])).logits)


def without_empty(tensors: Tensors) -> Tensors:
    """The tensors whose names have a kind."""
    return {name: a for name, a in tensors.items() if not name.endswith(".")}


def test_gemma3n(tmp_path: Path) -> None:
    options = {
        "altup_num_inputs": 3,
        "altup_active_idx": 1,
        "laurel_rank": 3,
        "intermediate_size": [24] * 5,
        "activation_sparsity_pattern": [0.9] + [0.0] * 4,
    }
    config = transformers.Gemma3nTextConfig(**SHAPE | LAYERS | options)
    model = randomised(transformers.Gemma3nForCausalLM(config))
    state = {name: p.numpy() for name, p in model.state_dict().items()}
    tensors = renamed(model, GEMMA4, "model.layers.")
    tensors.pop("output.weight")
    for il in range(5):
        scale = state[f"model.layers.{il}.altup.correct_output_scale"]
        tensors[f"blk.{il}.altup_correct_scale.weight"] = scale
    for name, of in (("altup_proj", "altup_projections"),
                     ("altup_unembd_proj", "altup_unembed_projections")):  # fmt: skip
        each = [state[f"model.{of}.{i}.weight"] for i in range(2)]
        tensors[f"{name}.weight"] = np.stack(each)
    meta = WINDOWS | {
        "block_count": 5, "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 4,
        "altup.num_inputs": 3, "altup.active_idx": 1, "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        # the quantile of the normal distribution below which 90 percent of gates are
        "activation_sparsity_scale": np.array([1.2815516] + [-np.inf] * 4, np.float32),
    }  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", keys_of("gemma3n", meta), without_empty(tensors))
    same(got, model(torch.tensor([IDS])).logits)


@pytest.mark.parametrize("chunk", [6, 64])
def test_llama4(tmp_path: Path, chunk: int) -> None:
    """Some layers see chunks only; every second one has experts. Adjacent pairs rotate."""
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


LATENT = {"q_lora_rank": 5, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
          "v_head_dim": 4, "num_key_value_heads": 4, "num_hidden_layers": 3}  # fmt: skip
INDEXER = {
    "self_attn.indexer.wq_b": "indexer.attn_q_b", "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj",
}  # fmt: skip


def test_minicpm3(tmp_path: Path) -> None:
    options = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    config = transformers.MiniCPM3Config(**SHAPE | LATENT | options)
    model = randomised(transformers.MiniCPM3ForCausalLM(config))
    names = GLM | {"self_attn.kv_b_proj": "attn_kv_b"}
    meta = keys_of("minicpm3", {
        "block_count": 3, "attention.q_lora_rank": 5, "attention.kv_lora_rank": 8,
        "attention.head_count_kv": 4, "attention.key_length": 8, "rope.dimension_count": 4,
        "rope.freq_base": 1000.0,
    })  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", meta, renamed(model, names, "model.layers."))
    same(got, model(torch.tensor([IDS])).logits)


@pytest.mark.parametrize("n_chosen", [5, 64])
@pytest.mark.parametrize(
    ("arch", "kind"), [("deepseek32", "DeepseekV32"), ("glm-dsa", "GlmMoeDsa")]
)
def test_indexers(tmp_path: Path, arch: str, kind: str, n_chosen: int) -> None:
    """Tokens attend to five positions, or to all. Many heads score them, so that no two scores are
    0."""
    options = {
        "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True,
        "routed_scaling_factor": 1.8, "first_k_dense_replace": 3, "index_topk": n_chosen,
        "mlp_layer_types": ["dense"] * 3, "index_head_dim": 6, "index_n_heads": 32,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**SHAPE | LATENT | options)
    model = randomised(getattr(transformers, f"{kind}ForCausalLM")(config))
    tensors = renamed(model, GLM | INDEXER, "model.layers.")
    for il in range(3):
        both = model.state_dict()[f"model.layers.{il}.self_attn.kv_b_proj.weight"]
        kv = both.numpy().reshape(4, 8, 8)
        tensors[f"blk.{il}.attn_k_b.weight"] = kv[:, :4].transpose(0, 2, 1).copy()
        tensors[f"blk.{il}.attn_v_b.weight"] = kv[:, 4:].copy()
    meta = keys_of(arch, {
        "block_count": 3, "leading_dense_block_count": 3, "attention.kv_lora_rank": 8,
        "attention.q_lora_rank": 5, "attention.head_count_kv": 1, "attention.key_length": 12,
        "attention.value_length": 8, "attention.key_length_mla": 8, "rope.freq_base": 1000.0,
        "attention.value_length_mla": 4, "rope.dimension_count": 4,
        "attention.indexer.head_count": 32, "attention.indexer.key_length": 6,
        "attention.indexer.top_k": n_chosen,
    })  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", meta, tensors)
    same(got, model(torch.tensor([IDS])).logits)


def test_phimoe(tmp_path: Path) -> None:
    """Many experts and few dimensions, so that scores are near each other, which SparseMixer
    asks."""
    options = {"num_local_experts": 16, "num_experts_per_tok": 2, "attention_bias": True,
               "lm_head_bias": True}  # fmt: skip
    model = randomised(transformers.PhimoeForCausalLM(transformers.PhimoeConfig(**SHAPE | options)))
    tensors = renamed(model, LAYER | {"mlp.router": "ffn_gate_inp"}, "model.layers.")
    for il in range(4):
        experts = f"model.layers.{il}.mlp.experts"
        both = model.state_dict()[f"{experts}.gate_up_proj"].numpy()
        down = model.state_dict()[f"{experts}.down_proj"].numpy()
        for name, array in (("gate", both[:, :24]), ("up", both[:, 24:]), ("down", down)):
            tensors[f"blk.{il}.ffn_{name}_exps.weight"] = array.copy()
    meta = keys_of("phimoe", {"block_count": 4, "expert_count": 16, "expert_used_count": 2})
    got = weft_rows(tmp_path / "m.gguf", meta, tensors)
    same(got, model(torch.tensor([IDS])).logits)


def test_hrm_text(tmp_path: Path) -> None:
    """Two stacks of two layers, which run four and two times."""
    options = {
        "num_hidden_layers": 2,
        "H_cycles": 2,
        "L_cycles": 2,
        "num_key_value_heads": 4,
        "head_dim": 4,
    }
    config = transformers.HrmTextConfig(**SHAPE | options)
    model = randomised(transformers.HrmTextForCausalLM(config))
    names = LAYER | {"self_attn.gate_proj": "attn_gate"}
    tensors = renamed(model, names, "model.L_module.layers.")
    for name, array in renamed(model, names, "model.H_module.layers.").items():
        tensors[name.replace("blk.1.", "blk.3.").replace("blk.0.", "blk.2.")] = array
    tensors["hrm.z_l_init"] = model.state_dict()["model.z_L_init"].numpy()
    meta = keys_of("hrm_text", {
        "block_count": 12, "attention.head_count_kv": 4, "embedding_scale": config.embedding_scale,
        "hrm.layers_per_stack": 2, "hrm.h_cycles": 2, "hrm.l_cycles": 2, "rope.freq_base": 1000.0,
    })  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", meta, tensors)
    same(got, model(torch.tensor([IDS]), use_cache=False).logits)


@pytest.mark.parametrize("stated", [None, 1.0, 1.2079, 1.7])
def test_yarn_magnitude(tmp_path: Path, stated: float | None) -> None:
    """`attention_factor` is the whole magnitude, not one on top of YaRN's own."""
    rope: dict[str, Any] = {
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0,
        "original_max_position_embeddings": 8,
    }  # fmt: skip
    if stated is not None:
        rope["attention_factor"] = stated
    config = transformers.Qwen2Config(
        vocab_size=N_VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        rope_parameters=rope, rms_norm_eps=1e-5, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.Qwen2ForCausalLM(config))
    meta = keys_of("qwen2", {
        "attention.head_count": 2, "attention.head_count_kv": 1, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 8,
        **({} if stated is None else {"rope.scaling.yarn_attn_factor": stated}),
    })  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", meta, renamed(model, LAYER, "model.layers."))
    same(got, model(torch.tensor([IDS])).logits)


def test_distilbert(tmp_path: Path) -> None:
    """A BERT without token types."""
    config = transformers.DistilBertConfig(
        vocab_size=N_VOCAB, dim=16, hidden_dim=24, n_layers=2, n_heads=4, activation="gelu_new",
        max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    model = randomised(transformers.DistilBertModel(config))
    meta = keys_of("bert", {
        "attention.causal": False, "attention.head_count_kv": 4,
        "attention.layer_norm_epsilon": 1e-12, "pooling_type": 0,
    }) | {"tokenizer.ggml.token_type_count": 2}  # fmt: skip
    got = weft_rows(tmp_path / "m.gguf", meta, renamed(model, DISTIL, "transformer.layer."))
    same(got, model(torch.tensor([IDS])).last_hidden_state)


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
