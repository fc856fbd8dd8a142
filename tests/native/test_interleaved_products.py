"""Products with interleaved weights against the same weights as rows, on every target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.block_scales import scale_bytes
from tests.targets import in_turn
from weft import _native, quants
from weft.backends.cpu.repack import has_panels
from weft.dtype import DTYPES, DType, dtype_from_id
from weft.graph.op import OPS
from weft.program import LAYOUTS

TARGETS = [name for name, ok in _native.targets() if ok and _native.interleaved_types(name)]
TYPES = [DTYPES["f32"].id] if not TARGETS else _native.interleaved_types(TARGETS[0])
F32 = DTYPES["f32"]
FLOAT_TARGETS = [t for t in TARGETS if F32.id in _native.interleaved_types(t)]
BF16_TARGETS = [
    t for t in FLOAT_TARGETS if _native.activation_type(t, DTYPES["bf16"].id) == DTYPES["bf16"].id
]
ORDERED = LAYOUTS.index("ordered")
INTERLEAVED = LAYOUTS.index("interleaved")
_UNWRITABLE = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m")


class Product:
    """MUL_MAT of random weights, `matrices` of them, with `columns` activations each."""

    def __init__(self, dtype: DType, rows: int, k: int, columns: int, matrices: int = 1) -> None:
        rng = np.random.default_rng(rows + k + columns)
        values = rng.standard_normal((matrices * rows, k), np.float32)
        if dtype.name == "i2_s":
            ternary = rng.integers(-1, 2, values.size).astype(np.float32) * np.float32(0.7)
            self.weights = np.array(quants.encode_i2_s(ternary)).reshape(-1)
        elif dtype.name in _UNWRITABLE:
            self.weights = rng.integers(0, 256, values.size // dtype.block * dtype.bytes, np.uint8)
        elif not quants.can_encode(dtype):
            blocks = rng.integers(0, 256, (values.size // dtype.block, dtype.bytes), np.uint8)
            scale = scale_bytes(dtype.name, 0.5)
            blocks[:, : len(scale)] = scale
            self.weights = blocks.reshape(-1)
        else:
            self.weights = np.array(quants.encode(values, dtype)).reshape(-1)
        self.dtype, self.rows, self.k, self.columns = dtype, rows, k, columns
        self.matrices = matrices

    def run(
        self,
        target: str,
        interleaved: bool,
        threads: int = 1,
        bias: np.ndarray | None = None,
        record: tuple[float, ...] = (),
        ordered: bool = False,
        activations: DType | None = None,
        seed: int | None = None,
    ) -> np.ndarray:
        """The result, `[matrices, columns, rows]`; `record`: the function of the results.
        `ordered`: rows that are added up in the order of panels. `activations`: another type than
        that of the target. `seed`: of the columns."""
        pool = _native.ThreadPool(threads)
        wanted = activations or dtype_from_id(_native.activation_type(target, self.dtype.id))
        assert wanted is not None
        weights = self.weights
        if interleaved:
            weights = np.zeros_like(self.weights)
            rows = self.matrices * self.rows
            _native.interleave(self.dtype.id, self.weights, weights, rows, self.k, pool)
        rng = np.random.default_rng(self.columns if seed is None else seed)
        x = rng.standard_normal((self.matrices * self.columns, self.k), np.float32)
        blocks = np.zeros(wanted.row_bytes(self.k) * len(x), np.uint8)
        _native.quantize(target, wanted.id, x.reshape(-1), blocks)
        out = np.full((self.matrices, self.columns, self.rows), np.nan, np.float32)
        m = self.matrices
        tensors = [
            _tensor(
                self.dtype, 0, (self.k, self.rows, m), ORDERED if ordered else int(interleaved)
            ),
            _tensor(wanted, 1, (self.k, self.columns, m), 0),
            _tensor(F32, 2, (self.rows, self.columns, m), 0),
        ]
        memory = [weights, blocks, out]
        if bias is not None:
            tensors.append(_tensor(F32, 3, (self.rows, 1, 1), 0))
            memory.append(bias)
        sources = [0, 1] if bias is None else [0, 1, 3]
        step = [OPS["MUL_MAT"].number, 2, 0, len(record), *sources, *[-1] * (10 - len(sources))]
        program = _native.Program.from_tables(
            symbols=[],
            exprs=np.zeros((0, 3), np.int64),
            buffers=[array.nbytes for array in memory],
            names=["w", "x", "y", "bias"][: len(memory)],
            tensors=np.array(tensors, np.int64),
            steps=np.array([step], np.int64),
            stages=np.array([[0, 1]], np.int64),
            params=list(record),
        )
        places = [(array.ctypes.data, array.nbytes) for array in memory]
        _native.Executor.create(program, places, target, pool).run([])
        return out


def _tensor(dtype: DType, buffer: int, ne: tuple[int, int, int], layout: int) -> list[int]:
    row = [dtype.id, buffer, layout]
    row_bytes = dtype.row_bytes(ne[0])
    strides = (dtype.bytes, row_bytes, row_bytes * ne[1], row_bytes * ne[1] * ne[2])
    for size in (*ne, 1, *strides, 0):
        row += [size, -1]
    return row


def _assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """The same sums in another order."""
    assert np.isfinite(got).all()
    error = np.sum((got - want).astype(np.float64) ** 2) / np.sum(want.astype(np.float64) ** 2)
    assert error < 1e-11


@pytest.mark.parametrize(("dtype", "target"), in_turn([dtype_from_id(t) for t in TYPES], TARGETS))
def test_as_plain_rows(dtype: DType, target: str) -> None:
    for columns in (1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 44):
        for rows, k in ((32, 256), (96, 768)):
            product = Product(dtype, rows, k, columns)
            _assert_same(product.run(target, True), product.run(target, False))


@pytest.mark.parametrize("target", FLOAT_TARGETS)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_rows_in_order_have_the_bits_of_panels(target: str, name: str) -> None:
    """So weights of floats can be repacked at any time."""
    for columns in (1, 2, 3, 7, 44, 300):
        for rows, k, matrices in ((32, 2, 1), (77, 518, 1), (64, 4130, 1), (64, 96, 3)):
            product = Product(DTYPES[name], rows, k, columns, matrices)
            for threads in (1, 2):
                got = product.run(target, False, threads, ordered=True)
                np.testing.assert_array_equal(got, product.run(target, True))


@pytest.mark.parametrize("target", BF16_TARGETS)
@pytest.mark.parametrize("columns", [1, 2, 7, 44, 300])
def test_panels_of_f16_have_the_bits_of_rounded_weights(target: str, columns: int) -> None:
    """Panels of f16 times activations of bf16 are rounded on the way, for any number of columns."""
    bf16 = DTYPES["bf16"]
    for rows, k, matrices in ((32, 2, 1), (96, 518, 1), (64, 4130, 1), (64, 96, 3)):
        product = Product(DTYPES["f16"], rows, k, columns, matrices)
        values = product.weights.view(np.float16).astype(np.float32)
        rounded = Product(bf16, rows, k, columns, matrices)
        rounded.weights = np.array(quants.encode(values.reshape(-1, k), bf16)).reshape(-1)
        want = rounded.run(target, True, activations=bf16)
        for ordered in (False, True):
            got = product.run(target, not ordered, ordered=ordered, activations=bf16)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("target", BF16_TARGETS)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_column_has_its_bits_beside_others(target: str, name: str) -> None:
    """Products of bf16 by pairs and by tiles do not depend on the number of columns."""
    bf16 = DTYPES["bf16"]
    for k in (34, 518, 4130):
        product = Product(DTYPES[name], 64, k, 40)
        every = product.run(target, True, activations=bf16)
        for columns in (1, 7, 16, 33):
            product.columns = columns
            got = product.run(target, True, activations=bf16, seed=40)
            np.testing.assert_array_equal(got[0], every[0, :columns])


@pytest.mark.parametrize("target", FLOAT_TARGETS)
def test_rows_in_order_take_bias_and_limits(target: str) -> None:
    product = Product(DTYPES["f16"], 160, 96, 5)
    bias = np.linspace(-30, 30, 160, dtype=np.float32)
    record = (9.0, -11.5, 20.25)
    got = product.run(target, False, bias=bias, record=record, ordered=True)
    np.testing.assert_array_equal(got, product.run(target, True, bias=bias, record=record))


@pytest.mark.parametrize("target", FLOAT_TARGETS)
def test_rows_behind_panels_take_bias_and_limits(target: str) -> None:
    bias = np.linspace(-30, 30, 77, dtype=np.float32)
    for columns in (1, 5, 44, 500):
        product = Product(DTYPES["f32"], 77, 96, columns)
        plain = product.run(target, True)
        _assert_same(plain, product.run(target, False))
        got = product.run(target, True, bias=bias, record=(9.0, -11.5, 20.25))
        np.testing.assert_array_equal(got, np.clip(plain + bias, -11.5, 20.25))


@pytest.mark.parametrize("target", FLOAT_TARGETS)
def test_columns_are_read_wherever_they_lie(target: str) -> None:
    """Three batches of columns with gaps between columns and batches, of an odd depth."""
    rows, k, columns, batches = 64, 37, 11, 3
    rng = np.random.default_rng(5)
    pool = _native.ThreadPool(2)
    rows_of = rng.standard_normal((rows, k), np.float32)
    panels = np.zeros(rows_of.nbytes, np.uint8)
    _native.interleave(F32.id, rows_of.reshape(-1).view(np.uint8), panels, rows, k, pool)
    whole = rng.standard_normal((batches, columns + 2, k + 5), np.float32)
    out = np.full((batches, columns, rows), np.nan, np.float32)
    x = _tensor(F32, 1, (k, columns, batches), 0)
    x[-8:] = [whole.strides[1], -1, whole.strides[0], -1, whole.nbytes, -1, 4 * (k + 5 + 3), -1]
    tensors = [
        _tensor(F32, 0, (k, rows, 1), INTERLEAVED), x, _tensor(F32, 2, (rows, columns, batches), 0)
    ]  # fmt: skip
    memory = [panels, whole, out]
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
    _native.Executor.create(program, places, target, pool).run([])
    np.testing.assert_allclose(out, whole[:, 1 : columns + 1, 3 : k + 3] @ rows_of.T, atol=1e-4)


def test_only_floats_in_panels_are_in_order() -> None:
    if not TARGETS:
        pytest.skip("no target of this machine reads interleaved weights")
    for name, rows, matrices in (("q8_0", 32, 1), ("f16", 24, 1), ("f16", 40, 2)):
        with pytest.raises(ValueError, match="order of panels"):
            Product(DTYPES[name], rows, 64, 1, matrices).run(TARGETS[0], False, ordered=True)


PAIRS = [("avx_vnni", "avx2"), ("amx", "avx512"), ("amx_shim", "avx512")]
"""Targets with products of their own, and the one below each."""


@pytest.mark.parametrize("interleaved", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("dtype", [dtype_from_id(t) for t in TYPES], ids=lambda d: d.name)
@pytest.mark.parametrize(("target", "below"), [p for p in PAIRS if set(p) <= set(TARGETS)])
def test_has_the_bits_of_the_target_below(
    target: str, below: str, dtype: DType, interleaved: bool
) -> None:
    """Sums of codes are exact on both, and floats are added in one order. Tiles add up bf16 in an
    order of their own."""
    if dtype.name == "bf16" and target.startswith("amx"):
        pytest.skip("bf16 is rounded in another order")
    for columns in (1, 2, 3, 4, 5, 6, 7, 13, 44):
        for rows, k in ((96, 768), (33, 2816)):
            if interleaved and not has_panels(dtype, rows):
                continue
            product = Product(dtype, rows, k, columns)
            got, want = (product.run(t, interleaved) for t in (target, below))
            np.testing.assert_array_equal(got, want)


ROWS_ONLY = [d for name, d in DTYPES.items() if name in (*_UNWRITABLE, "nvfp4", "q1_0", "q2_0")]


@pytest.mark.parametrize("dtype", ROWS_ONLY, ids=lambda d: d.name)
@pytest.mark.parametrize(("target", "below"), [p for p in PAIRS if set(p) <= set(TARGETS)])
def test_rows_have_the_bits_of_the_target_below(target: str, below: str, dtype: DType) -> None:
    """Types that have no interleaved panels."""
    for columns in (1, 4, 5, 13, 44):
        product = Product(dtype, 96, 768, columns)
        got, want = (product.run(t, False) for t in (target, below))
        np.testing.assert_array_equal(got, want)


ENDING_IN_ROWS = [dtype_from_id(t) for t in TYPES if DTYPES["i2_s"].id != t]


@pytest.mark.parametrize(("dtype", "target"), in_turn(ENDING_IN_ROWS, TARGETS))
def test_rows_behind_the_last_panel(dtype: DType, target: str) -> None:
    """They stay rows: their bits are those of the same weights as rows, whatever the columns."""
    for columns in (1, 3, 5, 13, 44):
        for rows, k in ((33, 256), (95, 768)):
            product = Product(dtype, rows, k, columns)
            got, want = product.run(target, True, 2), product.run(target, False)
            _assert_same(got, want)
            tail = rows // 32 * 32
            np.testing.assert_array_equal(got[..., tail:], want[..., tail:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["q4_0", "q4_K", "q6_K", "tq2_0"])
def test_depth_and_width_beyond_the_caches(target: str, name: str) -> None:
    for rows, k, columns in ((64, 4096, 700), (64, 4096 + 256, 20), (1024, 512, 130)):
        product = Product(DTYPES[name], rows, k, columns)
        got = product.run(target, True, threads=2)
        _assert_same(got, product.run(target, False, threads=2))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 9, 40])
def test_matrices(target: str, columns: int) -> None:
    product = Product(DTYPES["q8_0"], 64, 512, columns, matrices=3)
    _assert_same(product.run(target, True, threads=2), product.run(target, False))


@pytest.mark.parametrize("target", FLOAT_TARGETS)
@pytest.mark.parametrize("columns", [1, 5, 40])
def test_bias_and_limits_of_float_panels(target: str, columns: int) -> None:
    """The bits of the plain product with a bias added and limits applied; a NaN stays one."""
    product = Product(F32, 160, 2304, columns)
    plain = product.run(target, True)
    bias = np.linspace(-30, 30, 160, dtype=np.float32)
    bias[7] = np.nan
    np.testing.assert_array_equal(product.run(target, True, 2, bias), plain + bias)
    got = product.run(target, True, 2, bias, (9.0, -11.5, 20.25))
    np.testing.assert_array_equal(got, np.clip(plain + bias, -11.5, 20.25))
    got = product.run(target, True, 2, None, (0.0, 0.0, 0.0))
    np.testing.assert_array_equal(got, np.maximum(plain, 0))


def test_float_activations_are_refused() -> None:
    if not TARGETS:
        pytest.skip("no target of this machine reads interleaved weights")
    q4 = DTYPES["q4_0"]
    tensors = [
        _tensor(q4, 0, (64, 32, 1), 1),
        _tensor(F32, 1, (64, 4, 1), 0),
        _tensor(F32, 2, (32, 4, 1), 0),
    ]
    memory = [np.zeros(1 << 13, np.uint8) for _ in range(3)]
    program = _native.Program.from_tables(
        symbols=[],
        exprs=np.zeros((0, 3), np.int64),
        buffers=[m.nbytes for m in memory],
        names=["w", "x", "y"],
        tensors=np.array(tensors, np.int64),
        steps=np.array([[OPS["MUL_MAT"].number, 2, 0, 0, 0, 1, *[-1] * 8]], np.int64),
        stages=np.array([[0, 1]], np.int64),
        params=[],
    )
    with pytest.raises(ValueError, match="need activations of their companion type"):
        places = [(m.ctypes.data, m.nbytes) for m in memory]
        _native.Executor.create(program, places, TARGETS[0], _native.ThreadPool(1))
