"""The llama graph against an independent implementation, and the golden models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm import plain_llama
from tests.llm.tiny import metadata, weights, write_model
from tests.vectors import models
from tests.vectors.result import Options
from weft.errors import FormatError
from weft.llm.compute.context import Context
from weft.llm.model import Model

TOKENS = [1, *range(250, 274), 5, 5, 9]

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "multi-query": {"llama.attention.head_count_kv": 1},
    "wide heads": {"llama.attention.key_length": 10, "llama.attention.value_length": 10},
    "tied": {},
    "freq factors": {},
    "linear": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 3.0},
    "yarn": {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 16,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
    },
    "experts": {"llama.expert_count": 5, "llama.expert_used_count": 2},
    "one expert": {"llama.expert_count": 3, "llama.expert_used_count": 1},
}


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "softmax"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_an_independent_implementation(
    tmp_path: Path, variant: str, flash: bool
) -> None:
    meta = metadata(**VARIANTS[variant])
    tensors = weights(meta)
    if variant == "tied":
        del tensors["output.weight"]
    if variant == "freq factors":
        tensors["rope_freqs.weight"] = np.array([1.0, 3.0], np.float32)
    model = Model.open(write_model(tmp_path / "m.gguf", meta, tensors))
    context = Context(model, 48, type_k="f32", type_v="f32", flash=flash, devices=["reference"])
    got = np.concatenate(
        [
            context.decode(TOKENS[:20], outputs="all"),
            *[context.decode([token]) for token in TOKENS[20:]],
        ]
    )
    want = plain_llama.forward(meta, tensors, TOKENS)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=0)


def test_biases_and_scales(tmp_path: Path) -> None:
    """Every optional part of the projections is used: a model that has it folded in agrees."""
    meta, tensors = metadata(), weights(metadata())
    scaled = dict(tensors)
    scaled["blk.0.attn_q.weight"] = tensors["blk.0.attn_q.weight"] * np.float32(2)
    tensors["blk.0.attn_q.scale"] = np.array([2], np.float32)
    paths = [
        write_model(tmp_path / f"{i}.gguf", meta, each) for i, each in enumerate((tensors, scaled))
    ]
    a, b = (
        Context(Model.open(path), 16, devices=["reference"]).decode([1, 260, 261]) for path in paths
    )
    np.testing.assert_allclose(a, b, atol=1e-5)

    biased = tensors | {"blk.1.ffn_down.bias": np.full(16, 0.5, np.float32)}
    path = write_model(tmp_path / "b.gguf", meta, biased)
    c = Context(Model.open(path), 16, devices=["reference"]).decode([1, 260, 261])
    assert np.abs(a - c).max() > 0.01


def test_gptoss_needs_its_keys(tmp_path: Path) -> None:
    meta = {
        key.replace("llama.", "gpt-oss.", 1) if key.startswith("llama.") else key: value
        for key, value in metadata().items()
    } | {"general.architecture": "gpt-oss"}
    with pytest.raises(FormatError, match=r"gpt-oss\.expert_count is missing"):
        Model.open(write_model(tmp_path / "m.gguf", meta, {"x": np.zeros(1, np.float32)}))


# Enough of the golden models to see every architecture and every kind of check;
# tests/vectors/run.py runs all of them.
@pytest.mark.parametrize(
    ("folder", "filter", "least"),
    [
        ("archs", "archs/*/main", 8),
        ("archs", "archs/*/fork", 1),
        ("quant", "quant/*_[0A-Z]*/deq", 15),
        ("stories260K", "*/F32/native/logits/*", 3),
        ("stories260K", "*/Q4_0/deq/logits/*", 3),
        ("stories260K", "*/F32/native/greedy/1", 1),
        ("stories260K", "*/kv/[cfhrs]*", 8),
        ("stories260K", "*/kv/multi_interleaved*", 2),
    ],
)
def test_golden_models(vectors: Path, folder: str, filter: str, least: int) -> None:
    options = Options(backend="reference", filter=filter)
    results = list(models.run(vectors / "models" / folder, options))
    assert [r for r in results if r.status == "failed"] == []
    assert sum(r.status == "passed" for r in results) >= least
