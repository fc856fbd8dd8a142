"""Sizes that may be symbolic: integers, or expressions over named symbols with declared bounds.

A `Size` is an `int` or an `Expr`. An `Expr` is a polynomial with integer coefficients over atoms;
an atom is a `Sym` or a floor division / modulo / minimum / maximum that does not simplify.
Expressions are canonical, so equal sizes compare equal. Planning uses `upper(size)`; execution uses
`evaluate(size, values)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from weft.errors import GraphError
from weft.graph.polynomial import Atom, Compound, Polynomial, atom_key, bounds
from weft.records import dataclass

__all__ = [
    "Expr",
    "Size",
    "Sym",
    "bounds",
    "ceil_div",
    "evaluate",
    "exact_div",
    "is_at_most",
    "lower",
    "size_max",
    "size_min",
    "symbols",
    "upper",
]


@dataclass(frozen=True, slots=True)
class Sym:
    """A named size with inclusive bounds, e.g. `Sym("n_tokens", 1, 512)`."""

    name: str
    min: int
    max: int

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise GraphError(f"symbol name {self.name!r} is not an identifier")
        if not 0 <= self.min <= self.max:
            raise GraphError(
                f"symbol {self.name} has bounds {self.min}..{self.max}; need 0 <= min <= max"
            )

    def __hash__(self) -> int:
        return hash(self.name)  # of text, which keeps it: sizes are looked up very often

    @property
    def size(self) -> Expr:
        """This symbol as a size expression."""
        return Expr({(self,): 1})


Size: TypeAlias = "int | Expr"


class Expr(Polynomial):
    """A polynomial with the operators of integers; `//` and `%` are floor division and its rest."""

    __slots__ = ()

    @staticmethod
    def of(value: int | Polynomial) -> Expr:
        """An expression of `value`, constants included."""
        if isinstance(value, Expr):
            return value
        return Expr(value.terms if isinstance(value, Polynomial) else {(): int(value)})

    @staticmethod
    def reduce(expr: Expr) -> Size:
        """`expr` as an int when it is constant."""
        constant = expr.constant
        return expr if constant is None else constant

    def __add__(self, other: Size) -> Size:
        if isinstance(other, int):  # nearly always
            terms = dict(self.terms)
            terms[()] = terms.get((), 0) + other
            return Expr.reduce(Expr(terms))
        return Expr.reduce(Expr(self.plus(Expr.of(other))))

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Expr.reduce(Expr({mono: -c for mono, c in self.terms.items()}))

    def __sub__(self, other: Size) -> Size:
        return self + (-other)

    def __rsub__(self, other: Size) -> Size:
        return (-self) + other

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            return Expr.reduce(Expr({mono: c * other for mono, c in self.terms.items()}))
        return Expr.reduce(Expr(self.times(Expr.of(other))))

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        quotient, remainder = _divide(self, Expr.of(other))
        if is_at_most(0, remainder) and is_at_most(remainder + 1, other):
            return quotient
        flat = _flattened(remainder, other)
        return quotient + (_compound("div", remainder, other) if flat is None else flat)

    def __rfloordiv__(self, other: Size) -> Size:
        return Expr.of(other) // self

    def __mod__(self, other: Size) -> Size:
        _, remainder = _divide(self, Expr.of(other))
        if is_at_most(0, remainder) and is_at_most(remainder + 1, other):
            return remainder
        return _compound("mod", remainder, other)

    def __rmod__(self, other: Size) -> Size:
        return Expr.of(other) % self


def _compound(kind: str, left: Size, right: Size) -> Size:
    return Expr({(Compound(kind, Expr.of(left), Expr.of(right)),): 1})


def _flattened(num: Size, den: Size) -> Size | None:
    """`num / den` rounded down, with a division inside `num` merged into it.

    ((a / e) + r) / d is (a + e r) / (d e): PyTorch writes sizes behind several strides that way.
    None where `num` has no such division."""
    if isinstance(num, int) or not isinstance(den, int) or den <= 0:
        return None
    for mono, c in num.terms.items():
        atom = mono[0] if len(mono) == 1 and c == 1 else None
        if isinstance(atom, Compound) and atom.kind == "div":
            inner = lower(atom.right)
            if inner == upper(atom.right) and inner > 0:
                others = num - Expr({mono: 1})
                return (Expr.of(atom.left) + inner * others) // (den * inner)
    return None


def _divide(num: Expr, den: Expr) -> tuple[Size, Size]:
    """(q, r) with num = q*den + r; q takes every term of `num` that `den` divides.

    A `den` of several terms divides all of `num` or nothing. Raises GraphError when `den` is 0."""
    if not den.terms:
        raise GraphError(f"a size divides by zero: {num!r}")
    if len(den.terms) != 1:
        exact = _divide_exactly(num, den)
        return (0, Expr.reduce(num)) if exact is None else (exact, 0)
    ((dmono, dc),) = den.terms.items()
    quotient: dict[tuple[Atom, ...], int] = {}
    remainder: dict[tuple[Atom, ...], int] = {}
    for mono, c in num.terms.items():
        factors = list(mono)
        divides = True
        for atom in dmono:
            if atom in factors:
                factors.remove(atom)
            else:
                divides = False
        # c = dc*(c // dc) + c % dc: the constant 7*n + 9 over 4 is n + 2 and 3*n + 1 over 4
        if divides and c // dc:
            quotient[tuple(factors)] = c // dc
        leftover = c % dc if divides else c
        if leftover:
            remainder[mono] = leftover
    return Expr.reduce(Expr(quotient)), Expr.reduce(Expr(remainder))


def _divide_exactly(num: Expr, den: Expr) -> Size | None:
    """`num / den` by long division on the leading terms (longest product, then names), or None."""

    def lead(expr: Expr) -> tuple[Atom, ...]:
        return max(expr.terms, key=lambda mono: (len(mono), [atom_key(atom) for atom in mono]))

    top = lead(den)
    quotient: Size = 0
    remainder = num
    while remainder.terms:
        mono = lead(remainder)
        factors = list(mono)
        for atom in top:
            if atom not in factors:
                return None
            factors.remove(atom)
        if remainder.terms[mono] % den.terms[top]:
            return None
        part = Expr.reduce(Expr({tuple(factors): remainder.terms[mono] // den.terms[top]}))
        quotient = quotient + part
        remainder = Expr.of(remainder - part * den)
    return quotient


def size_min(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if is_at_most(a, b):
        return a
    return b if is_at_most(b, a) else _compound("min", a, b)


def size_max(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if is_at_most(b, a):
        return a
    return b if is_at_most(a, b) else _compound("max", a, b)


def ceil_div(a: Size, b: Size) -> Size:
    """`a / b` rounded up."""
    return (a + b - 1) // b


def exact_div(a: Size, b: Size) -> Size | None:
    """`a / b` where it provably has no remainder, else None (also for b = 0)."""
    if b == 0 or a % b != 0:
        return None
    return a // b


def is_at_most(a: Size, b: Size) -> bool:
    """Whether `a <= b` provably holds for every value of the symbols."""
    if isinstance(a, int) and isinstance(b, int):
        return a <= b
    return lower(b if a == 0 else b - a) >= 0


def _apply(kind: str, a: int, b: int) -> int:
    if kind in ("div", "mod") and b == 0:
        raise GraphError(f"a size divides by zero: {a} {kind} 0")
    if kind == "div":
        return a // b
    if kind == "mod":
        return a % b
    return min(a, b) if kind == "min" else max(a, b)


def evaluate(size: int | Polynomial, values: Mapping[str, int]) -> int:
    """`size` with every symbol replaced; raises GraphError naming a symbol without a value."""
    if isinstance(size, int):
        return size
    total = 0
    for mono, c in size.terms.items():
        product = c
        for atom in mono:
            if isinstance(atom, Compound):
                product *= _apply(
                    atom.kind, evaluate(atom.left, values), evaluate(atom.right, values)
                )
            elif atom.name in values:
                product *= values[atom.name]
            else:
                raise GraphError(f"no value for symbol {atom.name} (in {size!r})")
        total += product
    return total


def upper(size: int | Polynomial) -> int:
    """An upper bound of `size`, which planning uses.

    It is exact for sums of products with positive terms, and where every atom is a symbol that has
    no power."""
    return size if isinstance(size, int) else bounds(size)[1]


def lower(size: int | Polynomial) -> int:
    """A lower bound of `size`."""
    return size if isinstance(size, int) else bounds(size)[0]


def symbols(size: int | Polynomial) -> set[Sym]:
    """The symbols that `size` depends on."""
    if isinstance(size, int):
        return set()
    syms: set[Sym] = set()
    for mono in size.terms:
        for atom in mono:
            if isinstance(atom, Compound):
                syms |= symbols(atom.left) | symbols(atom.right)
            elif isinstance(atom, Sym):
                syms.add(atom)
    return syms
