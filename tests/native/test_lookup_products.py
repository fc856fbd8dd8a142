"""Products by lookups in tables against the same ternary weights as rows, on every target that
looks up: all but those of AVX2."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.test_interleaved_products import F32, _tensor
from weft import _native, quants
from weft.dtype import DTYPES, DType, dtype_from_id
from weft.graph.op import OPS
from weft.program import LAYOUTS

RUNNING = [name for name, ok in _native.targets() if ok]
TARGETS = [name for name in RUNNING if _native.lookup_types(name)]
TYPES = [DTYPES[name] for name in ("tq1_0", "tq2_0", "i2_s")]
LOOKUP = LAYOUTS.index("lookup")


class Ternary:
    """MUL_MAT of random ternary weights with `columns` activations."""

    def __init__(
        self, dtype: DType, rows: int, k: int, columns: int, extreme: bool = False
    ) -> None:
        rng = np.random.default_rng(rows + k + columns)
        signs = rng.integers(-1, 2, (rows, k)).astype(np.float32)
        if extreme:
            signs[:] = np.where(rng.random((rows, 1)) < 0.5, -1, 1)
        if dtype.name == "i2_s":
            self.weights = np.array(quants.encode_i2_s(signs.reshape(-1) * np.float32(0.7)))
        else:
            scales = rng.uniform(0.1, 2, (rows * k // 256, 1)).astype(np.float32)
            values = (signs.reshape(-1, 256) * scales).reshape(rows, k)
            self.weights = np.array(quants.encode(values, dtype))
        self.weights = self.weights.reshape(-1)
        self.dtype, self.rows, self.k, self.columns = dtype, rows, k, columns
        self.x = rng.standard_normal((columns, k), np.float32)
        if extreme:
            self.x[:] = np.where(rng.random((columns, 1)) < 0.5, -1, 1)

    def run(self, target: str, layout: str, threads: int = 1) -> np.ndarray:
        """`[columns, rows]`."""
        pool = _native.ThreadPool(threads)
        wanted = dtype_from_id(_native.activation_type(target, self.dtype.id))
        assert wanted is not None
        weights = self.weights
        if layout == "lookup":
            size = _native.lookup_bytes(self.dtype.id, self.rows, self.k)
            assert size <= 1.1 * self.weights.nbytes
            weights = np.zeros(size, np.uint8)
            _native.make_lookup(self.dtype.id, self.weights, weights, self.rows, self.k, pool)
        elif layout == "interleaved":
            weights = np.zeros_like(self.weights)
            _native.interleave(self.dtype.id, self.weights, weights, self.rows, self.k, pool)
        blocks = np.zeros(wanted.row_bytes(self.k) * self.columns, np.uint8)
        _native.quantize(target, wanted.id, self.x.reshape(-1), blocks)
        out = np.full((self.columns, self.rows), np.nan, np.float32)
        tensors = [
            _tensor(self.dtype, 0, (self.k, self.rows, 1), LAYOUTS.index(layout)),
            _tensor(wanted, 1, (self.k, self.columns, 1), 0),
            _tensor(F32, 2, (self.rows, self.columns, 1), 0),
        ]
        _run(tensors, [weights, blocks, out], target, pool)
        return out


def _run(
    tensors: list[list[int]], memory: list[np.ndarray], target: str, pool: _native.ThreadPool,
    op: str = "MUL_MAT", sources: tuple[int, ...] = (0, 1), dst: int = 2,
) -> None:  # fmt: skip
    src = [*sources, *[-1] * (10 - len(sources))]
    program = _native.Program.from_tables(
        symbols=[],
        exprs=np.zeros((0, 3), np.int64),
        buffers=[array.nbytes for array in memory],
        names=[f"t{i}" for i in range(len(tensors))],
        tensors=np.array(tensors, np.int64),
        steps=np.array([[OPS[op].number, dst, 0, 0, *src]], np.int64),
        stages=np.array([[0, 1]], np.int64),
        params=[],
    )
    places = [(array.ctypes.data, array.nbytes) for array in memory]
    _native.Executor.create(program, places, target, pool).run([])


def _assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """The same integers, with scales multiplied in another order."""
    assert np.isfinite(got).all()
    error = np.sum((got - want).astype(np.float64) ** 2) / np.sum(want.astype(np.float64) ** 2)
    assert error < 1e-12


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_as_plain_rows(target: str, dtype: DType) -> None:
    for columns in (1, 2, 3, 4, 5, 8, 13, 49):
        for rows, k in ((32, 256), (96, 768)):
            product = Ternary(dtype, rows, k, columns)
            _assert_same(product.run(target, "lookup"), product.run(target, "rows"))


@pytest.mark.parametrize("target", [t for t in TARGETS if _native.interleaved_types(t)])
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_bit_for_bit_as_panels(target: str, dtype: DType, columns: int) -> None:
    product = Ternary(dtype, 96, 2048, columns)
    got = product.run(target, "lookup")
    np.testing.assert_array_equal(got, product.run(target, "interleaved"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("threads", [2, 3, 4, 5, 6])
def test_rows_that_do_not_divide_by_the_threads(target: str, dtype: DType, threads: int) -> None:
    for rows in (32, 160, 224, 352):
        for columns in (1, 3, 7):
            product = Ternary(dtype, rows, 512, columns)
            want = product.run(target, "lookup")
            np.testing.assert_array_equal(product.run(target, "lookup", threads), want)
            _assert_same(want, product.run(target, "rows"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_sums_of_the_largest_codes_fit(target: str, dtype: DType) -> None:
    for columns in (1, 4):
        product = Ternary(dtype, 32, 1024, columns, extreme=True)
        _assert_same(product.run(target, "lookup"), product.run(target, "rows"))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_every_bit_pattern(dtype: DType) -> None:
    """i2_s has a second zero, tq1_0 bytes that no encoder writes."""
    rng = np.random.default_rng(5)
    product = Ternary(dtype, 32, 512, 2)
    n = 32 * 512 // dtype.block * dtype.bytes
    codes = rng.integers(0, 256, n, np.uint8)
    if dtype.name == "tq2_0":
        codes &= ~(codes & codes >> 1 & 0x55)  # 2 is no ternary value
    if dtype.name != "i2_s":
        codes.reshape(-1, dtype.bytes)[:, -2:] = np.array([0, 60], np.uint8)
    product.weights[:n] = codes
    for target in TARGETS:
        _assert_same(product.run(target, "lookup"), product.run(target, "rows"))


def test_which_targets_look_up() -> None:
    """AVX2 never gains by it; the others do, with every ternary type."""
    for target in RUNNING:
        types = set() if target in ("avx2", "avx_vnni") else {dtype.id for dtype in TYPES}
        assert set(_native.lookup_types(target)) == types
        if not types:
            with pytest.raises(ValueError, match="this target looks up no weights of this type"):
                Ternary(TYPES[0], 32, 256, 1).run(target, "lookup")


def test_what_is_ternary() -> None:
    pool = _native.ThreadPool(3)
    for dtype in TYPES:
        product = Ternary(dtype, 64, 512, 1)
        assert _native.is_ternary(dtype.id, product.weights, 64, 512, pool)
    product = Ternary(DTYPES["tq2_0"], 64, 512, 1)
    product.weights[66 * 100 + 7] = 0x30  # a code 3
    assert not _native.is_ternary(DTYPES["tq2_0"].id, product.weights, 64, 512, pool)


def test_wrong_sizes_are_refused() -> None:
    pool, tq2 = _native.ThreadPool(1), DTYPES["tq2_0"].id
    with pytest.raises(ValueError, match="no lookup layout"):
        _native.lookup_bytes(DTYPES["q4_0"].id, 32, 256)
    for rows, depth in ((31, 256), (32, 128), (-32, 256), (32, 1 << 60)):
        with pytest.raises(ValueError, match="whole blocks, and a multiple of 32 rows"):
            _native.lookup_bytes(tq2, rows, depth)
    weights = np.zeros(32 * 66, np.uint8)
    out = np.zeros(_native.lookup_bytes(tq2, 32, 256), np.uint8)
    with pytest.raises(ValueError, match="the matrix has 2112 bytes, the array has 2111"):
        _native.make_lookup(tq2, weights[1:], out, 32, 256, pool)
    with pytest.raises(ValueError, match="must have lookup_bytes"):
        _native.make_lookup(tq2, weights, out[:-1], 32, 256, pool)
    with pytest.raises(ValueError, match="overlap"):
        _native.make_lookup(tq2, weights, weights, 32, 256, pool)


def test_programs_with_lookups_where_they_cannot_be() -> None:
    pool, target = _native.ThreadPool(1), TARGETS[-1]
    tq2, q4, q8 = DTYPES["tq2_0"], DTYPES["q4_0"], DTYPES["q8_K"]
    memory = [np.zeros(1 << 17, np.uint8) for _ in range(3)]

    def refuse(tensors: list[list[int]], match: str, **options: object) -> None:
        with pytest.raises(ValueError, match=match):
            _run(tensors, memory, target, pool, **options)  # type: ignore[arg-type]

    x, y = _tensor(q8, 1, (256, 4, 1), 0), _tensor(F32, 2, (32, 4, 1), 0)
    weights = _tensor(tq2, 0, (256, 32, 1), LOOKUP)
    refuse([_tensor(q4, 0, (256, 32, 1), LOOKUP), x, y], "its type does not have that layout")
    refuse([_tensor(tq2, 0, (256, 33, 1), LOOKUP), x, y], "not a multiple of 32")
    refuse([weights, _tensor(F32, 1, (256, 4, 1), 0), y], "activations of their companion type")
    stacked = [_tensor(tq2, 0, (256, 32, 2), LOOKUP), _tensor(q8, 1, (256, 4, 2), 0),
               _tensor(F32, 2, (32, 4, 2), 0)]  # fmt: skip
    refuse(stacked, "only one matrix")
    refuse([weights, x, weights], "in the lookup layout; MUL_MAT can neither write it")
    refuse([_tensor(tq2, 0, (256, 32, 1), 9), x, y], "unknown layout")
    memory[0] = np.zeros(32 * 66 - 1, np.uint8)
    refuse([weights, x, y], "leaves its buffer")
