"""The tensor table: the place of each tensor's bytes, checked before anyone reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DType, dtype_from_id
from weft.errors import FormatError
from weft.frontends.gguf.filemap import Cursor, FileMap, quoted
from weft.frontends.gguf.format import (
    BITNET_TYPES,
    IK_IDS,
    MAX_DIMS,
    REMOVED_TYPES,
    bitnet_bytes,
    tensor_bytes,
)
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.frontends.gguf.row_forms import RowForm

_AGAIN = "download or copy it again"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a file: its type and sizes, and the place of its bytes."""

    name: str
    dtype: DType
    ne: tuple[int, int, int, int]
    """Sizes, innermost first, padded with 1."""
    n_dims: int
    """The number of dimensions that the file lists."""
    offset: int
    """Byte offset from the start of the file (of its shard); -1 for a tensor that is computed when
    it is loaded."""
    nbytes: int
    _map: FileMap = field(repr=False, compare=False)
    _make: Callable[[], NDArray[np.uint8]] | None = field(default=None, repr=False, compare=False)
    _stored: tuple[str, int, int] | None = field(default=None, repr=False, compare=False)
    """For rows of another form in the file: its name, the first byte and the number of bytes."""

    @property
    def stored_type(self) -> str:
        """The name of the type in the file, where rows may have another form than in memory."""
        return self._stored[0] if self._stored else self.dtype.name

    @property
    def extent(self) -> tuple[int, int]:
        """First byte in the file, and the one behind the last."""
        _, start, n = self._stored or ("", self.offset, self.nbytes)
        return start, start + n

    @property
    def stored_nbytes(self) -> int:
        """Number of bytes in the file."""
        return self._stored[2] if self._stored else self.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in NumPy order, outermost first, `n_dims` of them."""
        return self.ne[: self.n_dims][::-1]

    @property
    def n_elements(self) -> int:
        """The product of the sizes."""
        return prod(self.ne)

    @property
    def path(self) -> Path:
        """The file (shard) that holds the bytes."""
        return self._map.path

    @property
    def data(self) -> NDArray[np.uint8]:
        """The stored bytes, uint8 `[nbytes]`, read-only, sharing the mapped file (no copy).

        The array stays valid after the file is closed; a later request for it raises FormatError. A
        tensor that is computed is computed by each request."""
        return self._make() if self._make else self._map.view(self.offset, self.nbytes)


def read_tensors(cursor: Cursor, n: int, alignment: int) -> dict[str, TensorInfo]:
    """Read the `n` tensor infos at `cursor` and check that their data lies in the file, if that is
    whole.

    Raises FormatError naming the tensor: bad or repeated names, bad sizes, unknown types, data that
    is misaligned, outside the file or shared with another tensor."""
    rows: dict[str, tuple[int, tuple[int, ...], int]] = {}
    for i in range(n):
        name = cursor.name(f"the name of tensor {i}")
        if name in rows:
            raise cursor.map.error(
                f"two tensors are called {quoted(name)} (the second is tensor {i}); convert the "
                "model again with names that differ"
            )
        shown = quoted(name)
        ne = _read_sizes(cursor, shown)
        id_ = cursor.u32(f"the type of tensor {shown}")
        offset = cursor.u64(f"the offset of tensor {shown}")
        if offset % alignment:
            raise cursor.map.error(
                f"tensor {shown} has the offset {offset}, not a multiple of the alignment "
                f"{alignment}; the file is damaged or was written wrongly: convert the model again"
            )
        rows[name] = id_, ne, offset

    map_ = cursor.map
    data_start = -(-cursor.at // alignment) * alignment
    _check_shared_numbers(map_, rows, map_.size - data_start, alignment)
    tensors: dict[str, TensorInfo] = {}
    for name, (id_, ne, offset) in rows.items():
        tensors[name] = _place(map_, name, id_, ne, data_start + offset)
    _check_overlaps(map_, tensors)
    return tensors


def _place(map_: FileMap, name: str, id_: int, ne: tuple[int, ...], start: int) -> TensorInfo:
    """The tensor whose bytes begin at `start`. Raises FormatError if they are not in the file."""
    form = _row_form(id_) if id_ in IK_IDS else None
    dtype = form.dtype if form else _type_of(map_, name, id_)
    try:
        n_stored = form.nbytes(ne) if form else 0
        nbytes = tensor_bytes(dtype, ne)
        n_stored = n_stored or nbytes
    except FormatError as e:
        raise map_.error(f"tensor {quoted(name)}: {e}") from None
    if map_.whole and start + n_stored > map_.size:
        raise map_.error(
            f"tensor {quoted(name)} ({(form or dtype).name} {list(ne[::-1])}) takes bytes {start} "
            f"to {start + n_stored}, but the file ends at byte {map_.size}; the file is cut short "
            f"or damaged: {_AGAIN}"
        )
    padded = ne + (1,) * (MAX_DIMS - len(ne))
    ne4 = (padded[0], padded[1], padded[2], padded[3])
    if form is None:
        return TensorInfo(name, dtype, ne4, len(ne), start, nbytes, map_)

    def make() -> NDArray[np.uint8]:
        if not map_.whole and start + n_stored > map_.size:
            return np.broadcast_to(np.zeros(1, np.uint8), (nbytes,))  # as `FileMap.view` has them
        return form.in_memory(map_.view(start, n_stored), ne4[0])

    stored = form.name, start, n_stored
    return TensorInfo(name, dtype, ne4, len(ne), -1, nbytes, map_, make, stored)


def _row_form(id_: int) -> RowForm | None:
    from weft.frontends.gguf.row_forms import ROW_FORMS  # few files need its tables

    return ROW_FORMS.get(id_)


def _read_sizes(cursor: Cursor, shown: str) -> tuple[int, ...]:
    """The sizes of a tensor, whose name errors have as `shown`."""
    n_dims = cursor.u32(f"the dimension count of tensor {shown}")
    if n_dims > MAX_DIMS:
        raise cursor.map.error(
            f"tensor {shown} has {n_dims} dimensions, and {MAX_DIMS} is the most; the file "
            f"is damaged ({_AGAIN}) or the tensor must be reshaped"
        )
    what = f"the sizes of tensor {shown}"
    ne = tuple([cursor.u64(what) for _ in range(n_dims)])
    # A zero size would make an empty tensor; anything from 2^63 up does not fit ggml's int64 sizes.
    if 0 in ne or max(ne, default=1) >= 1 << 63 or prod(ne) >= 1 << 63:
        raise cursor.map.error(
            f"tensor {shown} has the sizes {list(ne[::-1])}; each must be 1 or more and "
            f"their product below 2^63: the file is damaged, {_AGAIN}"
        )
    return ne


def _check_shared_numbers(
    map_: FileMap, rows: dict[str, tuple[int, tuple[int, ...], int]], end: int, alignment: int
) -> None:
    """Raises FormatError for a tensor whose type number stands for another type than weft's.

    bitnet.cpp and ggml use some numbers for different types. Which one a file means is seen by the
    bytes between a tensor and the next one, and by the scales that bitnet.cpp stores beside."""
    if not any(id_ in BITNET_TYPES or id_ == 36 for id_, _, _ in rows.values()):
        return
    by_offset = sorted((offset, name) for name, (_, _, offset) in rows.items())
    for (offset, name), (after, _) in pairwise([*by_offset, (end, "")]):
        id_, ne, _ = rows[name]
        room = after - offset
        blocks = prod(ne) // 32
        if id_ == 36 and 0 <= room - 18 * blocks < alignment:  # iq4_nl_4_4
            raise _removed(map_, name, id_)
        if id_ not in BITNET_TYPES or not bitnet_bytes(id_, ne) <= room < 17 * blocks:
            continue
        # ggml_nbytes of bitnet.cpp counts 32 bytes for the scale.
        if f"{name}_scale" in rows or room < bitnet_bytes(id_, ne) + 32 + alignment:
            raise map_.error(
                f"tensor {quoted(name)} is {BITNET_TYPES[id_]} of bitnet.cpp (type id {id_}), "
                "whose weights are in an order that only the kernel_config.ini of its making "
                "tells, not the file; make an i2_s file from the original model: weft convert "
                "FOLDER OUT --type i2_s, or bitnet.cpp's convert-hf-to-gguf-bitnet.py with "
                "--outtype i2_s"
            )


def _removed(map_: FileMap, name: str, id_: int) -> FormatError:
    return map_.error(
        f"tensor {quoted(name)} has type id {id_} ({REMOVED_TYPES[id_]}), which ggml has dropped; "
        "quantize the original model again"
    )


def _type_of(map_: FileMap, name: str, id_: int) -> DType:
    dtype = dtype_from_id(id_)
    if dtype is not None:
        return dtype
    if id_ in REMOVED_TYPES:
        raise _removed(map_, name, id_)
    whose = " of ik_llama.cpp's" if id_ in IK_IDS else ""
    raise map_.error(
        f"tensor {quoted(name)} has type id {id_}{whose}, which weft does not know; quantize the "
        "model to a type that it does (f16, q8_0, q4_K, ...), or update weft"
    )


def _check_overlaps(map_: FileMap, tensors: dict[str, TensorInfo]) -> None:
    places = sorted((*t.extent, t.name) for t in tensors.values())
    for (_, end, a), (start, last, b) in pairwise(places):
        if start < end:
            raise map_.error(
                f"tensors {quoted(a)} and {quoted(b)} share bytes {start} to "
                f"{min(end, last)}; the file is damaged or was written wrongly: convert the model "
                "again"
            )
