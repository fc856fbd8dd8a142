"""The `opencl` devices: GPUs, and whatever else has an OpenCL driver, through pyopencl.

`devices` finds them, `driver` is all that is asked of one, `memory` and `queue` are its buffers and
order, `planes` the layout of weights, `ops` says which kernels an op needs and `kernels` has them,
`builds` compiles and keeps them, `executable` turns a split into a list of launches.
"""

from __future__ import annotations

from typing import Any

from weft.backends.opencl.backend import OpenCLBackend
from weft.backends.opencl.devices import find_devices, pick
from weft.backends.opencl.support import OpenCLRules
from weft.backends.registry import BackendInfo
from weft.errors import DeviceError
from weft.options import require_options

__all__ = ["OpenCLBackend", "describe", "make", "rules"]

_OPTIONS = ("copy_weights", "limits", "planes")


def describe() -> list[BackendInfo]:
    """Every device, those that cannot be used with the reason."""
    try:
        found = find_devices()
    except DeviceError as error:
        return [BackendInfo("opencl", False, str(error), "")]
    infos = []
    for device in found:
        why = device.unusable
        infos.append(BackendInfo(f"opencl:{device.number}", not why, why, device.description))
    return infos


def make(suffix: str | None = None, **options: Any) -> OpenCLBackend:
    """`opencl`: the first GPU that works, else the first device; `opencl:N`: that one. Options are
    those of `OpenCLBackend`."""
    require_options("opencl", options, _OPTIONS)
    device = pick(suffix)
    return OpenCLBackend(device, "opencl" if suffix is None else f"opencl:{suffix}", **options)


def rules() -> OpenCLRules:
    """What there are kernels for, on any device."""
    return OpenCLRules()
