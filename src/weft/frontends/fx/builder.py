"""`Builder`: values to weft tensors, in the form that an op wants. What visitors work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

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
    broadcast_strides,
    coalesce,
    contiguous,
    folded_ne,
    is_contiguous,
    joint_dims,
)
from weft.frontends.fx.sizes import Sizes, as_int
from weft.frontends.fx.value import Value
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.size import Size
from weft.graph.tensor import Buffer, Tensor
from weft.quants import from_storage

__all__ = ["Builder", "constant_leaf", "reshaped_to"]


def constant_leaf(
    array: Any, dtype: DType, name: str = "", ne: Sequence[Size] | None = None
) -> Tensor:
    """A leaf over a C-contiguous array of the type's storage, used in place. `ne`: its sizes where
    they are not those of the array (blocks)."""
    ne = folded_ne(array.shape) if ne is None else ne
    return leaf(dtype, ne, name, buffer=Buffer("weights", data=array))


class Builder:
    """Holds the graph and the values so far; makes tensors of values.

    `dense`, `flat`, `view` and `rows` give a weft tensor of a value. Floats come as f32 unless
    `stored` asks for the type in memory."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.graph = Graph()
        self.values: dict[Node, Any] = {}
        self.states: dict[Tensor, str] = {}
        """Leaves that the program writes, with their names."""
        self.overwritten: set[Tensor] = set()
        """Those that were written in place: the leaf itself stands for values that are gone."""
        self.pending: dict[Node, int] = {}
        """Readers of each node that were not built yet."""
        self.nodes: dict[Tensor, str] = {}
        """The node of the program that each tensor was made for."""
        self.current = ""
        """The name of the node that is being built."""
        self.memo: dict[Any, Tensor] = {}
        """Tensors that visitors make once and use again, by keys of their own."""
        self._dense: dict[tuple[Value, bool], Tensor] = {}
        self._f32: dict[Tensor, Tensor] = {}
        self._scalars: dict[tuple[float, DType], Tensor] = {}

    # ---- results ---------------------------------------------------------------------------------

    def result(self, call: Call, tensor: Tensor, i: int = 0) -> Value:
        """Result number `i` of a call: a contiguous tensor with that result's shape and type."""
        fake = call.outs[i]
        return Value.whole(tensor, fake.dtype, self.sizes.shape(fake.shape))

    def label(self, tensor: Tensor, name: str) -> None:
        """Names what was made for a node of the program: its result after the node, helpers with
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
        """Puts tensors, and what they need, into the graph now: before what comes later writes."""
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
        """The value as it is stored where that is asked for; blocks only as whole rows."""
        is_kept = stored and not (v.tensor.dtype.is_quantized and not v.is_whole)
        return v if is_kept else self.computed(v)

    def dense(self, v: Value, *, stored: bool = False) -> Tensor:
        """A contiguous tensor; what is outside the last three dimensions is one (`folded_ne`)."""
        key = (v, stored)
        if key not in self._dense:
            ready = self._readable(v, stored)
            ne = folded_ne(ready.shape)
            if ready.is_contiguous:
                self._dense[key] = _window(ready, ne)
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
            # a weight that an op wants in another order is put into it now, not in every run
            name = v.tensor.name and f"{v.tensor.name}.copy"
            return constant_leaf(np.ascontiguousarray(array), v.tensor.dtype, name)
        dims = coalesce(v.shape, v.strides)
        if len(dims) <= 4:
            ne = [n for n, _ in reversed(dims)]
            return g.cont(_strided(v.tensor, ne, [s for _, s in reversed(dims)], v.offset))
        kept = [(n, s) for n, s in dims if s != 0]
        if len(kept) > 4:
            raise GraphError(f"a view with {len(kept)} dimensions that cannot be merged")
        shape = [n for n, _ in kept]
        inner = self._copied(v.viewed(shape, [s for _, s in kept]))
        return self._expanded(inner, [(n, s == 0) for n, s in dims])

    def _expanded(self, dense: Tensor, dims: Sequence[tuple[Size, bool]]) -> Tensor:
        """Repeats a dense tensor along the dimensions that are marked, one after the other."""
        shape: list[Size] = [1 if new else n for n, new in dims]
        for i, (n, new) in enumerate(dims):
            if new:
                shape[i] = n
                outer, inner = _product(shape[:i]), _product(shape[i + 1 :])
                seen = _strided(dense, [inner, n, outer], [1, 0, inner], 0)
                dense = g.cont(seen)
        return dense

    def elements(self, v: Value) -> Tensor:
        """A contiguous tensor of any sizes, the one there is where that is possible: for functions
        of single elements."""
        ready = self.computed(v)
        return ready.tensor if ready.is_whole else self.dense(ready)

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
        return _strided(ready.tensor, ready.shape[::-1], ready.strides[::-1], ready.offset)

    def rows(self, v: Value, *, stored: bool = False) -> Tensor:
        """As `view`, with the elements of each row side by side."""
        t = self.view(v, stored=stored)
        return t if t.is_contiguous_rows else self.dense(v, stored=stored)

    def joint(self, shape: Sequence[Size], *values: Value) -> list[Tensor]:
        """The values as tensors that broadcast to `shape`, in at most four dimensions of their own
        choice; the result of an elementwise op on them is `shape` in order."""
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
        found = []
        for i, v in enumerate(ready):
            steps = [d[1 + i] for d in reversed(dims)]
            # a dimension that no operand steps through is the first one's
            ne = [
                1 if s == 0 and (i or any(all_steps)) else n
                for (n, *all_steps), s in zip(reversed(dims), steps, strict=True)
            ]
            found.append(_strided(v.tensor, ne or [1], steps or [1], v.offset))
        return found

    def _spread(self, v: Value, shape: Sequence[Size]) -> Value:
        strides = broadcast_strides(v.shape, v.strides, shape)
        return self.settled(v.viewed(shape, strides))

    # ---- state -----------------------------------------------------------------------------------

    def may_overwrite(self, v: Value, source: Node) -> bool:
        """Whether an op may write into `v`: all of a buffer that the program mutates, whose present
        values nobody reads after the op, which reads them from `source`.

        If so, whatever reads them before is put into the graph, so that it comes first."""
        leaf_ = v.tensor.view_src or v.tensor
        if leaf_ not in self.states or not v.is_whole:
            return False
        live = []
        for node, found in self.values.items():
            left = self.pending.get(node, 0) - (node is source)
            for value in found if isinstance(found, list) else [found]:
                if isinstance(value, Value) and left > 0:
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

    def converted(self, v: Value, dtype: torch.dtype) -> Value:
        """The value as another type of PyTorch."""
        if v.dtype == dtype:
            return v
        if compute_type(dtype) is compute_type(v.dtype) and dtype is not torch.bool:
            # among floats only the name changes: values between ops are f32. i8 stays i8.
            return v.as_type(dtype)
        [t] = self.joint(v.shape, v)
        made = g.convert(t, compute_type(dtype), boolean=dtype is torch.bool)
        return Value.whole(made, dtype, v.shape)

    def stored(self, v: Value) -> Value:
        """The value in the type that memory at the border has."""
        want = stored_type(v.dtype)
        if v.tensor.dtype is want:
            return v
        return Value.whole(g.cast(self.dense(v), want), v.dtype, v.shape)


def _as_f32(constant: Tensor) -> Tensor:
    assert constant.buffer is not None
    data = constant.buffer.data
    array = np.ascontiguousarray(from_storage(data, constant.dtype), np.float32)
    return constant_leaf(array, DTYPES["f32"], f"{constant.name}.f32")


def _window(v: Value, ne: Sequence[Size]) -> Tensor:
    """A contiguous part of a tensor."""
    if v.is_whole:
        return reshaped_to(v.tensor, ne)
    return g.view(v.tensor, ne, (), v.offset * v.tensor.dtype.bytes)


def reshaped_to(t: Tensor, ne: Sequence[Size]) -> Tensor:
    """A contiguous tensor with other sizes; itself where it has them."""
    sizes = (*ne, *[1] * (4 - len(ne)))
    return t if t.ne == sizes else g.reshape(t, *sizes)


def _strided(t: Tensor, ne: Sequence[Size], steps: Sequence[Size], offset: Size) -> Tensor:
    """A view with strides in elements, innermost first; the tensor itself where it is all of it."""
    shape, strides = tuple(reversed(ne)), tuple(reversed(steps))
    if offset == 0 and is_contiguous(shape, strides) and _product(ne) == t.n_elements:
        return reshaped_to(t, ne)
    size = t.dtype.bytes
    full = contiguous(shape)[::-1]
    # strides of dimensions of one element do not count; kernels like them as if there were no gap
    nb = [size * (s if n != 1 else f) for n, s, f in zip(ne, steps, full, strict=True)]
    while len(nb) < 4:
        nb.append(nb[-1] * ne[len(nb) - 1] if nb else size)
        ne = [*ne, 1]
    return g.view(t, ne, nb, offset * size)


def _product(sizes: Sequence[Size]) -> Size:
    total: Size = 1
    for n in sizes:
        total = total * n
    return total


def _reads(tensor: Tensor, leaf_: Tensor) -> bool:
    """Whether a tensor is computed from a leaf."""
    seen, stack = set(), [tensor]
    while stack:
        t = stack.pop()
        if t is leaf_ or t.view_src is leaf_:
            return True
        for s in t.src:
            if s is not None and s not in seen:
                seen.add(s)
                stack.append(s)
    return False
