"""Devices for tests of the drivers: the reference kernels in several memories; some fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import DeviceKind, Event, Queue, Support
from weft.backends.memory import BufferType, HostMemory, Memory
from weft.backends.reference import ReferenceBackend
from weft.backends.reference.memory import ReferenceMemory
from weft.execute.devices import ThreadQueue
from weft.graph.tensor import Tensor


class SharedMemory(ReferenceMemory):
    """Reference memory that the host addresses too."""

    def host(self) -> NDArray[np.uint8]:  # type: ignore[override]
        return self.private()


class Type:
    """A buffer type of its own."""

    def __init__(self, name: str, *, is_host: bool = False, alignment: int = 32) -> None:
        self.name = name
        self.device = name
        self.alignment = alignment
        self.max_size: int | None = None
        self.is_host = is_host

    def alloc_size(self, tensor: Tensor) -> int:
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        kind = SharedMemory if self.is_host else ReferenceMemory
        memory: Memory = kind(HostMemory.zeros(nbytes, self.alignment))
        return memory


class Device(ReferenceBackend):
    """The reference kernels as a device with a name and a memory of its own."""

    def __init__(
        self,
        name: str,
        kind: DeviceKind = "GPU",
        buffer_type: BufferType | None = None,
        *,
        takes: Callable[[Tensor], bool] | None = None,
        offloads: Callable[[Tensor], bool] | None = None,
        seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.kind = kind
        self.buffer_type = Type(name) if buffer_type is None else buffer_type
        self._takes = takes
        self._offloads = offloads
        self.seconds = seconds
        """Added to each run of a split, so that a driver that does not wait for it is caught."""
        self.during: Callable[[], None] | None = None
        """Called in each run of a split, once it counts as begun."""
        self.begun = 0
        """How many runs of splits have begun."""
        self.threads: set[str] = set()

    def supports_op(self, node: Tensor) -> Support:
        if self._takes is not None and not self._takes(node):
            return Support(False, "not wanted")
        return super().supports_op(node)

    def supports_buffer_type(self, buffer_type: Any) -> bool:
        return buffer_type is self.buffer_type

    def offload_op(self, node: Tensor) -> bool:
        return self._offloads is not None and self._offloads(node)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Any:
        if self.buffer_type.is_host:  # weights of the user lie in plain host memory
            memories = [SharedMemory(m) if isinstance(m, HostMemory) else m for m in memories]
        return _Logged(self, super().lower(program, split, memories))


class _Logged:
    def __init__(self, device: Device, inner: Any) -> None:
        self._device = device
        self._inner = inner

    def run(self, values: Mapping[str, int]) -> None:
        device = self._device
        device.threads.add(threading.current_thread().name)
        device.begun += 1
        if device.during is not None:
            device.during()
        if device.seconds:
            time.sleep(device.seconds)
        self._inner.run(values)


def cpu(name: str = "host") -> Device:
    """A CPU-type device over host memory."""
    return Device(name, "CPU", Type(name, is_host=True))


# -- devices that fail -----------------------------------------------------------------------------


class Faulty(Device):
    """Fails where `fail` says: "allocate", "lower", "run", "read", "write" or "lost" (everything).

    `after`: how many such calls still work."""

    def __init__(self, name: str = "faulty", kind: DeviceKind = "GPU") -> None:
        super().__init__(name, kind)
        self.fail = ""
        self.after = 0
        self.buffer_type = _FaultyType(self)

    def check(self, what: str) -> None:
        """Raises if it is time to."""
        if self.fail in (what, "lost"):
            if self.after > 0:
                self.after -= 1
                return
            if self.fail == "allocate":
                raise MemoryError(f"{self.name}: no memory")
            raise RuntimeError(f"{self.name}: {what} failed")

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Any:
        self.check("lower")
        return _FaultyExecutable(self, super().lower(program, split, memories))


class _FaultyExecutable:
    def __init__(self, device: Faulty, inner: Any) -> None:
        self._device = device
        self._inner = inner

    def run(self, values: Mapping[str, int]) -> None:
        self._device.check("run")
        self._inner.run(values)


class _FaultyType(Type):
    def __init__(self, device: Faulty) -> None:
        super().__init__(device.name)
        self._device = device

    def allocate(self, nbytes: int) -> Memory:
        self._device.check("allocate")
        return _FaultyMemory(self._device, HostMemory.zeros(nbytes, self.alignment))


class _FaultyMemory(ReferenceMemory):
    __slots__ = ("_device",)

    def __init__(self, device: Faulty, block: HostMemory) -> None:
        super().__init__(block)
        self._device = device

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        self._device.check("read")
        return super().read(offset, nbytes)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._device.check("write")
        super().write(offset, data)


# -- a device with a queue of its own --------------------------------------------------------------


class AsyncDevice(Device):
    """Runs of splits return at once and are done later, in order, by a thread that stands for the
    hardware; access to its memory waits for them, as a blocking read of a real device does."""

    def __init__(self, name: str, kind: DeviceKind = "GPU", *, seconds: float = 0.0) -> None:
        super().__init__(name, kind, seconds=seconds)
        self.buffer_type = _AsyncType(self)
        self.hardware = ThreadQueue(name)
        self.error: Exception | None = None
        self.fail = False

    def make_queue(self) -> Queue:
        return _OwnQueue(self)

    def lower(self, program: Any, split: int, memories: Sequence[Memory]) -> Any:
        return _AsyncExecutable(self, super().lower(program, split, memories))

    def idle(self) -> None:
        """Waits for the hardware; raises what failed there."""
        self.hardware.synchronize()
        error, self.error = self.error, None
        if error is not None:
            raise error


class _AsyncExecutable:
    def __init__(self, device: AsyncDevice, inner: Any) -> None:
        self._device = device
        self._inner = inner

    def run(self, values: Mapping[str, int]) -> None:
        device, now = self._device, dict(values)

        def later() -> None:
            try:
                if device.fail:
                    raise RuntimeError("hardware fault")
                self._inner.run(now)
            except Exception as error:
                device.error = error

        device.hardware.submit(later)


class _OwnQueue:
    def __init__(self, device: AsyncDevice) -> None:
        self._device = device

    def submit(self, work: Callable[[], None]) -> Event:
        work()
        return self._device.hardware.submit(lambda: None)

    def wait_for(self, event: Event) -> None:
        self._device.hardware.wait_for(event)

    def synchronize(self) -> None:
        self._device.idle()

    def close(self) -> None:
        self._device.hardware.close()


class _AsyncType(Type):
    def __init__(self, device: AsyncDevice) -> None:
        super().__init__(device.name)
        self._device = device

    def allocate(self, nbytes: int) -> Memory:
        return _AsyncMemory(self._device, HostMemory.zeros(nbytes, self.alignment))


class _AsyncMemory(ReferenceMemory):
    __slots__ = ("_device",)

    def __init__(self, device: AsyncDevice, block: HostMemory) -> None:
        super().__init__(block)
        self._device = device

    def read(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        self._device.hardware.synchronize()
        return super().read(offset, nbytes)

    def write(self, offset: int, data: NDArray[np.uint8]) -> None:
        self._device.hardware.synchronize()
        super().write(offset, data)
