"""The `host` device: functions of this process (`weft.graph.host`), in the memory of `cpu`.

`weft.compile` puts it before the cpu where a graph has such functions. Both use host memory, so
nothing is copied between them; from and to a device with memory of its own, tensors are copied as
between any two devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import YES, BackendBase, DeviceKind, Support
from weft.backends.cpu import host_buffer_type
from weft.backends.memory import BufferType, Memory
from weft.errors import DeviceError, ProgramError
from weft.graph.host import HOST, HostFunction, HostParams
from weft.graph.op import NONE
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.program import Program, StepSpec, TensorSpec


class HostBackend(BackendBase):
    """Calls host functions, one after the other, on the thread that runs the program."""

    kind: DeviceKind = "ACCEL"
    measured_as = "cpu"
    """The device of a machine profile that stands for this one."""

    def __init__(self, name: str = "host") -> None:
        self.name = name
        self.buffer_type: BufferType = host_buffer_type()

    def supports_op(self, node: Tensor) -> Support:
        """Supports host functions and views."""
        if node.op is HOST or node.op.is_view or node.op is NONE:
            return YES
        return Support(False, f"{node.op} on {self.name}: only host functions are called here")

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Supports any memory that the host can address."""
        return buffer_type.is_host

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> HostExecutable:
        """The calls of a split."""
        return HostExecutable(program, split, memories, self.name)

    def __repr__(self) -> str:
        return self.name


class HostExecutable:
    """Calls the functions of one split in order."""

    def __init__(
        self, program: Program, split: int, memories: Sequence[Memory], device: str
    ) -> None:
        self._program = program
        self._steps = program.splits[split].steps
        self._memories = memories
        self._device = device
        self._calls: list[tuple[HostFunction, list[NDArray[Any]], NDArray[Any], str]] = []
        self._values: Mapping[str, int] | None = None
        """The values of symbols that the arrays in `_calls` are of."""

    def run(self, values: Mapping[str, int]) -> None:
        """Calls every function; raises DeviceError naming the one that failed."""
        if self._values != values:
            self._values = None
            self._calls = [self._call(step, values) for step in self._steps]
            self._values = dict(values)
        for function, sources, out, name in self._calls:
            try:
                function.compute(sources, out, values)
            except Exception as error:
                raise DeviceError(f"{self._device}: {function.name} -> {name}: {error}") from error

    def _call(
        self, step: StepSpec, values: Mapping[str, int]
    ) -> tuple[HostFunction, list[NDArray[Any]], NDArray[Any], str]:
        """The function of a step, its sources and its result in place, and the result's name."""
        assert isinstance(step.params, HostParams)
        sources = [self._array(i, values) for i in step.src]
        name = self._program.tensors[step.dst].name
        return step.params.function, sources, self._array(step.dst, values), name

    def _array(self, index: int, values: Mapping[str, int]) -> NDArray[Any]:
        """The elements of a contiguous tensor, in place."""
        spec: TensorSpec = self._program.tensors[index]
        memory = self._memories[spec.buffer].host()
        if memory is None:
            name = self._program.buffers[spec.buffer].buffer_type.name
            raise ProgramError(f"{self._device} cannot address {name} memory")
        count = math.prod(evaluate(n, values) for n in spec.ne)
        start = evaluate(spec.offset, values)
        storage = np.dtype(spec.dtype.storage)
        return memory[start : start + count * storage.itemsize].view(storage)
