"""The squared error of a tensor in another type, as a share of its squares.

Each column is weighted by the mean square of the activations that meet it, where an importance
matrix knows them. Of large tensors, rows at even distances stand for all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType
from weft.errors import FormatError
from weft.frontends.gguf.tensors import TensorInfo

__all__ = ["Importance", "relative_error"]

Importance = Mapping[str, NDArray[np.float32]]
"""The weights of the columns of tensors, by name, f32 [ne0] or [n_experts * ne0]."""

_SAMPLE = 1 << 21
"""Most values that are encoded."""


def relative_error(t: TensorInfo, dtype: DType, importance: Importance | None = None) -> float:
    """sum w (x - q(x))^2 / sum w x^2 over the values of `t` in type `dtype`; 0 for its own type.

    Raises FormatError for values that are not finite."""
    if dtype is t.dtype:
        return 0.0
    x = _sampled(t)
    if not np.isfinite(x).all():
        raise FormatError(f"tensor {t.name} has values that are not finite; it cannot be quantized")
    w = (importance or {}).get(t.name)
    weights = np.ones((1, t.ne[0]), np.float32)
    if w is not None and w.size % t.ne[0] == 0:
        weights = w.reshape(-1, t.ne[0]).mean(axis=0, keepdims=True)
    coded = quants.encode(x, dtype)
    error = quants.decode(coded.reshape(len(x), -1).view(np.uint8), dtype, t.ne[0]) - x
    whole = float((weights * x * x).sum(dtype=np.float64))
    lost = float((weights * error * error).sum(dtype=np.float64))
    return lost / whole if whole > 0 else 0.0


def _sampled(t: TensorInfo) -> NDArray[np.float32]:
    """Rows of a tensor as f32 [n, ne0]: all, or as many as `_SAMPLE` values are."""
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        x = quants.decode_i2_s(t.data, t.n_elements).reshape(-1, n)
        return x[:: max(1, len(x) * n // _SAMPLE)]
    rows = t.data.reshape(-1, t.dtype.row_bytes(n))
    return quants.decode(rows[:: max(1, len(rows) * n // _SAMPLE)], t.dtype, n)
