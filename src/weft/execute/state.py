"""`State`: a value that a session keeps from run to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.memory import HostMemory, Memory
from weft.execute.bound import named_fault
from weft.execute.values import checked, read_array
from weft.program import BufferSpec, Program, TensorSpec, described

__all__ = ["State", "with_own_states"]


def with_own_states(program: Program) -> Program:
    """The program over states of its own, which hold the first values; the program itself where it
    has none."""
    if not program.states:
        return program
    of_states = {program.tensors[index].buffer for index in program.states.values()}

    def own(number: int, spec: BufferSpec) -> BufferSpec:
        return replace(spec, data=spec.data.copy()) if number in of_states else spec

    buffers = tuple(own(number, spec) for number, spec in enumerate(program.buffers))
    return replace(program, buffers=buffers)


class State:
    """One state of a session, see `weft.state`; use it between runs."""

    def __init__(
        self, name: str, spec: TensorSpec, first: NDArray[Any], memory: Callable[[], Memory]
    ) -> None:
        """`first` are the initial values, `memory` is the place where the session has the state
        now."""
        self.name = name
        self._spec = spec
        self._first = first
        self._memory = memory

    def read(self) -> NDArray[Any]:
        """A copy of the values, in PyTorch order of sizes without leading ones (bf16 as uint16
        bits, block types as uint8 rows). Raises DeviceError where the device fails."""
        try:
            return read_array(self._spec, self._memory(), {})
        except Exception as error:
            raise named_fault(f"state {self.name}", error) from error

    def write(self, values: ArrayLike) -> None:
        """Replaces the values by an array of the state's shape (leading ones may be left out) and
        element type.

        Raises ProgramError for another shape or type, DeviceError where the device fails."""
        self._put(checked(self.name, np.asarray(values), self._spec, {}, "state"))

    def reset(self) -> None:
        """Puts the first values back. Raises DeviceError where the device fails."""
        self._put(HostMemory(self._first).host())

    def _put(self, raw: NDArray[np.uint8]) -> None:
        try:
            self._memory().write(0, raw)
        except Exception as error:
            raise named_fault(f"state {self.name}", error) from error

    def __repr__(self) -> str:
        return f"<State {described(self.name, self._spec)}>"
