"""Functions of one and of two tensors, element by element."""

from __future__ import annotations

import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.value import Value

aten = torch.ops.aten


@visitor(aten.relu.default)
def relu(b: Builder, call: Call) -> Value:
    return b.result(call, g.relu(b.flat(call.value("self"))))


@visitor(aten.leaky_relu.default)
def leaky_relu(b: Builder, call: Call) -> Value:
    return b.result(call, g.leaky_relu(b.flat(call.value("self")), call.number("negative_slope", 0.01)))
