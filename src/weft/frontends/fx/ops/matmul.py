"""Matrix products (linear, mm, bmm, matmul, addmm and others) as MUL_MAT, of integers as
MUL_MAT_INT.

MUL_MAT reads rows of weights. `aten.t` or `permute` before a product is only another view here, so
a weight [out, in] is read in place. Products of rows with the matrix of their group, mixtures of
experts, are MUL_MAT_ID.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import INTS, dtype_name, is_float
from weft.frontends.fx.layout import Value, broadcast_strides, product
from weft.frontends.fx.ops.binary import chosen, combined
from weft.frontends.fx.ops.reduce import reduced
from weft.frontends.fx.registry import visitor, visitor_by_name
from weft.graph.size import Size, upper
from weft.graph.tensor import Tensor

aten = torch.ops.aten


def floats(call: Call) -> str | None:
    """The refusal of distances of other types than floats, or None."""
    for fake in call.fakes():
        if not is_float(fake.dtype):
            return f"distances of {dtype_name(fake.dtype)} are not supported"
    return None


def numbers(call: Call) -> str | None:
    """The refusal of products of other types than floats and signed integers, or None."""
    for fake in call.fakes():
        if not is_float(fake.dtype) and fake.dtype not in INTS:
            return f"matrix products of {dtype_name(fake.dtype)} are not supported"
    return None


def _vectors(call: Call) -> str | None:
    if call.fake("self").dim() == 0 or call.fake("other").dim() == 0:
        return "a scalar has no matrix product"
    return numbers(call)


def transposed(v: Value) -> Value:
    """The last two dimensions exchanged."""
    s, t = v.shape, v.strides
    return v.viewed((*s[:-2], s[-1], s[-2]), (*t[:-2], t[-1], t[-2]))


def product_of(b: Builder, w: Value, x: Value, shape: Sequence[Size]) -> Tensor:
    """x w^T of matrices (w: [..., m, k], x: [..., n, k]), as a contiguous tensor of [*shape].

    Leading dimensions broadcast to the leading dimensions of `shape`."""
    lead = tuple(shape[:-2])
    if w.dtype in INTS:
        return g.mul_mat_int(_matrices(b, w, lead), _matrices(b, x, lead))
    x = x.viewed(
        (*lead, *x.shape[-2:]), broadcast_strides(x.shape, x.strides, (*lead, *x.shape[-2:]))
    )
    if product(w.shape[:-2]) == 1:
        # one matrix: all rows of x are columns of one product
        w = w.viewed(w.shape[-2:], w.strides[-2:])
        rows = b.dense(x)
        k = x.shape[-1]
        return g.mul_mat(b.rows(w, stored=True), reshaped_to(rows, (k, product(x.shape[:-1]))))
    if len(lead) > 2:
        # merge dimensions that do not broadcast; else repeat
        w = b.settled(
            w.viewed(
                (*lead, *w.shape[-2:]),
                broadcast_strides(w.shape, w.strides, (*lead, *w.shape[-2:])),
            ),
            stored=True,
        )
        n = product(lead)
        w = Value.whole(w.tensor, w.dtype, (n, *w.shape[-2:]))
        x = Value.whole(b.dense(x), x.dtype, (n, *x.shape[-2:]))
    return g.mul_mat(b.rows(w, stored=True), b.rows(x))


def _matrices(b: Builder, v: Value, lead: Sequence[Size]) -> Tensor:
    """[k, n, as many as `lead`], or [k, n] where one matrix is for all of them."""
    if product(v.shape[:-2]) != 1:
        whole = (*lead, *v.shape[-2:])
        v = v.viewed(whole, broadcast_strides(v.shape, v.strides, whole))
    count = product(v.shape[:-2])
    return reshaped_to(b.dense(v), (v.shape[-1], v.shape[-2], count))


def _with_bias(b: Builder, t: Tensor, bias: Value | None, shape: Sequence[Size]) -> Tensor:
    """`t`, contiguous as `shape`, plus a bias that broadcasts to it."""
    if bias is None:
        return t
    if bias.dtype in INTS:
        return g.binary("ADD", *b.joint(shape, Value.whole(t, bias.dtype, shape), bias))
    if bias.rank and bias.shape[-1] == shape[-1] and product(bias.shape) == shape[-1]:
        return g.add(t, b.flat(bias))
    left, right = b.joint(shape, Value.whole(t, torch.float32, shape), bias)
    return g.add(left, right)


@visitor(aten.linear.default, check=numbers)
def linear(b: Builder, call: Call) -> Value:
    """x w^T + bias."""
    bias = call.value("bias") if call.has("bias") else None
    return linear_of(b, call.value("input"), call.value("weight"), bias, call.shape())


def linear_of(b: Builder, x: Value, w: Value, bias: Value | None, shape: Sequence[Size]) -> Value:
    """x w^T + bias, as `shape`."""
    dtype = x.dtype
    if w.rank == 1:
        w = w.viewed((1, *w.shape), (0, *w.strides))
    if x.rank == 1:
        x = x.viewed((1, *x.shape), (0, *x.strides))
    t = product_of(b, w, x, (*x.shape[:-1], w.shape[0]))
    return Value.whole(_with_bias(b, t, bias, shape), dtype, shape)


@visitor(aten.mm.default, aten.bmm.default, check=numbers)
def mm(b: Builder, call: Call) -> Value:
    """Products of matrices, one or as many as there are."""
    other = "mat2"
    t = product_of(b, transposed(call.value(other)), call.value("self"), call.shape())
    return b.result(call, t)


@visitor(aten.matmul.default, check=_vectors)
def matmul(b: Builder, call: Call) -> Value:
    """Vectors count as a row on the left and as a column on the right; the rest broadcasts."""
    x, y = call.value("self"), call.value("other")
    shape = list(call.shape())
    if x.rank == 1:
        x = x.viewed((1, *x.shape), (0, *x.strides))
        shape.insert(len(shape) - (0 if y.rank == 1 else 1), 1)
    if y.rank == 1:
        y = y.viewed((*y.shape, 1), (*y.strides, 0))
        shape.append(1)
    return b.result(call, product_of(b, transposed(y), x, shape))


@visitor(aten.addmm.default, aten.baddbmm.default, check=numbers)
def addmm(b: Builder, call: Call) -> Value:
    """beta self + alpha (left right)."""
    left = "mat1" if "mat1" in call.args else "batch1"
    right = "mat2" if "mat2" in call.args else "batch2"
    t = product_of(b, transposed(call.value(right)), call.value(left), call.shape())
    return _plus_self(b, call, t)


@visitor(aten.addmv.default, check=numbers)
def addmv(b: Builder, call: Call) -> Value:
    """beta self + alpha (mat vec)."""
    mat, vec = call.value("mat"), call.value("vec")
    row = vec.viewed((1, *vec.shape), (0, *vec.strides))
    t = product_of(b, row, mat, (*mat.shape[:1], 1))
    return _plus_self(b, call, reshaped_to(t, mat.shape[:1]))


@visitor(aten.addbmm.default, check=numbers)
def addbmm(b: Builder, call: Call) -> Value:
    """beta self + alpha times the sum of the products: one of matrices side by side."""
    left, right = call.value("batch1"), call.value("batch2")
    (n, rows, k), (batch, row, element) = left.shape, left.strides
    aside = left.viewed((rows, n, k), (row, batch, element))
    x = Value.whole(b.dense(aside), left.dtype, (rows, n * k))
    w = Value.whole(b.dense(right), right.dtype, (n * k, right.shape[-1]))
    return _plus_self(b, call, product_of(b, transposed(w), x, call.shape()))


def _plus_self(b: Builder, call: Call, t: Tensor) -> Value:
    """beta self + alpha `t`, which is contiguous."""
    t = _times(b, t, call.number("alpha", 1), call.out.dtype)
    beta = call.number("beta", 1)
    if beta == 0:
        return b.result(call, t)
    bias = call.value("self")
    if beta != 1:
        bias = Value.whole(_times(b, b.dense(bias), beta, bias.dtype), bias.dtype, bias.shape)
    return b.result(call, _with_bias(b, t, bias, call.shape()))


def _times(b: Builder, t: Tensor, factor: float, dtype: torch.dtype) -> Tensor:
    if factor == 1:
        return t
    if dtype in INTS:
        return g.binary("MUL", t, b.view(b.scalar(int(factor), dtype)))
    return g.scale(t, float(factor))


def _bytes(call: Call) -> str | None:
    types = [fake.dtype for fake in call.fakes()]
    fits = types[0] in (torch.int8, torch.uint8) and types[1] is torch.int8
    return None if fits else f"products of {' and '.join(map(dtype_name, types))} are not supported"


@visitor_by_name("aten::_int_mm", check=_bytes, any_type=True)
def int_mm(b: Builder, call: Call) -> Value:
    """The product of matrices of bytes, in 32 bits."""
    x, w = call.value("self"), transposed(call.value("mat2"))
    if x.dtype is torch.uint8:  # which is i16
        x, w = x.as_type(torch.int16), b.converted(w, torch.int16)
    return b.result(call, byte_product_of(b, w, x))


def byte_product_of(b: Builder, w: Value, x: Value) -> Tensor:
    """x w^T of matrices of numbers of one type, [m, k] and [n, k], in 32 bits."""
    return g.mul_mat_int(_matrices(b, w, ()), _matrices(b, x, ()), "i32")


# -- distances -------------------------------------------------------------------------------------


@visitor(aten.cdist.default, aten._cdist_forward.default, check=floats)
def cdist(b: Builder, call: Call) -> Value:
    """The distance of each row of one matrix from each row of another."""
    lead = call.shape()[:-2]
    x, y = (_matrices(b, call.value(name), lead) for name in ("x1", "x2"))
    return b.result(call, g.cdist(x, y, p=float(call.number("p", 2.0))))


def _groups_of_rows(call: Call) -> str | None:
    x, w = call.fakes()[:2]
    if x.dim() != 2 or w.dim() != 3 or not call.has("offs"):
        return "a grouped product of other than the rows of a matrix"
    if call.has("bias"):
        return "a grouped product with a bias"
    return None if is_float(x.dtype) and is_float(w.dtype) else "a grouped product of integers"


@visitor(aten._grouped_mm.default, check=_groups_of_rows)
@visitor_by_name("transformers::grouped_mm_fallback", check=_groups_of_rows)
def grouped_mm(b: Builder, call: Call) -> Value:
    """Row i of [n, k] times matrix e of [groups, k, m], where group e ends before row offs[e].

    Rows behind the last group give 0."""
    first, second = ("input", "weight") if "input" in call.args else ("self", "mat2")
    x, w = call.value(first), transposed(call.value(second))
    n, groups = x.shape[0], w.shape[0]
    rows = b.constant(np.arange(upper(n)), torch.int64).viewed((n, 1), (1, 1))
    ends = b.converted(call.value("offs"), torch.int64).viewed((1, groups), (0, 1))
    passed = combined(b, "ge", rows, ends, (n, groups), torch.bool)
    group = b.settled(reduced(b, "sum", passed, [1]))
    last = b.of_size(groups - 1, torch.int64)
    ids = b.converted(combined(b, "min", group, last, group.shape), torch.int32)
    products = g.mul_mat_id(
        b.rows(w, stored=True),
        reshaped_to(b.dense(x), (x.shape[1], 1, n)),
        reshaped_to(b.flat(ids), (1, n)),
    )
    inside = combined(b, "le", group, last, group.shape, torch.bool)
    result = Value.whole(products, call.out.dtype, call.shape())
    return chosen(b, inside, result, b.scalar(0.0, result.dtype), result.shape)
