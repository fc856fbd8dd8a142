"""A split of a program as data that JSON can hold, for a worker to run: `encoded` and `decoded`.

Both sides are the same weft, so ops and types go by their numbers. What is decoded may come from
anybody: every number is checked for its kind and its bounds before anything is made of it, and the
rules of programs (`weft.compiler.check`) and of kernels come on top.

    {"symbols": [[name, min, max], ..],
     "buffers": [bytes, ..],
     "tensors": [[name, type, layout, buffer, ne x 4, nb x 4, offset], ..],
     "steps": [[op, dst, [src, ..], [parameter, ..] or null], ..],
     "stages": [[begin, end], ..], "nodes": [..], "work": bytes}

A size is a number, or a list of terms `[coefficient, atom, ..]`; an atom is the number of a symbol,
or `[kind, size, size]`. Parameters that are not finite are the texts `inf`, `-inf` and `nan`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.dtype import dtype_from_id
from weft.errors import GraphError, ProgramError
from weft.graph.op import OPS, Op
from weft.graph.op_table import slots_of
from weft.graph.params import Params, pack
from weft.graph.polynomial import Atom, Compound, Polynomial, atom_key
from weft.graph.size import Expr, Size, Sym
from weft.program import LAYOUTS, BufferSpec, Program, SplitSpec, StepSpec, TensorSpec
from weft.records import dataclass

_KINDS = ("div", "mod", "min", "max")
_MOST = 1 << 62
"""The largest number of bytes, elements or coefficients."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest program that is taken."""

    symbols: int = 32
    tensors: int = 200_000
    steps: int = 100_000
    buffers: int = 20_000
    sources: int = 10
    slots: int = 64
    terms: int = 64
    atoms: int = 6
    depth: int = 6
    name: int = 200


_LIMITS = Limits()


# ---- to data -------------------------------------------------------------------------------------


def encoded(program: Program, split: int) -> tuple[dict[str, Any], list[int]]:
    """Split number `split` as data, and the numbers of the program's buffers that it uses, in its
    order."""
    spec = program.splits[split]
    symbols = list(program.symbols.values())
    number = {symbol.name: i for i, symbol in enumerate(symbols)}
    buffers: dict[int, int] = {}
    rows: dict[int, int] = {}
    tensors: list[list[Any]] = []

    def tensor(index: int) -> int:
        if index < 0:
            return -1
        if index not in rows:
            t = program.tensors[index]
            rows[index] = len(tensors)
            buffer = buffers.setdefault(t.buffer, len(buffers))
            sizes = [_size(n, number) for n in (*t.ne, *t.nb, t.offset)]
            name = t.name[: _LIMITS.name]
            tensors.append([name, t.dtype.id, LAYOUTS.index(t.layout), buffer, *sizes])
        return rows[index]

    steps = [
        [
            step.op.number,
            tensor(step.dst),
            [tensor(s) for s in step.src],
            None if step.params is None else numbers(pack(step.params)),
        ]
        for step in spec.steps
    ]
    data = {
        "symbols": [[s.name, s.min, s.max] for s in symbols],
        "buffers": [program.buffers[b].size for b in buffers],
        "tensors": tensors,
        "steps": steps,
        "stages": [list(stage) for stage in spec.stages],
        "nodes": list(spec.nodes),
        "work": spec.work_bytes,
    }
    return data, list(buffers)


def _size(size: int | Polynomial, number: Mapping[str, int]) -> Any:
    if isinstance(size, int):
        return size
    return [[c, *(_atom(a, number) for a in mono)] for mono, c in size.terms.items()]


def _atom(atom: Atom, number: Mapping[str, int]) -> Any:
    if isinstance(atom, Compound):
        return [atom.kind, _size(atom.left, number), _size(atom.right, number)]
    return number[atom.name]


def numbers(slots: Sequence[float]) -> list[float | int | str]:
    """Parameters as JSON can hold them."""
    return [_number(value) for value in slots]


def _number(value: float) -> float | int | str:
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    plain = value == int(value) and abs(value) < 1 << 53 and str(value) != "-0.0"
    return int(value) if plain else value


# ---- from data -----------------------------------------------------------------------------------


def decoded(data: object, buffer_type: Any, device: str) -> Program:
    """The program of one split, whose buffers are all of `buffer_type` and bound elsewhere.

    Raises ProgramError for data that is not such a program, or is beyond the limits."""
    try:
        return _program(_table(data), buffer_type, device)
    except (GraphError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProgramError(f"this is not a program: {error}") from error


def _program(data: Mapping[str, Any], buffer_type: Any, device: str) -> Program:
    lim = _LIMITS
    symbols = [_symbol(row) for row in _list(data["symbols"], lim.symbols, "symbols")]
    names = {symbol.name: symbol for symbol in symbols}
    if len(names) != len(symbols):
        raise ValueError("two symbols have one name")
    sizes = [whole(n, 0, _MOST, "a buffer") for n in _list(data["buffers"], lim.buffers, "buffers")]
    tensors = tuple(
        _tensor(row, symbols, len(sizes)) for row in _list(data["tensors"], lim.tensors, "tensors")
    )
    steps = tuple(_step(row, len(tensors)) for row in _list(data["steps"], lim.steps, "steps"))
    n = len(steps)
    pairs = [_list(pair, 2, "a stage") for pair in _list(data["stages"], n, "stages")]
    stages = tuple((whole(a, 0, n, "a stage"), whole(b, 0, n, "a stage")) for a, b in pairs)
    nodes = tuple(whole(i, 0, _MOST, "a node") for i in _list(data["nodes"], n, "nodes"))
    if nodes and len(nodes) != n:
        raise ValueError("nodes are not as many as steps")
    work = whole(data["work"], 0, _MOST, "scratch memory")
    split = SplitSpec(device, (), steps, stages, work, nodes)
    buffers = tuple(BufferSpec("bound", buffer_type, size, "any") for size in sizes)
    return Program(names, buffers, tensors, (split,), {}, {})


def _symbol(row: object) -> Sym:
    name, least, most = _row(row, 3, "a symbol")
    return Sym(_text(name), whole(least, 0, _MOST, "a bound"), whole(most, 0, _MOST, "a bound"))


def _tensor(row: object, symbols: Sequence[Sym], n_buffers: int) -> TensorSpec:
    name, type_id, layout, buffer, *rest = _row(row, 13, "a tensor")
    dtype = dtype_from_id(whole(type_id, 0, 1 << 16, "a type"))
    if dtype is None:
        raise ValueError(f"there is no type {type_id}")
    ne0, ne1, ne2, ne3, nb0, nb1, nb2, nb3, offset = (_decoded(n, symbols, 0) for n in rest)
    return TensorSpec(
        _text(name),
        dtype,
        (ne0, ne1, ne2, ne3),
        (nb0, nb1, nb2, nb3),
        whole(buffer, 0, n_buffers - 1, "a buffer's number"),
        offset,
        LAYOUTS[whole(layout, 0, len(LAYOUTS) - 1, "a layout")],
    )


def _step(row: object, n_tensors: int) -> StepSpec:
    number, dst, src, slots = _row(row, 4, "a step")
    op = op_numbered(number)
    if op.is_view or op.name in ("NONE", "HOST"):
        raise ValueError(f"{op.name} is not a step")
    sources = tuple(
        whole(s, -1, n_tensors - 1, "a source") for s in _list(src, _LIMITS.sources, "sources")
    )
    if not op.min_src <= len(sources) <= op.max_src:
        raise ValueError(f"{op.name} has {len(sources)} sources")
    params = None if slots is None else params_of(op, slots)
    if not op.takes(params):
        raise ValueError(f"{op.name} has no such parameters")
    return StepSpec(op, whole(dst, 0, n_tensors - 1, "a result"), sources, params)


_numbered: list[Op] = []


def op_numbered(number: object) -> Op:
    """The op of a number; raises ValueError."""
    if len(_numbered) != len(OPS):
        _numbered[:] = sorted(OPS.values(), key=lambda op: op.number)
    return _numbered[whole(number, 0, len(_numbered) - 1, "an op")]


def params_of(op: Op, slots: object) -> Params:
    """The parameter record of an op, from its numbers; raises ValueError."""
    values = _list(slots, _LIMITS.slots, "parameters")
    if op.params is None:
        raise ValueError(f"{op.name} has no parameters")
    fields, at = [], 0
    for slot in slots_of(op.params):
        part = [_value(v, slot.kind, slot.members) for v in values[at : at + slot.count]]
        if len(part) != slot.count:
            raise ValueError(f"{op.name} has too few parameters")
        fields.append(tuple(part) if _is_tuple(op.params, slot.name) else part[0])
        at += slot.count
    if at != len(values):
        raise ValueError(f"{op.name} has too many parameters")
    return op.params(*fields)


def _is_tuple(record: type[Params], name: str) -> bool:
    annotation = record.__annotations__[name]
    text = annotation if isinstance(annotation, str) else repr(annotation)
    return text.startswith("tuple[")


def _value(value: object, kind: str, members: Any) -> Any:
    if kind == "float":
        return float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") \
            else _finite(value)  # fmt: skip
    number = whole(value, -_MOST, _MOST, "a parameter")
    if kind == "bool":
        return bool(whole(number, 0, 1, "a parameter"))
    return number if members is None else members(number)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _decoded(size: object, symbols: Sequence[Sym], depth: int) -> Size:
    if not isinstance(size, list):
        return whole(size, -_MOST, _MOST, "a size")
    if depth > _LIMITS.depth:
        raise ValueError("a size is nested too deeply")
    terms: dict[tuple[Atom, ...], int] = {}
    for term in _list(size, _LIMITS.terms, "a size"):
        coefficient, *atoms = _list(term, 1 + _LIMITS.atoms, "a term")
        parts = [_decoded_atom(atom, symbols, depth) for atom in atoms]
        mono = tuple(sorted(parts, key=atom_key))
        terms[mono] = terms.get(mono, 0) + whole(coefficient, -_MOST, _MOST, "a coefficient")
    found = {atom for mono in terms for atom in mono}
    if len(found) > _LIMITS.atoms:
        raise ValueError("a size has too many parts")
    return Expr.reduce(Expr(terms))


def _decoded_atom(atom: object, symbols: Sequence[Sym], depth: int) -> Atom:
    if not isinstance(atom, list):
        return symbols[whole(atom, 0, len(symbols) - 1, "a symbol")]
    kind, left, right = _row(atom, 3, "an atom")
    if kind not in _KINDS:
        raise ValueError(f"there is no kind of size {kind!r}")
    sides = (Expr.of(_decoded(side, symbols, depth + 1)) for side in (left, right))
    return Compound(str(kind), *sides)


# ---- checks --------------------------------------------------------------------------------------


def whole(value: object, least: int, most: int, what: str) -> int:
    """`value` as a whole number within bounds; raises ValueError, naming `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{what} is {str(value)[:40]}, not a number of {least} to {most}")
    return value


def _table(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("the data are not a table")
    return value


def _list(value: object, most: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"{what}: not a list of at most {most}")
    return value


def _row(value: object, n: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != n:
        raise ValueError(f"{what}: not a list of {n}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LIMITS.name:
        raise ValueError(f"a name is not a text of at most {_LIMITS.name} characters")
    return value
