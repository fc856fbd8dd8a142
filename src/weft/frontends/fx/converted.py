"""`Converted`: the graph of an exported program, and its relation to PyTorch's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from weft.errors import ProgramError
from weft.frontends.fx.layout import Value
from weft.graph.graph import Graph
from weft.graph.size import Size
from weft.graph.tensor import Tensor
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """A positional input of the flattened program.

    A tensor has a `tensor` (a leaf of the graph; None where no node reads it), a size of its own
    has a `size`, and a value that was fixed when the program was exported has neither."""

    name: str
    dtype: torch.dtype | None = None
    shape: tuple[Size, ...] = ()
    tensor: Tensor | None = None
    size: Size | None = None
    constant: Any = None
    """The value that the program was exported with, where it is neither tensor nor size."""

    @property
    def is_tensor(self) -> bool:
        """Whether the program takes a tensor here."""
        return self.dtype is not None


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the flattened program: a tensor of the graph, a size, or a constant."""

    name: str
    dtype: torch.dtype | None = None
    shape: tuple[Size, ...] = ()
    tensor: Tensor | None = None
    """A contiguous tensor with the elements in order; its sizes are `folded_ne(shape)` or others
    with the same product."""
    size: Size | None = None
    constant: Any = None
    mutates: int | None = None
    """The input that gets this value after the run; such an output is not returned."""
    counted: bool = False
    """True if the sizes depend on data: the tensor begins with them, as int64, and `shape` bounds
    them."""
    is_number: bool = False
    """A number that the program reads out of a tensor."""


@dataclass(frozen=True, slots=True)
class State:
    """A buffer that the program writes (a KV cache, a counter).

    It lives in `tensor`, a leaf whose memory starts with the buffer's values and keeps the values
    that each run leaves."""

    name: str
    """The buffer's name in the module, e.g. `layers.0.k_cache`."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    tensor: Tensor
    initial: torch.Tensor
    """The values that the program starts with."""


@dataclass(frozen=True, slots=True, eq=False)
class Converted:
    """A graph for `weft.compile`, and its inputs, outputs and state in PyTorch's terms.

    `inputs` are the user's, flattened and in order; so are the `outputs`, except that those which
    write an input come last. `nodes` maps each tensor of the graph to the node of the exported
    program for which it was made."""

    graph: Graph
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    states: tuple[State, ...]
    nodes: dict[Tensor, str] = field(repr=False)
    in_spec: Any = field(default=None, repr=False)
    """The nesting of arguments (a pytree spec of (args, kwargs)), or None for a bare graph."""
    out_spec: Any = field(default=None, repr=False)
    exact_activations: bool = False
    """The program quantizes weights and leaves activations unquantized."""
    values: Mapping[str, tuple[Value | None, ...]] = field(default_factory=dict, repr=False)
    """The results of each node of the exported program that the graph computes; None for a result
    that it does not."""


def positional_names(converted: Converted) -> tuple[str, ...]:
    """The names of positional arguments where none of them nests; empty where one does."""
    spec = converted.in_spec
    if spec is None:
        return ()
    positional = spec.child(0)
    flat = positional.num_leaves == positional.num_children
    names = tuple(port.name for port in converted.inputs)
    return names[: positional.num_children] if flat else ()


def n_flat(converted: Converted) -> int | None:
    """The number of arguments of a program that takes all of them by position and none of which
    nests; None for another program."""
    spec = converted.in_spec
    if spec is None or spec.child(1).num_leaves:
        return None
    positional = spec.child(0).children()
    return len(positional) if all(child.is_leaf() for child in positional) else None


LEAVES = (torch.Tensor, int, float, str, type(None))
"""Types of arguments in which none nests."""

Flattener = Callable[[Any], list[Any] | None]
"""A function of nested arguments: the leaves, or None for arguments that nest otherwise."""


def flattener(spec: Any) -> Flattener:
    """A function that flattens arguments, a tuple and a mapping, that nest like a pytree spec.

    It takes a fraction of the time that pytree takes."""
    walk = _walk(spec)

    def flatten(value: Any) -> list[Any] | None:
        flat: list[Any] = []
        return flat if walk(value, flat) else None

    return flatten


def _walk(spec: Any) -> Callable[[Any, list[Any]], bool]:
    """A function that appends the leaves of a value to a list, and says whether it nests alike."""
    kind, context = spec.type, spec.context
    steps = [None if child.is_leaf() else _walk(child) for child in spec.children()]
    keys = set(context) if kind is dict else set()

    def walk(value: Any, flat: list[Any]) -> bool:
        if type(value) is not kind:
            return False
        if kind is tuple or kind is list:
            parts = value
        elif kind is dict:
            if value.keys() != keys:
                return False
            parts = [value[key] for key in context]
        else:
            parts, found = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
            if found != context:
                return False
        if len(parts) != len(steps):
            return False
        for step, part in zip(steps, parts, strict=True):
            if step is None:
                if not isinstance(part, LEAVES):
                    return False
                flat.append(part)
            elif not step(part, flat):
                return False
        return True

    return walk


def bound_arguments(
    converted: Converted,
    parameters: Sequence[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in the order of the exported program, whichever were given by keyword.

    `parameters` are those that may be positional, in order. Raises ProgramError naming arguments
    that are missing, given twice, or not the program's."""
    spec = converted.in_spec
    n, keywords = spec.child(0).num_children, list(spec.child(1).context or ())
    if len(args) == n and list(kwargs) == keywords:
        return args, dict(kwargs)
    if len(parameters) < max(n, len(args)):
        return args, dict(kwargs)  # their names are unknown
    expected = [*parameters[:n], *keywords]
    by_name = dict(zip(parameters, args, strict=False))
    for name, value in kwargs.items():
        if name in by_name:
            raise ProgramError(f"argument {name} is given twice")
        by_name[name] = value
    missing = [name for name in expected if name not in by_name]
    others = [name for name, value in by_name.items() if name not in expected]
    if missing or others:
        says = [f"{', '.join(missing)} missing"] if missing else []
        says += [f"{', '.join(others)} not among its example inputs"] if others else []
        raise ProgramError(
            f"the program was exported for the arguments {', '.join(expected)}: {'; '.join(says)}"
        )
    return tuple(by_name[name] for name in parameters[:n]), {k: by_name[k] for k in keywords}
