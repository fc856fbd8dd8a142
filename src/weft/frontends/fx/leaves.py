"""Weights, buffers and inputs of an exported program as leaves of a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weft.errors import GraphError
from weft.frontends.fx.builder import constant_leaf
from weft.frontends.fx.dtypes import STORED, refused_type, stored_type
from weft.frontends.fx.layout import folded_ne
from weft.frontends.fx.value import Value
from weft.graph.node import leaf
from weft.graph.tensor import Buffer, Tensor

__all__ = ["Weights", "array_of", "initial_values", "state_leaf"]

_AS_INTEGERS = {torch.bfloat16: torch.uint16, torch.bool: torch.int8}


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's memory as an array of its stored type (see `dtypes.STORED`), with the same
    strides.

    It copies only uint8; the array keeps the memory alive. Other types are flat bytes."""
    plain = tensor.detach()
    if plain.dtype is torch.uint8:
        plain = plain.to(torch.int16)
    if plain.dtype not in STORED:
        return np.asarray(plain.contiguous().reshape(-1).view(torch.int8).numpy())
    if plain.dtype in _AS_INTEGERS:
        plain = plain.view(_AS_INTEGERS[plain.dtype])
    return np.asarray(plain.numpy())


class Weights:
    """Leaves for the constant tensors of a program; tensors that share memory share a leaf."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[int, torch.dtype, int], Tensor] = {}

    def value(self, name: str, tensor: torch.Tensor) -> Value:
        """A constant in place: weights keep their memory of the module.

        A tensor whose elements do not fill a range of memory is copied. Raises GraphError for a
        type that weft cannot store, and for memory that the processor cannot read."""
        if tensor.dtype not in STORED:
            raise GraphError(f"constant {name!r}: {refused_type(tensor.dtype)}")
        if tensor.layout is not torch.strided:
            raise GraphError(f"constant {name!r}: layout {tensor.layout} is not supported")
        if tensor.device.type != "cpu":
            raise GraphError(
                f"constant {name!r} is on {tensor.device}; move the module to the cpu first"
            )
        order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
        packed = tensor.permute(order)
        if not packed.is_contiguous():
            packed, order = tensor.contiguous(), list(range(tensor.dim()))
        key = (packed.data_ptr(), tensor.dtype, tensor.numel())
        if key not in self._leaves or tensor.numel() == 0:
            array = np.ascontiguousarray(array_of(packed)).reshape(packed.shape)
            self._leaves[key] = constant_leaf(array, stored_type(tensor.dtype), name)
        shape = tuple(int(n) for n in tensor.shape)
        whole = Value.whole(self._leaves[key], tensor.dtype, [int(n) for n in packed.shape])
        strides = [whole.strides[order.index(d)] for d in range(tensor.dim())]
        return whole.viewed(shape, strides)


def state_leaf(name: str, tensor: torch.Tensor) -> Tensor:
    """A leaf with memory of its own that starts with the values of `tensor`."""
    array = np.array(array_of(tensor.contiguous()), order="C", copy=True)
    ne = folded_ne(tensor.shape)
    return leaf(stored_type(tensor.dtype), ne, name, buffer=Buffer("any", data=array))


def initial_values(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a buffer's values; zeros, with which caches start, take no memory."""
    plain = tensor.detach()
    if plain.numel() and not bool(plain.count_nonzero()):
        return torch.zeros((), dtype=plain.dtype).expand(plain.shape)
    return plain.clone()
