"""Quantized programs: the ops that torchao and PT2E put around weights and activations.

Constant weights that are dequantized become blocks where blocks can hold them: q4_0 for symmetric
numbers from -8 to 7, q8_0 for other symmetric bytes, in groups of whole blocks (scales are rounded
to float16). Others are decoded to float32 when the program is converted.

Activations that are quantized with parameters of their own and dequantized again, before a product,
stay unquantized: the cpu device quantizes the activations of such products itself, in blocks.
Numbers that are used as they are, in products of integers, are computed as torchao does.

The ops belong to packages that may not be installed, so they are known by name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Node

from weft import graph as g
from weft.dtype import DTYPES
from weft.frontends.fx.builder import Builder, constant_leaf
from weft.frontends.fx.call import Call, aten_op, fake_of
from weft.frontends.fx.dtypes import dtype_name
from weft.frontends.fx.layout import Value, contiguous
from weft.frontends.fx.ops.binary import combined
from weft.frontends.fx.ops.reduce import reduced
from weft.frontends.fx.ops.shape import reshaped
from weft.frontends.fx.registry import visitor_by_name
from weft.frontends.fx.sizes import is_static
from weft.graph.tensor import Tensor

_QUANTIZE = {
    "torchao::quantize_affine", "quantized_decomposed::quantize_per_token",
    "quantized_decomposed::quantize_per_tensor",
}  # fmt: skip
_DEQUANTIZE = {
    "torchao::dequantize_affine", "quantized_decomposed::dequantize_per_token",
    "quantized_decomposed::dequantize_per_tensor",
}  # fmt: skip
_CHOOSE = {
    "torchao::choose_qparams_affine", "quantized_decomposed::choose_qparams",
    "quantized_decomposed::choose_qparams_per_token_asymmetric",
}  # fmt: skip

_SMALL = (torch.int8, torch.uint8, torch.int16)
"""Types of quantized numbers."""


def _name(node: Any) -> str:
    op = aten_op(node.target) if isinstance(node, Node) else None
    return "" if op is None else op._schema.name


# -- dynamic activations ---------------------------------------------------------------------------


def _chosen_from(arg: Any) -> Any:
    """x, where `arg` is a result of choose_qparams(x)."""
    if isinstance(arg, Node) and len(arg.args) == 2 and _name(arg.args[0]) in _CHOOSE:
        return arg.args[0].args[0]
    return None


def chooses_parameters(node: Any) -> bool:
    """Whether a node chooses quantization parameters from activations."""
    return _name(node) in _CHOOSE


def dynamic_source(node: Any) -> Node | None:
    """x, where `node` is quantize(x) with parameters that are chosen from x itself."""
    if _name(node) not in _QUANTIZE:
        return None
    call = Call(node)
    x, scale = call.args["input"], call.args.get("scale", call.args.get("scales"))
    return x if isinstance(x, Node) and _chosen_from(scale) is x else None


def _only_dequantized(call: Call) -> str | None:
    """Chosen parameters and numbers quantized with them must end in a dequantization."""
    waiting, why = [call.node], "quantized numbers that are used as they are"
    while waiting:
        node = waiting.pop()
        for user in node.users:
            name = _name(user)
            if name in _DEQUANTIZE:
                if dynamic_source(user.args[0]) is None:
                    return why
            elif name in _QUANTIZE or (not name and user.op == "call_function"):
                waiting.append(user)
            else:
                return why
    return None


def _choice_rules(call: Call) -> str | None:
    why = _only_dequantized(call)
    if why is None or call.op._schema.name != "torchao::choose_qparams_affine":
        return why
    if call.raw("mapping_type") != "SYMMETRIC":
        return f"numbers that are chosen as {call.raw('mapping_type')} and used as they are"
    return _float_blocks(call)


@visitor_by_name(*_CHOOSE, check=_choice_rules, any_type=True)
def choose(b: Builder, call: Call) -> list[Value | None]:
    """Scales of rows and zero points that are 0; nothing where `dequantize` does the work."""
    if _only_dequantized(call) is None:
        return [None for _ in call.outs]
    x = call.value("input")
    dims = [d for d, n in enumerate(call.raw("block_size")) if n != 1]
    largest = reduced(b, "max", b.mapped(lambda t: g.pointwise("abs", t), x), dims)
    half = (float(call.number("quant_max")) - float(call.number("quant_min"))) / 2
    scale = combined(b, "div", largest, b.scalar(half, torch.float32), largest.shape)
    eps = float(call.number("eps"))
    scale = b.mapped(lambda t: g.pointwise("clamp", t, eps, math.inf), scale)
    zero = b.scalar(0, call.outs[1].dtype)
    shapes = [call.shape(out.shape) for out in call.outs]
    return [reshaped(b, scale, shapes[0]), zero.viewed(shapes[1], [0 for _ in shapes[1]])]


def _float_blocks(call: Call) -> str | None:
    """Floats in blocks that are rows, or the whole tensor."""
    fake, sizes = call.fake("input"), call.raw("block_size")
    if fake.dtype is not torch.float32:
        return f"numbers of {dtype_name(fake.dtype)} that are quantized and used as they are"
    if sizes is None or any(n not in (1, m) for n, m in zip(sizes, fake.shape, strict=True)):
        return f"quantized in blocks of {sizes}"
    return None


def _quantize_rules(call: Call) -> str | None:
    if dynamic_source(call.node) is not None and _only_dequantized(call) is None:
        return None
    if call.op._schema.name == "torchao::quantize_affine":
        if call.out.dtype is not torch.int8 or fake_of(call.args["scale"]).dtype != torch.float32:
            return f"numbers of {dtype_name(call.out.dtype)} that are used as they are"
        return _float_blocks(call)
    if call.op._schema.name != "quantized_decomposed::quantize_per_tensor":
        return "a quantization of activations whose numbers are used as they are"
    if not isinstance(call.raw("scale"), float):
        return "a scale that is a tensor"
    return None if call.out.dtype in _SMALL else f"numbers of {call.out.dtype}"


@visitor_by_name(*_QUANTIZE, check=_quantize_rules, any_type=True)
def quantize(b: Builder, call: Call) -> Value | list[Value | None]:
    """Numbers scaled, rounded, shifted and limited; nothing where they are only dequantized."""
    if dynamic_source(call.node) is not None and _only_dequantized(call) is None:
        return [None]
    if call.op._schema.name == "torchao::quantize_affine":
        return _affine(b, call)
    x, zero = call.value("input"), float(call.number("zero_point"))
    share = 1 / float(call.number("scale"))
    low, high = (float(call.number(n)) for n in ("quant_min", "quant_max"))

    def rounded(t: Tensor) -> Tensor:
        t = g.pointwise("round_even", g.scale(t, share))
        return g.pointwise("clamp", g.scale(t, 1.0, zero), low, high)

    return b.converted(b.mapped(rounded, x, torch.float32), call.out.dtype)


def _affine(b: Builder, call: Call) -> Value:
    """round(x (1 / scale)) + zero point, limited, as torchao computes it."""
    x, shape = call.value("input"), call.shape()
    sizes = zip(call.raw("block_size"), shape, strict=True)
    narrow = [1 if n != 1 else m for n, m in sizes]
    parameters = _parameters(b, call)
    known = b.array(parameters[1])
    scale, zero = (reshaped(b, b.converted(v, torch.float32), narrow) for v in parameters)
    share = b.mapped(lambda t: g.pointwise("reciprocal", t), scale)
    low, high = (float(call.number(n)) for n in ("quant_min", "quant_max"))
    q = combined(b, "mul", x, share, shape)
    q = b.mapped(lambda t: g.pointwise("round_even", t), q)
    if known is None or known.any():
        q = combined(b, "add", q, zero, shape)
    return b.converted(b.mapped(lambda t: g.pointwise("clamp", t, low, high), q), torch.int8)


# -- dequantization --------------------------------------------------------------------------------


def _dequantize_rules(call: Call) -> str | None:
    if dynamic_source(call.args["input"]) is not None:
        return None
    if fake_of(call.args["input"]).dtype not in (*_SMALL, torch.int32):
        return f"numbers of {fake_of(call.args['input']).dtype}"
    return None if is_static(call.out.shape) else "numbers of a dynamic shape"


@visitor_by_name(
    *_DEQUANTIZE,
    "quantized_decomposed::dequantize_per_channel",
    "quantized_decomposed::dequantize_per_channel_group",
    check=_dequantize_rules,
    any_type=True,
)
def dequantize(b: Builder, call: Call) -> Value:
    """(numbers - zero point) scale: blocks, a constant, or computed."""
    source = dynamic_source(call.args["input"])
    if source is not None:
        return b.converted(call.as_value(source), call.out.dtype)
    v = call.value("input")
    scale, zero = _parameters(b, call)
    sizes = _block(call, v)
    arrays = [b.array(p) for p in (v, scale, zero)]
    if all(a is not None for a in arrays):
        numbers, scales, zeros = (np.ascontiguousarray(a) for a in arrays)
        return _constant(b, call, numbers, scales.astype(np.float32), zeros, sizes)
    # both in blocks: [n / block, block] for each dimension
    wide = [s for n, k in zip(v.shape, sizes, strict=True) for s in (n // k, k)]
    narrow = [s for n, k in zip(v.shape, sizes, strict=True) for s in (n // k, 1)]
    x = reshaped(b, b.converted(v, torch.float32), wide)
    for kind, p in (("sub", zero), ("mul", scale)):
        p = Value.whole(b.flat(b.converted(p, torch.float32)), torch.float32, narrow)
        x = combined(b, kind, x, p, wide, torch.float32)
    return reshaped(b, x, v.shape).as_type(call.out.dtype)


def _parameters(b: Builder, call: Call) -> tuple[Value, Value]:
    """Scale and zero point as values; absent zero points are 0."""
    values: list[Value] = []
    for one, many in (("scale", "scales"), ("zero_point", "zero_points")):
        arg = call.args.get(one, call.args.get(many))
        if isinstance(arg, Node):
            values.append(call.as_value(arg))
        elif arg is None:
            values.append(b.constant(np.zeros(values[0].shape), torch.float32))
        else:
            values.append(b.constant(np.asarray(arg, np.float32), torch.float32))
    return values[0], values[1]


def _block(call: Call, v: Value) -> list[int]:
    """Elements that share a scale, for each dimension."""
    shape = [int(n) for n in v.shape]  # type: ignore[arg-type]
    name = call.op._schema.name
    if name == "torchao::dequantize_affine":
        return [
            n if k == -1 else int(k) for n, k in zip(shape, call.raw("block_size"), strict=True)
        ]
    if name.endswith("per_channel_group"):
        return [*[1] * (len(shape) - 1), int(call.number("group_size"))]
    if name.endswith("per_channel"):
        axis = int(call.number("axis")) % len(shape)
        return [1 if d == axis else n for d, n in enumerate(shape)]
    if name.endswith("per_token"):
        return [*[1] * (len(shape) - 1), shape[-1]]
    return shape


def _constant(
    b: Builder,
    call: Call,
    numbers: NDArray[Any],
    scales: NDArray[np.float32],
    zeros: NDArray[Any],
    sizes: list[int],
) -> Value:
    shape = numbers.shape
    per_row = shape[-1] // sizes[-1] if shape else 1
    in_rows = len(shape) == 2 and sizes[0] == 1 and sizes[-1] % 32 == 0 and not zeros.any()
    if in_rows and numbers.dtype == np.int8:
        wide = np.repeat(scales.reshape(shape[0], per_row), sizes[-1] // 32, axis=1)
        name = f"{call.node.name}.blocks"
        return blocks(name, numbers, wide.astype(np.float16), call.out.dtype)
    grid = [n // m for n, m in zip(shape, sizes, strict=True)]
    scales, zeros = scales.reshape(grid), zeros.reshape(grid)
    for d, k in enumerate(sizes):
        scales, zeros = np.repeat(scales, k, axis=d), np.repeat(zeros, k, axis=d)
    decoded = (numbers.astype(np.float32) - zeros.astype(np.float32)) * scales
    return b.constant(decoded.reshape(shape), call.out.dtype)


def blocks(
    name: str, numbers: NDArray[np.int8], scales: NDArray[np.float16], dtype: torch.dtype
) -> Value:
    """A constant of `dtype` [rows, n] as q4_0 or q8_0, with a scale for each [rows, n / 32].

    A block is a scale, then 32 numbers (q4_0: of 4 bits, moved by 8; byte j holds numbers j and
    j + 16)."""
    rows, n = numbers.shape
    groups = numbers.reshape(rows, n // 32, 32)
    if numbers.min(initial=0) >= -8 and numbers.max(initial=0) <= 7:
        moved = (groups + 8).astype(np.uint8)
        quants, kind = moved[..., :16] | moved[..., 16:] << 4, DTYPES["q4_0"]
    else:
        quants, kind = groups.view(np.uint8), DTYPES["q8_0"]
    data = np.concatenate([scales[..., None].view(np.uint8), quants], axis=-1)
    array = np.ascontiguousarray(data.reshape(rows, -1))
    leaf = constant_leaf(array, kind, name, (n, rows))
    return Value(leaf, dtype, (rows, n), contiguous((rows, n)))
