"""The time of a matrix product with its weights in one layout or another, read from memory.

The weights are as many matrices of a shape as fill a buffer beyond the caches, multiplied one after
the other like the layers of a model. Their values do not matter, because no kernel depends on
them.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from weft.backends.cpu.repack import PANEL_ROWS, has_panels
from weft.dtype import DTYPES, DType, dtype_from_id
from weft.errors import DeviceError
from weft.graph.op import OPS
from weft.native import _native
from weft.program import LAYOUTS, Layout
from weft.records import dataclass

_LINE = 64
_MOST_MATRICES = 64
_COMPARED = ("q8_0", "q4_0", "q5_1", "q4_K", "q6_K", "tq2_0", "bf16")
"""Types of weights whose sums tiles form in different ways: by chunk, by half of a chunk, by block,
with minima."""
_ROUNDING = 1e-9
"""The largest NMSE of products of bf16 that were added up in another order."""
_MOST_WORK = 4e9
"""The approximate number of multiply-adds of a run; further matrices are left out."""


@dataclass(frozen=True, slots=True)
class Product:
    """`rows` x `depth` weights of a type, times `columns` activations."""

    dtype: DType
    rows: int
    depth: int
    columns: int

    def check(self) -> None:
        """Raises DeviceError for sizes that are not possible."""
        if min(self.rows, self.depth, self.columns) < 1 or self.depth % self.dtype.block:
            raise DeviceError(
                f"a product of {self.dtype.name} needs rows and columns of at least 1 and a depth "
                f"that is a multiple of {self.dtype.block}, got {self.rows}x{self.depth} times "
                f"{self.columns}"
            )

    def bytes_in(self, layout: Layout) -> int:
        """The bytes of the weights that a kernel reads."""
        if layout == "lookup":
            return lookup_read_bytes(self.dtype, self.rows, self.depth)
        if layout == "levels":
            return int(_native.level_bytes(self.dtype.id, self.rows, self.depth))
        return self.dtype.row_bytes(self.depth) * self.rows

    @property
    def operations(self) -> int:
        """The number of operations; a multiply-add counts as two."""
        return 2 * self.rows * self.depth * self.columns


@dataclass(frozen=True, slots=True)
class Timing:
    """The best of several runs."""

    layout: Layout
    seconds: float
    """Seconds for one matrix."""
    nbytes: int
    operations: int

    @property
    def read(self) -> float:
        """The bytes of weights read per second."""
        return self.nbytes / self.seconds

    @property
    def rate(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds


def lookup_read_bytes(dtype: DType, rows: int, depth: int) -> int:
    """The bytes of lookup indices: 1.75 bits a weight, and the scales of blocks
    (`native/src/quants/lookup_layout.h`)."""
    scales = 0 if dtype.tail else depth // dtype.block * 2
    return rows * (depth // 64 * 14 + scales)


def layouts_of(target: str, dtype: DType, rows: int, depth: int) -> tuple[Layout, ...]:
    """The layouts in which a target's matmul reads such weights; rows come first."""
    layouts: list[Layout] = ["rows"]
    if has_panels(dtype, rows):
        block = _native.interleaved_block(dtype.id)
        if dtype.id in _native.interleaved_types(target) and depth % block == 0:
            layouts.append("interleaved")
    looked_up = rows % PANEL_ROWS == 0 and depth % dtype.block == 0
    if looked_up and dtype.id in _native.lookup_types(target):
        layouts.append("lookup")
    if rows % PANEL_ROWS == 0 and dtype.id in _native.level_types(target):
        layouts.append("levels")
    return tuple(layouts)


def weight_buffer(nbytes: int) -> NDArray[np.uint8]:
    """Aligned bytes that are in memory already."""
    whole = np.empty(nbytes + _LINE, np.uint8)
    start = -whole.ctypes.data % _LINE
    # halves and floats of common sizes: some processors take longer for subnormal ones
    whole.fill(0x3C)
    return whole[start : start + nbytes]


def time_product(
    product: Product,
    layout: Layout,
    target: str,
    pool: _native.ThreadPool,
    buffer: NDArray[np.uint8],
    seconds: float,
) -> Timing:
    """The best time of runs over about `seconds` (at least two), after one that warms up.

    Raises DeviceError where one matrix does not fit into `buffer` and for sizes that are not
    possible."""
    product.check()
    size = _stored_bytes(product, layout)
    if size > buffer.nbytes:
        raise DeviceError(f"a matrix of {size} bytes needs a buffer of at least {size} bytes")
    step = -(-size // _LINE) * _LINE
    work = product.operations / 2
    count = max(1, min(buffer.nbytes // step, _MOST_MATRICES, int(_MOST_WORK / work)))
    run = _executor(product, layout, target, pool, buffer, [i * step for i in range(count)])
    run()
    best, start, runs = float("inf"), perf_counter(), 0
    while runs < 2 or perf_counter() - start < seconds:
        before = perf_counter()
        run()
        best = min(best, perf_counter() - before)
        runs += 1
    return Timing(layout, best / count, product.bytes_in(layout), product.operations)


def wrong_products(target: str, below: str) -> tuple[list[str], int]:
    """The names of products in which a target differs from the one below it, and the number of
    products that were compared.

    Products of quantized weights are sums of whole numbers, which become floats in one order: both
    targets must give the same bits. Those of bf16 may round differently."""
    pool = _native.ThreadPool(1)
    random = np.random.default_rng(0)
    wrong = []
    for name in _COMPARED:
        # columns of a whole tile and of a smaller one; weights as rows and behind their last panel
        product = Product(DTYPES[name], 40, 512, 21)
        values = random.standard_normal((product.rows + product.columns, product.depth), np.float32)
        weights = weight_buffer(_stored_bytes(product, "rows"))
        _native.quantize(below, product.dtype.id, values[: product.rows].reshape(-1), weights)
        results = []
        for kernels in (target, below):
            run = _executor(product, "rows", kernels, pool, weights, [0])
            columns = values[product.rows :].reshape(-1)
            x_type = _native.activation_type(below, product.dtype.id)
            _native.quantize(below, x_type, columns, run.x)
            run()
            results.append(run.y.view(np.float32).astype(np.float64))
        got, want = results
        exact = product.dtype.is_quantized
        most = 0.0 if exact else _ROUNDING * np.sum(want**2)
        if not np.sum((got - want) ** 2) <= most:
            wrong.append(f"MUL_MAT {name} x{product.columns}")
    return wrong, len(_COMPARED)


def _stored_bytes(product: Product, layout: Layout) -> int:
    if layout == "lookup":
        return int(_native.lookup_bytes(product.dtype.id, product.rows, product.depth))
    if layout == "levels":
        return product.bytes_in(layout)
    return product.dtype.row_bytes(product.depth) * product.rows + product.dtype.tail


class _Run:
    """A program that multiplies all matrices; it keeps its memory alive."""

    def __init__(self, executor: _native.Executor, memory: list[NDArray[np.uint8]]) -> None:
        self._executor, self._memory = executor, memory
        self.x, self.y = memory[1:]

    def __call__(self) -> None:
        self._executor.run([])


def _executor(
    product: Product,
    layout: Layout,
    target: str,
    pool: _native.ThreadPool,
    weights: NDArray[np.uint8],
    offsets: list[int],
) -> _Run:
    f32 = DTYPES["f32"]
    x_type = dtype_from_id(_native.activation_type(target, product.dtype.id)) or f32
    rows, depth, columns = product.rows, product.depth, product.columns
    x = weight_buffer(x_type.row_bytes(depth) * columns)
    y = weight_buffer(4 * rows * columns)
    number = LAYOUTS.index(layout)
    tensors = [_tensor(product.dtype, 0, (depth, rows), number, at) for at in offsets]
    tensors.append(_tensor(x_type, 1, (depth, columns), 0, 0))
    tensors.append(_tensor(f32, 2, (rows, columns), 0, 0))
    n = len(offsets)
    op = OPS["MUL_MAT"].number
    memory = [weights, x, y]
    program = _native.Program.from_tables(
        symbols=[],
        exprs=np.zeros((0, 3), np.int64),
        buffers=[array.nbytes for array in memory],
        names=[*(f"w{i}" for i in range(n)), "x", "y"],
        tensors=np.array(tensors, np.int64),
        steps=np.array([[op, n + 1, 0, 0, i, n, *[-1] * 8] for i in range(n)], np.int64),
        stages=np.array([[i, i + 1] for i in range(n)], np.int64),
        params=[],
    )
    places = [(array.ctypes.data, array.nbytes) for array in memory]
    try:
        return _Run(_native.Executor.create(program, places, target, pool), memory)
    except ValueError as error:
        raise DeviceError(f"{product.dtype.name} weights as {layout}: {error}") from error


def _tensor(dtype: DType, buffer: int, ne: tuple[int, int], layout: int, at: int) -> list[int]:
    row = [dtype.id, buffer, layout]
    row_bytes = dtype.row_bytes(ne[0])
    strides = (dtype.bytes, row_bytes, row_bytes * ne[1], row_bytes * ne[1])
    for size in (*ne, 1, 1, *strides, at):
        row += [size, -1]
    return row
