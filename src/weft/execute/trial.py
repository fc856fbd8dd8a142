"""One op on one device with known data, and the comparison of two devices' results."""

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

Array = NDArray[Any]

POISON = 0xFF
"""The value of every byte before a run: a NaN as a float, -1 as an integer."""


def run_case(case: Case, backend: Backend, seed: int = 1) -> Array:
    """The result of a case in storage form, shape ne[::-1].

    `backend` computes it into memory that held POISON before. Raises the errors of compilation and
    devices."""
    sources = Sources(seed)
    graph = Graph(case.build(sources).as_output("out"))
    session = Session(compile(graph, [backend]))
    session.fill_arenas(POISON)
    return session.run({name: sources.data[name] for name in graph.inputs})["out"]


def disagreement(result: Array, want: Array, dtype: DType, limit: float) -> str:
    """Empty when `result` agrees with `want`, else the difference as a short phrase.

    `limit` is the largest NMSE, sum((result - want)^2) / sum(want^2), over finite elements; 0 means
    equal bytes. Infinities and NaNs must be at the same places."""
    unwritten = _unwritten(result, want, dtype)
    if unwritten:
        return unwritten
    if limit == 0 or not (dtype.is_quantized or dtype.storage.kind == "f" or dtype.name == "bf16"):
        differ = int(np.count_nonzero(result.view(np.uint8) != want.view(np.uint8)))
        return f"{differ} of {result.nbytes} bytes differ" if differ else ""
    a, b = (quants.from_storage(x, dtype).astype(np.float64) for x in (result, want))
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


def _unwritten(result: Array, want: Array, dtype: DType) -> str:
    """A phrase about elements (blocks, of block types) that the run left as they were; empty:
    none."""
    a, b = (x.reshape(-1).view(np.uint8).reshape(-1, dtype.bytes) for x in (result, want))
    unwritten = int(np.count_nonzero((a == POISON).all(axis=1) & ~(b == POISON).all(axis=1)))
    if not unwritten:
        return ""
    return (
        "computes nothing"
        if unwritten == len(a)
        else f"leaves {unwritten} of {len(a)} elements unwritten"
    )
