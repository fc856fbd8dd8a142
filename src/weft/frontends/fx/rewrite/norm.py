"""Rewrites of normalisations.

rms-norm: x rsqrt(mean(x^2) + eps) along the last dimension is RMS_NORM, as in Hugging Face models:
with conversions of type anywhere in it and without the weight, which is a product of its own.

batch-norm: a normalisation with fixed statistics becomes part of the weights before it. The weights
belong to a convolution or linear layer; without one, the normalisation is a factor and a summand
for each channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Node

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value, inverse
from weft.frontends.fx.ops.binary import combined
from weft.frontends.fx.ops.conv import convolved
from weft.frontends.fx.ops.matmul import linear_of, product_of, transposed
from weft.frontends.fx.ops.norm import rows_of
from weft.frontends.fx.ops.quantized import blocks
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of
from weft.quants import from_storage

aten = torch.ops.aten

_CASTS = ("_to_copy", "to", "clone", "alias")


@rewrite("rms-norm", aten.mul.Tensor)
def rms_norm(b: Builder, call: Call) -> Value | None:
    """The RMS_NORM that ends in this product x * rsqrt(...), or None."""
    for x, root in factors(call.node):
        eps = _epsilon(b, x, source_of(root, *_CASTS))
        if eps is not None and fake_of(x).shape == call.out.shape:
            v = b.converted(call.as_value(x), call.out.dtype)
            return b.result(call, g.rms_norm(rows_of(b, v, v.shape[-1]), eps))
    return None


def _epsilon(b: Builder, x: Any, root: Any) -> float | None:
    """eps, where `root` is rsqrt(mean(x^2) + eps)."""
    if not is_call(root, "rsqrt") or not isinstance(fake_of(x), torch.Tensor):
        return None
    for mean, eps in factors(root.args[0], "add"):
        number = b.number(eps)
        if number is not None and number >= 0 and _is_mean_square(b, mean, x):
            return number
    return None


def _is_mean_square(b: Builder, mean: Any, x: Any) -> bool:
    if not is_call(mean, "mean") or len(mean.args) < 3 or not mean.args[2]:
        return False
    dims, rank = mean.args[1], fake_of(x).dim()
    if rank == 0 or [d % rank for d in dims] != [rank - 1]:
        return False
    square = source_of(mean.args[0], *_CASTS)
    base = source_of(x, *_CASTS)
    if is_call(square, "pow"):
        return b.number(square.args[1]) == 2 and source_of(square.args[0], *_CASTS) is base
    if is_call(square, "mul"):
        return all(source_of(a, *_CASTS) is base for a in square.args[:2])
    return is_call(square, "square") and source_of(square.args[0], *_CASTS) is base


Array = NDArray[np.float32]


@rewrite("batch-norm", aten._native_batch_norm_legit_no_training.default)
def batch_norm(b: Builder, call: Call) -> list[Value | None] | None:
    """The normalisation, where its parameters are constants; else None."""
    if any(call.is_read(i) for i in (1, 2)):
        return None
    terms = _terms(b, call)
    if terms is None:
        return None
    factor, shift = terms
    result = _into_weights(b, call, factor, shift)
    if result is None:
        v = call.value("input")
        shape = (factor.size, *[1] * (v.rank - 2))
        for kind, array in (("mul", factor), ("add", shift)):
            term = b.constant(array.reshape(shape), torch.float32)
            v = combined(b, kind, v, term, v.shape)
        result = v
    return [result, None, None]


def _terms(b: Builder, call: Call) -> tuple[Array, Array] | None:
    """The factor and the shift of y = factor x + shift."""
    arrays: dict[str, Array] = {}
    for name in ("weight", "bias", "running_mean", "running_var"):
        if call.has(name):
            array = _floats(b, call.value(name))
            if array is None:
                return None
            arrays[name] = array.astype(np.float64)
    mean, var = arrays["running_mean"], arrays["running_var"]
    factor = arrays.get("weight", np.ones_like(var)) / np.sqrt(var + float(call.number("eps")))
    shift = arrays.get("bias", np.zeros_like(var)) - mean * factor
    return factor.astype(np.float32), shift.astype(np.float32)


def _floats(b: Builder, v: Value) -> Any:
    array = b.array(v)
    return None if array is None else from_storage(np.ascontiguousarray(array), v.tensor.dtype)


def _into_weights(b: Builder, call: Call, factor: Array, shift: Array) -> Value | None:
    """The layer before with other weights, where only this normalisation reads it; else None."""
    node = call.args["input"]
    if not isinstance(node, Node) or len(node.users) != 1:
        return None
    if not is_call(node, "convolution", "linear"):
        return None
    layer = call.of(node)
    weight = _floats(b, layer.value("weight"))
    if weight is None:
        return None
    bias = np.zeros_like(factor)
    if layer.has("bias"):
        bias = _floats(b, layer.value("bias"))
        if bias is None:
            return None
    transposed = bool(layer.raw("transposed", False))
    if transposed and layer.raw("groups", 1) != 1:
        return None
    along = [1] * weight.ndim
    along[1 if transposed else 0] = factor.size
    w = b.constant(weight * factor.reshape(along), torch.float32)
    c = b.constant(bias * factor + shift, torch.float32)
    if is_call(node, "linear"):
        return linear_of(b, layer.value("input"), w, c, call.shape())
    return convolved(b, layer, w, c)


# Rewrites of products.
#
# gate: act(a) * b with an activation that nothing else reads is GLU (swiglu, geglu, reglu).
#
# int8-weights: a product with constant int8 weights that are converted to float becomes one with
# blocks. torchao exports its int8 weights so; the scales of rows multiply the result in a node of
# their own. The blocks have a scale of 1, so nothing is rounded. Rows that are not whole blocks
# become float32.

aten_products = torch.ops.aten


@rewrite("gate", aten_products.mul.Tensor)
def gate(b: Builder, call: Call) -> Value | None:
    """The GLU that ends in this product, or None."""
    for activated, other in factors(call.node):
        kind = _kind(activated)
        if kind is None or len(activated.users) != 1 or other is activated:
            continue
        source = activated.args[0]
        fakes = [fake_of(n) for n in (source, other)]
        if not all(isinstance(f, torch.Tensor) and f.shape == call.out.shape for f in fakes):
            continue
        if any(f.dtype != call.out.dtype for f in fakes):
            continue
        pair = [call.as_value(n) for n in (source, other)]
        order = pair[0].reading_order
        x, y = (b.dense(v.permuted(order)) for v in pair)
        shape = [pair[0].shape[d] for d in order]
        result = Value.whole(g.glu(kind, x, y), call.out.dtype, shape)
        return result.permuted(inverse(order))
    return None


def _kind(node: Any) -> str | None:
    if is_call(node, "silu"):
        return "swiglu"
    if is_call(node, "gelu"):
        return "geglu" if node.kwargs.get("approximate") == "tanh" else "geglu_erf"
    return "reglu" if is_call(node, "relu") else None


@rewrite("int8-weights", torch.ops.aten.mm.default)
def int8_weights(b: Builder, call: Call) -> Value | None:
    """The product with blocks, or None where the pattern is another."""
    cast = call.args["mat2"]
    source = b.values.get(cast.args[0]) if is_call(cast, "_to_copy") else None
    if not isinstance(source, Value) or source.dtype != torch.int8:
        return None
    numbers = b.array(transposed(source))
    if numbers is None:
        return None
    if numbers.shape[1] % 32:
        w = b.constant(numbers, call.out.dtype)
        return b.result(call, product_of(b, w, call.value("self"), call.shape()))
    scales = np.ones((numbers.shape[0], numbers.shape[1] // 32), np.float16)
    name = f"{call.node.name}.blocks"
    w = blocks(name, np.ascontiguousarray(numbers), scales, call.out.dtype)
    return b.result(call, product_of(b, w, call.value("self"), call.shape()))
