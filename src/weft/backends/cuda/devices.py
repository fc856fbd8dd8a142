"""The CUDA devices of this machine, and the sizes of blocks on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from weft.backends.base import DeviceKind
from weft.backends.cuda.bindings import DriverCalls
from weft.backends.cuda.calls import Calls
from weft.backends.cuda.library import called, driver, hidden, nvrtc
from weft.backends.cuda.packed import fitting
from weft.backends.kernels import Limits
from weft.backends.kernels.found import pick as pick_of
from weft.errors import DeviceError
from weft.flags import FLAGS
from weft.records import dataclass

GIB = 1 << 30
_OLDEST = 75
"""Turing, the oldest architecture of the compilers of CUDA 13."""


@dataclass(frozen=True, slots=True)
class Found:
    """A device, before anything is created on it."""

    number: int
    """The N of `cuda:N`."""
    name: str
    architecture: int
    """Ten times the compute capability."""
    memory: int
    units: int
    """Streaming multiprocessors."""
    shared: int
    """Bytes of shared memory that a block may have."""
    integrated: bool
    """The device works in the host's memory."""
    pageable: bool
    """It reads any memory of the process at the host's address."""
    bandwidth: int = 0
    """Bytes per second of its memory, by clock and width; 0: unknown."""
    open: Callable[[int], Calls] = DriverCalls
    """Opens the device of a number."""

    @property
    def kind(self) -> DeviceKind:
        """An integrated GPU, or one with memory of its own."""
        return "IGPU" if self.integrated else "GPU"

    @property
    def unusable(self) -> str:
        """Empty, or the reason why weft does not use it."""
        if self.architecture < _OLDEST:
            return f"it has compute capability {self.architecture / 10}; kernels need 7.5"
        if fitting(self.architecture):
            return ""
        try:
            nvrtc()
        except DeviceError as error:
            return str(error)
        return ""

    @property
    def description(self) -> str:
        """A description in a line."""
        features = [f"sm_{self.architecture}", f"{self.units} units"]
        if self.integrated:
            features.append("host memory")
        if FLAGS.cuda_one_order:
            features.append("sums in one order")
        return f"{self.name} ({self.memory / GIB:.1f} GiB; {', '.join(features)})"


STAND_INS: dict[str, Found] = {}
"""Devices that NVIDIA's driver does not list, by the suffix of their names: tests put an emulator
here (`tests/cuda_shim`)."""


@cache
def find_devices() -> tuple[Found, ...]:
    """Every device; raises DeviceError that names what is missing: the package, the driver, or a
    GPU."""
    cu = driver()
    which = cu.CUdevice_attribute
    names = (
        "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT",
        "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", "INTEGRATED", "PAGEABLE_MEMORY_ACCESS",
        "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH",
    )  # fmt: skip
    devices = []
    for number in range(called(cu.cuDeviceGetCount())):
        handle = called(cu.cuDeviceGet(number))
        major, minor, units, shared, integrated, pageable, khz, bits = (
            called(cu.cuDeviceGetAttribute(getattr(which, f"CU_DEVICE_ATTRIBUTE_{n}"), handle))
            for n in names
        )
        name = bytes(called(cu.cuDeviceGetName(128, handle))).split(b"\0")[0].decode()
        memory = int(called(cu.cuDeviceTotalMem(handle)))
        speed = 2 * 1000 * khz * bits // 8  # two transfers a clock
        where = bool(integrated), bool(pageable)
        sizes = 10 * major + minor, memory, units, shared
        devices.append(Found(number, name, *sizes, *where, speed))
    if not devices:
        raise DeviceError(f"the NVIDIA driver of this machine has no GPU{hidden()}")
    return tuple(devices)


def pick(suffix: str | None) -> Found:
    """The device of `cuda:N`, or the first that works.

    Raises DeviceError with the devices of this machine."""
    if suffix in STAND_INS:
        return STAND_INS[suffix]
    return pick_of("cuda", find_devices(), suffix, hidden())


def limits_for(shared: int) -> Limits:
    """Sizes of blocks where a block may have `shared` bytes of shared memory; 32 threads run in
    lockstep on every device."""
    tile, few = (0, 0) if FLAGS.cuda_one_order else (64, 8)
    return Limits(
        element_items=128, row_items=128, lanes=32, rows=4, columns=4, tile=tile, cells=64,
        attention_items=64, wide=False, local_bytes=shared, max_group=1024, few=few,
    )  # fmt: skip
