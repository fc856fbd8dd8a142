"""`Case`: one op with certain types and sizes, and random data to run it on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.graph.node import leaf
from weft.graph.tensor import Buffer, Tensor
from weft.records import dataclass

Array = NDArray[Any]
Make = Callable[[np.random.Generator], Array]

_POOL = 96
"""The number of blocks that are encoded once per format to draw from, as encoding is slow."""

Build: TypeAlias = "Callable[[Sources], Tensor]"


@dataclass(frozen=True)
class Case:
    """A use of an op. `build` makes the node from the sources that it requests."""

    op: str
    """The row of the op table."""
    variant: str
    """The difference from the op's other cases, e.g. `q4_K` or `GELU f16`."""
    build: Build
    limit: float = 1e-7
    """The largest NMSE against the reference backend; 0: the elements must be equal."""
    role: str = ""
    """The column of the format table, for ops that take formats: e.g. `MUL_MAT` or `CPY to`."""
    format: str = ""
    """The row of the format table, for ops that take formats."""

    @property
    def name(self) -> str:
        """The name in messages, such as `MUL_MAT q4_K`."""
        return f"{self.op} {self.variant}".rstrip()

    def node(self) -> Tensor:
        """The node over inputs without data, for questions about support."""
        return self.build(Sources(with_data=False))


def bound(function: Callable[..., Tensor], *arguments: object) -> Build:
    """`function(sources, *arguments)` with the present values of loop variables."""
    return lambda sources: function(sources, *arguments)


class Sources:
    """Makes the leaves of a case, with random data from the seed and the leaf's number."""

    def __init__(self, seed: int = 0, *, with_data: bool = True) -> None:
        self._seed = seed
        self._with_data = with_data
        self._count = 0
        self.data: dict[str, Array] = {}
        """The data of each input in storage form; shape ne[::-1]."""

    def normal(self, *ne: int, dtype: str = "f32", scale: float = 1.0) -> Tensor:
        """Normally distributed elements; sizes innermost first."""
        kind = find_dtype(dtype)
        if kind.is_quantized:
            return self._put(kind, ne, lambda rng: random_blocks(kind, ne, rng))
        return self._put(kind, ne, lambda rng: rng.standard_normal(ne[::-1]) * scale)

    def uniform(self, low: float, high: float, *ne: int, dtype: str = "f32") -> Tensor:
        """Evenly distributed elements."""
        return self._put(find_dtype(dtype), ne, lambda rng: rng.uniform(low, high, ne[::-1]))

    def integers(self, high: int, *ne: int, dtype: str = "i32") -> Tensor:
        """Whole numbers 0 .. high-1."""
        return self._put(find_dtype(dtype), ne, lambda rng: rng.integers(0, high, ne[::-1]))

    def distinct(self, high: int, n: int, *more: int, dtype: str = "i32") -> Tensor:
        """Rows of `n` different whole numbers below `high`."""

        def make(rng: np.random.Generator) -> Array:
            rows = [rng.permutation(high)[:n] for _ in range(prod(more))]
            return np.array(rows).reshape(*more[::-1], n)

        return self._put(find_dtype(dtype), (n, *more), make)

    def fixed(self, values: Any, dtype: str = "f32") -> Tensor:
        """These elements, shape ne[::-1]."""
        array = np.asarray(values)
        return self._put(find_dtype(dtype), array.shape[::-1], lambda rng: array)

    def weights(self, dtype: str, *ne: int) -> Tensor:
        """A weight: a constant that lives in the device's memory."""
        kind = find_dtype(dtype)
        if not self._with_data:
            return self._put(kind, ne, lambda rng: np.zeros(0))
        rng = self._rng()
        if kind.name == "i2_s":
            data = quants.encode_i2_s(rng.choice([-0.5, 0.0, 0.5], ne[::-1]).astype(np.float32))
        elif kind.is_quantized:
            data = random_blocks(kind, ne, rng)
        else:
            data = quants.to_storage(rng.standard_normal(ne[::-1]).astype(np.float32), kind)
        return leaf(kind, ne, f"w{self._count}", buffer=Buffer("weights", data=data))

    def _rng(self) -> np.random.Generator:
        self._count += 1
        return np.random.default_rng((self._seed, self._count))

    def _put(self, dtype: DType, ne: tuple[int, ...], make: Make) -> Tensor:
        rng = self._rng()
        name = f"x{self._count}"
        if self._with_data:
            values = make(rng)
            if not dtype.is_quantized:
                values = _stored(values, dtype)
            self.data[name] = values
        return leaf(dtype, ne, name, frozenset({"input"}))


def _stored(values: Array, dtype: DType) -> Array:
    if dtype.storage.kind == "i":
        return values.astype(dtype.storage)
    return quants.to_storage(values.astype(np.float32), dtype)


def random_blocks(dtype: DType, ne: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Rows of random blocks, uint8 `[..., row bytes]`, drawn from a pool of the format."""
    pool = _pool(dtype.name)
    rows = prod(ne[1:])
    chosen = rng.integers(0, len(pool), (rows, ne[0] // dtype.block))
    return np.ascontiguousarray(pool[chosen]).reshape(*ne[:0:-1], dtype.row_bytes(ne[0]))


@cache
def _pool(name: str) -> Array:
    """Blocks `[_POOL, bytes]` of encoded normal numbers.

    For formats without an encoder they are random bytes whose values are of an ordinary size."""
    dtype = find_dtype(name)
    rng = np.random.default_rng(dtype.id)
    if quants.can_encode(dtype):
        values = rng.standard_normal((_POOL, dtype.block)).astype(np.float32)
        return np.asarray(quants.encode(values, dtype)).reshape(_POOL, dtype.bytes)
    blocks: list[Array] = []
    while len(blocks) < _POOL:
        raw = rng.integers(0, 256, (8 * _POOL, dtype.bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(quants.decode(raw, dtype)).max(axis=1)
        blocks.extend(raw[(largest > 0.05) & (largest < 20)])
    return np.array(blocks[:_POOL])
