"""Scaled dot product attention, kept whole.

Without a mask, causal, with a boolean mask, or with a constant mask of moderate numbers (biases of
positions and windows) it is FLASH_ATTN_EXT. Other masks of numbers may be so low that this op takes
every key for hidden, where PyTorch weighs them alike: these are MUL_MAT, SOFT_MAX, MUL_MAT. Where
keys and values have fewer heads than queries, their heads are read several times and never repeated
in memory.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch.fx import Node

from weft import graph as g
from weft.dtype import DTYPES
from weft.frontends.fx.builder import Builder, constant_leaf, reshaped_to
from weft.frontends.fx.call import Call, aten_op, fake_of
from weft.frontends.fx.dtypes import is_float
from weft.frontends.fx.layout import Value, broadcast_strides, product
from weft.frontends.fx.ops.matmul import transposed
from weft.frontends.fx.ops.shape import permuted
from weft.frontends.fx.registry import visitor
from weft.graph.size import Size, upper
from weft.graph.tensor import Tensor

aten = torch.ops.aten


def unrepeated(node: Node) -> Node | None:
    """`x` where `node` is repeat_kv(x): each head of [batch, heads, n, d] several times in a row.

    That is a reshape to [batch, heads r, n, d] of x[:, :, None] expanded to [batch, heads, r, n,
    d], with or without a clone between."""
    shape = fake_of(node).shape
    node = _through(node, "aten::view", "aten::reshape", "aten::_unsafe_view", "aten::view_copy")
    node = _through(node, "aten::clone")
    wide = node
    node = _through(node, "aten::expand", "aten::expand_copy")
    if node is wide or len(shape) != 4 or fake_of(wide).dim() != 5:
        return None
    batch, heads, times, n, d = fake_of(wide).shape
    narrow = fake_of(node).shape
    if tuple(shape) != (batch, heads * times, n, d) or narrow[2] != 1:
        return None
    if tuple(narrow) != (batch, heads, 1, n, d):
        return None
    source = _through(node, "aten::unsqueeze", "aten::unsqueeze_copy")
    if source is node or tuple(fake_of(source).shape) != (batch, heads, n, d):
        return None
    return source


def _through(node: Node, *names: str) -> Node:
    """The first argument of a node that calls one of these ops, else the node."""
    op = aten_op(node.target)
    if op is None or op._schema.name not in names or not isinstance(node.args[0], Node):
        return node
    return node.args[0]


def _rules(call: Call) -> str | None:
    q, k, v = (call.fake(n) for n in ("query", "key", "value"))
    if float(call.number("dropout_p", 0.0)):
        return "attention with dropout; call eval() on the module"
    if not all(is_float(t.dtype) for t in (q, k, v)):
        return "attention of integers"
    if q.dim() != k.dim() or q.dim() != v.dim() or q.dim() < 2:
        return "queries, keys and values with different numbers of dimensions"
    if q.dim() > 4 and tuple(q.shape[:-3]) != tuple(k.shape[:-3]):
        return "batches of queries and keys that differ"
    return None


def _as_four(v: Value) -> Value:
    """[batch, heads, n, d]."""
    if v.rank <= 4:
        lead = 4 - v.rank
        return v.viewed((*[1] * lead, *v.shape), (*[1] * lead, *v.strides))
    return v


@visitor(aten.scaled_dot_product_attention.default, check=_rules)
def attention(b: Builder, call: Call) -> Value:
    """softmax(q k^T scale + mask) v."""
    q = call.value("query")
    pair = []
    for name in ("key", "value"):
        node = call.args[name]
        source = unrepeated(node) if isinstance(node, Node) else None
        value = call.value(name) if source is None else call.as_value(source)
        pair.append(_batched(b, value))
    k, v = pair
    out = attended(b, call, _batched(b, q), k, v)
    shape = call.shape()
    if q.rank <= 4:
        return out.viewed(shape, out.strides[4 - q.rank :])
    return Value.whole(b.dense(out), q.dtype, shape)


def _batched(b: Builder, v: Value) -> Value:
    if v.rank <= 4:
        return _as_four(v)
    return Value.whole(b.dense(v), v.dtype, (product(v.shape[:-3]), *v.shape[-3:]))


def attended(b: Builder, call: Call, q: Value, k: Value, v: Value) -> Value:
    """Attention of [batch, heads, n, d]."""
    scale = call.raw("scale")
    factor = 1 / math.sqrt(float(q.shape[-1])) if scale is None else float(scale)  # type: ignore[arg-type]
    mask = call.value("attn_mask") if call.has("attn_mask") else None
    n_q, n_k = q.shape[2], k.shape[2]
    added: Tensor | None = None
    if mask is not None and mask.dtype is not torch.bool:
        numbers = biases(b, b.computed(mask), n_q, n_k)
        if not is_moderate(b, b.computed(mask)):
            return _summed(b, q, k, v, numbers, factor)
        added = numbers
    elif call.raw("is_causal", False):
        added = _causal(b, n_q, n_k)
    elif mask is not None:
        added = _mask_tensor(b, mask, q, k)
    return unsaved(b, q, k, v, added, factor)


def unsaved(b: Builder, q: Value, k: Value, v: Value, added: Tensor | None, scale: float) -> Value:
    """Attention without scores in memory; `added` is its mask."""
    heads = k.shape[1]
    if v.shape[1] != heads:
        v = v.viewed((v.shape[0], heads, *v.shape[2:]), _wide(v, heads))
    result = g.flash_attn_ext(
        b.rows(q), b.rows(k, stored=True), b.rows(v, stored=True), added, scale=scale
    )
    batch, n_heads = q.shape[:2]
    whole = Value.whole(result, q.dtype, (batch, q.shape[2], n_heads, v.shape[-1]))
    return permuted(b, whole, [0, 2, 1, 3])


def _wide(v: Value, heads: Size) -> tuple[Size, ...]:
    return broadcast_strides(v.shape, v.strides, (v.shape[0], heads, *v.shape[2:]))


def _causal(b: Builder, n_q: Size, n_k: Size) -> Tensor:
    """0 up to the diagonal, -inf behind it."""
    key = ("causal", n_q, n_k)
    if key not in b.memo:
        b.memo[key] = _made_causal(b, n_q, n_k)
    return b.memo[key]


def _made_causal(b: Builder, n_q: Size, n_k: Size) -> Tensor:
    full = np.where(np.tril(np.ones((upper(n_q), upper(n_k)), bool)), 0.0, -np.inf)
    half = full.astype(np.float16)
    mask = Value.whole(constant_leaf(half, DTYPES["f16"]), torch.float16, half.shape)
    return b.dense(mask.viewed((n_q, n_k), mask.strides), stored=True)


def _mask_tensor(b: Builder, mask: Value, q: Value, k: Value) -> Tensor:
    """The tensor that is added to scores for a boolean mask: 0 where it holds, else -inf, f16."""
    key = ("mask", mask, q.shape[2], k.shape[2])
    if key not in b.memo:
        b.memo[key] = _made_mask(b, mask, q, k)
    return b.memo[key]


def _made_mask(b: Builder, mask: Value, q: Value, k: Value) -> Tensor:
    shape = (*[1] * (4 - mask.rank), *mask.shape)
    mask = mask.viewed(shape, (*[1] * (4 - mask.rank), *mask.strides))
    shape = (*shape[:2], q.shape[2], k.shape[2])
    zero, low = (b.scalar(x, torch.float32) for x in (0.0, -math.inf))
    c, x, y = b.joint(shape, mask, zero, low)
    return g.cast(reshaped_to(g.where(c, x, y), shape[::-1]), "f16")


LARGEST_BIAS = 1e4
"""Largest size of a number in a mask that is not meant to hide a key, -inf apart."""


def is_moderate(b: Builder, mask: Value) -> bool:
    """Whether a mask is constant, and none of its numbers but -inf hides a key."""
    array = b.array(mask)
    if array is None:
        return False
    finite = array[array != -math.inf]
    return bool(np.all(np.abs(finite) <= LARGEST_BIAS))


def biases(b: Builder, mask: Value, n_q: Size, n_k: Size) -> Tensor:
    """A mask of numbers as f32 [n_k, n_q, heads, batches]."""
    mask = mask.viewed(
        (*[1] * (4 - mask.rank), *mask.shape), (*[1] * (4 - mask.rank), *mask.strides)
    )
    shape = (*mask.shape[:2], n_q, n_k)
    mask = mask.viewed(shape, broadcast_strides(mask.shape, mask.strides, shape))
    return reshaped_to(b.dense(mask), shape[::-1])


def _summed(b: Builder, q: Value, k: Value, v: Value, added: Tensor, scale: float) -> Value:
    """The three steps, with a mask of numbers."""
    scores = g.mul_mat(b.rows(k, stored=True), b.rows(q))
    weights = g.soft_max(scores, added, None, scale)
    columns = transposed(v)
    result = g.mul_mat(b.rows(columns), weights)
    # a query that sees no key has 0, where the softmax of a row of -inf is NaN
    low, zero = (b.scalar(x, torch.float32).tensor for x in (-math.inf, 0.0))
    result = g.where(g.binary("gt", g.reduce("max", added, [0]), low), result, zero)
    return Value.whole(result, q.dtype, (*q.shape[:3], v.shape[-1]))
