"""spelled-attention: softmax(q k^T scale + biases) v of four dimensions is FLASH_ATTN_EXT.

Biases are constants, as attention takes them from its caller (`ops/attention.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.fx import Node

from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value
from weft.frontends.fx.ops.attention import biases, is_moderate, unsaved
from weft.frontends.fx.ops.matmul import transposed
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of
from weft.graph.tensor import Tensor

_SAME = ("dropout", "clone", "alias", "detach")


@rewrite("spelled-attention", torch.ops.aten.matmul.default)
def attention(b: Builder, call: Call) -> Value | None:
    """The attention that ends in this product, or None."""
    weights = source_of(_alone(call.node.args[0]), *_SAME)
    if not is_call(weights, "softmax", "_softmax") or call.out.dim() != 4:
        return None
    if weights.args[1] not in (-1, 3) or fake_of(weights).dtype != torch.float32:
        return None
    scores = _alone(weights.args[0])
    bias = None
    for summand, other in factors(scores, "add"):
        if not scores.kwargs and b.number(other) is None and _constant(b, other) is not None:
            scores, bias = _alone(summand), _constant(b, other)
            break
    scale, scores = _scaled(b, scores)
    if not is_call(scores, "matmul") or call.node.args[1] is scores:
        return None
    q, k, v = scores.args[0], scores.args[1], call.node.args[1]
    shapes = [tuple(fake_of(n).shape) for n in (q, k, v)]
    lead = tuple(call.out.shape[:2])
    if any(len(s) != 4 or s[:2] != lead for s in shapes):
        return None
    if any(fake_of(n).dtype != torch.float32 for n in (q, k, v)):
        return None
    queries, values = call.as_value(q), call.as_value(v)
    keys = transposed(call.as_value(k))
    added: Tensor | None = None
    if bias is not None:
        array = b.array(bias)
        if bias.rank > 4 or array is None or not is_moderate(b, bias):
            return None
        if not np.all(np.any(array > -np.inf, axis=-1)):
            return None  # a query that sees nothing has NaN here
        added = biases(b, bias, queries.shape[2], keys.shape[2])
    return unsaved(b, queries, keys, values, added, scale)


def _alone(node: Any) -> Any:
    """A node that nothing else reads, else an object that is not a node."""
    return node if isinstance(node, Node) and len(node.users) == 1 else object()


def _constant(b: Builder, node: Any) -> Value | None:
    value = b.values.get(node) if isinstance(node, Node) else None
    is_known = isinstance(value, Value) and b.array(value) is not None
    return b.computed(value) if isinstance(value, Value) and is_known else None


def _scaled(b: Builder, node: Any) -> tuple[float, Any]:
    """A factor, and the node that it multiplies."""
    for other, factor in factors(node):
        number = b.number(factor)
        if number is not None:
            return number, _alone(other)
    if is_call(node, "div") and b.number(node.args[1]) and not node.kwargs:
        return 1 / (b.number(node.args[1]) or 1.0), _alone(node.args[0])
    return 1.0, node
