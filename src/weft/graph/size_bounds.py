"""Bounds of size expressions: what `size.lower`, `size.upper` and `size.is_at_most` rest on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import lcm

from weft.graph.bernstein import Range, polynomial_range
from weft.graph.size import Atom, Compound, Expr, Size, Sym, bounds

__all__ = ["expr_bounds"]

MAX_CHOICES = 4
"""Bounds look at both sides of at most so many minima and maxima at once."""


def expr_bounds(size: Expr) -> Range:
    """Lower and upper bound of an expression, for all values that its symbols may have."""
    ranges = {atom: _atom_bounds(atom) for mono in size.terms for atom in mono}
    loose = _term_by_term(size, ranges)
    signs = {c > 0 for mono, c in size.terms.items() if mono}
    if len(signs) <= 1 and all(low >= 0 for low, _ in ranges.values()):
        return loose  # every atom pulls the same way
    return _tight_bounds(size, loose)


def _term_by_term(size: Expr, ranges: Mapping[Atom, Range]) -> Range:
    low = high = 0
    for mono, c in size.terms.items():
        term = (c, c)
        for atom in mono:
            term = _times(term, ranges[atom])
        low, high = low + term[0], high + term[1]
    return low, high


@lru_cache(maxsize=1 << 12)
def _tight_bounds(size: Expr, loose: Range) -> Range:
    """Bounds of the whole expression, within those of its terms. Each way is sound alone: what the
    polynomial may be over its atoms, the same without divisions, and both sides of a minimum."""
    found = [loose, _polynomial_bounds(size, 1)]
    if any(_is_by_constant(atom) for mono in size.terms for atom in mono):
        found.append(_polynomial_bounds(*_without_divisions(size)))
    if 0 < _n_choices(size) <= MAX_CHOICES:
        found.append(_bounds_by_choice(size))
    ranges = [r for r in found if r is not None]
    return max(low for low, _ in ranges), min(high for _, high in ranges)


def _polynomial_bounds(size: Expr, divisor: int) -> Range | None:
    if not size.terms:
        return 0, 0
    ranges = {atom: _atom_bounds(atom) for mono in size.terms for atom in mono}
    return polynomial_range(size.terms, ranges, divisor)


def _times(a: Range, b: Range) -> Range:
    corners = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    return min(corners), max(corners)


def _atom_bounds(atom: Atom) -> Range:
    if isinstance(atom, Sym):
        return atom.min, atom.max
    (llo, lhi), (rlo, rhi) = bounds(atom.left), bounds(atom.right)
    if atom.kind == "min":
        return min(llo, rlo), min(lhi, rhi)
    if atom.kind == "max":
        return max(llo, rlo), max(lhi, rhi)
    rlo = max(rlo, 1)
    if atom.kind == "mod":
        return 0, min(rhi - 1, lhi) if llo >= 0 else rhi - 1
    corners = (llo // rlo, llo // rhi, lhi // rlo, lhi // rhi)
    return min(corners), max(corners)


def _is_by_constant(atom: Atom) -> bool:
    """Whether an atom is a floor division by a positive number."""
    if isinstance(atom, Sym) or atom.kind != "div":
        return False
    divisor = Expr.reduce(atom.right)
    return isinstance(divisor, int) and divisor > 0


def _without_divisions(size: Expr) -> tuple[Expr, int]:
    """(p, d) with size = p / d, where p has no division by a number: a // n is (a - a % n) / n. So
    a division and its `a` elsewhere in `size` are weighed at the same value of `a`."""
    total: Size = 0
    divisor = 1
    for mono, c in size.terms.items():
        product, below = Expr.of(c), 1
        for atom in mono:
            factor, n = _as_fraction(atom)
            product, below = Expr.of(product * factor), below * n
        common = lcm(divisor, below)
        total = total * (common // divisor) + product * (common // below)
        divisor = common
    return Expr.of(total), divisor


def _as_fraction(atom: Atom) -> tuple[Size, int]:
    if isinstance(atom, Sym) or not _is_by_constant(atom):
        return Expr({(atom,): 1}), 1
    left, below = _without_divisions(atom.left)
    rest = Expr({(Compound("mod", atom.left, atom.right),): below})
    return left - rest, below * bounds(atom.right)[0]


def _n_choices(size: Expr) -> int:
    """How many minima and maxima an expression has, those inside of others included."""
    return sum(
        1 + _n_choices(atom.left) + _n_choices(atom.right)
        for atom in {a for mono in size.terms for a in mono}
        if isinstance(atom, Compound) and atom.kind in ("min", "max")
    )


def _bounds_by_choice(size: Expr) -> Range:
    """The hull of what an expression is with either side of its first minimum or maximum."""
    atom = next(
        a
        for mono in size.terms
        for a in mono
        if isinstance(a, Compound) and a.kind in ("min", "max")
    )
    sides = [bounds(_replaced(size, atom, side)) for side in (atom.left, atom.right)]
    return min(low for low, _ in sides), max(high for _, high in sides)


def _replaced(size: Expr, atom: Atom, value: Expr) -> Size:
    total: Size = 0
    for mono, c in size.terms.items():
        product: Size = Expr({tuple(a for a in mono if a != atom): c})
        for _ in range(mono.count(atom)):
            product = product * value
        total = total + product
    return total
