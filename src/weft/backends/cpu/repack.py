"""Weights in layouts of their own: `CPU_R32`, panels of 32 rows, `CPU_T32`, indices of tables for
ternary weights, and `CPU_L32`, panels of levels for codebook weights.

The layouts are defined in `native/src/quants/interleave.h`, `lookup_layout.h` and `levels.h`. A
matrix takes as many bytes as before, at most 1.08 times as many for tq1_0 as indices, and 1.2 to
1.6 times as many as levels. Pages of a mapped file from which it was read are returned to the
system.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import Memory
from weft.dtype import DType
from weft.errors import DeviceError, OutOfMemoryError
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.native import _native
from weft.numa import place_block
from weft.program import Layout

PANEL_ROWS = 32

_ALIGNMENT = 64


def can_repack(tensor: Tensor) -> bool:
    """Whether a matrix, or a stack of them, can have the layout: whole panels, whole words, no
    gaps. One matrix may have rows behind the last panel, which stay rows, but not of i2_s."""
    block = _native.interleaved_block(tensor.dtype.id)
    sizes = [n for n in tensor.ne if isinstance(n, int)]
    return (
        block != 0
        and len(sizes) == 4
        and sizes[0] % block == 0
        and 0 not in sizes
        and has_panels(tensor.dtype, sizes[1], one=sizes[2:] == [1, 1])
        and tensor.is_contiguous
    )


def has_panels(dtype: DType, rows: int, *, one: bool = True) -> bool:
    """True if `rows` rows of a type that has the layout are whole panels, or may end in rows, as
    `one` matrix may, but not of i2_s (`has_panels` in `native/src/quants/interleave.h`)."""
    ends_in_rows = one and not dtype.tail and rows > PANEL_ROWS
    return rows % PANEL_ROWS == 0 or ends_in_rows


def can_look_up(tensor: Tensor) -> bool:
    """Whether a weight can have the lookup layout: one matrix of a ternary type, in whole
    panels."""
    sizes = [n for n in tensor.ne if isinstance(n, int)]
    if len(sizes) != 4 or sizes[2:] != [1, 1] or 0 in sizes or not tensor.is_contiguous:
        return False
    try:
        return bool(_native.lookup_bytes(tensor.dtype.id, sizes[1], sizes[0]))
    except ValueError:
        return False


def can_store_levels(tensor: Tensor) -> bool:
    """Whether a weight can have the levels layout: matrices of a codebook type, in whole panels."""
    sizes = [n for n in tensor.ne if isinstance(n, int)]
    if len(sizes) != 4 or 0 in sizes or sizes[1] % PANEL_ROWS or not tensor.is_contiguous:
        return False
    return _level_bytes(tensor.dtype, sizes) is not None


def _level_bytes(dtype: DType, ne: Sequence[int]) -> int | None:
    """The bytes of matrices of these sizes as levels; None where they cannot be stored so."""
    try:
        return int(_native.level_bytes(dtype.id, ne[1] * ne[2] * ne[3], ne[0]))
    except ValueError:
        return None


def is_ternary(tensor: Tensor, pool: _native.ThreadPool) -> bool:
    """Whether all weights of a whole tensor in host memory are -1, 0 or +1 times a scale; tq2_0 can
    hold a 2."""
    data = None if tensor.buffer is None else tensor.buffer.data
    if data is None:
        return False
    source = data if isinstance(data, np.ndarray) else data.host()
    if source is None:
        return False
    rows = source.reshape(-1).view(np.uint8)
    ne = [upper(n) for n in tensor.ne]
    return bool(_native.is_ternary(tensor.dtype.id, rows, ne[1], ne[0], pool))


class PanelMemory:
    """The repacked bytes of one tensor. `read` returns rows; the host cannot address the bytes as
    rows."""

    __slots__ = ("__weakref__", "_pool", "_row_elements", "_rows", "_source", "dtype", "panels")

    def __init__(
        self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...], pool: _native.ThreadPool
    ) -> None:
        """Repacks `source`, a contiguous array of a whole tensor, on the threads of `pool`."""
        self.dtype = dtype
        self._row_elements = ne[0]
        self._rows = ne[1] * ne[2] * ne[3]
        self._pool = pool
        self._source = source  # keeps the array alive, under whose identity this memory is shared
        self.panels = self._fill(source.reshape(-1).view(np.uint8))
        """The bytes in the layout that the kernels read."""

    def _fill(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        panels = _SLABS.take(rows.nbytes)
        _native.interleave(self.dtype.id, rows, panels, self._rows, self._row_elements, self._pool)
        return panels

    @property
    def nbytes(self) -> int:
        """The size in bytes of the tensor as rows."""
        return int(self._source.nbytes)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        """Raises DeviceError, because repacked weights are constant."""
        raise DeviceError(
            f"bytes {offset}..{offset + data.nbytes} of repacked weights cannot be written; plan "
            "with repack=False where weights change"
        )

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of the rows, unpacked from the panels that hold them."""
        self._check(offset, nbytes)
        n_rows, start, end = self._rows, 0, self.nbytes
        if not self.dtype.tail:
            size = self.nbytes // self._rows * PANEL_ROWS
            whole = self._rows // PANEL_ROWS
            first, last = min(offset // size, whole - 1), -(-(offset + nbytes) // size)
            start = first * size
            if last <= whole:
                n_rows, end = (last - first) * PANEL_ROWS, last * size
            else:
                n_rows -= first * PANEL_ROWS
        rows = np.empty(end - start, np.uint8)
        _native.deinterleave(
            self.dtype.id, self.panels[start:end], rows, n_rows, self._row_elements, self._pool
        )
        return rows[offset - start : offset - start + nbytes]

    def _check(self, offset: int, nbytes: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise DeviceError(
                f"access to bytes {offset}..{offset + nbytes} of a block of {self.nbytes} bytes"
            )

    def host(self) -> None:
        """None, because the host cannot address the bytes as rows."""
        return None


class _OneWayMemory(PanelMemory):
    """A layout from which there is no way back. `read` returns the rows from which it was made."""

    __slots__ = ()

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of the original rows."""
        self._check(offset, nbytes)
        rows: NDArray[np.uint8] = self._source.reshape(-1).view(np.uint8)
        return rows[offset : offset + nbytes].copy()


class LevelMemory(_OneWayMemory):
    """Codebook weights as panels of levels."""

    __slots__ = ()

    def _fill(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = (self._rows, self._row_elements)
        panels = _SLABS.take(_native.level_bytes(self.dtype.id, *size))
        _native.make_levels(self.dtype.id, rows, panels, *size, self._pool)
        return panels


class LookupMemory(_OneWayMemory):
    """A ternary matrix as indices of tables, which do not keep a format's way to write a zero."""

    __slots__ = ()

    def _fill(self, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
        size = (self._rows, self._row_elements)
        panels = _SLABS.take(_native.lookup_bytes(self.dtype.id, *size))
        _native.make_lookup(self.dtype.id, rows, panels, *size, self._pool)
        return panels


class PanelBufferType:
    """Memory of this process that holds weights as panels, repacked on the threads of a pool."""

    name = "CPU_R32"
    device = "cpu"
    alignment = _ALIGNMENT
    max_size: int | None = None
    is_host = False
    layout: Layout = "interleaved"
    _memory: type[PanelMemory] = PanelMemory

    def __init__(self, pool: _native.ThreadPool) -> None:
        self._pool = pool

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the rows."""
        return upper(tensor.nbytes)

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because this memory holds only weights that `load` repacks."""
        raise DeviceError(f"{self.name} memory holds repacked weights only, see load()")

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The repacked bytes of a tensor; all callers that load the same array share them.

        Raises OutOfMemoryError with the number of bytes."""
        key = (id(source), self.layout, dtype.name, ne)
        with _LOCK:
            memory = _SHARED.get(key)
            if memory is None:
                memory = _SHARED[key] = self._memory(source, dtype, ne, self._pool)
                forget_pages(source)
        return memory


class LookupBufferType(PanelBufferType):
    """Memory of this process that holds ternary weights as indices of tables."""

    name = "CPU_T32"
    layout: Layout = "lookup"
    _memory = LookupMemory

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the rows, and somewhat more for tq1_0."""
        ne = [upper(n) for n in tensor.ne]
        return int(_native.lookup_bytes(tensor.dtype.id, ne[1], ne[0]))


class LevelBufferType(PanelBufferType):
    """Memory of this process that holds codebook weights as panels of levels."""

    name = "CPU_L32"
    layout: Layout = "levels"
    _memory = LevelMemory

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the panels, 1.2 to 1.6 times the bytes of the rows."""
        size = _level_bytes(tensor.dtype, [upper(n) for n in tensor.ne])
        assert size is not None
        return size


_SHARED: WeakValueDictionary[tuple[int, str, str, tuple[int, ...]], PanelMemory] = (
    WeakValueDictionary()
)
"""Repacked weights, by the identity of the array from which they were made and keep alive."""
_LOCK = Lock()


def forget_pages(array: NDArray[Any]) -> None:
    """Makes the system drop the resident pages that hold nothing but bytes of `array`.

    It does so where the array is part of a file that is mapped for reading; the pages return from
    the file when they are read."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if not isinstance(base, mmap.mmap) or advice is None:
        return
    whole = np.frombuffer(base, np.uint8)
    if whole.flags.writeable:
        return  # dropping them would lose changes that exist only in memory
    start = array.ctypes.data - whole.ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        base.madvise(advice, first, last - first)


class _Slabs:
    """Bytes for many tensors from few large blocks, which are almost entirely huge pages.

    A block lives as long as any tensor in it; bytes that are not written yet take no memory."""

    SIZE = 64 << 20

    def __init__(self) -> None:
        self._slab: ref[NDArray[np.uint8]] | None = None
        self._used = 0

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Aligned bytes that are not written yet; raises OutOfMemoryError."""
        slab = None if self._slab is None else self._slab()
        if slab is None or self._used + nbytes > slab.nbytes:
            slab = self._new(nbytes)
            self._slab = ref(slab)
            self._used = -slab.ctypes.data % _ALIGNMENT
        start = self._used
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return slab[start : start + nbytes]

    def _new(self, nbytes: int) -> NDArray[np.uint8]:
        least = nbytes + _ALIGNMENT
        for size in (max(self.SIZE, least), least):
            try:
                slab = np.empty(size, np.uint8)  # NumPy asks for huge pages by itself
            except MemoryError:
                continue
            place_block(slab.ctypes.data, size)
            return slab
        raise OutOfMemoryError(
            f"the host has no {nbytes} bytes left for repacked weights; load with repack=False to "
            "use them where they are"
        )


_SLABS = _Slabs()
"""The slabs of this process, guarded by `_LOCK`."""
