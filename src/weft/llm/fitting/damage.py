"""The squared error of a tensor in another type, as a share of its squares.

Each column is weighted by the mean square of the activations that meet it, where an importance
matrix knows them. Of large tensors, rows at even distances stand for all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.frontends.gguf.importance import Importance
from weft.frontends.gguf.quantize import convert_tensor
from weft.frontends.gguf.tensors import TensorInfo

__all__ = ["relative_error"]

_SAMPLE = 1 << 21
"""Most values that are encoded."""


def relative_error(t: TensorInfo, dtype: DType, importance: Importance | None = None) -> float:
    """sum w (x - q(x))^2 / sum w x^2 over the values of `t` in type `dtype`; 0 for its own type.

    Raises FormatError for values that are not finite."""
    if dtype is t.dtype:
        return 0.0
    part = _sampled(t)
    n = t.ne[0]
    given = None if importance is None else importance.of(t)
    weights = None if given is None else given.mean(axis=0, keepdims=True)
    coded = convert_tensor(part, dtype, weights)
    x = _values(part.data, part)
    error = _values(coded, replace(part, dtype=dtype)) - x
    w = np.ones((1, n), np.float32) if weights is None else weights
    whole = float((w * x * x).sum(dtype=np.float64))
    lost = float((w * error * error).sum(dtype=np.float64))
    return lost / whole if whole > 0 else 0.0


def _sampled(t: TensorInfo) -> TensorInfo:
    """A matrix of rows of a tensor: all, or as many as `_SAMPLE` values are."""
    if t.dtype.name == "i2_s":  # one scale for all rows
        return t
    rows = t.data.reshape(-1, t.dtype.row_bytes(t.ne[0]))
    some = np.ascontiguousarray(rows[:: max(1, len(rows) * t.ne[0] // _SAMPLE)])
    sizes = (t.ne[0], len(some), 1, 1)
    return replace(t, ne=sizes, nbytes=some.nbytes, offset=-1, _make=lambda: some.reshape(-1))


def _values(data: NDArray[np.uint8], t: TensorInfo) -> NDArray[np.float32]:
    """The values of a matrix, f32 [n, ne0]."""
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        return quants.decode_i2_s(data, t.n_elements).reshape(-1, n)
    return quants.decode(data.reshape(-1, t.dtype.row_bytes(n)), t.dtype, n)
