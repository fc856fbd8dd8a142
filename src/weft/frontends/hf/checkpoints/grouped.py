"""Checkpoints whose codes lie group by group: HQQ, optimum-quanto, and torchao's 4 bits.

Codes that share a byte are far apart: the rows of groups are cut into as many parts as a byte has
codes, and each byte holds a code of each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.checkpoints.floats import scaled
from weft.frontends.hf.checkpoints.grids import Grid, fits_f16, less_zeros
from weft.frontends.hf.checkpoints.integers import How, Tensors
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import Stored
from weft.frontends.hf.values import Floats, Values

_HQQ = ("W_q", "nbits", "group_size", "shape", "scale", "zero", "axis", "packing", "optimize",
        "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype",
        "offload_meta", "encoded_state_dict", "stores_quant_config", "channel_wise",
        "round_zero")  # fmt: skip
_HQQ_BITS = {"8bit_u8": 8, "4bit_u8": 4, "3bit_32": 3, "2bit_u8": 2, "1bit_u8": 1}
_WIDTHS = {"qint4": 4, "qint2": 2}
_OF_HIDDEN = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj",
              "lm_head")  # fmt: skip
_TO_HIDDEN = ("o_proj", "down_proj")
_AGAIN = "download the model again"


def parts_of_bytes(packed: NDArray[np.uint8], bits: int, from_top: bool) -> NDArray[np.uint8]:
    """The codes of bytes `[n, m]` that hold codes of several parts of rows, `[n * 8 / bits, m]`.
    The first part is in the lowest bits, or in the highest."""
    shifts = range(0, 8, bits)
    mask = np.uint8((1 << bits) - 1)
    return np.concatenate([packed >> s & mask for s in (reversed(shifts) if from_top else shifts)])


def _number(stored: Mapping[str, Stored], name: str) -> int:
    t = stored[name]
    kind = {"I64": "<i8", "I32": "<i4", "U8": "u1", "F32": "<f4"}.get(t.kind)
    if kind is None or t.nbytes == 0:
        raise FormatError(f"tensor {name} is not a number; {_AGAIN}")
    return int(t.data.view(kind).reshape(-1)[0])


def hqq(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """HQQ of 1, 2, 3, 4 and 8 bits, whose zero points are numbers with a fraction unless they were
    rounded; groups are along the rows of the matrix (axis 1) or across them (axis 0)."""
    out = dict(plain)
    for name in stored:
        stem = name.removesuffix(".W_q")
        if stem == name:
            continue
        for part in _HQQ:
            out.pop(f"{stem}.{part}", None)
        try:
            out[f"{stem}.weight"] = _hqq_matrix(c, stem, plain, stored)
        except KeyError as error:
            raise FormatError(f"{c.folder}: tensor {error} is missing") from None
    return out


def _hqq_matrix(c: Config, stem: str, plain: Tensors, stored: Mapping[str, Stored]) -> Values:
    q, scales, zeros = stored[f"{stem}.W_q"], plain[f"{stem}.scale"], plain[f"{stem}.zero"]
    packing = bytes(stored[f"{stem}.packing"].data).decode("ascii", "replace")
    if packing not in _HQQ_BITS:
        raise FormatError(
            f"{c.folder}: {stem} is packed by HQQ as {packing[:20]!r}; weft reads "
            f"{', '.join(_HQQ_BITS)}"
        )
    bits, axis = _HQQ_BITS[packing], _number(stored, f"{stem}.axis")
    sizes = stored[f"{stem}.shape"]
    shape = tuple(int(n) for n in sizes.data.view("<i8")) if sizes.kind == "I64" else ()
    rows = q.shape[0] if q.shape else 0
    width = q.nbytes // max(rows, 1) // (4 if bits == 3 else 1)  # bytes may be stored as floats
    n_rows = prod(shape) // max(width, 1)
    held = rows * (10 if bits == 3 else 8 // bits)
    groups = n_rows if axis == 1 else width
    if (
        len(shape) != 2
        or min(shape) < 1
        or n_rows * width != prod(shape)
        or not n_rows <= held < n_rows + 10
        or scales.size != groups
        or zeros.size != groups
    ):
        raise FormatError(
            f"{c.folder}: {stem}.W_q has the sizes {list(q.shape)}, and its scales "
            f"{list(scales.shape)}, which make no matrix of {list(shape)}; {_AGAIN}"
        )

    def codes() -> NDArray[np.uint8]:
        if bits == 3:
            words = q.data.view("<u4").reshape(rows, width)
            each = [words >> np.uint32(s) & np.uint32(7) for s in range(27, -1, -3)]
            return np.concatenate(each).astype(np.uint8)[:n_rows]
        return parts_of_bytes(q.data.reshape(rows, width), bits, True)[:n_rows]

    kind = scales.kind if scales.kind in ("f16", "bf16") else "f16"
    points = zeros.load()
    whole = axis == 1 and shape[1] % width == 0 and bool((points == np.rint(points)).all())
    if whole and 0 <= points.min(initial=0) and points.max(initial=0) <= 255:
        each = (shape[0], shape[1] // width)
        wide = points.reshape(each).astype(np.int16)
        reach = -int(wide.max(initial=0)), (1 << bits) - 1 - int(wide.min(initial=255))
        return Grid(
            (shape[0], shape[1]), lambda: less_zeros(codes().reshape(shape), wide), reach,
            scales.reshaped(*each), kind,
        ).values()  # fmt: skip
    along = (-1, 1) if axis == 1 else (1, -1)

    def load() -> Floats:
        x: Floats = codes().astype(np.float32)
        x -= points.reshape(along)
        x *= scales.load().reshape(along)
        return x.reshape(shape)

    return Values(shape, kind, load)


def quanto(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """optimum-quanto: qint8 and qfloat8 with a scale for each row, qint4 and qint2 in groups."""
    renamed: dict[str, Stored] = {}
    out = {n: v for n, v in plain.items() if not n.endswith((".input_scale", ".output_scale"))}
    for name, t in stored.items():
        stem, found, rest = name.rpartition(".weight._data")
        if not found:
            continue
        scale = stored.get(f"{stem}.weight._scale")
        if scale is None:
            raise FormatError(f"{c.folder}: tensor {stem}.weight._scale is missing")
        if rest == "._data":
            out[f"{stem}.weight"] = _quanto_matrix(c, how, stem, t, plain)
            for part in ("_data._data", "_scale", "_shift"):
                out.pop(f"{stem}.weight.{part}", None)
        elif not rest:
            for part, end in (("_data", ""), ("_scale", "_scale")):
                old, new = f"{stem}.weight.{part}", f"{stem}.weight{end}"
                renamed[new], out[new] = stored[old], out.pop(old)
    return scaled(c, out, {**stored, **renamed})


def _quanto_matrix(c: Config, how: How, stem: str, q: Stored, plain: Tensors) -> Values:
    scales, shift = plain[f"{stem}.weight._scale"], plain.get(f"{stem}.weight._shift")
    own = (how.get("modules") or {}).get(stem) or {}
    bits = _WIDTHS.get(str(own.get("weights")), 0)
    if not bits or shift is None or q.kind != "U8" or len(q.shape) != 2:
        raise FormatError(
            f"{c.folder}: {stem} is quantized by quanto as {own.get('weights')!r}; weft reads "
            f"{', '.join(_WIDTHS)}, qint8 and qfloat8"
        )
    n_group, each = scales.size, q.shape[1]
    n, hidden = n_group * each, int(c.first("hidden_size") or 0)
    last = stem.rpartition(".")[2]
    n_in = hidden if last in _OF_HIDDEN else n // hidden if last in _TO_HIDDEN and hidden else 0
    if n_in < 1 or n_in % each or n % n_in:
        raise FormatError(
            f"{c.folder}: quanto's files do not say the sizes of {stem}; weft knows the sizes of "
            f"{', '.join(_OF_HIDDEN + _TO_HIDDEN)} only; quantize the model with qint8, or by "
            "another method"
        )
    if not n_group <= q.shape[0] * (8 // bits) < n_group + 8 // bits or shift.size != n_group:
        raise FormatError(f"{c.folder}: {stem} has codes and scales that do not fit; {_AGAIN}")
    sizes = n // n_in, n_in // each
    whole = shift.stored is not None and shift.stored.kind in ("U8", "I8")

    def codes() -> NDArray[Any]:
        rows = parts_of_bytes(q.data.reshape(q.shape), bits, False)[:n_group]
        made = rows.reshape(sizes[0], n_in)
        return less_zeros(made, points) if whole else made

    kind = scales.kind if scales.kind in ("f16", "bf16") else "bf16"
    scales = scales.reshaped(*sizes)
    if whole:
        points = shift.load().reshape(sizes).astype(np.int16)
        top = (1 << bits) - 1
        reach = -int(points.max(initial=0)), top - int(points.min(initial=127))
        return Grid((sizes[0], n_in), codes, reach, scales, kind).values()
    minima = shift.through(np.negative, sizes)
    if shift.kind in ("f16", "bf16"):
        minima = Values(sizes, shift.kind, minima.load)
    return Grid((sizes[0], n_in), codes, (0, (1 << bits) - 1), scales, kind, minima).values()


def int4_tensor(c: Config, stem: str, q: Stored, scales: Values, zeros: Values) -> Values:
    """torchao's Int4Tensor: signed codes two to a byte, `[n_out, n_in / 2]`, the first in the low
    bits, with scales and offsets of groups of each row, `[n_groups, n_out]`."""
    n_out, n_in = (q.shape[0], 2 * q.shape[1]) if len(q.shape) == 2 else (0, 0)
    n_group = scales.shape[0] if scales.shape else 0
    if (
        not n_out
        or q.kind not in ("I8", "U8")
        or scales.shape != (n_group, n_out)
        or zeros.shape != scales.shape
    ):
        raise FormatError(
            f"{c.folder}: {stem} has codes {list(q.shape)}, scales {list(scales.shape)} and zero "
            f"points {list(zeros.shape)}; weft reads matrices in groups of each row"
        )
    kind = scales.kind if scales.kind in ("f16", "bf16") else "bf16"
    turned = scales.through(np.transpose, (n_out, n_group))
    offsets = zeros.through(np.transpose, (n_out, n_group))

    def raised() -> NDArray[np.uint8]:
        packed = q.data.reshape(q.shape)
        return np.stack([packed & 15, packed >> 4], -1).reshape(n_out, n_in) ^ np.uint8(8)

    def signed() -> NDArray[Any]:
        return raised().astype(np.int8) - np.int8(8)

    if not offsets.load().any():
        return Grid((n_out, n_in), signed, (-8, 7), turned, kind).values()
    minima = Values((n_out, n_group), "f32", lambda: offsets.load() - 8 * turned.load())
    if fits_f16(minima):
        return Grid((n_out, n_in), raised, (0, 15), turned, kind, minima).values()
    return Grid((n_out, n_in), signed, (-8, 7), turned, kind, offsets).values()
