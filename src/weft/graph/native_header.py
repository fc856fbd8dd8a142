"""The headers from which native code knows the ops: names, parameters and costs.

`make headers` (`python -m weft.graph.native_header native`) writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from textwrap import wrap

from weft.graph.op import OPS, MultiplyAdds, Op
from weft.graph.op_table import describe_op, slots_of
from weft.graph.params import Params

_HEAD = """\
// The ops with their parameters, generated from src/weft/graph; `make headers` writes it again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// clang-format off
// The number of members of an enumeration; they are numbered from 0 on.
template <typename Enum>
inline constexpr int64_t kMembers = 0;

"""

_GLUE = "\xa0"
"""A space at which a line is not broken."""

_TAIL = """\
// clang-format on

static_assert(sizeof(kOpInfo) / sizeof(kOpInfo[0]) == static_cast<std::size_t>(Op::kCount));

}  // namespace weft
"""

_INFO = """\
struct OpInfo {
  const char* name;
  int min_src;
  int max_src;
  int n_params;             // numbers in the record of parameters
  bool params_optional;     // a step may have no record
  const char* description;  // the line of weft.graph.op_table
};

"""


def native_header() -> str:
    """The text of `native/include/weft/ops.h`."""
    records = _records()
    parts = [_HEAD, *_lines("enum class Op : int32_t", [_constant(n) for n in OPS] + ["kCount"])]
    enums = {s.members: None for r in records for s in slots_of(r) if s.members is not None}
    for members in enums:
        parts += _enumeration(members)
    for record, ops in records.items():
        parts += [f"// {line}\n" for line in wrap(f"Parameters of {', '.join(ops)}.", 96)]
        parts += _lines(f"enum class {_slot_type(record)} : int", list(_slot_constants(record)))
    parts += [_INFO, "inline constexpr OpInfo kOpInfo[] = {\n"]
    parts += [_row(op) for op in OPS.values()]
    return "".join([*parts, "};\n", _TAIL])


def _slot_type(record: type[Params]) -> str:
    """The name of the enumeration of a record's slots: SoftMaxSlot for SoftMaxParams."""
    return record.__name__.removesuffix("Params") + "Slot"


def _records() -> dict[type[Params], list[str]]:
    records: dict[type[Params], list[str]] = {}
    for op in OPS.values():
        if op.params is not None:
            records.setdefault(op.params, []).append(op.name)
    return records


def _lines(head: str, members: list[str]) -> Iterator[str]:
    joined = ", ".join(m.replace(" ", _GLUE) for m in members)
    yield f"{head} {{\n"
    yield from (f"  {line.replace(_GLUE, ' ')}\n" for line in wrap(joined, 96))
    yield "};\n\n"


def _enumeration(members: type[IntEnum]) -> Iterator[str]:
    yield from _lines(
        f"enum class {members.__name__} : int64_t",
        [f"{_constant(m.name)} = {m.value}" for m in members],
    )
    if [m.value for m in members] == list(range(len(members))):
        yield "template <>\n"
        yield f"inline constexpr int64_t kMembers<{members.__name__}> = {len(members)};\n\n"


def _slot_constants(record: type[Params]) -> Iterator[str]:
    at = 0
    for slot in slots_of(record):
        yield f"{_constant(slot.name)} = {at}"
        at += slot.count
    yield f"kSlots = {at}"


def _row(op: Op) -> str:
    n = 0 if op.params is None else sum(s.count for s in slots_of(op.params))
    optional = str(op.params_optional).lower()
    words = describe_op(op)
    return f'  {{"{op.name}", {op.min_src}, {op.max_src}, {n}, {optional},\n   "{words}"}},\n'


def _constant(name: str) -> str:
    return "k" + "".join(word.capitalize() for word in name.lower().split("_"))


# -- costs -----------------------------------------------------------------------------------------

_COSTS = """\
// The multiply-adds of the ops that are products. This file is generated from src/weft/graph; `make
// headers` writes it again.
#pragma once

#include "kernels/kernel.h"

namespace weft {

// Size `d` of source `s`, 1 where it is absent; `first` is the product of its first n sizes.
inline double size(const Call& call, int s, int d) {
  return call.src[s] == nullptr ? 1.0 : static_cast<double>(call.src[s]->ne[d]);
}
inline double first(const Call& call, int s, double n) {
  double product = 1;
  for (int d = 0; d < n; ++d) product *= size(call, s, d);
  return product;
}

// The multiply-adds of a step whose result has `n` elements; negative when the op is no product.
// clang-format off
inline double multiply_adds(Op op, const Call& call, double n) {
  switch (op) {
%s    default:
      return -1;
  }
}
// clang-format on

}  // namespace weft
"""


class _Term:
    """A number of a step, as C++; `binds` is the precedence of its outermost operator."""

    def __init__(self, text: str, binds: int = 3) -> None:
        self.text = text
        self.binds = binds

    def in_term(self, least: int) -> str:
        return self.text if self.binds >= least else f"({self.text})"

    def __add__(self, other: object) -> _Term:
        return _Term(f"{self.in_term(1)} + {_term(other).in_term(2)}", 1)

    def __mul__(self, other: object) -> _Term:
        return _Term(f"{self.in_term(2)} * {_term(other).in_term(3)}", 2)

    def __truediv__(self, other: object) -> _Term:
        return _Term(f"{self.in_term(2)} / {_term(other).in_term(3)}", 2)

    def __rsub__(self, other: object) -> _Term:
        return _Term(f"{_term(other).in_term(1)} - {self.in_term(2)}", 1)


def _term(number: object) -> _Term:
    return number if isinstance(number, _Term) else _Term(str(number))


class _Sizes:
    """`weft.graph.costs.Sizes` of source `s`, as C++."""

    def __init__(self, s: int) -> None:
        self.s = s

    def __getitem__(self, d: int) -> _Term:
        return _Term(f"size(call, {self.s}, {d})")

    @property
    def elements(self) -> _Term:
        return self.first(4)

    def first(self, n: object) -> _Term:
        return _Term(f"first(call, {self.s}, {_term(n).text})")


class _Record:
    """The parameters of a step, as C++."""

    def __init__(self, record: type[Params] | None) -> None:
        self.record = record

    def __getattr__(self, name: str) -> _Term:
        assert self.record is not None
        return _Term(f"call.number({_slot_type(self.record)}::{_constant(name)})")


def costs_header() -> str:
    """The text of `native/src/runtime/multiply_adds.h`."""
    cases: dict[str, str] = {}
    for op in OPS.values():
        if isinstance(op.cost, MultiplyAdds):
            sources = [_Sizes(s) for s in range(op.max_src)]
            formula = op.cost.formula(_Term("n"), sources, _Record(op.params)).text
            label = f"    case Op::{_constant(op.name)}:\n"
            cases[formula] = cases.get(formula, "") + label
    return _COSTS % "".join(
        f"{labels}      return {formula};\n" for formula, labels in cases.items()
    )


def write_headers(native: Path) -> None:
    """Writes both headers under the folder of the native sources."""
    (native / "include/weft/ops.h").write_text(native_header(), encoding="utf-8")
    (native / "src/runtime/multiply_adds.h").write_text(costs_header(), encoding="utf-8")


if __name__ == "__main__":
    write_headers(Path(sys.argv[1]))
