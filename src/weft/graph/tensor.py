"""`Tensor`: what a value is (type, sizes, strides) and how it is made (op, sources). No data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

from weft.dtype import DType
from weft.graph.op import NONE, Op
from weft.graph.params import Params
from weft.graph.size import Size, upper
from weft.records import dataclass

Ne = tuple[Size, Size, Size, Size]
"""Sizes or byte strides, innermost first, four of them."""

Usage = Literal["weights", "compute", "any"]


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that a leaf lives in before a graph is planned.

    `type` is the buffer type (see `weft.backends.memory.BufferType`); None means plain host memory
    that the planner may place with the last device. `data` is the memory itself: a NumPy array for
    host memory (raw bytes or the element type), else the device's memory object; None in planning
    tests. `offset` is the byte offset of the tensor in it."""

    usage: Usage
    type: Any = None
    data: Any = None
    offset: int = 0


class Operators(Protocol):
    """The functions behind `+ - * / @` and `.T` of tensors.

    They consist of ops, which consist of tensors; so `weft.graph` installs them in `Tensor` once
    both exist."""

    def apply(self, op: str, a: Any, b: Any) -> Tensor:
        """`a op b`, where `op` is the name of a `BinaryOp`."""

    def matmul(self, a: Any, b: Any) -> Tensor:
        """`a @ b`."""

    def transpose(self, a: Tensor) -> Tensor:
        """`a.T`."""


@lru_cache(maxsize=1 << 12)  # layers have the same sizes
def _nbytes(block: int, bytes: int, tail: int, ne: Ne, nb: Ne) -> Size:
    if any(isinstance(n, int) and n <= 0 for n in ne):
        return 0
    if block == 1:
        total: Size = bytes
        steps = zip(ne, nb, strict=True)
    else:
        total = ne[0] * nb[0] // block + tail
        steps = zip(ne[1:], nb[1:], strict=True)
    for n, b in steps:
        if n != 1:
            total = total + (n - 1) * b
    return total


class Tensor:
    """A node (a tensor with an op) or a leaf (a tensor without). Tensors compare by identity.

    The constructors of `weft.graph` make nodes; nothing else should. `ne` are sizes and `nb` byte
    strides, innermost first; for block types nb[0] is the bytes of one block. `view_src` is the
    base tensor whose memory this one shares (never itself a view), `view_offs` the byte offset in
    it. `rank` is the number of dimensions that `shape` has at least, for leading ones that were
    given; -1: not known. It changes nothing that is computed."""

    __slots__ = (
        "buffer",
        "dtype",
        "flags",
        "name",
        "nb",
        "ne",
        "op",
        "params",
        "rank",
        "src",
        "view_offs",
        "view_src",
    )

    _operators: ClassVar[Operators]

    def __init__(
        self,
        dtype: DType,
        ne: Ne,
        *,
        nb: Ne | None = None,
        name: str = "",
        op: Op = NONE,
        params: Params | None = None,
        src: tuple[Tensor | None, ...] = (),
        view_src: Tensor | None = None,
        view_offs: Size = 0,
        flags: frozenset[str] = frozenset(),
        buffer: Buffer | None = None,
        rank: int = -1,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.ne = ne
        self.nb = contiguous_nb(dtype, ne) if nb is None else nb
        self.op = op
        self.params = params
        self.src = src
        self.view_src = view_src
        self.view_offs = view_offs
        self.flags = flags
        self.buffer = buffer
        self.rank = rank

    @property
    def shape(self) -> tuple[Size, ...]:
        """Sizes in PyTorch order (outermost first), with the leading ones that were given."""
        return tuple(reversed(self.ne[: n_shown(self.ne, self.rank)]))

    @property
    def n_dims(self) -> int:
        """The number of dimensions without trailing ones (at least 1)."""
        return max((d + 1 for d in range(4) if self.ne[d] != 1), default=1)

    @property
    def n_elements(self) -> Size:
        """The product of the sizes."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def n_rows(self) -> Size:
        """The product of the sizes except the innermost."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> Size:
        """The bytes from the first to the last element, strides included (ggml_nbytes), and the
        tail of types that have one."""
        dtype = self.dtype
        return _nbytes(dtype.block, dtype.bytes, dtype.tail, self.ne, self.nb)

    @property
    def max_bytes(self) -> int:
        """`nbytes` at the declared maxima of its symbols."""
        return upper(self.nbytes)

    @property
    def is_view(self) -> bool:
        """Whether this tensor shares another tensor's memory."""
        return self.view_src is not None

    @property
    def base(self) -> Tensor:
        """The tensor whose memory this one uses: the source of a view, or the tensor itself."""
        return self if self.view_src is None else self.view_src

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in order without gaps (strides of dimensions of size 1 do not
        count, as in ggml)."""
        return contiguous_above(self, 0)

    @property
    def is_contiguous_rows(self) -> bool:
        """Whether the elements of a row lie without gaps; rows may lie anywhere."""
        return self.ne[0] == self.dtype.block or self.nb[0] == self.dtype.bytes

    @property
    def is_transposed(self) -> bool:
        """Whether dimension 0 has the larger stride of the first two (ggml_is_transposed)."""
        return upper(self.nb[1] - self.nb[0]) < 0

    @property
    def is_input(self) -> bool:
        """Whether the user supplies this tensor at run time."""
        return "input" in self.flags

    @property
    def is_output(self) -> bool:
        """Whether the user reads this tensor; its memory is never reused."""
        return "output" in self.flags

    @property
    def is_state(self) -> bool:
        """Whether this is a leaf whose values stay from run to run, see `weft.state`."""
        return "state" in self.flags

    @property
    def T(self) -> Tensor:
        """A view with the last two sizes exchanged: shape (..., n, k) becomes (..., k, n)."""
        return self._operators.transpose(self)

    # Operators broadcast as PyTorch's do, see `weft.graph.operators`.

    __array_ufunc__ = None  # so that NumPy leaves `array + tensor` to `Tensor.__radd__`

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._operators.apply("ADD", self, other)

    def __radd__(self, other: float) -> Tensor:
        return self._operators.apply("ADD", self, other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._operators.apply("SUB", self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self._operators.apply("SUB", other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._operators.apply("MUL", self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self._operators.apply("MUL", self, other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._operators.apply("DIV", self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._operators.apply("DIV", other, self)

    def __neg__(self) -> Tensor:
        return self._operators.apply("MUL", self, -1)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self._operators.matmul(self, other)

    def __rmatmul__(self, other: object) -> Tensor:
        return self._operators.matmul(other, self)

    def named(self, name: str) -> Tensor:
        """Sets the name; returns the tensor, so that a build reads as one expression."""
        self.name = name
        return self

    def as_output(self, name: str | None = None) -> Tensor:
        """Marks the tensor as an output that stays readable after a run; returns it."""
        self.flags = self.flags | {"output"}
        if name is not None:
            self.name = name
        return self

    def __repr__(self) -> str:
        name = self.name or "?"
        sizes = ", ".join(map(str, self.shape))
        return f"<Tensor {name}: {self.dtype.name} ({sizes}) {self.op.name}>"


def n_shown(ne: Sequence[Size], rank: int) -> int:
    """The number of dimensions of a shape: those without leading ones, and at least `rank`, or 1
    where that is not known."""
    least = 1 if rank < 0 else rank
    return max((d + 1 for d in range(least, 4) if ne[d] != 1), default=least)


def install_operators(operators: Operators) -> None:
    """Makes `operators` the functions behind the operators of all tensors."""
    Tensor._operators = operators


def contiguous_nb(dtype: DType, ne: Ne) -> Ne:
    """Byte strides of a tensor without gaps."""
    nb0: Size = dtype.bytes
    nb1 = nb0 * (ne[0] // dtype.block)
    nb2 = nb1 * ne[1]
    return (nb0, nb1, nb2, nb2 * ne[2])


def contiguous_above(t: Tensor, n: int) -> bool:
    """Whether `t` has no gaps except behind dimensions 0..n-1 (ggml_is_contiguous_n)."""
    if t.ne[0] != t.dtype.block and t.nb[0] != t.dtype.bytes:
        return False
    expected: Size = t.dtype.bytes * (t.ne[0] // t.dtype.block)
    for d in range(1, 4):
        if t.ne[d] == 1:
            continue
        if d > n and t.nb[d] != expected:
            return False
        expected = t.nb[d] * t.ne[d]
    return True


def shape_text(t: Tensor) -> str:
    """`[ne0, ne1, ...]`, innermost first, as listings, plan files and ggml write it."""
    return "[" + ", ".join(str(n) for n in t.ne[: t.n_dims]) + "]"
