"""The devices that wgpu finds, and the sizes of groups on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from weft.backends.base import DeviceKind
from weft.backends.kernels import Limits
from weft.backends.kernels.found import pick as pick_of
from weft.backends.kernels.windows import ALIGNMENT
from weft.backends.webgpu.library import guarded, library
from weft.errors import DeviceError
from weft.records import dataclass

_KINDS: dict[str, DeviceKind] = {"DiscreteGPU": "GPU", "IntegratedGPU": "IGPU"}
WIDE = "shader-int64"
"""The feature that kernels compute integers of 64 bits."""
SUBGROUPS = "subgroup"
"""The feature that items of a subgroup exchange numbers."""
TIMES = "timestamp-query"
"""The feature that the device writes when kernels begin and end."""
_BACKENDS = ("Metal", "Vulkan", "D3D12")
"""The interfaces that have what kernels need; OpenGL lacks it."""
GIB, MIB = 1 << 30, 1 << 20
_GROUP = "max-compute-invocations-per-workgroup"
_LOCAL = "max-compute-workgroup-storage-size"
_FEATURES = {"shader-f16": "f16", WIDE: "int64", SUBGROUPS: "subgroups", TIMES: "timestamps"}
"""The features that weft uses where a device has them, and their names in lists."""
NEEDED = (
    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size",
    _LOCAL, _GROUP, "max-compute-workgroup-size-x", "max-compute-workgroup-size-y",
)  # fmt: skip
"""The limits that a device is opened with, as high as it has them."""
_VENDORS = {
    0x1002: "AMD", 0x10DE: "NVIDIA", 0x8086: "Intel", 0x106B: "Apple", 0x5143: "Qualcomm",
    0x13B5: "Arm", 0x1010: "Imagination", 0x10005: "Mesa",
}  # fmt: skip
"""The makers by their numbers on the PCI bus, and Mesa by Vulkan's number for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A device, before anything is created on it."""

    number: int
    """The N of `webgpu:N`."""
    name: str
    vendor: str
    """The maker."""
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
        """Bytes of the largest buffer; kernels count them in 32 bits."""
        return min(self.limits["max-buffer-size"], (1 << 31) - 1) // 16 * 16

    @property
    def max_binding(self) -> int:
        """Bytes of a buffer that a kernel can have at once."""
        most = self.limits["max-storage-buffer-binding-size"]
        return min(most // 16 * 16, self.max_buffer)

    @property
    def in_host(self) -> bool:
        """Whether the device's memory is the host's: it has none of its own."""
        if self.kind == "ACCEL":  # neither kind of GPU
            return bool(self.handle.info["adapter_type"] == "CPU")
        return self.kind == "IGPU"

    @property
    def has_wide(self) -> bool:
        """Whether kernels compute integers of 64 bits."""
        return WIDE in self.features

    @property
    def has_subgroups(self) -> bool:
        """Whether items of a subgroup exchange numbers."""
        return SUBGROUPS in self.features

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
        has = ", ".join(short for name, short in _FEATURES.items() if name in self.features)
        limits, memory = self.limits, "host memory" if self.in_host else "memory not told"
        return (
            f"{self.name}, {self.vendor}, {self.interface} ({self.driver}; {memory}, "
            f"buffers of {self.max_buffer / GIB:.2f} GiB, {self.n_buffers} in a kernel with up to "
            f"{self.max_binding / MIB:.0f} MiB of each; groups of "
            f"{limits[_GROUP]} with {limits[_LOCAL] >> 10} KiB; {has or 'no features'})"
        )


def details(device: Found) -> dict[str, Any]:
    """A device as data, for `weft devices --json`: sizes in bytes; `memory` is None because WebGPU
    does not tell it; `in_host` says that it is a part of the host's."""
    return {
        "name": device.name,
        "vendor": device.vendor,
        "interface": device.interface,
        "driver": device.driver,
        "kind": device.kind,
        "memory": None,
        "in_host": device.in_host,
        "features": {short: name in device.features for name, short in _FEATURES.items()},
        "limits": {
            "buffer": device.max_buffer,
            "buffer_of_a_kernel": device.max_binding,
            "buffers_of_a_kernel": device.n_buffers,
            "items_of_a_group": device.limits[_GROUP],
            "memory_of_a_group": device.limits[_LOCAL],
        },
    }


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
                len(found), info["device"], _vendor(info), kind, _driver(info),
                info["backend_type"], dict(adapter.limits), tuple(sorted(adapter.features)),
                adapter,
            )
        )  # fmt: skip
    if not found:
        raise DeviceError(
            "no GPU has a driver for Metal, Vulkan or Direct3D 12; install the driver of its "
            "maker, or lavapipe, which runs on processors (Debian: mesa-vulkan-drivers)"
        )
    return tuple(found)


def _vendor(info: Mapping[str, Any]) -> str:
    """The maker by its number, or as the library names it."""
    number = info.get("vendor_id") or 0
    return _VENDORS.get(number) or info.get("vendor") or f"maker {number:#06x}"


def _driver(info: Mapping[str, Any]) -> str:
    """The name of the driver, where the library tells it, and its version."""
    parts = (info.get("vendor") or "", info.get("description") or "")
    return " ".join(part for part in parts if part) or "driver not told"


def pick(suffix: str | None) -> Found:
    """The device of `webgpu:N`; without a number the first GPU that works, else the first device
    that works.

    Raises DeviceError with the devices of this machine."""
    return pick_of("webgpu", find_devices(), suffix)


def limits_for(device: Found) -> Limits:
    """Sizes of groups."""
    most, local = device.limits[_GROUP], device.limits[_LOCAL]
    binding = 0 if device.max_binding == device.max_buffer else device.max_binding - ALIGNMENT
    if device.kind == "ACCEL":
        return Limits(
            element_items=64, row_items=16, lanes=1, rows=8, columns=8, tile=0, cells=64,
            attention_items=8, wide=True, local_bytes=local, max_group=most,
            binding=binding, subgroups=device.has_subgroups,
        )  # fmt: skip
    return Limits(
        element_items=128, row_items=128, lanes=32, rows=4, columns=4, tile=32, cells=64,
        attention_items=64, wide=False, local_bytes=local, max_group=most, part_cells=256,
        binding=binding, subgroups=device.has_subgroups,
    )  # fmt: skip
