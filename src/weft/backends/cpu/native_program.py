"""A split of a `weft.program.Program` as the flat tables that the native loader reads.

`native/python/bind_runtime.cpp` reads these columns: expressions are (kind, a, b), tensors are
(type, buffer, layout) and nine (value, expression) pairs for ne, nb and offset, steps are (op, dst,
first parameter, parameters, ten sources), stages are (begin, end).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from weft.graph.params import pack
from weft.graph.polynomial import Atom, Compound
from weft.graph.size import Expr, Size, Sym, upper
from weft.graph.tensor import Ne, Tensor
from weft.native import _native
from weft.program import LAYOUTS, Program
from weft.records import dataclass

# Kinds of the native expression table.
_CONST, _SYMBOL, _ADD, _MUL = 0, 1, 2, 3
_COMPOUND = {"div": 4, "mod": 5, "min": 6, "max": 7}
_MAX_SRC = 10


@dataclass(frozen=True, slots=True)
class Lowered:
    """The native program, the numbers of the program's buffers that it uses (in its order), its
    symbols, and for each native step the row of its tensor in the whole program."""

    native: _native.Program
    buffers: tuple[int, ...]
    symbols: tuple[str, ...]
    steps: tuple[int, ...]


def describe_tensor(t: Tensor | None) -> tuple[int, list[int], list[int]]:
    """(type, ne, nb) at the symbols' maxima; an absent source has no sizes."""
    if t is None:
        return (0, [], [])
    return (t.dtype.id, *_maxima(t.ne, t.nb))


@lru_cache(maxsize=1 << 12)  # layers have the same sizes
def _maxima(ne: Ne, nb: Ne) -> tuple[list[int], list[int]]:
    return [upper(n) for n in ne], [upper(n) for n in nb]


class ExprTable:
    """Builds the native expression table, rows of (kind, a, b); equal expressions share a row."""

    def __init__(self, symbols: dict[str, Sym], fixed: Mapping[str, int] | None = None) -> None:
        """`fixed` are symbols that have values; the others are numbered in their order."""
        self.rows: list[tuple[int, int, int]] = []
        self._known: dict[object, int] = {}
        self._fixed = fixed or {}
        free = [name for name in symbols if name not in self._fixed]
        self._symbol = {name: i for i, name in enumerate(free)}

    def _row(self, kind: int, a: int, b: int = 0) -> int:
        key = (kind, a, b)
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append(key)
        return self._known[key]

    def of(self, size: Size) -> int:
        """The row of `size`."""
        if isinstance(size, int):
            return self._row(_CONST, size)
        row = self._known.get(size)
        if row is None:
            row = self._known[size] = self._polynomial(size)
        return row

    def _polynomial(self, expr: Expr) -> int:
        total: int | None = None
        for mono, coefficient in expr.terms.items():
            product: int | None = None if coefficient == 1 and mono else self.of(coefficient)
            for atom in mono:
                factor = self._atom(atom)
                product = factor if product is None else self._row(_MUL, product, factor)
            assert product is not None
            total = product if total is None else self._row(_ADD, total, product)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> int:
        if not isinstance(atom, Compound) and atom.name in self._fixed:
            return self._row(_CONST, self._fixed[atom.name])
        if not isinstance(atom, Compound):
            return self._row(_SYMBOL, self._symbol[atom.name])
        return self._row(
            _COMPOUND[atom.kind],
            self.of(Expr.reduce(Expr.of(atom.left))),
            self.of(Expr.reduce(Expr.of(atom.right))),
        )


def native_program(program: Program, split: int) -> Lowered:
    """The tables of one split, loaded and checked; holds only the tensors that its steps use."""
    spec = program.splits[split]
    exprs = ExprTable(program.symbols)
    used: dict[int, int] = {}
    buffers: dict[int, int] = {}
    names: list[str] = []
    tensors: list[list[int]] = []

    def pair(size: Size) -> tuple[int, int]:
        return (size, -1) if isinstance(size, int) else (0, exprs.of(size))

    def tensor(index: int) -> int:
        if index < 0:
            return -1
        if index not in used:
            t = program.tensors[index]
            row = [t.dtype.id, buffers.setdefault(t.buffer, len(buffers)), LAYOUTS.index(t.layout)]
            for size in (*t.ne, *t.nb, t.offset):
                row.extend(pair(size))
            used[index] = len(tensors)
            tensors.append(row)
            names.append(t.name)
        return used[index]

    steps: list[list[int]] = []
    params: list[float] = []
    for step in spec.steps:
        slots = pack(step.params)
        sources = [tensor(s) for s in step.src]
        sources += [-1] * (_MAX_SRC - len(sources))
        steps.append([step.op.number, tensor(step.dst), len(params), len(slots), *sources])
        params.extend(slots)
    native = _native.Program.from_tables(
        symbols=[(s.name, s.min, s.max) for s in program.symbols.values()],
        exprs=_table(exprs.rows, 3),
        buffers=[program.buffers[b].size for b in buffers],
        names=names,
        tensors=_table(tensors, 21),
        steps=_table(steps, 4 + _MAX_SRC),
        stages=_table(spec.stages, 2),
        params=params,
    )
    return Lowered(native, tuple(buffers), tuple(program.symbols), tuple(s.dst for s in spec.steps))


def _table(rows: object, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(rows, np.int64).reshape(-1, columns)
