"""Architectures of the gpt, falcon, cohere, glm, deepseek and mamba lines: tiny models made up from
their own weight tables, with options that the golden models do not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.made_models import (
    TOKENS,
    WINDOW,
    Tensors,
    configure,
    context,
    keys_of,
    made_up,
    plain,
)
from tests.llm.other_models import DEEPSEEK_YARN, GROUPS, MLA, OTHERS, PLAIN_MLA, make_other
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.llm.cache.kv_cache import KVCache
from weft.llm.model import Model
from weft.llm.weights import Row

LEARNED = ("gpt2", "starcoder")
"""Those that know where they are: moved keys are of the old positions."""


@pytest.fixture(params=OTHERS)
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Name and file of each model."""
    meta, tensors = make_other(tmp_path, request.param)
    return request.param, write_model(tmp_path / "m.gguf", meta, tensors)


Tiny = tuple[str, Path]


def test_batches_single_tokens_and_both_attentions_agree(tiny: Tiny) -> None:
    want = context(tiny[1]).decode(TOKENS, outputs="all")
    assert 0.5 < np.abs(want).max() < 1e3
    single = context(tiny[1], n_ubatch=1, flash=False).decode(TOKENS, outputs="all")
    np.testing.assert_allclose(single, want, atol=1e-4, rtol=0)


def test_moved_positions_are_as_if_computed_there(tiny: Tiny) -> None:
    """The K-shift has to turn each layer's keys as that layer does, and not change their length."""
    if tiny[0] in LEARNED:
        model = Model.open(tiny[1])
        assert model.build_shift(KVCache(model.config, 8)) is None
        return
    moved = context(tiny[1])
    moved.decode(TOKENS[:-1])
    if moved.cache.blocks:
        with pytest.raises(ContextError, match="compressed keys cannot move"):
            moved.cache.seq_add(0, -1, -1, 9)
        return
    moved.cache.seq_add(0, -1, -1, 9)
    got = moved.decode(TOKENS[-1:])
    there = context(tiny[1])
    positions = np.arange(len(TOKENS)) + 9
    np.testing.assert_allclose(got, there.decode(TOKENS, positions)[-1:], atol=2e-4, rtol=0)


def test_every_tensor_of_a_file_is_used(tiny: Tiny) -> None:
    model = Model.open(tiny[1])
    graphs = [model.build(KVCache(model.config, 8), n_ubatch=4, n_outputs=4)]
    if tiny[0] == "cogvlm":  # rows of images have matrices of their own
        graphs.append(model.build(KVCache(model.config, 8), n_ubatch=4, n_outputs=4, rows_in=True))
    used = {leaf.name for graph in graphs for leaf in graph.leaves}
    first = {"blk.0.attn_res_score.weight"}  # Kimi K3: nothing was kept in front of layer 0
    assert set(model.weights) - used - first == set()


# -- what is special about a family ----------------------------------------------------------------


def logits(tmp_path: Path, meta: dict[str, object], tensors: Tensors) -> np.ndarray:
    return context(write_model(tmp_path / "l.gguf", meta, tensors)).decode(TOKENS, outputs="all")


@pytest.mark.parametrize("name", ["gpt2", "falcon", "bloom", "mpt", "command-r", "nemotron"])
def test_tied_output(tmp_path: Path, name: str) -> None:
    meta, tensors = make_other(tmp_path, name)
    tied = {n: a for n, a in tensors.items() if n != "output.weight"}
    same = tied | {"output.weight": tensors["token_embd.weight"]}
    np.testing.assert_allclose(
        logits(tmp_path, meta, tied), logits(tmp_path, meta, same), atol=1e-5, rtol=0
    )


def test_gpt2_ends_where_its_positions_end(tmp_path: Path) -> None:
    meta, tensors = make_other(tmp_path, "gpt2")
    c = context(write_model(tmp_path / "m.gguf", meta, tensors))
    assert c.decode([5], [63]).shape == (1, c.model.config.n_vocab)
    with pytest.raises(ContextError, match=r"position 64, but the model has learned 0\.\.63"):
        c.decode([5], [64])


@pytest.mark.parametrize(("name", "part"), [("falcon", "attn_norm_2"), ("mpt", "attn_q_norm")])
def test_optional_norms_matter(tmp_path: Path, name: str, part: str) -> None:
    meta, tensors = make_other(tmp_path, name)
    without = {n: a for n, a in tensors.items() if part not in n}
    assert len(without) < len(tensors)
    off = np.abs(logits(tmp_path, meta, tensors) - logits(tmp_path, meta, without))
    assert off.max() > 1e-3


def test_falcons_second_norm_is_that_of_attention(tmp_path: Path) -> None:
    meta, tensors = make_other(tmp_path, "falcon", without="attn_norm_2")
    second = {
        n.replace("attn_norm", "attn_norm_2"): a for n, a in tensors.items() if "attn_norm." in n
    }
    np.testing.assert_allclose(
        logits(tmp_path, meta, tensors | second), logits(tmp_path, meta, tensors), atol=1e-5, rtol=0
    )


def test_mpt_clamps_and_scales(tmp_path: Path) -> None:
    arch, changes = OTHERS["mpt"]
    meta, tensors = make_other(tmp_path, "mpt")
    free = keys_of(arch, changes | {"attention.clamp_kqv": 0.0})
    assert np.abs(logits(tmp_path, meta, tensors) - logits(tmp_path, free, tensors)).max() > 1e-3
    scale = "blk.1.ffn.act.scales"
    folded = tensors | {
        scale: np.ones_like(tensors[scale]),
        "blk.1.ffn_down.weight": tensors["blk.1.ffn_down.weight"] / tensors[scale],
    }
    np.testing.assert_allclose(
        logits(tmp_path, meta, folded), logits(tmp_path, meta, tensors), atol=1e-4, rtol=0
    )


def test_mpt_with_learned_positions(tmp_path: Path) -> None:
    """Without ALiBi and a table one layer knows no order; a table brings it."""
    meta = keys_of("mpt", {"block_count": 1})
    tensors = made_up(configure(tmp_path, meta))
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:]]
    table = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    off = []
    for extra in ({}, {"position_embd.weight": table}):
        path = write_model(tmp_path / "m.gguf", meta, tensors | extra)
        a, b = (context(path).decode(tokens) for tokens in (TOKENS, swapped))
        off.append(np.abs(a - b).max())
    assert off[0] < 1e-4 < 1e-2 < off[1]


def test_layers_of_cohere2(tmp_path: Path) -> None:
    c = configure(tmp_path, keys_of("cohere2", WINDOW | {"block_count": 8}))
    assert c.windowed == (True, True, True, False) * 2
    assert [c.rope_of(il).n_dims for il in range(8)] == [4, 4, 4, 0] * 2


def test_absorbed_and_expanded_latent_attention_agree(tmp_path: Path) -> None:
    """K and V of each head, as two stacks of matrices and as one matrix."""
    small, whole = keys_of("deepseek2", MLA), keys_of("deepseek2", PLAIN_MLA)
    whole["deepseek2.attention.q_lora_rank"] = MLA["attention.q_lora_rank"]
    tensors = made_up(configure(tmp_path, small))
    joined: Tensors = {}
    for name, array in tensors.items():
        if "attn_k_b" in name:
            v = tensors[name.replace("k_b", "v_b")]  # [head, head_dim_v, kv_rank]
            kv = np.concatenate([array.transpose(0, 2, 1), v], axis=1)
            joined[name.replace("k_b", "kv_b")] = kv.reshape(-1, kv.shape[-1])
        elif "attn_v_b" not in name:
            joined[name] = array
    np.testing.assert_allclose(
        logits(tmp_path, small, tensors), logits(tmp_path, whole, joined), atol=1e-4, rtol=0
    )


def test_scale_of_deepseek_under_yarn(tmp_path: Path) -> None:
    def config(**extra: float) -> tuple[float, float]:
        changes = MLA | DEEPSEEK_YARN | {f"rope.scaling.{k}": v for k, v in extra.items()}
        c = configure(tmp_path, keys_of("deepseek2", changes))
        one = 1 + 0.1 * np.log(4)
        return c.attn_scale * np.sqrt(7), c.rope.kernel_attn_factor * one

    one, half = 1 + 0.1 * np.log(4), 1 + 0.05 * np.log(4)
    np.testing.assert_allclose(config(), (one**2, one), rtol=1e-6)
    np.testing.assert_allclose(config(yarn_log_multiplier=0.05), (half**2, 1), rtol=1e-6)


@pytest.mark.parametrize("gating", [1, 2])
def test_experts_outside_the_best_groups_are_not_chosen(tmp_path: Path, gating: int) -> None:
    """Expert 0 is the best by far, but its group's best two have the smallest sum, which counts
    for sigmoids; for softmax a group's best counts."""
    changes = MLA | GROUPS | {"expert_group_used_count": 3, "expert_gating_func": gating}
    for biased, seen in ((-1e3, gating == 1), (0.0, True)):
        meta = keys_of("deepseek2", changes)
        tensors = made_up(configure(tmp_path, meta))
        bias = np.zeros(8, np.float32)
        bias[:2] = 10, biased
        tensors["blk.1.exp_probs_b.bias"] = bias
        before = logits(tmp_path, meta, tensors)
        experts = tensors["blk.1.ffn_up_exps.weight"].copy()
        experts[0] *= 2
        after = logits(tmp_path, meta, tensors | {"blk.1.ffn_up_exps.weight": experts})
        assert (np.abs(after - before).max() > 1e-3) == seen


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"expert_group_count": 3}, "expert_group_count"),
        ({"expert_group_used_count": 1}, "expert_group_used_count"),
        ({"attention.head_count_kv": 2}, "attention.head_count_kv"),
        ({"attention.key_length": 12}, "attention.key_length"),
        ({"rope.dimension_count": 8}, "rope.dimension_count"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    tmp_path: Path, changes: dict[str, object], match: str
) -> None:
    with pytest.raises(FormatError, match=rf"deepseek2\.{match}"):
        configure(tmp_path, keys_of("deepseek2", MLA | GROUPS | changes))


def test_fused_projections_agree_with_separate_ones(tmp_path: Path) -> None:
    for name in ("gpt2", "mpt", "glm4", "nemotron"):
        meta, tensors = make_other(tmp_path, name)
        fused: Tensors = {}
        for n, array in tensors.items():
            if ".attn_q." in n:
                parts = [tensors[n.replace("_q.", f"_{part}.")] for part in "qkv"]
                fused[n.replace("_q.", "_qkv.")] = np.concatenate(parts)
            elif ".attn_k." not in n and ".attn_v." not in n:
                fused[n] = array
        np.testing.assert_allclose(
            logits(tmp_path, meta, fused), logits(tmp_path, meta, tensors), atol=1e-4, rtol=0
        )


def test_biases_may_be_left_out(tmp_path: Path) -> None:
    def wanted(row: Row) -> bool:
        return plain(row) and not row.name.endswith(".bias")

    for arch in ("gpt2", "gptneox", "falcon", "bloom", "mpt", "command-r", "glm4", "nemotron"):
        meta = keys_of(arch, {})
        tensors = made_up(configure(tmp_path, meta), wanted)
        assert np.isfinite(logits(tmp_path, meta, tensors)).all()
