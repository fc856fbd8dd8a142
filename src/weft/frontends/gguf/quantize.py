"""Writes a model again with its matrices in another type: what `weft quantize` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DTYPES, DType, find_dtype
from weft.errors import FormatError, UnsupportedOpError
from weft.frontends.gguf.reader import open_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import write_gguf

__all__ = ["FILE_TYPES", "QuantizedTensor", "quantize_file", "quantize_types", "target_type"]

FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_K": 10,
    "q3_K": 11, "q4_K": 14, "q5_K": 16, "q6_K": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
    "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "i2_s": 40,
}  # fmt: skip
"""Type -> the number that `general.file_type` has for it (llama.cpp's llama_ftype)."""

_FALLBACK = {"q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0",
             "iq4_xs": "iq4_nl", "tq1_0": "q4_0", "tq2_0": "q4_0", "i2_s": "q4_0"}  # fmt: skip
"""For rows that are not whole 256-element blocks, as llama-quantize does it."""

_CHUNK = 1 << 22  # elements encoded at a time: 16 MiB of float32


@dataclass(frozen=True, slots=True)
class QuantizedTensor:
    """What became of one tensor."""

    name: str
    before: DType
    after: DType
    old_bytes: int
    new_bytes: int


def quantize_types() -> list[str]:
    """Names of the types a model can be quantized to."""
    return list(FILE_TYPES)


def target_type(t: TensorInfo, wanted: DType, pure: bool) -> DType:
    """The type that tensor `t` gets.

    Vectors, norms, routers and position tables stay as they are. The output matrix (or the token
    embedding that serves as one) gets at least q6_K, because its error reaches every logit, unless
    `pure`. Rows that are not whole blocks take a type with smaller blocks, and at last f16."""
    if t.n_dims < 2 or not t.name.endswith(".weight") or t.dtype.name not in _SOURCES:
        return t.dtype
    if any(part in t.name for part in ("_norm", "ffn_gate_inp", "position_embd", "token_types",
                                       "ssm_conv1d", "shortconv.conv")):  # fmt: skip
        return t.dtype
    choice = wanted
    if not pure and wanted.bits_per_weight < 6.5 and t.name in ("output.weight", _EMBEDDING):
        choice = DTYPES["q6_K"] if t.ne[0] % 256 == 0 else DTYPES["q8_0"]
    while t.ne[0] % choice.block:
        if choice.name in _FALLBACK:
            choice = DTYPES[_FALLBACK[choice.name]]
        else:
            choice = DTYPES["f16"]
    return choice


_EMBEDDING = "token_embd.weight"
_SOURCES = frozenset(DTYPES) - {"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"}


def quantize_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dtype: str | DType,
    *,
    pure: bool = False,
    progress: Callable[[QuantizedTensor], None] | None = None,
) -> list[QuantizedTensor]:
    """Reads the GGUF file `source` and writes it to `target` with its matrices as `dtype`.

    Metadata is kept but for `general.file_type` and `general.quantization_version`. One tensor is
    in memory at a time. `progress` hears of each tensor once it is written. Raises FormatError on a
    bad file or when the two are the same, UnsupportedOpError on a type that cannot be written."""
    wanted = find_dtype(dtype)
    if wanted.name not in FILE_TYPES:
        raise UnsupportedOpError(
            f"cannot quantize to {wanted.name}; choose one of {', '.join(FILE_TYPES)}"
        )
    if Path(source).resolve() == Path(target).resolve():
        raise FormatError(f"{str(target)!r} is the file being read; write to another name")
    report: list[QuantizedTensor] = []
    with open_gguf(source) as file:
        metadata: dict[str, object] = dict(file.copy_metadata())
        metadata["general.file_type"] = FILE_TYPES[wanted.name]
        metadata["general.quantization_version"] = 2
        rows = []
        for t in file.tensors.values():
            after = target_type(t, wanted, pure)

            def make(t: TensorInfo = t, after: DType = after) -> NDArray[np.uint8]:
                data = t.data if after is t.dtype else _convert(t, after)
                done = QuantizedTensor(t.name, t.dtype, after, t.nbytes, data.nbytes)
                report.append(done)
                if progress is not None:
                    progress(done)
                return data

            rows.append((t.name, after, t.ne[: max(1, t.n_dims)], make))
        write_gguf(target, metadata, rows)
    return report


def _convert(t: TensorInfo, after: DType) -> NDArray[np.uint8]:
    if after.name == "i2_s":
        return quants.encode_i2_s(np.concatenate(list(_floats(t))).reshape(-1))
    parts = [quants.encode(x, after).reshape(-1).view(np.uint8) for x in _floats(t)]
    return np.concatenate(parts)


def _floats(t: TensorInfo) -> Iterator[NDArray[np.float32]]:
    """The tensor's rows as float32 `[rows, ne0]`, some at a time."""
    n = t.ne[0]
    if t.dtype.name == "i2_s":
        yield quants.decode_i2_s(t.data, t.n_elements).reshape(-1, n)
        return
    rows = t.data.reshape(-1, t.dtype.row_bytes(n))
    step = max(1, _CHUNK // n)
    for start in range(0, len(rows), step):
        x = quants.decode(rows[start : start + step], t.dtype, n)
        if not np.isfinite(x).all():
            raise FormatError(
                f"tensor {t.name} has values that are not finite; it cannot be quantized"
            )
        yield x
