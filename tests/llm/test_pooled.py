"""Blocks that an indexer chooses by keys of their own: all ways to compute a text agree."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.made_models import configure, context, keys_of
from tests.llm.rare_models import RARE
from tests.llm.recurrent_texts import write_lasting
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.completed import family_metadata
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.pooled import FAMILIES
from weft.frontends.hf.values import Values
from weft.llm.cache.kv_cache import cache_bytes
from weft.llm.cache.snapshots import cut, keep_text, put_text, read_checkpoint, share
from weft.llm.compute.batch import Batch
from weft.llm.compute.context import Context
from weft.llm.config_parts import NgramConfig
from weft.llm.model import Model

TEXT = [int(t) for t in np.random.default_rng(3).integers(3, 100, 30)]
ATOL = 5e-5


@pytest.fixture(scope="module", params=["glm5-next", "qwen4exp"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lasting(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def want(path: Path) -> NDArray[np.float32]:
    return context(path).decode(TEXT, outputs="all")


def check(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, atol=ATOL, rtol=0)


def test_memory(path: Path) -> None:
    ctx = context(path, n_seq_max=2)
    cache, config = ctx.cache, ctx.model.config
    assert not cache.compressed and list(cache.pending) == list(cache.index) == (
        [1] if "glm5" in path.name else [1, 3]
    )
    (blocks,) = cache.blocks.values()
    assert blocks.size == 48 // 3 + 2 * 2 and cache.index[1].ne[:2] == (6, blocks.size + 1)
    assert cache.nbytes == cache_bytes(config, 48, "f32", "f32", 2)
    again = Context(Model.open(path), plan=ctx.plan.to_json(), devices=["reference"])
    assert again.cache.nbytes == cache.nbytes


def tensors_of(path: Path) -> dict[str, NDArray[np.float32]]:
    return {
        name: info.data.view(np.float32).reshape(info.ne[info.n_dims - 1 :: -1])
        for name, info in open_gguf(path).tensors.items()
    }


def test_blocks_are_chosen(tmp_path: Path, path: Path, want: NDArray[np.float32]) -> None:
    """Beyond as many tokens as are chosen, and not before, other tokens are seen."""
    tensors = tensors_of(path)
    for name in tensors:
        if name.endswith(("indexer.proj.weight", "indexer.q_proj.weight")):
            tensors[name] = -tensors[name]
    other = write_model(tmp_path / "m.gguf", keys_of(*RARE[path.stem]), tensors)
    got = context(other).decode(TEXT, outputs="all")
    check(got[:8], want[:8])
    assert (np.abs(got - want)[11:].max(axis=1) > 1e-3).sum() > 9


@pytest.mark.parametrize(("flash", "devices"), [(True, ["cpu"]), (False, ["reference"])])
@pytest.mark.parametrize("ends", [[1, 2, 3, 6, 13, 14, 30], [8, 9, 30]])
def test_chunks(
    path: Path, want: NDArray[np.float32], ends: list[int], flash: bool, devices: list[str]
) -> None:
    ctx = Context(Model.open(path), 48, type_k="f32", type_v="f32", devices=devices, flash=flash)
    for a, b in zip([0, *ends], ends, strict=False):
        check(ctx.decode(TEXT[a:b], outputs="all"), want[a:b])
    assert [blocks.n_used for blocks in ctx.cache.blocks.values()] == [10]


@pytest.mark.parametrize("n_gpu_layers", [2, 99])
def test_on_a_device_with_memory_of_its_own(
    path: Path, want: NDArray[np.float32], n_gpu_layers: int
) -> None:
    """What is chosen is written where it is read."""
    ctx = Context(Model.open(path), 48, type_k="f32", type_v="f32", devices=["reference", "cpu"],
                  n_gpu_layers=n_gpu_layers, activations="f32", n_threads=1)  # fmt: skip
    check(ctx.decode(TEXT, outputs="all"), want)


def test_forks(path: Path, want: NDArray[np.float32]) -> None:
    """A text that parts from another at every place in a block, and both go on together."""
    ctx = context(path, n_seq_max=2)
    other = [*range(9, 16)]
    ctx.decode(TEXT[:9])
    for at in range(9, 12):
        ctx.seq_rm(1)
        ctx.seq_cp(0, 1)
        whole = context(path).decode([*TEXT[:at], *other], outputs="all")
        check(ctx.decode(other[:5], seqs=[[1]] * 5, outputs="all"), whole[at : at + 5])
        got = ctx.decode([TEXT[at], other[5]], [at, at + 5], seqs=[[0], [1]], outputs="all")
        check(got, np.stack([want[at], whole[at + 5]]))


def test_a_beginning_of_two_texts(path: Path, want: NDArray[np.float32]) -> None:
    """A text of two sequences, and the end of the second of them, in one batch."""
    ctx = context(path, n_seq_max=2)
    got = ctx.decode(TEXT[:20], range(20), seqs=[[1, 0]] * 10 + [[0]] * 10, outputs="all")
    check(got, want[:20])


def test_states_and_kept_texts(path: Path, want: NDArray[np.float32]) -> None:
    ctx = context(path, n_seq_max=3)
    cache = ctx.cache
    ctx.decode(TEXT[:13])
    checkpoint = read_checkpoint(cache, 0)
    ctx.decode(TEXT[13:22])
    text, state = keep_text(cache, 0, b"", 22), ctx.save_state(0)
    share(cache, 0, 1, 13, checkpoint)
    check(ctx.decode(TEXT[13:20], seqs=[[1]] * 7, outputs="all"), want[13:20])
    cut(cache, 0, 13, checkpoint)
    check(ctx.decode(TEXT[13:17], outputs="all"), want[13:17])
    ctx.clear()
    put_text(cache, 2, text, 13, checkpoint)
    check(ctx.decode(TEXT[13:20], seqs=[[2]] * 7, outputs="all"), want[13:20])
    ctx.seq_rm(2)
    ctx.load_state(state, 1)
    check(ctx.decode(TEXT[22:], seqs=[[1]] * 8, outputs="all"), want[22:])


def test_what_cannot_be(path: Path) -> None:
    ctx = context(path)
    ctx.decode(TEXT[:5])
    with pytest.raises(ContextError, match="must go on from 5 without gaps"):
        ctx.decode([5], [7])
    with pytest.raises(ContextError, match="positions of tokens in compressed keys"):
        ctx.seq_add(0, 0, -1, 4)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("attention.indexer.top_k", 7, "a multiple of 3, a block's size"),
        ("attention.indexer.kpool", 0, "in 1..4096"),
        ("attention.indexer.kpool_select_tail", False, "weft knows no other"),
        ("attention.indexer.types", np.array([True, False, True, True]), "the first that attends"),
        ("attention.indexer.types", np.array([True]), "one per layer"),
        ("attention.q_lora_rank", 0, "above 0"),
        ("rope.dimension_count", 2, "it must be 0"),
        ("kda.gate_lower_bound", 0.5, "below 0"),
        ("hyper_connection.count", 3, "it must be 4"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, key: str, value: Any, why: str) -> None:
    refused(tmp_path, "glm5-next", key, value, why)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("attention.compress_ratios", np.array([0, 3, 0, 2], np.int32), "where layers attend"),
        ("attention.compress_ratios", 1 << 13, "where layers attend"),
        ("attention.indexer.key_length", 1, "rope.dimension_count is 2"),
        ("hyper_connection.count", 1, "in 2..256"),
        ("ple.layers", np.array([1], np.int32), "a layer that is a delta net"),
        ("ple.layers", np.array([0, 2], np.int32), "one layer of 0..3"),
        ("ple.layers", np.array([4], np.int32), "one layer of 0..3"),
        ("ple.ngram_size", 5, "5 integers"),
        ("ple.heads_per_ngram", 200, "256 or less in all"),
        ("ple.head_vocab_sizes", np.array([11, 0, 17, 19], np.uint64), "1 or more"),
        ("ple.head_offsets", np.array([0, 1 << 40, 1, 2], np.uint64), "in 0..2147483647"),
        ("ple.head_offsets", np.array([0, (1 << 31) - 1, 1, 2], np.uint64), "1 or more"),
        ("ple.layer_multipliers", np.array([1.0, 2.0, 3.0]), "3 integers"),
    ],
)
def test_settings_of_qwen4_that_cannot_be(tmp_path: Path, key: str, value: Any, why: str) -> None:
    refused(tmp_path, "qwen4exp", key, value, why)


def refused(folder: Path, arch: str, key: str, value: Any, why: str) -> None:
    meta = keys_of(arch, RARE[arch][1] | {key: value})
    with pytest.raises(FormatError, match=why):
        configure(folder, meta)


@pytest.fixture(scope="module")
def qwen4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lasting(tmp_path_factory.mktemp("qwen4"), "qwen4exp")


def test_a_table_with_too_few_rows(tmp_path: Path, qwen4: Path) -> None:
    tensors = tensors_of(qwen4)
    tensors["per_layer_token_embd.weight"] = tensors["per_layer_token_embd.weight"][:-1]
    file = write_model(tmp_path / "m.gguf", keys_of(*RARE["qwen4exp"]), tensors)
    with pytest.raises(FormatError, match="at most 59 rows in all"):
        Model.open(file)


def test_files_that_do_not_say_the_size_of_blocks(tmp_path: Path, qwen4: Path) -> None:
    """Their texts are right as long as all blocks are seen."""
    meta = keys_of("qwen4exp", RARE["qwen4exp"][1] | {"attention.compress_ratios": 0})
    model = Model.open(write_model(tmp_path / "m.gguf", meta, tensors_of(qwen4)))
    exact: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "devices": ["reference"]}
    got = Context(model, 6, **exact).decode(TEXT[:6], outputs="all")
    check(got, context(qwen4).decode(TEXT[:6], outputs="all"))
    with pytest.raises(ContextError, match="make n_ctx at most 6, where all are seen, or convert"):
        Context(model, 7, **exact)


def test_images_are_refused(qwen4: Path) -> None:
    ctx = context(qwen4)
    with pytest.raises(ContextError, match="does not run images with this model yet"):
        ctx.decode(Batch(embeddings=np.zeros((1, ctx.model.config.n_embd))))


def test_rows_of_ngrams(qwen4: Path) -> None:
    """Plain Python's hashes, and an end that nothing reaches over."""
    c = Model.open(qwen4).config.ngrams
    assert c is not None and c.image == c.end == 60
    for text, seen in (
        ((7, 8, 9), (7, 8, 9)),
        ((7, 60, 9), (7, 60, 60)),
        ((60, 8, 9), (60, 8, 9)),
        ((7, 8, -1), (7, 8, 60)),
        ((7, -1, -1), (7, 60, 60)),
    ):
        a, b, last = (t * m for t, m in zip(seen, c.multipliers, strict=True))
        hashes = [a ^ b] * 2 + [a ^ b ^ last] * 2
        parts = zip(hashes, c.counts, c.offsets, strict=True)
        want = [h % count + offset for h, count, offset in parts]
        assert c.rows(np.array([text])).tolist() == [want]


def test_ngrams_of_a_text(qwen4: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of the text before, wherever they were decoded, and the image's token for others."""
    ctx = context(qwen4, n_seq_max=2)
    seen: list[list[list[int]]] = []
    rows = NgramConfig.rows

    def noted(self: NgramConfig, grams: NDArray[np.int64]) -> NDArray[np.int32]:
        seen.append(grams.tolist())
        return rows(self, grams)

    monkeypatch.setattr(NgramConfig, "rows", noted)
    ctx.decode([5, 6, 7])
    ctx.decode([8, 15], [3, 0], seqs=[[0], [1]])
    assert seen == [[[5, -1, -1], [6, 5, -1], [7, 6, 5]], [[8, 7, 6], [15, -1, -1]]]
    ctx.cache.tokens[ctx.cache.cells_of(0)[3]] = 1 << 20
    ctx.decode([9])
    assert seen[-1] == [[9, 60, 7]]


def test_layers_that_draft_are_refused(tmp_path: Path) -> None:
    arch, changes = RARE["glm5-next"]
    file = write_lasting(tmp_path, arch)
    meta = keys_of(arch, changes | {"nextn_predict_layers": 1, "block_count": 5})
    extra = {"blk.4.nextn.eh_proj.weight": np.zeros((16, 32), np.float32)}
    model = Model.open(write_model(tmp_path / "m.gguf", meta, tensors_of(file) | extra))
    with pytest.raises(FormatError, match="several streams"):
        model.next_layers()


GLM5: dict[str, Any] = {
    "architectures": ["Glm5NextForConditionalGeneration"], "hidden_size": 32, "vocab_size": 400,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
SAVED = {
    "linear_head_dim": 8, "linear_num_heads": 4, "linear_conv_kernel_dim": 3,
    "linear_lower_bound": -2.0, "indexer_types": ["full", "full", "shared", "full"],
    "layer_types": ["linear_attention", *["indexed_attention"] * 2, "linear_attention"],
    "mlp_layer_types": ["dense", *["sparse"] * 3],
}  # fmt: skip
DELTA = {"head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 3, "gate_lower_bound": -2.0}
PUBLISHED = {
    "linear_attn_config": DELTA, "first_k_dense_replace": 1, "index_topk_pattern": "FFSF",
    "layer_types": ["linear_attention", *["full_attention"] * 2, "linear_attention"],
    "mla_use_nope": True, "mhc": True, "head_dim": 192,
}  # fmt: skip


def keys_of_config(config: dict[str, Any]) -> dict[str, object]:
    family = FAMILIES["glm5-next"]
    return family_metadata(family, Config(Path(), config, family.defaults))


def test_both_forms_of_config_json_are_the_same() -> None:
    assert keys_of_config(GLM5 | PUBLISHED) == keys_of_config({"text_config": GLM5 | SAVED} | GLM5)
    more = keys_of_config(GLM5 | PUBLISHED | {"num_nextn_predict_layers": 1})
    assert more["block_count"] == 5 and more["attention.head_count_kv"] == [0, 1, 1, 0, 1]
    assert more["nextn_predict_layers"] == 1 and len(more["swiglu_clamp_exp"]) == 5  # type: ignore[arg-type]


def test_an_output_of_its_own_stays() -> None:
    """The text's part of config.json may say that it is tied, and the whole that it is not."""
    family = FAMILIES["glm5-next"]
    c = Config(Path(), {"text_config": GLM5 | SAVED | {"tie_word_embeddings": True}}, None)
    values = Values((400, 32), "f32", np.zeros((400, 32), np.float32).copy)
    assert [name for name, _ in family.change(c, "lm_head.weight", values)] == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        (SAVED, -2.0),
        (SAVED | {"linear_lower_bound": None}, None),
        ({key: value for key, value in SAVED.items() if key != "linear_lower_bound"}, -5.0),
        (PUBLISHED | {"linear_attn_config": DELTA | {"gate_lower_bound": None}}, -5.0),
        (PUBLISHED | {"linear_attn_config": DELTA | {
            "gate_lower_bound": None, "safe_gate": False}}, None),
    ],
)  # fmt: skip
def test_bounds_of_decays(changes: dict[str, Any], bound: float | None) -> None:
    assert keys_of_config(GLM5 | changes).get("kda.gate_lower_bound") == bound


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"qk_rope_head_dim": 8}, "qk_rope_head_dim' must be 0"),
        ({"mhc": False}, "mhc true"),
        ({"linear_num_heads": 2}, "must be num_attention_heads, 4"),
        ({"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, "they must be first"),
        ({"index_kpool_always_select_tail": False}, "weft knows only true"),
    ],
)
def test_configs_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(FormatError, match=why):
        keys_of_config(GLM5 | SAVED | changes)


QWEN4: dict[str, Any] = {
    "hidden_size": 32, "vocab_size": 400, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24, "indexer_n_heads": 4,
    "indexer_head_dim": 8, "indexer_budget": 4, "indexer_compress_ratio": 2, "hc_count": 3,
    "output_gate_type": "sigmoid", "full_attention_interval": 2,
    "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"indexer_budget": None}, "indexer_budget' is missing"),
        ({"indexer_kv_heads": 2}, "must be 1"),
        ({"output_gate_type": None}, "'silu'; files of these models imply 'sigmoid'"),
        ({"ple_layer_ids": [1, 3], "eos_token_id": 1}, "n-grams in one layer"),
        ({"ple_layer_ids": [1]}, "eos_token_id' is missing"),
    ],
)
def test_configs_of_qwen4_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    family = FAMILIES["qwen4exp"]
    keys = family_metadata(family, Config(Path(), QWEN4, family.defaults))
    assert keys["attention.compress_ratios"] == [0, 2, 0, 2] and keys["rope.dimension_count"] == 8
    with pytest.raises(FormatError, match=why):
        family_metadata(family, Config(Path(), QWEN4 | changes, family.defaults))


def test_shards_of_the_table_of_ngrams() -> None:
    family = FAMILIES["qwen4exp"]
    c = Config(Path(), QWEN4 | {"split_ngram_parts": 3}, family.defaults)
    name = "model.layers.2.ple.ple_embedding.ngram_embedding.shard_{}.weight"
    shards = {
        name.format(i): Values((i + 1, 2), "f32", partial(np.full, (i + 1, 2), np.float32(i)))
        for i in (2, 0, 1)
    }
    ((table, values),) = family.join(c, shards.items())
    assert table == "=per_layer_token_embd.weight" and values.shape == (6, 2)
    assert values.load()[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    del shards[name.format(1)]
    with pytest.raises(FormatError, match="2 shards of the embeddings of n-grams, and"):
        list(family.join(c, shards.items()))
    wide = {
        name.format(i): Values((1, 2 + i), "f32", np.zeros((1, 1), np.float32).copy)
        for i in range(3)
    }
    with pytest.raises(FormatError, match="rows of different sizes"):
        list(family.join(c, wide.items()))
