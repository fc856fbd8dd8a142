"""Folders whose config.json says what files of converters lack: the logits of transformers, or a
refusal that names the setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft import quants
from weft.errors import ContextError, FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.models import find_architecture

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")

IDS = folders.IDS
SHAPE, MOE, TIED, YARN = folders.SHAPE, folders.MOE, folders.TIED, folders.YARN
LATENT, SHARED, PLAIN = folders.LATENT, folders.SHARED, folders.PLAIN
WINDOWS = {"sliding_window": 5, "num_hidden_layers": 3,
           "layer_types": ["sliding_attention", "full_attention", "full_attention"]}  # fmt: skip
GEMMA = SHAPE | TIED | {"head_dim": 8, "query_pre_attn_scalar": 8}
DENSE_LATENT = {key: value for key, value in LATENT.items()
                if key.startswith(("kv_", "qk_", "v_", "num_key"))}  # fmt: skip
LONG = folders.LONG | {"factor": 2.0, "original_max_position_embeddings": 8}


def varied(name: str, **changes: Any) -> tuple[str, dict[str, Any], str]:
    """The model `name` of all folders with other settings."""
    kind, options, tokenizer = folders.MODELS[name]
    return kind, options | changes, tokenizer


# the class of transformers, its options, and the tokenizer
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a window everywhere": ("Mistral", SHAPE | {"sliding_window": 5}, "pieces"),
    "windows behind a layer": ("Qwen2", SHAPE | {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, "qwen2"),
    "windows of experts": ("Qwen3Moe", SHAPE | MOE | {
        "head_dim": 16, "use_sliding_window": True, "sliding_window": 5}, "qwen2"),
    "other windows, cohere2": ("Cohere2", SHAPE | TIED | WINDOWS, "gpt2"),
    "other windows, gemma3": ("Gemma3Text", GEMMA | WINDOWS, "pieces"),
    "rounded bounds, gpt-oss": ("GptOss", SHAPE | folders.MIXTURE | WINDOWS | {
        "head_dim": 16, "rope_parameters": YARN | {"truncate": True}}, "llama3"),
    "exact bounds": ("Qwen3", SHAPE | {
        "head_dim": 16, "rope_parameters": YARN | {"truncate": False}}, "qwen2"),
    "other windows, gpt-oss": ("GptOss", SHAPE | folders.MIXTURE | WINDOWS | {
        "head_dim": 16, "rope_parameters": YARN | {"truncate": False}}, "llama3"),
    "another scale": ("Gemma2", GEMMA | {"query_pre_attn_scalar": 20, "sliding_window": 6,
                                         "attn_logit_softcapping": None}, "pieces"),
    "an output of its own": ("Gemma3Text", GEMMA | {"tie_word_embeddings": False,
                                                    "sliding_window": 6}, "pieces"),
    "weights of experts": ("Qwen3Moe", SHAPE | MOE | {
        "head_dim": 16, "norm_topk_prob": False}, "qwen2"),
    "another base": ("Gemma", GEMMA | {"rope_parameters": PLAIN | {"rope_theta": 99.0}}, "pieces"),
    "small time steps, nemotron_h": varied("nemotron_h", mamba_dt_min=0.3),
    "bounds of time steps, mamba2": varied("mamba2", time_step_limit=[0.4, 0.9]),
    "bounds of time steps, falcon": ("FalconH1", SHAPE | folders.FALCON | {
        "time_step_limit": [0.3, 0.8]}, "gpt2"),
    "other layers rotate, smollm3": varied("smollm3", no_rope_layers=[0, 1, 1, 1]),
    **{f"dense layers {il}, {name}": varied(name, mlp_only_layers=[il])
       for il in (0, 1) for name in ("qwen2moe", "qwen3moe", "qwen3next")},
    "every second layer routed": varied("qwen2moe", decoder_sparse_step=2),
    "dense layers behind routed, exaone": varied("exaone moe", mlp_layer_types=[
        "sparse", "dense", "sparse", "dense"]),
    "dense layers behind routed, glm": varied("glm dsa", mlp_layer_types=["sparse", "dense"]),
    "dense layers behind routed, llama4": varied("llama4", moe_layers=[0, 3]),
    "biases of convolutions": varied("lfm2", conv_bias=True),
    "biases of convolutions, experts": varied("lfm2 moe", conv_bias=True),
    **{f"an odd vocabulary, {name}": varied(name, vocab_size=397)
       for name in ("granitehybrid", "bamba", "nemotron_h", "mamba2")},
    "another width, phi": varied("phi2", intermediate_size=96),
    "another width, gpt2": varied("gpt2", n_inner=96),
    "another width, starcoder": varied("starcoder", n_inner=96),
    "another width, falcon": varied("falcon", ffn_hidden_size=96, activation="gelu_pytorch_tanh"),
    "larger heads, chatglm": varied("chatglm", head_dim=16),
    "smaller chunks": varied("llama4", attention_chunk_size=6),
    "no chunks": varied("llama4", attention_chunk_size=None),
    "other layers rotate, llama4": varied("llama4", attention_chunk_size=6, no_rope_layers=[
        1, 0, 1, 1]),
    "other layers have chunks": varied("llama4", attention_chunk_size=6, layer_types=[
        "full_attention", "chunked_attention", "chunked_attention", "full_attention"]),
    **{f"biases of attention, {name}": varied(name, attention_bias=True)
       for name in ("cohere", "cohere2", "cohere2 moe")},
    "heads of one size, gemma4": varied("gemma4", global_head_dim=8, head_dim=8),
    "longrope": ("Llama", SHAPE | {"rope_parameters": LONG}, "pieces"),
    "llama3 of half a head": ("Glm4Moe", SHAPE | SHARED | {
        "head_dim": 16, "n_group": 1, "topk_group": 1, "pad_token_id": 0,
        "rope_parameters": folders.LLAMA3 | {"partial_rotary_factor": 0.5}}, "llama3"),
    "multipliers of yarn": ("Qwen3", SHAPE | {"head_dim": 16, "rope_parameters": YARN | {
        "mscale": 1.0, "mscale_all_dim": 0.7}}, "qwen2"),
    "yarn beside windows": ("Gemma3Text", GEMMA | {
        "sliding_window": 6, "num_hidden_layers": 7, "rope_parameters": {
            "sliding_attention": PLAIN,
            "full_attention": YARN | {"attention_factor": 1.3}}}, "pieces"),
    "biases with factors": ("FalconH1", SHAPE | folders.FALCON | {
        "attention_bias": True, "mamba_proj_bias": True, "tie_word_embeddings": True}, "gpt2"),
    "groups without effect": ("DeepseekV2", SHAPE | LATENT | {
        "q_lora_rank": None, "n_routed_experts": 8, "n_group": 2, "topk_method": "greedy"},
        "qwen2"),
    "a norm for each head": ("StableLm", SHAPE | {
        "use_parallel_residual": True, "use_qkv_bias": True, "qk_layernorm": True}, "gpt2"),
    # classes of architectures that others have, too, and new ones
    "cwm": ("Cwm", SHAPE | WINDOWS | {"head_dim": 16, "rope_parameters": folders.LLAMA3}, "llama3"),
    "ministral": ("Ministral", SHAPE | WINDOWS | {"head_dim": 16}, "llama3"),
    "solar open": ("SolarOpen", SHAPE | SHARED | {
        "head_dim": 16, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}, "gpt2"),
    "youtu": ("Youtu", SHAPE | DENSE_LATENT | {"q_lora_rank": 24}, "gpt2"),
    "mistral4": ("Mistral4", SHAPE | LATENT | {
        "q_lora_rank": 24, "n_group": 1, "rope_parameters": folders.TEMPERATURE}, "pieces"),
    "mimo2": ("MiMoV2Flash", SHAPE | {
        "head_dim": 16, "v_head_dim": 8, "attention_bias": True, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_hidden_layers": 4,
        "sliding_window": 5, "rope_parameters": {
            kind: rope | {"partial_rotary_factor": 0.5}
            for kind, rope in folders.BOTH_ROPES.items()}}, "gpt2"),
    "all layers see everything, exaone4": ("Exaone4", SHAPE | {
        "sliding_window": None, "layer_types": ["full_attention"] * 2}, "gpt2"),
    "biases behind activations, arcee": ("Arcee", SHAPE | {
        "hidden_act": "relu2", "mlp_bias": True}, "llama3"),
    "another stream, gemma3n": varied("gemma3n", altup_num_inputs=3, altup_active_idx=1),
    "all positions, deepseek32": varied("deepseek32", index_topk=64),
    "all positions, glm dsa": varied("glm dsa", index_topk=64),
    # scores that are near each other, which SparseMixer asks
    "magnitudes of phimoe": varied("phimoe", rope_parameters=folders.LONG | {
        "short_mscale": 1.2432, "long_mscale": 1.2432}),
    "many experts, phimoe": varied("phimoe", num_local_experts=16),
    "two low cycles, hrm_text": varied("hrm_text", L_cycles=2),
    **{f"magnitude {stated} of yarn": varied("qwen2", rope_parameters=YARN | {
        "factor": 8.0, "attention_factor": stated}) for stated in (1.0, 1.2079, 1.7)},
    "another epsilon, deepseek": ("DeepseekV2", SHAPE | LATENT | {
        "q_lora_rank": 24, "n_group": 1, "rms_norm_eps": 1e-3}, "qwen2"),
    "dense layers that rotate like others": varied(
        "cohere2 moe", prefix_dense_sliding_window_pattern=2),
    "bounds of a kind of layers": varied("mellum", head_dim=24, rope_parameters={
        **folders.BOTH_ROPES, "full_attention": YARN | {"rope_theta": 1e4, "truncate": False}}),
    "all layers have windows, muse": varied("muse-glimmer", layer_types=["sliding_attention"] * 4),
    "a layer that does not rotate, granite": varied(
        "granite windows", layer_rope_theta=[1e4, 0, 1e4, 1e4]),
    **{f"a stretched base, {name}": varied(name, rope_parameters=PLAIN | {
        "rope_type": "dynamic", "alpha": 30.0, "factor": 1.0})
       for name in ("hunyuan", "hunyuan moe")},
    "divisors of what does not rotate": varied(
        "granitehybrid dense", rope_parameters=folders.LLAMA3),
    "attention everywhere, qwen35": varied("qwen35", layer_types=["full_attention"] * 4),
    "attention everywhere, lfm2": varied("lfm2", layer_types=["full_attention"] * 2),
    "attention everywhere, nemotron_h": varied("nemotron_h moe", layers_block_type=[
        "full_attention", "moe"]),
    "glm4 moe lite": ("Glm4MoeLite", SHAPE | LATENT | {
        "q_lora_rank": 24, "n_group": 1, "routed_scaling_factor": 1.8,
        "mlp_layer_types": ["dense", "sparse"]}, "llama3"),
}  # fmt: skip

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "hidden_act.*relu.*silu": ("Llama", SHAPE | {"hidden_act": "relu"}, "pieces"),
    "hidden_activation.*silu.*gelu": ("Gemma2", GEMMA | {"hidden_activation": "silu"}, "pieces"),
    "rope_scaling.*'yarn'.*cohere2": ("Cohere2", SHAPE | TIED | {"rope_parameters": YARN}, "gpt2"),
    "rope_scaling.*'llama3'.*gemma3": ("Gemma3Text", GEMMA | {"rope_parameters": {
        "sliding_attention": PLAIN, "full_attention": folders.LLAMA3}}, "pieces"),
    "same short_mscale and long_mscale": varied("phimoe", rope_parameters=LONG | {
        "short_mscale": 1.0, "long_mscale": 1.2432}),
    "mscale_all_dim": ("DeepseekV3", SHAPE | LATENT | {
        "q_lora_rank": 24, "n_group": 2, "rope_parameters": YARN}, "qwen2"),
    "scale_attn_by_inverse_layer_idx": ("GPT2", folders.GPT | {
        "n_embd": 32, "n_positions": 64, "scale_attn_by_inverse_layer_idx": True}, "gpt2"),
    "rope_interleave": varied("deepseek3", rope_interleave=False),
    "mamba_hidden_act": varied("nemotron_h moe", mamba_hidden_act="gelu"),
    "hidden_act.*xielu": varied("apertus", hidden_act="silu"),
    "rope_theta.*attn_config": varied("dbrx", rope_parameters=PLAIN | {"rope_theta": 99.0}),
    "use_bidirectional_attention": varied("gemma3", use_bidirectional_attention=True),
    "altup_correct_scale": varied("gemma3n", altup_correct_scale=False),
    "swiglu_alpha": varied("gpt-oss", swiglu_alpha=1.5),
    "moe_router_logit_softcapping": varied("laguna", moe_router_logit_softcapping=0.3),
    "sliding_window.*null": varied("minimax 01", sliding_window=5),
    "layer_rope_theta": varied("granite windows", layer_rope_theta=[1e4, 9e3, 1e4, 1e4]),
    "partial_rotary_factor.*qk_rope_head_dim": varied(
        "deepseek3", rope_parameters=folders.LINEAR | {"partial_rotary_factor": 0.25}),
    "mscale": varied("ling3", rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}),
    "rope_parameters.*compress": varied("deepseek4", rope_parameters=folders.LLAMA3),
    "use_bidirectional_attention.*gemma ": varied("gemma", use_bidirectional_attention=True),
    "rope_parameters.*sliding_attention": varied("laguna", rope_parameters={
        kind: YARN for kind in folders.BOTH_ROPES}),
    "alibi": ("Falcon", folders.NO_KV | {"alibi": True}, "gpt2"),
}  # fmt: skip


def save(folder: Path, kind: str, options: dict[str, Any], tokenizer: str) -> Any:
    model = folders.writer(kind, options)
    model.save_pretrained(folder)
    folders.save_tokenizer(tokenizer, folder)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, *MODELS[name])
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    with torch.no_grad():
        want = model(torch.tensor([IDS])).logits[0].numpy()
    assert want.std() > 0.05
    for path in (tmp_path, tmp_path / "m.gguf"):
        got = folders.logits(path, n_ubatch=7)
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("match", REFUSED)
def test_refused(tmp_path: Path, match: str) -> None:
    save(tmp_path, *REFUSED[match])
    with pytest.raises(FormatError, match=match):
        open_model(tmp_path)


def test_without_the_size_of_a_head(tmp_path: Path) -> None:
    """config.json of LLaMA 2 and 3 has none."""
    save(tmp_path, "Llama", SHAPE, "pieces")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["head_dim"]
    path.write_text(json.dumps(config))
    assert Model.open(tmp_path).config.head_dim_k == 8


def test_what_is_no_model_of_text(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"'clip'.*turns images or sounds into rows"):
        find_architecture("clip")
    with pytest.raises(FormatError, match=r"'qwen5'.*names alike: qwen"):
        find_architecture("qwen5")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen5ForCausalLM"]}))
    with pytest.raises(FormatError, match=r"'Qwen5ForCausalLM'.*alike: Qwen"):
        open_model(tmp_path)


def test_a_base_that_depends_on_the_length(tmp_path: Path) -> None:
    """As in training up to its length; transformers has another base beyond it."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = save(tmp_path, *varied("llama", rope_parameters=rope, max_position_embeddings=64))
    with torch.no_grad():
        want = model(torch.tensor([IDS])).logits[0].numpy()
    got = folders.logits(tmp_path)
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max(), rtol=0)
    convert_folder(tmp_path, tmp_path / "m.gguf")
    for path in (tmp_path, tmp_path / "m.gguf"):
        with pytest.raises(ContextError, match=r"rope_scaling dynamic.*beyond 64 tokens"):
            Context(Model.open(path), 65, devices=["reference"])


# models, and keys of their files that converters leave out
LACKING: dict[str, tuple[str, ...]] = {
    "a window everywhere": ("attention.sliding_window", "attention.sliding_window_pattern"),
    "windows of experts": ("attention.sliding_window", "attention.sliding_window_pattern"),
    "weights of experts": ("expert_weights_norm",),
    "another scale": ("attention.scale", "final_logit_softcapping"),
    "small time steps, nemotron_h": ("ssm.time_step_min",),
    "another epsilon, deepseek": ("attention.latent_norm_rms_epsilon",),
    "longrope": ("rope.scaling.type", "rope.scaling.attn_factor", "rope_factors_long.weight",
                 "rope_factors_short.weight", "rope.scaling.original_context_length"),
}  # fmt: skip


@pytest.mark.parametrize("name", LACKING)
def test_a_file_that_lacks_settings_beside_config_json(tmp_path: Path, name: str) -> None:
    model = save(tmp_path / "folder", *MODELS[name])
    convert_folder(tmp_path / "folder", tmp_path / "whole.gguf", "f32")
    alone, beside = tmp_path / "alone.gguf", tmp_path / "folder" / "m.gguf"
    with open_gguf(tmp_path / "whole.gguf") as whole:
        gone = {f"{whole.architecture}.{key}" for key in LACKING[name]} | {*LACKING[name]}
        keys = {k: v for k, v in whole.copy_metadata().items() if k not in gone}
        tensors = [(t.name, t.dtype, t.shape[::-1], lambda t=t: t.data)
                   for t in whole.tensors.values() if t.name not in gone]  # fmt: skip
        assert len(keys) + len(tensors) < len(whole.metadata) + len(whole.tensors)
        write_gguf(alone, keys, tensors)
        write_gguf(beside, keys, tensors)
    with torch.no_grad():
        want = model(torch.tensor([IDS])).logits[0].numpy()
    near = 1e-4 * np.abs(want).max()
    np.testing.assert_allclose(folders.logits(beside), want, atol=near, rtol=0)
    assert np.abs(folders.logits(alone) - want).max() > 5 * near
    (note,) = open_model(beside).notes
    assert note.startswith("config.json beside the file says what the file lacks: ")
    assert LACKING[name][0] in note and open_model(alone).notes == ()


def test_what_a_file_says_itself_counts(tmp_path: Path) -> None:
    save(tmp_path, *MODELS["a window everywhere"])
    convert_folder(tmp_path, tmp_path / "m.gguf")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for change, window in (
        ({"sliding_window": 7}, 5),  # the file has one
        ({"hidden_size": 64}, 5),  # another model
        ({"architectures": ["Qwen2ForCausalLM"]}, 5),
        ({"architectures": ["None"]}, 5),
    ):
        path.write_text(json.dumps(config | change))
        file = open_model(tmp_path / "m.gguf")
        assert file.get_int("llama.attention.sliding_window") == window and not file.notes
    for text in ("", "[]", "{", '{"architectures": 5}'):
        path.write_text(text)
        assert open_model(tmp_path / "m.gguf").notes == ()


def test_deepseek4_as_it_is_published(tmp_path: Path) -> None:
    """The names and keys of published folders, FP8 with scales beside it and experts in MXFP4."""
    from safetensors.torch import load_file, save_file

    name, options, _ = varied("deepseek4", moe_intermediate_size=32, intermediate_size=32)
    model = folders.made_model(name, "ForCausalLM", options)
    model.save_pretrained(tmp_path)
    folders.save_tokenizer("qwen2", tmp_path)
    plain = load_file(tmp_path / "model.safetensors")
    numbers = np.random.default_rng(7)
    other = {}
    for old, tensor in plain.items():
        new = (
            old.removeprefix("model.")
            .replace("embed_tokens", "embed")
            .replace("hc_head.hc_", "hc_head_")
        )
        new = new.replace("attn.norm", "attn.kv_norm")
        if ".experts." in new and "shared" not in new:
            codes = numbers.integers(0, 256, (tensor.shape[0], tensor.shape[1] // 2), np.uint8)
            scales = numbers.integers(120, 126, (tensor.shape[0], tensor.shape[1] // 32), np.uint8)
            table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
            table = torch.cat([table, -table])
            each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), -1)
            by = torch.from_numpy(2.0 ** (scales.astype(np.float32) - 127)).repeat_interleave(32, 1)
            plain[old] = (table[torch.from_numpy(each.astype(np.int64))] * by).float()
            other[new] = torch.from_numpy(codes).view(torch.int8)
            other[new.replace(".weight", ".scale")] = torch.from_numpy(scales).view(
                torch.float8_e8m0fnu
            )
        elif new.endswith("wq_b.weight"):
            other[new] = (tensor * 8).to(torch.float8_e4m3fn)
            shape = [-(-n // 128) for n in tensor.shape]
            other[new.replace(".weight", ".scale")] = torch.full(shape, 0.125).to(
                torch.float8_e8m0fnu
            )
            plain[old] = other[new].float() / 8
        else:
            other[new] = tensor.contiguous()
    save_file({old: tensor.contiguous() for old, tensor in plain.items()},
              tmp_path / "model.safetensors")  # fmt: skip
    config = json.loads((tmp_path / "config.json").read_text())
    published = tmp_path / "published"
    published.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (published / file).write_bytes((tmp_path / file).read_bytes())
    save_file(other | {"mtp.0.norm.weight": torch.zeros(3)}, published / "model.safetensors")
    gone = ("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters")
    config = {key: value for key, value in config.items() if key not in gone}
    scaling = {key: value for key, value in YARN.items() if key not in ("rope_type", "rope_theta")}
    config |= {
        "compress_ratios": [0, 4, 8, 0], "num_hash_layers": 1, "rope_theta": 10000.0,
        "rope_scaling": scaling | {"type": "yarn"}, "compress_rope_theta": 160000.0,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }  # fmt: skip
    (published / "config.json").write_text(json.dumps(config))
    want, got = open_model(tmp_path), open_model(published)
    assert set(want.tensors) == set(got.tensors)
    kinds = {"ffn_gate_exps": "mxfp4", "attn_q_b": "bf16", "ffn_gate_tid2eid": "i32"}
    for tensor_name, t in got.tensors.items():
        kind = kinds.get(tensor_name.split(".")[-2])
        assert kind is None or t.dtype.name == kind
        a, b = (
            x.data if x.dtype.name == "i32" else quants.decode(x.data, x.dtype)
            for x in (t, want.tensors[tensor_name])
        )
        np.testing.assert_array_equal(a.reshape(-1), b.reshape(-1), err_msg=tensor_name)
    keys = {key for key in want.metadata if key.startswith("deepseek4.")}
    keys.remove("deepseek4.attention.compress_ratios")  # there is one more, for a layer that drafts
    assert [k for k in keys if str(want.metadata[k]) != str(got.metadata.get(k))] == []
    convert_folder(published, tmp_path / "m.gguf", "f32")
    np.testing.assert_allclose(
        folders.logits(tmp_path / "m.gguf", device="reference"),
        folders.logits(tmp_path, device="reference"), atol=0.05, rtol=0,
    )  # fmt: skip


def test_deepseek_ocr_as_it_is_published(tmp_path: Path) -> None:
    """The text is under the name of DeepSeek-V2's class, which has no latent attention there."""
    folders.make_folder("deepseek2 ocr", tmp_path)
    want = folders.logits(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    text = config.pop("text_config")
    rest = ("architectures", "head_dim", "mlp_layer_types", "model_type", "rope_parameters")
    text = {key: value for key, value in text.items() if key not in rest}
    text |= {"architectures": ["DeepseekV2ForCausalLM"], "use_mla": False, "kv_lora_rank": None,
             "qk_rope_head_dim": 0, "v_head_dim": 0, "first_k_dense_replace": 1}  # fmt: skip
    config |= {"architectures": ["DeepseekOCR2ForCausalLM"], "language_config": text}
    path.write_text(json.dumps(config))
    tokenizer = tmp_path / "tokenizer_config.json"
    settings = json.loads(tokenizer.read_text())
    del settings["chat_template"]
    tokenizer.write_text(json.dumps(settings))
    file = open_model(tmp_path)
    assert file.architecture == "deepseek2-ocr"
    assert file.get_int("deepseek2-ocr.rope.dimension_count") == 0
    assert "m['content']" in file.get_str("tokenizer.chat_template")
    np.testing.assert_array_equal(folders.logits(tmp_path), want)


def test_dots3note_as_it_is_published(tmp_path: Path) -> None:
    """Sizes of layers with a window are keys of their own, and norms are scaled where config.json
    says so; what files have no place for is refused."""
    folders.make_folder("dots3note", tmp_path)
    want = folders.logits(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    sizes = {name: config[name] for name in ("q_lora_rank", "qk_rope_head_dim")}
    sizes |= config.pop("per_layer_config")["1"]
    rope = config.pop("rope_parameters")
    gone = ("mlp_layer_types", "sliding_window", "shared_experts_intermediate_size")
    config = {key: value for key, value in config.items() if key not in gone}
    config |= {f"swa_{name}": value for name, value in sizes.items()} | {
        "architectures": ["Dots3NoteForConditionalGeneration"], "apply_mla_qkv_lora_rescale": True,
        "rope_theta": rope["indexed_attention"]["rope_theta"], "sliding_window_size": 6,
        "swa_rope_theta": rope["sliding_attention"]["rope_theta"], "first_k_dense_replace": 1,
        "moe_shared_expert_intermediate_size": 20, "scoring_func": "sigmoid",
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }  # fmt: skip
    path.write_text(json.dumps(config))
    np.testing.assert_array_equal(folders.logits(tmp_path), want)
    path.write_text(json.dumps(config | {"apply_mla_qkv_lora_rescale": False}))
    assert np.abs(folders.logits(tmp_path) - want).max() > 0.1
    wrong = {"use_dsa": False, "swa_attention_gate_type": "none", "swa_q_lora_rank": 8,
             "layer_types": ["full_attention"] * 3}  # fmt: skip
    for key, value in wrong.items():
        path.write_text(json.dumps(config | {key: value}))
        with pytest.raises(FormatError, match=key.removeprefix("swa_q_")):
            open_model(tmp_path)


@pytest.mark.parametrize("empty", [None, ""])
def test_a_template_beside_an_empty_one(tmp_path: Path, empty: str | None) -> None:
    save(tmp_path, "Llama", SHAPE, "llama3")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": empty}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert open_model(tmp_path).get_str("tokenizer.chat_template") == "{{ messages }}"
