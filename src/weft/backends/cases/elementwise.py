"""Elementwise ops, reductions, norms and generators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft import graph as g
from weft.backends.cases.case import Build, Case, Sources, bound
from weft.backends.cases.formats import FLOATS
from weft.graph.ops import GluOp, TriKind, UnaryOp
from weft.graph.tensor import Tensor

LIMITS = {"f32": 1e-7, "f16": 1e-6, "bf16": 1e-4}
"""Limits by type: 16-bit results differ where float32 and float64 round to different sides."""

_BINARY = {"ADD": g.add, "SUB": g.sub, "MUL": g.mul, "DIV": g.div}
_FUNCTIONS = {
    "SQR": g.sqr,
    "SQRT": g.sqrt,
    "LOG": g.log,
    "SIN": g.sin,
    "COS": g.cos,
    "SCALE": lambda x: g.scale(x, 1.7, 0.3),
    "CLAMP": lambda x: g.clamp(x, 0.4, 2.0),
    "FILL": lambda x: g.fill(x, 2.5),
    "LEAKY_RELU": lambda x: g.leaky_relu(x, 0.1),
}
_ADDED_TO = ("q4_0", "q8_0", "q4_K", "q6_K")
"""Block types of the first summand (low-rank adapters are added to such weights)."""


def elementwise_cases() -> Iterator[Case]:
    """The cases of this file."""
    yield from _binaries()
    for name, function in _FUNCTIONS.items():
        for t in FLOATS:
            yield Case(name, t, _positive(function, t), LIMITS[t])
    for kind in UnaryOp:
        for t in FLOATS:
            yield Case("UNARY", f"{kind.name} {t}", _unary(kind, t), LIMITS[t])
    for gate in GluOp:
        for t in FLOATS:
            yield Case("GLU", f"{gate.name} {t}", _glu(gate, t), LIMITS[t])
    yield Case("GLU", "SWIGLU one source", lambda s: g.swiglu(s.normal(66, 5)))
    yield from _reductions()
    yield from _norms()
    yield from _generators()


def _binaries() -> Iterator[Case]:
    for name, function in _BINARY.items():
        for pair in (
            "f32 f32",
            "f16 f16",
            "f16 f32",
            "bf16 bf16",
            "bf16 f32",
            "f32 f16",
            "f32 bf16",
        ):
            a, b = pair.split()
            yield Case(name, f"{a} {b}", _binary(function, a, b), LIMITS[a])
    for a in _ADDED_TO:
        build = bound(lambda s, a: g.add(s.normal(512, 5, dtype=a), s.normal(512, 5)), a)
        yield Case("ADD", f"{a} f32", build, 1e-3)
    yield Case("ADD", "repeated f32", lambda s: g.add(s.normal(37, 6, 4), s.normal(37, 1, 2)))
    yield Case("ADD1", "f32", lambda s: g.add1(s.normal(37, 5), s.normal(1)))
    yield Case("ADD_ID", "f32", _add_id)


def _add_id(s: Sources) -> Tensor:
    return g.add_id(s.normal(37, 2, 5), s.normal(37, 4), s.integers(4, 2, 5))


def _binary(function: Callable[..., Tensor], a: str, b: str) -> Build:
    return lambda s: function(s.normal(133, 6, dtype=a), s.uniform(0.5, 2, 133, 6, dtype=b))


def _positive(function: Callable[[Tensor], Tensor], t: str) -> Build:
    return lambda s: function(s.uniform(0.1, 3, 133, 6, dtype=t))


def _unary(kind: UnaryOp, t: str) -> Build:
    if kind is UnaryOp.XIELU:
        return lambda s: g.xielu(s.normal(133, 6, dtype=t, scale=2), 0.3, 0.6, 0.5, -1e-6)
    return lambda s: g.unary(kind, s.normal(133, 6, dtype=t, scale=2))


def _glu(kind: GluOp, t: str) -> Build:
    more: dict[str, Any] = {}
    if kind is GluOp.SWIGLU_OAI:
        more = {"alpha": 1.7, "limit": 7.0}
    if kind is GluOp.SWIGLU_CLAMP:
        more = {"limit": 1.5}
    return lambda s: g.glu(kind, s.normal(133, 6, dtype=t), s.normal(133, 6, dtype=t), **more)


def _reductions() -> Iterator[Case]:
    for name, function in (("SUM", g.sum), ("SUM_ROWS", g.sum_rows), ("MEAN", g.mean)):
        for t in FLOATS:
            build = bound(lambda s, f, t: f(s.uniform(0, 1, 133, 6, dtype=t)), function, t)
            yield Case(name, t, build, LIMITS[t])
    yield Case("CUMSUM", "f32", lambda s: g.cumsum(s.normal(133, 6)))
    yield Case("ARGMAX", "f32", lambda s: g.argmax(s.normal(133, 6)), 0)
    yield Case("ARGMAX", "f32 equals", _equals, 0)
    yield Case("COUNT_EQUAL", "i32", _count_equal, 0)
    for order in ("asc", "desc"):
        yield Case("ARGSORT", order, bound(lambda s, o: g.argsort(s.normal(133, 6), o), order), 0)
    yield Case("TOP_K", "", lambda s: g.top_k(s.normal(133, 6), 5), 0)
    yield Case("CROSS_ENTROPY_LOSS", "", _cross_entropy)


def _count_equal(s: Sources) -> Tensor:
    return g.count_equal(s.integers(3, 133, 6), s.integers(3, 133, 6))


def _cross_entropy(s: Sources) -> Tensor:
    return g.cross_entropy_loss(s.normal(133, 6), s.uniform(0, 0.1, 133, 6))


def _equals(s: Sources) -> Tensor:
    """Rows in which several elements are the largest, and a row of -inf."""
    rows = np.arange(6 * 300).reshape(6, 300) % 7.0
    rows[5] = -np.inf
    return g.argmax(s.fixed(rows))


def _norms() -> Iterator[Case]:
    for n in (1024, 133):
        yield Case("NORM", f"{n}", bound(lambda s, n: g.norm(s.normal(n, 6), 1e-5), n))
        yield Case("RMS_NORM", f"{n}", bound(lambda s, n: g.rms_norm(s.normal(n, 6), 1e-5), n))
        yield Case("L2_NORM", f"{n}", bound(lambda s, n: g.l2_norm(s.normal(n, 6), 1e-5), n))
    yield Case("GROUP_NORM", "", lambda s: g.group_norm(s.normal(9, 7, 12, 2), 4, 1e-5))


def _generators() -> Iterator[Case]:
    yield Case("ARANGE", "", lambda s: g.arange(3.0, 40.0, 0.5))
    yield Case(
        "TIMESTEP_EMBEDDING", "", lambda s: g.timestep_embedding(s.uniform(0, 100, 5), 38), 1e-6
    )
    for kind in TriKind:
        yield Case("TRI", kind.name, bound(lambda s, k: g.tri(s.normal(37, 37, 3), k), kind), 0)
    yield Case("DIAG", "", lambda s: g.diag(s.normal(37, 1, 3)), 0)
    yield Case("DIAG_MASK_INF", "", lambda s: g.diag_mask_inf(s.normal(37, 37, 3), 4), 0)
    yield Case("DIAG_MASK_ZERO", "", lambda s: g.diag_mask_zero(s.normal(37, 37, 3), 4), 0)
