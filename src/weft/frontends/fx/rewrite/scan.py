"""scan: a loop over positions that torch.export has unrolled becomes one op.

The loop is h = a[i] h + b[i], where a[i] and b[i] are slices number i of two tensors. It ends in a
stack of what it gives at each position, or in a tensor that is filled slice by slice: h itself, or
its sum of products with slice number i of a third tensor. Where its states are read in another way,
they are slices of one op's result. Models write state-space layers so (Mamba), and gated
recurrences (minimal GRUs, RG-LRU). Names do not matter: nodes are followed from state to state.

A loop of a selective scan, with a = exp(rate step) and b = step x column, is SSM_SCAN; any other is
LINEAR_SCAN along the positions. Loops over single steps of a recurrent layer are RNN.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call, aten_op, fake_of
from weft.frontends.fx.layout import Value, contiguous
from weft.frontends.fx.ops.matmul import product_of
from weft.frontends.fx.ops.recurrent import SINGLE, layer_of
from weft.frontends.fx.rewrite.table import factors, is_call, rewrite, source_of
from weft.graph.size import Size, upper
from weft.records import dataclass

aten = torch.ops.aten

_CASTS = ("_to_copy", "to", "clone", "alias")
_MATRIX = ("unsqueeze", "unsqueeze_copy", *_CASTS)
LEAST = 4
"""Least number of positions of a loop that becomes an op."""


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a tensor along one of its dimensions, in order, from number `start` on."""

    node: Node
    dim: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Loop:
    """h = a[i] h + b[i] for every i."""

    a: Slices
    b: Slices
    first: Node
    """The state before the first position."""
    states: tuple[Node, ...]
    """The nodes of the states, in order."""


@rewrite("scan", aten.add.Tensor)
def state_of_scan(b: Builder, call: Call) -> Value | None:
    """A state of a loop whose states are read in another way: a slice of LINEAR_SCAN's result."""
    if call.node not in b.loop_states:
        loop = _loop_from(call.node)
        if loop is None or not _is_plain(loop):
            return None
        states = _states(b, call, loop)
        for i, node in enumerate(loop.states):
            b.loop_states[node] = states.entry(i)
    return b.loop_states[call.node]


@rewrite("scan", aten.stack.default)
def stacked_scan(b: Builder, call: Call) -> Value | None:
    """The scan whose positions this stack puts one behind the other, or None."""
    parts = call.args["tensors"]
    dim = call.dim("dim", call.out.dim())
    return _scan(b, call, parts, dim) if len(parts) >= LEAST else None


@rewrite("scan", aten.cat.default)
def joined_scan(b: Builder, call: Call) -> Value | None:
    """The scan, where parts have a dimension of one element for the position."""
    dim = call.dim("dim", call.out.dim())
    parts = [_without(p, dim) for p in call.args["tensors"]]
    if len(parts) < LEAST or None in parts:
        return None
    return _scan(b, call, parts, dim)


@rewrite("scan", aten.select_scatter.default)
def written_scan(b: Builder, call: Call) -> Value | None:
    """The scan, where each position is written into one tensor, and this is the last one."""
    rank = call.out.dim()
    dim = call.dim("dim", rank)
    count = call.out.shape[dim]
    if not isinstance(count, int) or count < LEAST:
        return None
    parts: list[Any] = []
    node: Any = call.node
    while len(parts) < count and is_call(node, "select_scatter"):
        source, part, *place = node.args
        at = [*place, *[0, 0][len(place) :]]
        if (
            not isinstance(at[1], int)
            or at[0] % rank != dim
            or at[1] % count != count - 1 - len(parts)
        ):
            return None
        parts.append(_copied(part))
        node = source
    return _scan(b, call, parts[::-1], dim) if len(parts) == count else None


def _copied(node: Any) -> Any:
    """What is copied, where `node` copies a tensor over another of its type and shape."""
    if not is_call(node, "copy"):
        return node
    to, source = (fake_of(n) for n in node.args[:2])
    return node.args[1] if (to.dtype, to.shape) == (source.dtype, source.shape) else node


def _without(node: Any, dim: int) -> Node | None:
    """The tensor to which `node` adds the dimension `dim` of one element."""
    if not is_call(node, "unsqueeze", "unsqueeze_copy"):
        return None
    return node.args[0] if node.args[1] % fake_of(node).dim() == dim else None


def _scan(b: Builder, call: Call, parts: Sequence[Node], dim: int) -> Value | None:
    cells = _cells(b, call, parts)
    if cells is not None:
        return _placed(cells, dim)
    reads = [_read(part) for part in parts]
    heads = [state for state, _ in reads]
    loop = _loop(heads)
    if loop is None or call.out.dtype is not torch.float32:
        return None
    columns: Slices | None = None
    if any(vector is not None for _, vector in reads):
        columns = _all_slices([vector for _, vector in reads])
        if columns is None:
            return None
    if not _is_plain(loop):
        return None
    found = _selective(b, call, loop, columns) if columns is not None else None
    found = found or _linear(b, call, loop, columns)
    if found is None:
        return None
    y, last = found
    if any(n not in loop.states for n in loop.states[-1].users):
        b.values[loop.states[-1]] = last  # so that what reads the last state needs no loop either
    return _placed(y, dim)


def _placed(y: Value, dim: int) -> Value:
    """The first dimension becomes dimension `dim`."""
    order = list(range(1, y.rank))
    order.insert(dim, 0)
    return y.permuted(order)


# -- single steps of layers ------------------------------------------------------------------------


def _cells(b: Builder, call: Call, parts: Sequence[Any]) -> Value | None:
    """The outputs of a layer, positions first, where the parts are single steps of one layer, each
    of which goes on from the one before; else None."""
    nodes = [p.args[0] if _is_item(p) and p.args[1] == 0 else p for p in parts]
    if not all(isinstance(n, Node) and aten_op(n.target) in SINGLE for n in nodes):
        return None
    calls = [call.of(n) for n in nodes]
    first, cell = calls[0], SINGLE[calls[0].op]
    weights = ("w_ih", "w_hh", "b_ih", "b_hh")
    if any(c.op is not first.op for c in calls):
        return None
    if any(c.args.get(n) is not first.args.get(n) for c in calls for n in weights):
        return None
    x = _all_slices([c.args["input"] for c in calls])
    if x is None or not all(_goes_on(c, n) for n, c in zip(nodes, calls[1:], strict=False)):
        return None
    states = first.values("hx") if cell is g.RnnCell.LSTM else [first.value("hx")]
    names = [n for n in weights if first.has(n)]
    y, *ends = layer_of(
        b, cell, _ahead(call.as_value(x.node), x.dim), states, [first.value(n) for n in names],
        has_biases=len(names) == 4, reverse=False,
    )  # fmt: skip
    # what reads the last state needs no single steps either
    for user in nodes[-1].users:
        if _is_item(user):
            b.values[user] = ends[user.args[1]]
    b.values[nodes[-1]] = ends if cell is g.RnnCell.LSTM else ends[0]
    return y


def _goes_on(call: Call, before: Node) -> bool:
    """Whether a step starts from the state that the node before gives."""
    hx = call.args["hx"]
    if not isinstance(hx, (list, tuple)):
        return hx is before
    return all(_is_item(h) and h.args == (before, i) for i, h in enumerate(hx))


def _is_plain(loop: Loop) -> bool:
    """Whether all states are float32 and of one shape, with elements."""
    fakes = [fake_of(n) for n in (loop.first, *loop.states)]
    same = all(f.shape == fakes[0].shape and f.dtype is torch.float32 for f in fakes)
    is_empty = any(isinstance(n, int) and n == 0 for n in fakes[0].shape)
    return same and fakes[0].dim() > 0 and not is_empty


# -- the loop --------------------------------------------------------------------------------------


def _slice(node: Any) -> tuple[Node, int, int] | None:
    """The tensor, dimension and number of a slice."""
    node = source_of(node, *_CASTS)
    if is_call(node, "select", "select_copy"):
        source, dim, index = node.args
    elif _is_item(node) and is_call(node.args[0], "unbind", "unbind_copy"):
        [source, dim], index = (*node.args[0].args, 0)[:2], node.args[1]
    else:
        return None
    shape = fake_of(source).shape
    if not isinstance(index, int) or not isinstance(shape[dim], int):
        return None
    return source, dim % len(shape), index % shape[dim]


def _is_item(node: Any) -> bool:
    return isinstance(node, Node) and node.target is operator.getitem


def _all_slices(nodes: Sequence[Any], start: int = 0) -> Slices | None:
    """The tensor of which the nodes are all slices from number `start` on, in order."""
    found = [_slice(n) for n in nodes]
    if found[0] is None:
        return None
    node, dim, _ = found[0]
    if any(s != (node, dim, i) for i, s in enumerate(found, start)):
        return None
    are_all = fake_of(node).shape[dim] == start + len(nodes)
    return Slices(node, dim, start) if are_all else None


def _terms(node: Node) -> Iterator[tuple[Any, Any, Any]]:
    """Ways to read `node` as a h + b: (a, h, b)."""
    if is_call(node, "add") and node.kwargs.get("alpha", 1) == 1:
        for scaled, added in factors(node, "add"):
            for a, h in factors(source_of(scaled, *_CASTS)):
                yield a, h, added


def _loop(heads: Sequence[Node], start: int = 0) -> Loop | None:
    """The loop whose states these are, in order; the first one is made of slices `start`."""
    before: Any = None
    scaled, added = [], []
    for i in reversed(range(len(heads))):
        for a, h, b in _terms(heads[i]):
            h = source_of(h, *_CASTS)
            is_next = h is heads[i - 1] if i else isinstance(h, Node)
            if is_next and _is_slice(a, start + i) and _is_slice(b, start + i):
                scaled.append(a)
                added.append(b)
                before = h
                break
        else:
            return None
    rates, summands = (_all_slices(s[::-1], start) for s in (scaled, added))
    if rates is None or summands is None:
        return None
    shapes = [
        [n for d, n in enumerate(fake_of(s.node).shape) if d != s.dim] for s in (rates, summands)
    ]
    if any(s != list(fake_of(heads[0]).shape) for s in shapes):
        return None
    return Loop(rates, summands, before, tuple(heads))


def _loop_from(first: Node) -> Loop | None:
    """The loop whose first state this is, made of the first slices, or of those after a first one
    that is a state by itself."""
    for a, h, added in _terms(first):
        rates, summands = _slice(a), _slice(added)
        if rates is None or summands is None or not isinstance(h, Node):
            continue
        start = rates[2]
        count = fake_of(rates[0]).shape[rates[1]] - start
        if start > 1 or summands[2] != start or count < LEAST:
            continue
        states = [first]
        while len(states) < count:
            i = start + len(states)
            after = _next_state(states[-1], (*rates[:2], i), (*summands[:2], i))
            if after is None:
                break
            states.append(after)
        if len(states) == count:
            return _loop(states, start)
    return None


def _next_state(state: Node, rate: tuple[Any, ...], summand: tuple[Any, ...]) -> Node | None:
    """The state after `state`, by the slices that it is computed from."""
    for scaled in state.users:
        if is_call(scaled, "mul"):
            for after in scaled.users:
                for a, h, added in _terms(after):
                    if h is state and _slice(a) == rate and _slice(added) == summand:
                        return after
    return None


def _is_slice(node: Any, i: int) -> bool:
    found = _slice(node)
    return found is not None and found[2] == i


def _read(part: Any) -> tuple[Any, Any]:
    """The state that a part of the stack is read from, and the vector that it is multiplied by: a
    product of a matrix and a vector, or a sum of products along the last dimension. The vector is
    None where the part is the state."""
    part = source_of(part, *_CASTS)
    inner = part
    if is_call(part, "select", "select_copy") and fake_of(part.args[0]).shape[part.args[1]] == 1:
        inner = part.args[0]
    elif is_call(part, "squeeze", "squeeze_copy") and len(part.args) > 1:
        inner = part.args[0]
    inner = source_of(inner, *_CASTS)
    rank = fake_of(inner).dim() if isinstance(inner, Node) else 0
    if is_call(inner, "matmul", "bmm") and rank == 3 and fake_of(inner).shape[-1] == 1:
        h, column = inner.args
        column = source_of(column, *_CASTS)
        if is_call(column, "unsqueeze", "unsqueeze_copy") and column.args[1] in (-1, rank - 1):
            return source_of(h, *_CASTS), column.args[0]
    if is_call(part, "sum") and _sums_last(part):
        for h, row in factors(source_of(part.args[0], *_CASTS)):
            row = source_of(row, *_CASTS)
            if is_call(row, "unsqueeze", "unsqueeze_copy") and fake_of(row).dim() == 3:
                if row.args[1] % 3 == 1:
                    return source_of(h, *_CASTS), row.args[0]
    return part, None


def _sums_last(node: Node) -> bool:
    """Whether a sum is along the last dimension of a tensor of three, which it drops."""
    rest = [*node.args[1:], *[None, False][len(node.args) - 1 :]]
    return fake_of(node).dim() == 2 and rest[0] in ([-1], [2]) and not rest[1]


# -- as ops ----------------------------------------------------------------------------------------


def _ahead(v: Value, dim: int) -> Value:
    """The dimension `dim` before all others."""
    return v.permuted([dim, *(d for d in range(v.rank) if d != dim)])


def _slices_ahead(call: Call, slices: Slices) -> Value:
    """The slices, with their dimension before all others."""
    v = _ahead(call.as_value(slices.node), slices.dim)
    shape = (v.shape[0] - slices.start, *v.shape[1:])
    return v.viewed(shape, v.strides, v.offset + slices.start * v.strides[0])


def _states(b: Builder, call: Call, loop: Loop) -> Value:
    """All states, positions first, by LINEAR_SCAN."""
    rates, summands = (_slices_ahead(call, s) for s in (loop.a, loop.b))
    first = call.as_value(loop.first)
    steps, *shape = rates.shape
    # positions go before the last dimension, whose elements are lanes
    rank = first.rank
    order = [*range(1, rank), 0, rank]
    a, added = (b.dense(v.permuted(order)) for v in (rates, summands))
    lanes = shape[-1]
    outer = first.n_elements // lanes
    ne = (lanes, steps, outer)
    h = reshaped_to(b.dense(first), (lanes, 1, outer))
    result = g.linear_scan(reshaped_to(a, ne), reshaped_to(added, ne), h)
    states = Value.whole(result, torch.float32, (*shape[:-1], steps, lanes))
    return _ahead(states, rank - 1)


def _linear(
    b: Builder, call: Call, loop: Loop, columns: Slices | None
) -> tuple[Value, Value] | None:
    """The stack, positions first, and the last state, by LINEAR_SCAN."""
    moved = _states(b, call, loop)
    steps, *shape = moved.shape
    last = moved.entry(steps - 1)
    if columns is None:
        return moved, last
    batch, rows, lanes = shape
    c = _ahead(call.as_value(columns.node), columns.dim)  # [steps, batch, lanes]
    if c.shape != (steps, batch, lanes):
        return None
    x = c.permuted((1, 0, 2)).viewed(
        (batch, steps, 1, lanes), (c.strides[1], c.strides[0], 0, c.strides[2])
    )
    w = moved.permuted((1, 0, 2, 3))
    y = product_of(b, b.settled(w), x, (batch, steps, 1, rows))
    return Value.whole(y, torch.float32, (batch, steps, rows)).permuted((1, 0, 2)), last


def _leaves(node: Any) -> list[Any]:
    """The factors of a product."""
    node = source_of(node, *_CASTS)
    if is_call(node, "mul") and isinstance(node.args[1], Node):
        return [f for arg in node.args[:2] for f in _leaves(arg)]
    return [node]


def _selective(b: Builder, call: Call, loop: Loop, columns: Slices) -> tuple[Value, Value] | None:
    """The stack and the last state by SSM_SCAN, where the loop is one of a selective scan: a =
    exp(rate step) and b = step x column with step = softplus(s)."""
    decay = source_of(loop.a.node, *_CASTS)
    if not is_call(decay, "exp") or len(fake_of(loop.states[0]).shape) != 3:
        return None
    batch, rows, lanes = fake_of(loop.states[0]).shape
    first = call.as_value(loop.first)
    steps = len(loop.states)

    def of(factor: Any, kept: tuple[bool, ...], dim: int) -> Value | None:
        """A factor as [steps, batch, rows, lanes], which varies along these dimensions alone."""
        fake = fake_of(factor)
        if not isinstance(fake, torch.Tensor) or fake.dim() != 4 or fake.dtype is not torch.float32:
            return None
        order = (dim, *(d for d in range(4) if d != dim))
        shape = [fake.shape[d] for d in order]
        full = (steps, batch, rows, lanes)
        fits = all(n == (m if k else 1) for n, m, k in zip(shape, full, kept, strict=True))
        return call.as_value(factor).permuted(order) if fits else None

    exponents = _leaves(decay.args[0])
    products = _leaves(loop.b.node)
    if len(exponents) != 2 or len(products) != 3:
        return None
    for rate, step in (exponents, exponents[::-1]):
        a = of(rate, (False, False, True, True), loop.a.dim)
        raw = _before_softplus(call, step, loop.a.dim)
        if a is None or raw is None or of(step, (True, True, True, False), loop.a.dim) is None:
            continue
        base = source_of(step, *_MATRIX)
        for i, again in enumerate(products):
            is_step = of(again, (True, True, True, False), loop.b.dim) is not None
            if not is_step or source_of(again, *_MATRIX) is not base:
                continue
            others = products[:i] + products[i + 1 :]
            for x, column in (others, others[::-1]):
                u = of(x, (True, True, True, False), loop.b.dim)
                c_in = of(column, (True, True, False, True), loop.b.dim)
                c_out = _ahead(call.as_value(columns.node), columns.dim)
                if u is None or c_in is None or c_out.shape != (steps, first.shape[0], lanes):
                    continue
                return _ssm(b, first, a, raw, u, c_in, c_out)
    return None


def _before_softplus(call: Call, step: Any, dim: int) -> Value | None:
    """s [steps, batch, rows], where `step` is softplus(s) with a last dimension of one element."""
    base = source_of(step, *_MATRIX)
    if not is_call(base, "softplus") or base.args[1:] not in (
        (),
        (1,),
        (1.0,),
        (1.0, 20.0),
        (1, 20),
    ):
        return None
    fake = fake_of(base)
    if fake.dim() != 3 or tuple(fake_of(step).shape) != (*fake.shape, 1) or dim == 3:
        return None
    return _ahead(call.as_value(base.args[0]), dim)


def _ssm(
    b: Builder, first: Value, rate: Value, step: Value, x: Value, c_in: Value, c_out: Value
) -> tuple[Value, Value]:
    """SSM_SCAN of values [steps, batch, rows, lanes] with dimensions of one element."""
    steps, batch, rows = step.shape
    lanes = first.shape[2]
    by_step = step.permuted((1, 0, 2))
    inputs = x.viewed((batch, steps, rows, 1), (x.strides[1], x.strides[0], x.strides[2], 1))
    rates = rate.viewed((rows, lanes), rate.strides[2:])
    into, out = (
        b.rows(c.viewed((batch, steps, 1, lanes), (c.strides[1], c.strides[0], 0, c.strides[-1])))
        for c in (c_in, c_out)
    )
    ids = b.constant(np.arange(upper(batch)), torch.int32).viewed((batch,), (1,))
    result = g.ssm_scan(
        reshaped_to(b.dense(first), (lanes, 1, rows, batch)),
        b.rows(inputs),
        reshaped_to(b.dense(by_step), (rows, steps, batch)),
        reshaped_to(b.dense(rates), (lanes, rows)),
        into,
        out,
        b.flat(ids),
    )
    whole = Value.whole(result, torch.float32, (result.n_elements,))

    def part(shape: tuple[Size, ...], offset: Size) -> Value:
        return whole.viewed(shape, contiguous(shape), offset)

    y = part((batch, steps, rows), 0).permuted((1, 0, 2))
    return y, part((batch, rows, lanes), steps * batch * rows)
