"""The devices that the OpenCL drivers of this machine offer, and the sizes of groups on them."""

from __future__ import annotations

from functools import cache
from typing import Any

from weft.backends.base import DeviceKind
from weft.backends.kernels import Limits
from weft.backends.kernels.found import pick as pick_of
from weft.backends.opencl.library import library
from weft.backends.opencl.probe import why_unusable
from weft.errors import DeviceError
from weft.records import dataclass

_EXTENSIONS = {
    "cl_khr_fp16": "fp16", "cl_khr_fp64": "fp64", "cl_khr_integer_dot_product": "dot4",
    "cl_khr_subgroups": "subgroups", "cl_khr_subgroup_shuffle": "shuffles",
}  # fmt: skip
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Found:
    """A device, before anything is created on it."""

    number: int
    """Counted over all platforms: the N of `opencl:N`."""
    platform: str
    name: str
    kind: DeviceKind
    driver: str
    memory: int
    """Bytes of the device's memory."""
    max_buffer: int
    """Bytes of the largest single buffer."""
    alignment: int
    """Bytes that the start of a buffer is a multiple of."""
    features: tuple[str, ...]
    place: tuple[int, int]
    """Numbers of platform and device there."""
    handle: Any
    """The driver's object."""
    fault: str = ""
    """The error of the driver's queries; the other fields are then unknown."""

    @property
    def shares_memory(self) -> bool:
        """Whether the device works in the memory of the host."""
        return "host memory" in self.features

    @property
    def has_subgroups(self) -> bool:
        """Whether items of a subgroup exchange numbers."""
        return {"subgroups", "shuffles"} <= {*self.features}

    @property
    def key(self) -> str:
        """The names of device and driver, as a key for files."""
        return f"{self.platform} / {self.name} / {self.driver}"

    @property
    def unusable(self) -> str:
        """Empty, or the reason why no kernel runs there; tried in a process of its own, once."""
        if self.fault:
            return f"its driver does not describe it ({self.fault})"
        if not self.handle.get_info(library().device_info.COMPILER_AVAILABLE):
            return "its driver has no compiler"
        return why_unusable(*self.place, self.key)

    @property
    def description(self) -> str:
        """A description in a line."""
        size = f"{self.memory / GIB:.1f} GiB, buffers of {self.max_buffer / GIB:.1f} GiB"
        return f"{self.name}, {self.platform} ({size}; {', '.join(self.features)})"


@cache
def find_devices() -> tuple[Found, ...]:
    """Every device of every platform; raises DeviceError when there is no driver at all."""
    cl = library()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(
            f"no OpenCL driver is installed ({error}); install the one of your GPU's maker, or "
            "PoCL for the CPU (Debian: pocl-opencl-icd)"
        ) from error
    devices: list[Found] = []
    for p, platform in enumerate(platforms):
        try:
            handles = platform.get_devices()
        except cl.Error:
            continue  # a platform without devices reports that as an error
        for d, handle in enumerate(handles):
            number, place = len(devices), (p, d)
            try:
                devices.append(_found(cl, number, platform, handle, place))
            except cl.Error as error:
                unknown = f"device {d} of platform {p}"
                devices.append(
                    Found(number, "", unknown, "ACCEL", "", 0, 0, 64, (), place, handle, str(error))
                )
    if not devices:
        names = ", ".join(p.name.strip() for p in platforms)
        raise DeviceError(f"the OpenCL drivers of this machine ({names}) have no device")
    return tuple(devices)


def _found(cl: Any, number: int, platform: Any, handle: Any, place: tuple[int, int]) -> Found:
    shares = bool(handle.host_unified_memory)
    kinds = cl.device_type
    kind: DeviceKind = "ACCEL"
    if handle.type & kinds.GPU:
        kind = "IGPU" if shares else "GPU"
    extensions = handle.extensions.split()
    features = [short for name, short in _EXTENSIONS.items() if name in extensions]
    if shares:
        features.append("host memory")
    features.append(f"{handle.max_compute_units} units")
    features.append(f"{handle.local_mem_size >> 10} KiB local")
    return Found(
        number, platform.name.strip(), handle.name.strip(), kind, handle.driver_version.strip(),
        handle.global_mem_size, handle.max_mem_alloc_size,
        max(64, handle.mem_base_addr_align // 8), tuple(features), place, handle,
    )  # fmt: skip


def pick(suffix: str | None) -> Found:
    """The device of `opencl:N`; without a number the first GPU that works, else the first device
    that works.

    Raises DeviceError with the devices of this machine."""
    return pick_of("opencl", find_devices(), suffix)


def _in_step(handle: Any) -> int:
    """The number of items that a GPU runs in lockstep, a power of two; drivers have three names for
    it."""
    for name in ("preferred_work_group_size_multiple", "warp_size_nv", "wavefront_width_amd"):
        try:
            width = int(getattr(handle, name))
        except (library().Error, AttributeError):
            continue  # the driver has another version, or another maker
        if width > 0 and width & (width - 1) == 0:
            return min(width, 64)
    return 32


def limits_for(device: Found) -> Limits:
    """Sizes of groups.

    Processors run one item after another and vectors inside of each; GPUs run items side by side,
    as many as their hardware has in lockstep."""
    handle = device.handle
    most, local = handle.max_work_group_size, handle.local_mem_size
    if handle.type & library().device_type.CPU:
        return Limits(
            element_items=min(64, most), row_items=min(16, most), lanes=1, rows=min(8, most),
            columns=8, tile=0, cells=64, attention_items=min(8, most), wide=True,
            local_bytes=local, max_group=most,
        )  # fmt: skip
    tile = 64 if most >= 256 and local >= 2 * 4 * 32 * 64 else 32
    lanes = min(_in_step(handle), most)
    return Limits(
        element_items=min(128, most), row_items=min(128, most), lanes=lanes,
        rows=max(1, min(4, most // lanes)), columns=4, tile=tile if most >= 64 else 0, cells=64,
        attention_items=min(64, most), wide=False, local_bytes=local, max_group=most,
        part_cells=256, subgroups=device.has_subgroups,
    )  # fmt: skip
