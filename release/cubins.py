"""Kernels for NVIDIA's GPUs, compiled before: `python -m release.cubins` puts what wheels have of
them into the source tree."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release.build import JOBS, SOURCES
from release.errors import ReleaseError, run
from release.programs import Program, programs
from weft.backends.cuda.builds import compiled, options_of, text_of
from weft.backends.cuda.library import nvrtc
from weft.backends.cuda.packed import key_of, pack
from weft.errors import DeviceError

__all__ = ["ARCHITECTURES", "PACKED", "by_nvcc", "compiler", "cubins", "write"]

ARCHITECTURES = (75, 80, 86, 89, 90, 100)
"""Those that kernels are written and tested for."""

PACKED = (80, 90)
"""Those that wheels have kernels of, as more do not fit their size. 8.6 and 8.9 run what is
compiled for 8.0."""

FOLDER = SOURCES / "src/weft/backends/cuda/cubins"

Compiler = Callable[[str, str, tuple[str, ...], int], bytes]
"""(file, text, options, architecture) -> machine code."""


def by_nvcc(file: str, text: str, options: tuple[str, ...], architecture: int) -> bytes:
    """What NVIDIA's compiler of the CUDA toolkit makes."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "kernel.cu", Path(folder) / "kernel.cubin"
        source.write_text(text)
        run(["nvcc", "-cubin", f"-arch=sm_{architecture}", *options, "-o", made, source])
        return made.read_bytes()


def compiler() -> Compiler | None:
    """NVRTC where it is installed, else nvcc; None without either."""
    try:
        nvrtc()
        return compiled
    except DeviceError:
        return by_nvcc if shutil.which("nvcc") else None


def cubins(
    make: Compiler, wanted: Sequence[Program], architectures: Sequence[int] = PACKED
) -> dict[str, bytes]:
    """Files below the folder `cubins` by their paths, e.g. `sm_80/gemv.cu.xz`."""
    files: dict[str, list[tuple[str, ...]]] = {}
    for file, defines in wanted:
        files.setdefault(file, []).append(defines)
    with ThreadPoolExecutor(int(JOBS)) as pool:

        def packed(file: str, architecture: int) -> bytes:
            texts = [text_of(file, defines) for defines in files[file]]
            options = [options_of(defines) for defines in files[file]]
            n = len(texts)
            images = pool.map(make, [file] * n, texts, options, [architecture] * n)
            keys = (key_of(t, o, architecture) for t, o in zip(texts, options, strict=True))
            return pack(dict(zip(keys, images, strict=True)))

        return {f"sm_{a}/{file}.xz": packed(file, a) for a in architectures for file in files}


def write(architectures: Sequence[int], folder: Path) -> str:
    """Compiles what wheels have; a line of facts. A folder that was there before is replaced."""
    make = compiler()
    if make is None:
        raise ReleaseError(
            "there is no compiler for GPUs; pip install nvidia-cuda-nvrtc cuda-bindings, or put "
            "nvcc of a CUDA toolkit into PATH"
        )
    wanted = programs()
    made = cubins(make, wanted, architectures)
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    size = sum(map(len, made.values())) / 1e6
    names = ", ".join(f"sm_{a}" for a in architectures)
    return f"{len(wanted)} programs for each of {names}: {size:.1f} MB in {folder}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.cubins", description=__doc__)
    known = ", ".join(map(str, ARCHITECTURES))
    default = ", ".join(map(str, PACKED))
    parser.add_argument(
        "architectures", nargs="*", type=int, metavar="ARCHITECTURE",
        help=f"of {known}; default: {default}",
    )  # fmt: skip
    chosen = parser.parse_args().architectures or PACKED
    for architecture in set(chosen) - set(ARCHITECTURES):
        parser.error(f"there is no architecture {architecture}; known: {known}")
    try:
        print(write(chosen, FOLDER))
    except (ReleaseError, DeviceError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
