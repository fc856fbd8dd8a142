"""Builds nodes on trial, to learn for which of them the cpu has kernels.

The frontend says what it can convert. The kernels that this takes depend on the sources of a node
(such as a view with strides), so a part is built as a whole, without weights, and the cpu is asked
about every op of it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from weft.backends import make_backend
from weft.errors import WeftError
from weft.frontends.fx import supports
from weft.frontends.fx.builder import Builder
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import STORED, stored_type
from weft.frontends.fx.layout import Value, folded_ne
from weft.frontends.fx.registry import find_visitor
from weft.frontends.fx.sizes import Sizes
from weft.graph.check import check_tensor
from weft.graph.node import leaf
from weft.graph.op import NONE
from weft.graph.tensor import Tensor

__all__ = ["refusals"]


def refusals(nodes: Iterable[Node], sizes: Sizes, last: Set[Node] = frozenset()) -> dict[Node, str]:
    """The nodes (in the order of the program) that weft cannot run, each with a sentence.

    The result of a refused node is an input of the others. `sizes` are the program's;
    `last` are convolutions with channels innermost."""
    try:
        trial = _Trial(sizes, frozenset(last))
    except WeftError as error:
        return {node: str(error) for node in nodes if _is_dynamic(node)}
    for node in nodes:
        if node.op == "call_function":
            trial.take(node)
    return trial.refused


@cache
def _cpu() -> Any:
    return make_backend("cpu")


class _Trial:
    def __init__(self, sizes: Sizes, last: frozenset[Node]) -> None:
        self.refused: dict[Node, str] = {}
        self._builder = Builder(sizes)
        self._builder.channels_last = last
        self._asked: set[Tensor] = set()

    def take(self, node: Node) -> None:
        values = self._builder.values
        answer = supports(node)
        why = "" if answer else answer.reason
        if not why and node.target is operator.getitem:
            self._source(node.args[0])
            built = values[node.args[0]]
            values[node] = built[node.args[1]] if isinstance(built, list) else self._leaf(node)
            return
        visitor = find_visitor(node.target)
        if not why and visitor is not None and "val" in node.meta:
            for source in node.all_input_nodes:
                self._source(source)
                self._builder.pending[source] = len(source.users)
            try:
                results = visitor.build(self._builder, Call(node, values, self._builder.sizes))
                why = self._ask(results if isinstance(results, list) else [results])
                values[node] = results
            except WeftError as error:
                why = str(error)
        if why:
            self.refused[node] = why
            values[node] = self._leaf(node)

    def _source(self, node: Node) -> None:
        """An input of the part."""
        if node not in self._builder.values:
            self._builder.values[node] = self._leaf(node)

    def _leaf(self, node: Node) -> Any:
        fake = node.meta.get("val")
        if isinstance(fake, list | tuple):
            return [self._value(f, f"{node.name}_{i}") for i, f in enumerate(fake)]
        return self._value(fake, node.name)

    def _value(self, fake: Any, name: str) -> Value | None:
        if not isinstance(fake, torch.Tensor) or fake.dtype not in STORED:
            return None
        shape = self._builder.sizes.shape(fake.shape)
        tensor = leaf(stored_type(fake.dtype), folded_ne(shape), name, frozenset({"input"}))
        return Value.whole(tensor, fake.dtype, shape)

    def _ask(self, results: list[Value | None]) -> str:
        """The first refusal among the ops of a node's results; raises the error of a broken
        rule."""
        stack = [value.tensor for value in results if value is not None]
        stack += self._builder.graph.nodes
        while stack:
            tensor = stack.pop()
            if tensor in self._asked:
                continue
            self._asked.add(tensor)
            check_tensor(tensor, self._builder.graph)  # its sizes, for all that symbols may be
            if tensor.op is not NONE:
                answer = _cpu().supports_op(tensor)
                if not answer:
                    return str(answer.why)
            stack.extend(s for s in tensor.src if s is not None)
        return ""


def _is_dynamic(node: Node) -> bool:
    shape = getattr(node.meta.get("val"), "shape", ())
    return any(isinstance(n, torch.SymInt) for n in shape)
