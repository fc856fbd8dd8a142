"""What a delegated graph is before it is planned: a weft graph and the arguments of its call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weft.graph.graph import Graph
from weft.graph.size import Size
from weft.graph.tensor import Tensor

__all__ = ["IGNORED", "INTEGER", "Argument", "Delegated", "State"]

INTEGER = -1
"""The type of an argument that is a size: the only one of its `dims`."""
IGNORED = -2
"""The type of an argument that the program does not look at."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output of the delegate call.

    `dims`: its sizes in PyTorch's order, which the tensor may have folded. `scalar_type`: its
    element type as ExecuTorch numbers it, or INTEGER, or IGNORED. No tensor: nothing reads it."""

    name: str
    scalar_type: int = IGNORED
    dims: tuple[Size, ...] = ()
    tensor: Tensor | None = None


@dataclass(frozen=True, slots=True)
class State:
    """A leaf that keeps its bytes between calls. `name` is the buffer's in the module; `first`:
    its bytes before the first call, None: zeros."""

    leaf: Tensor
    name: str
    first: NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class Delegated:
    """A graph whose constants are leaves with memory of usage "weights".

    `origin`: the node of the exported program by the name of a tensor that was made for it.
    `exact_activations`: whether the program quantizes weights and leaves activations alone."""

    graph: Graph
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    states: tuple[State, ...] = ()
    origin: Mapping[str, str] = field(default_factory=dict)
    exact_activations: bool = False
