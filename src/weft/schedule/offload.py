"""`OpOffload`: which devices take ops whose weights are in host memory, and from which batch on.

    op_offload=True                                     each device decides, as ggml's do
    op_offload=False                                    no device takes any
    op_offload=64                                       products of 64 columns and more
    op_offload={"cuda:0": 64, "cuda:1": False}          by device
    op_offload={"MUL_MAT_ID@cuda:*": 256, "*": 32}      by op and device; the first match wins

The same as a text: `off`, `64`, `cuda:0=64,cuda:1=off`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import NamedTuple

from weft.backends.base import Backend
from weft.errors import ScheduleError
from weft.graph.node import batch_of
from weft.graph.op import OPS
from weft.graph.tensor import Tensor
from weft.records import dataclass

_WORDS = {"on": True, "true": True, "off": False, "false": False}
_LIMIT = 1 << 31


class OffloadRule(NamedTuple):
    """The behaviour of devices where the weight of an op is in host memory."""

    ops: str
    """Glob over names of ops; `*` stands for the ops that the device counts batches of."""
    devices: str
    """Glob over names of devices."""
    least: bool | int
    """The least batch, in columns; True means that the device decides, False that it takes none."""

    def __str__(self) -> str:
        least = str(self.least) if not isinstance(self.least, bool) else _switch(self.least)
        where = self.devices if self.ops == "*" else f"{self.ops}@{self.devices}"
        return least if where == "*" else f"{where}={least}"


@dataclass(frozen=True, slots=True)
class OpOffload:
    """Rules of which the first that matches an op and a device decides; where none does, the device
    decides."""

    rules: tuple[OffloadRule, ...] = ()

    def asks(self, backend: Backend, node: Tensor) -> bool:
        """Whether a device takes a node of a weight in host memory, if it runs it."""
        for ops, devices, least in self.rules:
            if fnmatchcase(node.op.name, ops) and fnmatchcase(backend.name, devices):
                if isinstance(least, bool):
                    return least and backend.offload_op(node)
                return (backend.offload_batch(node) if ops == "*" else batch_of(node)) >= least
        return backend.offload_op(node)

    @property
    def is_off(self) -> bool:
        """Whether no device takes anything."""
        return bool(self.rules) and self.rules[0] == OffloadRule("*", "*", False)

    @property
    def batches(self) -> Iterator[int]:
        """The least batches of all rules."""
        return (rule.least for rule in self.rules if not isinstance(rule.least, bool))

    def __str__(self) -> str:
        return ",".join(map(str, self.rules)) or "on"


OpOffloadLike = bool | int | str | Mapping[str, bool | int | str] | OpOffload | None
"""The values of the argument `op_offload`; None: each device decides."""


def op_offload_for(backends: Sequence[Backend], value: OpOffloadLike) -> OpOffload:
    """The rules of an argument. Raises ScheduleError for what is none, and for a rule of a device
    that is not among `backends`."""
    rules = read_op_offload(value)
    names = [backend.name for backend in backends]
    for rule in rules.rules:
        if not any(fnmatchcase(name, rule.devices) for name in names):
            raise ScheduleError(
                f"names the device {rule.devices}, which is not one of {', '.join(names)}",
                argument="op_offload",
            )
    return rules


def read_op_offload(value: OpOffloadLike) -> OpOffload:
    """The rules of an argument, whatever the devices. Raises ScheduleError for what is none."""
    if isinstance(value, OpOffload):
        return value
    if isinstance(value, str) and "=" in value:
        pairs = [part.rpartition("=")[::2] for part in value.split(",")]
        return OpOffload(tuple(_rule(where.strip(), least) for where, least in pairs))
    if isinstance(value, Mapping):
        return OpOffload(tuple(_rule(where, least) for where, least in value.items()))
    least = True if value is None else _least(value)
    return OpOffload() if least is True else OpOffload((OffloadRule("*", "*", least),))


def _rule(where: str, least: bool | int | str) -> OffloadRule:
    ops, _, devices = where.rpartition("@")
    ops = ops.upper() or "*"
    if not devices:
        raise _error(f"{where}={least}")
    if not any(fnmatchcase(name, ops) for name in OPS):
        near = ", ".join(get_close_matches(ops, OPS, 3)) or "MUL_MAT, MUL_MAT_ID, GET_ROWS"
        raise ScheduleError(
            f"names the op {ops}, which there is not; ops are such as {near}",
            argument="op_offload",
        )
    return OffloadRule(ops, devices, _least(least))


def _least(value: object) -> bool | int:
    if isinstance(value, str):
        word = value.strip().lower()
        value = _WORDS.get(word, int(word) if word.isdecimal() and len(word) < 11 else value)
    if isinstance(value, int) and (isinstance(value, bool) or 1 <= value < _LIMIT):
        return value
    raise _error(value)


def _error(value: object) -> ScheduleError:
    return ScheduleError(
        f"is {str(value)[:80] or 'empty'}; write on, off, a least batch such as 32, or "
        "DEVICE=32,...",
        argument="op_offload",
    )


def _switch(on: bool) -> str:
    return "on" if on else "off"
