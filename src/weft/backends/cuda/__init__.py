"""The `cuda` devices: NVIDIA's GPUs, through cuda-bindings and kernels that NVRTC compiles.

`devices` finds them, `calls` is what a device is asked, which `bindings` sends to NVIDIA's driver;
`driver` keeps buffers, parameters and staging over it, `packed` has kernels that came with weft,
`builds` compiles and keeps others, `record` has times.
`ops` has the launches of kernels that only CUDA has (`kernels`). All else is
`weft.backends.kernels`.
"""

from __future__ import annotations

from typing import Any

from weft.backends.cuda.backend import CudaBackend
from weft.backends.cuda.devices import find_devices, pick
from weft.backends.kernels import KernelRules
from weft.backends.kernels.found import infos
from weft.backends.registry import BackendInfo
from weft.options import require_options

__all__ = ["CudaBackend", "describe", "make", "rules"]

_OPTIONS = ("activations", "copy_weights", "limits", "own", "planes")


def describe() -> list[BackendInfo]:
    """Every device; where there is none, what is missing."""
    return infos("cuda", find_devices)


def make(suffix: str | None = None, **options: Any) -> CudaBackend:
    """`cuda` is the first GPU that works, `cuda:N` the GPU of a number. Options belong to
    `CudaBackend`."""
    require_options("cuda", options, _OPTIONS)
    device = pick(suffix)
    return CudaBackend(device, "cuda" if suffix is None else f"cuda:{suffix}", **options)


def rules() -> KernelRules:
    """The nodes for which there are kernels, on any device."""
    return KernelRules("cuda")
