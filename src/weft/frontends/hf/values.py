"""`Values`: a tensor on its way into a GGUF file, computed when it is written or loaded.

A tensor that needs no change keeps its place in the folder, so that it can be mapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """The type of the values in the folder: `f32`, `f16` or `bf16`; others count as `f32`."""
    load: Callable[[], Floats]
    """Computes the values, float32 `[*shape]`."""
    stored: Stored | None = None
    """The place of the values in the folder, if it has them unchanged."""
    packed: Callable[[], NDArray[np.uint8]] | None = None
    """For values that are quantized already, their blocks; `kind` names the type."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def through(
        self, change: Callable[[Floats], Floats], shape: Sequence[int] | None = None
    ) -> Values:
        """The values that `change` makes of these, with the sizes `shape` (None: the same)."""
        load, sizes = self.load, self.shape if shape is None else tuple(shape)
        return Values(sizes, self.kind, lambda: change(load()).reshape(sizes))

    def reshaped(self, *shape: int) -> Values:
        """The same values in other sizes."""
        load = self.load
        return Values(shape, self.kind, lambda: load().reshape(shape), self.stored)

    def taken(self, *index: Any, shape: Sequence[int]) -> Values:
        """A part, as NumPy's basic indexing takes it; it has the sizes `shape`."""
        return self.through(lambda x: x[index], shape)

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
    """Tensors of the same sizes one after another along a new outermost dimension."""
    first = parts[0]

    def load() -> Floats:
        out = np.empty((len(parts), *first.shape), np.float32)
        for i, part in enumerate(parts):
            out[i] = part.load()
        return out

    shape = (len(parts), *first.shape)
    blocks = [part.packed for part in parts if part.packed is not None]
    if len(blocks) < len(parts) or len({part.kind for part in parts}) > 1:
        return Values(shape, first.kind, load)
    return Values(shape, first.kind, load, packed=lambda: np.stack([pack() for pack in blocks]))


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
