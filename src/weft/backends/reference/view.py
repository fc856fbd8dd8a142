"""`ArrayView`: a tensor in memory, read and written as a NumPy array.

Arrays have the shape `ne[::-1]`, so axis -1 is ggml's dimension 0. A *unit* is what memory moves as
a whole: an element, or a block of a block type. Strides of any kind are respected in both
directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import DeviceError

Sizes = tuple[int, int, int, int]


class ArrayView:
    """`ne` sizes and `nb` byte strides, innermost first, from byte `offset` of `data` on.

    `units` is the strided array over the memory itself; for block types an element of it is one
    block (dtype `V<bytes>`), and axis -1 counts blocks. Raises DeviceError when the tensor does not
    lie inside `data`."""

    __slots__ = ("data", "dtype", "name", "nb", "ne", "offset", "shape", "units")

    def __init__(
        self,
        dtype: DType,
        ne: Sizes,
        nb: Sizes,
        data: NDArray[np.uint8],
        offset: int = 0,
        name: str = "",
    ) -> None:
        self.dtype = dtype
        self.ne = ne
        self.nb = nb
        self.data = data
        self.offset = offset
        self.name = name
        self.shape = ne[::-1]
        unit = np.dtype(f"V{dtype.bytes}") if dtype.is_quantized else dtype.storage
        n_units = dtype.row_bytes(ne[0]) // dtype.bytes
        try:
            self.units: NDArray[Any] = np.ndarray(
                (ne[3], ne[2], ne[1], n_units), unit, data.data, offset, nb[::-1]
            )
        except (ValueError, TypeError) as error:
            raise DeviceError(
                f"tensor {name or '?'} {dtype.name} ne {list(ne)} nb {list(nb)} at byte {offset} "
                f"does not fit its buffer of {data.nbytes} bytes"
            ) from error

    def read(self) -> NDArray[Any]:
        """The values: float32 for f16, bf16 and block types, else the element type.

        May alias the memory: never write to the result."""
        if self.dtype.name == "i2_s":
            return self._read_i2_s()
        return self.decode(self.units)

    def f64(self) -> NDArray[np.float64]:
        """The values as float64, the precision that sums and functions are computed in."""
        return self.read().astype(np.float64)

    def decode(self, units: NDArray[Any]) -> NDArray[Any]:
        """Values of `units` of this tensor's type `[..., n_units]`, as `read` gives them."""
        if self.dtype.is_quantized:
            return quants.decode(as_bytes(units, self.dtype), self.dtype)
        if self.dtype.name in ("f16", "bf16"):
            return quants.from_storage(units, self.dtype)
        return units

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """The inverse of `decode`: values `[..., ne0]` as units of this tensor's type, rounded as
        ggml does.

        Raises UnsupportedOpError for a type that cannot be written at run time."""
        stored = quants.to_storage(values, self.dtype)
        return stored.view(self.units.dtype) if self.dtype.is_quantized else stored

    def write(self, values: NDArray[Any]) -> None:
        """Stores values that broadcast to `shape`."""
        if self.dtype.is_quantized and values.shape != self.shape:
            values = np.broadcast_to(values, self.shape)
        self.units[...] = self.encode(values)

    def write_activation(self, values: NDArray[Any]) -> None:
        """Stores values with the rounding of a matmul's activations (q8_0, q8_1, q8_K, f16,
        bf16)."""
        if not self.dtype.is_quantized:
            return self.write(values)
        raw = quants.encode_activation(np.ascontiguousarray(values, np.float32), self.dtype)
        self.units[...] = raw.view(self.units.dtype)

    def write_like(self, source: ArrayView, units: NDArray[Any]) -> None:
        """Stores `units` of `source`'s type; they are moved unchanged when the types agree."""
        if source.dtype is self.dtype:
            self.units[...] = units
        else:
            self.write(source.decode(units))

    def part(self, ne: Sizes, nb: Sizes, offset: int) -> ArrayView:
        """Another view of the same memory, `offset` bytes further on."""
        return ArrayView(self.dtype, ne, nb, self.data, self.offset + offset, self.name)

    def _read_i2_s(self) -> NDArray[np.float32]:
        """All values of an i2_s tensor; its scale lies behind its last block."""
        n = self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]
        whole = self.data[self.offset : self.offset + quants.i2_s_bytes(n)]
        return quants.decode_i2_s(whole, n).reshape(self.shape)


def as_bytes(units: NDArray[Any], dtype: DType) -> NDArray[np.uint8]:
    """The bytes `[..., n * bytes]` of units `[..., n]`, contiguous."""
    packed = np.ascontiguousarray(units)
    return packed.view(np.uint8).reshape(*packed.shape[:-1], packed.shape[-1] * dtype.bytes)
