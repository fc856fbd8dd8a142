"""Folders of models that transformers does not have: those of a model that it has and that computes
the same, with the tensors and the config of the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm.model import Model

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
load_file = pytest.importorskip("safetensors.torch").load_file

IDS = folders.IDS
HEADS, KV, DIM = 4, 2, 8


def fused(state: dict[str, Any], old: str, new: str, *parts: str) -> dict[str, Any]:
    """Joins the tensors `old` of each layer, in which `*` stands for each of `parts`."""
    out = {}
    for name, t in state.items():
        hits = [part for part in parts if old.replace("*", part) in name]
        if not hits:
            out[name] = t
        elif hits[0] == parts[0]:
            every = [state[name.replace(old.replace("*", hits[0]), old.replace("*", p))]
                     for p in parts]  # fmt: skip
            out[name.replace(old.replace("*", hits[0]), new)] = torch.cat(every)
    return out


def renamed(state: dict[str, Any], *pairs: tuple[str, str]) -> dict[str, Any]:
    out = {}
    for name, t in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = t
    return out


def baichuan(state: dict[str, Any]) -> dict[str, Any]:
    return fused(state, "self_attn.*_proj", "self_attn.W_pack", "q", "k", "v")


def internlm2(state: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for name, t in state.items():
        stem = name.partition("self_attn.")[0]
        if "q_proj" in name:
            q, k, v = (state[f"{stem}self_attn.{p}_proj.weight"] for p in "qkv")
            each = [x.reshape(KV, -1, DIM, 32) for x in (q, k, v)]
            out[f"{stem}attention.wqkv.weight"] = torch.cat(each, 1).reshape(-1, 32)
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            out[name] = t
    return renamed(
        out, ("embed_tokens", "tok_embeddings"), ("lm_head", "output"),
        ("self_attn.o_proj", "attention.wo"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"), ("mlp.up_proj", "feed_forward.w3"),
    )  # fmt: skip


def exaone(state: dict[str, Any]) -> dict[str, Any]:
    return renamed(
        state, ("model.layers", "transformer.h"), ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"), ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"), ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"),
    )  # fmt: skip


def codeshell(state: dict[str, Any]) -> dict[str, Any]:
    state = fused(state, "self_attn.*_proj", "attn.c_attn", "q", "k", "v")
    return renamed(
        state, ("model.layers", "transformer.h"), ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"), ("self_attn.o_proj", "attn.c_proj"),
    )  # fmt: skip


def deepseek(state: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for name, t in state.items():
        mlp = name.partition("block_sparse_moe")[0] + "mlp."
        shared = name.partition("shared_mlp")[0] + "mlp.shared_experts."
        if name.endswith("experts.gate_up_proj"):
            gates, ups = t.chunk(2, 1)
            for i in range(len(t)):
                out[f"{mlp}experts.{i}.gate_proj.weight"] = gates[i]
                out[f"{mlp}experts.{i}.up_proj.weight"] = ups[i]
        elif name.endswith("moe.experts.down_proj"):
            for i in range(len(t)):
                out[f"{mlp}experts.{i}.down_proj.weight"] = t[i]
        elif name.endswith("moe.router.weight"):
            out[f"{mlp}gate.weight"] = t
        elif name.endswith("shared_mlp.input_linear.weight"):
            out[f"{shared}gate_proj.weight"], out[f"{shared}up_proj.weight"] = t.chunk(2)
        elif name.endswith("shared_mlp.output_linear.weight"):
            out[f"{shared}down_proj.weight"] = t
        else:
            out[name] = t
    return out


def bailing(state: dict[str, Any]) -> dict[str, Any]:
    state = fused(deepseek(state), "self_attn.*_proj", "attention.query_key_value", "q", "k", "v")
    return renamed(
        state, ("self_attn.o_proj", "attention.dense"), ("embed_tokens", "word_embeddings")
    )


def ling(state: dict[str, Any]) -> dict[str, Any]:
    state = fused(split(state), "self_attn.*_proj", "attention.query_key_value", "q", "k", "v")
    return renamed(
        state, ("self_attn.o_proj", "attention.dense"), ("embed_tokens", "word_embeddings"),
        ("self_attn.q_norm", "attention.query_layernorm"),
        ("self_attn.k_norm", "attention.key_layernorm"),
        ("e_score_correction_bias", "expert_bias"),
    )  # fmt: skip


def split(state: dict[str, Any]) -> dict[str, Any]:
    """A tensor for each expert."""
    out = {}
    for name, t in state.items():
        stem = name.partition(".experts.")[0]
        if name.endswith("experts.gate_up_proj"):
            for i, expert in enumerate(t):
                parts = zip(("gate", "up"), expert.chunk(2), strict=True)
                out |= {f"{stem}.experts.{i}.{p}_proj.weight": part for p, part in parts}
        elif name.endswith("experts.down_proj"):
            out |= {f"{stem}.experts.{i}.down_proj.weight": x for i, x in enumerate(t)}
        else:
            out[name] = t
    return out


def maincoder(state: dict[str, Any]) -> dict[str, Any]:
    """Adjacent pairs rotate."""
    order = torch.arange(DIM).reshape(2, -1).T.reshape(-1)
    out = {}
    for name, t in state.items():
        if "q_proj" in name or "k_proj" in name or "y_layernorm" in name:
            t = t.reshape(-1, DIM, *t.shape[1:])[:, order].reshape(t.shape)
        out[name] = t
    return renamed(out, ("query_layernorm", "q_norm"), ("key_layernorm", "k_norm"))


def deci(state: dict[str, Any]) -> dict[str, Any]:
    """The first layer has a key for each query, the second no attention, the third nothing behind
    attention."""
    out = {}
    for name, t in state.items():
        if "layers.0.self_attn" in name and ("k_proj" in name or "v_proj" in name):
            t = t.reshape(KV, DIM, -1).repeat_interleave(HEADS // KV, 0).reshape(HEADS * DIM, -1)
        if ("layers.1." in name and ("o_proj" in name or "input_layernorm" in name)) or (
            "layers.2." in name and ("down_proj" in name or "post_attention" in name)
        ):
            t.zero_()  # of the model, too
        elif not ("layers.1.self_attn" in name or "layers.2.mlp" in name):
            out[name] = t
    return out


def as_is(state: dict[str, Any]) -> dict[str, Any]:
    return state


SHAPE, MIXTURE = folders.SHAPE, folders.MIXTURE
ALL = SHAPE | {"num_key_value_heads": HEADS}
NEUTRAL = {"attention_multiplier": DIM**-0.5, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
           "residual_multiplier": 1.0, "shared_intermediate_size": 32, "intermediate_size": 16,
           "num_local_experts": 4}  # fmt: skip
MOE: dict[str, Any] = {
    "moe_intermediate_size": 16, "first_k_dense_replace": 0, "num_local_experts": None,
}  # fmt: skip
# the class of transformers and its options, the class of the folder and its options, the tensors
MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], Any, str]] = {
    "baichuan": ("Llama", ALL, "Baichuan", {}, baichuan, "model"),
    "bailingmoe": ("GraniteMoeShared", SHAPE | NEUTRAL | {"num_experts_per_tok": 2}, "BailingMoe",
                   MOE | {"num_experts": 4, "num_shared_experts": 2, "norm_topk_prob": True,
                          "intermediate_size": 48}, bailing, "gpt2"),
    "codeshell": ("Starcoder2", SHAPE | {"intermediate_size": 128}, "CodeShell",
                  {"n_positions": 64, "n_embd": 32, "n_head": HEADS, "num_query_groups": KV,
                   "n_layer": 2, "layer_norm_epsilon": 1e-5}, codeshell, "gpt2"),
    "deepseek": ("GraniteMoeShared", SHAPE | NEUTRAL | {"num_experts_per_tok": 4}, "Deepseek",
                 MOE | {"n_routed_experts": 4, "n_shared_experts": 2, "intermediate_size": 48},
                 deepseek, "gpt2"),
    "bailingmoe2": ("Dots1", SHAPE | folders.SHARED | {
        "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "n_routed_experts": 8, "head_dim": 8},
        "BailingMoeV2", {"num_shared_experts": 1, "num_experts": 8, "score_function": "sigmoid",
                         "partial_rotary_factor": 1.0}, ling, "gpt2"),
    "bailingmoe2 sarvam": ("Dots1", SHAPE | folders.SHARED | {
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "head_dim": 8}, "SarvamMoE",
        {"num_shared_experts": 1, "num_experts": 4, "score_function": "sigmoid"}, ling, "gpt2"),
    "deci": ("Llama", SHAPE | {"num_hidden_layers": 3, "intermediate_size": 256}, "DeciLM",
             {"num_key_value_heads": None, "intermediate_size": None, "block_configs": [
                 {"attention": {"n_heads_in_group": heads}, "ffn": {"ffn_mult": mult}}
                 for heads, mult in ((1, 12.0), (None, 12.0), (2, None))]}, deci, "pieces"),
    "exaone": ("Llama", SHAPE | {"rope_parameters": folders.LLAMA3}, "Exaone",
               {"num_layers": 2, "layer_norm_epsilon": 1e-5}, exaone, "gpt2"),
    "internlm2": ("Llama", SHAPE | {"vocab_size": 380}, "InternLM2", {}, internlm2, "model"),
    "maincoder": ("HunYuanDenseV1", SHAPE | {"head_dim": DIM}, "Maincoder", {}, maincoder, "gpt2"),
    "pangu-embedded": ("Llama", SHAPE | {"attention_bias": True}, "PanguEmbedded", {}, as_is,
                       "pieces"),
    "orion": ("StableLm", SHAPE | {"rope_parameters": folders.PLAIN | {
        "partial_rotary_factor": 1.0}, "layer_norm_eps": 1e-5}, "Orion", {}, as_is, "model"),
    "xverse": ("Llama", ALL | {"vocab_size": 380}, "Xverse", {}, as_is, "pieces"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_the_same_model(tmp_path: Path, name: str) -> None:
    kind, options, cls, changes, change, tokenizer = MODELS[name]
    model = folders.made_model(kind, "ForCausalLM", options)
    model.save_pretrained(tmp_path)  # for config.json
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | changes | {"architectures": [f"{cls}ForCausalLM"]}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    tensors = {key: t.contiguous() for key, t in change(model.state_dict()).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    folders.save_tokenizer(tokenizer, tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    with torch.no_grad():
        want = model(torch.tensor([IDS])).logits[0].numpy()
    assert want.std() > 0.05
    for path in (tmp_path, tmp_path / "m.gguf"):
        context = folders.context(path)
        assert context.model.file.architecture == name.split()[0]
        got = context.decode(IDS, outputs="all")
        np.testing.assert_allclose(got[:, :350], want[:, :350], atol=5e-5 * np.abs(want).max())


def test_refact(tmp_path: Path) -> None:
    """Its attention has positions as slopes, which no model of transformers has beside the rest:
    the tensors are where they should be."""
    random = torch.manual_seed(1)
    shapes = {
        "transformer.wte.weight": (400, 32), "transformer.ln_f.weight": (32,),
        "lm_head.weight": (400, 32), "transformer.h.0.ln_1.weight": (32,),
        "transformer.h.0.attn.q.weight": (32, 32), "transformer.h.0.attn.kv.weight": (16, 32),
        "transformer.h.0.attn.c_proj.weight": (32, 32), "transformer.h.0.ln_2.weight": (32,),
        "transformer.h.0.mlp.gate_up_proj.weight": (512, 32),
        "transformer.h.0.mlp.c_proj.weight": (32, 256),
    }  # fmt: skip
    state = {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    save_file(state, tmp_path / "model.safetensors")
    config = {"architectures": ["GPTRefactForCausalLM"], "n_positions": 64, "n_embd": 32,
              "n_layer": 1, "n_head": 4, "layer_norm_epsilon": 1e-5, "vocab_size": 400}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    folders.save_tokenizer("gpt2", tmp_path)
    opened = Model(open_model(tmp_path))
    assert opened.config.n_ff() == 256 and opened.config.n_head_kv(0) == 1
    layer = opened.weights.layer(0)
    kv, both = (state[f"transformer.h.0.{n}.weight"] for n in ("attn.kv", "mlp.gate_up_proj"))
    for part, want in (("attn_k", kv[:8]), ("attn_v", kv[8:]), ("ffn_gate", both[:256]),
                       ("ffn_up", both[256:])):  # fmt: skip
        info = opened.file.tensors[f"blk.0.{part}.weight"]
        assert tuple(layer[f"{part}.weight"].ne[:2]) == tuple(want.shape[::-1])
        np.testing.assert_array_equal(info.data.view(np.float32).reshape(want.shape), want)


def test_ling3_as_its_makers_publish_it(tmp_path: Path) -> None:
    """config.json has other names for sizes than transformers saves, no kind of each layer, and
    limits of the gated products."""
    folders.make_folder("ling3", tmp_path)
    want = folders.logits(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    saved = ("layer_types", "linear_head_dim", "moe_renormalize", "num_expert_group",
             "num_experts_per_token", "model_max_length")  # fmt: skip
    ours = {
        "architectures": ["BailingMoeV3ForCausalLM"], "head_dim": config["linear_head_dim"],
        "norm_topk_prob": True, "n_group": 2, "num_experts_per_tok": 2, "no_kda_lora": True,
        "max_position_embeddings": 64, "gated_attention_proj_granularity_type": "head_wise",
    }  # fmt: skip
    config = {key: value for key, value in config.items() if key not in saved} | ours
    path.write_text(json.dumps(config))
    np.testing.assert_array_equal(folders.logits(tmp_path), want)
    path.write_text(json.dumps(config | {"expert_swiglu_limit_list": [None, None, 0.1, 0.1]}))
    assert np.abs(folders.logits(tmp_path) - want).max() > 1e-3
    path.write_text(json.dumps(config | {"kda_safe_gate": False}))
    with pytest.raises(FormatError, match="kda_safe_gate"):
        folders.logits(tmp_path)


@pytest.mark.parametrize(
    ("name", "cls", "arch"),
    [
        ("qwen3vlmoe", "Qwen3OmniMoeForConditionalGeneration", "qwen3vlmoe"),
        ("qwen2vl", "Qwen2_5OmniModel", "qwen2vl"),
        ("qwen3vl", "Qwen3ASRForConditionalGeneration", "qwen3vl"),
    ],
)
def test_the_part_that_writes(tmp_path: Path, name: str, cls: str, arch: str) -> None:
    """Models that hear and speak have the text model inside, beside a tower and a voice."""
    folders.make_folder(name, tmp_path)
    want = folders.logits(tmp_path)
    path, tensors = tmp_path / "config.json", tmp_path / "model.safetensors"
    text = json.loads(path.read_text())["text_config"]
    config = {"architectures": [cls], "thinker_config": {"text_config": text, "audio_config": {}}}
    path.write_text(json.dumps(config))
    state = {f"thinker.{key.replace('language_model.', '')}": t
             for key, t in load_file(tensors).items() if "visual" not in key}  # fmt: skip
    extra = ("thinker.audio_tower.conv.weight", "talker.model.norm.weight", "code2wav.x.weight")
    save_file(state | {key: torch.ones(3) for key in extra}, tensors)
    opened = Model(open_model(tmp_path))
    assert opened.file.architecture == arch and opened.config.n_deepstack == 0
    np.testing.assert_array_equal(folders.logits(tmp_path), want)
