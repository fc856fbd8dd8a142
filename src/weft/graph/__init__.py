"""Graphs of tensors, the computation before devices are known.

Leaves come from `input`, `constant` and `leaf`, nodes from one constructor per op, named as in
ggml. Sizes may be symbolic (`Sym`). `input`, `constant`, `state` and `Tensor.shape` have them in
PyTorch's order, outermost first; the constructors named as in ggml have `ne`, innermost first.
Shapes keep the leading ones that were given: a result has as many dimensions as its source with the
most, or as sizes are given (`reshape`, `view`, `cont`); a row that `get_rows` looks up has one more
than the ids.
`Graph(*outputs)` orders the nodes that the outputs need; `check_graph` checks the rules of a legal
graph; `format_graph` and `parse_graph` convert it to text and back.

Some names hide builtins (`abs`, `round`, `set`, `sum`): import the module as a whole, e.g.
`from weft import graph as g`.
"""

from typing import TYPE_CHECKING

from weft.graph import operators, ops
from weft.graph.check import check_graph as check_graph
from weft.graph.graph import Graph as Graph
from weft.graph.node import broadcast_ne as broadcast_ne
from weft.graph.node import constant as constant
from weft.graph.node import input as input
from weft.graph.node import leaf as leaf
from weft.graph.node import state as state
from weft.graph.op import OPS as OPS
from weft.graph.op import Cost as Cost
from weft.graph.op import Op as Op
from weft.graph.op import find_op as find_op
from weft.graph.ops import *
from weft.graph.params import Params as Params
from weft.graph.size import Expr as Expr
from weft.graph.size import Size as Size
from weft.graph.size import Sym as Sym
from weft.graph.size import ceil_div as ceil_div
from weft.graph.size import evaluate as evaluate
from weft.graph.size import lower as lower
from weft.graph.size import size_max as size_max
from weft.graph.size import size_min as size_min
from weft.graph.size import upper as upper
from weft.graph.tensor import Buffer as Buffer
from weft.graph.tensor import Ne as Ne
from weft.graph.tensor import Tensor as Tensor
from weft.graph.tensor import Usage as Usage
from weft.graph.tensor import install_operators
from weft.graph.text import format_graph as format_graph
from weft.graph.text import parse_graph as parse_graph

install_operators(operators)

if not TYPE_CHECKING:  # type checkers follow the imports and cannot read a computed list
    _names = [
        "OPS",
        "Buffer",
        "Cost",
        "Expr",
        "Graph",
        "Ne",
        "Op",
        "Params",
        "Size",
        "Sym",
        "Tensor",
        "Usage",
        "broadcast_ne",
        "ceil_div",
        "check_graph",
        "constant",
        "evaluate",
        "find_op",
        "format_graph",
        "input",
        "leaf",
        "lower",
        "parse_graph",
        "size_max",
        "size_min",
        "state",
        "upper",
        *ops.__all__,
    ]
    # constants, classes, functions
    __all__ = sorted(_names, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
