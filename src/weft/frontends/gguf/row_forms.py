"""How files of ik_llama.cpp store some types: with a header for each row, or several rows in turn.

Such tensors are brought into blocks that stand alone when they are loaded, so that every op and
device knows one form of each type. A header, which is the scale of its row, is copied in front of
each block; rows that a `_r4`, `_r8` or `_r16` form interleaves are taken apart. The values stay the
same. A file has, for each `rows` rows of n elements,

    header * rows bytes, then n / block times: bytes * rows bytes

Source: `dequantize_row_*_r4` and so on in iqk_quantize.cpp, block structures in ggml-common.h. Of
`_fours` and `_quarters`, the arguments of `transpose` say where an element of a byte belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DTYPES, DType
from weft.errors import FormatError
from weft.frontends.gguf.format import IK_IDS
from weft.records import dataclass

U8 = NDArray[np.uint8]

_CHUNK = 1 << 20
"""Bytes of a file that are taken apart at once."""
_SIXTEEN = np.arange(16, dtype=np.uint16)
_PAIR_PLACES = np.array([0, 2, 4, 6], np.uint8)
_DIGITS: U8 = (np.arange(256)[:, None] * np.array([81, 27, 9, 3, 1]) % 256 * 3 // 256).astype(
    np.uint8
)
"""The five base-3 digits of each byte of iq1_bn."""


@dataclass(frozen=True, slots=True)
class RowForm:
    """A type as files store it."""

    name: str
    """ik_llama.cpp's name of the type."""
    id: int
    block: int
    """Elements of a row in a block."""
    bytes: int
    """Bytes of a row in a block."""
    header: int
    """Bytes in front of the blocks, for each row."""
    rows: int
    """Number of rows that lie together."""
    dtype: DType
    """The type in memory."""
    unpack: Callable[[U8], U8]
    """Blocks `[n, rows * bytes]` to the bytes of each row `[n, rows, bytes in memory]`, without
    the copy of the header."""

    def nbytes(self, ne: Sequence[int]) -> int:
        """Bytes of a tensor of sizes `ne` in a file. Raises FormatError unless rows are whole
        blocks and their number is a multiple of `rows`."""
        n = ne[0] if ne else 1
        if n % self.block:
            raise FormatError(
                f"a row of {n} elements is not a multiple of the {self.block} that blocks of "
                f"{self.name} have; quantize the original model again"
            )
        n_rows = ne[1] if len(ne) > 1 else 1
        if n_rows % self.rows:
            raise FormatError(
                f"{self.name} has {self.rows} rows together, and the matrix has {n_rows}, which is "
                "no multiple of it; quantize the original model again"
            )
        return prod(ne[1:]) * (self.header + n // self.block * self.bytes)

    def in_memory(self, stored: U8, n: int) -> U8:
        """The tensor's bytes in memory, made of `stored`, its bytes in the file.

        A row has `n` elements."""
        n_blocks = n // self.block
        panels = stored.reshape(-1, self.rows * (self.header + n_blocks * self.bytes))
        out = np.empty((len(panels), self.rows, self.dtype.row_bytes(n)), np.uint8)
        step = max(1, _CHUNK // panels.shape[1])
        for start in range(0, len(panels), step):
            out[start : start + step] = self._rows(panels[start : start + step], n_blocks)
        return out.reshape(-1)

    def _rows(self, panels: U8, n_blocks: int) -> U8:
        """Some panels as rows `[n, rows, bytes]`."""
        end = self.header * self.rows
        inner = self.unpack(panels[:, end:].reshape(-1, self.rows * self.bytes))
        rows = inner.reshape(len(panels), n_blocks, self.rows, -1).swapaxes(1, 2)
        if self.header:
            # q8_KV has the sum of its codes behind the scale, for products that are not weft's
            scales = panels[:, :end].reshape(len(panels), self.rows, 1, self.header)[..., :4]
            copies = np.broadcast_to(scales, (*rows.shape[:3], scales.shape[3]))
            rows = np.concatenate([copies, rows], axis=3)
        return rows.reshape(len(panels), self.rows, -1)


def is_ik_type(name: str) -> bool:
    """Whether `name`, in any case, is a type that ik_llama.cpp alone writes."""
    names = {form.name for form in ROW_FORMS.values()}
    names |= {dtype.name for dtype in DTYPES.values() if dtype.id in IK_IDS}
    return name.lower() in {n.lower() for n in names}


def _as_it_is(blocks: U8) -> U8:
    return blocks[:, None]


# ---- fields of interleaved rows; `n` below is the number of groups of 32 elements


def _fours(qs: U8, n: int) -> U8:
    """Four-bit codes of four rows, `[m, 4, 32 * n]`.

    The 64 bytes of a group are planes of sixteen, of four elements of each row."""
    q = qs.reshape(-1, n, 2, 2, 4, 4)
    return np.stack((q & 15, q >> 4), -1).transpose(0, 4, 1, 3, 6, 2, 5).reshape(-1, 4, 32 * n)


def _fifths(qh: U8, n: int, axes: tuple[int, int, int]) -> U8:
    """The bits of four rows that go with `_fours`, `[m, 4, 32 * n]`; a byte has the bits of eight
    elements, and `axes` are the places of these axes of `_fours`: 16, 8 and 4 apart."""
    bits = np.unpackbits(qh[..., None], axis=-1, bitorder="little").reshape(-1, n, 4, 4, 2, 2, 2)
    sixteen, eight, four = (4 + axis for axis in axes)
    return bits.transpose(0, 2, 1, sixteen, eight, four, 3).reshape(-1, 4, 32 * n)


def _pairs(qh: U8, n: int, axes: tuple[int, int]) -> U8:
    """The fields of two bits that go with `_fours`; `axes` are the places of 8 and 4 apart."""
    fields = qh[..., None] >> _PAIR_PLACES & np.uint8(3)
    eight, four = (5 + axis for axis in axes)
    fields = fields.reshape(-1, n, 2, 4, 4, 2, 2)
    return fields.transpose(0, 3, 1, 2, eight, four, 4).reshape(-1, 4, 32 * n)


def _quarters(qs: U8) -> U8:
    """256 two-bit codes of four rows, `[m, 4, 256]`."""
    q = qs.reshape(-1, 8, 2, 4, 4)[..., None] >> _PAIR_PLACES & np.uint8(3)
    return q.transpose(0, 3, 1, 2, 5, 4).reshape(-1, 4, 256)


def _eighths(qh: U8) -> U8:
    """The bits that go with `_quarters`."""
    bits = np.unpackbits(qh[..., None], axis=-1, bitorder="little").reshape(-1, 8, 4, 4, 8)
    return bits.transpose(0, 2, 1, 4, 3).reshape(-1, 4, 256)


def _steps(packed: U8, rows: int, bits: int, n: int) -> U8:
    """`n` numbers of `bits` bits for each row, `[m, rows, n]`; the next fields of the same bytes
    follow when the first ones of all bytes are used."""
    fields = packed.reshape(len(packed), -1, rows, 1) >> np.arange(0, 8, bits, dtype=np.uint8)
    fields &= (1 << bits) - 1
    return fields.transpose(0, 2, 3, 1).reshape(len(packed), rows, -1)[..., :n]


def _tables(extra: U8) -> NDArray[np.uint16]:
    """The bits of sixteen groups of four rows as words `[m, 4, 1]`."""
    bits = np.unpackbits(extra[..., None], axis=-1, bitorder="little").reshape(-1, 2, 4, 8)
    return _word(bits.transpose(0, 2, 3, 1).reshape(-1, 4, 16))


# ---- fields of plain blocks, of codes `[m, rows, elements]`


def _word(bits: NDArray[Any], width: int = 1) -> NDArray[np.uint16]:
    """Numbers of `width` bits as one word, `[m, rows, 1]`."""
    places = _SIXTEEN[: bits.shape[-1]] * np.uint16(width)
    word: NDArray[np.uint16] = np.bitwise_or.reduce(
        bits.astype(np.uint16) << places, axis=-1, keepdims=True
    )
    return word


def _apart(codes: U8, n: int) -> U8:
    """Codes of four bits; the elements of a byte lie `n` apart."""
    q = (codes & np.uint8(15)).reshape(*codes.shape[:2], -1, 2, n)
    return (q[..., 0, :] | q[..., 1, :] << np.uint8(4)).reshape(*codes.shape[:2], -1)


def _two_bits(codes: U8) -> U8:
    """Codes of two bits; the elements of a byte lie 32 apart."""
    q = (codes & np.uint8(3)).reshape(*codes.shape[:2], 2, 4, 32) << _PAIR_PLACES[:, None]
    packed: U8 = np.bitwise_or.reduce(q, axis=-2)
    return packed.reshape(*codes.shape[:2], -1)


def _one_bit(bits: U8) -> U8:
    """Packed bits; the bits in a byte belong to elements 32 apart."""
    planes = bits.reshape(*bits.shape[:2], 8, 32).swapaxes(2, 3)
    return np.packbits(planes, axis=-1, bitorder="little")[..., 0]


def _in_turn(numbers: U8, bits: int) -> U8:
    """Numbers of `bits` bits, one after the other."""
    n = 8 // bits
    fields = (numbers & ((1 << bits) - 1)).reshape(*numbers.shape[:2], -1, n)
    packed: U8 = np.bitwise_or.reduce(fields << np.arange(0, 8, bits, dtype=np.uint8), axis=-1)
    return packed


def _joined(*parts: NDArray[Any]) -> U8:
    """The bytes of the parts of blocks `[m, rows, fields of any type]` side by side."""
    return np.concatenate([np.ascontiguousarray(p).view(np.uint8) for p in parts], axis=-1)


def _halves(blocks: U8, rows: int, start: int = 0) -> NDArray[np.uint16]:
    """One f16 or bf16 word of each row, `[m, rows, 1]`."""
    return np.ascontiguousarray(blocks[:, start : start + 2 * rows]).view("<u2")[..., None]


def _split(blocks: U8, *sizes: int) -> list[U8]:
    """The parts of blocks, each of the size that is given."""
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=1)


# ---- the forms


def _q8_r8(blocks: U8) -> U8:
    qs = blocks[:, 16:].reshape(-1, 8, 8, 4).swapaxes(1, 2).reshape(-1, 8, 32)
    return _joined(_halves(blocks, 8), qs)


def _nibbles_r8(blocks: U8, d: int = 2) -> U8:
    """q4_0 and mxfp4: whole words of the plain block, and a scale of `d` bytes."""
    qs = blocks[:, 8 * d :].reshape(-1, 4, 8, 4).swapaxes(1, 2).reshape(-1, 8, 16)
    return _joined(blocks[:, : 8 * d].reshape(-1, 8, d), qs)


def _iq4_nl_r4(blocks: U8) -> U8:
    return _joined(_halves(blocks, 4), _apart(_fours(blocks[:, 8:], 1), 16))


def _q5_0_r4(blocks: U8) -> U8:
    _, qh, qs = _split(blocks, 8, 16, 64)
    high = np.packbits(_fifths(qh, 1, (2, 0, 1)), axis=-1, bitorder="little")
    return _joined(_halves(blocks, 4), high, _apart(_fours(qs, 1), 16))


def _q6_0_r4(blocks: U8) -> U8:
    _, qh, qs = _split(blocks, 8, 32, 64)
    high = _pairs(qh, 1, (0, 1)).reshape(-1, 4, 4, 8) << np.array([[0], [4], [2], [6]], np.uint8)
    return _joined(
        _halves(blocks, 4), np.bitwise_or.reduce(high, axis=2), _apart(_fours(qs, 1), 16)
    )


def _k_scales(low: U8, high: U8) -> U8:
    """The twelve bytes of scales and minima of q4_K and q5_K."""
    wide = _steps(high, 4, 4, 8)
    byte = low.reshape(-1, 8, 4).swapaxes(1, 2)
    scale, least = byte & 15 | (wide & 3) << 4, byte >> 4 | (wide & 12) << 2
    return _joined(
        scale[..., :4] & 63 | scale[..., 4:] >> 4 << 6,
        least[..., :4] & 63 | least[..., 4:] >> 4 << 6,
        scale[..., 4:] & 15 | (least[..., 4:] & 15) << 4,
    )


def _q4_k_r4(blocks: U8) -> U8:
    _, high, low, qs = _split(blocks, 16, 16, 32, 512)
    d, least = _halves(blocks, 4), _halves(blocks, 4, 8)
    return _joined(d, least, _k_scales(low, high), _apart(_fours(qs, 8), 32))


def _q5_k_r4(blocks: U8) -> U8:
    _, high, low, qh, qs = _split(blocks, 16, 16, 32, 128, 512)
    d, least = _halves(blocks, 4), _halves(blocks, 4, 8)
    fifth = _one_bit(_fifths(qh, 8, (0, 2, 1)))
    return _joined(d, least, _k_scales(low, high), fifth, _apart(_fours(qs, 8), 32))


def _q6_k_r4(blocks: U8) -> U8:
    _, scales, qh, ql = _split(blocks, 8, 64, 256, 512)
    high = _two_bits(_pairs(qh, 8, (1, 0)))
    steps = scales.reshape(-1, 16, 4).swapaxes(1, 2)
    return _joined(_apart(_fours(ql, 8), 64), high, steps, _halves(blocks, 4))


def _q3_k_r4(blocks: U8) -> U8:
    _, scales_h, scales_l, qh, qs = _split(blocks, 8, 16, 32, 128, 256)
    low, high = _steps(scales_l, 4, 4, 16), _steps(scales_h, 4, 2, 16)
    fields = high.reshape(-1, 4, 4, 4) << np.array([[0], [2], [4], [6]], np.uint8)
    packed = low[..., :8] | low[..., 8:] << 4, np.bitwise_or.reduce(fields, axis=2)
    return _joined(_one_bit(_eighths(qh)), _two_bits(_quarters(qs)), *packed, _halves(blocks, 4))


def _q2_k_r4(blocks: U8) -> U8:
    _, scales, qs = _split(blocks, 16, 64, 256)
    d, least = _halves(blocks, 4), _halves(blocks, 4, 8)
    return _joined(scales.reshape(-1, 16, 4).swapaxes(1, 2), _two_bits(_quarters(qs)), d, least)


def _iq4_xs_r8(blocks: U8) -> U8:
    _, scales_h, scales_l, qs = _split(blocks, 16, 16, 32, 1024)
    high, low = _word(_steps(scales_h, 8, 2, 8), 2), _in_turn(_steps(scales_l, 8, 4, 8), 4)
    q = qs.reshape(-1, 8, 4, 8, 4)
    codes = np.stack((q & 15, q >> 4), -1).transpose(0, 3, 1, 2, 5, 4).reshape(-1, 8, 256)
    return _joined(_halves(blocks, 8), high, low, _apart(codes, 16))


def _iq4_k_r4(blocks: U8) -> U8:
    d, extra, scales_h, scales_l, qs = _split(blocks, 8, 8, 16, 32, 512)
    return _joined(
        _halves(d, 4), _tables(extra), _in_turn(_steps(scales_h, 4, 2, 16), 2),
        _in_turn(_steps(scales_l, 4, 4, 16), 4), _apart(_fours(qs, 8), 16),
    )  # fmt: skip


def _iq5_k_r4(blocks: U8) -> U8:
    d, extra, scales_h, scales_l, qs, qh = _split(blocks, 8, 8, 16, 32, 512, 128)
    return _joined(
        _halves(d, 4), _tables(extra), _in_turn(_steps(scales_h, 4, 2, 16), 2),
        _in_turn(_steps(scales_l, 4, 4, 16), 4), _apart(_fours(qs, 8), 32),
        _one_bit(_fifths(qh, 8, (1, 2, 0))),
    )  # fmt: skip


def _iq3_k_r4(blocks: U8) -> U8:
    d, extra, signs, scales, qs, qh = _split(blocks, 8, 8, 8, 32, 256, 128)
    return _joined(
        _halves(d, 4), _tables(extra), _word(_steps(signs, 4, 1, 16)),
        _in_turn(_steps(scales, 4, 4, 16), 4), _two_bits(_quarters(qs)), _one_bit(_eighths(qh)),
    )  # fmt: skip


def _iq2_k_r4(blocks: U8) -> U8:
    d, extra, scales, qs = _split(blocks, 8, 8, 32, 256)
    steps = _in_turn(_steps(scales, 4, 4, 16), 4)
    return _joined(_halves(d, 4), _tables(extra), steps, _two_bits(_quarters(qs)))


def _iq4_ks_r4(blocks: U8) -> U8:
    scales, qs = _split(blocks, 32, 512)
    return _joined(scales.reshape(-1, 8, 4).swapaxes(1, 2), _apart(_fours(qs, 8), 16))


def _iq5_ks_r4(blocks: U8) -> U8:
    scales, qs, qh = _split(blocks, 32, 512, 128)
    return _joined(
        scales.reshape(-1, 8, 4).swapaxes(1, 2), _apart(_fours(qs, 8), 32),
        _one_bit(_fifths(qh, 8, (1, 2, 0))),
    )  # fmt: skip


def _signs_and_scales(packed: U8) -> NDArray[np.uint32]:
    """The words of iq2_xxs and iq3_xxs `[m, 4, 8]`: the lowest bits of four bytes are the scale,
    the others Gray codes of seven signs, of which the eighth follows."""
    bytes_ = packed.reshape(-1, 8, 4, 4).swapaxes(1, 2)
    scale = np.bitwise_or.reduce((bytes_ & 1) << np.arange(4, dtype=np.uint8), axis=-1)
    signs = ((bytes_ & 254) ^ (bytes_ & 254) >> 1) & 127
    places = np.arange(0, 28, 7, dtype=np.uint32)
    words: NDArray[np.uint32] = np.bitwise_or.reduce(signs.astype(np.uint32) << places, axis=-1)
    words |= scale.astype(np.uint32) << np.uint32(28)
    return words


def _iq2_xxs_r4(blocks: U8) -> U8:
    d, signs, qs = _split(blocks, 8, 128, 128)
    words = _signs_and_scales(signs)
    codes = np.ascontiguousarray(qs.reshape(-1, 8, 4, 4).swapaxes(1, 2)).view("<u4")[..., 0]
    return _joined(_halves(d, 4), np.stack((codes, words), -1).reshape(len(blocks), 4, 16))


def _iq3_xxs_r4(blocks: U8) -> U8:
    d, signs, qs = _split(blocks, 8, 128, 256)
    codes = qs.reshape(-1, 8, 4, 8).swapaxes(1, 2).reshape(-1, 4, 64)
    return _joined(_halves(d, 4), codes, _signs_and_scales(signs))


def _iq2_xs_r4(blocks: U8) -> U8:
    d, qs, scales = _split(blocks, 8, 256, 32)
    words = np.ascontiguousarray(qs).view("<u2").reshape(-1, 8, 4, 4).swapaxes(1, 2)
    gray = words >> 9
    words = words & 511 | ((gray ^ gray << 1) & 127) << 9
    steps = scales.reshape(-1, 8, 4).swapaxes(1, 2)
    return _joined(_halves(d, 4), words.reshape(-1, 4, 32), steps)


def _iq2_s_r4(blocks: U8) -> U8:
    d, qs, qh, signs, scales = _split(blocks, 8, 128, 32, 128, 32)
    bytes_ = [x.reshape(-1, 8, 4, 4).swapaxes(1, 2).reshape(-1, 4, 32) for x in (qs, signs)]
    steps = [x.reshape(-1, 8, 4).swapaxes(1, 2) for x in (qh, scales)]
    return _joined(_halves(d, 4), *bytes_, *steps)


def _iq3_s_r4(blocks: U8) -> U8:
    d, qs, qh, signs, scales = _split(blocks, 8, 256, 32, 128, 16)
    codes = qs.reshape(-1, 8, 4, 2, 4).transpose(0, 4, 1, 3, 2).reshape(-1, 4, 64)
    bits = np.unpackbits(signs[..., None], axis=-1, bitorder="little").reshape(-1, 8, 4, 4, 8)
    minus = np.packbits(
        bits.transpose(0, 2, 1, 4, 3).reshape(-1, 4, 256), axis=-1, bitorder="little"
    )
    ninth = qh.reshape(-1, 8, 4).swapaxes(1, 2)
    return _joined(_halves(d, 4), codes, ninth, minus, _in_turn(_steps(scales, 4, 4, 8), 4))


def _iq1_s_r4(blocks: U8) -> U8:
    parts = blocks.reshape(-1, 8, 24)
    codes = parts[..., :16].reshape(-1, 8, 4, 4).transpose(0, 3, 1, 2).reshape(-1, 4, 32)
    high = np.ascontiguousarray(parts[..., 16:]).view("<u2").swapaxes(1, 2)
    return _joined(codes, high)


def _iq1_m_r4(blocks: U8) -> U8:
    parts = blocks.reshape(-1, 8, 28)
    codes = parts[..., :16].reshape(-1, 8, 4, 4).transpose(0, 3, 1, 2).reshape(-1, 4, 32)
    high = parts[..., 16:24].reshape(-1, 8, 2, 4).transpose(0, 3, 1, 2).reshape(-1, 4, 16)
    return _joined(parts[..., 24:].swapaxes(1, 2), codes, high)


def _q8_k(blocks: U8, rows: int) -> U8:
    """Blocks of 256 bytes as blocks of q8_0, which all have the scale of the whole."""
    qs = blocks[:, 2 * rows :].reshape(-1, 64, rows, 4).swapaxes(1, 2).reshape(-1, rows, 8, 32)
    d = np.broadcast_to(_halves(blocks, rows)[..., None], (*qs.shape[:3], 1))
    return _joined(d, qs ^ 128 if rows == 16 else qs).reshape(len(blocks), rows, -1)


def _q8_k_r8(blocks: U8) -> U8:
    return _q8_k(blocks, 8)


def _q8_k_r16(blocks: U8) -> U8:
    return _q8_k(blocks, 16)


def _q8_kv_r8(blocks: U8) -> U8:
    return blocks.reshape(-1, 8, 8, 4).swapaxes(1, 2).reshape(-1, 8, 32)


def _bf16_r16(blocks: U8) -> U8:
    return blocks.reshape(-1, 16, 4)


def _mxfp4_r8(blocks: U8) -> U8:
    return _nibbles_r8(blocks, 1)


def _iq2_bn_r4(blocks: U8) -> U8:
    q = blocks.reshape(-1, 4, 4, 4)[..., None] >> _PAIR_PLACES & np.uint8(3)
    codes = q.transpose(0, 2, 1, 4, 3).reshape(-1, 4, 4, 16) << _PAIR_PLACES[:, None]
    packed: U8 = np.bitwise_or.reduce(codes, axis=2)
    return packed


def _iq1_bn(blocks: U8) -> U8:
    """Base-3 digits, five in a byte, as the codes of q2_0; each sixteenth is in the last byte."""
    fives = _DIGITS[blocks[:, :12]].reshape(-1, 4, 15)
    sixteenths = _DIGITS[blocks[:, 12], :4, None]
    return _in_turn(np.concatenate([fives, sixteenths], axis=-1).reshape(-1, 1, 64), 2)


def _iq4_kss(blocks: U8) -> U8:
    """Gray codes of fifteen bits, each with a bit of the scale, as blocks of iq4_ks."""
    words = np.ascontiguousarray(blocks).view("<u2").reshape(-1, 8, 8)
    scales = np.bitwise_or.reduce((words & 1) << _SIXTEEN[:8], axis=-1).astype(np.uint8)
    codes = words & 0xFFFE
    codes ^= codes >> 1
    return _joined(scales[:, None], codes.reshape(-1, 1, 64))


_ROWS: tuple[tuple[str, int, int, int, int, int, str, Callable[[U8], U8]], ...] = (
    # name        id block bytes header rows in memory
    ("iq1_bn",    134,  64,  13, 2,  1, "q2_0", _iq1_bn),
    ("iq2_bn",    135,  64,  16, 4,  1, "iq2_bn", _as_it_is),
    ("iq4_ks",    144, 256, 136, 4,  1, "iq4_ks", _as_it_is),
    ("iq2_ks",    145, 256,  70, 2,  1, "iq2_ks", _as_it_is),
    ("iq4_kss",   146, 256, 128, 4,  1, "iq4_ks", _iq4_kss),
    ("q8_KV",     151,  32,  32, 8,  1, "q8_KV", _as_it_is),
    ("iq5_ks",    152, 256, 168, 4,  1, "iq5_ks", _as_it_is),
    ("iq2_kt",    153, 256,  68, 4,  1, "iq2_kt", _as_it_is),
    ("iq3_kt",    154, 256, 100, 4,  1, "iq3_kt", _as_it_is),
    ("iq4_kt",    155, 256, 128, 4,  1, "iq4_kt", _as_it_is),
    ("iq3_ks",    156, 256, 102, 2,  1, "iq3_ks", _as_it_is),
    ("iq2_kl",    157, 256,  86, 2,  1, "iq2_kl", _as_it_is),
    ("iq1_kt",    158, 256,  56, 4,  1, "iq1_kt", _as_it_is),
    ("q4_0_r8",   202,  32,  18, 0,  8, "q4_0", _nibbles_r8),
    ("q5_0_r4",   206,  32,  22, 0,  4, "q5_0", _q5_0_r4),
    ("q8_0_r8",   208,  32,  34, 0,  8, "q8_0", _q8_r8),
    ("q2_k_r4",   210, 256,  84, 0,  4, "q2_K", _q2_k_r4),
    ("q3_k_r4",   211, 256, 110, 0,  4, "q3_K", _q3_k_r4),
    ("q4_k_r4",   212, 256, 144, 0,  4, "q4_K", _q4_k_r4),
    ("q5_k_r4",   213, 256, 176, 0,  4, "q5_K", _q5_k_r4),
    ("q6_k_r4",   214, 256, 210, 0,  4, "q6_K", _q6_k_r4),
    ("iq2_xxs_r4", 216, 256, 66, 0,  4, "iq2_xxs", _iq2_xxs_r4),
    ("iq2_xs_r4", 217, 256,  74, 0,  4, "iq2_xs", _iq2_xs_r4),
    ("iq3_xxs_r4", 218, 256, 98, 0,  4, "iq3_xxs", _iq3_xxs_r4),
    ("iq1_s_r4",  219, 256,  48, 2,  4, "iq1_s", _iq1_s_r4),
    ("iq4_nl_r4", 220,  32,  18, 0,  4, "iq4_nl", _iq4_nl_r4),
    ("iq3_s_r4",  221, 256, 110, 0,  4, "iq3_s", _iq3_s_r4),
    ("iq2_s_r4",  222, 256,  82, 0,  4, "iq2_s", _iq2_s_r4),
    ("iq4_xs_r8", 223, 256, 136, 0,  8, "iq4_xs", _iq4_xs_r8),
    ("iq1_m_r4",  229, 256,  56, 2,  4, "iq1_m_r4", _iq1_m_r4),
    ("bf16_r16",  230,   2,   4, 0, 16, "bf16", _bf16_r16),
    ("q6_0_r4",   233,  32,  26, 0,  4, "q6_0", _q6_0_r4),
    ("iq2_bn_r4", 335,  64,  16, 4,  4, "iq2_bn", _iq2_bn_r4),
    ("iq2_k_r4",  337, 256,  76, 0,  4, "iq2_k", _iq2_k_r4),
    ("iq3_k_r4",  338, 256, 110, 0,  4, "iq3_k", _iq3_k_r4),
    ("iq4_k_r4",  339, 256, 144, 0,  4, "iq4_k", _iq4_k_r4),
    ("iq5_k_r4",  340, 256, 176, 0,  4, "iq5_k", _iq5_k_r4),
    ("iq4_ks_r4", 344, 256, 136, 4,  4, "iq4_ks", _iq4_ks_r4),
    ("iq5_ks_r4", 352, 256, 168, 4,  4, "iq5_ks", _iq5_ks_r4),
    ("mxfp4_r8",  353,  32,  17, 0,  8, "mxfp4", _mxfp4_r8),
    ("q8_k_r16",  397, 256, 258, 0, 16, "q8_0", _q8_k_r16),
    ("q8_KV_r8",  398,  32,  32, 4,  8, "q8_KV", _q8_kv_r8),
    ("q8_k_r8",   399, 256, 258, 0,  8, "q8_0", _q8_k_r8),
)  # fmt: skip

ROW_FORMS: dict[int, RowForm] = {row[1]: RowForm(*row[:6], DTYPES[row[6]], row[7]) for row in _ROWS}
"""The forms by the number that files store."""
