"""The rules of a legal graph, checked between the stages that take a graph.

The checks share no code with the constructors, which refuse most of this earlier and with better
words. Shape rules of single ops are left to the constructors; these rules are those that every
stage relies on.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from weft.errors import GraphError
from weft.graph.graph import Graph
from weft.graph.host import HOST
from weft.graph.node import describe
from weft.graph.op import NONE, OPS
from weft.graph.size import Expr, Size, is_at_most
from weft.graph.tensor import Ne, Tensor

FLAGS = frozenset({"input", "output", "param", "state"})

MAX_BYTES = 2**63 - 1
"""Offsets are signed 64-bit in the native core."""


def check_graph(graph: Graph) -> None:
    """Raises GraphError naming the first tensor that breaks a rule.

    - each tensor occurs once; leaves have no op, nodes have one (or the `param` flag);
    - sources and bases of views come before their readers (a tensor may be its own source);
    - number of sources and parameter record fit the op table;
    - sizes are never negative, rows are whole blocks, strides fit the type;
    - a tensor other than a view has no gaps; a view lies inside its base for every symbol value;
    - inputs, outputs and states have names, each its own; symbols of one name have one range;
    - bound memory is large enough."""
    earlier: set[Tensor] = set()
    for t in graph.leaves:
        if t.op is not NONE:
            raise _illegal(t, f"is a leaf with op {t.op}")
        _check_tensor(t, earlier, graph)
        _enter(t, earlier)
    for t in graph.nodes:
        if t.op is NONE and "param" not in t.flags:
            raise _illegal(t, "is a node without an op")
        _check_op(t)
        for i, src in enumerate(t.src):
            if src is not None and src is not t and src not in earlier:
                raise _illegal(t, f"reads source {i}, {describe(src)}, that comes later or never")
        _check_tensor(t, earlier, graph)
        _enter(t, earlier)
    # The properties raise on names used twice, `symbols` on symbols with two ranges.
    for what, named in (
        ("an input", graph.inputs),
        ("an output", graph.outputs),
        ("a state", graph.states),
    ):
        if "" in named:
            raise _illegal(named[""], f"is {what} without a name")
    assert graph.symbols is not None


def check_tensor(t: Tensor, graph: Graph) -> None:
    """Raises GraphError where a tensor breaks one of the rules that concern it and its base alone,
    which can be checked before the graph is whole."""
    _check_tensor(t, {t.view_src} if t.view_src is not None else set(), graph)


def _illegal(t: Tensor, why: str) -> GraphError:
    return GraphError(f"illegal graph: {describe(t)} {why}")


def _enter(t: Tensor, earlier: set[Tensor]) -> None:
    if t in earlier:
        raise _illegal(t, "occurs twice")
    earlier.add(t)


def _check_op(t: Tensor) -> None:
    op = t.op
    if op is not HOST and OPS.get(op.name) is not op:
        raise _illegal(t, f"has op {op}, which is not in the table")
    present = sum(s is not None for s in t.src)
    if not op.min_src <= present <= len(t.src) <= op.max_src:
        raise _illegal(t, f"has {present} sources, {op} takes {op.min_src}..{op.max_src}")
    if not op.takes(t.params):
        raise _illegal(t, f"has parameters {type(t.params).__name__}, {op} takes {op.params}")
    if op.is_view and t.view_src is None:
        raise _illegal(t, f"has the view op {op} but shares no memory")
    if t.is_input:
        raise _illegal(t, "is an input that an op computes")
    if t.is_state:
        raise _illegal(t, "is a state that an op computes")


def _check_tensor(t: Tensor, earlier: set[Tensor], graph: Graph) -> None:
    if not t.flags <= FLAGS:
        raise _illegal(t, f"has unknown flags {sorted(t.flags - FLAGS)}")
    if len(t.ne) != 4 or len(t.nb) != 4:
        raise GraphError(
            f"illegal graph: {t.name!r} has {len(t.ne)} sizes and {len(t.nb)} strides, not four"
        )
    for what, values in (("size", t.ne), ("stride", t.nb), ("offset", (t.view_offs,))):
        for value in values:
            if type(value) is not int and not isinstance(value, Expr):
                raise _illegal(t, f"has {what} {value!r}, which is not an integer or expression")
    wrong = _wrong_numbers(t.dtype.block, t.dtype.bytes, t.ne, t.nb, t.view_offs)
    if wrong is not None:
        raise _illegal(t, wrong)
    if t.max_bytes > MAX_BYTES:
        raise _illegal(t, f"spans {t.max_bytes} bytes at its symbols' maxima")
    if t.view_src is None:
        _check_own_memory(t)
    else:
        _check_view(t, t.view_src, earlier, graph)


@lru_cache(maxsize=1 << 12)  # layers have the same sizes
def _wrong_numbers(block: int, bytes: int, ne: Ne, nb: Ne, view_offs: Size) -> str | None:
    for what, values in (("size", ne), ("stride", nb), ("offset", (view_offs,))):
        for value in values:
            if not is_at_most(0, value):
                return f"has {what} {value!r}, which may be negative"
    if ne[0] % block != 0:
        return f"has rows of {ne[0]} elements, not whole blocks of {block}"
    if block > 1 and nb[0] != bytes:
        return f"has blocks {nb[0]} bytes apart"
    for d, stride in enumerate(nb):
        if stride % bytes != 0 and ne[d] != 1:
            return f"has stride {stride}, not whole elements of {bytes} bytes"
    return None


@lru_cache(maxsize=1 << 12)
def _dense_bytes(block: int, bytes: int, ne: Ne) -> Size:
    return bytes * (ne[0] // block) * ne[1] * ne[2] * ne[3]


def _check_own_memory(t: Tensor) -> None:
    dense = _dense_bytes(t.dtype.block, t.dtype.bytes, t.ne)
    if 0 not in t.ne and t.nbytes != dense + t.dtype.tail:
        raise _illegal(t, f"has strides {list(t.nb)} with gaps, yet owns its memory")
    if t.view_offs != 0:
        raise _illegal(t, f"has offset {t.view_offs!r} but is no view")
    if t.buffer is not None and isinstance(t.buffer.data, np.ndarray):
        have = t.buffer.data.nbytes - t.buffer.offset
        if t.buffer.offset < 0 or have < t.max_bytes:
            raise _illegal(t, f"needs {t.max_bytes} bytes, its memory has {have}")


def _check_view(t: Tensor, base: Tensor, earlier: set[Tensor], graph: Graph) -> None:
    if base is t or base.view_src is not None:
        raise _illegal(t, f"views {describe(base)}, which is itself a view")
    if base not in earlier and (base in graph or base.buffer is None):
        raise _illegal(t, f"views {describe(base)}, which comes later or never")
    if t.dtype is not base.dtype:
        raise _illegal(t, f"views {describe(base)} as another type")
    if 0 not in t.ne and not is_at_most(t.view_offs + t.nbytes, base.nbytes):
        raise _illegal(
            t,
            f"ends at byte {t.view_offs + t.nbytes!r} of its base {describe(base)}, which has "
            f"{base.nbytes!r}",
        )
