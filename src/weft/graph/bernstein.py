"""Bounds of polynomials over boxes of integers, by their coefficients in Bernstein's basis.

On a box, a polynomial is a weighted mean of these coefficients, with weights of 0 or more that add
up to 1. So it lies between the smallest and the largest of them. Where every variable occurs to the
first power only, the coefficients are the values at the corners, and the bounds are exact. A
product of polynomials without negative coefficients has none either, expanded or not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from math import comb, lcm, prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Range", "polynomial_range"]

V = TypeVar("V", bound=Hashable)

Range = tuple[int, int]

MAX_COEFFICIENTS = 1 << 10
"""Polynomials with more coefficients are not examined; 10 variables of power 1 have as many."""


def polynomial_range(
    terms: Mapping[tuple[V, ...], int],
    ranges: Mapping[V, Range],
    divisor: int = 1,
) -> Range | None:
    """Bounds of a polynomial divided by `divisor` (above 0), the quotient being an integer.

    `terms` maps products of variables to coefficients, `ranges` variables to their bounds. None
    where there are more than `MAX_COEFFICIENTS`."""
    variables = list(ranges)
    degrees = [max(mono.count(v) for mono in terms) for v in variables]
    if prod(d + 1 for d in degrees) > MAX_COEFFICIENTS:
        return None
    table = np.zeros([d + 1 for d in degrees], object)
    for mono, c in terms.items():
        table[tuple(mono.count(v) for v in variables)] += c
    for axis, (v, degree) in enumerate(zip(variables, degrees, strict=True)):
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
    """The matrix from coefficients of powers of x to those of Bernstein's basis on low..high,
    times `_unit`."""
    powers = range(degree + 1)
    # x = low + (high - low) t
    shift = [
        [comb(i, j) * low ** max(i - j, 0) * (high - low) ** j for i in powers] for j in powers
    ]
    unit = _unit(degree)
    basis = [[comb(j, i) * (unit // comb(degree, i)) for i in powers] for j in powers]
    matrix: NDArray[Any] = np.array(basis, object) @ np.array(shift, object)
    return matrix
