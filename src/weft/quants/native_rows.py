"""Rows converted by native code, on several threads: the encoders of files.

They give the bytes of the reference's `ggml_quantize_chunk`, without and with an importance matrix;
where `weft.quants` has an encoder, too, `weft.quants.encode` gives the same bytes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.control_group import usable_processors
from weft.dtype import DType
from weft.native import _native
from weft.quants._blocks import F32, U8

NEEDS_WEIGHTS = frozenset(("iq1_s", "iq2_xxs", "iq2_xs"))
"""Types that the reference can only encode with weights."""

_CHUNK = 1 << 25
"""Number of elements converted by one call; Ctrl-C is noticed between calls."""


class NotFiniteError(Exception):
    """A row has a value that is infinite or not a number."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


@cache
def _converter(n_threads: int, target: str) -> _native.RowConverter:
    return _native.RowConverter(n_threads, target)


def can_convert(source: DType, target: DType, *, weighted: bool) -> bool:
    """Whether `convert_rows` has these types."""
    return bool(_converter(1, "").can(source.id, target.id, weighted))


def convert_rows(
    data: NDArray[Any],
    source: DType,
    target: DType,
    ne0: int,
    *,
    rows_per_matrix: int,
    weights: F32 | None = None,
    n_threads: int | None = None,
    kernels: str = "",
) -> U8:
    """The stored bytes `data` of rows of `ne0` elements in another type, flat.

    `weights` are f32 `[matrices, ne0]`: how much each column counts, for matrices of
    `rows_per_matrix` rows. `kernels` names the target of the code (default: the best one). Raises
    NotFiniteError for values that cannot be encoded."""
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    converter = _converter(n_threads or usable_processors(), kernels)
    row_in, row_out = source.row_bytes(ne0), target.row_bytes(ne0)
    n_rows = flat.size // row_in
    out = np.empty(n_rows * row_out, np.uint8)
    for first, n, matrix in _pieces(n_rows, rows_per_matrix, ne0):
        bad = converter.convert(
            source.id, target.id, flat[first * row_in : (first + n) * row_in],
            out[first * row_out : (first + n) * row_out], ne0, min(n, rows_per_matrix),
            None if weights is None else _of_matrices(weights, ne0, matrix, n, rows_per_matrix),
        )  # fmt: skip
        if bad >= 0:
            raise NotFiniteError(first + bad)
    return out


def _pieces(n_rows: int, per_matrix: int, ne0: int) -> list[tuple[int, int, int]]:
    """(first row, rows, first matrix): whole matrices, or rows of one."""
    most = max(1, _CHUNK // ne0)
    if per_matrix <= most:
        step = most // per_matrix * per_matrix
        return [(r, min(step, n_rows - r), r // per_matrix) for r in range(0, n_rows, step)]
    return [
        (matrix + r, min(most, per_matrix - r), matrix // per_matrix)
        for matrix in range(0, n_rows, per_matrix)
        for r in range(0, per_matrix, most)
    ]


def _of_matrices(weights: F32, ne0: int, matrix: int, n_rows: int, per_matrix: int) -> F32:
    n = max(1, n_rows // per_matrix)
    return np.ascontiguousarray(weights, np.float32).reshape(-1)[matrix * ne0 : (matrix + n) * ne0]
