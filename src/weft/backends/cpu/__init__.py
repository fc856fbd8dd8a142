"""The `cpu` backend: the native core's kernels on this machine's processors."""

from weft.backends.cpu.backend import (
    CpuBackend,
    default_threads,
    describe,
    host_buffer_type,
    make,
)

__all__ = ["CpuBackend", "default_threads", "describe", "host_buffer_type", "make"]
