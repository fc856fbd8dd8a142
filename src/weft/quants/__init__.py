"""NumPy encoding and decoding of every type of `weft.dtype`: the definition of the block formats.

The native kernels are tested against this package; the reference backend and `weft quantize` use
it. There are three encoders, because the reference has three:

- `encode` makes the bytes of a file: ggml's `ggml_quantize_chunk` without an importance matrix.
- `encode_runtime` makes the bytes that an op writes (CPY, SET_ROWS, a KV cache). It differs for
  iq4_nl (no search for the best scale), and in corner cases for q8_0 and for f16 NaNs.
- `encode_activation` quantizes the second operand of a matmul: q8_0, q8_1 or q8_K.

Each gives the reference's bytes. The layouts are described at the top of the modules: `_legacy`
(q4_0 ... q8_1), `_k` (q2_K ... q8_K), `_iq4`, `_iq` (codebook types), `_ternary` (tq1_0, tq2_0,
i2_s, q1_0, q2_0), `_fp4` (mxfp4, nvfp4), `_ik` (ik_llama.cpp's), `_blocks` (f16, bf16).

Shapes: values are `[..., ne0]`, bytes `[..., row_bytes]`; leading axes are kept. i2_s has one scale
for a whole tensor and therefore functions of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.dtype import DType, find_dtype
from weft.errors import GraphError, UnsupportedOpError
from weft.quants import _fp4, _ik, _iq, _iq4, _k, _legacy, _ternary
from weft.quants._blocks import (
    F32,
    U8,
    bf16_from_f32,
    bf16_to_f32,
    f16_from_f32,
    f16_from_f32_runtime,
)
from weft.quants._iq4 import LEVELS as IQ4_LEVELS
from weft.quants._iq_tables import grid
from weft.quants._legacy import with_codes, with_nibbles
from weft.quants._ternary import decode_i2_s, encode_i2_s, i2_s_bytes

__all__ = [
    "IQ4_LEVELS",
    "bf16_from_f32",
    "bf16_to_f32",
    "can_encode",
    "decode",
    "decode_i2_s",
    "encode",
    "encode_activation",
    "encode_i2_s",
    "encode_runtime",
    "from_storage",
    "grid",
    "i2_s_bytes",
    "to_storage",
    "with_codes",
    "with_nibbles",
]

Decoder = Callable[[U8], F32]
Encoder = Callable[[F32], U8]

_DECODERS: dict[str, Decoder] = {
    "q4_0": _legacy.decode_q4_0,
    "q4_1": _legacy.decode_q4_1,
    "q5_0": _legacy.decode_q5_0,
    "q5_1": _legacy.decode_q5_1,
    "q8_0": _legacy.decode_q8_0,
    "q8_1": _legacy.decode_q8_1,
    "q2_K": _k.decode_q2_K,
    "q3_K": _k.decode_q3_K,
    "q4_K": _k.decode_q4_K,
    "q5_K": _k.decode_q5_K,
    "q6_K": _k.decode_q6_K,
    "q8_K": _k.decode_q8_K,
    "iq1_s": _iq.decode_iq1_s,
    "iq1_m": _iq.decode_iq1_m,
    "iq2_xxs": _iq.decode_iq2_xxs,
    "iq2_xs": _iq.decode_iq2_xs,
    "iq2_s": _iq.decode_iq2_s,
    "iq3_xxs": _iq.decode_iq3_xxs,
    "iq3_s": _iq.decode_iq3_s,
    "iq4_nl": _iq4.decode_iq4_nl,
    "iq4_xs": _iq4.decode_iq4_xs,
    "tq1_0": _ternary.decode_tq1_0,
    "tq2_0": _ternary.decode_tq2_0,
    "mxfp4": _fp4.decode_mxfp4,
    "nvfp4": _fp4.decode_nvfp4,
    "q1_0": _ternary.decode_q1_0,
    "q2_0": _ternary.decode_q2_0,
    "q6_0": _ik.decode_q6_0,
    "iq2_bn": _ik.decode_iq2_bn,
    "iq2_k": _ik.decode_iq2_k,
    "iq3_k": _ik.decode_iq3_k,
    "iq4_k": _ik.decode_iq4_k,
    "iq5_k": _ik.decode_iq5_k,
    "iq6_k": _ik.decode_iq6_k,
    "iq2_ks": _ik.decode_iq2_ks,
    "iq3_ks": _ik.decode_iq3_ks,
    "iq4_ks": _ik.decode_iq4_ks,
    "iq5_ks": _ik.decode_iq5_ks,
    "iq2_kl": _ik.decode_iq2_kl,
    "iq1_kt": _ik.decode_iq1_kt,
    "iq2_kt": _ik.decode_iq2_kt,
    "iq3_kt": _ik.decode_iq3_kt,
    "iq4_kt": _ik.decode_iq4_kt,
    "iq1_m_r4": _ik.decode_iq1_m_r4,
    "q8_KV": _ik.decode_q8_KV,
}

_ENCODERS: dict[str, Encoder] = {
    "q4_0": _legacy.encode_q4_0,
    "q4_1": _legacy.encode_q4_1,
    "q5_0": _legacy.encode_q5_0,
    "q5_1": _legacy.encode_q5_1,
    "q8_0": _legacy.encode_q8_0,
    "q2_K": _k.encode_q2_K,
    "q3_K": _k.encode_q3_K,
    "q4_K": _k.encode_q4_K,
    "q5_K": _k.encode_q5_K,
    "q6_K": _k.encode_q6_K,
    "iq4_nl": _iq4.encode_iq4_nl,
    "iq4_xs": _iq4.encode_iq4_xs,
    "tq1_0": _ternary.encode_tq1_0,
    "tq2_0": _ternary.encode_tq2_0,
    "mxfp4": _fp4.encode_mxfp4,
    "nvfp4": _fp4.encode_nvfp4,
    "q1_0": _ternary.encode_q1_0,
    "q2_0": _ternary.encode_q2_0,
}

_RUNTIME_ENCODERS: dict[str, Encoder] = _ENCODERS | {
    "q8_0": _legacy.activation_q8_0,
    "iq4_nl": _iq4.runtime_iq4_nl,
}

_ACTIVATION_ENCODERS: dict[str, Encoder] = {
    "q8_0": _legacy.activation_q8_0,
    "q8_1": _legacy.activation_q8_1,
    "q8_K": _k.activation_q8_K,
}

_CHUNK = 1 << 16
"""Number of elements encoded or decoded at once, so that temporaries stay in cache."""


def can_encode(dtype: DType | str) -> bool:
    """Whether `encode` can write this type, which holds for all but the codebook types and i2_s."""
    kind = find_dtype(dtype)
    return not kind.is_quantized or kind.name in _ENCODERS


def decode(data: NDArray[Any], dtype: DType | str, ne0: int | None = None) -> F32:
    """Stored rows to float32 `[..., ne0]`, with the reference's rounding.

    `data` is uint8 `[..., row_bytes]`; for plain types also an array of the storage type
    `[..., ne0]`. `ne0` may be left out; if given it is checked. Raises GraphError when sizes
    disagree, and for i2_s, whose scale is not in its rows (see `decode_i2_s`)."""
    kind = find_dtype(dtype)
    data = np.asarray(data)
    if not kind.is_quantized:
        values = from_storage(_plain(data, kind), kind)
    else:
        if kind.name not in _DECODERS:
            raise GraphError(
                f"{kind.name} has one scale for a whole tensor; use decode_{kind.name}"
            )
        if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % kind.bytes:
            raise GraphError(
                f"{kind.name} rows are uint8 in blocks of {kind.bytes} bytes; "
                f"got {data.dtype} {list(data.shape)}"
            )
        values = _by_blocks(_DECODERS[kind.name], data, kind.bytes, kind.block, np.float32)
    if ne0 is not None and values.shape[-1] != ne0:
        raise GraphError(
            f"a row of {ne0} {kind.name} elements takes {kind.row_bytes(ne0)} bytes; "
            f"got {data.dtype} {list(data.shape)}"
        )
    return values


def encode(x: ArrayLike, dtype: DType | str) -> U8:
    """float32 `[..., ne0]` to the bytes a file holds, `[..., row_bytes]`.

    Raises GraphError if rows are not whole blocks, UnsupportedOpError for a type that cannot be
    written (`can_encode`)."""
    kind = find_dtype(dtype)
    if kind.is_quantized:
        return _encode_with(_ENCODERS, x, kind)
    if kind.name == "f16":
        with np.errstate(all="ignore"):
            return _as_bytes(f16_from_f32(_f32(x)))
    return _as_bytes(to_storage(x, kind))


def encode_runtime(x: ArrayLike, dtype: DType | str) -> U8:
    """float32 `[..., ne0]` to the bytes an op writes (CPY, SET_ROWS, KV cache).

    The bytes are the same as from `encode`, except for iq4_nl, q8_0 and f16 NaNs; same errors."""
    kind = find_dtype(dtype)
    if kind.is_quantized:
        return _encode_with(_RUNTIME_ENCODERS, x, kind)
    return _as_bytes(to_storage(x, kind))


def encode_activation(x: ArrayLike, dtype: DType | str) -> U8:
    """float32 `[..., ne0]` to q8_0, q8_1 or q8_K bytes, as a matmul quantizes its activations.

    The sums of a q8_K block of zeros are zero. Same errors as `encode`."""
    return _encode_with(_ACTIVATION_ENCODERS, x, find_dtype(dtype))


def to_storage(x: ArrayLike, dtype: DType | str) -> NDArray[Any]:
    """float32 `[..., ne0]` to the array that a tensor of `dtype` stores, as an op converts.

    Plain types give their storage type (bf16 as uint16 words; integers truncate), block types
    uint8 rows (`encode_runtime`). Same errors as `encode`."""
    kind = find_dtype(dtype)
    if kind.is_quantized:
        return _encode_with(_RUNTIME_ENCODERS, x, kind)
    with np.errstate(all="ignore"):
        if kind.name == "bf16":
            return bf16_from_f32(_f32(x))
        if kind.name == "f16":
            return f16_from_f32_runtime(_f32(x))
        return np.asarray(x).astype(kind.storage)


def from_storage(data: NDArray[Any], dtype: DType | str) -> F32:
    """The stored array of a tensor of `dtype` to float32 `[..., ne0]`; the inverse of
    `to_storage`."""
    kind = find_dtype(dtype)
    if kind.is_quantized:
        return decode(data, kind)
    if kind.name == "bf16":
        return bf16_to_f32(data)
    with np.errstate(all="ignore"):
        return data.astype(np.float32)


def _f32(x: ArrayLike) -> F32:
    """`x` as a contiguous float32 array of at least one axis."""
    with np.errstate(all="ignore"):
        return np.atleast_1d(np.ascontiguousarray(x, np.float32))


def _plain(data: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Plain elements, from their own type or from bytes."""
    if data.dtype == dtype.storage:
        return data
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % dtype.bytes:
        raise GraphError(
            f"{dtype.name} rows are {dtype.storage} or uint8; got {data.dtype} {list(data.shape)}"
        )
    return np.ascontiguousarray(data).view(dtype.storage)


def _as_bytes(x: NDArray[Any]) -> U8:
    """An array of plain elements as bytes, on its last axis."""
    return np.atleast_1d(np.ascontiguousarray(x)).view(np.uint8)


def _encode_with(encoders: dict[str, Encoder], x: ArrayLike, dtype: DType) -> U8:
    values = _f32(x)
    dtype.row_bytes(values.shape[-1])
    encoder = encoders.get(dtype.name)
    if encoder is None:
        raise UnsupportedOpError(
            f"cannot encode {dtype.name} here; types that can be written: {', '.join(encoders)}"
        )
    return _by_blocks(encoder, values, dtype.block, dtype.bytes, np.uint8)


def _by_blocks(
    codec: Callable[[Any], NDArray[Any]],
    data: NDArray[Any],
    size_in: int,
    size_out: int,
    out_dtype: type[np.generic],
) -> NDArray[Any]:
    """Apply `codec` `[m, size_in] -> [m, size_out]` along the last axis, a chunk at a time."""
    n = data.size // size_in
    blocks = np.ascontiguousarray(data).reshape(n, size_in)
    out = np.empty((n, size_out), out_dtype)
    step = max(1, _CHUNK // max(size_in, size_out))
    with np.errstate(all="ignore"):
        for start in range(0, n, step):
            out[start : start + step] = codec(blocks[start : start + step])
    return out.reshape(*data.shape[:-1], data.shape[-1] // size_in * size_out)
