"""The types of OpenCL C in kernels, and what holds them in WGSL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from weft.records import dataclass

KINDS = {
    "float": "f32", "half": "f32", "bool": "bool",
    "char": "i32", "short": "i32", "int": "i32", "narrow_long": "i32", "long": "i64",
    "uchar": "u32", "ushort": "u32", "uint": "u32", "narrow_ulong": "u32", "ulong": "u64",
}  # fmt: skip
"""The type in WGSL that holds a number of a type of C."""
BYTES = {
    "bool": 4, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4,
    "float": 4, "narrow_long": 8, "narrow_ulong": 8, "long": 8, "ulong": 8,
}  # fmt: skip
RANKS = ("int", "uint", "narrow_long", "narrow_ulong", "long", "ulong", "float")
"""The types in which C computes; a result has the later one of both operands."""
LETTERS = {"f32": "f", "i32": "i", "u32": "u", "i64": "l", "u64": "m"}
WIDTHS = (2, 3, 4, 8, 16)
"""The numbers of elements that vectors have."""


class TranslationError(Exception):
    """A kernel file has what this translation does not know."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number, or a vector of `n`. Vectors of 8 and 16 are arrays of vectors of 4 in WGSL."""

    base: str
    n: int = 1

    @property
    def kind(self) -> str:
        """The type that holds an element."""
        return KINDS[self.base]

    @property
    def letter(self) -> str:
        """`kind` in names."""
        return LETTERS[self.kind]

    @property
    def wgsl(self) -> str:
        """The type in WGSL."""
        if self.n == 1:
            return self.kind
        return f"vec{self.n}<{self.kind}>" if self.n <= 4 else f"V{self.n}{self.letter}"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return BYTES[self.base] * (4 if self.n == 3 else self.n)

    @property
    def align(self) -> int:
        """The number that its place in memory is a multiple of."""
        return self.size

    @property
    def is_float(self) -> bool:
        """True for float types."""
        return self.kind == "f32"

    @property
    def is_signed(self) -> bool:
        """True for integers with a sign."""
        return self.kind in ("i32", "i64")

    def of(self, n: int) -> Number:
        """A vector of the same numbers."""
        return Number(self.base, n)


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in the buffer or the memory `at`, as a number of bytes."""

    to: Number
    at: str
    """`b0`, `b1`, ... for buffers; `local` for memory of a group; empty if it is not known yet."""

    wgsl = "i32"
    size = align = 8


@dataclass(frozen=True, slots=True)
class Either:
    """One of two pointers into different buffers."""

    condition: str
    one: Value
    other: Value


@dataclass(frozen=True, slots=True)
class Reference:
    """A pointer to a variable of a function."""

    to: Type

    @property
    def wgsl(self) -> str:
        """The type in WGSL."""
        return f"ptr<function, {wgsl(self.to)}>"


@dataclass(frozen=True, slots=True)
class Array:
    """An array of a known number of elements."""

    of: Type
    n: int

    @property
    def wgsl(self) -> str:
        """The type in WGSL."""
        return f"array<{wgsl(self.of)}, {self.n}>"

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return size_of(self.of) * self.n

    @property
    def align(self) -> int:
        """The number that its place in memory is a multiple of."""
        return align_of(self.of)


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct by the name of its type."""

    name: str
    fields: tuple[tuple[str, Type], ...]

    @property
    def wgsl(self) -> str:
        """The type in WGSL."""
        return self.name

    def field(self, name: str) -> Type:
        """The type of a field."""
        return dict(self.fields)[name]

    @property
    def align(self) -> int:
        """The number that its place in memory is a multiple of."""
        return max(align_of(t) for _, t in self.fields)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        end = max(at + size_of(t) for _, t, at in self.places())
        return -(-end // self.align) * self.align

    def places(self) -> Iterator[tuple[str, Type, int]]:
        """Each field with its type and its offset in bytes."""
        at = 0
        for name, type_ in self.fields:
            align = align_of(type_)
            at = -(-at // align) * align
            yield name, type_, at
            at += size_of(type_)


Type: TypeAlias = Number | Pointer | Either | Reference | Array | Struct | None
"""The type of an expression; None: it has no value."""


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of WGSL with its type."""

    code: str
    type: Type


INT, UINT, FLOAT, BOOL = Number("int"), Number("uint"), Number("float"), Number("bool")
QUAD = Number("uint", 4)
"""A kernel's buffer of these is one of vectors in WGSL, so that one load reads 16 bytes."""


def wgsl(type_: Type) -> str:
    """The name of a type in WGSL."""
    if type_ is None or isinstance(type_, Either):
        raise TranslationError(f"{type_} cannot be named")
    return type_.wgsl


def size_of(type_: Type) -> int:
    """Bytes of a value in memory."""
    if isinstance(type_, Number | Pointer | Array | Struct):
        return type_.size
    raise TranslationError(f"{type_} has no size")


def align_of(type_: Type) -> int:
    """The number that the place of a value in memory is a multiple of."""
    if isinstance(type_, Number | Pointer | Array | Struct):
        return type_.align
    raise TranslationError(f"{type_} has no place")


def number(type_: Type) -> Number:
    """The type as a number. Raises TranslationError for others."""
    if isinstance(type_, Number):
        return type_
    raise TranslationError(f"{type_} is used as a number")


def common(a: Number, b: Number) -> Number:
    """The type in which C computes with both."""
    if a.n > 1 or b.n > 1:
        return a if a.n > 1 else b
    ranks = [RANKS.index(t.base) if t.base in RANKS else 6 * t.is_float for t in (a, b)]
    return Number(RANKS[max(ranks)])


def literal(value: float, kind: str) -> str:
    """A constant of a type of WGSL."""
    if kind == "f32":
        return f"{float(value)!r}f"
    if value < 0:
        # the smallest number has no literal of its own
        return f"(-{literal(-value - 1, kind)} - {literal(1, kind)})"
    return f"{int(value)}{ {'i32': 'i', 'u32': 'u', 'i64': 'li', 'u64': 'lu'}[kind] }"


def real(text: str) -> float:
    """The value of a constant of C with a point or an exponent, decimal or hexadecimal."""
    text = text.rstrip("fF")
    return float.fromhex(text) if text[:2] in ("0x", "0X") else float(text)


def parts(type_: Number) -> int:
    """The number of vectors of 4 in a vector of 8 or 16."""
    return type_.n // 4
