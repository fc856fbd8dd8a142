"""`+ - * / @` between tensors with PyTorch's meaning of shapes.

Two sizes broadcast where they are the same or one of them is 1. Both sides have one type; a number
takes the type of the other side. The op is ggml's where it computes the same, because devices run
it fastest, else BINARY.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import ArgumentError
from weft.graph.node import FLOATS, broadcast_ne, constant, require
from weft.graph.ops import (
    BinaryOp,
    add,
    binary,
    cont,
    div,
    mul,
    mul_mat,
    repeat,
    reshape,
    sub,
    transpose,
)
from weft.graph.tensor import Tensor

__all__ = ["apply", "matmul", "transpose"]

_GGML = {BinaryOp.ADD: add, BinaryOp.SUB: sub, BinaryOp.MUL: mul, BinaryOp.DIV: div}


def apply(op: str, a: Any, b: Any) -> Tensor:
    """`a op b`, where `op` names a `BinaryOp`; one of them is a tensor, the other a tensor or a
    number.

    Raises ArgumentError for another operand, GraphError for shapes or types that do not fit."""
    a, b = _operand(a, b), _operand(b, a)
    ne = broadcast_ne(op, a, b)
    kind = BinaryOp[op]
    if a.dtype is b.dtype and a.dtype.name in FLOATS:
        if a.ne == ne:
            return _GGML[kind](a, b)
        if b.ne == ne and kind in (BinaryOp.ADD, BinaryOp.MUL):
            return _GGML[kind](b, a)
    return binary(kind, a, b)


def matmul(a: Any, b: Any) -> Tensor:
    """The matrix product: shapes (..., n, k) and (..., k, m) give (..., n, m), f32; leading sizes
    broadcast. A vector (k,) on the right gives (..., n)."""
    a, b = _operand(a, None), _operand(b, None)
    if len(b.shape) == 1 and b.ne[0] == a.ne[0]:
        product = mul_mat(b, a)
        return reshape(product, *product.ne[1 : max(len(a.shape), 2)])
    require(a.ne[0] == b.ne[1], "@", "the last size of a must be the last but one of b", a, b)
    weights = transpose(b)
    if not weights.is_contiguous_rows:
        weights = cont(weights)
    batch = broadcast_ne("@", _sizes_above(a), _sizes_above(b))[2:]
    if a.ne[2:] != batch:
        a = repeat(a, (*a.ne[:2], *batch))
    product = mul_mat(weights, a)
    if len(a.shape) > 1:
        product.rank = max(a.rank, b.rank)
    return product


def _sizes_above(t: Tensor) -> Tensor:
    """A tensor whose sizes are the leading ones of `t`; the sizes of its matrices are 1."""
    return Tensor(t.dtype, (1, 1, t.ne[2], t.ne[3]), name=t.name)


def _operand(value: Any, other: Any) -> Tensor:
    """`value` if it is a tensor; a number becomes a tensor of the other side's type."""
    if isinstance(value, Tensor):
        return value
    if isinstance(other, Tensor) and isinstance(value, int | float | np.number):
        kind = other.dtype
        if kind.name == "bf16":
            bits = np.array([float(value)], np.float32).view(np.uint32)
            rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
            return constant(rounded.astype(np.uint16).reshape(()), dtype="bf16")
        if kind.is_quantized or (kind.name[0] == "i" and float(value) != int(value)):
            raise ArgumentError(f"{value!r} does not fit {kind.name}, the type of {other!r}")
        return constant(np.array(value, kind.storage), dtype=kind)
    raise ArgumentError(
        f"a tensor cannot be combined with {type(value).__name__}; wrap arrays in weft.constant()"
    )
