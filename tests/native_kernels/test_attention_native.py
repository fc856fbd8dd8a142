"""Attention, softmax and rope against float64, over shapes and types that the golden cases lack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import nmse
from harness import Operand, refusal, result, run_op, tensor
from numpy.typing import NDArray

import weft
from tests.targets import BUT_PRODUCTS
from weft import graph as g
from weft import quants
from weft.graph.ops import FlashAttnParams, RopeMode, RopeParams, SoftMaxParams
from weft.graph.params import pack

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

pytestmark = pytest.mark.parametrize("target", BUT_PRODUCTS)


def stored(x: F32, dtype: str) -> tuple[Operand, F64]:
    """`x` in a type, as an operand and as the numbers it then holds."""
    if dtype == "f32":
        return tensor(x), x.astype(np.float64)
    if dtype == "f16":
        return tensor(x.astype(np.float16)), x.astype(np.float16).astype(np.float64)
    data = quants.encode(x, dtype)
    decoded = quants.decode(data, dtype, x.shape[-1]).astype(np.float64)
    return tensor(data.view(np.uint16) if dtype == "bf16" else data, dtype), decoded


def attention(q: F32, k: F64, v: F64, mask: Any, scale: float, cap: float = 0) -> F64:
    """[batch, head, token, d] -> [batch, token, head, dv]; rows that see nothing give zeros."""
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = np.einsum("bhtd,bhcd->bhtc", q.astype(np.float64), k) * scale
    if cap:
        s = cap * np.tanh(s / cap)
    if mask is not None:
        s = s + mask.astype(np.float64)
    top = s.max(-1, keepdims=True)
    w = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = w.sum(-1, keepdims=True)
    w = w / np.where(total > 0, total, 1)
    return np.einsum("bhtc,bhcd->bthd", w, v)


SHAPES = [
    # dk, dv, heads, kv heads, tokens, cells
    (1, 1, 1, 1, 1, 1),
    (5, 3, 2, 1, 3, 63),
    (40, 40, 6, 2, 2, 64),
    (64, 64, 7, 1, 1, 65),
    (64, 64, 3, 3, 33, 130),
    (80, 96, 4, 2, 9, 200),
    (128, 128, 8, 2, 5, 300),
    (576, 512, 4, 1, 2, 70),
]


@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: tuple[int, ...], dtype: str, n_threads: int, target: str) -> None:
    dk, dv, heads, kv_heads, tokens, cells = shape
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, heads, tokens, dk)).astype(np.float32)
    k, k64 = stored(rng.normal(size=(2, kv_heads, cells, dk)).astype(np.float32), dtype)
    v, v64 = stored(rng.normal(size=(2, kv_heads, cells, dv)).astype(np.float32), dtype)
    mask = np.where(rng.random((1, 1, tokens, cells)) < 0.3, -np.inf, rng.normal(size=cells))
    mask[..., 0] = 0
    mask = mask.astype(np.float16)
    params = pack(FlashAttnParams(0.2, 0, 5.0))
    dst = result("f32", (dv, heads, tokens, 2))
    got = run_op("FLASH_ATTN_EXT", dst, [tensor(q), k, v, tensor(mask)], params, target, n_threads)
    assert nmse(got, attention(q, k64, v64, mask, 0.2, 5.0)) < 1e-12


@pytest.mark.parametrize(
    ("k_type", "v_type"), [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("f16", "q8_0"), ("q5_1", "bf16")]
)
@pytest.mark.parametrize("tokens", [1, 20])
def test_block_types_of_the_cache(k_type: str, v_type: str, tokens: int, target: str) -> None:
    rng = np.random.default_rng(2)
    q = rng.normal(size=(1, 4, tokens, 96)).astype(np.float32)
    k, k64 = stored(rng.normal(size=(1, 2, 90, 96)).astype(np.float32), k_type)
    v, v64 = stored(rng.normal(size=(1, 2, 90, 96)).astype(np.float32), v_type)
    dst = result("f32", (96, 4, tokens))
    params = pack(FlashAttnParams(0.1))
    got = run_op("FLASH_ATTN_EXT", dst, [tensor(q), k, v], params, target, 2)
    assert nmse(got, attention(q, k64, v64, None, 0.1)) < 1e-12


@pytest.mark.parametrize("tokens", [1, 40])
def test_hidden_cells_are_never_read(tokens: int, target: str) -> None:
    rng = np.random.default_rng(3)
    q = rng.normal(size=(1, 4, tokens, 64)).astype(np.float32)
    kv = rng.normal(size=(1, 2, 200, 64)).astype(np.float32)
    mask = np.zeros((1, 1, tokens, 200), np.float32)
    hidden = (rng.random(200) < 0.5) | (np.arange(200) > 150)
    mask[..., hidden] = -np.inf
    dirty = kv.copy()
    dirty[:, :, hidden] = np.nan
    cache = tensor(dirty.astype(np.float16))
    dst = result("f32", (64, 4, tokens))
    sources = [tensor(q), cache, cache, tensor(mask)]
    got = run_op("FLASH_ATTN_EXT", dst, sources, pack(FlashAttnParams(0.125)), target, 2)
    clean = kv.astype(np.float16).astype(np.float64)
    assert nmse(got, attention(q, clean, clean, mask, 0.125)) < 1e-12


@pytest.mark.parametrize("kv_heads", [1, 3])
@pytest.mark.parametrize("each", [1, 3, 5, 7])
def test_tokens_of_many_sequences(each: int, kv_heads: int, target: str) -> None:
    """`each` tokens a sequence: a block of cells is seen by a few rows in the middle of a tile,
    whose bits are those of the row alone."""
    rng = np.random.default_rng(4)
    n_seq, cells = 33 // each, 80
    tokens, heads = n_seq * each, 2 * kv_heads
    q = rng.normal(size=(1, heads, tokens, 64)).astype(np.float32)
    of_cache = (1, kv_heads, n_seq * cells, 64)
    k, k64 = stored(rng.normal(size=of_cache).astype(np.float32), "f16")
    v, v64 = stored(rng.normal(size=of_cache).astype(np.float32), "f16")
    mask = np.full((1, 1, tokens, n_seq * cells), -np.inf, np.float16)
    for t in range(tokens):
        # the last sequence has the first cells: rows have seen theirs when others see their own
        s = n_seq - 1 - t // each
        mask[..., t, s * cells : (s + 1) * cells - 3 * (t % each)] = 0
    params = pack(FlashAttnParams(0.5))

    def of(first: int, n: int, n_threads: int) -> np.ndarray:
        dst = result("f32", (64, heads, n))
        rows = slice(first, first + n)
        sources = [tensor(q[:, :, rows]), k, v, tensor(mask[:, :, rows])]
        return run_op("FLASH_ATTN_EXT", dst, sources, params, target, n_threads)

    for n_threads in (1, 4):
        got = of(0, tokens, n_threads)
        assert nmse(got, attention(q, k64, v64, mask, 0.5)) < 1e-12
        by_token = got.reshape(tokens, -1)
        for t in (0, tokens // 2, tokens - 1):
            assert np.array_equal(by_token[t], of(t, 1, n_threads).reshape(-1))


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize(
    "shape",
    [
        # heads, kv heads, tokens, cells: parts of a bundle, of a group, of a tile of many rows
        (8, 2, 1, 1000),
        (8, 8, 3, 777),
        (48, 1, 1, 640),
        (6, 2, 20, 517),
    ],
)
def test_cells_shared_out_to_threads(shape: tuple[int, ...], dtype: str, target: str) -> None:
    heads, kv_heads, tokens, cells = shape
    rng = np.random.default_rng(7)
    q = rng.normal(size=(1, heads, tokens, 64)).astype(np.float32)
    k, k64 = stored(rng.normal(size=(1, kv_heads, cells, 64)).astype(np.float32), dtype)
    v, v64 = stored(rng.normal(size=(1, kv_heads, cells, 64)).astype(np.float32), dtype)
    mask = np.where(rng.random((1, 1, tokens, cells)) < 0.5, -np.inf, 0).astype(np.float16)
    mask[..., 200:400] = -np.inf  # whole blocks, and with many threads a part
    mask[..., 0] = 0
    sinks = rng.normal(size=heads).astype(np.float32)
    sources = [tensor(q), k, v, tensor(mask), tensor(sinks)]

    def attend(n_threads: int) -> F32:
        dst = result("f32", (64, heads, tokens))
        params = pack(FlashAttnParams(0.2))
        return run_op("FLASH_ATTN_EXT", dst, sources, params, target, n_threads)

    # a sink is one more cell whose key gives its logit and whose value is zero
    one, zero = np.zeros((1, heads, 1, 64)), np.zeros((1, heads, 1, 64))
    wide = [np.repeat(x, heads // kv_heads, axis=1) for x in (k64, v64)]
    k_all, v_all = (np.concatenate([a, b], 2) for a, b in zip(wide, (one, zero), strict=True))
    extra = np.broadcast_to(sinks[None, :, None, None], (1, heads, tokens, 1))
    whole = np.broadcast_to(mask, (1, heads, tokens, cells))
    expected = attention(q, k_all, v_all, np.concatenate([whole, extra], -1), 0.2)
    for n_threads in (1, 2, 5):
        got = attend(n_threads)
        assert nmse(got, expected) < 1e-12
        for _ in range(5):
            assert (attend(n_threads) == got).all()


def test_sizes_below_those_that_were_planned_for(target: str) -> None:
    """Memory is planned for the largest sizes; smaller ones are cut otherwise."""
    rng = np.random.default_rng(8)
    keys, values = (rng.standard_normal((1200, 128)).astype(np.float16) for _ in "kv")
    q = weft.input("q", (8, g.Sym("n", 1, 40), 64))
    mask = weft.input("m", (g.Sym("n", 1, 40), g.Sym("c", 1, 1200)), "f16")
    k, v = (
        g.view_3d(weft.constant(x, name), 64, mask.ne[0], 2, 256, 128)
        for name, x in (("k", keys), ("v", values))
    )
    graph = weft.Graph(g.flash_attn_ext(q, k, v, mask, scale=0.125).as_output("y"))
    sessions = [
        weft.Session(weft.compile(graph, ["cpu"], n_threads=n, target=target)) for n in (1, 2, 3)
    ]
    k64, v64 = (x.astype(np.float64).reshape(1, 1200, 2, 64).swapaxes(1, 2) for x in (keys, values))
    for n, c in [(1, 1), (1, 255), (1, 257), (1, 1200), (4, 1000), (5, 700), (40, 1200), (33, 3)]:
        x = rng.standard_normal((8, n, 64)).astype(np.float32)
        m = np.where(rng.random((n, c)) < 0.4, -np.inf, 0).astype(np.float16)
        m[:, 0] = 0
        expected = attention(x[None], k64[:, :, :c], v64[:, :, :c], m[None, None], 0.125)
        for session in sessions:
            assert nmse(session.run({"q": x, "m": m})["y"], expected[0]) < 1e-12


def test_a_row_that_sees_nothing_is_zero(target: str) -> None:
    rng = np.random.default_rng(4)
    q = rng.normal(size=(1, 2, 3, 64)).astype(np.float32)
    kv = rng.normal(size=(1, 1, 70, 64)).astype(np.float32)
    mask = np.zeros((1, 1, 3, 70), np.float16)
    mask[:, :, 1] = -np.inf
    cache = tensor(kv)
    dst = result("f32", (64, 2, 3))
    params = pack(FlashAttnParams(0.125))
    got = run_op("FLASH_ATTN_EXT", dst, [tensor(q), cache, cache, tensor(mask)], params, target)
    assert (got[0, 1] == 0).all()
    assert nmse(got, attention(q, kv, kv, mask, 0.125)) < 1e-12


def test_a_mask_per_head_and_sinks(target: str) -> None:
    rng = np.random.default_rng(5)
    q = rng.normal(size=(1, 4, 6, 32)).astype(np.float32)
    kv = rng.normal(size=(1, 2, 50, 32)).astype(np.float32)
    mask = rng.normal(size=(1, 4, 6, 50)).astype(np.float32)
    sinks = rng.normal(size=4).astype(np.float32)
    cache = tensor(kv)
    sources = [tensor(q), cache, cache, tensor(mask), tensor(sinks)]
    got = run_op(
        "FLASH_ATTN_EXT", result("f32", (32, 4, 6)), sources, pack(FlashAttnParams(0.2)), target, 3
    )
    # a sink is one more cell whose value is zero
    k = np.concatenate([kv, np.zeros((1, 2, 1, 32))], axis=2)
    extra = np.broadcast_to(sinks[None, :, None, None], (1, 4, 6, 1))
    assert nmse(got, attention(q, k, k, np.concatenate([mask, extra], -1), 0.2)) < 1e-12


@pytest.mark.parametrize("cells", [64, 192, 200])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_mask_of_numbers_that_hides_nothing(dtype: str, cells: int, target: str) -> None:
    rng = np.random.default_rng(15)
    q = rng.normal(size=(1, 2, 3, 32)).astype(np.float32)
    kv = rng.normal(size=(1, 1, cells, 32)).astype(np.float32)
    mask, mask64 = stored(2 * rng.normal(size=(1, 1, 3, cells)).astype(np.float32), dtype)
    cache = tensor(kv)
    sources = [tensor(q), cache, cache, mask]
    params = pack(FlashAttnParams(0.2))
    got = run_op("FLASH_ATTN_EXT", result("f32", (32, 2, 3)), sources, params, target)
    assert nmse(got, attention(q, kv, kv, mask64, 0.2)) < 1e-12


SINKS = np.array([-300, -5, 0, 5, 120, 3000], np.float32)


@pytest.mark.parametrize("cells", [1, 50, 128])
def test_sinks_far_from_the_scores(cells: int, target: str) -> None:
    rng = np.random.default_rng(16)
    q = 4 * rng.normal(size=(1, 6, 3, 32)).astype(np.float32)
    kv = rng.normal(size=(1, 1, cells, 32)).astype(np.float32)
    cache = tensor(kv)
    sources = [tensor(q), cache, cache, None, tensor(SINKS)]
    params = pack(FlashAttnParams(0.5))
    got = run_op("FLASH_ATTN_EXT", result("f32", (32, 6, 3)), sources, params, target)
    k = np.concatenate([kv, np.zeros((1, 1, 1, 32))], axis=2)
    mask = np.zeros((1, 6, 3, cells + 1))
    mask[..., -1] = SINKS[:, None]
    want = attention(q, k, k, mask, 0.5)
    for head in range(6):  # whose numbers differ by orders of magnitude
        np.testing.assert_allclose(got[:, :, head], want[:, :, head], rtol=2e-5, atol=2e-6)


def test_queries_with_any_strides(target: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 4, 48)).astype(np.float32)  # token, head, d
    q = Operand(x.reshape(-1).view(np.uint8), "f32", (48, 3, 4), (4, 768, 192, 2304))
    kv = rng.normal(size=(1, 4, 20, 48)).astype(np.float32)
    cache = tensor(kv)
    params = pack(FlashAttnParams(0.2))
    got = run_op("FLASH_ATTN_EXT", result("f32", (48, 4, 3)), [q, cache, cache], params, target)
    assert nmse(got, attention(x.swapaxes(0, 1)[None], kv, kv, None, 0.2)) < 1e-12


def test_attention_refuses_in_sentences(target: str) -> None:
    def refused(dst: Operand, *src: Operand | None) -> str:
        return str(refusal("FLASH_ATTN_EXT", dst, src, pack(FlashAttnParams(1)), target))

    def ones(*ne: int) -> Operand:
        return tensor(np.ones(ne[::-1], np.float32))

    q, k, dst = ones(32, 2, 4), ones(32, 9, 2), result("f32", (32, 4, 2))
    assert refused(dst, q, k, k) == "None"
    assert "length" in refused(dst, q, ones(16, 9, 2), k)
    assert "multiple" in refused(dst, q, ones(32, 9, 3), k)
    assert "number" in refused(dst, q, k, ones(32, 8, 2))
    assert "must be [value length" in refused(result("f32", (32, 2, 4)), q, k, k)
    assert "smaller" in refused(dst, q, k, k, ones(8, 2))
    assert "sink" in refused(dst, q, k, k, None, ones(3))
    assert "i32" not in refused(dst, q, tensor(np.ones((2, 9, 32), np.int32)), k)


# -- softmax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 15, 1037, 5000])
@pytest.mark.parametrize("over", ["fresh", "scores", "mask"])
def test_softmax_in_place(n: int, over: str, target: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2, 3, n)).astype(np.float32) * 10
    mask = np.where(rng.random((2, 3, n)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[..., 0] = 1
    a, m = tensor(x), tensor(mask)
    dst = {"fresh": result("f32", (n, 3, 2)), "scores": a, "mask": m}[over]
    got = run_op("SOFT_MAX", dst, [a, m], pack(SoftMaxParams(0.5)), target, 3)
    s = x.astype(np.float64) * 0.5 + mask
    w = np.exp(s - s.max(-1, keepdims=True))
    assert nmse(got[0], w / w.sum(-1, keepdims=True)) < 1e-13


@pytest.mark.parametrize("n", [1, 40, 1037])
def test_softmax_with_sinks(n: int, target: str) -> None:
    rng = np.random.default_rng(17)
    x = rng.normal(size=(2, 6, 3, n)).astype(np.float32) * 10
    mask = rng.normal(size=(2, 6, 3, n)).astype(np.float32)
    sources = [tensor(x), tensor(mask), tensor(SINKS)]
    got = run_op("SOFT_MAX", result("f32", (n, 3, 6, 2)), sources, pack(SoftMaxParams(0.5)), target)
    s = x.astype(np.float64) * 0.5 + mask
    sinks = np.broadcast_to(SINKS.astype(np.float64)[:, None, None], (2, 6, 3, 1))
    top = np.maximum(s.max(-1, keepdims=True), sinks)
    w = np.exp(s - top)
    want = w / (w.sum(-1, keepdims=True) + np.exp(sinks - top))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-30)


def test_softmax_of_strided_scores(target: str) -> None:
    x = np.random.default_rng(8).normal(size=(30, 20)).astype(np.float32)
    across = Operand(x.reshape(-1).view(np.uint8), "f32", (30, 20), (80, 4, 2400, 2400))
    got = run_op("SOFT_MAX", result("f32", (30, 20)), [across], pack(SoftMaxParams()), target)
    w = np.exp(x.T.astype(np.float64))
    assert nmse(got[0, 0], w / w.sum(-1, keepdims=True)) < 1e-13


# -- rope ------------------------------------------------------------------------------------------


def rotated(x: F32, positions: Any, n_dims: int, adjacent: bool, offset: int) -> F64:
    """`x` is [token, head, d]."""
    out = x.astype(np.float64).copy()
    theta = np.asarray(positions, np.float64)[:, None] * 10000.0 ** (
        -np.arange(0, n_dims, 2) / n_dims
    )
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]
    half = n_dims // 2
    first = offset + (2 * np.arange(half) if adjacent else np.arange(half))
    second = first + (1 if adjacent else half)
    a, b = out[..., first], out[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return out


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        (mode, shape)
        for mode in (RopeMode.NORMAL, RopeMode.NEOX)
        for shape in [(128, 128, 0), (96, 64, 0), (80, 20, 0), (10, 6, 0), (64, 32, 16)]
    ],
)
def test_late_positions_stay_exact(
    mode: RopeMode, shape: tuple[int, int, int], in_place: bool, target: str
) -> None:
    d, n_dims, offset = shape
    positions = np.int32([0, 1, 4095, 131071, 1_000_003, -7])
    x = np.random.default_rng(9).normal(size=(6, 5, d)).astype(np.float32)
    a = tensor(x)
    dst = a if in_place else result("f32", (d, 5, 6))
    params = pack(RopeParams(mode, n_dims, n_offset=offset))
    got = run_op("ROPE", dst, [a, tensor(positions)], params, target, 3)[0]
    want = rotated(x, positions, n_dims, mode is RopeMode.NORMAL, offset)
    assert np.max(np.abs(got - want)) < 1e-6 * np.max(np.abs(x))
    back = run_op("ROPE_BACK", dst, [tensor(got), tensor(positions)], params, target)[0]
    assert np.max(np.abs(back - x)) < 1e-6 * np.max(np.abs(x))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rope_of_16_bit_rows(dtype: str, target: str) -> None:
    x = np.random.default_rng(10).normal(size=(4, 3, 64)).astype(np.float32)
    operand, exact = stored(x, dtype)
    params = pack(RopeParams(RopeMode.NEOX, 32))
    positions = np.int32([3, 2, 1, 0])
    got = run_op("ROPE", result(dtype, (64, 3, 4)), [operand, tensor(positions)], params, target)
    want = rotated(exact.astype(np.float32), positions, 32, False, 0)
    assert nmse(quants.from_storage(got[0], dtype), want) < (1e-7 if dtype == "f16" else 1e-5)


def test_frequency_factors_and_linear_scaling(target: str) -> None:
    x = np.random.default_rng(11).normal(size=(3, 2, 16)).astype(np.float32)
    factors = np.float32([1, 2, 3, 4, 5, 6, 7, 8])
    params = pack(RopeParams(RopeMode.NEOX, 16, freq_scale=0.25))
    positions = np.int32([10, 20, 30])
    sources = [tensor(x), tensor(positions), tensor(factors)]
    got = run_op("ROPE", result("f32", (16, 2, 3)), sources, params, target)[0]
    theta = positions[:, None] * 10000.0 ** (-np.arange(8) / 8) / factors * 0.25
    cos, sin = np.cos(theta)[:, None], np.sin(theta)[:, None]
    a, b = x[..., :8], x[..., 8:]
    want = np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)
    assert nmse(got, want) < 1e-13


def test_rope_refuses_in_sentences(target: str) -> None:
    x, positions = tensor(np.ones((3, 2, 16), np.float32)), tensor(np.int32([0, 1, 2]))

    def refused(params: RopeParams, *extra: Operand, at: Operand = positions) -> str:
        dst = result("f32", (16, 2, 3))
        return str(refusal("ROPE", dst, [x, at, *extra], pack(params), target))

    assert refused(RopeParams(RopeMode.NORMAL, 16)) == "None"
    assert "even" in refused(RopeParams(RopeMode.NORMAL, 7))
    assert "within" in refused(RopeParams(RopeMode.NEOX, 18))
    assert "within the row" in refused(RopeParams(RopeMode.NEOX, 16, n_offset=2))
    assert "position" in refused(RopeParams(RopeMode.MROPE, 16))
    assert "i32" in refused(RopeParams(RopeMode.NEOX, 16), at=tensor(np.float32([0, 1, 2])))
    assert "factor" in refused(RopeParams(RopeMode.NEOX, 16), tensor(np.ones(7, np.float32)))
    planes = tensor(np.zeros(12, np.int32))
    assert "section" in refused(RopeParams(RopeMode.MROPE, 16, sections=(99, 0, 0, 0)), at=planes)
