"""What Python's own headers and libraries of one platform lack for another."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

from release.errors import ReleaseError, run
from release.platforms import Platform
from release.toolchain import zig

__all__ = ["header_folder", "import_library"]

CONFIGS = Path(__file__).parent / "pyconfig"


def header_folder(platform: Platform, headers: Path, folder: Path) -> Path:
    """Python's headers with the pyconfig.h of a platform: on Linux those of this machine, whose
    sizes are those of any 64-bit Linux; else a copy below `folder`."""
    if platform.system == "Linux":
        return headers
    own = folder / f"{headers.name}-{platform.system.lower()}"
    if not own.exists():
        shutil.copytree(headers, own)
        this = own / "pyconfig.h"
        this.rename(own / "pyconfig_linux.h")
        shutil.copy(CONFIGS / f"{platform.system.lower()}.h", this)
    return own


def symbols() -> list[str]:
    """The functions and variables of Python's C API that nanobind may use, by its own list."""
    spec = find_spec("nanobind")
    if spec is None or spec.origin is None:
        raise ReleaseError("nanobind is missing; pip install --group build")
    text = (Path(spec.origin).parent / "cmake/darwin-ld-cpython.sym").read_text()
    return sorted(set(re.findall(r"-U _(\w+)", text)))


def import_library(python: tuple[int, int], platform: Platform, folder: Path) -> Path:
    """What links a module to python3.dll (the stable ABI) or python311.dll: made of the names
    alone, which a .def file lists."""
    dll = "python3" if python >= (3, 12) else f"python{python[0]}{python[1]}"
    definition, library = folder / f"{dll}.def", folder / f"lib{dll}.a"
    names = "".join(f"  {name}\n" for name in symbols())
    definition.write_text(f"LIBRARY {dll}.dll\nEXPORTS\n{names}")
    machine = "i386:x86-64" if platform.processor == "AMD64" else "arm64"
    run([zig(), "dlltool", "-m", machine, "-D", f"{dll}.dll", "-d", definition, "-l", library])
    return library
