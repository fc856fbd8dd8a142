"""The `webgpu` devices: GPUs of every maker by Metal, Vulkan or Direct3D 12, through wgpu.

`devices` finds them; `driver` makes all requests to a device, `record` has times.
The kernels are OpenCL's:
`translation/` writes them in WGSL, `builds` keeps what it wrote. All else is
`weft.backends.kernels`.
"""

from __future__ import annotations

from typing import Any

from weft.backends.kernels import KernelRules
from weft.backends.kernels.found import infos
from weft.backends.registry import BackendInfo
from weft.backends.webgpu.backend import WebGPUBackend
from weft.backends.webgpu.devices import details, find_devices, pick
from weft.options import require_options

__all__ = ["WebGPUBackend", "describe", "make", "rules"]

_OPTIONS = ("activations", "limits", "memory", "planes")


def describe() -> list[BackendInfo]:
    """Every device; one that cannot be used has the reason."""
    return infos("webgpu", find_devices, details)


def make(suffix: str | None = None, **options: Any) -> WebGPUBackend:
    """`webgpu` is the first GPU, else the first device; `webgpu:N` is device number N. Options
    belong to `WebGPUBackend`."""
    require_options("webgpu", options, _OPTIONS)
    device = pick(suffix)
    return WebGPUBackend(device, "webgpu" if suffix is None else f"webgpu:{suffix}", **options)


def rules() -> KernelRules:
    """The nodes for which there are kernels, on any device."""
    return KernelRules("webgpu")
