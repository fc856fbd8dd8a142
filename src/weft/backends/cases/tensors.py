"""Ops on plain tensors, as PyTorch programs use them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft import graph as g
from weft.backends.cases.case import Build, Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.node import INTEGERS, NUMBERS
from weft.graph.ops import BinaryOp, CumulateOp, MapOp, PadMode, ReduceOp
from weft.graph.tensor import Tensor

LIMITS = {"f32": 1e-9, "f16": 1e-6, "bf16": 1e-4}
"""Limits by type: 16-bit results differ where float32 and float64 round to different sides."""

_OF_FLOATS = (BinaryOp.DIV, BinaryOp.ATAN2)
_ROUGH = (BinaryOp.FLOOR_DIV, BinaryOp.TRUNC_DIV, BinaryOp.REMAINDER, BinaryOp.FMOD)
"""Functions of a quotient, which next to a whole number may be rounded to either side."""
_INTEGER_MAPS = (MapOp.ABS, MapOp.NEG, MapOp.SIGN, MapOp.CLAMP)

_PARAMETERS: dict[MapOp, tuple[float, ...]] = {
    MapOp.CLAMP: (-0.5, 1.5),
    MapOp.ELU: (1.3, 1.1, 0.9),
    MapOp.SOFTPLUS: (1.5, 10.0),
    MapOp.SOFTSHRINK: (0.4,),
    MapOp.HARDSHRINK: (0.4,),
    MapOp.THRESHOLD: (0.2, -7.0),
    MapOp.LEAKY_RELU: (0.1,),
    MapOp.POW: (1.7,),
}
_RANGES: dict[MapOp, tuple[float, float]] = {
    MapOp.LOG2: (0.1, 4),
    MapOp.LOG10: (0.1, 4),
    MapOp.LOG1P: (-0.5, 4),
    MapOp.RSQRT: (0.1, 4),
    MapOp.RECIPROCAL: (0.5, 4),
    MapOp.TAN: (-1, 1),
    MapOp.ASIN: (-0.99, 0.99),
    MapOp.ACOS: (-0.99, 0.99),
    MapOp.ACOSH: (1.1, 9),
    MapOp.ATANH: (-0.9, 0.9),
    MapOp.POW: (0.1, 4),
}


def tensor_cases() -> Iterator[Case]:
    """The cases of this file."""
    yield from _binaries()
    yield from _maps()
    for t in NUMBERS:
        yield from _choices(t)
    yield from _reductions()
    for t in FLOATS:
        for p in (0.0, 1.0, 2.0, 2.5, float("inf")):
            yield Case("CDIST", f"p={p:g} {t}", _distance(t, p), LIMITS[t])
    for t in INTEGERS:
        for to in INTEGERS[INTEGERS.index(t) :]:
            yield Case("MUL_MAT_INT", f"{t} to {to}", _whole_product(t, to), 0)
    for t in NUMBERS:
        yield from _indexing(t)


def _numbers(s: Sources, t: str, *ne: int) -> Tensor:
    """Numbers of a type: normal floats, small whole numbers (none of them 0)."""
    if t not in INTEGERS:
        return s.normal(*ne, dtype=t, scale=2)
    rng = np.random.default_rng(sum(ne) + len(t))
    values = rng.integers(1, 7, ne[::-1]) * rng.choice([-1, 1], ne[::-1])
    return s.fixed(values, t)


def _binaries() -> Iterator[Case]:
    for op in BinaryOp:
        for t in NUMBERS:
            if (t in INTEGERS and op in _OF_FLOATS) or (t in FLOATS and op >= BinaryOp.BIT_AND):
                continue
            limit = LIMITS[t] if t in FLOATS and not op.is_test else 0
            if op in _ROUGH and t in FLOATS:
                limit = 1e-3
            yield Case("BINARY", f"{op.name} {t}", _binary(op, t), limit)


def _binary(op: BinaryOp, t: str) -> Build:
    def build(s: Sources) -> Tensor:
        low = 0.3 if op in (BinaryOp.POW, BinaryOp.REMAINDER, BinaryOp.FMOD) else -2
        a = _numbers(s, t, 133, 6, 1) if t in INTEGERS else s.uniform(low, 3, 133, 6, 1, dtype=t)
        b = _numbers(s, t, 133, 1, 3) if t in INTEGERS else s.uniform(0.5, 3, 133, 1, 3, dtype=t)
        return g.binary(op, a, b)

    return build


def _maps() -> Iterator[Case]:
    for op in MapOp:
        for t in NUMBERS:
            whole = t in INTEGERS
            if whole and not (op in _INTEGER_MAPS or op.is_test or op is MapOp.BIT_NOT):
                continue
            if not whole and op is MapOp.BIT_NOT:
                continue
            limit = 0 if whole or op.is_test else LIMITS[t]
            yield Case("MAP", f"{op.name} {t}", _map(op, t), limit)


def _map(op: MapOp, t: str) -> Build:
    def build(s: Sources) -> Tensor:
        if t in INTEGERS or op not in _RANGES:
            x = _numbers(s, t, 133, 6)
        else:
            x = s.uniform(*_RANGES[op], 133, 6, dtype=t)
        return g.map_elements(op, x, *_PARAMETERS.get(op, ()))

    return build


def _choices(t: str) -> Iterator[Case]:
    def x(s: Sources) -> Tensor:
        return _numbers(s, t, 133, 6)

    def where(s: Sources) -> Tensor:
        return g.where(s.integers(2, 133, 1, dtype="i8"), x(s), _numbers(s, t, 1, 6))

    yield Case("WHERE", t, where, 0)
    for to in NUMBERS:
        yield Case("CONVERT", f"{t} to {to}", bound(lambda s, to: g.convert(x(s), to), to), 0)
    yield Case("CONVERT", f"{t} to boolean", lambda s: g.convert(x(s), "i8", boolean=True), 0)


def _distance(t: str, p: float) -> Build:
    return lambda s: g.cdist(s.normal(133, 5, 2, dtype=t), s.normal(133, 7, dtype=t), p=p)


def _whole_product(t: str, to: str) -> Build:
    return lambda s: g.mul_mat_int(_numbers(s, t, 133, 5), _numbers(s, t, 133, 7, 2), to)


def _reductions() -> Iterator[Case]:
    for op in ReduceOp:
        for t in NUMBERS:
            if op is ReduceOp.MEAN and t in INTEGERS:
                continue
            exact = t in INTEGERS or op in (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.ANY, ReduceOp.ALL)
            limit = 0 if exact else 10 * LIMITS[t]
            for axes in ((0,), (1,), (0, 2)):
                yield Case("REDUCE", f"{op.name} {t} {axes}", _reduce(op, t, axes), limit)
    for t in NUMBERS:
        yield from _orders(t)
    yield Case("SORT_INDICES", "first 5", lambda s: g.sort_indices(s.normal(133, 6), 0, k=5), 0)


def _orders(t: str) -> Iterator[Case]:
    """Positions of elements, running sums and searches."""

    def x(s: Sources) -> Tensor:
        return _numbers(s, t, 133, 6, 2)

    for axis in (None, 0, 1):
        yield Case("ARG_REDUCE", f"{t} {axis}", bound(lambda s, a: g.arg_reduce(x(s), a), axis), 0)
    for axis in (0, 1):
        for up in (True, False):
            name = f"{'largest' if up else 'smallest'} {t} {axis}"
            build = bound(lambda s, a, up: g.cumulate_arg(x(s), a, largest=up), axis, up)
            yield Case("CUMULATE_ARG", name, build, 0)
    for right in (False, True):
        for together in (False, True):
            name = f"{t} {'above' if right else 'below'}{', one row' if together else ''}"
            yield Case("SEARCH_SORTED", name, bound(_search, t, right, together), 0)
    limit = 0 if t in INTEGERS else 10 * LIMITS[t]
    for run in CumulateOp:
        for axis in (0, 1):
            build = bound(lambda s, o, a: g.cumulate(o, _factors(s, t, 33, 6, 2), a), run, axis)
            yield Case("CUMULATE", f"{run.name} {t} {axis}", build, limit)
    for axis, n in ((0, 133), (0, 20), (1, 6)):
        yield Case("SORT_INDICES", f"{t} {axis} of {n}", bound(_sort, t, axis, n), 0)


def _sort(s: Sources, t: str, axis: int, n: int) -> Tensor:
    return g.sort_indices(_numbers(s, t, n, 6, 2), axis, descending=n == 133)


def _search(s: Sources, t: str, right: bool, together: bool) -> Tensor:
    rows = np.sort(np.arange(2 * 37).reshape(2, 37) * 7 % 23, axis=1) - 9
    values = np.arange(2 * 45).reshape(2, 45) * 5 % 29 - 12
    return g.search_sorted(
        s.fixed(rows[:1] if together else rows, t), s.fixed(values, t), right=right
    )


def _factors(s: Sources, t: str, *ne: int) -> Tensor:
    """Numbers whose products stay small."""
    return _numbers(s, t, *ne) if t in INTEGERS else s.uniform(0.8, 1.25, *ne, dtype=t)


def _reduce(op: ReduceOp, t: str, axes: tuple[int, ...]) -> Build:
    return lambda s: g.reduce(op, _factors(s, t, 133, 6, 5), axes)


def _indexing(t: str) -> Iterator[Case]:
    def x(s: Sources) -> Tensor:
        return _numbers(s, t, 37, 9)

    for axis in (0, 1):
        build = bound(lambda s, a: g.gather(x(s), s.integers(9, 37, 7), a), axis)
        yield Case("GATHER", f"{t} {axis}", build, 0)
        for mode in ("set", "add"):
            yield Case("SCATTER", f"{mode} {t} {axis}", _scatter(t, axis, mode), 1e-4)
    yield Case("INDEX", f"{t} rows", lambda s: g.index(x(s), [None, s.integers(9, 5)]), 0)
    yield Case("INDEX", f"{t} two axes", bound(_two_axes, t), 0)
    for adds in (False, True):
        yield Case("INDEX_PUT", f"{t}{' added' if adds else ''}", _put(t, adds), 1e-4)
    for pad in PadMode:
        build = bound(lambda s, m: g.pad_nd(x(s), (3, -2), (5, 4), m, 2.0), pad)
        yield Case("PAD_ND", f"{pad.name} {t}", build, 0)


def _two_axes(s: Sources, t: str) -> Tensor:
    x = _numbers(s, t, 7, 6, 9)
    return g.index(x, [s.integers(7, 5, dtype="i64"), None, s.integers(9, 5, dtype="i64")])


def _scatter(t: str, axis: int, mode: str) -> Build:
    def build(s: Sources) -> Tensor:
        # each place once, so that 16-bit sums are rounded once
        at = s.distinct(9, 7, 37) if axis == 0 else s.distinct(9, 9, 1)
        x = _numbers(s, t, 9, 37) if axis == 0 else _numbers(s, t, 9, 9)
        source = _numbers(s, t, 7, 37) if axis == 0 else _numbers(s, t, 9, 9)
        return g.scatter(x, at, source, axis, mode)

    return build


def _put(t: str, adds: bool) -> Build:
    return lambda s: g.index_put(
        _numbers(s, t, 37, 9, 2),
        [None, s.distinct(9, 5)],
        _numbers(s, t, 37, 5, 2),
        accumulate=adds,
    )
