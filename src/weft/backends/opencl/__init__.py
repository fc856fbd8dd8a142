"""The `opencl` devices: GPUs, and all else that has an OpenCL driver, through pyopencl.

`devices` finds them, after `probe` has tried each; `driver` makes all requests to a device,
`builds` compiles and keeps kernels, `record` has times. All else is `weft.backends.kernels`.
"""

from __future__ import annotations

from typing import Any

from weft.backends.kernels import KernelRules
from weft.backends.kernels.found import infos
from weft.backends.opencl.backend import OpenCLBackend
from weft.backends.opencl.devices import find_devices, pick
from weft.backends.registry import BackendInfo
from weft.options import require_options

__all__ = ["OpenCLBackend", "describe", "make", "rules"]

_OPTIONS = ("activations", "copy_weights", "limits", "planes")


def describe() -> list[BackendInfo]:
    """Every device; one that cannot be used has the reason."""
    return infos("opencl", find_devices)


def make(suffix: str | None = None, **options: Any) -> OpenCLBackend:
    """`opencl` is the first GPU that works, else the first device; `opencl:N` is device number N.
    Options belong to `OpenCLBackend`."""
    require_options("opencl", options, _OPTIONS)
    device = pick(suffix)
    return OpenCLBackend(device, "opencl" if suffix is None else f"opencl:{suffix}", **options)


def rules() -> KernelRules:
    """The nodes for which there are kernels, on any device."""
    return KernelRules("opencl")
