"""`read_config`: what it reads, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import metadata, write_model
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.llm.config import ModelConfig
from weft.llm.config_keys import read_config
from weft.llm.config_parts import MoeConfig


def read(tmp_path: Path, **changes: object) -> ModelConfig:
    path = write_model(tmp_path / "m.gguf", metadata(**changes), {"x": np.zeros(1, np.float32)})
    return read_config(open_gguf(path))


def test_defaults_follow_from_the_sizes(tmp_path: Path) -> None:
    c = read(tmp_path)
    assert (c.arch, c.n_embd, c.n_layer, c.n_ctx_train) == ("llama", 16, 2, 64)
    assert (c.n_head(), c.n_head_kv(1), c.n_ff(1), c.head_dim_k, c.head_dim_v) == (4, 2, 24, 4, 4)
    assert c.n_vocab == 259 + 15
    assert (c.rope.n_dims, c.rope.scaling, c.rope.freq_scale, c.rope.n_ctx_orig) == (
        4,
        "none",
        1.0,
        64,
    )
    assert c.moe is None
    assert c.kq_scale == 0.5


def test_head_size_of_its_own(tmp_path: Path) -> None:
    c = read(tmp_path, **{"llama.attention.key_length": 10, "llama.attention.value_length": 6})
    assert (c.head_dim_k, c.head_dim_v, c.n_embd_k(), c.n_embd_v()) == (10, 6, 20, 12)


def test_sizes_per_layer(tmp_path: Path) -> None:
    c = read(
        tmp_path,
        **{
            "llama.attention.head_count_kv": np.array([4, 1], np.int32),
            "llama.feed_forward_length": np.array([8, 12], np.int32),
        },
    )
    assert [c.n_head_kv(il) for il in range(2)] == [4, 1]
    assert [c.n_ff(il) for il in range(2)] == [8, 12]


def test_experts(tmp_path: Path) -> None:
    assert read(
        tmp_path, **{"llama.expert_count": 8, "llama.expert_used_count": 2}
    ).moe == MoeConfig(8, 2, 24)


def test_yarn(tmp_path: Path) -> None:
    rope = read(
        tmp_path,
        **{
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
        },
    ).rope
    assert (rope.scaling, rope.freq_scale, rope.ext_factor, rope.n_ctx_orig) == (
        "yarn",
        0.25,
        1.0,
        32,
    )
    assert rope.kernel_attn_factor == 1.0  # the op itself brings 1 + 0.1 ln(factor)


def test_a_factor_without_a_type_is_linear(tmp_path: Path) -> None:
    rope = read(tmp_path, **{"llama.rope.scaling.factor": 2.0}).rope
    assert (rope.scaling, rope.freq_scale, rope.ext_factor) == ("linear", 0.5, 0.0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.embedding_length", None),
        ("llama.embedding_length", 0),
        ("llama.block_count", 1 << 20),
        ("llama.context_length", "long"),
        ("llama.attention.head_count", 3),
        ("llama.attention.head_count_kv", 3),
        ("llama.attention.head_count_kv", np.array([2], np.int32)),
        ("llama.rope.dimension_count", 3),
        ("llama.rope.dimension_count", 8),
        ("llama.rope.freq_base", float("nan")),
        ("llama.rope.scaling.type", "cubic"),
        ("llama.attention.layer_norm_rms_epsilon", float("inf")),
    ],
)
def test_a_bad_value_is_refused_with_its_key(tmp_path: Path, key: str, value: object) -> None:
    with pytest.raises(FormatError, match=key.replace(".", r"\.")):
        read(tmp_path, **{key: value})


def test_more_experts_used_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expert_used_count is 5"):
        read(tmp_path, **{"llama.expert_count": 4, "llama.expert_used_count": 5})


def test_a_vocabulary_is_no_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", metadata(), {})
    with pytest.raises(FormatError, match="has no tensors"):
        read_config(open_gguf(path))
