"""What a wheel contains and what its native module asks of a system."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

from release.errors import ReleaseError, run
from release.macho import read_macho
from release.platforms import Platform

__all__ = ["MOST_BYTES", "check"]

MOST_BYTES = 10 << 20

# Libraries that every system of a platform has.
WINDOWS_LIBRARIES = re.compile(r"(python3\d*|kernel32|ntdll|api-ms-win-crt-[a-z0-9-]+)\.dll", re.I)
MACOS_LIBRARIES = re.compile(r"/usr/lib/libSystem\.B\.dylib")


def check(wheel: Path, platform: Platform) -> list[str]:
    """Facts about a wheel of `platform`; raises ReleaseError for one that must not be published."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise ReleaseError(f"{wheel.name} has {size:,} bytes; at most {MOST_BYTES:,} are wanted")
    facts = [f"{size / 1e6:.1f} MB"]
    with zipfile.ZipFile(wheel) as packed:
        natives = {
            name: packed.read(name)
            for name in packed.namelist()
            if name.endswith((".so", ".pyd", ".dylib", ".dll"))
        }
    if not natives:
        raise ReleaseError(f"{wheel.name} has no native module")
    for name, data in natives.items():
        if platform.system == "Darwin":
            facts.append(_macos(name, data, platform))
        elif platform.system == "Windows":
            facts.append(_windows(name, data, platform))
    if platform.system == "Linux":
        facts.append(_auditwheel(wheel, platform))
    if "-abi3-" in wheel.name:
        facts.append(_abi3audit(wheel))
    return facts


def fits(found: str, wanted: str) -> bool:
    """Whether a wheel that is consistent with the tag `found` may have the tag `wanted`: for
    the same C library and processor, in that version or a later one."""
    form = re.compile(r"(manylinux|musllinux)_(\d+)_(\d+)_(\w+)")
    one, other = form.fullmatch(found), form.fullmatch(wanted)
    if one is None or other is None or one[1] != other[1] or one[4] != other[4]:
        return False
    return (int(one[2]), int(one[3])) <= (int(other[2]), int(other[3]))


def _auditwheel(wheel: Path, platform: Platform) -> str:
    shown = " ".join(run([sys.executable, "-m", "auditwheel", "show", wheel]).split())
    found = re.search(r'consistent with the following platform tag: "(\w+)"', shown)
    if found is None or not fits(found[1], platform.tag):
        raise ReleaseError(f"auditwheel finds {wheel.name} not to be {platform.tag}: {shown}")
    return f"auditwheel: {found[1]}"


def _abi3audit(wheel: Path) -> str:
    command = [sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.12"]
    run([*command, wheel])
    return "abi3audit: clean"


def _macos(name: str, data: bytes, platform: Platform) -> str:
    found = read_macho(data)
    if found.processor != platform.processor or found.system > (11, 0):
        raise ReleaseError(f"{name} is for {found.processor}, macOS {found.system}")
    foreign = [path for path in found.loads if not MACOS_LIBRARIES.fullmatch(path)]
    if foreign:
        raise ReleaseError(f"{name} loads {', '.join(foreign)}, which not every Mac has")
    return f"Mach-O {found.processor}, macOS {found.system[0]}.{found.system[1]}, loads libSystem"


def _windows(name: str, data: bytes, platform: Platform) -> str:
    import pefile

    image = pefile.PE(data=data, fast_load=True)
    image.parse_data_directories([pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_IMPORT"]])
    machine = {0x8664: "AMD64", 0xAA64: "ARM64"}.get(image.FILE_HEADER.Machine, "?")
    loads = [entry.dll.decode() for entry in image.DIRECTORY_ENTRY_IMPORT]
    foreign = [dll for dll in loads if not WINDOWS_LIBRARIES.fullmatch(dll)]
    if machine != platform.processor or foreign:
        raise ReleaseError(f"{name} is for {machine} and loads {', '.join(loads)}")
    pythons = [dll for dll in loads if dll.lower().startswith("python")]
    return f"PE {machine}, loads {', '.join(pythons)} and the system's"
