"""A row of attention is the same to the last bit whatever else is in the cache and the batch."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Operand, result, run_op, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.profiles import examples
from tests.targets import BUT_PRODUCTS
from weft import quants
from weft.graph.ops import FlashAttnParams
from weft.graph.params import pack

DK, DV, GROUP, STRIP = 80, 64, 2, 16

TYPES = [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("q8_0", "q8_0"), ("q4_0", "q4_0")]


def stored(x: NDArray[np.float32], dtype: str) -> Operand:
    if dtype in ("f32", "f16"):
        return tensor(x.astype(dtype.replace("f", "float")))
    data = quants.encode(x, dtype)
    return tensor(data.view(np.uint16) if dtype == "bf16" else data, dtype)


def places(rng: np.random.Generator, n: int, n_cells: int, piece: int) -> NDArray[np.int64]:
    """Cells for `n` tokens in order, in strips that are not always neighbours. Tokens keep their
    place in a strip; where `piece` is positive a strip is left and gone on with in the next one."""
    starts = [rng.integers(2) * STRIP]
    while len(starts) < n:
        cell = starts[-1] + 1
        if cell % STRIP == 0:
            cell += STRIP * int(rng.integers(3))
        elif piece and rng.integers(piece) == 0:
            cell += STRIP
        starts.append(cell)
    assert starts[-1] < n_cells
    return np.array(starts)


@settings(max_examples=examples(0.3))
@given(
    seed=st.integers(0, 1 << 30),
    n=st.integers(1, 700),
    window=st.sampled_from([0, 0, 37, 300]),
    queries=st.sampled_from([1, 2, 7, 40]),
    heads=st.sampled_from([1, 3]),
    piece=st.sampled_from([0, 0, 90]),
    cap=st.sampled_from([0.0, 5.0]),
)
@pytest.mark.parametrize(("k_type", "v_type"), TYPES)
@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_rows_alone_and_in_a_crowd(
    target: str,
    k_type: str,
    v_type: str,
    seed: int,
    n: int,
    window: int,
    queries: int,
    heads: int,
    piece: int,
    cap: float,
) -> None:
    rng = np.random.default_rng(seed)
    queries = min(queries, n)
    q = rng.normal(size=(queries, heads * GROUP, DK)).astype(np.float32)
    kv = rng.normal(size=(2, n, heads, 96)).astype(np.float32)
    dk = 96 if k_type.startswith("q") else DK
    q = np.resize(q, (queries, heads * GROUP, dk))
    params = pack(FlashAttnParams(0.3, 0, cap))
    p = np.arange(n)

    def attend(
        rows: NDArray[np.int64],
        cells: NDArray[np.int64],
        n_cells: int,
        n_threads: int,
        others: int = 0,
    ) -> NDArray[np.float32]:
        """The queries `rows` over tokens in `cells` of a cache with rubbish in all others, among
        `others` queries that see the rubbish."""
        crowd = np.random.default_rng(seed + 1)
        k = crowd.normal(size=(heads, n_cells, dk)).astype(np.float32) * 9
        v = crowd.normal(size=(heads, n_cells, 64)).astype(np.float32) * 9
        k[:, cells] = kv[0, :, :, :dk].swapaxes(0, 1)
        v[:, cells] = kv[1, :, :, :64].swapaxes(0, 1)
        m = len(rows) + others
        at = crowd.permutation(m)[: len(rows)] if others else np.arange(m)
        all_q = crowd.normal(size=(heads * GROUP, m, dk)).astype(np.float32)
        all_q[:, at] = q[rows].swapaxes(0, 1)
        mask = np.where(crowd.random((m, n_cells)) < 0.5, 0, -np.inf)
        mask[:, cells] = -np.inf
        position = n - queries + rows[:, None]
        seen = (p <= position) & ((p > position - window) if window else True)
        mask[at] = -np.inf
        mask[at[:, None], cells] = np.where(seen, 0, -np.inf)
        sources = [tensor(all_q[None]), stored(k[None], k_type), stored(v[None], v_type)]
        sources.append(tensor(mask.astype(np.float16)[None, None]))
        dst = result("f32", (64, heads * GROUP, m))
        got = run_op("FLASH_ATTN_EXT", dst, sources, params, target, n_threads)
        return np.asarray(got[0][at])

    every = np.arange(queries)
    alone = attend(every, np.arange(n), n, 1)
    assert np.isfinite(alone).all()
    many = 4 * n + 200
    cells = places(rng, n, many, piece if not window else 0)
    for n_threads in (1, 3):
        assert (attend(every, np.arange(n), n + 70, n_threads) == alone).all()
        assert (attend(every, cells, many, n_threads) == alone).all()
        assert (attend(every, cells, many, n_threads, 33) == alone).all()
        one = every[[int(rng.integers(queries))]]
        assert (attend(one, np.arange(n), n, n_threads) == alone[one]).all()
        assert (attend(one, cells, many, n_threads) == alone[one]).all()


@pytest.mark.parametrize("target", BUT_PRODUCTS)
def test_threads_share_many_chunks(target: str) -> None:
    """Parts of several chunks each: three heads and two threads leave two parts for all of them."""
    rng = np.random.default_rng(5)
    n, queries, heads = 3300, 3, 3
    q = rng.normal(size=(1, heads * GROUP, queries, DV)).astype(np.float32)
    k, v = (stored(rng.normal(size=(1, heads, n, DV)).astype(np.float32), "f16") for _ in "kv")
    # of the last query every other strip is hidden
    mask = np.zeros((1, 1, queries, n), np.float16)
    mask[..., 1, :40] = -np.inf
    mask[..., 2, np.arange(n) // STRIP % 2 == 1] = -np.inf
    params = pack(FlashAttnParams(0.3, 0, 0))

    def attend(n_threads: int, rows: slice) -> NDArray[np.float32]:
        sources = [tensor(np.ascontiguousarray(q[:, :, rows])), k, v]
        sources.append(tensor(np.ascontiguousarray(mask[:, :, rows])))
        m = len(range(queries)[rows])
        dst = result("f32", (DV, heads * GROUP, m))
        return np.asarray(run_op("FLASH_ATTN_EXT", dst, sources, params, target, n_threads)[0])

    alone = attend(1, slice(None))
    for n_threads in (2, 3, 5):
        assert (attend(n_threads, slice(None)) == alone).all()
        for row in range(queries):
            assert (attend(n_threads, slice(row, row + 1))[0] == alone[row]).all()
