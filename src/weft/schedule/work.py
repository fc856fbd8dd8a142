"""What a node costs before any device is known: operations, and bytes to and from memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log2, prod

from weft.graph.params_tensor import ConvNdParams
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor

__all__ = ["Work", "expert_share", "nbytes_at", "work"]


@dataclass(frozen=True, slots=True)
class Work:
    """Of one node with the symbols at given values."""

    flops: float
    nbytes: float
    """Read and written."""
    is_product: bool
    """Whether its speed depends on the type of a weight."""


Values = Mapping[str, int]
Ne = tuple[int, ...]

_NONE = Work(0.0, 0.0, False)

_PER_ELEMENT = {
    "UNARY": 8.0,
    "GLU": 10.0,
    "SOFT_MAX": 12.0,
    "ROPE": 8.0,
    "ROPE_BACK": 8.0,
    "NORM": 6.0,
    "RMS_NORM": 4.0,
    "L2_NORM": 4.0,
    "GROUP_NORM": 6.0,
    "LOG": 8.0,
    "SIN": 10.0,
    "COS": 10.0,
    "QUANTIZE": 4.0,
    "NORM_SCALE": 6.0,
    "GLU_QUANTIZE": 14.0,
    "ROPE_SET_ROWS": 8.0,
    "CROSS_ENTROPY_LOSS": 12.0,
    "TIMESTEP_EMBEDDING": 20.0,
    "MAP": 10.0,
    "POOL_ND": 9.0,
    "INTERPOLATE": 8.0,
}
"""Operations per element of the result (of the source for QUANTIZE); 1 where an op is not named."""

_MOVES_ONLY = frozenset(
    {
        "DUP",
        "CONT",
        "CONCAT",
        "REPEAT",
        "PAD",
        "PAD_REFLECT_1D",
        "ROLL",
        "IM2COL",
        "IM2COL_3D",
        "WHERE",
        "CONVERT",
        "GATHER",
        "SCATTER",
        "INDEX_PUT",
        "PAD_ND",
    }
)


def work(node: Tensor, values: Values) -> Work:
    """Operations and bytes of `node`; nothing for views and leaves."""
    if node.op.is_view or node.op.name == "NONE":
        return _NONE
    ne = _ne(node, values)
    if 0 in ne:
        return _NONE
    special = _SPECIAL.get(node.op.name)
    if special is not None:
        return special(node, ne, values)
    moved = _elements_bytes(node, values)
    seen: list[Tensor] = []
    for src in node.src:
        if src is not None and src not in seen and src is not node:
            seen.append(src)
            moved += _elements_bytes(src, values)
    if node.op.name in _MOVES_ONLY:
        return Work(0.0, moved, False)
    return Work(_PER_ELEMENT.get(node.op.name, 1.0) * prod(ne), moved, False)


def nbytes_at(tensor: Tensor, values: Values) -> int:
    """`tensor.nbytes` with these values, which is what a copy of it moves."""
    return evaluate(tensor.nbytes, values)


def expert_share(node: Tensor, values: Values) -> float:
    """The part of the stacked experts of a MUL_MAT_ID node that a batch uses, at most 1."""
    weights, ids = _source(node, 0), _source(node, 2)
    n_expert = max(_ne(weights, values)[2], 1)
    return min(1.0, prod(_ne(ids, values)) / n_expert)


def _ne(tensor: Tensor, values: Values) -> Ne:
    return tuple(n if isinstance(n, int) else evaluate(n, values) for n in tensor.ne)


def _source(node: Tensor, i: int) -> Tensor:
    found = node.src[i] if i < len(node.src) else None
    return node if found is None else found


def _elements_bytes(tensor: Tensor, values: Values) -> float:
    """Bytes of all elements, gaps left out."""
    return prod(_ne(tensor, values)) * tensor.dtype.bytes / tensor.dtype.block


def _mul_mat(node: Tensor, ne: Ne, values: Values) -> Work:
    weights, x = _source(node, 0), _source(node, 1)
    moved = sum(_elements_bytes(t, values) for t in (weights, x, node))
    return Work(2.0 * _ne(weights, values)[0] * prod(ne), moved, True)


def _mul_mat_id(node: Tensor, ne: Ne, values: Values) -> Work:
    weights, x = _source(node, 0), _source(node, 1)
    moved = _elements_bytes(weights, values) * expert_share(node, values)
    moved += _elements_bytes(x, values) + _elements_bytes(node, values)
    return Work(2.0 * _ne(weights, values)[0] * prod(ne), moved, True)


def _out_prod(node: Tensor, ne: Ne, values: Values) -> Work:
    a, b = _source(node, 0), _source(node, 1)
    moved = sum(_elements_bytes(t, values) for t in (a, b, node))
    return Work(2.0 * _ne(a, values)[1] * prod(ne), moved, True)


def _attention(node: Tensor, ne: Ne, values: Values) -> Work:
    q, k, v = (_source(node, i) for i in range(3))
    d, n_tokens, n_head, n_batch = _ne(q, values)
    n_kv = _ne(k, values)[1]
    # scores, softmax, and the weighted sum
    flops = n_tokens * n_head * n_batch * n_kv * (2.0 * d + 12.0 + 2.0 * _ne(v, values)[0])
    moved = sum(_elements_bytes(s, values) for s in node.src if s is not None)
    return Work(flops, moved + _elements_bytes(node, values), False)


def _convolution(node: Tensor, ne: Ne, values: Values) -> Work:
    kernel, x = _source(node, 0), _source(node, 1)
    per_output = prod(_ne(kernel, values)) / max(_ne(kernel, values)[3], 1)
    moved = sum(_elements_bytes(t, values) for t in (kernel, x, node))
    return Work(2.0 * per_output * prod(ne), moved, True)


def _convolution_nd(node: Tensor, ne: Ne, values: Values) -> Work:
    x, kernel = _source(node, 0), _source(node, 1)
    p = node.params
    assert isinstance(p, ConvNdParams)
    k = _ne(kernel, values)
    taps = prod(k[: p.dims])
    moved = sum(_elements_bytes(t, values) for t in (kernel, x, node))
    if p.transposed:
        # each input meets the kernels of all channels out of its group
        per_input = prod(k) / max(p.channels, 1)
        return Work(2.0 * per_input * prod(_ne(x, values)), moved, True)
    return Work(2.0 * taps * p.channels / p.groups * prod(ne), moved, True)


def _convolution_last(node: Tensor, ne: Ne, values: Values) -> Work:
    kernel = _source(node, 1)
    per_output = prod(_ne(kernel, values)[1:])
    moved = sum(_elements_bytes(t, values) for t in node.src if t is not None)
    flops = 2.0 * per_output * prod(ne)
    return Work(flops, moved + _elements_bytes(node, values), True)


def _transposed_convolution(node: Tensor, ne: Ne, values: Values) -> Work:
    kernel, x = _source(node, 0), _source(node, 1)
    k = _ne(kernel, values)
    per_input = prod(k) / max(k[-1] if k[3] > 1 else k[2], 1)
    moved = sum(_elements_bytes(t, values) for t in (kernel, x, node))
    return Work(2.0 * per_input * prod(_ne(x, values)), moved, True)


def _get_rows(node: Tensor, ne: Ne, values: Values) -> Work:
    table = _source(node, 0)
    row = table.dtype.bytes / table.dtype.block * prod(ne)
    return Work(0.0, row + _elements_bytes(node, values), False)


def _set_rows(node: Tensor, ne: Ne, values: Values) -> Work:
    rows = _source(node, 0)
    written = prod(_ne(rows, values)) * node.dtype.bytes / node.dtype.block
    return Work(0.0, written + _elements_bytes(rows, values), False)


def _copy(node: Tensor, ne: Ne, values: Values) -> Work:
    # the second source is where the result goes, and is not read
    return Work(0.0, sum(_elements_bytes(t, values) for t in (_source(node, 0), node)), False)


def _sort(node: Tensor, ne: Ne, values: Values) -> Work:
    x = _source(node, 0)
    n = max(prod(_ne(x, values)), 1)
    moved = _elements_bytes(x, values) + _elements_bytes(node, values)
    return Work(4.0 * n * max(log2(max(_ne(x, values)[0], 2)), 1.0), moved, False)


def _recurrence(node: Tensor, ne: Ne, values: Values) -> Work:
    """A state that every token updates: 6 operations an element of state and token is typical."""
    moved = _elements_bytes(node, values)
    largest = 0.0
    for src in node.src:
        if src is not None:
            moved += _elements_bytes(src, values)
            largest = max(largest, float(prod(_ne(src, values))))
    d_state = _ne(_source(node, 0), values)[0]
    return Work(6.0 * largest * d_state, moved, False)


_SPECIAL: dict[str, Callable[[Tensor, Ne, Values], Work]] = {
    "MUL_MAT": _mul_mat,
    "MUL_MAT_ID": _mul_mat_id,
    "OUT_PROD": _out_prod,
    "FLASH_ATTN_EXT": _attention,
    "CONV_2D": _convolution,
    "CONV_2D_DW": _convolution,
    "CONV_3D": _convolution,
    "CONV_2D_LAST": _convolution_last,
    "CONV_ND": _convolution_nd,
    "CONV_TRANSPOSE_1D": _transposed_convolution,
    "CONV_TRANSPOSE_2D": _transposed_convolution,
    "CPY": _copy,
    "GET_ROWS": _get_rows,
    "INDEX": _get_rows,
    "SET_ROWS": _set_rows,
    "ARGSORT": _sort,
    "TOP_K": _sort,
    "SORT_INDICES": _sort,
    "SSM_SCAN": _recurrence,
    "RWKV_WKV6": _recurrence,
    "RWKV_WKV7": _recurrence,
    "GATED_LINEAR_ATTN": _recurrence,
    "GATED_DELTA_NET": _recurrence,
}
