"""zig as a C++ compiler for CMake: it brings the headers and libraries of every platform, and links
its C++ library statically, so that a module needs the C library of its platform alone."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from release.errors import ReleaseError
from release.platforms import Platform

__all__ = ["compilers", "zig", "zig_identity"]

# Options that CMake and nanobind write for the platforms' own compilers, and zig has not or says
# otherwise: bundles are libraries for Python too, and all that is undefined in one is Python's;
# architectures are processors with features.
_COMPILER = """#!/bin/sh
n=$#
while [ $n -gt 0 ]; do
  n=$((n - 1)); word=$1; shift
  case $word in
    -bundle) set -- "$@" -shared;;
    -Wl,@*darwin-ld-cpython.sym) set -- "$@" -Wl,-undefined,dynamic_lookup;;
    -march=armv8.2-a*) set -- "$@" "-mcpu=generic+v8_2a${word#-march=armv8.2-a}";;
    -Wl,-dead_strip) set -- "$@" -Wl,-dead_strip;;
    *) set -- "$@" "$word";;
  esac
done
exec "{zig}" {tool} {options} "$@"
"""
_TOOL = '#!/bin/sh\nexec "{zig}" {tool} "$@"\n'

_TOOLCHAIN = """set(CMAKE_SYSTEM_NAME {system})
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {folder}/zig-cc)
set(CMAKE_CXX_COMPILER {folder}/zig-c++)
set(CMAKE_AR {folder}/zig-ar CACHE FILEPATH "")
set(CMAKE_RANLIB {folder}/zig-ranlib CACHE FILEPATH "")
set(CMAKE_RC_COMPILER {folder}/zig-rc CACHE FILEPATH "")
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # what links needs a C++ library, made first
"""


def zig() -> Path:
    """The program; raises ReleaseError where the package ziglang is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise ReleaseError(
            "zig is missing; make wheels installs it, or: pip install --group wheels"
        )
    return Path(spec.origin).parent / "zig"


def zig_options(platform: Platform) -> str:
    """What zig is given with every file of a platform."""
    options = f"-target {platform.zig} -fno-sanitize=undefined -fomit-frame-pointer -g0"
    return options + (" -dynamic" if platform.tag.startswith("musllinux") else "")


def zig_identity(platform: Platform) -> str:
    """The compiler as ccache knows it: what it is, not which file, so that every checkout finds
    what another one compiled."""
    return f"zig {importlib.metadata.version('ziglang')} {zig_options(platform)}"


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file where it differs: a newer compiler would make every object anew."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    path.chmod(mode)


def compilers(platform: Platform, folder: Path) -> Path:
    """Writes scripts for a platform to `folder`; the toolchain file that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    options = zig_options(platform)
    for name, tool in (("zig-cc", "cc"), ("zig-c++", "c++")):
        text = _COMPILER.replace("{zig}", str(zig())).replace("{tool}", tool)
        _write(folder / name, text.replace("{options}", options), 0o755)
    for tool in ("ar", "ranlib", "rc"):
        _write(folder / f"zig-{tool}", _TOOL.format(zig=zig(), tool=tool), 0o755)
    file = folder / "toolchain.cmake"
    text = _TOOLCHAIN.replace("{folder}", str(folder)).replace("{system}", platform.system)
    _write(file, text.replace("{processor}", platform.processor))
    return file
