"""spelled-activation: GELU, its approximations and SiLU that are written out in arithmetic.

Products are flattened into a constant factor and the other factors, so that the order in which a
program multiplies does not matter.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite
from weft.graph.tensor import Tensor

_CUBIC = 0.044715
_MAX_FACTORS = 8


@rewrite("spelled-activation", torch.ops.aten.mul.Tensor)
def activation(b: Builder, call: Call) -> Value | None:
    """The activation that ends in this product, or None."""
    constant, others = _product(b, call.node)
    if len(others) != 2 or not call.out.dtype.is_floating_point:
        return None
    for x, gate in (others, others[::-1]):
        name = _name(b, x, gate, constant)
        fake = fake_of(x) if name else None
        if name is None or not isinstance(fake, torch.Tensor) or fake.shape != call.out.shape:
            continue
        if fake.dtype != call.out.dtype:
            continue
        return b.mapped(lambda t, name=name: _of(name, t), call.as_value(x))
    return None


def _of(name: str, t: Tensor) -> Tensor:
    return g.gelu_quick(t) if name == "gelu_quick" else g.pointwise(name, t)


def _name(b: Builder, x: Any, gate: Any, constant: float) -> str | None:
    """The name of `constant` times x times a gate that is a function of x."""
    if is_call(gate, "sigmoid") and constant == 1:
        factor, inside = _product(b, gate.args[0])
        names = {1.0: "silu", 1.702: "gelu_quick"}
        return names.get(factor) if len(inside) == 1 and inside[0] is x else None
    if not _is(constant, 0.5):
        return None
    for curve, one in factors(gate, "add"):
        if b.number(one) != 1 or _alpha(gate) != 1:
            continue
        if is_call(curve, "erf"):
            factor, inside = _product(b, curve.args[0])
            if len(inside) == 1 and inside[0] is x and _is(factor, math.sqrt(0.5)):
                return "gelu"
        if is_call(curve, "tanh") and _is_cubic(b, curve.args[0], x):
            return "gelu_tanh"
    return None


def _is_cubic(b: Builder, node: Any, x: Any) -> bool:
    """Whether a node is sqrt(2 / pi) (x + 0.044715 x^3), or x sqrt(2 / pi) (1 + 0.044715 x^2)."""
    factor, inside = _product(b, node)
    if not _is(factor, math.sqrt(2 / math.pi)):
        return False
    outside = [n for n in inside if n is not x]
    if len(outside) != 1 or len(inside) > 2 or _alpha(outside[0]) != 1:
        return False
    power = 3 - (len(inside) - 1)  # of the second summand
    for first, second in factors(outside[0], "add"):
        is_first = first is x if power == 3 else b.number(first) == 1
        part, times = _product(b, second)
        if is_first and _is(part, _CUBIC) and _power(b, times, x) == power:
            return True
    return False


def _alpha(node: Any) -> Any:
    """The factor of the second summand of a sum."""
    return node.kwargs.get("alpha", 1) if is_call(node, "add") else None


def _power(b: Builder, nodes: list[Any], x: Any) -> float:
    """The power of x that a product of nodes is; NaN for another product."""
    total = 0.0
    for node in nodes:
        raised = b.number(node.args[1]) if is_call(node, "pow") and node.args[0] is x else None
        total += 1.0 if node is x else math.nan if raised is None else raised
    return total


def _product(b: Builder, node: Any) -> tuple[float, list[Any]]:
    """A node as a constant times other nodes; quotients by constants are products, too."""
    constant, left = 1.0, [node]
    others: list[Any] = []
    while left and len(others) < _MAX_FACTORS:
        node = left.pop()
        number = b.number(node)
        if number is not None:
            constant *= number
        elif is_call(node, "mul"):
            left += node.args[:2]
        elif is_call(node, "div") and b.number(node.args[1]) and not node.kwargs:
            constant /= b.number(node.args[1]) or 1.0
            left.append(node.args[0])
        else:
            others.append(node)
    return constant, others


def _is(number: float, expected: float) -> bool:
    """Whether a number is another, as far as programs write it out."""
    return abs(number - expected) <= 1e-6 * abs(expected)
