"""Symbolic sizes as texts that the page evaluates, such as `4*n_tokens*n_kv`.

The page knows the bounds of the symbols at its sliders' position and takes the upper bound of each
size term by term. That is what planning does, too, for sizes whose terms all have one sign; sizes
that need more are not carried (`NotCarried`).
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.graph.polynomial import Atom, Compound, Polynomial, compound_bounds
from weft.graph.size import Size

Ranges = Mapping[str, tuple[int, int]]
"""The least and the largest value of each symbol."""


class NotCarried(Exception):
    """The page cannot show other sizes of a plan; the message says why."""


class Formulas:
    """Numbers formulas; equal ones have one number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.texts: list[str] = []

    def number(self, size: Size) -> int:
        """The number of a formula. Raises NotCarried where the page could not bound it."""
        text = str(size)  # without the bounds of symbols, which differ from plan to plan
        known = self._numbers.get(text)
        if known is None:
            _check(size)
            known = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return known


def upper_at(size: Size, ranges: Ranges) -> int:
    """The upper bound of a size that is carried, for other bounds of its symbols."""
    return size if isinstance(size, int) else _bounds(size, ranges)[1]


def _check(size: int | Polynomial) -> None:
    if isinstance(size, int):
        return
    if len({c > 0 for mono, c in size.terms.items() if mono}) > 1:
        raise NotCarried(f"a tensor has {size!r} bytes, of which the page knows no bound")
    for mono in size.terms:
        for atom in mono:
            if isinstance(atom, Compound):
                _check(atom.left)
                _check(atom.right)


def _bounds(size: Polynomial, ranges: Ranges) -> tuple[int, int]:
    low = high = 0
    for mono, c in size.terms.items():
        term = (c, c)
        for atom in mono:
            a, b = _atom(atom, ranges)
            corners = (term[0] * a, term[0] * b, term[1] * a, term[1] * b)
            term = (min(corners), max(corners))
        low, high = low + term[0], high + term[1]
    return low, high


def _atom(atom: Atom, ranges: Ranges) -> tuple[int, int]:
    if not isinstance(atom, Compound):
        return ranges[atom.name]
    return compound_bounds(atom.kind, _bounds(atom.left, ranges), _bounds(atom.right, ranges))
