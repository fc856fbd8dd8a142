"""The one place where nodes come into being, and the checks that every constructor shares."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.dtype import DType, find_dtype
from weft.errors import GraphError
from weft.graph.op import Op, find_op
from weft.graph.params import Params
from weft.graph.size import Expr, Size, Sym, exact_div, lower, upper
from weft.graph.tensor import Buffer, Ne, Tensor

E = TypeVar("E", bound=IntEnum)

FLOATS = ("f32", "f16", "bf16")
"""Element types that the float ops compute with."""

INTEGERS = ("i8", "i16", "i32", "i64")
NUMBERS = (*FLOATS, *INTEGERS)
"""Element types that the ops on plain tensors take."""


def make_node(
    op: str | Op,
    dtype: DType,
    ne: Sequence[Size],
    *src: Tensor | None,
    params: Params | None = None,
    nb: Sequence[Size] | None = None,
    view_of: Tensor | None = None,
    view_offs: Size = 0,
    name: str = "",
    rank: int | None = None,
) -> Tensor:
    """A new node. `view_of` makes it share the memory of the base of `view_of`, with offsets added
    up.

    Only constructors call this, after they have checked shapes and types. This checks the row of
    the op table: the number of sources and the parameter record. Absent sources at the end are
    dropped. Raises GraphError where a check fails.

    Its shape has at least `rank` dimensions; None: as many as sizes are given, or where these are
    four, as many as the source that has most."""
    row = find_op(op) if isinstance(op, str) else op
    while src and src[-1] is None:
        src = src[:-1]
    present = sum(s is not None for s in src)
    if not row.min_src <= present <= len(src) <= row.max_src:
        raise GraphError(f"{row} takes {row.min_src}..{row.max_src} sources, got {present}")
    if not row.takes(params):
        raise GraphError(f"{row} takes parameters {row.params}, got {type(params).__name__}")
    base, offset = view_of, view_offs
    if base is not None and base.view_src is not None:
        offset = offset + base.view_offs
        base = base.view_src
    if rank is None:
        known = [s.rank for s in src if s is not None]
        rank = len(ne) if len(ne) < 4 else max(known, default=-1)
    return Tensor(
        dtype,
        four(ne),
        nb=None if nb is None else four(nb),
        name=name,
        op=row,
        params=params,
        src=src,
        view_src=base,
        view_offs=as_size(offset),
        rank=rank,
    )


def four(sizes: Sequence[Size]) -> Ne:
    """Sizes padded with ones to four; raises GraphError for more than four, or one that may be
    negative."""
    if len(sizes) > 4:
        raise GraphError(f"a tensor has at most 4 dimensions, got {list(sizes)}")
    s = [as_size(n) for n in sizes] + [1] * (4 - len(sizes))
    return (s[0], s[1], s[2], s[3])


def as_size(value: Size) -> Size:
    """`value` as a plain int or an expression; raises GraphError when it may be negative."""
    if isinstance(value, Expr):
        if lower(value) < 0:
            raise GraphError(f"a size cannot be negative: {value!r} may reach {lower(value)}")
        return value
    try:
        n = index(value)
    except TypeError as error:
        raise GraphError(f"a size must be an integer or an expression, got {value!r}") from error
    if n < 0:
        raise GraphError(f"a size cannot be negative: {n}")
    return n


def leaf(
    dtype: DType | str,
    ne: Sequence[Size],
    name: str = "",
    flags: frozenset[str] = frozenset(),
    buffer: Buffer | None = None,
    rank: int = -1,
) -> Tensor:
    """A tensor without an op; sizes `ne` innermost first, unlike `input`, `constant` and `state`.

    Raises GraphError where a row is not whole blocks."""
    dt = find_dtype(dtype)
    sizes = four(ne)
    if not multiple(sizes[0], dt.block):
        raise GraphError(
            f"leaf {name!r}: a row of {sizes[0]} elements is not provably a multiple of the "
            f"{dt.block}-element blocks of {dt.name}; pad the row or choose another type"
        )
    return Tensor(dt, sizes, name=name, flags=flags, buffer=buffer, rank=rank)


def input(name: str, shape: Sequence[Size | Sym], dtype: DType | str = "f32") -> Tensor:
    """A tensor that the caller of `Session.run` supplies under `name`.

    `shape` is in PyTorch order (outermost first); an entry may be a `Sym`. Results keep leading
    ones: an op's result has as many dimensions as its source with the most."""
    if not name:
        raise GraphError("an input needs a name")
    sizes = [s.size if isinstance(s, Sym) else s for s in shape]
    return leaf(dtype, sizes[::-1] or [1], name, frozenset({"input"}), rank=len(sizes))


def constant(data: Any, name: str = "", dtype: DType | str | None = None) -> Tensor:
    """A weight: a NumPy array that lives as long as the tensor and is used in place.

    Without `dtype`, type and shape (outermost first) come from the array; lists of Python floats
    are f32. With a block type (or bf16), `data` is the raw uint8 (uint16) storage, its last axis
    whole rows of blocks. Raises GraphError for storage of another type and rows that are not whole
    blocks."""
    array = np.ascontiguousarray(data)
    if array.dtype == np.float64 and dtype is None and not hasattr(data, "dtype"):
        array = array.astype(np.float32)
    if dtype is None:
        dt = find_dtype(array.dtype.name)
        ne: list[Size] = list(array.shape[::-1])
    else:
        dt = find_dtype(dtype)
        ne = list(array.shape[::-1])
        if array.dtype != dt.storage:
            raise GraphError(
                f"constant {name!r}: {dt.name} is stored as {dt.storage}, got {array.dtype}; "
                "encode it first (weft.quants.encode)"
            )
        if dt.is_quantized and ne:
            row = array.shape[-1]
            if row % dt.bytes:
                raise GraphError(
                    f"constant {name!r}: rows of {row} bytes are not whole {dt.bytes}-byte blocks"
                )
            ne[0] = row // dt.bytes * dt.block
    return leaf(dt, ne or [1], name, buffer=Buffer("weights", data=array), rank=np.ndim(data))


def state(
    name: str, shape: Sequence[int], dtype: DType | str = "f32", init: ArrayLike | None = None
) -> Tensor:
    """Memory that runs write (`cpy`, `set_rows`) and later runs read: a cache, a running sum.

    Each `Session` has its own, wherever its nodes run; `Session.state(name)` reads, writes and
    resets it. It begins with a copy of `init`: an array of `shape`, or a number; by default zeros.

    `shape` is in PyTorch order (outermost first), plain numbers. With a block type (or bf16),
    `init` is the raw uint8 (uint16) storage, its last axis whole rows of blocks. The node that
    writes the state must be an output of the graph: `weft.Graph(y, weft.graph.cpy(new, h))`.

    Raises GraphError for a symbolic size, and for an `init` of another shape or kind of numbers."""
    if not name:
        raise GraphError("a state needs a name")
    sizes = [
        fixed(as_size(n.size if isinstance(n, Sym) else n), "state", f"a size of {name!r}")
        for n in shape
    ]
    tensor = leaf(dtype, sizes[::-1] or [1], name, frozenset({"state"}), rank=len(sizes))
    tensor.buffer = Buffer("any", data=_first_values(tensor, sizes, init))
    return tensor


def _first_values(tensor: Tensor, shape: list[int], init: ArrayLike | None) -> NDArray[Any]:
    """A new array of a state's storage."""
    dt, what = tensor.dtype, f"state {tensor.name!r}"
    if shape:
        shape = [*shape[:-1], shape[-1] // dt.block * dt.bytes // dt.storage.itemsize]
    if init is None:
        return np.zeros(shape, dt.storage)
    values = np.asarray(init)
    if (dt.is_quantized or dt.name == "bf16") and values.dtype != dt.storage:
        raise GraphError(
            f"{what}: {dt.name} is stored as {dt.storage}, got {values.dtype}; "
            "encode it first (weft.quants.encode)"
        )
    if not np.can_cast(values.dtype, dt.storage, "same_kind") or not _in_range(values, dt):
        raise GraphError(
            f"{what}: {dt.name} cannot hold init, which is {values.dtype}; convert it first, or "
            "choose another dtype"
        )
    try:
        return np.broadcast_to(values, shape).astype(dt.storage)
    except ValueError:
        raise GraphError(f"{what}: init has shape {values.shape}, wants {tuple(shape)}") from None


def _in_range(values: NDArray[Any], dt: DType) -> bool:
    if values.size == 0 or values.dtype.kind not in "iu" or dt.storage.kind not in "iu":
        return True
    limits = np.iinfo(dt.storage.name)
    return limits.min <= int(values.min()) and int(values.max()) <= limits.max


def describe(t: Tensor) -> str:
    """`name f32 (2, 4)`, a tensor in a message, with sizes in PyTorch's order."""
    sizes = ", ".join(map(str, t.shape))
    return f"{t.name or t.op.name.lower()} {t.dtype.name} ({sizes})"


def batch_of(node: Tensor) -> int:
    """The number of columns or rows of a node at most, as the reference's devices count it to
    decide whether sending a weight is worth it; 0 for a look-up of rows."""
    name = node.op.name
    if name == "GET_ROWS":
        return 0
    if name == "MUL_MAT":
        return upper(node.ne[1])
    if name in ("MUL_MAT_ID", "ROPE", "ROPE_BACK"):
        return upper(node.ne[2])
    return upper(node.n_rows)


def fail(op: str, why: str, *tensors: Tensor) -> GraphError:
    """A GraphError that names the op, the rule and every tensor with type and shape."""
    return GraphError(f"{op}: {why} ({', '.join(describe(t) for t in tensors)})")


def require(ok: bool, op: str, why: str, *tensors: Tensor) -> None:
    """Raises the error of `fail` unless `ok`."""
    if not ok:
        raise fail(op, why, *tensors)


def can_repeat(small: Tensor, big: Tensor) -> bool:
    """Whether `small` tiles `big` exactly in every dimension (ggml's broadcasting)."""
    return all(
        (n == m) or n == 1 or (n != 0 and m % n == 0) for n, m in zip(small.ne, big.ne, strict=True)
    )


def same_ne(a: Tensor, b: Tensor) -> bool:
    """Whether the sizes are the same, dimension by dimension."""
    return a.ne == b.ne


def multiple(n: Size, d: Size) -> bool:
    """Whether `n` provably is a multiple of `d`."""
    return n == d or exact_div(n, d) is not None


def require_type(t: Tensor, types: Sequence[str], op: str, role: str) -> None:
    """Raises a GraphError that lists `types` unless `t` has one of them."""
    require(t.dtype.name in types, op, f"{role} must be {' or '.join(types)}", t)


def fixed(size: Size, op: str, what: str) -> int:
    """`size` as an int; raises GraphError when it is symbolic."""
    if isinstance(size, Expr):
        raise GraphError(f"{op}: {what} must be a number, got the symbolic size {size!r}")
    return int(size)


def member(kind: type[E], value: E | str | int, op: str) -> E:
    """The member of an enumeration by name (in any case) or number; an unknown one raises a
    GraphError that lists them."""
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        names = ", ".join(m.name.lower() for m in kind)
        raise GraphError(f"{op}: unknown {kind.__name__} {value!r}; known: {names}") from None


def f32(value: float) -> float:
    """`value` rounded to the float32 that ggml stores for it."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def like(
    op: str, a: Tensor, *more: Tensor | None, params: Params | None = None, inplace: bool = False
) -> Tensor:
    """A node with the type and sizes of its first source; `inplace` makes it a view of that
    source."""
    if inplace:
        return make_node(op, a.dtype, a.ne, a, *more, params=params, nb=a.nb, view_of=a)
    return make_node(op, a.dtype, a.ne, a, *more, params=params)


def broadcast_ne(op: str, *tensors: Tensor) -> tuple[Size, ...]:
    """The sizes that the sources broadcast to; raises GraphError naming them when they do not."""
    sizes: list[Size] = []
    for d in range(4):
        size: Size = 1
        for t in tensors:
            n = t.ne[d]
            require(
                n == 1 or size == 1 or n == size, op, f"sizes differ in dimension {d}", *tensors
            )
            size = n if size == 1 else size
        sizes.append(size)
    return tuple(sizes)


def check_axis(op: str, axis: int, x: Tensor) -> int:
    """`axis`; raises GraphError when it is not 0..3."""
    if not 0 <= axis < 4:
        raise fail(op, f"an axis is 0..3, innermost first, got {axis}", x)
    return axis
