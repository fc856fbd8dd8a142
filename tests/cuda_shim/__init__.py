"""CUDA kernels on this processor: what they mean, run and checked without a GPU (README.md).

`shim.h` defines the names that kernels use, `runtime.cpp` runs blocks and checks accesses,
`library` compiles and launches, `calls` is a device. Importing this package makes the devices
`cuda:shim`, `cuda:shim0`, `cuda:shim1`, which check every access of memory, and
`cuda:shim-unchecked`.
"""

from functools import partial

from tests.cuda_shim.calls import ShimCalls
from tests.cuda_shim.library import ShimKernels, compile_shim, compiler
from weft.backends.cuda.devices import STAND_INS, Found

__all__ = ["SHIM", "ShimCalls", "ShimKernels", "compile_shim", "compiler"]


def _device(number: int, checks: bool = True) -> Found:
    return Found(
        number,
        "this processor, through the shim",
        architecture=80,
        memory=16 << 30,
        units=1,
        shared=96 << 10,
        integrated=False,
        pageable=True,
        open=partial(ShimCalls, checks=checks),
    )


SHIM = _device(0)
STAND_INS.update(
    {
        "shim": SHIM,
        "shim0": SHIM,
        "shim1": _device(1),
        "shim-unchecked": _device(0, checks=False),
    }
)
