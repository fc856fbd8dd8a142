"""Architectures of the llama, qwen, olmo, phi and gemma lines: tiny models made up from their own
weight tables, with options that the golden models do not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm import plain_llama
from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import (
    EXPERTS,
    TOKENS,
    WINDOW,
    YARN,
    Tensors,
    configure,
    context,
    keys_of,
    made_up,
    plain,
)
from tests.llm.tiny import metadata, write_model
from tests.vectors import models
from tests.vectors.result import Options
from weft.errors import FormatError
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.context import Context
from weft.llm.model import Model


@pytest.fixture(params=RELATIVES)
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[dict[str, object], Tensors, Path]:
    """Metadata, weights and file of each model."""
    arch, changes = RELATIVES[request.param]
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
