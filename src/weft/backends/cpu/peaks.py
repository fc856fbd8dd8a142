"""The peak rates of this machine: the roofs with which measured speeds are compared."""

from __future__ import annotations

from functools import cache

from weft.backends.cpu.record import best_target
from weft.backends.cpu.threads import default_threads
from weft.errors import DeviceError
from weft.flags import FLAGS
from weft.native import _native
from weft.records import dataclass
from weft.tables import count_text

_SECONDS = 0.5
_BUFFER = 256 << 20


@dataclass(frozen=True, slots=True)
class Peaks:
    """Measured rates of `threads` threads together, with the instructions of one kernel target.

    Operations per second count a multiply-add as two."""

    threads: int
    target: str
    read: float
    """Bytes per second read from memory, far beyond the caches."""
    int8: float
    """Operations per second of dot products of 8-bit numbers, summed in 32 bits; with AVX2
    (not AVX-VNNI) of numbers of up to seven bits, summed in 16: eight-bit codes (q8_0, iq4_xs)
    reach half of that."""
    f32: float
    """Operations per second of float32 multiply-adds."""
    bf16: float | None
    """Operations per second of bf16 dot products; None where the target has no such instruction."""

    def __str__(self) -> str:
        """The rates in a line, such as `2 threads (avx512): read 86.9 GB/s; int8 2081, f32 548,
        bf16 1092 GOP/s`."""
        bf16 = "" if self.bf16 is None else f", bf16 {self.bf16 / 1e9:.0f}"
        return (
            f"{count_text(self.threads, 'thread')} ({self.target}): "
            f"read {self.read / 1e9:.1f} GB/s; "
            f"int8 {self.int8 / 1e9:.0f}, f32 {self.f32 / 1e9:.0f}{bf16} GOP/s"
        )

    def at(self, intensity: float, kind: str = "f32") -> float:
        """The attainable operations per second at `intensity` operations a byte, which is the
        roofline.

        `kind` is `int8`, `f32` or `bf16`."""
        roof = getattr(self, kind) or self.f32
        return float(min(roof, self.read * intensity))


def measure_peaks(threads: int | None = None, target: str | None = None) -> Peaks:
    """Measures this machine for somewhat more than half a second; the process keeps the result.

    `threads` are by default the physical cores of this process, `target` the one that WEFT_TARGET
    names, or else the best one that this machine can run. Raises DeviceError for a target or a
    number of threads that is not possible, and where there is no memory for a buffer far beyond
    the caches."""
    scores = dict(_native.targets())
    chosen = target or FLAGS.target or best_target()
    if not scores.get(chosen):
        usable = ", ".join(name for name, score in scores.items() if score)
        raise DeviceError(f"this machine cannot run kernel target {chosen!r}; it can run {usable}")
    n = default_threads() if threads is None else threads
    if not 1 <= n <= 1024:
        raise DeviceError(f"threads must be 1..1024, got {n}")
    return _measure(n, chosen)


@cache
def _measure(threads: int, target: str) -> Peaks:
    read, int8, f32, bf16, _ = _native.measure_peaks(target, threads, _SECONDS, _BUFFER)
    if not read:
        raise DeviceError("too little memory is free to measure how fast it is read")
    return Peaks(threads, target, read, int8, f32, bf16 or None)
