"""A CUDA device as planner and executor see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.cuda.calls import CudaError
from weft.backends.cuda.devices import Found, limits_for
from weft.backends.cuda.driver import CudaDriver
from weft.backends.cuda.ops import EXACT, KERNELS
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.memory import DeviceBufferType
from weft.backends.kernels.ops import NO_OWN, OwnKernels
from weft.backends.kernels.ops.products import require_activations
from weft.errors import DeviceError

_KEPT = 256 << 20
"""Bytes that are left to the driver for kernels, their stacks and graphs, which it takes later."""
_ALIGNMENT = 256


class CudaBackend(KernelBackend):
    """A device with buffers and streams of its own.

    `limits` replaces sizes of blocks by name, e.g. `{"tile": 32}`. `copy_weights` gives weights
    memory of their own even where the device reads the host's. `planes` (the default) repacks
    weights into planes. `own` (the default) uses the kernels that only CUDA has where they know a
    call; with `activations="f32"`, other kernels compute products, and round no activations."""

    driver: CudaDriver
    cells_step = 64

    def __init__(
        self,
        device: Found,
        name: str,
        limits: Mapping[str, Any] | None = None,
        copy_weights: bool = False,
        planes: bool = True,
        own: bool = True,
        activations: str | None = None,
    ) -> None:
        self.device = device
        try:
            calls = device.open(device.number)
            capacity = max(0, calls.free_bytes() - _KEPT)
        except CudaError as error:
            raise DeviceError(f"{name}: {device.name} cannot be opened: {error}") from error
        driver = CudaDriver(calls, name)
        shares = device.integrated and device.pageable and not copy_weights
        memory = DeviceBufferType(
            driver, f"CUDA{device.number}", capacity, None, _ALIGNMENT,
            driver.adopt if shares else None, device.integrated,
        )  # fmt: skip
        super().__init__(
            driver,
            device.kind,
            memory,
            limits_for(device.shared),
            limits,
            planes,
            _own(name, activations) if own else NO_OWN,
        )

    def memory_limit(self) -> int | None:
        """The bytes that plans may use: what is free now, also of other processes, less the share
        that the driver takes when kernels are loaded."""
        with self.driver.guarded(f"{self.name}: asking for free memory"):
            free = self.driver.calls.free_bytes() - _KEPT
        return max(0, min(free, self.memory_type.capacity - self.memory_type.in_use))


def _own(name: str, activations: str | None) -> OwnKernels:
    require_activations(name, activations)
    return EXACT if activations == "f32" else KERNELS
