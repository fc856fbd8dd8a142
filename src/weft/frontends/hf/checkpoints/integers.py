"""Checkpoints of integer codes in 32-bit words: GPTQ, AWQ, compressed-tensors and MLX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.checkpoints.grids import (
    Grid,
    bytes_of,
    fields,
    fields_of_words,
    less_zeros,
)
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import Stored
from weft.frontends.hf.values import Floats, Values

Tensors = dict[str, Values]
How = Mapping[str, Any]

_MIDDLE = -8, 7  # the reach of codes of 4 bits whose zero points are all in the middle
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where the codes of eight neighbours are in a word


def words_of(t: Stored) -> NDArray[Any]:
    """The 32-bit words of a tensor, uint32 `[*shape]`."""
    return t.data.view("<u4").reshape(t.shape)


def rebuilt(
    c: Config, plain: Tensors, parts: tuple[str, ...], make: Callable[[str], Values]
) -> Tensors:
    """The tensors without those whose names end with `parts`, and the weights that `make` makes of
    them, by the beginning of the names of the first part."""
    out = {name: values for name, values in plain.items() if not name.endswith(parts)}
    for name in plain:
        if name.endswith(parts[0]):
            stem = name.removesuffix(parts[0])
            try:
                out[f"{stem}.weight"] = make(stem)
            except KeyError as error:
                raise FormatError(f"{c.folder}: tensor {error} is missing") from None
    return out


def gptq(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """GPTQ of 2, 3, 4 and 8 bits; the rows of `qweight` are columns of the matrix."""
    form = how.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2"):
        raise FormatError(
            f"{c.folder}: GPTQ in the layout {form!r} is made for one kind of GPU; weft reads the "
            "layouts gptq and gptq_v2"
        )
    one = form == "gptq"  # zero points are stored less 1

    def make(stem: str) -> Values:
        q, scales = stored[f"{stem}.qweight"], plain[f"{stem}.scales"]
        packed_zeros, of = stored[f"{stem}.qzeros"], stored.get(f"{stem}.g_idx")
        n_group, n_out = scales.shape
        n_in = of.shape[0] if of is not None else 32 * q.shape[0] // int(how.get("bits", 4))
        bits = 32 * q.shape[0] // n_in
        _require_bits(c, stem, bits, (2, 3, 4, 8))
        zeros = fields(words_of(packed_zeros), bits, n_out).T.astype(np.int16) + one
        groups = None if of is None else of.data.view("<i4").astype(np.int32)
        if groups is not None:
            if groups.min(initial=0) < -n_group or groups.max(initial=0) >= n_group:
                raise FormatError(f"{c.folder}: {stem}.g_idx names groups that are not there")
            if n_in % n_group == 0 and (groups == np.arange(n_in) // (n_in // n_group)).all():
                groups = None

        def codes() -> Any:
            each = fields(words_of(q).T, bits, n_in)
            if groups is None:
                return less_zeros(each, zeros)
            return each.astype(np.int16) - zeros[:, groups]

        turned = scales.through(np.transpose, (n_out, n_group))
        reach = _reach(bits, zeros)
        nibbles = (lambda: bytes_of(words_of(q).T)) if bits == 4 and reach == _MIDDLE else None
        return Grid(
            (n_out, n_in), codes, reach, turned, "f16", groups=groups, nibbles=nibbles
        ).values()

    return rebuilt(c, plain, (".qweight", ".scales", ".qzeros", ".g_idx"), make)


def _reach(bits: int, zeros: NDArray[Any]) -> tuple[int, int]:
    """The smallest and largest code less its zero point."""
    return -int(zeros.max(initial=0)), (1 << bits) - 1 - int(zeros.min(initial=1 << bits))


def _require_bits(c: Config, stem: str, bits: int, known: tuple[int, ...]) -> None:
    if bits not in known:
        raise FormatError(
            f"{c.folder}: {stem} has codes of {bits} bits; weft reads this quantization with "
            f"{', '.join(map(str, known))} bits"
        )


def awq(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """AWQ of 4 bits, in the layouts GEMM (columns share words) and GEMV (rows do)."""
    version = str(how.get("version") or "gemm").lower()
    if version not in ("gemm", "gemv"):
        raise FormatError(
            f"{c.folder}: AWQ in the layout {version!r} is made for one kind of GPU; weft reads "
            "the layouts gemm and gemv"
        )
    if int(how.get("bits", how.get("w_bit", 4))) != 4:
        raise FormatError(f"{c.folder}: weft reads AWQ with 4 bits only")
    parts = (".qweight", ".scales", ".qzeros")
    return rebuilt(c, plain, parts, lambda stem: _awq_matrix(how, version, stem, plain, stored))


def _awq_matrix(
    how: How, version: str, stem: str, plain: Tensors, stored: Mapping[str, Stored]
) -> Values:
    q, scales = stored[f"{stem}.qweight"], plain[f"{stem}.scales"]
    packed_zeros = stored[f"{stem}.qzeros"]
    if version == "gemv":  # rows of scales and zeros may be longer than they need to be
        n_out, n_in = q.shape[0], 8 * q.shape[1]
        size = int(how.get("group_size", how.get("q_group_size", 128)))
        n_group = n_in // size if size > 0 else 1
        zeros = fields(words_of(packed_zeros), 4, n_group)
        scales = scales.taken(slice(None), slice(0, n_group), shape=(n_out, n_group))
    else:
        n_in, n_out = q.shape[0], 8 * q.shape[1]
        n_group = scales.shape[0]
        zeros = _in_order(packed_zeros, n_out)
        scales = scales.through(np.transpose, (n_out, n_group))

    def codes() -> Any:
        by_rows = version == "gemv"
        each = fields(words_of(q), 4, n_in) if by_rows else _in_order(q, n_out)
        return less_zeros(each, zeros)

    return Grid((n_out, n_in), codes, _reach(4, zeros), scales, "f16").values()


def _in_order(t: Stored, n_out: int) -> NDArray[np.uint8]:
    """The codes of GEMM's words, rows of the matrix first."""
    turned = np.ascontiguousarray(words_of(t).T)
    if 8 * len(turned) != n_out:
        raise FormatError(
            f"{t.name} has {8 * len(turned)} columns instead of {n_out}; download the model again"
        )
    out = np.empty((len(turned), 8, t.shape[0]), np.uint8)
    for i, place in enumerate(_AWQ_ORDER):
        out[:, i] = turned >> np.uint32(4 * place) & np.uint32(15)
    return out.reshape(n_out, t.shape[0])


def words_matrix(
    c: Config, stem: str, widths: Sequence[int], plain: Tensors, stored: Mapping[str, Stored]
) -> Values:
    """compressed-tensors' `pack-quantized`: whole codes in words along the rows of the matrix, zero
    points along its columns, both raised by half of their range. `widths` are the bits that
    config.json states, for some matrices each; sizes tell which of them a matrix has."""
    q, scales = stored[f"{stem}.weight_packed"], plain[f"{stem}.weight_scale"]
    packed_zeros = stored.get(f"{stem}.weight_zero_point")
    of = stored.get(f"{stem}.weight_g_idx")
    shape = tuple(int(n) for n in plain[f"{stem}.weight_shape"].load())
    n_out, n_in = shape[-2:]
    fits = [
        n for n in (*widths, 4, 8, 2, 3, 5, 6) if 1 < n < 9 and -(-n_in // (32 // n)) == q.shape[-1]
    ]
    if not fits:
        raise FormatError(
            f"{c.folder}: {stem}.weight_packed has rows of {q.shape[-1]} words, which hold no "
            f"{n_in} codes of 2 to 8 bits; download the model again"
        )
    if shape[:-1] != q.shape[:-1]:
        raise FormatError(
            f"{c.folder}: {stem}.weight_shape says {list(shape)}, and the codes have the sizes "
            f"{list(q.shape)}; download the model again"
        )
    bits = fits[0]
    half = np.full((*shape[:-1], 1), 1 << (bits - 1), np.int16)
    scales = _each_row(scales, shape)
    zeros = half
    if packed_zeros is not None:
        turned = np.ascontiguousarray(words_of(packed_zeros).swapaxes(-1, -2))
        zeros = fields_of_words(turned, bits, n_out).swapaxes(-1, -2).astype(np.int16)
    groups = None if of is None else of.data.view("<i4").astype(np.int32)
    if groups is not None:
        each = n_in // scales.shape[-1]
        if not (0 <= groups.min(initial=0) and groups.max(initial=0) < scales.shape[-1]):
            groups = None  # -1: there is no order
        elif (groups == np.arange(n_in) // each).all():
            groups = None

    def codes() -> Any:
        each = fields_of_words(words_of(q), bits, n_in)
        if groups is None:
            return less_zeros(each, zeros)
        return each.astype(np.int16) - (zeros[..., groups] if zeros is not half else half)

    kind = scales.kind if scales.kind in ("f16", "bf16") else "bf16"
    reach = _reach(bits, zeros)
    straight = bits == 4 and reach == _MIDDLE and n_in % 8 == 0
    nibbles = (lambda: bytes_of(words_of(q))) if straight else None
    return Grid(shape, codes, reach, scales, kind, groups=groups, nibbles=nibbles).values()


def _each_row(scales: Values, shape: tuple[int, ...]) -> Values:
    """Scales with a row for each row of the matrix: there may be one for all."""
    if scales.shape[:-1] == shape[:-1]:
        return scales
    if scales.size == 1:
        rows = (*shape[:-1], 1)
        return scales.through(lambda x: np.broadcast_to(x.reshape(-1)[:1], rows), rows)
    return scales.reshaped(*scales.shape, 1) if scales.shape == shape[:-1] else scales


def int8_matrix(weight: Stored, scales: Values, zeros: Stored | None, kind: str) -> Values:
    """Codes of 8 bits, one to a byte, with a scale for the matrix, each row or each group."""
    rows = _each_row(scales, weight.shape)
    if zeros is not None and not zeros.data.any():
        zeros = None
    if zeros is not None and np.prod(zeros.shape) != np.prod(rows.shape):
        raise ValueError(f"zero points of sizes {list(zeros.shape)} for {list(weight.shape)}")

    def codes() -> Any:
        each = weight.data.view(np.int8).reshape(weight.shape)
        if zeros is None:
            return each
        points = zeros.data.view(np.int8).reshape(rows.shape).astype(np.int16)
        wide = each.reshape(*rows.shape, -1).astype(np.int16) - points[..., None]
        return wide.reshape(each.shape)

    return Grid(
        weight.shape, codes, (-128, 127) if zeros is None else (-255, 255), rows, kind
    ).values()


def mlx(c: Config, how: How, plain: Tensors, stored: Mapping[str, Stored]) -> Tensors:
    """MLX's affine quantization: codes without gaps along the rows, scales and minima (`biases`)
    for groups; any matrix may have it, the embedding too."""
    out = dict(plain)
    for name, scales in plain.items():
        stem = name.removesuffix(".scales")
        if name == stem:
            continue
        q, minima = stored.get(f"{stem}.weight"), plain.get(f"{stem}.biases")
        own = how.get(stem)
        size = int((own if isinstance(own, dict) else how).get("group_size", 64))
        if q is None or q.kind != "U32" or minima is None:
            raise FormatError(
                f"{c.folder}: {stem} is quantized by MLX in the mode "
                f"{(own if isinstance(own, dict) else how).get('mode', 'unknown')!r}; weft reads "
                "affine, mxfp4 and nvfp4"
            )
        n_in = size * scales.shape[-1]
        bits = 32 * q.shape[-1] // n_in
        _require_bits(c, stem, bits, (2, 3, 4, 5, 6, 8))
        out[f"{stem}.weight"] = _mlx_matrix(q, scales, minima, n_in, bits)
        del out[name], out[f"{stem}.biases"]
    return out


def _mlx_matrix(q: Stored, scales: Values, minima: Values, n_in: int, bits: int) -> Values:
    kind = scales.kind if scales.kind in ("f16", "bf16") else "bf16"
    return Grid(
        (*q.shape[:-1], n_in), lambda: fields(words_of(q), bits, n_in), (0, (1 << bits) - 1),
        scales, kind, minima, nibbles=(lambda: bytes_of(words_of(q))) if bits == 4 else None,
    ).values()  # fmt: skip


def floats_of(t: Stored) -> Floats:
    """The 32-bit floats of a tensor."""
    return np.asarray(t.data.view("<f4"), np.float32)
