"""The native module for a platform, by CMake and zig. What was compiled is kept: a second Python
compiles the module again, not the kernels."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from release.errors import ReleaseError, run
from release.foreign import header_folder, import_library
from release.platforms import Platform
from release.pythons import headers
from release.toolchain import compilers, zig_identity

__all__ = ["SOURCES", "Built", "build"]

SOURCES = Path(__file__).resolve().parent.parent
NATIVE_TESTS = ("pool", "executor", "kernels", "shared")
JOBS = os.environ.get("JOBS", "2")


class Built:
    """The build folder of a platform."""

    def __init__(self, platform: Platform, folder: Path, kernels: str | None) -> None:
        self.platform = platform
        self.folder = folder
        self.kernels = kernels
        self.env = {
            "ZIG_LOCAL_CACHE_DIR": str(folder.parent / "zig-cache"),
            "CCACHE_COMPILERTYPE": "clang",
            "CCACHE_COMPILERCHECK": f"string:{zig_identity(platform)}",
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_BASEDIR": str(SOURCES),
        }
        self.toolchain = compilers(platform, folder / "zig")
        self._patchelf: Path | None = None  # asked for before anything is compiled
        if platform.tag.startswith("musllinux"):  # distributions name libc by the processor
            self._patchelf = _tool("patchelf")

    def module(self, python: tuple[int, int]) -> Path:
        """Builds the module for a Python; the file."""
        options = self._python_options(python)
        self._cmake(SOURCES, self.folder, options, "_native")
        module = self.folder / f"native/_native{self.platform.module_suffix(python)}"
        if self._patchelf:
            libc = f"libc.musl-{self.platform.processor}.so.1"
            run([self._patchelf, "--replace-needed", "libc.so", libc, module])
        return module

    def tests(self) -> list[Path]:
        """Builds the native tests (tests/native): the programs."""
        names = [f"weft_{name}_test" for name in NATIVE_TESTS]
        options = ["-DWEFT_TESTS=ON", "-DWEFT_PYTHON=OFF"]
        self._cmake(SOURCES, self.folder, options, *names)
        suffix = ".exe" if self.platform.system == "Windows" else ""
        return [self.folder / f"native/tests/{name}{suffix}" for name in names]

    def _python_options(self, python: tuple[int, int]) -> list[str]:
        folder = header_folder(self.platform, headers(python), self.folder / "headers")
        options = [
            "-DWEFT_PYTHON=ON",
            f"-DWEFT_PYTHON_HEADERS={folder}",
            f"-DWEFT_PYTHON_VERSION={python[0]}.{python[1]}",
            f"-DNB_SUFFIX={self.platform.module_suffix((3, 11))}",
            f"-DNB_SUFFIX_S={self.platform.module_suffix((3, 12))}",
        ]
        if self.platform.system == "Windows":
            library = import_library(python, self.platform, self.folder)
            options.append(f"-DWEFT_PYTHON_LIBRARY={library}")
        return options

    def _cmake(self, source: Path, folder: Path, options: list[str], *targets: str) -> None:
        cmake, ninja = _tool("cmake"), _tool("ninja")
        nanobind = run([sys.executable, "-m", "nanobind", "--cmake_dir"]).strip()
        launcher = shutil.which("ccache") or ""
        chosen = [f"-DWEFT_TARGETS={self.kernels}"] if self.kernels else ["-UWEFT_TARGETS"]
        kernels = [*chosen, f"-DWEFT_BASELINE={'OFF' if self.kernels == 'none' else 'ON'}"]
        run([
            cmake, "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-DCMAKE_BUILD_TYPE=Release", *kernels, f"-DCMAKE_TOOLCHAIN_FILE={self.toolchain}",
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", f"-Dnanobind_DIR={nanobind}",
            f"-DCMAKE_MODULE_PATH={SOURCES / 'release/cmake'}",
            f"-DPython_EXECUTABLE={sys.executable}", "-DNB_HAS_MTLS_GNU2=OFF", *options,
        ], self.env)  # fmt: skip
        run(["nice", cmake, "--build", folder, "--target", *targets, "-j", JOBS], self.env)


def _tool(name: str) -> Path:
    """A program beside this Python, or in PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise ReleaseError(f"{name} is missing; pip install --group build --group wheels")
    return Path(found)


def build(platform: Platform, folder: Path, kernels: str | None = None) -> Built:
    """The build of a platform below `folder`; `kernels`: some of the targets (WEFT_TARGETS)."""
    return Built(platform, folder / platform.name, kernels)
