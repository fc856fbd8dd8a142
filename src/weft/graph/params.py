"""The base of parameter records; each record stands beside its op in `weft.graph.ops`.

The order of a record's fields is the order of the slots that native kernels read by name.
"""

from __future__ import annotations

from dataclasses import fields

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters of a node. Fields are numbers, enumerations or tuples of whole numbers."""


def pack(params: Params | None) -> list[float]:
    """The record as numbers, one per slot; integers stay exact up to 2**53."""
    if params is None:
        return []
    slots: list[float] = []
    for field in fields(params):
        value = getattr(params, field.name)
        slots.extend(float(v) for v in (value if isinstance(value, tuple) else (value,)))
    return slots
