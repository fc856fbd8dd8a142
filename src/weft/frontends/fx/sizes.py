"""Sizes of exported programs: PyTorch's symbolic integers as weft's size expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import sympy
import torch
from numpy.typing import NDArray

from weft.errors import GraphError
from weft.graph.size import Expr, Size, Sym, ceil_div, size_max, size_min

MAX_SIZE = 2**31 - 1
"""A symbol whose upper bound is above this counts as unbounded."""


def is_static(value: Any) -> bool:
    """Whether a size, or every size of a shape, is a number."""
    if isinstance(value, (list, tuple, torch.Size)):
        return all(is_static(v) for v in value)
    return isinstance(value, int) and not isinstance(value, torch.SymInt)


class Sizes:
    """Turns ints and `SymInt`s into sizes; symbols get their bounds from `range_constraints`."""

    def __init__(self, ranges: Mapping[Any, Any], names: Mapping[str, str] | None = None) -> None:
        """`names` are names of symbols, by PyTorch's name (`s77`), which is the default."""
        self._ranges = ranges
        self._names = names or {}
        self._symbols: dict[Any, Sym] = {}

    def _symbol(self, symbol: Any) -> Sym:
        if symbol not in self._symbols:
            if symbol not in self._ranges:
                raise GraphError(
                    f"size {symbol} depends on data, which weft cannot plan memory for"
                )
            name = self._names.get(str(symbol), str(symbol))
            low, high = self._ranges[symbol].lower, self._ranges[symbol].upper
            if not getattr(high, "is_Integer", isinstance(high, int)) or int(high) > MAX_SIZE:
                raise GraphError(
                    f"dimension {name} of the exported program has no upper bound; declare one, "
                    f"e.g. torch.export.Dim({name!r}, min=1, max=4096): memory is planned for it"
                )
            self._symbols[symbol] = Sym(name, max(0, int(low)), int(high))
        return self._symbols[symbol]

    def of(self, value: Any) -> Size:
        """A size as weft's.

        Raises GraphError for a symbol without an upper bound, and for an expression that weft
        cannot express."""
        if isinstance(value, torch.SymInt):
            return self._expr(value.node.expr)
        return int(value)

    def function(
        self, number: torch.SymFloat
    ) -> tuple[Size, Callable[[NDArray[Any]], NDArray[Any]]]:
        """A float that is computed from one size: the size, and the function of its values.

        Raises GraphError for one of several sizes."""
        expr = number.node.expr
        symbols = sorted(expr.free_symbols, key=str)
        if len(symbols) != 1:
            raise GraphError(
                f"number {expr} depends on several sizes; compute it in the module "
                "from tensors, or keep one of them fixed"
            )
        [symbol] = symbols

        def values(sizes: NDArray[Any]) -> NDArray[Any]:
            return np.array([float(expr.subs(symbol, int(n))) for n in sizes], np.float64)

        return self._symbol(symbol).size, values

    def shape(self, values: Any) -> tuple[Size, ...]:
        """A shape, outermost first."""
        return tuple(self.of(v) for v in values)

    def _expr(self, e: Any) -> Size:
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            return self._symbol(e).size
        args = [self._expr(a) for a in e.args]
        kind = type(e).__name__
        if isinstance(e, sympy.Add):
            total: Size = 0
            for a in args:
                total = total + a
            return total
        if isinstance(e, sympy.Mul):
            product: Size = 1
            for a in args:
                product = product * a
            return product
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and int(e.exp) >= 0:
            product = 1
            for _ in range(int(e.exp)):
                product = product * args[0]
            return product
        if kind in ("FloorDiv", "CleanDiv"):
            return args[0] // args[1]
        if kind in ("Mod", "PythonMod"):
            return args[0] % args[1]
        if kind in ("Max", "Min"):
            best = args[0]
            for a in args[1:]:
                best = size_max(best, a) if kind == "Max" else size_min(best, a)
            return best
        if kind == "CeilToInt" and isinstance(e.args[0], sympy.Mul):
            numerator, denominator = e.args[0].as_numer_denom()
            return ceil_div(self._expr(numerator), self._expr(denominator))
        raise GraphError(f"size {e} ({kind}) has no form in weft")


def as_int(size: Size) -> int | None:
    """`size` where it is a number, else None."""
    return None if isinstance(size, Expr) else int(size)
