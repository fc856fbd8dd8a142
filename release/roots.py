"""Wheels in a folder with nothing but Debian's Python: in a chroot, or under qemu where the
processor is another."""

from __future__ import annotations

import os
import platform as machine
import shutil
import sys
from pathlib import Path

from release.build import SOURCES
from release.errors import ReleaseError, run
from release.platforms import Platform

__all__ = ["debian_python", "missing", "try_in_root"]

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CHECKOUT = ("README.md", "examples/weft-demo.gguf", "release/snippet.py")
PYTHON = (3, 11)  # of the packages that tests/arm/root.py unpacks


def debian_python(wheel: str) -> bool:
    """Whether the Python of the root is one that a wheel of this file name is for."""
    _, _, python, abi, _ = wheel.removesuffix(".whl").split("-")
    lowest = (3, int(python.removeprefix("cp3")))
    return lowest == PYTHON or (abi == "abi3" and lowest < PYTHON)


def missing(platform: Platform) -> str:
    """What this machine lacks to run a wheel in a root, or nothing."""
    if not platform.tag.startswith("manylinux"):
        return "a Python of its system"
    programs = ["apt-get", "dpkg-deb"]
    if platform.processor != machine.machine():
        programs.append(f"qemu-{platform.processor}")
    elif os.geteuid() != 0:
        return "the rights of root, for chroot"
    return ", ".join(name for name in programs if shutil.which(name) is None)


def try_in_root(wheel: Path, platform: Platform, folder: Path) -> str:
    """Unpacks a root below `folder`, installs a wheel with what it needs there, and runs README's
    snippet and `weft doctor`; what was seen."""
    from tests.arm.root import make_root

    try:
        root = make_root(folder / "roots" / platform.processor, ARCHITECTURES[platform.processor])
    except SystemExit as e:
        raise ReleaseError(f"no root of Debian packages could be made: {e}") from e
    for path in ("site", "checkout", "cache"):
        shutil.rmtree(root / path, ignore_errors=True)
    for name in CHECKOUT:
        (root / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / name, root / "checkout" / name)
    tags = [word for tag in _tags(platform) for word in ("--platform", tag)]
    run([
        sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--target",
        root / "site", "--only-binary", ":all:", "--python-version", "3.11", *tags, wheel,
    ])  # fmt: skip
    foreign = platform.processor != machine.machine()
    inside = root if foreign else Path("/")
    start = ["chroot", root] if not foreign else [f"qemu-{platform.processor}", "-L", root]
    python = [*start, inside / "usr/bin/python3.11"]
    env = {
        "PYTHONPATH": str(inside / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(inside / "cache"),
    }
    said = run([*python, inside / "checkout/release/snippet.py"], env)
    run([*python, "-m", "weft", "doctor"], env)
    how = "under qemu" if foreign else "in a chroot of nothing else"
    return f"{said.splitlines()[0]}, Debian's Python {how}: README's snippet and weft doctor passed"


def _tags(platform: Platform) -> list[str]:
    """The tags of wheels that a Debian of today installs, the newest first."""
    versions = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
    return [f"{version}_{platform.processor}" for version in versions]
