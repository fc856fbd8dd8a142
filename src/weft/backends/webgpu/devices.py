"""The devices that wgpu finds, and the sizes of groups on them."""

from __future__ import annotations

from functools import cache
from typing import Any

from weft.backends.base import DeviceKind
from weft.backends.kernels import Limits
from weft.backends.webgpu.library import guarded, library
from weft.errors import DeviceError
from weft.records import dataclass

_KINDS: dict[str, DeviceKind] = {"DiscreteGPU": "GPU", "IntegratedGPU": "IGPU"}
WIDE = "shader-int64"
"""The feature that kernels compute integers of 64 bits."""
_BACKENDS = ("Metal", "Vulkan", "D3D12")
"""The interfaces that have what kernels need; OpenGL lacks it."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Found:
    """A device, before anything is created on it."""

    number: int
    """The N of `webgpu:N`."""
    name: str
    kind: DeviceKind
    driver: str
    interface: str
    """Metal, Vulkan or D3D12."""
    limits: dict[str, int]
    features: tuple[str, ...]
    handle: Any
    """The adapter."""

    @property
    def max_buffer(self) -> int:
        """Bytes of the largest buffer that a kernel can read; kernels count them in 32 bits."""
        limits = self.limits
        most = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
        return min(most, (1 << 31) - 1) // 4 * 4

    @property
    def has_wide(self) -> bool:
        """Whether kernels compute integers of 64 bits."""
        return WIDE in self.features

    @property
    def n_buffers(self) -> int:
        """The number of buffers of a kernel."""
        return self.limits["max-storage-buffers-per-shader-stage"]

    @property
    def unusable(self) -> str:
        """Empty, or the reason why no kernel runs there."""
        if self.n_buffers < 8:
            return f"its kernels read {self.n_buffers} buffers, and 8 are needed"
        return ""

    @property
    def description(self) -> str:
        """A description in a line."""
        return (
            f"{self.name}, {self.interface} ({self.driver}; buffers of "
            f"{self.max_buffer / GIB:.2f} GiB)"
        )


@cache
def find_devices() -> tuple[Found, ...]:
    """Every device; raises DeviceError when there is none."""
    wgpu = library()
    with guarded("no GPU could be looked for"):
        adapters = wgpu.gpu.enumerate_adapters_sync()
    found: list[Found] = []
    for adapter in adapters:
        info = adapter.info
        if info["backend_type"] not in _BACKENDS:
            continue
        kind = _KINDS.get(info["adapter_type"], "ACCEL")
        found.append(
            Found(
                len(found), info["device"], kind, info["description"], info["backend_type"],
                dict(adapter.limits), tuple(sorted(adapter.features)), adapter,
            )
        )  # fmt: skip
    if not found:
        raise DeviceError(
            "no GPU has a driver for Metal, Vulkan or Direct3D 12; install the driver of its "
            "maker, or lavapipe, which runs on processors (Debian: mesa-vulkan-drivers)"
        )
    return tuple(found)


def pick(suffix: str | None) -> Found:
    """The device of `webgpu:N`; without a number the first GPU that can be used, else the first
    device that can.

    Raises DeviceError with the devices of this machine."""
    devices = find_devices()
    if suffix is not None:
        chosen = {str(d.number): d for d in devices}.get(suffix)
        if chosen is None:
            names = ", ".join(f"webgpu:{d.number} ({d.name})" for d in devices)
            raise DeviceError(f"there is no device webgpu:{suffix}; this machine has {names}")
    else:
        chosen = min(devices, key=lambda d: (d.unusable, d.kind not in ("GPU", "IGPU"), d.number))
    if chosen.unusable:
        raise DeviceError(
            f"webgpu:{chosen.number} ({chosen.name}) cannot be used: {chosen.unusable}"
        )
    return chosen


def limits_for(device: Found) -> Limits:
    """Sizes of groups."""
    most = device.limits["max-compute-invocations-per-workgroup"]
    local = device.limits["max-compute-workgroup-storage-size"]
    if device.kind == "ACCEL":
        return Limits(
            element_items=64, row_items=16, lanes=1, rows=8, columns=8, tile=0, cells=64,
            attention_items=8, wide=True, local_bytes=local, max_group=most,
        )  # fmt: skip
    return Limits(
        element_items=128, row_items=128, lanes=32, rows=4, columns=4, tile=32, cells=64,
        attention_items=64, wide=False, local_bytes=local, max_group=most, part_cells=256,
    )  # fmt: skip
