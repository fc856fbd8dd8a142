"""The parts that OpenCL, CUDA and WebGPU share: devices whose kernels are compiled from source.

`ops` says which kernels an op needs and `sources` has them, in OpenCL C that is C++ for CUDA, too
(`assembly` puts files together for either language). `launch` is a launch as data, `executable`
turns a split into a list of them, `planes` is the layout of weights, `memory` and `queue` are
blocks and order. `driver` is what a device has to offer, `backend` the device that follows.
`compiling` has what is being compiled, by threads or by the first who needs it, and `cache` keeps
it. `record` has the times of a queue, `found` lists devices and picks one, `needs` says what
kernels need of a device, `windows` has tensors and buffers that are larger than what a kernel may
have.
"""

from weft.backends.kernels.backend import KernelBackend
from weft.backends.kernels.driver import Kernel, KernelDriver
from weft.backends.kernels.launch import Launch, Limits
from weft.backends.kernels.support import KernelRules

__all__ = ["Kernel", "KernelBackend", "KernelDriver", "KernelRules", "Launch", "Limits"]
