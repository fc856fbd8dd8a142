"""Ops on plain tensors at the limits of their types.

These are NaN, infinities, signed zeros, subnormals, integers that wrap around, huge angles, and
reductions long enough to be split into parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.node import INTEGERS
from weft.graph.ops import BinaryOp, CumulateOp, MapOp, ReduceOp
from weft.graph.tensor import Tensor

_SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.0, -2.0, 3.0, -3.0, 1e-40, -1e-40, 1e-7, 88.0, -88.0),
    *(1e5, -1e5, 1e20, -1e20, 3e38, -3e38, np.inf, -np.inf, np.nan),
)
_MAPS: dict[MapOp, tuple[float, ...]] = {
    **{op: () for op in (MapOp.ROUND_EVEN, MapOp.EXP2, MapOp.LOG2, MapOp.LOG10, MapOp.LOG1P)},
    **{op: () for op in (MapOp.RSQRT, MapOp.TAN, MapOp.ASIN, MapOp.ACOS, MapOp.ATAN)},
    **{op: () for op in (MapOp.SINH, MapOp.COSH, MapOp.ASINH, MapOp.ACOSH, MapOp.ATANH)},
    **{op: () for op in (MapOp.ERF, MapOp.ERFC, MapOp.SIGN, MapOp.IS_NAN, MapOp.IS_FINITE)},
    MapOp.POW: (-1.5,),
    MapOp.CLAMP: (-2.0, 1e5),
}
_ON_ENDS = (
    *(BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL, BinaryOp.FLOOR_DIV, BinaryOp.TRUNC_DIV),
    *(BinaryOp.REMAINDER, BinaryOp.FMOD, BinaryOp.MIN, BinaryOp.MAX, BinaryOp.LT, BinaryOp.EQ),
)
_LONG = 70_001
"""The number of elements of a reduction that is split into parts."""


def tensor_edge_cases() -> Iterator[Case]:
    """The cases of this file."""
    for op, parameters in _MAPS.items():
        yield Case("MAP", f"{op.name} special", bound(_map, op, parameters), 1e-9)
    for pair in (
        BinaryOp.POW,
        BinaryOp.ATAN2,
        BinaryOp.MIN,
        BinaryOp.MAX,
        BinaryOp.LT,
        BinaryOp.NE,
    ):
        yield Case("BINARY", f"{pair.name} special", bound(_pairs, pair, _SPECIAL, "f32"), 1e-9)
    for name, function in (("SIN", g.sin), ("COS", g.cos)):
        yield Case(name, "special", bound(_of_special, function), 1e-9)
        yield Case(name, "huge", bound(_of_angles, function), 1e-9)
    for t in INTEGERS:
        limits = np.iinfo(t.replace("i", "int"))
        ends = (limits.min, limits.min + 1, -7, -2, -1, 1, 2, 7, limits.max - 1, limits.max)
        for pair in _ON_ENDS:
            yield Case("BINARY", f"{pair.name} {t} ends", bound(_pairs, pair, ends, t), 0)
        for to in (*INTEGERS, *FLOATS):
            yield Case("CONVERT", f"{t} ends to {to}", bound(_convert, ends, t, to), 0)
        yield Case("CONVERT", f"f32 ends to {t}", bound(_convert, _CUTS, "f32", t), 0)
    for t in ("f32", "bf16", "i32", "i64"):
        yield from _long(t)


_CUTS = (0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.5, 2147483520.0, -2147483648.0, 1e-40)


def _map(s: Sources, op: MapOp, parameters: tuple[float, ...]) -> Tensor:
    return g.map_elements(op, s.fixed(_SPECIAL), *parameters)


def _pairs(s: Sources, op: BinaryOp, values: tuple[float, ...], t: str) -> Tensor:
    """Every pair of `values`."""
    array = np.array(values, np.float64 if t == "f32" else np.int64)
    return g.binary(op, s.fixed(np.tile(array[:, None], len(values)), t), s.fixed(array, t))


def _of_special(s: Sources, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(s.fixed(_SPECIAL))


def _of_angles(s: Sources, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(_angles(s))


def _angles(s: Sources) -> Tensor:
    """Angles on either side of the end of a fast reduction, and far beyond."""
    rng = np.random.default_rng(3)
    return s.fixed(rng.choice([-1, 1], 3000) * 10.0 ** rng.uniform(3, 30, 3000))


def _convert(s: Sources, values: tuple[float, ...], t: str, to: str) -> Tensor:
    return g.convert(s.fixed(np.tile(np.array(values), 30), t), to)


def _long(t: str) -> Iterator[Case]:
    exact = t in INTEGERS
    for op in ReduceOp:
        if op is ReduceOp.PROD or (op is ReduceOp.MEAN and exact):
            continue
        limit = 0 if exact or op in (ReduceOp.MAX, ReduceOp.MIN) or op >= ReduceOp.ANY else 1e-9
        limit = limit if t != "bf16" or limit == 0 else 1e-4
        yield Case("REDUCE", f"{op.name} {t} long", bound(_reduce, op, t, (0,)), limit)
        yield Case("REDUCE", f"{op.name} {t} long, 2 axes", bound(_reduce, op, t, (0, 2)), limit)
    for largest in (True, False):
        for nans in (False, True) if not exact else (False,):
            name = f"{t} long {'largest' if largest else 'smallest'}{' NaN' if nans else ''}"
            yield Case("ARG_REDUCE", name, bound(_search, t, largest, nans), 0)
    sums = 0 if exact else 1e-9 if t == "f32" else 1e-4
    yield Case(
        "CUMULATE",
        f"{t} long",
        lambda s: g.cumulate(CumulateOp.SUM, _ordinary(s, t, 5000, 6), 0),
        sums,
    )
    yield Case(
        "SCATTER",
        f"{t} long, added often",
        lambda s: g.scatter(
            _ordinary(s, t, 9000),
            s.integers(9000, 8000, dtype="i64"),
            _ordinary(s, t, 8000),
            0,
            "add",
        ),
        1e-7 if t != "bf16" else 1e-4,
    )


def _ordinary(s: Sources, t: str, *ne: int) -> Tensor:
    return s.integers(50, *ne, dtype=t) if t in INTEGERS else s.normal(*ne, dtype=t)


def _reduce(s: Sources, op: ReduceOp, t: str, axes: tuple[int, ...]) -> Tensor:
    ne = (_LONG,) if axes == (0,) else (_LONG // 7, 2, 9)
    return g.reduce(op, _ordinary(s, t, *ne), axes)


def _search(s: Sources, t: str, largest: bool, nans: bool) -> Tensor:
    """A search among equal elements, in rows that are split into parts."""
    rng = np.random.default_rng(4)
    values = rng.integers(-40, 40, (30, 1001)).astype(np.float64)
    if nans:
        values[17, 400:402] = np.nan
        values[25, 3] = np.nan
    return g.arg_reduce(s.fixed(values, t), None, largest=largest)
