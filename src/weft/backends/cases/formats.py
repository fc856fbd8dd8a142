"""Ops that take many formats: products, rows, copies."""

from __future__ import annotations

from collections.abc import Iterator

from weft import graph as g
from weft.backends.cases.case import Build, Case, Sources, bound
from weft.dtype import DTYPES
from weft.graph.tensor import Tensor

FLOATS = ("f32", "f16", "bf16")

FORMATS = (
    *FLOATS,
    *(name for name, t in DTYPES.items() if t.is_quantized and name not in ("q8_1", "q8_K")),
)
"""The types of weights; q8_1 and q8_K hold activations only."""

_PRODUCTS = (
    (1, 48, 512, "x1"),
    (1, 53, 768, "x1 odd"),
    (5, 48, 512, "x5"),
    (40, 64, 512, "x40"),
    (33, 53, 768, "x33 odd"),
)
"""Columns (one: a matrix times a vector), rows and elements of a row. Kernels work on tiles of
rows; odd numbers end in a partial tile."""

# matmuls with quantized weights quantize their activations to 8 bits, with a scale for each block
PRODUCT = 5e-4


def format_cases() -> Iterator[Case]:
    """The cases of this file."""
    for name in FORMATS:
        yield from _products(name)
        yield from _rows(name)
        yield from _copies(name)
    yield Case("GET_ROWS", "i32", lambda s: g.get_rows(s.integers(99, 20, 7), s.integers(7, 5)), 0)
    yield Case("CPY", "f32 to i32", _converted("f32", "i32"), 0)
    for name in ("f16", "bf16", "i32"):
        yield Case("CPY", f"{name} to {name}", _converted(name, name), 0)
    yield Case("CPY", "f16 to bf16", _converted("f16", "bf16"), 1e-6)
    yield Case("CPY", "bf16 to f16", _converted("bf16", "f16"), 1e-6)
    yield Case("CPY", "i32 to f32", _converted("i32", "f32"), 0)
    for name in ("q8_0", "q8_1", "q8_K", "f16", "bf16"):
        yield Case("QUANTIZE", name, _quantized(name), 1e-3)


def _products(name: str) -> Iterator[Case]:
    def plain(s: Sources, n: int, m: int, k: int) -> Tensor:
        return g.mul_mat(s.weights(name, k, m), s.normal(k, n))

    def of_experts(s: Sources, n: int) -> Tensor:
        weights = s.weights(name, 256, 40, 4)
        return g.mul_mat_id(weights, s.normal(256, 2, n), s.distinct(4, 2, n))

    def outer(s: Sources) -> Tensor:
        return g.out_prod(s.weights(name, 512, 40), s.normal(36, 40))

    for *sizes, what in _PRODUCTS:
        yield Case("MUL_MAT", f"{name} {what}", bound(plain, *sizes), PRODUCT, "MUL_MAT", name)
    if name in (*FLOATS, "q8_0"):
        yield Case("MUL_MAT", f"{name} heads", _heads(name), PRODUCT)
    if name != "i2_s":  # one scale for a whole tensor cannot serve several experts
        op = "MUL_MAT_ID"
        for tokens in (1, 9, 33):
            yield Case(op, f"{name} x{tokens}", bound(of_experts, tokens), PRODUCT, op, name)
        yield Case("OUT_PROD", name, outer, 1e-7, "OUT_PROD", name)


def _heads(name: str) -> Build:
    """Scores of attention: keys of 2 heads serve 4 query heads, both with tokens outside heads."""

    def build(s: Sources) -> Tensor:
        k = g.permute(s.normal(64, 2, 33, dtype=name), 0, 2, 1, 3)
        return g.mul_mat(k, g.permute(s.normal(64, 4, 7), 0, 2, 1, 3))

    return build


def _rows(name: str) -> Iterator[Case]:
    def read(s: Sources) -> Tensor:
        return g.get_rows(s.weights(name, 512, 9), s.integers(9, 6))

    def written(s: Sources, ids: str) -> Tensor:
        x, rows = s.normal(256, 9, dtype=name), s.normal(256, 5)
        return g.set_rows(x, rows, s.distinct(9, 5, dtype=ids))

    yield Case("GET_ROWS", name, read, 1e-12, "GET_ROWS", name)
    if name == "i2_s":
        return
    limit = 0 if name in FLOATS else 1e-3
    for ids in ("i32", "i64"):
        yield Case("SET_ROWS", f"{name} {ids}", bound(written, ids), limit, "SET_ROWS", name)


def _copies(name: str) -> Iterator[Case]:
    if name != "i2_s":
        limit = 0 if name in FLOATS else 1e-3
        yield Case("CPY", f"f32 to {name}", _converted("f32", name), limit, "CPY to", name)
        if name != "f32":
            yield Case("CPY", f"{name} to f32", _converted(name, "f32"), 1e-12, "CPY from", name)


def _converted(source: str, target: str) -> Build:
    def build(s: Sources) -> Tensor:
        x = s.integers(50, 512, 3) if source == "i32" else s.normal(512, 3, dtype=source)
        return g.cast(x, target)

    return build


def _quantized(name: str) -> Build:
    return lambda s: g.quantize(s.normal(512, 3), name)
