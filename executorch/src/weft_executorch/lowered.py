"""A delegated graph before it is planned: a weft graph and the arguments of its call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.graph.graph import Graph
from weft.graph.size import Size
from weft.graph.tensor import Tensor

__all__ = ["IGNORED", "INTEGER", "Argument", "Delegated", "NodeValue", "State"]

INTEGER = -1
"""The type of an argument that is a size, which is the only entry of its `dims`."""
IGNORED = -2
"""The type of an argument that the program does not read."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the delegate call.

    `dims` are its sizes in PyTorch's order, which the tensor may have merged. `scalar_type` is its
    element type by ExecuTorch's number, or INTEGER, or IGNORED. It has no tensor where no node
    reads it."""

    name: str
    scalar_type: int = IGNORED
    dims: tuple[Size, ...] = ()
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A leaf that keeps its bytes between calls.

    `name` is the buffer's in the module; `first` are its bytes before the first call, None for
    zeros."""

    leaf: Tensor
    name: str
    first: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class NodeValue:
    """The value of a node of the exported program, as a view of the elements of a tensor.

    `dims` and `strides` (in elements, empty where they lie in order) are outermost first;
    `scalar_type` is ExecuTorch's number."""

    tensor: Tensor
    scalar_type: int
    dims: tuple[Size, ...]
    strides: tuple[Size, ...] = ()
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Delegated:
    """A graph whose constants are leaves with memory of usage "weights".

    `origin` maps the name of a tensor to the node of the exported program for which it was made,
    `values` that node to its results, None for one that is not computed.
    `exact_activations` says that the program quantizes weights and leaves activations
    unquantized."""

    graph: Graph
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    states: tuple[State, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    exact_activations: bool = False
    values: Mapping[str, tuple[NodeValue | None, ...]] = field(default_factory=dict)
