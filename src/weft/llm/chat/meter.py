"""Bounds the cost of rendering a chat template: every step and every new value is paid for.

Each render has a `Meter` with a number of units. An operation takes a few units, and text takes one
for each character. So time and memory are bounded, whatever the template says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

from weft.bounds import TEMPLATE_UNITS, TEMPLATE_UNITS_OF_INPUT

STEP = 16
"""Units that one operation takes."""

BASE = TEMPLATE_UNITS
"""Units of every render."""
PER_INPUT = TEMPLATE_UNITS_OF_INPUT
"""Further units for each unit of the size of the variables."""

_VIEWS: tuple[type, ...] = (type({}.items()), type({}.keys()), type({}.values()))
_CONTAINERS: Any = (list, tuple, dict, set, frozenset, *_VIEWS)


class Meter:
    """Counts the units that a render has left."""

    def __init__(self, inputs: Any = ()) -> None:
        self.left = 1 << 62
        self.limit = BASE + PER_INPUT * measure(inputs, self)
        self.left = self.limit

    def charge(self, units: int) -> None:
        """Takes units; raises SecurityError if there are not enough."""
        self.left -= units
        if self.left < 0:
            raise SecurityError(
                f"it takes more than {self.limit} units of work (characters, and {STEP} a step)"
            )


METER: ContextVar[Meter] = ContextVar("METER")


def charge(units: int = STEP) -> None:
    """Takes units from the meter of the current render."""
    METER.get().charge(units)


def measure(value: Any, meter: Meter | None = None) -> int:
    """Pays for reading all of `value` and returns its size in units; shared parts count each time
    they occur."""
    meter = METER.get() if meter is None else meter
    total = 0
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        size = STEP * depth
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, int):
            number(item)
        elif isinstance(item, dict):
            meter.charge(STEP * len(item))
            size += len(getattr(item, "written", None) or "")
            stack += [(part, depth + 1) for pair in item.items() for part in pair]
        elif isinstance(item, range):
            size += STEP * len(item)
        elif isinstance(item, _CONTAINERS):
            meter.charge(STEP * len(item))
            stack += [(part, depth + 1) for part in item]
        meter.charge(size)
        total += size
    return total


def counted(values: Iterable[Any], cost: int = STEP) -> Iterator[Any]:
    """Yields the values and pays for each."""
    meter = METER.get()
    for value in values:
        meter.charge(cost)
        yield value


def number(value: Any) -> Any:
    """Returns the value; raises SecurityError for an integer of more than 64 bits."""
    if isinstance(value, int) and value.bit_length() > 64:
        raise SecurityError("an integer of more than 64 bits")
    return value


def text(value: Any) -> str:
    """Computes `str(value)` and pays for it."""
    if isinstance(value, str):
        charge(STEP + len(value))
        return str(value)
    if value is None or isinstance(value, int | float | dict | list | tuple):
        charge(9 * measure(value))  # text in containers is printed with escapes
        return str(value)
    charge()
    return str(value) if isinstance(value, Undefined) else f"<{type(value).__name__}>"
