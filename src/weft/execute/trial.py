"""One op on one device with known data, and whether two devices agree about it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.backends.base import Backend
from weft.backends.cases import Case, Sources
from weft.compiler import compile
from weft.dtype import DType
from weft.execute.session import Session
from weft.graph import Graph

__all__ = ["POISON", "disagreement", "run_case"]

Array = NDArray[Any]

POISON = 0xFF
"""What every byte holds before a run: as a float it is no number, as a whole number -1."""


def run_case(case: Case, backend: Backend, seed: int = 1) -> Array:
    """The result of a case in storage form, shape ne[::-1], computed by `backend` into memory that
    held POISON before. Raises what compilation and devices raise."""
    sources = Sources(seed)
    graph = Graph(case.build(sources).as_output("out"))
    session = Session(compile(graph, [backend]))
    session.fill_arenas(POISON)
    return session.run({name: sources.data[name] for name in graph.inputs})["out"]


def disagreement(got: Array, want: Array, dtype: DType, limit: float) -> str:
    """Empty when `got` agrees with `want`, else how it does not, as a short phrase.

    `limit`: largest NMSE, sum((got - want)^2) / sum(want^2), over finite elements; 0: equal.
    Infinities and NaNs must be at the same places."""
    unwritten = _unwritten(got, want, dtype)
    if unwritten:
        return unwritten
    if limit == 0 or not (dtype.is_quantized or dtype.storage.kind == "f" or dtype.name == "bf16"):
        differ = int(np.count_nonzero(got.view(np.uint8) != want.view(np.uint8)))
        return f"{differ} of {got.nbytes} bytes differ" if differ else ""
    a, b = (quants.from_storage(x, dtype).astype(np.float64) for x in (got, want))
    finite = np.isfinite(b)
    wrong = int(np.count_nonzero(~_same_kind(a[~finite], b[~finite])))
    wrong += int(np.count_nonzero(~np.isfinite(a[finite])))
    if wrong:
        return f"{wrong} of {a.size} elements are infinite or no number where they should not be"
    error = float(np.sum(np.square(a[finite] - b[finite])))
    total = float(np.sum(np.square(b[finite])))
    ratio = error / total if total > 0 else (0.0 if error == 0 else float("inf"))
    return "" if ratio <= limit else f"error {ratio:.2g} (NMSE), at most {limit:.0e} is right"


def _same_kind(a: Array, b: Array) -> Array:
    same: Array = (a == b) | (np.isnan(a) & np.isnan(b))
    return same


def _unwritten(got: Array, want: Array, dtype: DType) -> str:
    """Whether elements (blocks, of block types) still are as they were before the run."""
    a, b = (x.reshape(-1).view(np.uint8).reshape(-1, dtype.bytes) for x in (got, want))
    left = int(np.count_nonzero((a == POISON).all(axis=1) & ~(b == POISON).all(axis=1)))
    if not left:
        return ""
    return "computes nothing" if left == len(a) else f"leaves {left} of {len(a)} elements unwritten"
