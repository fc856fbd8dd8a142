"""Sizes that may be symbolic: integers, or expressions over named symbols with declared bounds.

A `Size` is an `int` or an `Expr`. An `Expr` is a polynomial with integer coefficients over atoms;
an atom is a `Sym` or a floor division / modulo / minimum / maximum that does not simplify.
Expressions are canonical, so equal sizes compare equal. Planning uses `upper(size)`; execution uses
`evaluate(size, values)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.errors import GraphError

__all__ = [
    "Compound",
    "Expr",
    "Size",
    "Sym",
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

    @property
    def size(self) -> Expr:
        """This symbol as a size expression."""
        return Expr({(self,): 1})


@dataclass(frozen=True, slots=True)
class Compound:
    """An operation that stays symbolic: `kind` is `div` (floor), `mod`, `min` or `max`."""

    kind: str
    left: Expr
    right: Expr


Atom: TypeAlias = Sym | Compound
Size: TypeAlias = "int | Expr"


def _key(atom: Atom) -> str:
    return atom.name if isinstance(atom, Sym) else f"{atom.kind}({atom.left!r},{atom.right!r})"


class Expr:
    """A canonical polynomial over atoms; immutable and hashable."""

    __slots__ = ("_hash", "terms")

    terms: dict[tuple[Atom, ...], int]
    """Product of atoms (sorted; the empty product is the constant) -> coefficient, never 0."""

    def __init__(self, terms: Mapping[tuple[Atom, ...], int]) -> None:
        self.terms = {mono: c for mono, c in terms.items() if c}
        self._hash: int | None = None

    @staticmethod
    def of(value: Size) -> Expr:
        """An expression of `value`, constants included."""
        return value if isinstance(value, Expr) else Expr({(): int(value)})

    @staticmethod
    def reduce(expr: Expr) -> Size:
        """`expr` as an int when it is constant."""
        if not expr.terms:
            return 0
        if len(expr.terms) == 1 and () in expr.terms:
            return expr.terms[()]
        return expr

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return Expr.reduce(self) == other if not isinstance(Expr.reduce(self), Expr) else False
        return isinstance(other, Expr) and self.terms == other.terms

    def __hash__(self) -> int:
        # on demand: most expressions are steps on the way to another
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for mono, c in Expr.of(other).terms.items():
            terms[mono] = terms.get(mono, 0) + c
        return Expr.reduce(Expr(terms))

    __radd__ = __add__

    def __neg__(self) -> Size:
        return Expr.reduce(Expr({mono: -c for mono, c in self.terms.items()}))

    def __sub__(self, other: Size) -> Size:
        return self + (-other)

    def __rsub__(self, other: Size) -> Size:
        return (-self) + other

    def __mul__(self, other: Size) -> Size:
        terms: dict[tuple[Atom, ...], int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in Expr.of(other).terms.items():
                mono = tuple(sorted(m1 + m2, key=_key))
                terms[mono] = terms.get(mono, 0) + c1 * c2
        return Expr.reduce(Expr(terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        quotient, rest = _divide(self, Expr.of(other))
        if is_at_most(0, rest) and is_at_most(rest + 1, other):
            return quotient
        flat = _flattened(rest, other)
        return quotient + (_compound("div", rest, other) if flat is None else flat)

    def __rfloordiv__(self, other: Size) -> Size:
        return Expr.of(other) // self

    def __mod__(self, other: Size) -> Size:
        _, rest = _divide(self, Expr.of(other))
        if is_at_most(0, rest) and is_at_most(rest + 1, other):
            return rest
        return _compound("mod", rest, other)

    def __rmod__(self, other: Size) -> Size:
        return Expr.of(other) % self

    def __repr__(self) -> str:
        parts = []
        # longest products first, the constant last
        for mono, c in sorted(
            self.terms.items(), key=lambda kv: (-len(kv[0]), [_key(a) for a in kv[0]])
        ):
            names = "*".join(_key(a) for a in mono)
            parts.append(str(c) if not mono else names if c == 1 else f"{c}*{names}")
        return "+".join(parts).replace("+-", "-") or "0"


def _compound(kind: str, left: Size, right: Size) -> Size:
    return Expr({(Compound(kind, Expr.of(left), Expr.of(right)),): 1})


def _flattened(num: Size, den: Size) -> Size | None:
    """`num / den` rounded down with a division in `num` made part of it, as PyTorch writes sizes
    behind several strides: ((a / e) + r) / d is (a + e r) / (d e). None where there is none."""
    if isinstance(num, int) or not isinstance(den, int) or den <= 0:
        return None
    for mono, c in num.terms.items():
        atom = mono[0] if len(mono) == 1 and c == 1 else None
        if isinstance(atom, Compound) and atom.kind == "div":
            inner = lower(atom.right)
            if inner == upper(atom.right) and inner > 0:
                others = num - Expr({mono: 1})
                return (atom.left + inner * others) // (den * inner)
    return None


def _divide(num: Expr, den: Expr) -> tuple[Size, Size]:
    """(q, r) with num = q*den + r; q takes every term of `num` that `den` divides.

    A `den` of several terms divides all of `num` or nothing. GraphError when `den` is 0."""
    if not den.terms:
        raise GraphError(f"a size divides by zero: {num!r}")
    if len(den.terms) != 1:
        exact = _divide_exactly(num, den)
        return (0, Expr.reduce(num)) if exact is None else (exact, 0)
    ((dmono, dc),) = den.terms.items()
    quotient: dict[tuple[Atom, ...], int] = {}
    rest: dict[tuple[Atom, ...], int] = {}
    for mono, c in num.terms.items():
        left = list(mono)
        divides = True
        for atom in dmono:
            if atom in left:
                left.remove(atom)
            else:
                divides = False
        # c = dc*(c // dc) + c % dc: the constant 7*n + 9 over 4 is n + 2 and 3*n + 1 over 4
        if divides and c // dc:
            quotient[tuple(left)] = c // dc
        over = c % dc if divides else c
        if over:
            rest[mono] = over
    return Expr.reduce(Expr(quotient)), Expr.reduce(Expr(rest))


def _divide_exactly(num: Expr, den: Expr) -> Size | None:
    """`num / den` by long division on the leading terms (longest product, then names), or None."""

    def lead(expr: Expr) -> tuple[Atom, ...]:
        return max(expr.terms, key=lambda mono: (len(mono), [_key(atom) for atom in mono]))

    top = lead(den)
    quotient: Size = 0
    rest = num
    while rest.terms:
        mono = lead(rest)
        left = list(mono)
        for atom in top:
            if atom not in left:
                return None
            left.remove(atom)
        if rest.terms[mono] % den.terms[top]:
            return None
        part = Expr.reduce(Expr({tuple(left): rest.terms[mono] // den.terms[top]}))
        quotient = quotient + part
        rest = Expr.of(rest - part * den)
    return quotient


def size_min(a: Size, b: Size) -> Size:
    """The smaller of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if upper(a) <= lower(b):
        return a
    return b if upper(b) <= lower(a) else _compound("min", a, b)


def size_max(a: Size, b: Size) -> Size:
    """The larger of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if lower(a) >= upper(b):
        return a
    return b if lower(b) >= upper(a) else _compound("max", a, b)


def ceil_div(a: Size, b: Size) -> Size:
    """`a / b` rounded up."""
    return (a + b - 1) // b


def exact_div(a: Size, b: Size) -> Size | None:
    """`a / b` when the division provably leaves nothing over, else None (also for b = 0)."""
    if b == 0 or a % b != 0:
        return None
    return a // b


def is_at_most(a: Size, b: Size) -> bool:
    """Whether `a <= b` provably holds for every value of the symbols."""
    return lower(b - a) >= 0


def _apply(kind: str, a: int, b: int) -> int:
    if kind in ("div", "mod") and b == 0:
        raise GraphError(f"a size divides by zero: {a} {kind} 0")
    if kind == "div":
        return a // b
    if kind == "mod":
        return a % b
    return min(a, b) if kind == "min" else max(a, b)


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """`size` with every symbol replaced; raises GraphError naming a symbol without a value."""
    if isinstance(size, int):
        return size
    total = 0
    for mono, c in size.terms.items():
        product = c
        for atom in mono:
            if isinstance(atom, Sym):
                if atom.name not in values:
                    raise GraphError(f"no value for symbol {atom.name} (in {size!r})")
                product *= values[atom.name]
            else:
                product *= _apply(
                    atom.kind, evaluate(atom.left, values), evaluate(atom.right, values)
                )
        total += product
    return total


def _bounds(size: Size) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if not size.terms:
        return 0, 0
    lo = hi = 0
    for mono, c in size.terms.items():
        term = _times(_product_bounds(mono), (c, c))
        lo, hi = lo + term[0], hi + term[1]
    common, rest = _factor(size)
    if common and len(size.terms) > 1:
        # n*n - n is n*(n - 1): factors of every term must not be bounded once a term
        flo, fhi = _times(_product_bounds(common), _bounds(Expr.reduce(rest)))
        lo, hi = max(lo, flo), min(hi, fhi)
    return lo, hi


def _times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    corners = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(corners), max(corners)


def _product_bounds(atoms: tuple[Atom, ...]) -> tuple[int, int]:
    product = (1, 1)
    for atom in atoms:
        bounds = (atom.min, atom.max) if isinstance(atom, Sym) else _compound_bounds(atom)
        product = _times(product, bounds)
    return product


def _factor(size: Expr) -> tuple[tuple[Atom, ...], Expr]:
    """The atoms that every term has, and what is left of the expression without them."""
    monos = list(size.terms)
    common: list[Atom] = []
    for atom in monos[0]:
        if all(mono.count(atom) > common.count(atom) for mono in monos):
            common.append(atom)
    rest: dict[tuple[Atom, ...], int] = {}
    for mono, c in size.terms.items():
        left = list(mono)
        for atom in common:
            left.remove(atom)
        rest[tuple(left)] = c
    return tuple(common), Expr(rest)


def _compound_bounds(atom: Compound) -> tuple[int, int]:
    (llo, lhi), (rlo, rhi) = _bounds(atom.left), _bounds(atom.right)
    if atom.kind == "min":
        return min(llo, rlo), min(lhi, rhi)
    if atom.kind == "max":
        return max(llo, rlo), max(lhi, rhi)
    rlo = max(rlo, 1)
    if atom.kind == "mod":
        return 0, min(rhi - 1, lhi) if llo >= 0 else rhi - 1
    corners = (llo // rlo, llo // rhi, lhi // rlo, lhi // rhi)
    return min(corners), max(corners)


def upper(size: Size) -> int:
    """An upper bound: the size planning uses. Exact for sums of products with positive terms."""
    return _bounds(size)[1]


def lower(size: Size) -> int:
    """A lower bound."""
    return _bounds(size)[0]


def symbols(size: Size) -> set[Sym]:
    """The symbols that `size` depends on."""
    if isinstance(size, int):
        return set()
    found: set[Sym] = set()
    for mono in size.terms:
        for atom in mono:
            if isinstance(atom, Sym):
                found.add(atom)
            else:
                found |= symbols(atom.left) | symbols(atom.right)
    return found
