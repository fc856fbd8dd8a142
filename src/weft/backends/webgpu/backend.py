"""A device of WebGPU as planner and executor see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.kernels import KernelBackend
from weft.backends.kernels.memory import DeviceBufferType
from weft.backends.kernels.needs import buffers, computed_types, largest
from weft.backends.kernels.ops.products import products
from weft.backends.webgpu.devices import WIDE, Found, limits_for
from weft.backends.webgpu.driver import Driver
from weft.errors import ArgumentError
from weft.free_memory import available_bytes
from weft.graph.tensor import Tensor

_CAPACITY = 8 << 30
"""Bytes of a GPU that does not say how many it has."""


class WebGPUBackend(KernelBackend):
    """A device with buffers and a queue of its own.

    `memory` is the number of bytes that it has. WebGPU does not tell; by default a GPU with memory
    of its own has 8 GiB, and others have what the system has free. `limits` replaces sizes of
    groups by name, e.g. `{"tile": 32}`. `activations` are bytes beside weights in planes
    (`"native"`, the default), or floats (`"f32"`). `planes` repacks weights into planes, by default
    unless a processor has activations that are floats."""

    driver: Driver

    def __init__(
        self,
        device: Found,
        name: str,
        memory: int | None = None,
        limits: Mapping[str, Any] | None = None,
        planes: bool | None = None,
        activations: str | None = None,
    ) -> None:
        self.device = device
        if memory is not None and (not isinstance(memory, int) or memory < 1):
            raise ArgumentError(
                f"{name}: memory is {memory!r}; it is a number of bytes, at least 1"
            )
        driver = Driver(device, name)
        capacity = _CAPACITY if memory is None else memory
        if memory is None and device.in_host:
            capacity = available_bytes() or _CAPACITY
        blocks = DeviceBufferType(
            driver, f"WebGPU{device.number}", capacity, device.max_buffer, 256,
            in_host=device.in_host,
        )  # fmt: skip
        self.has_wide = device.has_wide
        is_gpu, use_bytes = device.kind in ("GPU", "IGPU"), activations != "f32"
        use_planes = is_gpu or use_bytes if planes is None else planes
        super().__init__(driver, device.kind, blocks, limits_for(device), limits, use_planes)
        self.own = products(name, self.limits, activations, wanted=True)

    def lacks(self, node: Tensor) -> str | None:
        """The buffers of a kernel, or the integers of 64 bits, that the device does not have."""
        needed = buffers(node, self.limits, self.own) + 1  # and the one of arguments
        if needed > self.device.n_buffers:
            return f"needs {needed} buffers, {self.device.name} has {self.device.n_buffers}"
        binding = self.limits.binding
        if binding and (nbytes := largest(node, self.limits, self.own)) > binding:
            return (
                f"its kernel has {nbytes} bytes of a buffer at once, and {self.device.name} gives "
                f"kernels at most {binding}"
            )
        if not self.has_wide and "i64" in computed_types(node):
            return f"{self.device.name} has no integers of 64 bits ({WIDE})"
        return None
