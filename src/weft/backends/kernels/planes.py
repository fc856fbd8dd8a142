"""Weights in planes: the layout that GPUs read fast, made on the device when a model is loaded.

In a file, blocks of 18 or 210 bytes, say, follow each other, so that no word of them is aligned and
neighbouring items read far apart. Here the parts of a block are separate. First come 16 bytes for
each 32 elements of the whole tensor (their low bits, one nibble each: element i and i + 16; where
codes have two bits, 8 bytes), then the other parts in planes of their own:

    q4_0, iq4_nl   16 codes, 2 d                    q8_0   16 codes 0..15, 16 codes 16..31, 2 d
    q4_1           16 codes, 4 d m                  mxfp4  16 codes, 1 e
    q5_0, q5_1     16 codes, 4 fifth bits, 2 d or 4 d m
    q4_K           16 codes; once in 256 elements 16: d dmin and the scales as they were
    q5_K           16 codes; once in 256 the same 16; 4 fifth bits
    q6_K           16 codes, 8 upper bits, 2 scales; once in 256 2 d
    q2_K           8 codes of two bits, 2 scales; once in 256 4 d dmin
    q3_K           8 codes of two bits, 4 third bits; once in 256 12 scales as they were, 2 d
    iq4_xs         16 codes; once in 256 8: d and the scales as they were

A tensor has as many bytes as in the file, and every plane begins at a multiple of its own width.
`sources/planes.h` reads the layout, `sources/planes.cl` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Use
from weft.backends.kernels.driver import KernelDriver
from weft.backends.kernels.launch import i32, i64
from weft.backends.kernels.memory import DeviceBufferType, DeviceMemory
from weft.backends.memory import Memory, require_inside
from weft.dtype import DType
from weft.errors import DeviceError
from weft.graph.tensor import Tensor
from weft.program import Layout

U8 = NDArray[np.uint8]

READERS = ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS")
"""Ops whose kernels read planes, as source 0."""

_CHUNK = 4 << 20
"""The bytes of blocks that are sent at a time. While weights are loaded, the device holds as many
bytes besides them."""

_GROUP = 64


class _Format(NamedTuple):
    """The planes of a format: (bytes, number of them in a block), and the way back from their
    parts, each `[blocks, n, bytes]`, to blocks."""

    planes: tuple[tuple[int, int], ...]
    blocks: Callable[..., Sequence[U8]]
    """Parts of the block in the order of the file, `[blocks, bytes]` each."""


def _flat(part: U8) -> U8:
    return part.reshape(len(part), -1)


def _in_pairs(codes: U8) -> U8:
    """Codes of units, 16 bytes each, as the K formats have them: two units a byte, the first one in
    the low bits. `[blocks, 8, 16]` -> `[blocks, 128]`."""
    elements = np.concatenate([codes & 15, codes >> 4], axis=2).reshape(-1, 4, 2, 32)
    return _flat(elements[:, :, 0] | elements[:, :, 1] << 4)


def _bits_across(bits: U8) -> U8:
    """32 fifth bits of each of eight units to 32 bytes with a bit of every unit. `[blocks, 8, 4]`
    -> `[blocks, 32]`."""
    return np.packbits(
        np.unpackbits(bits, axis=2, bitorder="little"), axis=1, bitorder="little"
    ).reshape(-1, 32)


def _in_fours(upper: U8) -> U8:
    """Two bits of each element as the K formats have them: four units a byte. `[blocks, 8, 8]` ->
    `[blocks, 64]`."""
    two = np.concatenate([upper >> n & 3 for n in (0, 2, 4, 6)], axis=2).reshape(-1, 2, 4, 32)
    return _flat(np.bitwise_or.reduce(two << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2))


def _q6_k(codes: U8, upper: U8, scales: U8, d: U8) -> Sequence[U8]:
    low = np.concatenate([codes & 15, codes >> 4], axis=2).reshape(-1, 2, 2, 2, 32)
    # two units share a byte: 0 and 2, 1 and 3 of each four
    ql = low[:, :, 0] | low[:, :, 1] << 4
    return _flat(ql), _in_fours(upper), _flat(scales), _flat(d)


def _codes_last(codes: U8, *others: U8) -> Sequence[U8]:
    """The codes behind the other parts, of which the last comes first."""
    return *(_flat(part) for part in reversed(others)), _flat(codes)


FORMATS: dict[str, _Format] = {
    "q4_0": _Format(((16, 1), (2, 1)), _codes_last),
    "q4_1": _Format(((16, 1), (4, 1)), _codes_last),
    "q5_0": _Format(((16, 1), (4, 1), (2, 1)), _codes_last),
    "q5_1": _Format(((16, 1), (4, 1), (4, 1)), _codes_last),
    "q8_0": _Format(
        ((16, 1), (16, 1), (2, 1)), lambda low, high, d: (_flat(d), _flat(low), _flat(high))
    ),
    "iq4_nl": _Format(((16, 1), (2, 1)), _codes_last),
    "mxfp4": _Format(((16, 1), (1, 1)), _codes_last),
    "q4_K": _Format(((16, 8), (16, 1)), lambda codes, head: (_flat(head), _in_pairs(codes))),
    "q5_K": _Format(
        ((16, 8), (16, 1), (4, 8)),
        lambda codes, head, bits: (_flat(head), _bits_across(bits), _in_pairs(codes)),
    ),
    "q6_K": _Format(((16, 8), (8, 8), (2, 8), (2, 1)), _q6_k),
    "q2_K": _Format(
        ((8, 8), (2, 8), (4, 1)),
        lambda codes, scales, d: (_flat(scales), _in_fours(codes), _flat(d)),
    ),
    "q3_K": _Format(
        ((8, 8), (4, 8), (12, 1), (2, 1)),
        lambda codes, bits, scales, d: (
            _bits_across(bits),
            _in_fours(codes),
            _flat(scales),
            _flat(d),
        ),
    ),
    "iq4_xs": _Format(((16, 8), (8, 1)), _codes_last),
}
"""The formats that have planes, by the name of the type."""


def can_be_planes(leaf: Tensor, uses: Sequence[Use]) -> bool:
    """Whether a weight can have the layout, and all its readers have kernels for it."""
    sizes = [n for n in leaf.ne if isinstance(n, int)]
    return (
        leaf.dtype.name in FORMATS
        and len(sizes) == len(leaf.ne)
        and 0 not in sizes
        and leaf.is_contiguous
        and all(use.source == 0 and use.node.op.name in READERS for use in uses)
    )


class PlanesMemory(DeviceMemory):
    """A tensor in planes on the device. `read` returns its original blocks."""

    __slots__ = ("_dtype", "_forget")

    def __init__(
        self, driver: KernelDriver, memory: DeviceMemory, dtype: DType, forget: Callable[[], None]
    ) -> None:
        super().__init__(driver, memory.buffer, memory.nbytes, keep=memory)
        self._dtype = dtype
        self._forget = forget

    def forget(self) -> None:
        """Makes the next `load` of the same array create other memory."""
        self._forget()

    def write(self, offset: int, data: U8) -> None:
        """Raises DeviceError, because repacked weights are constant."""
        raise DeviceError(
            f"bytes {offset}..{offset + data.nbytes} of repacked weights cannot be written; plan "
            "with repack=False where weights change"
        )

    def copy_from(self, offset: int, source: Memory, source_offset: int, nbytes: int) -> bool:
        """Refuses, as `write`."""
        self.write(offset, np.empty(nbytes, np.uint8))
        return False

    def read(self, offset: int, nbytes: int) -> U8:
        """A copy of bytes of the blocks, assembled from the planes."""
        require_inside(offset, nbytes, self.nbytes)
        size = self._dtype.bytes
        first, last = offset // size, -(-(offset + nbytes) // size)
        n_blocks, at, parts = self.nbytes // size, 0, []
        for width, count in FORMATS[self._dtype.name].planes:
            piece = width * count
            part = super().read(at + first * piece, (last - first) * piece)
            parts.append(part.reshape(-1, count, width))
            at += n_blocks * piece
        blocks = np.concatenate(FORMATS[self._dtype.name].blocks(*parts), axis=1).reshape(-1)
        start = offset - first * size
        return blocks[start : start + nbytes]


class PlanesBufferType:
    """Memory of a device that holds weights as planes."""

    is_host = False
    layout: Layout = "planes"

    def __init__(self, driver: KernelDriver, within: DeviceBufferType) -> None:
        """Takes its bytes from `within`."""
        self.name = f"{within.name}_P16"
        self.device = within.device
        self.alignment = within.alignment
        self.max_size = within.max_size
        self._driver = driver
        self._within = within
        self._loaded: WeakValueDictionary[tuple[int, str], PlanesMemory] = WeakValueDictionary()
        self._lock = Lock()

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the blocks."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because this memory holds only weights that `load` repacks."""
        raise DeviceError(f"{self.name} memory holds repacked weights only, see load()")

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The planes of a tensor, sent in pieces that the device splits; all callers that load the
        same array share them.

        Raises OutOfMemoryError with the number of bytes."""
        key = (id(source), dtype.name)

        def forget(source: object = source) -> None:  # keeps the array alive until it is called
            self._loaded.pop(key, None)

        with self._lock:
            planes = self._loaded.get(key)
            if planes is None:
                blocks = source.reshape(-1).view(np.uint8)
                memory = self._within.allocate(blocks.nbytes)
                self._fill(memory, blocks, dtype)
                planes = self._loaded[key] = PlanesMemory(self._driver, memory, dtype, forget)
        return planes

    def _fill(self, memory: DeviceMemory, blocks: U8, dtype: DType) -> None:
        """Sends the blocks piece by piece; the queue is in order, so that each piece finds the
        staging memory free.

        Waits at the end, so that weights reported as loaded are loaded, and frees the staging
        memory."""
        driver, piece = self._driver, _CHUNK // dtype.bytes * dtype.bytes
        units = dtype.block // 32
        total = blocks.nbytes // dtype.bytes * units
        staging = driver.create(min(piece, blocks.nbytes))
        kernel = driver.kernel("planes.cl", (f"F={dtype.name}",), "pack")
        for start in range(0, blocks.nbytes, piece):
            part = blocks[start : start + piece]
            driver.write(staging, 0, part)
            n = part.nbytes // dtype.bytes * units
            args = (staging, memory.buffer, i64(total), i64(start // dtype.bytes * units),
                    i64(n), i32(units))  # fmt: skip
            what = f"{driver.name}: weights of {blocks.nbytes} bytes could not be repacked"
            with driver.guarded(what):
                kernel.bind(args)
                driver.launch(*driver.prepared(kernel, (-(-n // _GROUP),), (_GROUP,), None))
        driver.wait()

    def __repr__(self) -> str:
        return self.name
