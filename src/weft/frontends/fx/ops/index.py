"""Indexing, scattering, padding, rows of tables: elements by number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from weft import graph as g
from weft.frontends.fx.builder import Builder, reshaped_to
from weft.frontends.fx.call import Call, fake_of
from weft.frontends.fx.layout import Value, broadcast_strides, product
from weft.frontends.fx.ops.cache import rows_written
from weft.frontends.fx.ops.reduce import lines, three
from weft.frontends.fx.ops.shape import joined, reshaped, sliced
from weft.frontends.fx.registry import visitor
from weft.frontends.fx.sizes import is_static
from weft.graph.size import Size
from weft.graph.tensor import Tensor

aten = torch.ops.aten

_INDICES = (torch.int64, torch.int32)


def indices_of(b: Builder, v: Value) -> Value:
    """Indices as i64 or i32."""
    return v if v.dtype in _INDICES else b.converted(v, torch.int64)


# -- along one dimension ---------------------------------------------------------------------------


@visitor(aten.index_select.default)
def index_select(b: Builder, call: Call) -> Value:
    """Elements of a dimension by number."""
    v = call.value("self")
    t, axis = lines(b, v, call.dim("dim", v.rank))
    ids = b.flat(indices_of(b, call.value("index")))
    return b.result(call, g.index(t, [None] * axis + [ids]))


def along(v: Value, dim: int, b: Builder) -> Tensor:
    """A value as (inside, along, outside) a dimension, in at most four dimensions."""
    return reshaped_to(b.dense(v), three(v, dim))


def _same_outside(call: Call) -> bool:
    """Whether indices are as large as the tensor in all other dimensions."""
    x, i = call.fake("self"), call.fake("index")
    dim = call.dim("dim", x.dim())
    return all(x.shape[d] == i.shape[d] for d in range(x.dim()) if d != dim)


def _gather_rules(call: Call) -> str | None:
    if call.fake("self").dim() > 4 and not _same_outside(call):
        return "indices of another shape in more than four dimensions"
    return None


def _axis(b: Builder, call: Call, names: Sequence[str]) -> tuple[list[Tensor], int]:
    """Tensors with one axis in common, and that axis in weft's order."""
    v = call.value("self")
    dim = call.dim("dim", v.rank)
    tensors = []
    for name in names:
        value = call.value(name)
        value = indices_of(b, value) if name == "index" else value
        tensors.append(along(value, dim, b) if v.rank > 4 else b.view(value))
    return tensors, 1 if v.rank > 4 else max(v.rank, 1) - 1 - dim


@visitor(aten.gather.default, check=_gather_rules)
def gather(b: Builder, call: Call) -> Value:
    """Elements along a dimension, each by its own number."""
    (x, ids), axis = _axis(b, call, ("self", "index"))
    return b.result(call, g.gather(x, ids, axis))


@visitor(aten.scatter.src, aten.scatter_add.default, check=_gather_rules)
def scatter(b: Builder, call: Call) -> Value:
    """A copy with elements along a dimension replaced, or added to."""
    (x, ids, source), axis = _axis(b, call, ("self", "index", "src"))
    mode = "add" if call.op._schema.name == "aten::scatter_add" else "set"
    return b.result(call, g.scatter(x, ids, source, axis, mode))


@visitor(aten.scatter.value, check=_gather_rules)
def scatter_value(b: Builder, call: Call) -> Value:
    """A copy with a number at some places along a dimension."""
    (x, ids), axis = _axis(b, call, ("self", "index"))
    number = b.scalar(call.number("value"), call.out.dtype)
    shape = call.value("index").shape
    source = b.dense(number.viewed(shape, [0] * len(shape)))
    return b.result(call, g.scatter(x, ids, reshaped_to(source, ids.ne), axis))


# -- by several indices ----------------------------------------------------------------------------


def _index_rules(call: Call) -> str | None:
    indices = call.raw("indices", [])
    for i in indices:
        if i is not None and fake_of(i).dtype in (torch.bool, torch.uint8):
            return "an index by a mask: the size of the result depends on data"
    return None


def _put_rules(call: Call) -> str | None:
    indices = call.raw("indices", [])
    masks = [i for i in indices if i is not None and fake_of(i).dtype is torch.bool]
    if not masks:
        return None
    if len(indices) == 1 and not call.raw("accumulate", False):
        if fake_of(masks[0]).dim() <= call.fake("self").dim() and call.fake("values").numel() == 1:
            return None
    return "an index by a mask"


class _Indexed:
    """A tensor viewed in few dimensions.

    Dimensions between two indexed ones are merged, and so are the indexed ones where there are
    many."""

    def __init__(self, b: Builder, v: Value, indices: Sequence[Value | None]) -> None:
        self.builder = b
        by_dim = [*indices, *[None] * (v.rank - len(indices))]
        self.shape = v.shape
        axes = [d for d, i in enumerate(by_dim) if i is not None]
        self.adjacent = axes[-1] - axes[0] == len(axes) - 1
        self.lead = v.shape[: axes[0]]
        self.tail = v.shape[axes[-1] + 1 :]
        converted = [indices_of(b, i) for i in by_dim if i is not None]
        self.index_shape = broadcast_shape([i.shape for i in converted])
        flat = [self._flat(i) for i in converted]
        # where there are too many, neighbouring axes that are indexed become one with a computed
        # number
        merge = _dimensions([i is not None for i in by_dim]) > 4
        self.merged: list[Value | None] = []
        self.sizes: list[Size] = []
        position = iter(flat)
        for d, i in enumerate(by_dim):
            n = v.shape[d]
            if i is None:
                if self.merged and self.merged[-1] is None:
                    self.sizes[-1] = self.sizes[-1] * n
                else:
                    self.merged.append(None)
                    self.sizes.append(n)
            else:
                own = next(position)
                if merge and self.merged and self.merged[-1] is not None:
                    self.merged[-1] = self._combined(self.merged[-1], self.sizes[-1], own, n)
                    self.sizes[-1] = self.sizes[-1] * n
                else:
                    self.merged.append(own)
                    self.sizes.append(n)

    def _flat(self, i: Value) -> Value:
        strides = broadcast_strides(i.shape, i.strides, self.index_shape)
        wide = i.viewed(self.index_shape, strides)
        return Value.whole(self.builder.flat(wide), i.dtype, (product(self.index_shape),))

    def _combined(self, left: Value, n_left: Size, right: Value, n: Size) -> Value:
        """left n + right, both counted from the start."""
        b = self.builder
        left, right = self._positive(left, n_left), self._positive(right, n)
        assert isinstance(n, int)
        dtype = torch.int64
        left, right = b.converted(left, dtype), b.converted(right, dtype)
        x, factor = b.joint(left.shape, left, b.scalar(n, dtype))
        total = g.binary("add", g.binary("mul", x, factor), b.flat(right))
        return Value.whole(total, dtype, left.shape)

    def _positive(self, i: Value, n: Size) -> Value:
        assert isinstance(n, int)
        b = self.builder
        x, size = b.joint(i.shape, i, b.scalar(n, i.dtype))
        _, zero = b.joint(i.shape, i, b.scalar(0, i.dtype))
        positive = g.where(g.binary("lt", x, zero), g.binary("add", x, size), x)
        return Value.whole(positive, i.dtype, i.shape)

    def tensor(self, v: Value) -> Tensor:
        """The indexed tensor in its merged sizes."""
        return reshaped_to(self.builder.dense(v), self.sizes[::-1])

    def numbers(self) -> list[Tensor | None]:
        """Index tensors in weft's order."""
        return [None if i is None else self.builder.flat(i) for i in reversed(self.merged)]


def broadcast_shape(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The shape to which all shapes broadcast."""
    rank = max(len(s) for s in shapes)
    sizes: list[Size] = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape):
            at = rank - len(shape) + d
            sizes[at] = n if sizes[at] == 1 else sizes[at]
    return tuple(sizes)


def _dimensions(indexed: Sequence[bool], *, merged: bool = False) -> int:
    """The number of dimensions when neighbours without (`merged`: or with) an index are merged."""
    pairs = zip([None, *indexed], indexed, strict=False)
    return sum(1 for last, this in pairs if last != this or (this and not merged))


def _index_all_rules(call: Call) -> str | None:
    why = _index_rules(call)
    if why is not None:
        return why
    return _merge_rules(call)


def _merge_rules(call: Call) -> str | None:
    fake = call.fake("self")
    indexed = [i is not None for i in call.raw("indices", [])]
    indexed += [False] * (fake.dim() - len(indexed))
    if _dimensions(indexed) <= 4:
        return None
    if _dimensions(indexed, merged=True) > 4:
        return "indices in more than two groups of dimensions"
    return None if is_static(fake.shape) else "many neighbouring indices of a dynamic shape"


@visitor(aten.index.Tensor, aten._unsafe_index.Tensor, check=_index_all_rules)
def index(b: Builder, call: Call) -> Value:
    """Elements by index tensors that broadcast to each other."""
    indices = [None if i is None else call.as_value(i) for i in call.raw("indices", [])]
    v = call.value("self")
    merged = _Indexed(b, v, indices)
    return b.result(call, g.index(merged.tensor(v), merged.numbers()))


@visitor(aten.take.default)
def take(b: Builder, call: Call) -> Value:
    """Elements by their number in the whole tensor."""
    v = call.value("self")
    flat = reshaped(b, v, (v.n_elements,))
    indexed = _Indexed(b, flat, [call.value("index")])
    return b.result(call, g.index(indexed.tensor(flat), indexed.numbers()))


def _put_all_rules(call: Call) -> str | None:
    return _put_rules(call) or _merge_rules(call)


@visitor(aten.index_put.default, aten._unsafe_index_put.default, check=_put_all_rules)
def index_put(b: Builder, call: Call) -> Value:
    """A copy with some elements replaced, or added to."""
    v = call.value("self")
    indices_arg = call.raw("indices", [])
    values = b.converted(call.value("values"), call.out.dtype)
    if fake_of(indices_arg[0]) is not None and fake_of(indices_arg[0]).dtype is torch.bool:
        return _masked_put(b, call, v, call.as_value(indices_arg[0]), values)
    indices = [None if i is None else call.as_value(i) for i in indices_arg]
    written = rows_written(b, call, v, indices, values)
    if written is not None:
        return written
    indexed = _Indexed(b, v, indices)
    place = _place_shape(v, indices, indexed)
    strides = broadcast_strides(values.shape, values.strides, place)
    wide = values.viewed(place, strides)
    source = reshaped_to(b.dense(wide), _result_sizes(indexed, product(indexed.index_shape)))
    accumulate = bool(call.raw("accumulate", False))
    return b.result(
        call, g.index_put(indexed.tensor(v), indexed.numbers(), source, accumulate=accumulate)
    )


def _result_sizes(indexed: _Indexed, n: Size) -> list[Size]:
    """Sizes of x[indices] in merged dimensions, innermost first."""
    merged = list(zip(indexed.merged, indexed.sizes, strict=True))
    kept = [(k, s) for k, (i, s) in enumerate(merged) if i is None]
    at = [k for k, i in enumerate(indexed.merged) if i is not None]
    # a single place has no dimension of its own
    own = [] if n == 1 else [n]
    if at[-1] - at[0] == len(at) - 1:
        sizes = [s for k, s in kept if k < at[0]] + own + [s for k, s in kept if k > at[0]]
    else:
        sizes = own + [s for _, s in kept]
    return sizes[::-1] or [1]


def _place_shape(v: Value, indices: Sequence[Value | None], indexed: _Indexed) -> tuple[Size, ...]:
    """The shape of x[indices]."""
    by_dim = [*indices, *[None] * (v.rank - len(indices))]
    kept = [(d, n) for d, n in enumerate(v.shape) if by_dim[d] is None]
    first = next(d for d, i in enumerate(by_dim) if i is not None)
    if not indexed.adjacent:
        return (*indexed.index_shape, *(n for _, n in kept))
    return (
        *(n for d, n in kept if d < first),
        *indexed.index_shape,
        *(n for d, n in kept if d > first),
    )


@visitor(aten.masked_scatter.default)
def masked_scatter(b: Builder, call: Call) -> Value:
    """A copy whose masked elements are replaced by the elements of `source`, in order.

    A run in which the mask has more places than `source` has elements fails."""
    shape, source = call.shape(), b.flat(call.value("source"))
    if source.ne[0] == 0:
        return b.result(call, _spread_flat(b, call.value("self"), shape))
    mask = _spread_flat(b, call.value("mask"), shape)
    one = b.scalar(1, torch.int64).tensor
    place = g.binary("SUB", g.cumulate("sum", mask, 0), one)  # -1, the last, is not chosen
    picked = g.gather(source, place, 0)
    return b.result(call, g.where(mask, picked, _spread_flat(b, call.value("self"), shape)))


def _spread_flat(b: Builder, v: Value, shape: Sequence[Size]) -> Tensor:
    """The elements of a value that broadcasts to `shape`, in one dimension."""
    wide = v.viewed(shape, broadcast_strides(v.shape, v.strides, shape))
    return reshaped_to(b.dense(wide), (product(shape),))


def _masked_put(b: Builder, call: Call, v: Value, mask: Value, value: Value) -> Value:
    shape = v.shape
    wide = mask.viewed(
        (*mask.shape, *[1] * (v.rank - mask.rank)), (*mask.strides, *[1] * (v.rank - mask.rank))
    )
    one = value.viewed((), ())
    c, x, y = b.joint(shape, wide, one, v)
    return b.result(call, g.where(c, x, y))


# -- sorted rows -----------------------------------------------------------------------------------


def _searched(b: Builder, call: Call, rows: Value, values: Value) -> Value:
    """The positions of values in sorted rows: one row for all, or one for each row of values."""
    n = rows.shape[-1]
    t = reshaped_to(b.dense(rows), (n, product(rows.shape[:-1])))
    if call.has("sorter"):
        order = reshaped_to(b.dense(call.value("sorter")), t.ne)
        t = g.gather(t, order, 0)
    wide = values.shape[-1] if rows.rank > 1 else values.n_elements
    v = reshaped_to(b.dense(values), (wide, t.ne[1]))
    right = bool(call.raw("right", False)) or call.raw("side") == "right"
    places = Value.whole(g.search_sorted(t, v, right=right), torch.int64, call.shape())
    return b.converted(places, call.out.dtype)


@visitor(aten.searchsorted.Tensor)
def searchsorted(b: Builder, call: Call) -> Value:
    """The position of each value in a sorted sequence."""
    return _searched(b, call, call.value("sorted_sequence"), call.value("self"))


@visitor(aten.bucketize.Tensor)
def bucketize(b: Builder, call: Call) -> Value:
    """The boundaries between which each value lies, by number."""
    return _searched(b, call, call.value("boundaries"), call.value("self"))


@visitor(aten.embedding.default)
def embedding(b: Builder, call: Call) -> Value:
    """Rows of a matrix by number."""
    w, ids = call.value("weight"), b.converted(call.value("indices"), torch.int32)
    table = b.rows(w, stored=True)
    return b.result(call, g.get_rows(table, b.flat(ids)))


def _bag_rules(call: Call) -> str | None:
    if int(call.number("padding_idx", -1)) >= 0:
        return "bags with padding"
    if any(call.is_read(i) for i in range(1, len(call.outs))):
        return "the numbers of bags are read"
    shapes = [call.fake(n).shape for n in ("weight", "indices", "offsets")]
    return None if is_static(shapes) else "bags of dynamic sizes"


@visitor(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, check=_bag_rules)
def embedding_bag(b: Builder, call: Call) -> list[Value | None]:
    """The sum, mean or maximum of rows; the rows of a bag begin at its offset."""
    ids = b.converted(call.value("indices"), torch.int32)
    w = call.value("weight")
    rows = g.get_rows(b.rows(w, stored=True), b.flat(ids))
    n, bags = ids.shape[0], call.shape()[0]
    offsets = b.converted(call.value("offsets"), torch.int64)
    if bags == 0 or n == 0:
        return [b.scalar(0.0, w.dtype).viewed(call.shape(), (0, 0)), None, None, None]
    first = sliced(b, offsets, 0, 0, bags)
    end = b.constant([n], torch.int64)
    behind = joined(b, [sliced(b, offsets, 0, 1, bags - 1), end], 0, torch.int64)
    last = behind if offsets.shape[0] == bags else sliced(b, offsets, 0, 1, bags)
    places = b.flat(b.constant(np.arange(int(n)), torch.int64))  # type: ignore[arg-type]
    starts, ends = (reshaped_to(b.flat(v), (1, bags)) for v in (first, last))
    inside = g.binary("logical_and", g.binary("ge", places, starts), g.binary("lt", places, ends))
    mode = int(call.number("mode", 0))
    shares = g.convert(inside, "f32")
    if call.has("per_sample_weights"):
        shares = g.binary("mul", shares, b.flat(call.value("per_sample_weights")))
    if mode == 2:
        low = b.scalar(float("-inf"), torch.float32).tensor
        mask = reshaped_to(inside, (1, n, bags))
        result = g.reduce("max", g.where(mask, rows, low), [1])
        result = g.where(g.binary("eq", result, low), b.scalar(0.0, torch.float32).tensor, result)
    else:
        result = g.mul_mat(g.cont(g.transpose(rows)), shares)
        if mode == 1:
            # PyTorch divides by the numbers up to the next offset, or to the last of all
            count = g.convert(g.binary("sub", b.flat(behind), b.flat(first)), "f32")
            count = reshaped_to(count, (1, bags))
            result = g.binary("div", result, g.pointwise("clamp", count, 1.0, float("inf")))
    return [b.result(call, result), None, None, None]
