"""A device with kernels as planner and executor see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from typing import Any

from weft.backends.base import BackendBase, DeviceKind, Event, Queue, QueueSpan, Support, Use
from weft.backends.kernels.driver import CopiesMeanwhile, KernelDriver
from weft.backends.kernels.executable import KernelExecutable
from weft.backends.kernels.launch import Limits
from weft.backends.kernels.memory import DeviceBufferType
from weft.backends.kernels.ops import NO_OWN, OwnKernels
from weft.backends.kernels.planes import PlanesBufferType, can_be_planes
from weft.backends.kernels.support import GENERALIZED, supports
from weft.backends.memory import BufferType, Memory, WeightBufferType
from weft.errors import DeviceError
from weft.graph.rewrite import REWRITES
from weft.graph.tensor import Tensor
from weft.options import require_options
from weft.program import Layout


class KernelEvent:
    """A point in a queue."""

    __slots__ = ("_done", "_driver", "_event", "_lane")

    def __init__(self, driver: KernelDriver, event: Any, lane: int) -> None:
        self._driver = driver
        self._event = event
        self._lane = lane
        self._done = False

    def is_done(self) -> bool:
        """Whether the point is reached, or a failing device has given it up."""
        if not self._done:
            self._done = self._driver.is_done(self._event)
        return self._done

    def wait(self) -> None:
        """Blocks until it is reached; raises DeviceError if the device failed."""
        self._driver.wait(self._event)
        self._done = True


class KernelQueue:
    """A queue of a device: the calling thread enqueues work, which is done in order."""

    def __init__(self, driver: KernelDriver, lane: int = 0) -> None:
        self._driver = driver
        self._lane = lane
        self._lanes = driver if isinstance(driver, CopiesMeanwhile) else None
        self.copies = KernelQueue(driver, 1) if self._lanes and lane == 0 else None
        """The queue of copies, where the device has one."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Enqueues the work at once."""
        driver, lane = self._driver, self._lane
        with nullcontext() if self._lanes is None else self._lanes.in_queue(lane):
            work()
            return KernelEvent(driver, driver.marker(), lane)

    def wait_for(self, event: Event) -> None:
        """Waits for events of devices that it does not reach in the calling thread, while enqueued
        work continues; the others are left to the devices.

        Events of this queue need no wait, because it is in order."""
        if not self.orders(event):
            event.wait()
        elif isinstance(event, KernelEvent) and not event._done and self._lanes is not None:
            if (event._driver, event._lane) != (self._driver, self._lane):
                self._lanes.order(event._event, self._lane)

    def orders(self, event: Event) -> bool:
        """Whether `wait_for` does not block."""
        return isinstance(event, KernelEvent) and (
            event._driver is self._driver or self._driver.reaches(event._driver)
        )

    def synchronize(self) -> None:
        """Blocks until all work is done; raises DeviceError if the device failed."""
        self._driver.wait()
        self._driver.check()

    def close(self) -> None:
        """Waits for all work; the queue belongs to the device and stays."""
        self._driver.wait()


_MIN_BATCH = 32
"""The number of columns from which sending weights of the host is faster (the reference's
bound)."""


class KernelBackend(BackendBase):
    """A device with buffers and a queue of its own, for which kernels are compiled."""

    device: Any
    """The device as it was found; its `description` is a line about it."""
    rewrites = tuple(REWRITES)
    generalizes = GENERALIZED

    def __init__(
        self,
        driver: KernelDriver,
        kind: DeviceKind,
        memory: DeviceBufferType,
        limits: Limits,
        changed: Mapping[str, Any] | None,
        planes: bool,
        own: OwnKernels = NO_OWN,
    ) -> None:
        """`changed` replaces limits by name; with `planes`, weights are repacked. `own` has
        launches of kernels that only this kind of device has."""
        self.name = driver.name
        self.kind: DeviceKind = kind
        self.limits = _limits(driver.name, limits, changed or {})
        self.driver = driver
        self.own = own
        self.memory_type = memory
        self.buffer_type: BufferType = memory
        self._planes = PlanesBufferType(driver, memory) if planes else None

    @property
    def activations(self) -> str:
        """`native` where products make bytes of activations, else `f32`."""
        return "native" if "MUL_MAT" in self.own.launches else "f32"

    def supports_op(self, node: Tensor) -> Support:
        """Supports the nodes for which there are kernels; a refusal is a sentence."""
        return supports(node, self.name, self.lacks)

    def lacks(self, node: Tensor) -> str | None:
        """Says in a sentence what the device lacks for the kernels of a node; None: nothing."""
        return None

    def offload_op(self, node: Tensor) -> bool:
        """Asks for products of many columns, on a device with memory of its own."""
        return self.kind == "GPU" and self.offload_batch(node) >= _MIN_BATCH

    def memory_limit(self) -> int | None:
        """The bytes that are free in the device's memory."""
        return max(0, self.memory_type.capacity - self.memory_type.in_use)

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """Planes, where the device reads them faster and the kernels of all uses support them."""
        if self.limits.binding and leaf.max_bytes > self.limits.binding:
            return None  # kernels read the blocks in pieces
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
        return KernelQueue(self.driver)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> KernelExecutable:
        """The split as launches; builds kernels. Raises DeviceError."""
        return KernelExecutable(self.driver, self.own, self.limits, program, split, memories)

    @property
    def why_untimed(self) -> str:
        """Why the device tells no times of kernels; empty where it does."""
        return self.driver.why_untimed

    def record_queue(self, on: bool) -> None:
        """Starts recording the device's times, or stops; calls nest."""
        self.driver.record_times(on)

    def recorded(self) -> Callable[[], list[QueueSpan]]:
        """The spans of work enqueued since the last call, once it is done."""
        record = self.driver.record
        return list if record is None else record.take()

    def __repr__(self) -> str:
        return self.name


def _limits(name: str, limits: Limits, changed: Mapping[str, Any]) -> Limits:
    if not isinstance(changed, Mapping):
        raise DeviceError(
            f"{name}: limits are {changed!r}; give sizes by name, e.g. {{'tile': 32}}"
        )
    require_options(f"limits of {name}", changed, [field.name for field in fields(Limits)])
    if changed.get("subgroups") and not limits.subgroups:
        raise DeviceError(f"{name} has no subgroups to exchange numbers in; leave that limit out")
    limits = replace(limits, **changed)
    for what in ("lanes", "row_items"):  # sums over them halve the group repeatedly
        n = getattr(limits, what)
        if not isinstance(n, int) or n < 1 or n & (n - 1):
            raise DeviceError(f"{name}: limit {what} is {n}; it must be a power of two")
    return limits
