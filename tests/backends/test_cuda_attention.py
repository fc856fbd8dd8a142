"""Attention by CUDA's own kernels, run by the shim, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.backends.cuda_kernels import call, nmse, put, run, view
from weft import quants
from weft.backends.cuda.ops import OWN
from weft.backends.cuda.ops.attention import BLOCKS
from weft.backends.kernels.launch import View
from weft.backends.kernels.ops.norm import slopes
from weft.dtype import find_dtype
from weft.graph.ops.attention import FlashAttnParams


def _cache(values: np.ndarray, dtype: str) -> tuple[View, np.ndarray]:
    """A cache of the type, and its values."""
    kind = find_dtype(dtype)
    if not kind.is_quantized:
        stored = put(values, dtype)
        return stored, np.asarray(quants.decode(stored.buffer, kind)).reshape(values.shape)
    blocks = np.ascontiguousarray(quants.encode(values.astype(np.float32), kind))
    return view(blocks, dtype, values.shape[::-1]), quants.decode(blocks, kind).reshape(
        values.shape
    )


def _want(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, p: Any, sinks: Any
) -> np.ndarray:
    shared, batches = q.shape[1] // k.shape[1], q.shape[0] // k.shape[0]
    k, v = (t.repeat(batches, 0).repeat(shared, 1).astype(np.float64) for t in (k, v))
    scores = np.einsum("bhtd,bhcd->bhtc", q.astype(np.float64), k) * p.scale
    if p.logit_softcap:
        scores = p.logit_softcap * np.tanh(scores / p.logit_softcap)
    if mask is not None:
        slope = np.frombuffer(slopes(q.shape[1], p.max_bias).data, np.float32)
        with np.errstate(invalid="ignore"):
            scores = scores + slope[:, None, None] * mask[:, :, : q.shape[2]]
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], -1)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, where=total > 0, out=np.zeros_like(weights))
    return np.einsum("bhtc,bhcd->bthd", weights[..., : k.shape[2]], v)


def _attend(
    tokens: int,
    cells: int,
    dtype: str = "f16",
    *,
    heads: tuple[int, int] = (4, 2),
    sizes: tuple[int, int] = (64, 64),
    batches: tuple[int, int] = (1, 1),
    masked: bool = True,
    sinks: bool = False,
    seed: int = 0,
    **more: float,
) -> tuple[np.ndarray, np.ndarray]:
    """What the kernels give and what is wanted."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((batches[0], heads[0], tokens, sizes[0])).astype(np.float32)
    k, keys = _cache(rng.standard_normal((batches[1], heads[1], cells, sizes[0])), dtype)
    v, values = _cache(rng.standard_normal((batches[1], heads[1], cells, sizes[1])), dtype)
    visible = np.tri(tokens, cells, cells - tokens, dtype=bool)[None, None]
    mask = np.where(visible, -rng.uniform(0, 2, visible.shape), -np.inf) if masked else None
    if mask is not None and tokens > 2:
        mask[0, 0, 1] = -np.inf  # a row that sees nothing
    sink = rng.standard_normal(heads[0]) if sinks else None
    p = FlashAttnParams(**{"scale": 0.125, "max_bias": 0.0, "logit_softcap": 0.0, **more})
    d = view(
        np.full((batches[0], tokens, heads[0], sizes[1]), np.nan, np.float32),
        "f32",
        (sizes[1], heads[0], tokens, batches[0]),
    )
    extra = (None if mask is None else put(mask, "f16"), None if sink is None else put(sink))
    run(OWN["FLASH_ATTN_EXT"](call("FLASH_ATTN_EXT", d, put(q), k, v, *extra, params=p)))
    rounded = None if mask is None else mask.astype(np.float16).astype(np.float64)
    return d.buffer, _want(q, keys, values, rounded, p, sink)


@pytest.mark.parametrize("dtype", ["f16", "bf16", *BLOCKS])
def test_types_of_caches(dtype: str) -> None:
    got, want = _attend(7, 96, dtype)
    assert nmse(got, want) < (1e-4 if dtype == "bf16" else 1e-6)


@pytest.mark.parametrize("cells", [1, 15, 77])
@pytest.mark.parametrize("sizes", [(80, 80), (128, 128), (192, 128), (256, 256), (16, 48)])
def test_sizes_of_heads(sizes: tuple[int, int], cells: int) -> None:
    got, want = _attend(2, cells, sizes=sizes, masked=False)
    assert nmse(got, want) < 1e-6


@pytest.mark.parametrize("tokens", [1, 3])
def test_cells_in_parts(tokens: int) -> None:
    got, want = _attend(tokens, 600, sinks=True)
    assert nmse(got, want) < 1e-6


def test_many_rows() -> None:
    """More than a block has, of heads that share keys, in several batches."""
    got, want = _attend(37, 130, heads=(6, 2), batches=(4, 2), sinks=True)
    assert nmse(got, want) < 1e-6


def test_soft_caps_and_slopes() -> None:
    got, want = _attend(3, 70, logit_softcap=5.0, max_bias=8.0)
    assert nmse(got, want) < 1e-6


def test_a_token_has_one_result() -> None:
    """However many tokens are beside it."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((1, 4, 9, 64)).astype(np.float32)
    k, v = (put(rng.standard_normal((1, 2, 300, 64)), "f16") for _ in range(2))
    p = FlashAttnParams(0.125, 0.0, 0.0)

    def attend(part: np.ndarray) -> np.ndarray:
        n = part.shape[2]
        d = view(np.zeros((1, n, 4, 64), np.float32), "f32", (64, 4, n, 1))
        run(OWN["FLASH_ATTN_EXT"](call("FLASH_ATTN_EXT", d, put(part), k, v, params=p)))
        return d.buffer

    together = attend(q)
    np.testing.assert_array_equal(attend(q[:, :, :1]), together[:, :1])
    np.testing.assert_array_equal(attend(q[:, :, 4:7]), together[:, 4:7])


def test_other_calls_are_left_to_other_kernels() -> None:
    rng = np.random.default_rng(4)
    p = FlashAttnParams(0.125, 0.0, 0.0)

    def launches(size: int, dtype: str) -> Any:
        q = put(rng.standard_normal((1, 2, 1, size)))
        k = put(rng.standard_normal((1, 2, 8, size)), dtype)
        d = view(np.zeros((1, 1, 2, size), np.float32), "f32", (size, 2, 1, 1))
        return OWN["FLASH_ATTN_EXT"](call("FLASH_ATTN_EXT", d, q, k, k, params=p))

    assert launches(72, "f16") is None  # not a multiple of 16
    assert launches(512, "f16") is None  # more than registers hold
    assert launches(64, "f32") is None  # more than f16 holds
    assert launches(64, "f16") is not None
