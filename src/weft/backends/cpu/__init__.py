"""The `cpu` backend: the native core's kernels on this machine's processors."""

from weft.backends.cpu.backend import (
    OPTIONS,
    CpuBackend,
    describe,
    host_buffer_type,
    make,
)
from weft.backends.cpu.experts import ExpertPolicy, ExpertStats
from weft.backends.cpu.peaks import Peaks, measure_peaks
from weft.backends.cpu.threads import Numa, Priority, ThreadOptions, default_threads

__all__ = [
    "OPTIONS",
    "CpuBackend",
    "ExpertPolicy",
    "ExpertStats",
    "Numa",
    "Peaks",
    "Priority",
    "ThreadOptions",
    "default_threads",
    "describe",
    "host_buffer_type",
    "make",
    "measure_peaks",
]
