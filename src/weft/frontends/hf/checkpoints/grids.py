"""Integer codes with scales: the values that they stand for, and the blocks that hold them exactly.

A group of neighbours in a row shares a scale, and often a zero point or a minimum:

    x = (code - zero) * scale        x = code * scale + minimum

Blocks of 32 elements hold these values exactly if groups are whole blocks and a 16-bit float holds
the scale: q4_0 codes from -8 to 7, q5_0 from -16 to 15, q8_0 from -128 to 127, all without their
zero; q4_1 and q5_1 codes from 0 to 15 and to 31, with a minimum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.values import Floats, Values
from weft.quants import with_codes, with_nibbles
from weft.records import dataclass

Codes = NDArray[np.int8 | np.int16 | np.uint8]
_BLOCK = 32
_AROUND_ZERO = (("q4_0", 4), ("q5_0", 5), ("q8_0", 8))
_FROM_MINIMUM = (("q4_1", 4), ("q5_1", 5))


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix, or a stack of matrices, of integer codes with scales."""

    shape: tuple[int, ...]
    """Sizes, outermost first."""
    codes: Callable[[], Codes]
    """Computes the codes without their zero points, `[*shape]`."""
    reach: tuple[int, int]
    """The smallest and the largest code that there may be."""
    scales: Values
    """A scale for each group, `[*shape[:-1], n_groups]`."""
    kind: str
    """The type of the values where no block holds them: `f16`, `bf16` or `f32`."""
    minima: Values | None = None
    """What is added to the values of each group, in sizes as of `scales`."""
    groups: NDArray[np.int32] | None = None
    """The group of each column; None: groups are neighbours, in order."""
    nibbles: Callable[[], NDArray[np.uint8]] | None = None
    """Codes of 4 bits two to a byte, the first in the low bits, `[*shape[:-1], n / 2]`, raised by 8
    where there are no minima; None: they are not stored so."""

    def values(self) -> Values:
        """The values, with blocks if these hold them exactly."""
        sizes, of = self.scales.shape, self.minima
        apart = self.groups is None and (not sizes[-1] or self.shape[-1] % sizes[-1])
        if sizes[:-1] != self.shape[:-1] or apart or (of is not None and of.shape != sizes):
            raise ValueError(f"scales of sizes {list(sizes)} for a matrix of {list(self.shape)}")
        name, bits = self._block()
        if not bits:
            return Values(self.shape, self.kind, self._load)
        return Values(
            self.shape, name, self._load, packed=lambda: self._packed(bits), loose=self.kind
        )

    @property
    def _each(self) -> int:
        """The number of columns of a group."""
        return self.shape[-1] // max(self.scales.shape[-1], 1)

    def _block(self) -> tuple[str, int]:
        """The type of block that holds the values, and the bits of its codes; 0: there is none."""
        n, each = self.shape[-1], self._each
        if n % _BLOCK or each % _BLOCK or self.groups is not None:
            return "", 0
        if self.minima is None:
            fits = [row for row in _AROUND_ZERO if self.reach[0] >= -1 << (row[1] - 1)]
            fits = [row for row in fits if self.reach[1] < 1 << (row[1] - 1)]
        else:
            fits = [
                row for row in _FROM_MINIMUM if 0 <= self.reach[0] <= self.reach[1] < 1 << row[1]
            ]
        found = [v for v in (self.scales, self.minima) if v is not None]
        if not fits or not all(map(fits_f16, found)):
            return "", 0
        return fits[0]

    def _load(self) -> Floats:
        scales = self.scales.load()
        minima = None if self.minima is None else self.minima.load()
        x: Floats = self.codes().astype(np.float32)
        if self.groups is not None:
            x *= scales[..., self.groups]
            return x if minima is None else x + minima[..., self.groups]
        x = x.reshape(*scales.shape, -1)
        x *= scales[..., None]
        if minima is not None:
            x += minima[..., None]
        return x.reshape(self.shape)

    def _packed(self, bits: int) -> NDArray[np.uint8]:
        def each_block(of_groups: Values) -> Floats:
            return np.repeat(of_groups.load(), self._each // _BLOCK, -1).reshape(-1)

        minima = None if self.minima is None else each_block(self.minima)
        if self.nibbles is not None and bits == 4:
            nibbles = self.nibbles().reshape(-1, _BLOCK // 2)
            blocks = with_nibbles(nibbles, each_block(self.scales), minima)
            return blocks.reshape(*self.shape[:-1], -1)
        codes = self.codes()
        whole = codes.view(np.int8) if codes.dtype == np.uint8 else codes.astype(np.int8)
        blocks = with_codes(whole.reshape(-1, _BLOCK), each_block(self.scales), minima, bits)
        return blocks.reshape(*self.shape[:-1], -1)


def fits_f16(values: Values) -> bool:
    """True if 16-bit floats hold the values exactly."""
    if values.kind == "f16":
        return True
    if values.kind == "bf16" and values.stored is not None:  # there may be many gigabytes
        exponents = values.stored.data.view("<u2") & 0x7F80
        if 110 << 7 <= exponents.min(initial=127 << 7) <= exponents.max(initial=0) <= 142 << 7:
            return True
    x = values.load()
    with np.errstate(over="ignore"):
        return bool((x.astype(np.float16) == x).all())


def fields(words: NDArray[Any], bits: int, n: int) -> NDArray[np.uint8]:
    """The first `n` codes of `bits` bits in rows of 32-bit words `[..., n_words]`, which follow one
    another without gaps, lowest bits first."""
    data = bytes_of(words)
    if 32 * words.shape[-1] < bits * n:
        raise FormatError(
            f"rows of {words.shape[-1]} words hold no {n} codes of {bits} bits; download the "
            "model again"
        )
    if bits == 8:
        return data[..., :n]
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        each = (data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    else:
        flags = np.unpackbits(data, axis=-1, bitorder="little")[..., : n * bits]
        places = np.left_shift(1, np.arange(bits)).astype(np.uint8)
        each = flags.reshape(*flags.shape[:-1], n, bits) @ places
    return np.asarray(each.reshape(*words.shape[:-1], -1)[..., :n], np.uint8)


def fields_of_words(words: NDArray[Any], bits: int, n: int) -> NDArray[np.uint8]:
    """The same for words that have whole codes only: 10 codes of 3 bits leave 2 bits unused."""
    if 32 % bits == 0:
        return fields(words, bits, n)
    shifts = np.arange(0, 32 - bits + 1, bits, dtype=np.uint32)
    each = (np.asarray(words, np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return each.reshape(*words.shape[:-1], -1)[..., :n].astype(np.uint8)


def bytes_of(words: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of rows of 32-bit words `[..., n_words]`."""
    return np.ascontiguousarray(words).view(np.uint8)


def less_zeros(codes: NDArray[np.uint8], zeros: NDArray[Any]) -> Codes:
    """Codes `[..., n]` without the zero points `zeros` `[..., n_groups]` of their groups."""
    if codes.shape[:-1] != zeros.shape[:-1] or codes.shape[-1] % max(zeros.shape[-1], 1):
        raise FormatError(
            f"zero points of sizes {list(zeros.shape)} for a matrix of {list(codes.shape)}; "
            "download the model again"
        )
    wide: Any = np.int8 if codes.max(initial=0) < 64 and zeros.max(initial=0) < 64 else np.int16
    each: Codes = codes.reshape(*zeros.shape, -1).astype(wide)
    less: Codes = np.subtract(each, zeros[..., None].astype(wide)).reshape(codes.shape)
    return less
