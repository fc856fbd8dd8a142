"""A converted program of the fx frontend as a delegated graph."""

from __future__ import annotations

import numpy as np
from executorch.exir.tensor import scalar_type_enum

from weft.frontends.fx import Converted, Input, Output
from weft.frontends.fx.layout import Value
from weft_executorch.lowered import IGNORED, INTEGER, Argument, Delegated, NodeValue, State

__all__ = ["from_converted"]


def from_converted(converted: Converted) -> Delegated:
    """The graph with its arguments in the order of the delegate call."""
    states = []
    for state in converted.states:
        assert state.tensor.buffer is not None
        first = state.tensor.buffer.data.reshape(-1).view(np.uint8)
        states.append(State(state.tensor, state.name, first))
    return Delegated(
        converted.graph,
        tuple(_argument(port) for port in converted.inputs),
        tuple(_argument(port) for port in converted.outputs),
        tuple(states),
        {tensor.name: node for tensor, node in converted.nodes.items()},
        converted.exact_activations,
        {node: tuple(map(_value, values)) for node, values in converted.values.items()},
    )


def _value(value: Value | None) -> NodeValue | None:
    if value is None:
        return None
    strides = () if value.is_contiguous else value.strides
    number = int(scalar_type_enum(value.dtype))
    return NodeValue(value.tensor, number, value.shape, strides, value.offset)


def _argument(port: Input | Output) -> Argument:
    if port.dtype is not None:
        return Argument(port.name, int(scalar_type_enum(port.dtype)), port.shape, port.tensor)
    if port.size is not None:
        return Argument(port.name, INTEGER, (port.size,))
    return Argument(port.name, IGNORED)
