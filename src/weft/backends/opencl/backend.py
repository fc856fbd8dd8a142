"""An OpenCL device as planner and executor see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from weft.backends.base import BackendBase, DeviceKind, Queue, QueueSpan, Support, Use
from weft.backends.memory import BufferType, Memory, WeightBufferType
from weft.backends.opencl.devices import Found, limits_for
from weft.backends.opencl.driver import Driver
from weft.backends.opencl.executable import OpenCLExecutable
from weft.backends.opencl.launch import Limits
from weft.backends.opencl.memory import OpenCLBufferType
from weft.backends.opencl.planes import PlanesBufferType, can_be_planes
from weft.backends.opencl.queue import OpenCLQueue
from weft.backends.opencl.support import GENERALIZED, supports
from weft.errors import DeviceError
from weft.graph.rewrite import REWRITES
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.options import require_options
from weft.program import Layout

__all__ = ["OpenCLBackend"]

_MIN_BATCH = 32
"""The number of columns from which sending weights of the host pays (the reference's bound)."""


class OpenCLBackend(BackendBase):
    """A device with buffers and a queue of its own.

    `limits` replaces sizes of groups by name, e.g. `{"tile": 32}`. `copy_weights` gives weights
    buffers of their own even where the device works in the host's memory. `planes` repacks weights
    into planes, by default on GPUs."""

    rewrites = tuple(REWRITES)
    generalizes = GENERALIZED

    def __init__(
        self,
        device: Found,
        name: str,
        limits: Mapping[str, Any] | None = None,
        copy_weights: bool = False,
        planes: bool | None = None,
    ) -> None:
        self.name = name
        self.kind: DeviceKind = device.kind
        self.device = device
        known = [field.name for field in fields(Limits)]
        require_options(f"limits of {name}", limits or {}, known)
        self.limits = replace(limits_for(device), **(limits or {}))
        for what in ("lanes", "row_items"):  # sums over them halve the group repeatedly
            n = getattr(self.limits, what)
            if not isinstance(n, int) or n < 1 or n & (n - 1):
                raise DeviceError(f"{name}: limit {what} is {n}; it must be a power of two")
        self.driver = Driver(device, name)
        self.memory_type = OpenCLBufferType(self.driver, name)
        self.memory_type.shares = device.shares_memory and not copy_weights
        self.buffer_type: BufferType = self.memory_type
        use_planes = device.kind in ("GPU", "IGPU") if planes is None else planes
        self._planes = PlanesBufferType(self.driver, self.memory_type) if use_planes else None

    def supports_op(self, node: Tensor) -> Support:
        """Supports the nodes for which there are kernels; a refusal is a sentence."""
        return supports(node, self.name)

    def offload_op(self, node: Tensor) -> bool:
        """Asks for products of many columns, on a device with memory of its own."""
        if node.op.name not in ("MUL_MAT", "MUL_MAT_ID") or self.kind != "GPU":
            return False
        return upper(node.ne[2 if node.op.name == "MUL_MAT_ID" else 1]) >= _MIN_BATCH

    def memory_limit(self) -> int | None:
        """The bytes that are free in the device's memory."""
        return max(0, self.memory_type.capacity - self.memory_type.in_use)

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """Planes, where the device reads them faster and the kernels of all uses know them."""
        return self._planes if self._planes and can_be_planes(leaf, uses) else None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts of weights that the device uses."""
        return () if self._planes is None else (self._planes.layout,)

    def weight_memory(self, layout: Layout) -> WeightBufferType:
        """The memory for weights in a layout; raises DeviceError for one it does not use."""
        if self._planes is None or layout != self._planes.layout:
            raise DeviceError(f"{self.name} reads no weights in the layout {layout}")
        return self._planes

    def make_queue(self) -> Queue:
        """The device's queue."""
        return OpenCLQueue(self.driver)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> OpenCLExecutable:
        """The split as launches; builds kernels. Raises DeviceError."""
        return OpenCLExecutable(self.driver, self.limits, program, split, memories)

    def record_queue(self, on: bool) -> None:
        """Starts recording the device's times, or stops; calls nest."""
        self.driver.record_times(on)

    def recorded(self) -> Callable[[], list[QueueSpan]]:
        """The spans of work enqueued since the last call, once it is done."""
        record = self.driver.record
        return list if record is None else record.take()

    def __repr__(self) -> str:
        return self.name
