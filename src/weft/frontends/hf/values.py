"""`Values`: a tensor on its way into a GGUF file, computed when it is written or loaded.

A tensor that needs no change keeps its place in the folder, so that it can be mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.safetensors import Stored
from weft.records import dataclass

Floats = NDArray[np.float32]

_FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_KINDS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@dataclass(frozen=True, slots=True)
class Values:
    """A tensor: its sizes, its type in the folder, and how to get its values."""

    shape: tuple[int, ...]
    """Sizes, outermost first."""
    kind: str
    """The type of the values in the folder: `f32`, `f16`, `bf16` or a type of blocks; others count
    as `f32`."""
    load: Callable[[], Floats]
    """Computes the values, float32 `[*shape]`."""
    stored: Stored | None = None
    """The place of the values in the folder, if it has them unchanged."""
    packed: Callable[[], NDArray[np.uint8]] | None = None
    """For values that are quantized already, their blocks, uint8 `[*shape[:-1], row_bytes]`; `kind`
    names the type."""
    loose: str = ""
    """For values with blocks, the type that they have without blocks."""
    factor: Floats | None = None
    """The number by which the values of the blocks are multiplied, [1], or a number for each matrix
    of a stack; None: 1."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def unpacked(self) -> Values:
        """The same values without blocks."""
        return Values(self.shape, self.loose or self.kind, self.load, self.stored)

    def bare(self) -> Values:
        """The values without blocks and without their factor, which has a tensor of its own."""
        if self.factor is None:
            return self
        load, factor = self.load, self.factor
        by = factor.reshape(-1, *(1,) * (len(self.shape) - 1)) if factor.size > 1 else factor[0]
        return Values(self.shape, self.loose, lambda: load() / by)

    def through(
        self, change: Callable[[Floats], Floats], shape: Sequence[int] | None = None
    ) -> Values:
        """The values that `change` makes of these, with the sizes `shape` (None: the same)."""
        load, sizes = self.load, self.shape if shape is None else tuple(shape)
        return Values(sizes, self.loose or self.kind, lambda: change(load()).reshape(sizes))

    def reshaped(self, *shape: int) -> Values:
        """The same values in other sizes."""
        load, packed = self.load, self.packed
        if packed is None or shape[-1] != self.shape[-1] or self._stacked:
            kind = self.loose or self.kind
            return Values(shape, kind, lambda: load().reshape(shape), self.stored)
        return self._with_blocks(
            shape, lambda: load().reshape(shape), lambda: packed().reshape(*shape[:-1], -1)
        )

    def taken(self, *index: Any, shape: Sequence[int]) -> Values:
        """A part, as an index of NumPy takes it; it has the sizes `shape`. Whole rows keep their
        blocks."""
        load, packed, sizes = self.load, self.packed, tuple(shape)
        cut = len(index) == len(self.shape) or any(i is Ellipsis for i in index)
        whole = not cut or (isinstance(index[-1], slice) and index[-1] == slice(None))
        if packed is None or not whole or self._stacked:
            return self.through(lambda x: x[index], sizes)
        return self._with_blocks(
            sizes,
            lambda: load()[index].reshape(sizes),
            lambda: packed()[index].reshape(*sizes[:-1], -1),
        )

    @property
    def _stacked(self) -> bool:
        """True if each matrix of a stack has a factor of its own."""
        return self.factor is not None and self.factor.size > 1

    def _with_blocks(
        self,
        shape: tuple[int, ...],
        load: Callable[[], Floats],
        pack: Callable[[], NDArray[np.uint8]],
    ) -> Values:
        return Values(shape, self.kind, load, None, pack, self.loose, self.factor)

    def rows(self, start: int, stop: int) -> Values:
        """The rows [start, stop) of the outermost dimension."""
        return self.taken(slice(start, stop), shape=(stop - start, *self.shape[1:]))

    def split(self, *counts: int) -> list[Values]:
        """Parts with these numbers of rows, in order."""
        ends = np.cumsum(counts).tolist()
        return [self.rows(end - n, end) for n, end in zip(counts, ends, strict=True)]


def stored_values(t: Stored) -> Values:
    """A tensor of a safetensors file, as it is."""
    return Values(t.shape, _KINDS.get(t.kind, "f32"), lambda: _decode(t), t)


def stacked(parts: Sequence[Values]) -> Values:
    """Tensors of the same sizes one after another along a new outermost dimension; they keep their
    blocks if these are of one type."""
    first = parts[0]
    sizes = (len(parts), *first.shape)

    def together(make: Callable[[Values], NDArray[Any]]) -> Callable[[], NDArray[Any]]:
        def load() -> NDArray[Any]:
            one = make(first)
            out = np.empty((len(parts), *one.shape), one.dtype)
            for i, part in enumerate(parts):
                out[i] = make(part) if i else one
            return out

        return load

    load = together(lambda part: part.load())
    if any(part.packed is None or part.kind != first.kind for part in parts):
        return Values(sizes, first.loose or first.kind, load)
    factor = None
    if any(part.factor is not None for part in parts):
        one = np.ones(1, np.float32)
        factor = np.concatenate([one if p.factor is None else p.factor for p in parts])
    pack = together(lambda part: part.packed() if part.packed else part.load())
    return Values(sizes, first.kind, load, None, pack, first.loose, factor)


def beside(parts: Sequence[Values]) -> Values:
    """Matrices of the same width, one below the other."""
    n_rows = [part.shape[0] for part in parts]
    shape = (sum(n_rows), *parts[0].shape[1:])

    def load() -> Floats:
        out, at = np.empty(shape, np.float32), 0
        for part, n in zip(parts, n_rows, strict=True):
            out[at : at + n] = part.load()
            at += n
        return out

    if any(part.shape[1:] != shape[1:] for part in parts):
        raise FormatError(
            f"parts of one matrix have rows of different sizes: {shape[1:]} and others"
        )
    return Values(shape, parts[0].loose or parts[0].kind, load)


def _decode(t: Stored) -> Floats:
    data = t.data
    if t.kind == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(t.shape)
    if t.kind in _FLOATS:
        return data.view(_FLOATS[t.kind]).astype(np.float32).reshape(t.shape)
    if t.kind.startswith("F8"):
        return decode_f8(data, t.kind).reshape(t.shape)
    kind = "?" if t.kind == "BOOL" else f"<{t.kind[0].lower()}{int(t.kind[1:]) // 8}"
    return data.view(kind).astype(np.float32).reshape(t.shape)


def decode_f8(data: NDArray[np.uint8], kind: str) -> Floats:
    """8-bit floats as float32: E4M3 (without infinities), E5M2, or E8M0 (powers of two)."""
    return np.asarray(_F8[kind][data], np.float32)


def _table(n_mantissa: int, bias: int, *, infinities: bool) -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code & 127) >> n_mantissa, code & ((1 << n_mantissa) - 1)
    scale = np.ldexp(1.0, np.maximum(exponent, 1) - bias - n_mantissa)
    value = (mantissa + (exponent > 0) * (1 << n_mantissa)) * scale
    if infinities:
        top = exponent == 31
        value[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        value[code & 127 == 127] = np.nan
    return np.asarray(np.where(code < 128, value, -value), np.float32)


_F8: dict[str, Floats] = {
    "F8_E4M3": _table(3, 7, infinities=False),
    "F8_E5M2": _table(2, 15, infinities=True),
    "F8_E8M0": np.array([*np.ldexp(1.0, np.arange(255) - 127), np.nan], np.float32),
}
