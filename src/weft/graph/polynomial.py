"""Polynomials with integer coefficients over atoms: symbolic sizes, without division.

An atom is a symbol, or an operation on polynomials that does not simplify (`Compound`).
`size_bounds.py` computes bounds of polynomials; `size.py` needs these bounds to divide.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, TypeAlias

from weft.records import dataclass

__all__ = ["Atom", "Compound", "Polynomial", "Symbol", "Terms", "as_polynomial", "atom_key"]


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
