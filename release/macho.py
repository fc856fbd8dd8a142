"""What a Mach-O library says of itself: processor, oldest system, libraries that it loads."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from release.errors import ReleaseError

__all__ = ["MachO", "read_macho"]

_MAGIC = 0xFEEDFACF  # 64-bit, little-endian
_PROCESSORS = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_LOADS = {0xC, 0x80000018, 0x8000001F, 0x20}  # LC_LOAD_DYLIB; weak, re-exported, lazy
_VERSION_MIN, _BUILD_VERSION = 0x24, 0x32


@dataclass
class MachO:
    processor: str
    system: tuple[int, int] = (0, 0)
    loads: list[str] = field(default_factory=list)


def read_macho(data: bytes) -> MachO:
    """The header and load commands of mach-o/loader.h; raises ReleaseError for other files."""
    if len(data) < 32 or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise ReleaseError("it is no 64-bit Mach-O file")
    kind, n = struct.unpack_from("<4xI8xI", data)
    found = MachO(_PROCESSORS.get(kind, f"cputype {kind:#x}"))
    at = 32
    for _ in range(n):
        command, size = struct.unpack_from("<II", data, at)
        if command in _LOADS:
            name = at + struct.unpack_from("<I", data, at + 8)[0]
            found.loads.append(data[name : at + size].split(b"\0")[0].decode())
        elif command in (_VERSION_MIN, _BUILD_VERSION):
            place = at + (8 if command == _VERSION_MIN else 12)
            version = struct.unpack_from("<I", data, place)[0]
            found.system = (version >> 16, version >> 8 & 255)
        at += size
    return found
