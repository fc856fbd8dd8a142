"""The `cpu` backend: the native core's kernels on this machine's processors."""

from weft.backends.cpu.backend import (
    CpuBackend,
    default_threads,
    describe,
    host_buffer_type,
    make,
)
from weft.backends.cpu.peaks import Peaks, measure_peaks

__all__ = [
    "CpuBackend",
    "Peaks",
    "default_threads",
    "describe",
    "host_buffer_type",
    "make",
    "measure_peaks",
]
