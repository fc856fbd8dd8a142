"""The native tests of a platform that no Python here is for: of Windows on x86-64 under wine, of
musl by Debian's package of it, each under qemu where the processor is another."""

from __future__ import annotations

import platform as machine
import shutil
import tempfile
from pathlib import Path

from release.build import Built
from release.errors import ReleaseError, run
from release.roots import ARCHITECTURES

__all__ = ["try_native"]

TARGETS = {
    "x86_64": ("baseline", "avx2", "avx_vnni", "avx512"),
    "aarch64": ("baseline", "neon", "dotprod", "i8mm"),
}


def try_native(built: Built) -> list[str]:
    """What was seen of the native tests, or what is missing to run them; nothing for platforms
    whose wheels Python runs, or that nothing here runs."""
    if built.platform.name == "windows-AMD64":
        return [_under_wine(built)]
    if built.platform.tag.startswith("musllinux"):
        return [_on_musl(built)]
    return []


def _under_wine(built: Built) -> str:
    wine = shutil.which("wine")
    if not wine:
        return "native tests not run: this machine lacks wine"
    prefix = Path(tempfile.mkdtemp(dir=built.folder))
    try:
        env = {"WINEPREFIX": str(prefix), "WINEDEBUG": "-all"}
        said = [run([wine, program], env) for program in built.tests()]
    finally:
        shutil.rmtree(prefix, ignore_errors=True)  # wine's server may still write there
    return f"native tests passed under wine, on {_targets(built, said[-1], 'x86_64')}"


def _on_musl(built: Built) -> str:
    from tests.arm.root import make_root

    processor = built.platform.processor
    emulator = [] if processor == machine.machine() else [f"qemu-{processor}"]
    needed = ("apt-get", "dpkg-deb", *emulator)
    lacking = ", ".join(name for name in needed if shutil.which(name) is None)
    if lacking:
        return f"native tests not run: this machine lacks {lacking}"
    try:
        folder = built.folder.parent / "musl" / processor
        root = make_root(folder, ARCHITECTURES[processor], ["musl"])
    except SystemExit as e:
        raise ReleaseError(f"Debian's package musl could not be had: {e}") from e
    loader = root / f"lib/{processor}-linux-musl/libc.so"
    said = [run([*emulator, loader, program]) for program in built.tests()]
    how = "musl under qemu" if emulator else "musl"
    return f"native tests passed on {how}, on {_targets(built, said[-1], processor)}"


def _targets(built: Built, said: str, processor: str) -> str:
    """The kernel targets that ran; raises ReleaseError where the best one should have and did
    not."""
    found = [word for word in said.split() if word in TARGETS[processor]]
    capable = processor != machine.machine() or " avx2 " in Path("/proc/cpuinfo").read_text()
    if built.kernels is None and found == ["baseline"] and capable:
        raise ReleaseError(f"{built.platform.name}: only the baseline ran, not this processor's")
    return f"the targets {', '.join(found)}"
