"""Architectures of the llama, qwen, olmo, phi and gemma lines: tiny models made up from their own
weight tables, with options that the golden models do not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm import plain_llama
from tests.llm.tiny import metadata, write_model
from tests.vectors import models
from tests.vectors.result import Options
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.context import Context
from weft.llm.config import ModelConfig
from weft.llm.config_keys import Keys, read_config
from weft.llm.model import Model
from weft.llm.models import ARCHITECTURES
from weft.llm.weights import Row

TOKENS = [1, *range(250, 268), 5, 9]
Tensors = dict[str, NDArray[np.float32]]

EXPERTS = {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 10}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
    "attention.key_length": 8,
    "attention.value_length": 8,
}
WINDOW = {"attention.sliding_window": 6}
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

# name: architecture, and what its metadata has besides that of a tiny llama
MODELS: dict[str, tuple[str, dict[str, object]]] = {
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


def keys_of(arch: str, changes: dict[str, object]) -> dict[str, object]:
    """Metadata of a tiny model; `changes` without the architecture's prefix."""
    meta = metadata()
    own = {key.split(".", 1)[1]: meta.pop(key) for key in list(meta) if key.startswith("llama.")}
    own["attention.layer_norm_epsilon"] = 1e-5
    named = {f"{arch}.{key}": value for key, value in (own | changes).items()}
    for name in ("alpha_n", "alpha_p", "beta", "eps") if arch == "apertus" else ():
        named[f"xielu.{name}"] = np.linspace(-0.2, 0.6, 4).astype(np.float32)
    return meta | {"general.architecture": arch} | named


def configure(tmp_path: Path, meta: dict[str, object]) -> ModelConfig:
    """The config that `meta` gives."""
    path = write_model(tmp_path / "config.gguf", meta, {"x": np.zeros(1, np.float32)})
    file = open_gguf(path)
    return ARCHITECTURES[file.architecture].configure(read_config(file), Keys(file))


def plain(row: Row) -> bool:
    """Leaves out what stands for other tensors, and scales."""
    fused = ("gate_up_exps", "rope_", "time_mix_lerp_fused", "ssm_in")
    if "attn_qkv" in row.name and not row.unless:
        return False
    return not any(name in row.name for name in fused) and not row.name.endswith(
        (".scale", "ffn_norm")
    )


def made_up(config: ModelConfig, wanted: Callable[[Row], bool] = plain) -> Tensors:
    """Random weights for the wanted rows of the table and those that must be there."""
    random = np.random.default_rng(0)
    tensors: Tensors = {}
    for row in ARCHITECTURES[config.arch].table(config):
        if not wanted(row) and (row.optional or row.unless):
            continue
        x = random.standard_normal(row.ne[::-1])
        if row.name.endswith((".bias", ".scale")) or "norm" in row.name or "rope_" in row.name:
            x = 0.2 * x + (not row.name.endswith(".bias"))
        else:
            x *= 1.5 / np.sqrt(row.ne[0]) * (4 if row.name.startswith("token_embd") else 1)
        x = -np.abs(x) if row.name.endswith("ssm_a") else x  # states decay
        tensors[row.name] = x.astype(np.float32)
    return tensors


def context(path: Path, **options: Any) -> Context:
    return Context(
        Model.open(path), 48, type_k="f32", type_v="f32", devices=["reference"], **options
    )


@pytest.fixture(params=MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, object], Tensors, Path]:
    """Metadata, weights and file of each model."""
    arch, changes = MODELS[request.param]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    return meta, tensors, write_model(tmp_path / "m.gguf", meta, tensors)


Tiny = tuple[dict[str, object], Tensors, Path]


def test_batches_single_tokens_and_both_attentions_agree(tiny: Tiny) -> None:
    want = context(tiny[2]).decode(TOKENS, outputs="all")
    assert 0.5 < np.abs(want).max() < 1e3
    single = context(tiny[2], n_ubatch=1, flash=False).decode(TOKENS, outputs="all")
    np.testing.assert_allclose(single, want, atol=1e-4, rtol=0)


def test_moved_positions_are_as_if_computed_there(tiny: Tiny) -> None:
    """All of these models know relative positions only; the K-shift has to turn each layer's keys
    as that layer does, and not change their length."""
    distance = 12 if tiny[0]["general.architecture"] == "llama4" else 9  # two chunks of 6
    moved = context(tiny[2])
    moved.decode(TOKENS[:-1])
    moved.cache.seq_add(0, -1, -1, distance)
    got = moved.decode(TOKENS[-1:])
    there = context(tiny[2])
    positions = np.arange(len(TOKENS)) + distance
    np.testing.assert_allclose(got, there.decode(TOKENS, positions)[-1:], atol=2e-4, rtol=0)


def test_fused_projections_agree_with_separate_ones(tmp_path: Path, tiny: Tiny) -> None:
    meta, tensors, path = tiny
    fused: Tensors = {}
    for name, array in tensors.items():
        if ".attn_q." in name and name.replace("_q.", "_v.") in tensors:
            parts = [tensors[name.replace("_q.", f"_{part}.")] for part in "qkv"]
            fused[name.replace("_q.", "_qkv.")] = np.concatenate(parts)
        elif ".attn_k." not in name and ".attn_v." not in name:
            fused[name] = array
    got = context(write_model(tmp_path / "f.gguf", meta, fused)).decode(TOKENS, outputs="all")
    want = context(path).decode(TOKENS, outputs="all")
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_fused_and_separate_projections_together_are_refused(tmp_path: Path) -> None:
    meta = keys_of("qwen2", {})
    both = made_up(configure(tmp_path, meta), lambda row: "rope_" not in row.name)
    assert "blk.0.attn_qkv.weight" in both and "blk.0.attn_q.weight" in both
    with pytest.raises(FormatError, match=r"does not use here \(blk\.0\.attn_q\.weight"):
        Model.open(write_model(tmp_path / "m.gguf", meta, both))


def test_scales_are_those_of_the_matrices(tmp_path: Path, tiny: Tiny) -> None:
    meta = tiny[0]
    config = configure(tmp_path, meta)
    scaled = made_up(config, lambda row: plain(row) or row.name.endswith(".scale"))
    scaled = {name: a for name, a in scaled.items() if "qkv" not in name}
    own = "ffn_gate_inp.scale"  # of the router's input, in models that have it
    folded = {name: a for name, a in scaled.items() if not name.endswith(".scale") or own in name}
    n_scales = 0
    for name in scaled.keys() - folded.keys():
        matrix = name.replace(".scale", ".weight")
        factor = scaled[name].reshape(-1, 1, 1) if "exps" in name else scaled[name]
        folded[matrix] = folded[matrix] * factor
        n_scales += 1
    assert n_scales >= 6 * config.n_layer
    got, want = (
        context(write_model(tmp_path / f"{i}.gguf", meta, each)).decode(TOKENS, outputs="all")
        for i, each in enumerate((scaled, folded))
    )
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_every_tensor_of_a_file_is_used(tiny: Tiny) -> None:
    model = Model.open(tiny[2])
    graph = model.build(KVCache(model.config, 8), n_ubatch=4, n_outputs=4)
    assert set(model.weights) - {leaf.name for leaf in graph.leaves} == set()


# -- models whose blocks are those of another ------------------------------------------------------

BLOCKS = {
    "baichuan": "llama", "internlm2": "llama", "xverse": "llama", "exaone": "qwen2",
    "qwen": "qwen2",
    "orion": "stablelm", "codeshell": "starcoder2", "deepseek": "granitemoe",
    "bailingmoe": "granitemoe",
}  # fmt: skip


@pytest.mark.parametrize("arch", BLOCKS)
def test_the_same_blocks_have_the_same_logits(tmp_path: Path, arch: str) -> None:
    """As another architecture, which is held against transformers or golden models."""
    moe: dict[str, object] = {}
    if BLOCKS[arch] == "granitemoe":
        moe = EXPERTS | {"expert_shared_count": 2, "leading_dense_block_count": 1,
                         "expert_weights_norm": False}  # fmt: skip
    meta = keys_of(arch, moe | ({"feed_forward_length": 48} if arch == "qwen" else {}))
    other = keys_of(BLOCKS[arch], moe)
    tensors = made_up(configure(tmp_path, meta))
    got = context(write_model(tmp_path / "a.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    want = context(write_model(tmp_path / "b.gguf", other, tensors)).decode(TOKENS, outputs="all")
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("arch", "n_layer"), [("refact", 2), ("baichuan", 40)])
def test_biases_in_place_of_a_rotation(tmp_path: Path, arch: str, n_layer: int) -> None:
    meta = keys_of(arch, {"block_count": n_layer})
    tensors = made_up(configure(tmp_path, meta), lambda row: not row.optional)
    for name in tensors:  # 40 layers of large weights would make small errors large
        if ".ffn_down." in name or ".attn_output." in name:
            tensors[name] *= 0.2
    got = context(write_model(tmp_path / "m.gguf", meta, tensors)).decode(TOKENS, outputs="all")
    plain = metadata(**{"llama.block_count": n_layer, "llama.rope.dimension_count": 0,
                        "llama.attention.max_alibi_bias": 8.0})  # fmt: skip
    want = plain_llama.forward(plain, tensors, TOKENS)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


# -- what is special about a family ----------------------------------------------------------------


@pytest.mark.parametrize("tiny", ["qwen2", "stablelm", "gemma2"], indirect=True)
def test_tied_output(tmp_path: Path, tiny: Tiny) -> None:
    meta, tensors, _ = tiny
    tied = {name: a for name, a in tensors.items() if name != "output.weight"}
    same = tied | {"output.weight": tensors["token_embd.weight"]}
    got, want = (
        context(write_model(tmp_path / f"{i}.gguf", meta, each)).decode(TOKENS)
        for i, each in enumerate((tied, same))
    )
    np.testing.assert_allclose(got, want, atol=1e-5, rtol=0)


def test_windows_and_rotations_of_gemma3(tmp_path: Path) -> None:
    c = configure(tmp_path, keys_of("gemma3", YARN | WINDOW | {"block_count": 7}))
    assert c.windowed == (True,) * 5 + (False, True)
    assert c.window == 6
    assert (c.rope_of(0).freq_base, c.rope_of(0).freq_scale, c.rope_of(0).ext_factor) == (1e4, 1, 0)
    assert c.rope_of(5) == c.rope
    assert c.embedding_scale == 4.0
    c = configure(tmp_path, keys_of("gemma3", {}))
    assert (c.window, c.rope_of(0)) == (0, c.rope)
    # the 27B model is told by its number of layers
    c = configure(tmp_path, keys_of("gemma3", {"block_count": 62, "attention.key_length": 8}))
    assert c.kq_scale == 0.5


def test_defaults_of_gemma2(tmp_path: Path) -> None:
    c = configure(tmp_path, keys_of("gemma2", {"block_count": 3}))
    assert (c.attn_softcap, c.final_softcap, c.window) == (50.0, 30.0, 4096)
    assert c.windowed == (True, False, True)


def test_windows_of_olmo2_rotate_without_yarn(tmp_path: Path) -> None:
    c = configure(tmp_path, keys_of("olmo2", YARN | WINDOW | {"block_count": 4}))
    assert c.windowed == (True, True, True, False)
    assert (c.rope_of(0).freq_scale, c.rope_of(0).kernel_attn_factor) == (1.0, 1.0)
    assert c.rope_of(3).ext_factor == 1.0


def test_a_token_beyond_all_windows_is_not_seen(tmp_path: Path) -> None:
    """Two layers that look back 6 positions see 10 tokens besides the last one."""
    changes = WINDOW | {"attention.sliding_window_pattern": 0}
    meta = keys_of("gemma2", changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
    a, b, c = (
        context(path).decode([first, *TOKENS[1:at], 260, *TOKENS[at + 1 :]])
        for first, at in ((1, 9), (2, 9), (1, 10))
    )
    np.testing.assert_allclose(a, b, atol=1e-6, rtol=0)
    assert np.abs(a - c).max() > 1e-3


def test_a_pattern_that_is_too_short_is_refused(tmp_path: Path) -> None:
    flags = np.array([True])
    meta = keys_of("gemma3", WINDOW | {"attention.sliding_window_pattern": flags})
    with pytest.raises(FormatError, match=r"gemma3\.attention\.sliding_window_pattern"):
        configure(tmp_path, meta)


def test_layers_of_smollm3_without_rotation(tmp_path: Path) -> None:
    c = configure(tmp_path, keys_of("smollm3", {"block_count": 9}))
    assert [il for il in range(9) if c.rope_of(il).n_dims == 0] == [3, 7]


def test_granite_can_do_without_rotation(tmp_path: Path) -> None:
    meta = keys_of("granite", {"rope.scaling.finetuned": False})
    model = Model.open(write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta))))
    assert model.build_shift(KVCache(model.config, 8)) is None


def test_stablelm_without_a_second_norm_is_parallel(tmp_path: Path) -> None:
    meta = keys_of("stablelm", {})
    tensors = made_up(configure(tmp_path, meta))
    parallel = {name: a for name, a in tensors.items() if ".ffn_norm." not in name}
    got, other = (
        context(write_model(tmp_path / f"{i}.gguf", meta, each)).decode(TOKENS)
        for i, each in enumerate((parallel, tensors))
    )
    assert np.abs(got - other).max() > 1e-3


def test_widths_of_experts_that_are_not_stated(tmp_path: Path) -> None:
    experts = {"expert_count": 4, "expert_used_count": 3}
    c = configure(tmp_path, keys_of("qwen2moe", experts))
    assert c.moe is not None
    assert (c.moe.n_ff, c.moe.n_ff_shared) == (8, 24)
    c = configure(tmp_path, keys_of("qwen3moe", experts))
    assert c.moe is not None and c.moe.n_ff == 8


def test_expert_weights_that_metadata_normalises(tmp_path: Path) -> None:
    """One expert of one: brought to sum 1 its weight is 1, and so it is without."""
    for used, equal in ((1, True), (2, False)):
        logits = []
        for norm in (True, False):
            changes = {"expert_count": used + (used > 1), "expert_used_count": used}
            meta = keys_of("olmoe", changes | {"expert_weights_norm": norm})
            path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
            logits.append(context(path).decode(TOKENS))
        assert np.allclose(*logits, atol=1e-5) == equal


@pytest.mark.parametrize("arch", ["qwen2moe", "qwen3moe", "olmoe"])
def test_experts_are_required(tmp_path: Path, arch: str) -> None:
    path = write_model(tmp_path / "m.gguf", keys_of(arch, {}), {"x": np.zeros(1, np.float32)})
    with pytest.raises(FormatError, match=f"{arch}.expert_count is missing"):
        Model.open(path)


def test_longrope_chooses_its_factors_by_the_context(tmp_path: Path) -> None:
    meta = keys_of("phi3", {"rope.scaling.original_context_length": 32})
    tensors = made_up(
        configure(tmp_path, meta), lambda row: plain(row) or "rope_factors" in row.name
    )
    path = write_model(tmp_path / "m.gguf", meta, tensors)
    short, long = (
        Context(Model.open(path), n, devices=["reference"], type_k="f32", type_v="f32")
        for n in (32, 33)
    )
    one = tensors["rope_factors_short.weight"]
    same = {"rope_factors_short.weight": one, "rope_factors_long.weight": one}
    equal = write_model(tmp_path / "e.gguf", meta, tensors | same)
    both = Context(Model.open(equal), 33, devices=["reference"], type_k="f32", type_v="f32")
    want = short.decode(TOKENS)
    np.testing.assert_allclose(both.decode(TOKENS), want, atol=1e-6, rtol=0)
    assert np.abs(long.decode(TOKENS) - want).max() > 1e-3


# Rotations that differ between layers or have a magnitude; the prompts are in test_llama.py.
@pytest.mark.parametrize("name", ["smollm3", "gemma3", "phi3_longrope"])
def test_golden_shifts(vectors: Path, name: str) -> None:
    options = Options(backend="reference", filter=f"archs/{name}/shift")
    results = list(models.run(vectors / "models/archs", options))
    assert [r.status for r in results] == ["passed"]
