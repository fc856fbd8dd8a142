"""A device of WebGPU as planner and executor see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.base import Support
from weft.backends.kernels import KernelBackend
from weft.backends.kernels.memory import DeviceBufferType
from weft.backends.kernels.ops.products import products
from weft.backends.webgpu.devices import Found, limits_for
from weft.backends.webgpu.driver import Driver
from weft.free_memory import available_bytes
from weft.graph.tensor import Tensor

_CAPACITY = 8 << 30
"""Bytes of a GPU that does not say how many it has."""


class WebGPUBackend(KernelBackend):
    """A device with buffers and a queue of its own.

    `memory` is the number of bytes that it has. WebGPU does not tell; by default a GPU with memory
    of its own has 8 GiB, and others have what the system has free. `limits` replaces sizes of
    groups by name, e.g. `{"tile": 32}`. `planes` repacks weights into planes, by default on
    GPUs. `activations` are bytes beside weights in planes (`"native"`, the default on GPUs), or
    floats (`"f32"`)."""

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
        driver = Driver(device, name)
        capacity = _CAPACITY if memory is None else memory
        if memory is None and device.kind != "GPU":
            capacity = available_bytes() or _CAPACITY
        blocks = DeviceBufferType(
            driver, f"WebGPU{device.number}", capacity, device.max_buffer, 256
        )
        self.has_wide = device.has_wide
        is_gpu = device.kind in ("GPU", "IGPU")
        use_planes = is_gpu if planes is None else planes
        super().__init__(driver, device.kind, blocks, limits_for(device), limits, use_planes)
        self.own = products(name, self.limits, activations, wanted=is_gpu)

    def supports_op(self, node: Tensor) -> Support:
        """Supports the nodes for which there are kernels, if the device has the integers of 64 bits
        and the number of buffers that they need."""
        needed = _BUFFERS.get(node.op.name, 0)
        if needed > self.device.n_buffers:
            why = f"{self.device.name} has {self.device.n_buffers}"
            return Support(False, f"{node.op} on {self.name}: needs {needed} buffers, {why}")
        if not self.has_wide and _computes_wide(node):
            why = f"{self.device.name} has no integers of 64 bits (shader-int64)"
            return Support(False, f"{node.op} on {self.name}: {why}")
        return super().supports_op(node)


_BUFFERS = {"INDEX_PUT": 9, "RWKV_WKV7": 9, "SSM_SCAN": 10}
"""The buffers of kernels that have more than 8, with the one of arguments."""
_OF_NUMBERS = ("BINARY", "CONVERT", "CUMULATE", "MAP", "REDUCE")
_READING_NUMBERS = (*_OF_NUMBERS, "ARG_REDUCE", "CUMULATE_ARG", "PAD_ND", "SEARCH_SORTED",
                    "SORT_INDICES")  # fmt: skip
_ADDING_NUMBERS = ("INDEX_PUT", "SCATTER")


def _computes_wide(node: Tensor) -> bool:
    """Whether an op computes with integers of 64 bits that are more than indices."""
    op, read = node.op.name, [] if node.op.name not in _READING_NUMBERS else node.src
    if op in _ADDING_NUMBERS:
        read = node.src[:1]
    wide = any(source is not None and source.dtype.name == "i64" for source in read)
    return wide or (op in _OF_NUMBERS and node.dtype.name == "i64")
