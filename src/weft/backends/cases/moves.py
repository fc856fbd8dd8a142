"""Copies, windows of tensors, padding, resizing."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.tensor import Tensor


def move_cases() -> Iterator[Case]:
    """The cases of this file; only ACC, sums of repeats and interpolation round."""
    for t in (*FLOATS, "i32", "i16"):
        yield from _copies(t)
    for t in (*FLOATS, "i32"):
        yield Case("DUP", t, bound(_dup, t), 0)
    yield Case("CONT", "q8_0", lambda s: g.cont(s.normal(64, 5, dtype="q8_0")), 0)
    yield Case("REPEAT_BACK", "f32", lambda s: g.repeat_back(s.normal(34, 10), (17, 5, 1, 1)))
    yield Case("SET", "f32", lambda s: _region(g.set, s.normal(37, 6), s.normal(9, 3)), 0)
    yield Case("SET", "i32", lambda s: _region(g.set, s.integers(9, 37, 6), s.integers(9, 9, 3)), 0)
    yield Case("ACC", "f32", lambda s: _region(g.acc, s.normal(37, 6), s.normal(9, 3)))
    for t in ("f32", "f16"):
        yield Case("GET_ROWS_BACK", t, bound(_get_rows_back, t), 1e-6)
    for t in FLOATS:
        build = bound(lambda s, t: g.pad(_any(s, t, 37, 5), (2, 1, 0, 0), (3, 0, 1, 0)), t)
        yield Case("PAD", t, build, 0)
    ends = (2, 1, 0, 0), (3, 1, 0, 0)
    yield Case("PAD", "circular", lambda s: g.pad(s.normal(37, 5), *ends, circular=True), 0)
    yield Case("PAD_REFLECT_1D", "", lambda s: g.pad_reflect_1d(s.normal(37, 5), 4, 3), 0)
    yield Case("ROLL", "", lambda s: g.roll(s.normal(37, 5, 4), (3, -2, 1, 0)), 0)
    for mode in ("nearest", "bilinear", "bicubic"):
        build = bound(lambda s, m: g.upscale(s.normal(9, 7, 3), (20, 15, 3, 1), m), mode)
        yield Case("UPSCALE", mode, build)
    yield Case("UPSCALE", "antialias", _smaller)


def _copies(t: str) -> Iterator[Case]:
    def planes(s: Sources, n: int) -> Tensor:
        return g.cont(g.permute(_any(s, t, 37, 5, n), 1, 2, 0, 3))

    def joined(s: Sources) -> Tensor:
        return g.concat(_any(s, t, 67, 5), _any(s, t, 67, 3), 1)

    transposed = f"{t} transposed"
    yield Case("CONT", transposed, lambda s: g.cont(g.transpose(_any(s, t, 67, 41))), 0)
    for n in (2, 3, 4):
        yield Case("CONT", f"{t} {n} planes", bound(planes, n), 0)
    yield Case("CONCAT", t, joined, 0)
    yield Case("REPEAT", t, lambda s: g.repeat(_any(s, t, 17, 5), (34, 5, 3, 1)), 0)


def _dup(s: Sources, t: str) -> Tensor:
    return g.dup(g.permute(_any(s, t, 17, 5, 6), 0, 2, 1, 3))


def _get_rows_back(s: Sources, t: str) -> Tensor:
    rows, ids = s.normal(37, 5, dtype=t), s.fixed([1, 0, 1, 3, 3], "i32")
    return g.get_rows_back(rows, ids, (37, 4, 1, 1))


def _smaller(s: Sources) -> Tensor:
    return g.upscale(s.normal(20, 15, 3), (9, 7, 3, 1), "bilinear", antialias=True)


def _any(s: Sources, t: str, *ne: int) -> Tensor:
    return s.integers(99, *ne, dtype=t) if t.startswith("i") else s.normal(*ne, dtype=t)


def _region(op: object, a: Tensor, b: Tensor) -> Tensor:
    """`b` [9, 3] at element (5, 2) of `a` [37, 6]."""
    row = 37 * 4
    assert callable(op)
    node = op(a, b, row, row * 6, row * 6, 2 * row + 5 * 4)
    assert isinstance(node, Tensor)
    return node
