"""The op table as lines of text, which native code carries from its build.

`check_native` compares the lines when such code is loaded. `native_header.py` writes the header
that native code is compiled with.
"""

from __future__ import annotations

import hashlib
import sys
from enum import IntEnum

from weft.graph.op import OPS, Op, type_text
from weft.graph.params import Params
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of a parameter record: `count` numbers side by side, of one type."""

    name: str
    kind: str
    """`int`, `float`, `bool` or the name of an enumeration."""
    count: int
    members: type[IntEnum] | None


def slots_of(record: type[Params]) -> tuple[Slot, ...]:
    """The fields of a parameter record in order."""
    return tuple(_slot(record, name, type_text(t)) for name, t in record.__annotations__.items())


def _slot(record: type[Params], name: str, annotation: str) -> Slot:
    count = 1
    if annotation.startswith("tuple["):
        types = annotation[len("tuple[") : -1].split(", ")
        annotation, count = types[0], len(types)
    if annotation in ("int", "float", "bool"):
        return Slot(name, annotation, count, None)
    members = vars(sys.modules[record.__module__])[annotation]
    return Slot(name, annotation, count, members)


def op_table() -> list[str]:
    """A line for each op, by number: its name, its numbers of sources and its parameters."""
    return [describe_op(op) for op in OPS.values()]


def op_stamp() -> str:
    """16 hexadecimal digits that are the same where the op table is the same."""
    return hashlib.sha256("\n".join(op_table()).encode()).hexdigest()[:16]


def describe_op(op: Op) -> str:
    """The line of one op."""
    words = [op.name, f"{op.min_src}..{op.max_src}"]
    if op.params is not None:
        words += [_slot_text(s) for s in slots_of(op.params)]
        words += ["optional"] * op.params_optional
    return " ".join(words)


def _slot_text(slot: Slot) -> str:
    text = f"{slot.name}:{slot.kind}"
    if slot.count > 1:
        text += f"[{slot.count}]"
    if slot.members is not None:
        text += "(" + ",".join(f"{m.name}={m.value}" for m in slot.members) + ")"
    return text


def check_native(
    native: list[str], what: str, *, package: str = "weft", target: str = "native"
) -> None:
    """Raises ImportError, naming the first op that differs, unless `native` equals `op_table()`.

    `native` are the lines that the code called `what` was built with."""
    ours = op_table()
    if native != ours:
        raise ImportError(
            f"{what} was built for another op table: {_difference(ours, native)}; reinstall "
            f"{package} so that both match (in a checkout: make headers {target})"
        )


def _difference(ours: list[str], native: list[str]) -> str:
    declared, built = ({row.split()[0]: row for row in rows} for rows in (ours, native))
    for name, row in declared.items():
        if name not in built:
            return f"it lacks the op {name}, which weft has"
        if built[name] != row:
            return f"it has {built[name]!r}, but {name} is declared as {row!r}"
    for name in built:
        if name not in declared:
            return f"it has the op {name}, which weft lacks"
    first = next(a for a, b in zip(declared, built, strict=True) if a != b)
    return f"its ops are in another order, from {first} on"
