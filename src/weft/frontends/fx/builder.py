"""`Builder`: turns values into weft tensors in the form that an op needs; visitors work with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Node

from weft import graph as g
from weft.dtype import DTYPES, DType
from weft.errors import GraphError
from weft.frontends.fx.call import Call
from weft.frontends.fx.dtypes import compute_type, stored_type
from weft.frontends.fx.layout import (
    Carried,
    Value,
    broadcast_strides,
    channels_last,
    coalesce,
    contiguous,
    folded_ne,
    inverse,
    is_contiguous,
    joint_dims,
    product,
)
from weft.frontends.fx.sizes import Sizes, as_int
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.size import Size, lower, upper
from weft.graph.tensor import Buffer, Tensor
from weft.quants import from_storage

MAX_TABLE = 2**20
"""Maximum number of values of a size from which a number is computed."""

Map: TypeAlias = Callable[..., Tensor]
"""A function of tensors, whose result has as many elements."""
Numbers: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
Order: TypeAlias = tuple[int, ...]
"""The order of dimensions in memory, outermost first."""


def constant_leaf(
    array: Any, dtype: DType, name: str = "", ne: Sequence[Size] | None = None
) -> Tensor:
    """A leaf over a C-contiguous array of the type's storage, used in place.

    `ne` are its sizes if they differ from the sizes of the array (blocks)."""
    ne = folded_ne(array.shape) if ne is None else ne
    return leaf(dtype, ne, name, buffer=Buffer("weights", data=array))


class Builder:
    """Holds the graph and the values so far, and makes tensors of values.

    `dense`, `flat`, `view` and `rows` return a weft tensor of a value. Floats are f32 unless
    `stored` asks for the type in memory."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.graph = Graph()
        self.values: dict[Node, Any] = {}
        self.states: dict[Tensor, str] = {}
        """Leaves that the program writes, with their names."""
        self.overwritten: set[Tensor] = set()
        """Leaves that were written in place and no longer hold their first values."""
        self.pending: dict[Node, int] = {}
        """The number of readers of each node that are not built yet."""
        self.channels_last: frozenset[Node] = frozenset()
        """Convolutions that are built with channels innermost (`channels_last.py`)."""
        self.nodes: dict[Tensor, str] = {}
        """Tensor -> name of the node of the program for which it was made."""
        self.current = ""
        """The name of the node that is being built."""
        self.memo: dict[Any, Tensor] = {}
        """Tensors that visitors share, by keys of their own."""
        self.loop_states: dict[Node, Value] = {}
        """States of unrolled loops that are parts of one result (`rewrite/scan.py`)."""
        self._dense: dict[Any, Tensor] = {}
        self._f32: dict[Tensor, Tensor] = {}
        self._scalars: dict[tuple[float, DType], Tensor] = {}

    # ---- results ---------------------------------------------------------------------------------

    def result(self, call: Call, tensor: Tensor, i: int = 0) -> Value:
        """Result number `i` of a call: a contiguous tensor with that result's shape and type."""
        fake = call.outs[i]
        return Value.whole(tensor, fake.dtype, self.sizes.shape(fake.shape))

    def label(self, tensor: Tensor, name: str) -> None:
        """Names the tensors that were made for a node: its result after the node, helpers with
        numbers."""
        count, stack = 0, [tensor]
        while stack:
            t = stack.pop()
            if t in self.nodes or t.op is g.OPS["NONE"]:
                continue
            self.nodes[t] = name
            if not t.name:
                t.name = name if count == 0 else f"{name}.{count}"
            count += 1
            stack.extend(s for s in t.src if s is not None and s is not t)

    def put(self, *tensors: Tensor) -> None:
        """Puts tensors, and all that they need, into the graph now, before later writes."""
        for t in tensors:
            self.label(t, self.current)
        self.graph.expand(*tensors)

    # ---- tensors of values -----------------------------------------------------------------------

    def computed(self, v: Value) -> Value:
        """The value in the type that ops compute with: 16-bit floats become f32."""
        want = compute_type(v.dtype)
        if v.tensor.dtype is want:
            return v
        if v.tensor.op is g.OPS["NONE"] and v.tensor.buffer and v.tensor not in self.states:
            if v.tensor not in self._f32:
                self._f32[v.tensor] = _as_f32(v.tensor)
            return replace(v, tensor=self._f32[v.tensor])
        # expanded dimensions are converted once
        shape = [1 if s == 0 else n for n, s in zip(v.shape, v.strides, strict=True)]
        narrow = v.viewed(shape, v.strides)
        tensor = g.cast(self.view(narrow, stored=True), want)
        whole = Value.whole(tensor, v.dtype, shape)
        return whole.viewed(v.shape, broadcast_strides(shape, whole.strides, v.shape))

    def _readable(self, v: Value, stored: bool) -> Value:
        """The value in its stored type where `stored` asks for it; blocks only as whole rows."""
        is_kept = stored and not (v.tensor.dtype.is_quantized and not v.is_whole)
        return v if is_kept else self.computed(v)

    def dense(self, v: Value, *, stored: bool = False) -> Tensor:
        """A contiguous tensor; dimensions outside the last three are one (`folded_ne`)."""
        key = (v.tensor, v.dtype, v.shape, v.strides, v.offset, stored)
        if key not in self._dense:
            ready = self._readable(v, stored)
            ne = folded_ne(ready.shape)
            if ready.is_contiguous:
                self._dense[key] = window(ready, ne)
            else:
                self._dense[key] = reshaped_to(self._copied(ready), ne)
        return self._dense[key]

    def settled(self, v: Value, *, stored: bool = False) -> Value:
        """The value as a whole tensor of its own."""
        ready = v if stored else self.computed(v)
        if ready.is_whole:
            return ready
        return Value.whole(self.dense(ready, stored=stored), v.dtype, v.shape)

    def _copied(self, v: Value) -> Tensor:
        array = self.array(v)
        if array is not None:
            # a weight that an op needs in another order is reordered now, not in every run
            name = v.tensor.name and f"{v.tensor.name}.copy"
            return constant_leaf(np.ascontiguousarray(array), v.tensor.dtype, name)
        dims = coalesce(v.shape, v.strides)
        if len(dims) <= 4:
            ne = [n for n, _ in reversed(dims)]
            return g.cont(strided(v.tensor, ne, [s for _, s in reversed(dims)], v.offset))
        kept = [(n, s) for n, s in dims if s != 0]
        if len(kept) > 4:
            raise GraphError(f"a view with {len(kept)} dimensions that cannot be merged")
        shape = [n for n, _ in kept]
        inner = self._copied(v.viewed(shape, [s for _, s in kept]))
        return self._expanded(inner, [(n, s == 0) for n, s in dims])

    def _expanded(self, dense: Tensor, dims: Sequence[tuple[Size, bool]]) -> Tensor:
        """Repeats a dense tensor along the marked dimensions, one after the other."""
        shape: list[Size] = [1 if new else n for n, new in dims]
        for i, (n, new) in enumerate(dims):
            if new:
                shape[i] = n
                outer, inner = product(shape[:i]), product(shape[i + 1 :])
                repeated = strided(dense, [inner, n, outer], [1, 0, inner], 0)
                dense = g.cont(repeated)
        return dense

    def flat(self, v: Value, *, stored: bool = False) -> Tensor:
        """A contiguous tensor of one dimension."""
        t = self.dense(v, stored=stored)
        return reshaped_to(t, (t.n_elements,))

    def view(self, v: Value, *, stored: bool = False) -> Tensor:
        """A tensor with the value's own sizes and any strides, without a copy where there are at
        most four dimensions."""
        ready = self._readable(v, stored)
        if ready.rank > 4 or ready.is_contiguous:
            return self.dense(ready, stored=stored)
        return strided(ready.tensor, ready.shape[::-1], ready.strides[::-1], ready.offset)

    def rows(self, v: Value, *, stored: bool = False) -> Tensor:
        """A tensor as `view` returns it, with the elements of each row contiguous."""
        t = self.view(v, stored=stored)
        return t if t.is_contiguous_rows else self.dense(v, stored=stored)

    def joint(self, shape: Sequence[Size], *values: Value) -> list[Tensor]:
        """The values as tensors that broadcast to `shape`, in at most four merged dimensions.

        The result of an elementwise op on them is `shape` in order."""
        ready = [self.computed(v) for v in values]
        first = ready[0].tensor
        if all(v.is_whole and v.shape == tuple(shape) and v.tensor.ne == first.ne for v in ready):
            return [v.tensor for v in ready]
        strides = [broadcast_strides(v.shape, v.strides, shape) for v in ready]
        dims = joint_dims(shape, *strides)
        if len(dims) > 4:
            # only operands with gaps or a shape of their own are copied
            ready = [
                v if v.shape == tuple(shape) and v.is_contiguous else self._spread(v, shape)
                for v in ready
            ]
            strides = [v.strides for v in ready]
            dims = joint_dims(shape, *strides)
        if len(dims) == 1 and all(s == 1 for s in dims[0][1:]):
            return [self.dense(v) for v in ready]
        tensors = []
        for i, v in enumerate(ready):
            steps = [d[1 + i] for d in reversed(dims)]
            # a dimension along which no operand steps belongs to the first one
            ne = [
                1 if s == 0 and (i or any(all_steps)) else n
                for (n, *all_steps), s in zip(reversed(dims), steps, strict=True)
            ]
            tensors.append(strided(v.tensor, ne or [1], steps or [1], v.offset))
        return tensors

    def mapped(self, function: Map, v: Value, dtype: torch.dtype | None = None) -> Value:
        """A function of single elements of one value, applied to its whole tensor where that has no
        gaps.

        The result has the same order in memory. `dtype` is the type of the result, if it
        differs."""
        ready = self.computed(v)
        order = ready.reading_order
        inner = ready.permuted(order)
        tensor = inner.tensor if inner.is_whole else self.dense(inner)
        result = Value.whole(function(tensor), dtype or v.dtype, inner.shape)
        return result.permuted(inverse(order))

    def each(
        self, function: Map, shape: Sequence[Size], values: Sequence[Value], dtype: torch.dtype
    ) -> Value:
        """A function of the elements of values that broadcast to `shape`.

        Values that share an order in memory other than the order of their dimensions keep it in the
        result."""
        ready = [self.computed(v) for v in values]
        order = self._common_order(shape, ready)
        if order == tuple(range(len(shape))):
            return Value.whole(function(*self.joint(shape, *ready)), dtype, shape)
        moved = []
        for v in ready:
            lead = (1,) * (len(shape) - v.rank)
            ordered = v.viewed((*lead, *v.shape), (*lead, *v.strides)).permuted(order)
            # a value as large in another order is copied into this one, once
            other = v.shape == tuple(shape) and v.order not in (None, order)
            moved.append(self.settled(ordered) if other else ordered)
        inner = [shape[d] for d in order]
        result = Value.whole(function(*self.joint(inner, *moved)), dtype, inner)
        return result.permuted(inverse(order))

    def _common_order(self, shape: Sequence[Size], values: Sequence[Value]) -> Order:
        """The order in memory that the values share, outermost first; constants do not count.

        Where images differ, channels last wins, because the others are inputs; else the usual
        order."""
        whole = [v for v in values if v.shape == tuple(shape) and self.array(v) is None]
        orders = {v.reading_order for v in whole}
        last, usual = channels_last(len(shape)), tuple(range(len(shape)))
        if len(shape) == 4 and last in orders:
            return last
        return orders.pop() if len(orders) == 1 else usual

    def _spread(self, v: Value, shape: Sequence[Size]) -> Value:
        strides = broadcast_strides(v.shape, v.strides, shape)
        return self.settled(v.viewed(shape, strides))

    # ---- state -----------------------------------------------------------------------------------

    def may_overwrite(self, v: Value, source: Node) -> bool:
        """Whether an op may write into `v`.

        It may if `v` is the whole of a buffer that the program mutates, and no node reads the
        present values after the op, which reads them from `source`. If so, all earlier readers are
        put into the graph, so that they come first."""
        leaf_ = v.tensor.view_src or v.tensor
        if leaf_ not in self.states or not v.is_whole:
            return False
        live = []
        for node, node_values in self.values.items():
            left = self.pending.get(node, 0) - (node is source)
            for value in node_values if isinstance(node_values, list) else [node_values]:
                if isinstance(value, (Value, Carried)) and left > 0:
                    if (value.tensor.view_src or value.tensor) is leaf_:
                        return False
                    live.append(value.tensor)
        self.put(*(t for t in live if _reads(t, leaf_)))
        self.overwritten.add(leaf_)
        return True

    # ---- constants -------------------------------------------------------------------------------

    def array(self, v: Value) -> NDArray[Any] | None:
        """The elements of a constant, in their stored type and in place; None for other values."""
        t = v.tensor
        if t.op is not g.OPS["NONE"] or t.buffer is None or t in self.states:
            return None
        if t.dtype.is_quantized:
            return None
        if not isinstance(t.buffer.data, np.ndarray):
            return None
        sizes = [as_int(n) for n in (*v.shape, *v.strides, v.offset)]
        numbers = [n for n in sizes if n is not None]
        if len(numbers) != len(sizes):
            return None
        flat = t.buffer.data.reshape(-1)
        if 0 in v.shape:
            return np.empty(numbers[: v.rank], flat.dtype)
        *both, offset = (n * flat.itemsize for n in numbers)
        shape, strides = numbers[: v.rank], both[v.rank :]
        return np.ndarray(shape, flat.dtype, flat, offset, strides)

    def number(self, arg: Any) -> float | None:
        """A number, or the only element of a constant tensor; None for anything else."""
        if isinstance(arg, (int, float)):
            return float(arg)
        v = self.values.get(arg) if isinstance(arg, Node) else None
        if not isinstance(v, Value) or v.n_elements != 1:
            return None
        array = self.array(v)
        return None if array is None else float(from_storage(array.reshape(1), v.tensor.dtype)[0])

    def constant(self, data: Any, dtype: torch.dtype) -> Value:
        """A constant of a PyTorch type (floats as f32) with the values and shape of an array."""
        dt = compute_type(dtype)
        array = np.ascontiguousarray(np.asarray(data).astype(dt.storage))
        return Value.whole(constant_leaf(array, dt), dtype, np.asarray(data).shape)

    def scalar(self, number: float, dtype: torch.dtype) -> Value:
        """A constant without dimensions; the same number is one leaf."""
        key = (number, compute_type(dtype))
        if key not in self._scalars or number != number:
            self._scalars[key] = self.constant(number, dtype).tensor
        return Value.whole(self._scalars[key], dtype, ())

    def measured(self, number: torch.SymInt | torch.SymFloat, dtype: torch.dtype) -> Value:
        """A number computed from sizes, as a value without dimensions.

        Raises GraphError for one with too many values, and for a float of several sizes."""
        if isinstance(number, torch.SymInt):
            return self.of_size(self.sizes.of(number), dtype)
        size, function = self.sizes.function(number)
        return self.of_size(size, dtype, function)

    def of_size(self, size: Size, dtype: torch.dtype, function: Numbers | None = None) -> Value:
        """A function of a size, as a value without dimensions; by default the size itself.

        It is an element of a table with the results for all values of the size."""
        low, high = lower(size), upper(size)
        if high - low >= MAX_TABLE:
            raise GraphError(
                f"a number of size {size}, which may have {high - low + 1} values; at most "
                f"{MAX_TABLE} have a place in a table: declare a smaller bound"
            )
        sizes = np.arange(low, high + 1)
        table = self.constant(function(sizes) if function else sizes, dtype)
        return table.viewed((), (), size - low)

    def converted(self, v: Value, dtype: torch.dtype) -> Value:
        """The value as another type of PyTorch."""
        if v.dtype == dtype:
            return v
        if compute_type(dtype) is compute_type(v.dtype) and dtype is not torch.bool:
            # Among floats only the name changes, because values between ops are f32. i8 stays i8.
            return v.as_type(dtype)
        to, boolean = compute_type(dtype), dtype is torch.bool
        return self.each(lambda t: g.convert(t, to, boolean=boolean), v.shape, [v], dtype)

    def stored(self, v: Value) -> Value:
        """The value in the type of inputs, outputs and state in memory."""
        want = stored_type(v.dtype)
        if v.tensor.dtype is want:
            return v
        return self.mapped(lambda t: g.cast(t, want), v)


def _as_f32(constant: Tensor) -> Tensor:
    assert constant.buffer is not None
    data = constant.buffer.data
    array = np.ascontiguousarray(from_storage(data, constant.dtype), np.float32)
    return constant_leaf(array, DTYPES["f32"], f"{constant.name}.f32")


def _reads(tensor: Tensor, leaf_: Tensor) -> bool:
    """Whether a tensor is computed from a leaf."""
    visited, stack = set(), [tensor]
    while stack:
        t = stack.pop()
        if t is leaf_ or t.view_src is leaf_:
            return True
        for s in t.src:
            if s is not None and s not in visited:
                visited.add(s)
                stack.append(s)
    return False


def window(v: Value, ne: Sequence[Size]) -> Tensor:
    """A contiguous part of a tensor."""
    if v.is_whole:
        return reshaped_to(v.tensor, ne)
    return g.view(v.tensor, ne, (), v.offset * v.tensor.dtype.bytes)


def reshaped_to(t: Tensor, ne: Sequence[Size]) -> Tensor:
    """A contiguous tensor with other sizes; the tensor itself where it has them."""
    sizes = (*ne, *[1] * (4 - len(ne)))
    return t if t.ne == sizes else g.reshape(t, *sizes)


def strided(t: Tensor, ne: Sequence[Size], steps: Sequence[Size], offset: Size) -> Tensor:
    """A view with strides in elements, innermost first; the tensor itself where the view is all of
    it."""
    shape, strides = tuple(reversed(ne)), tuple(reversed(steps))
    if offset == 0 and is_contiguous(shape, strides) and product(ne) == t.n_elements:
        return reshaped_to(t, ne)
    size = t.dtype.bytes
    full = contiguous(shape)[::-1]
    # strides of dimensions of one element do not count; kernels expect them as without gaps
    nb = [size * (s if n != 1 else f) for n, s, f in zip(ne, steps, full, strict=True)]
    while len(nb) < 4:
        nb.append(nb[-1] * ne[len(nb) - 1] if nb else size)
        ne = [*ne, 1]
    return g.view(t, ne, nb, offset * size)
