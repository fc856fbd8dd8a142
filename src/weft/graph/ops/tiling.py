"""Joining, repeating, padding, moving and resizing. Sizes are ggml's `ne`, innermost first."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from weft.graph.node import (
    FLOATS,
    can_repeat,
    fail,
    four,
    leaf,
    like,
    make_node,
    member,
    require,
    require_type,
)
from weft.graph.op import declares
from weft.graph.params import Params
from weft.graph.size import Size, is_at_most
from weft.graph.tensor import Tensor
from weft.records import dataclass

Four = tuple[int, int, int, int]


class ScaleMode(IntEnum):
    """The interpolation of UPSCALE."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


@dataclass(frozen=True, slots=True)
class ConcatParams(Params):
    """The dimension (ggml order) along which the sources are joined."""

    dim: int


@dataclass(frozen=True, slots=True)
class PadParams(Params):
    """Elements added before and after each dimension (ggml order); `circular` wraps around."""

    left: tuple[int, int, int, int]
    right: tuple[int, int, int, int]
    circular: bool = False


@dataclass(frozen=True, slots=True)
class PadReflectParams(Params):
    """The numbers of elements reflected before and after dimension 0."""

    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class RollParams(Params):
    """The shift along each dimension, ggml order, in elements."""

    shift: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class UpscaleParams(Params):
    """The interpolation to the sizes of the result."""

    mode: ScaleMode
    align_corners: bool = False
    antialias: bool = False


@declares("CONCAT", params=ConcatParams, cost=0.0)
def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """`a`, then `b` along dimension `dim` (0 is innermost), whose sizes add up.

    Raises GraphError where the types or the other sizes differ. Equals ggml_concat."""
    if not 0 <= dim < 4:
        raise fail("CONCAT", f"dimension {dim} is not in 0..3", a, b)
    require(a.dtype is b.dtype, "CONCAT", "a and b must have one type", a, b)
    fits = all(a.ne[d] == b.ne[d] for d in range(4) if d != dim)
    require(fits, "CONCAT", f"a and b may differ in dimension {dim} only", a, b)
    ne = [*a.ne]
    ne[dim] = a.ne[dim] + b.ne[dim]
    return make_node("CONCAT", a.dtype, ne, a, b, params=ConcatParams(dim))


@declares("REPEAT", cost=0.0)
def repeat(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """`x` tiled to the sizes `ne` (innermost first), each a multiple of its own; the type of `x`.

    A tensor as `ne` stands for its sizes. Raises GraphError where `x` does not tile them. Equals
    ggml_repeat_4d and ggml_repeat."""
    target = _target(x, ne)
    require(can_repeat(x, target), "REPEAT", "x does not tile the target", x, target)
    return make_node("REPEAT", x.dtype, target.ne, x)


@declares("REPEAT_BACK")
def repeat_back(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    """The gradient of `repeat`: the tiles of `x` summed into one of sizes `ne` (innermost first);
    f32.

    A tensor as `ne` stands for its sizes. Raises GraphError where tiles of `ne` do not fill `x`.
    Equals ggml_repeat_back."""
    target = _target(x, ne)
    require_type(x, ("f32",), "REPEAT_BACK", "x")
    require(can_repeat(target, x), "REPEAT_BACK", "the target does not tile x", x, target)
    return make_node("REPEAT_BACK", x.dtype, target.ne, x)


def _target(x: Tensor, ne: Sequence[Size] | Tensor) -> Tensor:
    return ne if isinstance(ne, Tensor) else leaf(x.dtype, ne, "target")


@declares("ROLL", params=RollParams, cost=0.0)
def roll(x: Tensor, shift: Sequence[int]) -> Tensor:
    """Elements moved by shift[d] places along dimension d, circularly; f32, the sizes of `x`.

    Raises GraphError where |shift[d]| is not below ne[d], and where a row has gaps. Equals
    ggml_roll."""
    shifts = _four_ints(shift, "ROLL", x)
    require_type(x, ("f32",), "ROLL", "x")
    require(x.is_contiguous_rows, "ROLL", "rows of x must be contiguous; use cont()", x)
    for n, s in zip(x.ne, shifts, strict=True):
        # |s| < n, written without abs(), which a sibling module shadows
        if not (is_at_most(s + 1, n) and is_at_most(1 - s, n)):
            raise fail("ROLL", f"shifts {shifts} must stay below the sizes", x)
    return like("ROLL", x, params=RollParams(shifts))


@declares("PAD", params=PadParams, cost=0.0)
def pad(x: Tensor, left: Sequence[int], right: Sequence[int], *, circular: bool = False) -> Tensor:
    """`x` with `left[d]` elements before and `right[d]` after it along each dimension d.

    x: f32, f16 or bf16; the new elements are zeros, or with `circular` the elements of the other
    end. Raises GraphError for negative numbers. Equals ggml_pad_ext and ggml_pad_ext_circular."""
    before, after = _four_ints(left, "PAD", x), _four_ints(right, "PAD", x)
    require_type(x, FLOATS, "PAD", "x")
    if min(before + after) < 0:
        raise fail("PAD", f"padding {before}, {after} is negative", x)
    ne = [n + p + q for n, p, q in zip(x.ne, before, after, strict=True)]
    return make_node("PAD", x.dtype, ne, x, params=PadParams(before, after, circular))


@declares("PAD_REFLECT_1D", params=PadReflectParams, cost=0.0)
def pad_reflect_1d(x: Tensor, p0: int, p1: int) -> Tensor:
    """Rows mirrored at their ends, which are not repeated: f32 [n, ...] -> [p0 + n + p1, ...].

    Raises GraphError where p0 or p1 is not in 0..n-1, and where `x` has gaps. Equals
    ggml_pad_reflect_1d."""
    op = "PAD_REFLECT_1D"
    require_type(x, ("f32",), op, "x")
    require(x.is_contiguous, op, "x must be contiguous", x)
    if p0 < 0 or p1 < 0 or not is_at_most(max(p0, p1) + 1, x.ne[0]):
        raise fail(op, f"padding {p0}, {p1} must be from 0 to below the row length", x)
    ne = (x.ne[0] + p0 + p1, *x.ne[1:])
    return make_node(op, x.dtype, ne, x, params=PadReflectParams(p0, p1))


@declares("UPSCALE", params=UpscaleParams)
def upscale(
    x: Tensor,
    ne: Sequence[Size],
    mode: ScaleMode | str = ScaleMode.NEAREST,
    *,
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """`x` interpolated to the sizes `ne` (innermost first), larger or smaller; f32.

    Raises GraphError for a size that may be 0, and for `antialias` in a mode other than bilinear.
    Equals ggml_interpolate."""
    kind = member(ScaleMode, mode, "UPSCALE")
    require_type(x, ("f32",), "UPSCALE", "x")
    if antialias and kind is not ScaleMode.BILINEAR:
        raise fail("UPSCALE", f"antialias is defined for bilinear, not {kind.name.lower()}", x)
    sizes = four(ne)
    if not all(is_at_most(1, n) for n in sizes):
        raise fail("UPSCALE", f"target sizes {list(sizes)} must be 1 or more", x)
    return make_node(
        "UPSCALE", x.dtype, sizes, x, params=UpscaleParams(kind, align_corners, antialias)
    )


def _four_ints(values: Sequence[int], op: str, x: Tensor) -> Four:
    if len(values) > 4:
        raise fail(op, f"at most 4 dimensions, got {list(values)}", x)
    v = [*values, *[0] * (4 - len(values))]
    return (v[0], v[1], v[2], v[3])
