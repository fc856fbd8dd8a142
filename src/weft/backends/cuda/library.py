"""cuda-bindings, imported on first use; without it, or without a driver, an error says what to
install."""

from __future__ import annotations

from typing import Any

from weft.backends.cuda.calls import CudaError
from weft.errors import DeviceError
from weft.extras import how_to_install
from weft.flags import said_to_others

_OLDEST = 13_000
"""The version of CUDA that the driver must support, as `cuDriverGetVersion` returns it."""
_STICKY = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ILLEGAL_INSTRUCTION", "ASSERT",
        "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "HARDWARE_STACK_ERROR",
        "ECC_UNCORRECTABLE", "CONTEXT_IS_DESTROYED", "EXTERNAL_DEVICE", "NVLINK_UNCORRECTABLE",
        "DEINITIALIZED", "CONTAINED",
    )
)  # fmt: skip
"""Errors after which the context is of no use (CUDA driver API, `CUresult`)."""


def _bindings(module: str) -> Any:
    try:
        if module == "driver":
            from cuda.bindings import driver as found
        else:
            from cuda.bindings import nvrtc as found
    except ModuleNotFoundError as error:
        raise DeviceError(
            f"backend 'cuda' needs the Python package 'cuda-bindings'; {how_to_install('cuda')}"
        ) from error
    except ImportError as error:
        raise DeviceError(f"cuda-bindings cannot be loaded ({error}); reinstall it") from error
    return found


def driver() -> Any:
    """The module of the driver's API; raises DeviceError with the extra when it is missing, and
    without an NVIDIA driver."""
    found = _bindings("driver")
    try:
        (answer,) = found.cuInit(0)
    except Exception as error:  # cuda-bindings looks for the driver at the first call
        raise DeviceError(
            "no NVIDIA driver is installed (libcuda is not found); install the one of your GPU"
        ) from error
    if answer != 0:
        raise DeviceError(
            f"the NVIDIA driver does not start ({answer.name}); is there a GPU?{hidden()}"
        )
    version = called(found.cuDriverGetVersion())
    if version < _OLDEST:
        raise DeviceError(
            f"the NVIDIA driver knows CUDA {version // 1000}.{version % 1000 // 10} and weft needs "
            f"{_OLDEST // 1000}.0; install a driver of version 580 or later"
        )
    return found


def hidden() -> str:
    """A sentence for messages about CUDA_VISIBLE_DEVICES, which hides GPUs from the driver."""
    return said_to_others("CUDA_VISIBLE_DEVICES")


def nvrtc() -> Any:
    """The module of the run-time compiler; raises DeviceError with the extra when it is missing."""
    found = _bindings("nvrtc")
    try:
        found.nvrtcVersion()
    except Exception as error:
        raise DeviceError(
            "backend 'cuda' needs NVIDIA's run-time compiler (package 'nvidia-cuda-nvrtc'); "
            + how_to_install("cuda")
        ) from error
    return found


def called(answer: tuple[Any, ...]) -> Any:
    """The result of a call of the driver's; raises CudaError with the name of its error."""
    error = answer[0]
    if error != 0:
        name = getattr(error, "name", str(error))
        no_memory = name == "CUDA_ERROR_OUT_OF_MEMORY"
        raise CudaError(name, no_memory, sticky=name in _STICKY)
    return answer[1] if len(answer) == 2 else answer[1:]
