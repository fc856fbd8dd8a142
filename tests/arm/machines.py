"""The machines of the phone exam: this one, and ARM with 64 bits under qemu; what is built for them
and how it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.arm.root import build, make_root

SOURCES = Path(__file__).resolve().parents[2]
FOLDER = SOURCES / "build/arm"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64")
TOOLCHAIN = SOURCES / "native/cmake/aarch64-linux.cmake"


def missing() -> str | None:
    """What this machine lacks for the exam, as a sentence; None if it has all."""
    for program, package in (
        ("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu"),
        ("qemu-aarch64", "qemu-user"),
        ("flatc", "flatbuffers-compiler"),
    ):
        if shutil.which(program) is None and not Path("/usr/bin", program).exists():
            return f"there is no {program} (Debian: {package})"
    return None


def run(command: Sequence[str | Path], **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command; raises RuntimeError with its output if it fails."""
    words = [str(word) for word in command]
    more.setdefault("env", os.environ | {"CCACHE_BASEDIR": str(SOURCES), "CCACHE_NOHASHDIR": "1"})
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise RuntimeError(f"{' '.join(words)} failed ({done.returncode}):\n{said}")
    return done


def executorch_for_arm(folder: Path) -> Path:
    """ExecuTorch's wheel for ARM of the release that is installed here, unpacked once."""
    release = version("executorch").partition("+")[0]
    package = folder / f"executorch-{release}" / "executorch"
    if (package / "lib/libexecutorch.so").exists():
        return package
    wheels = folder / "wheels"
    platforms = [option for p in PLATFORMS for option in ("--platform", p)]
    run([
        sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download", "--no-deps",
        "--only-binary", ":all:", "--python-version", f"3.{sys.version_info.minor}", *platforms,
        "-d", wheels, f"executorch=={release}",
    ])  # fmt: skip
    wheel = next(wheels.glob(f"executorch-{release}*aarch64.whl"))
    wanted = ("executorch/lib/", "executorch/include/", "executorch/share/")
    with zipfile.ZipFile(wheel) as packed:
        names = [name for name in packed.namelist() if name.startswith(wanted)]
        packed.extractall(package.parent, names)
    wheel.unlink()
    return package


def executorch_here() -> Path:
    """The package of this Python."""
    spec = find_spec("executorch")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return next(Path(p) for p in folders if (Path(p) / "lib/libexecutorch.so").exists())


@dataclass(frozen=True, slots=True)
class Machine:
    """For which machine to build, and how its programs start here."""

    name: str
    executorch: Path
    options: tuple[str, ...] = ()

    def build(self, source: Path, name: str, target: str, *options: str) -> Path:
        """Configures and builds a target; the file that it makes."""
        tools = Path(sys.executable).parent
        cmake = tools / "cmake" if (tools / "cmake").exists() else shutil.which("cmake")
        ninja = tools / "ninja" if (tools / "ninja").exists() else shutil.which("ninja")
        folder = FOLDER / "phone" / self.name / name
        launcher = shutil.which("ccache") or ""
        run([
            str(cmake), "-S", source, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_SKIP_RPATH=ON",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dexecutorch_DIR={self.executorch}/share/cmake",
            f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}", *self.options, *options,
        ])  # fmt: skip
        run([str(cmake), "--build", folder, "--target", target])
        files = (target, f"lib{target}.so", f"lib{target}.a")
        return next(folder / file for file in files if (folder / file).exists())

    def delegate(self, name: str, *options: str) -> Path:
        """A delegate of its own build folder."""
        return self.build(SOURCES / "executorch", name, "weft_executorch", *options)

    def whole(self) -> Path:
        """A delegate with all kernels, over the core that is built in this checkout; for ARM that
        of `tests.arm`."""
        if self.name == "here":
            cores = sorted(SOURCES.glob("build/cp3*/native/libweft_core.a"))
        else:
            make_root(FOLDER)
            cores = [build(FOLDER, SOURCES).with_name("libweft_core.a")]
        return self.delegate("whole", *(f"-DWEFT_CORE={core}" for core in cores[:1]))

    def output(self, cpu: str, delegate: Path, *arguments: str | Path) -> str:
        """What `run_pte` prints here, or on an emulated processor."""
        name, linked = "run_pte", str(delegate)
        if delegate.suffix == ".a":
            core = delegate.parent / "native/libweft_core.a"
            name += "-static"
            linked = f"-Wl,--whole-archive;{delegate};-Wl,--no-whole-archive;{core}"
        source = SOURCES / "examples/run_pte"
        program = self.build(source, name, "run_pte", f"-DWEFT_EXECUTORCH:STRING={linked}")
        libraries = f"LD_LIBRARY_PATH={delegate.parent}:{self.executorch / 'lib'}"
        emulated = ["qemu-aarch64", "-cpu", cpu, "-L", "/usr/aarch64-linux-gnu", "-E", libraries]
        start = emulated if cpu else ["env", libraries]
        return run([*start, program, *arguments]).stdout


def here() -> Machine:
    """This machine."""
    return Machine("here", executorch_here())


def arm() -> Machine:
    """ARM with 64 bits, Linux."""
    return Machine("arm", executorch_for_arm(FOLDER), (f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}",))
