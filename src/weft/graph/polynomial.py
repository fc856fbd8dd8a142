"""Polynomials with integer coefficients over atoms: symbolic sizes, without division, and bounds of
their values.

An atom is a symbol, or an operation on polynomials that does not simplify (`Compound`). `size.py`
needs the bounds to divide, and `lower`, `upper` and `is_at_most` decide by them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from math import comb, lcm, prod
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.records import dataclass

__all__ = [
    "Atom", "Compound", "Polynomial", "Symbol", "Terms", "as_polynomial", "atom_key", "bounds",
    "compound_bounds",
]  # fmt: skip


class Symbol(Hashable, Protocol):
    """A named integer with inclusive bounds."""

    @property
    def name(self) -> str:
        """The name with which sizes are printed."""

    @property
    def min(self) -> int:
        """The least value."""

    @property
    def max(self) -> int:
        """The largest value."""


@dataclass(frozen=True, slots=True)
class Compound:
    """An operation that stays symbolic: `kind` is `div` (floor), `mod`, `min` or `max`."""

    kind: str
    left: Polynomial
    right: Polynomial


Atom: TypeAlias = Symbol | Compound
Range = tuple[int, int]
Terms: TypeAlias = Mapping[tuple[Atom, ...], int]
"""Product of atoms (sorted; the empty product is the constant) -> coefficient."""


def atom_key(atom: Atom) -> str:
    """The text by which the atoms of a product are sorted."""
    if isinstance(atom, Compound):
        return f"{atom.kind}({atom.left!r},{atom.right!r})"
    return atom.name


class Polynomial:
    """A canonical polynomial over atoms; immutable and hashable.

    Equal polynomials compare equal whatever their class, and a constant one equals its integer."""

    __slots__ = ("_hash", "range", "terms")

    terms: Terms
    """The terms, without coefficients of 0."""

    def __init__(self, terms: Terms) -> None:
        """`terms` is kept where none is 0; nobody may change it."""
        if 0 in terms.values():
            terms = {mono: c for mono, c in terms.items() if c}
        self.terms = terms
        self._hash: int | None = None
        self.range: Range | None = None
        """The bounds of its values, once `bounds` has computed them."""

    @property
    def constant(self) -> int | None:
        """The value of a polynomial without atoms, else None."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    def plus(self, other: Polynomial) -> Terms:
        """The terms of the sum; some may be 0."""
        terms = dict(self.terms)
        for mono, c in other.terms.items():
            terms[mono] = terms.get(mono, 0) + c
        return terms

    def times(self, other: Polynomial) -> Terms:
        """The terms of the product; some may be 0."""
        terms: dict[tuple[Atom, ...], int] = {}
        for m1, c1 in self.terms.items():
            for m2, c2 in other.terms.items():
                mono = tuple(sorted(m1 + m2, key=atom_key))
                terms[mono] = terms.get(mono, 0) + c1 * c2
        return terms

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.constant == other
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        # computed on demand: most polynomials are only steps towards another
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __repr__(self) -> str:
        parts = []
        # longest products first, the constant last
        for mono, c in sorted(
            self.terms.items(), key=lambda kv: (-len(kv[0]), [atom_key(a) for a in kv[0]])
        ):
            names = "*".join(atom_key(a) for a in mono)
            parts.append(str(c) if not mono else names if c == 1 else f"{c}*{names}")
        return "+".join(parts).replace("+-", "-") or "0"


def as_polynomial(value: int | Polynomial) -> Polynomial:
    """`value` as a polynomial; an integer becomes a constant one."""
    return value if isinstance(value, Polynomial) else Polynomial({(): value})


MAX_COEFFICIENTS = 1 << 10
"""Polynomials with more coefficients are not examined; 10 variables of power 1 have as many."""
MAX_CHOICES = 4
"""Maximum number of minima and maxima in an expression whose sides are tried one by one."""


# ---- bounds --------------------------------------------------------------------------------------


def bounds(size: int | Polynomial) -> Range:
    """A lower and an upper bound of `size`, for all values of its symbols."""
    if isinstance(size, int):
        return size, size
    if size.range is None:
        size.range = _bounds_of(size)
    return size.range


def _bounds_of(size: Polynomial) -> Range:
    ranges = {atom: _atom_bounds(atom) for mono in size.terms for atom in mono}
    loose = _term_by_term(size, ranges)
    signs = {c > 0 for mono, c in size.terms.items() if mono}
    if len(signs) <= 1 and all(low >= 0 for low, _ in ranges.values()):
        return loose  # every atom moves the value in the same direction
    return _tight_bounds(size, loose)


def _term_by_term(size: Polynomial, ranges: Mapping[Atom, Range]) -> Range:
    low = high = 0
    for mono, c in size.terms.items():
        term = (c, c)
        for atom in mono:
            term = _times(term, ranges[atom])
        low, high = low + term[0], high + term[1]
    return low, high


@lru_cache(maxsize=1 << 12)
def _tight_bounds(size: Polynomial, loose: Range) -> Range:
    """Bounds of the whole expression, within the bounds of its terms.

    Three methods, each sound alone, are intersected: the range of the polynomial over its atoms,
    the same without divisions, and both sides of a minimum or maximum."""
    candidates = [loose, _polynomial_bounds(size, 1)]
    if any(_is_by_constant(atom) for mono in size.terms for atom in mono):
        candidates.append(_polynomial_bounds(*_without_divisions(size)))
    if 0 < _n_choices(size) <= MAX_CHOICES:
        candidates.append(_bounds_by_choice(size))
    ranges = [r for r in candidates if r is not None]
    return max(low for low, _ in ranges), min(high for _, high in ranges)


def _polynomial_bounds(size: Polynomial, divisor: int) -> Range | None:
    """Bounds of `size` / `divisor` (above 0), an integer, over the box of its atoms, by its
    coefficients in Bernstein's basis. None: there are more than `MAX_COEFFICIENTS`.

    On a box, a polynomial is a weighted mean of these coefficients, with weights of 0 or more that
    add up to 1. So it lies between the smallest and the largest of them. Where every variable
    occurs to the first power only, the coefficients are the values at the corners, and the bounds
    are exact. A product of polynomials without negative coefficients has none either, expanded or
    not."""
    if not size.terms:
        return 0, 0
    ranges = {atom: _atom_bounds(atom) for mono in size.terms for atom in mono}
    degrees = [max(mono.count(v) for mono in size.terms) for v in ranges]
    if prod(d + 1 for d in degrees) > MAX_COEFFICIENTS:
        return None
    table = np.zeros([d + 1 for d in degrees], object)
    for mono, c in size.terms.items():
        table[tuple(mono.count(v) for v in ranges)] += c
    for axis, (v, degree) in enumerate(zip(ranges, degrees, strict=True)):
        table = np.moveaxis(
            np.tensordot(_to_bernstein(degree, *ranges[v]), table, (1, axis)), 0, axis
        )
        divisor *= _unit(degree)
    return -(-table.min() // divisor), table.max() // divisor


def _unit(degree: int) -> int:
    """The factor that makes all coefficients of a power integers."""
    return lcm(*(comb(degree, i) for i in range(degree + 1)))


@lru_cache(maxsize=1 << 10)
def _to_bernstein(degree: int, low: int, high: int) -> NDArray[Any]:
    """The matrix from coefficients of powers of x to coefficients of Bernstein's basis on
    low..high, times `_unit`."""
    powers = range(degree + 1)
    # x = low + (high - low) t
    shift = [
        [comb(i, j) * low ** max(i - j, 0) * (high - low) ** j for i in powers] for j in powers
    ]
    unit = _unit(degree)
    basis = [[comb(j, i) * (unit // comb(degree, i)) for i in powers] for j in powers]
    matrix: NDArray[Any] = np.array(basis, object) @ np.array(shift, object)
    return matrix


def _times(a: Range, b: Range) -> Range:
    corners = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(corners), max(corners)


def _atom_bounds(atom: Atom) -> Range:
    if not isinstance(atom, Compound):
        return atom.min, atom.max
    return compound_bounds(atom.kind, bounds(atom.left), bounds(atom.right))


def compound_bounds(kind: str, left: Range, right: Range) -> Range:
    """The bounds of a compound of that kind, by the bounds of its two sides."""
    (llo, lhi), (rlo, rhi) = left, right
    if kind == "min":
        return min(llo, rlo), min(lhi, rhi)
    if kind == "max":
        return max(llo, rlo), max(lhi, rhi)
    rlo = max(rlo, 1)
    if kind == "mod":
        return 0, min(rhi - 1, lhi) if llo >= 0 else rhi - 1
    corners = (llo // rlo, llo // rhi, lhi // rlo, lhi // rhi)
    return min(corners), max(corners)


def _is_by_constant(atom: Atom) -> bool:
    """Whether an atom is a floor division by a positive number."""
    return isinstance(atom, Compound) and atom.kind == "div" and (atom.right.constant or 0) > 0


def _without_divisions(size: Polynomial) -> tuple[Polynomial, int]:
    """(p, d) with size = p / d, where p has no division by a number.

    a // n is (a - a % n) / n, so that a division and its `a` elsewhere in `size` take the same
    value."""
    total, divisor = as_polynomial(0), 1
    for mono, c in size.terms.items():
        product, below = as_polynomial(c), 1
        for atom in mono:
            factor, n = _as_fraction(atom)
            product, below = _product(product, factor), below * n
        common = lcm(divisor, below)
        total = _sum(_product(total, common // divisor), _product(product, common // below))
        divisor = common
    return total, divisor


def _as_fraction(atom: Atom) -> tuple[Polynomial, int]:
    if not isinstance(atom, Compound) or not _is_by_constant(atom):
        return Polynomial({(atom,): 1}), 1
    left, below = _without_divisions(atom.left)
    modulo = Polynomial({(Compound("mod", atom.left, atom.right),): -below})
    return _sum(left, modulo), below * bounds(atom.right)[0]


def _n_choices(size: Polynomial) -> int:
    """The number of minima and maxima in an expression, nested ones included."""
    return sum(
        1 + _n_choices(atom.left) + _n_choices(atom.right)
        for atom in {a for mono in size.terms for a in mono}
        if isinstance(atom, Compound) and atom.kind in ("min", "max")
    )


def _bounds_by_choice(size: Polynomial) -> Range:
    """The hull of the bounds with either side of the first minimum or maximum of `size`."""
    atom = next(
        a
        for mono in size.terms
        for a in mono
        if isinstance(a, Compound) and a.kind in ("min", "max")
    )
    sides = [bounds(_replaced(size, atom, side)) for side in (atom.left, atom.right)]
    return min(low for low, _ in sides), max(high for _, high in sides)


def _replaced(size: Polynomial, atom: Atom, value: Polynomial) -> Polynomial:
    total = as_polynomial(0)
    for mono, c in size.terms.items():
        product = Polynomial({tuple(a for a in mono if a != atom): c})
        for _ in range(mono.count(atom)):
            product = _product(product, value)
        total = _sum(total, product)
    return total


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    return Polynomial(a.plus(b))


def _product(a: Polynomial, b: int | Polynomial) -> Polynomial:
    return Polynomial(a.times(as_polynomial(b)))
