"""`Call`: a node of an exported program with its arguments by the names of its op's schema."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import torch
from torch.fx import Node

from weft.errors import GraphError
from weft.frontends.fx.layout import Value
from weft.frontends.fx.sizes import Sizes
from weft.graph.size import Size
from weft.graph.tensor import Tensor


class StaleValueError(GraphError):
    """A value that cannot be read: of a buffer that was overwritten since, or one inside of a host
    function."""


def aten_op(target: Any) -> torch._ops.OpOverload | None:
    """The exact op of a node's target: itself, or the op that an op of the Edge dialect wraps."""
    if isinstance(target, torch._ops.OpOverload):
        return target
    inner = getattr(target, "_op", None)
    return inner if isinstance(inner, torch._ops.OpOverload) else None


def op_name(target: Any) -> str:
    """A name for messages, e.g. `aten.add.Tensor`."""
    op = aten_op(target)
    return str(op) if op is not None else getattr(target, "__name__", str(target))


def fake_of(value: Any) -> Any:
    """The exporter's metadata of a node's value (a fake tensor, a size, a tuple); other values
    themselves."""
    return value.meta.get("val") if isinstance(value, Node) else value


def moved_bytes(node: Any) -> Node | None:
    """The int8 numbers to which 128 is added to make `node`, which fits uint8 then."""
    if not isinstance(node, Node) or aten_op(node.target) is not torch.ops.aten.add.Tensor:
        return None
    numbers, moved = node.args[:2]
    if moved != 128 or node.kwargs or fake_of(node).dtype is torch.int8:
        return None
    while isinstance(numbers, Node) and aten_op(numbers.target) is torch.ops.aten._to_copy.default:
        numbers = numbers.args[0]
    is_byte = isinstance(numbers, Node) and fake_of(numbers).dtype is torch.int8
    return numbers if is_byte else None


class Call:
    """Arguments of a node by name.

    `fake` and `raw` need only the node, so that `supports` can use them; `value`, `size` and
    `shape` work while a graph is built."""

    def __init__(
        self,
        node: Node,
        values: Mapping[Node, Any] | None = None,
        sizes: Sizes | None = None,
        overwritten: Set[Tensor] = frozenset(),
    ) -> None:
        """`overwritten` are the leaves whose first values are gone."""
        op = aten_op(node.target)
        if op is None:
            raise GraphError(f"{node.name} calls {node.target}, which is not an op")
        self.node = node
        self.op = op
        self.args: dict[str, Any] = {}
        self._values = values or {}
        self._sizes = sizes
        self._overwritten = overwritten
        for i, argument in enumerate(op._schema.arguments):
            if i < len(node.args) and not argument.kwarg_only:
                self.args[argument.name] = node.args[i]
            elif argument.name in node.kwargs:
                self.args[argument.name] = node.kwargs[argument.name]
            elif argument.has_default_value():
                self.args[argument.name] = argument.default_value

    def of(self, node: Node) -> Call:
        """Another node's call, over the same values."""
        return Call(node, self._values, self._sizes, self._overwritten)

    # ---- from the node alone ---------------------------------------------------------------------

    @property
    def out(self) -> Any:
        """The fake tensor of the (first) result."""
        return self.outs[0]

    @property
    def outs(self) -> list[Any]:
        """The fake tensors of all results."""
        val = self.node.meta.get("val")
        return list(val) if isinstance(val, (list, tuple)) else [val]

    def raw(self, name: str, default: Any = None) -> Any:
        """An argument as it stands in the node, or `default` where it is absent."""
        argument = self.args.get(name, default)
        return default if argument is None else argument

    def has(self, name: str) -> bool:
        """Whether an argument is there and not None."""
        return self.args.get(name) is not None

    def fake(self, name: str) -> Any:
        """The fake tensor of an argument; None where it is absent."""
        return fake_of(self.args.get(name))

    def fakes(self) -> list[torch.Tensor]:
        """The fake tensors of all tensor arguments."""
        tensors: list[torch.Tensor] = []

        def visit(value: Any) -> None:
            if isinstance(value, (list, tuple)):
                for v in value:
                    visit(v)
            elif isinstance(fake_of(value), torch.Tensor):
                tensors.append(fake_of(value))

        for value in self.args.values():
            visit(value)
        return tensors

    # ---- while a graph is built ------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """A tensor argument."""
        return self.as_value(self.args[name])

    def as_value(self, arg: Any) -> Value:
        """The value of an argument that is a node."""
        value = self._values.get(arg)
        if not isinstance(value, Value):
            raise StaleValueError(f"{self.node.name}: {arg} is not a tensor of the program")
        if value.tensor in self._overwritten:
            raise StaleValueError(f"{self.node.name} reads {arg} after it was overwritten")
        return value

    def values(self, name: str) -> list[Value]:
        """A list of tensors."""
        return [self.as_value(v) for v in self.args[name]]

    def size(self, value: Any) -> Size:
        """An integer argument (a number, a `SymInt` or a node that is one) as a size."""
        assert self._sizes is not None
        return self._sizes.of(fake_of(value))

    def shape(self, values: Any = None) -> tuple[Size, ...]:
        """A list of sizes; default: the shape of the (first) result."""
        if values is None:
            values = self.out.shape
        return tuple(self.size(v) for v in values)

    def number(self, name: str, default: float = 0.0) -> Any:
        """A number (int, float or bool)."""
        argument = self.raw(name, default)
        if isinstance(argument, Node):
            raise GraphError(f"argument {name} of {self.node.name} is computed from sizes")
        return argument

    def dim(self, name: str, rank: int, default: int = 0) -> int:
        """A dimension counted from the start."""
        return int(self.number(name, default)) % max(rank, 1)

    def dims(self, name: str, rank: int) -> list[int]:
        """A list of dimensions (or one), counted from the start; all where there is none."""
        argument = self.args.get(name)
        if argument is None or argument == []:
            return list(range(max(rank, 1)))
        dims = argument if isinstance(argument, (list, tuple)) else [argument]
        return sorted({int(d) % max(rank, 1) for d in dims})

    def numbers(self, name: str) -> list[int]:
        """A list of plain integers; empty where it is absent."""
        return [int(n) for n in self.args.get(name) or []]

    def is_read(self, i: int) -> bool:
        """Whether anything reads result number `i` of several."""
        return any(user.args[1] == i for user in self.node.users if len(user.args) > 1)
