"""An OpenCL device as planner and executor see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.kernels import KernelBackend
from weft.backends.kernels.memory import DeviceBufferType
from weft.backends.kernels.ops.products import products
from weft.backends.opencl.devices import Found, limits_for
from weft.backends.opencl.driver import Driver


class OpenCLBackend(KernelBackend):
    """A device with buffers and a queue of its own.

    `limits` replaces sizes of groups by name, e.g. `{"tile": 32}`. `copy_weights` gives weights
    buffers of their own even where the device works in the host's memory. `planes` repacks weights
    into planes, by default on GPUs. `activations` are bytes beside weights in planes (`"native"`,
    the default on GPUs), or floats (`"f32"`)."""

    driver: Driver

    def __init__(
        self,
        device: Found,
        name: str,
        limits: Mapping[str, Any] | None = None,
        copy_weights: bool = False,
        planes: bool | None = None,
        activations: str | None = None,
    ) -> None:
        self.device = device
        driver = Driver(device, name)
        memory = DeviceBufferType(
            driver, f"OpenCL{device.number}", device.memory, device.max_buffer, device.alignment,
            driver.adopt if device.shares_memory and not copy_weights else None,
            device.shares_memory,
        )  # fmt: skip
        is_gpu = device.kind in ("GPU", "IGPU")
        use_planes = is_gpu if planes is None else planes
        super().__init__(driver, device.kind, memory, limits_for(device), limits, use_planes)
        self.own = products(name, self.limits, activations, wanted=is_gpu)
