"""Ops that fuse several, which rewrites make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft import graph as g
from weft.backends.cases.case import Case, Sources, bound
from weft.backends.cases.formats import PRODUCT
from weft.graph.ops import Activation, GluOp, RopeMode
from weft.graph.tensor import Tensor

# a value between two codes may be rounded to either
BLOCKS = 1e-4

_BLOCKS = ("q8_0", "q8_1", "q8_K")


def fused_cases() -> Iterator[Case]:
    """The cases of this file."""
    for t in ("f32", *_BLOCKS):
        limit = 1e-7 if t == "f32" else BLOCKS
        yield Case("NORM_SCALE", f"rms {t}", bound(_norm, t, False, False), limit)
        yield Case("NORM_SCALE", f"centred, bias {t}", bound(_norm, t, True, True), limit)
        yield Case("NORM_SCALE", f"of a sum {t}", bound(_norm_of_sum, t), limit)
    yield Case("NORM_SCALE", "rms odd f32", lambda s: _norm(s, "f32", False, False, 133))
    for t in ("f32", "f16", "bf16", "q4_0", "q8_0", "q4_K", "tq2_0"):
        for columns in (1, 5, 40):
            yield Case("MUL_MAT", f"{t} bias x{columns}", bound(_product, t, columns), PRODUCT)
    for activation in Activation:
        name = activation.name
        yield Case("MUL_MAT", f"{name} f32", bound(_activated, activation, "f32", 5, False), 1e-6)
    for t in ("f32", "f16", "q4_0", "q4_K", "tq2_0"):
        for columns in (1, 40):
            build = bound(_activated, Activation.CLAMP, t, columns, True)
            yield Case("MUL_MAT", f"{t} bias CLAMP x{columns}", build, PRODUCT)
    for t in _BLOCKS:
        for gate in GluOp:
            yield Case("GLU_QUANTIZE", f"{gate.name} {t}", bound(_glu, gate, t), BLOCKS)
    for t in ("f32", "f16", "bf16", "q8_0", "q4_0"):
        limit = 1e-6 if t in ("f32", "f16") else 1e-4 if t == "bf16" else 1e-3
        for mode in (RopeMode.NORMAL, RopeMode.NEOX):
            for ids in ("i32", "i64"):
                yield Case(
                    "ROPE_SET_ROWS", f"{mode.name} {t} {ids}", bound(_rope, mode, t, ids), limit
                )


def _norm(s: Sources, t: str, centred: bool, bias: bool, n: int = 512) -> Tensor:
    x, weight = s.normal(n, 6), s.normal(n)
    return g.norm_scale(
        x, weight, s.normal(n) if bias else None, eps=1e-5, centred=centred, dtype=t
    )


def _norm_of_sum(s: Sources, t: str) -> Tensor:
    x, weight, bias = s.normal(512, 6), s.normal(512), s.normal(512)
    return g.norm_scale(x, weight, bias, s.normal(512, 6), eps=1e-5, dtype=t)


def _product(s: Sources, t: str, columns: int) -> Tensor:
    return g.mul_mat(s.weights(t, 512, 70), s.normal(512, columns), s.normal(70))


def _activated(s: Sources, activation: Activation, t: str, columns: int, bias: bool) -> Tensor:
    w, x = s.weights(t, 512, 70), s.normal(512, columns)
    return g.mul_mat(w, x, s.normal(70) if bias else None, activation, -3.0, 6.0)


def _glu(s: Sources, gate: GluOp, t: str) -> Tensor:
    more: dict[str, Any] = {}
    if gate in (GluOp.SWIGLU_OAI, GluOp.SWIGLU_CLAMP):
        more = {"alpha": 1.7, "limit": 1.5}
    gated = g.glu(gate, s.normal(512, 5), s.normal(512, 5), **more)
    return g.glu_quantize(gated, t)


def _rope(s: Sources, mode: RopeMode, t: str, ids: str) -> Tensor:
    rotated = g.rope(s.normal(64, 2, 5), s.integers(300, 5), mode=mode, n_dims=64)
    return g.rope_set_rows(rotated, s.normal(128, 9, dtype=t), s.distinct(9, 5, dtype=ids))
