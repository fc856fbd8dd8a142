"""Heads that are rotated before they are stored in a quantized cache: what it gains, that it
changes nothing but the rounding, and that caches with and without it are not mixed up."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.llama_models import RELATIVES
from tests.llm.made_models import TOKENS, configure, keys_of, made_up
from tests.llm.other_models import OTHERS, make_other
from tests.llm.rare_models import RARE
from tests.llm.tiny import metadata, weights, write_model
from weft import flags
from weft.dtype import DTYPES
from weft.errors import FormatError
from weft.flags import FLAGS
from weft.llm import Context, Model
from weft.llm.cache import cache_types
from weft.llm.cache.cache_types import CacheTypes, rotated_block
from weft.llm.compute.fingerprint import maker_of
from weft.llm.models import common

QUANTIZED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A llama with heads of 64, in which one key and one value of each head is 30 times as large as
    the others, as in models that people use. Queries and outputs make up for it."""
    meta = metadata(**{"llama.embedding_length": 128, "llama.attention.head_count": 2,
                       "llama.attention.head_count_kv": 1})  # fmt: skip
    tensors = weights(meta)
    for il in range(2):
        blk = f"blk.{il}.attn"
        tensors[f"{blk}_k.weight"][[10, 11]] *= 30
        tensors[f"{blk}_q.weight"].reshape(2, 64, 128)[:, [10, 11]] /= 30
        tensors[f"{blk}_v.weight"][[40]] *= 30
        tensors[f"{blk}_output.weight"].reshape(128, 2, 64)[:, :, 40] /= 30
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return Model.open(write_model(path, meta, tensors))


def without(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache_types, "FLAGS", replace(FLAGS, attn_rot_disable=True))


def log_probs(model: Model, types: str, device: str = "cpu") -> np.ndarray:
    options: dict[str, Any] = {"activations": "f32"} if device == "cpu" else {}
    context = Context(model, 48, type_k=types, type_v=types, devices=[device], n_threads=1,
                      **options)  # fmt: skip
    logits = np.float64(context.decode(TOKENS * 2, outputs="all"))
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_the_lengths_of_blocks() -> None:
    """Those of llama.cpp, and blocks of 32 where a head is no multiple of 64."""
    q8_0, f16 = DTYPES["q8_0"], DTYPES["f16"]
    assert [rotated_block(q8_0, d) for d in (32, 64, 96, 128, 192, 256, 576)] == [
        32, 64, 32, 128, 64, 256, 64
    ]  # fmt: skip
    assert [rotated_block(q8_0, d, values=True) for d in (32, 96, 128, 512)] == [32, 32, 64, 64]
    assert rotated_block(f16, 64) == 0 == rotated_block(DTYPES["bf16"], 64, values=True)


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_less_is_lost_with_outliers(
    outliers: Model, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = log_probs(outliers, "f32")

    def lost(got: np.ndarray) -> float:
        return float((np.exp(exact) * (exact - got)).sum(-1).mean())

    rotated = log_probs(outliers, dtype)
    definition = lost(log_probs(outliers, dtype, "reference"))
    without(monkeypatch)
    # small numbers have finer steps in iq4_nl, so that outliers cost it less
    part = 0.8 if dtype == "iq4_nl" else 0.5
    assert 0 < lost(rotated) < part * lost(log_probs(outliers, dtype))
    assert lost(rotated) == pytest.approx(definition, rel=0.5)


# ---- in f32, where nothing is rounded, the rotation changes nothing ------------------------------


def rotate_floats(patch: pytest.MonkeyPatch) -> list[int]:
    """Makes caches of f32 rotate as quantized ones do, in blocks as large as heads allow; returns
    the lengths of the blocks that are asked for from now on."""
    asked: list[int] = []

    def block(dtype: object, d: int, *, values: bool = False) -> int:
        n = min(d & -d, 4) if values else d & -d
        asked.append(n)
        return n if n > 1 else 0

    patch.setattr(CacheTypes, "rotated", True)
    patch.setattr(common, "rotated_block", block)
    return asked


ALGEBRA = [
    "falcon", "mpt", "cohere2", "maincoder", "mimo2", "deepseek2", "deepseek32", "hunyuan-dense",
    "gemma4", "kimi", "minimax-m3", "hy_v4", "nanbeige",
]  # fmt: skip
"""Plain, with biases by distance, with windows, with gains behind the rotation by position, with
keys of another size than values, latent, with indexers, with keys of other layers, beside recurrent
layers, with chosen blocks, with sinks and gates, with layers that run several times."""


@pytest.mark.parametrize("name", ALGEBRA)
def test_the_rotation_cancels_out(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", *made(tmp_path, name))

    def run(**options: Any) -> Sequence[np.ndarray]:
        context = Context(Model.open(path), 48, type_k="f32", type_v="f32", n_ubatch=7,
                          devices=["reference"], **options)  # fmt: skip
        first = context.decode(TOKENS[:-1], outputs="all")
        if context.cache.states is None:
            context.seq_add(0, -1, -1, 9)  # keys are rotated back, moved, and rotated again
        return first, context.decode(TOKENS[-1:])

    options: list[dict[str, Any]] = [{}, {"flash": False}]
    if name == "cohere2":
        options.append({"swa_full": False})
    want = [run(**o) for o in options]
    asked = rotate_floats(monkeypatch)
    for (first, moved), o in zip(want, options, strict=True):
        got = run(**o)
        np.testing.assert_allclose(got[0], first, atol=1e-4, rtol=0)
        np.testing.assert_allclose(got[1], moved, atol=2e-4, rtol=0)
    assert max(asked) > 1


def made(tmp_path: Path, name: str) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Metadata and weights of a tiny model of the tables of other tests."""
    if name in OTHERS:
        return make_other(tmp_path, name)
    meta = keys_of(*(RELATIVES | RARE)[name])
    return meta, made_up(configure(tmp_path, meta))


# ---- caches with and without it ------------------------------------------------------------------


def context_of(model: Model, types: str) -> Context:
    return Context(model, 32, type_k=types, type_v=types, devices=["reference"])


def test_states_say_whether_heads_are_rotated(
    outliers: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotated, floats = context_of(outliers, "q8_0"), context_of(outliers, "f16")
    for context in (rotated, floats):
        context.decode(TOKENS)
    states = rotated.save_state(), floats.save_state()
    other = context_of(outliers, "q8_0")
    other.load_state(states[0])
    np.testing.assert_allclose(other.decode([7]), rotated.decode([7]), atol=1e-4)
    with pytest.raises(FormatError, match="its rotated is False, here it is True"):
        other.load_state(unrotated_version(states[0]))
    again = context_of(outliers, "f16")
    again.load_state(unrotated_version(states[1]))
    np.testing.assert_allclose(again.decode([7]), floats.decode([7]), atol=1e-4)
    without(monkeypatch)
    plain = context_of(outliers, "q8_0")
    with pytest.raises(FormatError, match="its rotated is True, here it is False"):
        plain.load_state(states[0])
    plain.decode(TOKENS)
    before = unrotated_version(plain.save_state())
    fresh = context_of(outliers, "q8_0")
    fresh.load_state(before)
    np.testing.assert_allclose(fresh.decode([7]), plain.decode([7]), atol=1e-4)


def unrotated_version(state: bytes) -> bytes:
    """A state as versions before the rotation wrote it."""
    length = int.from_bytes(state[8:12], "little")
    header = state[12 : 12 + length].replace(b'"version": 3', b'"version": 2')
    for word in (b"true", b"false"):
        header = header.replace(b'"rotated": ' + word + b", ", b"")
    body = state[:8] + len(header).to_bytes(4, "little") + header + state[12 + length : -32]
    return body + hashlib.sha256(body).digest()


def test_the_variable_that_people_know(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not flags._read().attn_rot_disable
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    assert flags._read().attn_rot_disable
    monkeypatch.setenv("WEFT_ATTN_ROT_DISABLE", "0")
    assert not flags._read().attn_rot_disable


def test_what_is_measured_and_kept_tells_them_apart(
    outliers: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = CacheTypes("f16", "q4_0")
    makers = [maker_of(context_of(outliers, t)) for t in ("q8_0", "f16")]
    assert pair.rotated and pair.stored == "f16/q4_0 rotated"
    assert CacheTypes("f16", "f16").stored == "f16/f16"
    assert any(
        "rotated heads" in r["about"] for r in context_of(outliers, "q8_0").plan.memory_rows()
    )
    without(monkeypatch)
    assert not pair.rotated and pair.stored == "f16/q4_0"
    assert maker_of(context_of(outliers, "q8_0")) != makers[0]
    assert maker_of(context_of(outliers, "f16")) == makers[1]
