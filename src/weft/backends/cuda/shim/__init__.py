"""CUDA kernels on this processor: what they mean, run and checked without a GPU (README.md).

`shim.h` defines the names that kernels use, `runtime.cpp` runs blocks and checks accesses,
`library` compiles and launches.
"""

from weft.backends.cuda.shim.library import ShimKernels, compile_shim, compiler

__all__ = ["ShimKernels", "compile_shim", "compiler"]
