"""Products of codebook weights in the levels layout against the same weights as rows, bit for bit,
on every target, and what the layout is not for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.test_interleaved_products import F32, _tensor
from weft import _native, quants
from weft.dtype import DTYPES, DType, dtype_from_id
from weft.graph.op import OPS
from weft.program import LAYOUTS

LEVELS = LAYOUTS.index("levels")
NAMES = ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"]
TARGETS = [name for name, ok in _native.targets() if ok and _native.level_types(name)]


def random_weights(dtype: DType, blocks: int, scale: float = 1.0) -> np.ndarray:
    """Any bytes, but for the blocks' scales, which are between `scale` (a power of two) and twice
    as much."""
    rng = np.random.default_rng(blocks)
    weights = rng.integers(0, 256, (blocks, dtype.bytes), np.uint8)
    top = int(np.float16(scale).view(np.uint16)) >> 8
    if dtype.name == "iq1_m":  # its scale is the highest 4 bits of four words
        weights[:, -3] = weights[:, -3] & 15 | top << 4 & 0xF0
        weights[:, -1] = weights[:, -1] & 15 | top & 0xF0
    else:
        weights[:, 1] = top
    return weights.reshape(-1)


def run(
    dtype: DType, weights: np.ndarray, ne: tuple[int, int, int], columns: int, layout: int,
    target: str, threads: int = 1,
) -> np.ndarray:  # fmt: skip
    """The product with random columns, `[matrices, columns, rows]`."""
    k, rows, m = ne
    x_type = dtype_from_id(_native.activation_type(target, dtype.id))
    assert x_type is not None
    x = np.random.default_rng(columns).standard_normal((m * columns, k), np.float32)
    blocks = np.zeros(x_type.row_bytes(k) * len(x), np.uint8)
    _native.quantize(target, x_type.id, x.reshape(-1), blocks)
    out = np.full((m, columns, rows), np.nan, np.float32)
    memory = [weights, blocks, out]
    tensors = [_tensor(dtype, 0, ne, layout), _tensor(x_type, 1, (k, columns, m), 0),
               _tensor(F32, 2, (rows, columns, m), 0)]  # fmt: skip
    execute(tensors, memory, target, threads)
    return out


def execute(
    tensors: list[list[int]], memory: list[np.ndarray], target: str, threads: int = 1
) -> None:
    program = _native.Program.from_tables(
        symbols=[],
        exprs=np.zeros((0, 3), np.int64),
        buffers=[array.nbytes for array in memory],
        names=["w", "x", "y"],
        tensors=np.array(tensors, np.int64),
        steps=np.array([[OPS["MUL_MAT"].number, 2, 0, 0, 0, 1, *[-1] * 8]], np.int64),
        stages=np.array([[0, 1]], np.int64),
        params=[],
    )
    places = [(array.ctypes.data, array.nbytes) for array in memory]
    _native.Executor.create(program, places, target, _native.ThreadPool(threads)).run([])


def stored(dtype: DType, weights: np.ndarray, rows: int, k: int, threads: int = 1) -> np.ndarray:
    out = np.zeros(_native.level_bytes(dtype.id, rows, k), np.uint8)
    _native.make_levels(dtype.id, weights, out, rows, k, _native.ThreadPool(threads))
    return out


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_bit_for_bit_as_rows(target: str, name: str) -> None:
    dtype = DTYPES[name]
    for rows, k in ((32, 256), (96, 768), (64, 4096)):
        weights = random_weights(dtype, rows * k // 256)
        levels = stored(dtype, weights, rows, k, threads=2)
        for columns in (1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 44):
            want = run(dtype, weights, (k, rows, 1), columns, 0, target)
            got = run(dtype, levels, (k, rows, 1), columns, LEVELS, target, threads=2)
            assert np.isfinite(want).all() and np.abs(want).max() > 1
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_oracle_decodes(target: str, name: str) -> None:
    """Against weights that NumPy decodes and the activations as they were rounded."""
    dtype, rows, k = DTYPES[name], 64, 512
    weights = random_weights(dtype, rows * k // 256)
    x_type = dtype_from_id(_native.activation_type(target, dtype.id))
    assert x_type is not None
    x = np.random.default_rng(3).standard_normal((3, k), np.float32)
    blocks = np.zeros(x_type.row_bytes(k) * 3, np.uint8)
    _native.quantize(target, x_type.id, x.reshape(-1), blocks)
    w = quants.decode(weights, dtype).reshape(rows, k).astype(np.float64)
    rounded = quants.decode(blocks, x_type).reshape(3, k).astype(np.float64)
    got = run(dtype, stored(dtype, weights, rows, k), (k, rows, 1), 3, LEVELS, target)[0]
    np.testing.assert_allclose(got, rounded @ w.T, rtol=1e-5, atol=1e-4 * np.abs(w).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 9, 40])
def test_matrices(target: str, columns: int) -> None:
    dtype, ne = DTYPES["iq2_s"], (512, 64, 3)
    weights = random_weights(dtype, 3 * 64 * 2)
    levels = stored(dtype, weights, 3 * 64, 512)
    want = run(dtype, weights, ne, columns, 0, target)
    np.testing.assert_array_equal(run(dtype, levels, ne, columns, LEVELS, target, 2), want)


def test_bits_of_a_weight() -> None:
    """What docs and comments say of memory."""
    bits = {n: _native.level_bytes(DTYPES[n].id, 32, 256) * 8 / (32 * 256) for n in NAMES}
    assert {n: round(b, 2) for n, b in bits.items()} == {
        "iq1_s": 2.19, "iq1_m": 2.44, "iq2_xxs": 3.19, "iq2_xs": 3.31, "iq2_s": 3.31,
        "iq3_xxs": 4.19, "iq3_s": 4.19,
    }  # fmt: skip


def test_wrong_sizes_are_refused() -> None:
    pool, iq2 = _native.ThreadPool(1), DTYPES["iq2_xs"]
    with pytest.raises(ValueError, match="no levels layout"):
        _native.level_bytes(DTYPES["q4_0"].id, 32, 256)
    for rows, depth in ((31, 256), (32, 128), (-32, 256), (32, 1 << 60)):
        with pytest.raises(ValueError, match="whole blocks, and a multiple of 32 rows"):
            _native.level_bytes(iq2.id, rows, depth)
    weights = np.zeros(32 * iq2.bytes, np.uint8)
    out = np.zeros(_native.level_bytes(iq2.id, 32, 256), np.uint8)
    for source, result in ((weights[1:], out), (weights, out[1:])):
        with pytest.raises(ValueError, match="the bytes of the rows, and level_bytes"):
            _native.make_levels(iq2.id, source, result, 32, 256, pool)
    both = np.zeros(out.nbytes, np.uint8)
    with pytest.raises(ValueError, match="overlap"):
        _native.make_levels(iq2.id, both[: weights.nbytes], both, 32, 256, pool)


@pytest.mark.skipif(not TARGETS, reason="no target of this machine reads levels")
def test_programs_with_levels_where_they_cannot_be() -> None:
    iq2, q8 = DTYPES["iq2_xs"], DTYPES["q8_K"]
    memory = [np.zeros(1 << 16, np.uint8) for _ in range(3)]
    x, y = _tensor(q8, 1, (256, 4, 1), 0), _tensor(F32, 2, (32, 4, 1), 0)
    weights = _tensor(iq2, 0, (256, 32, 1), LEVELS)

    def refuse(tensors: list[list[int]], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            execute(tensors, memory, TARGETS[-1])

    refuse([_tensor(DTYPES["q4_0"], 0, (256, 32, 1), LEVELS), x, y], "does not have that layout")
    refuse([_tensor(iq2, 0, (256, 33, 1), LEVELS), x, y], "not a multiple of 32")
    refuse([weights, _tensor(F32, 1, (256, 4, 1), 0), y], "activations of its companion")
    refuse([weights, x, weights], "in the levels layout; MUL_MAT can neither write it")
    memory[0] = np.zeros(_native.level_bytes(iq2.id, 32, 256) - 1, np.uint8)
    refuse([weights, x, y], "leaves its buffer")
