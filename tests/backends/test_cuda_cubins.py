"""CUDA's own kernels as nvcc makes them: no warnings, no spills, and the instructions they are for.

WEFT_TEST_CUBINS=all compiles for every architecture; else one stands for the others."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from weft.backends.cuda import assembly
from weft.backends.cuda.assembly import DEVICE, source_of
from weft.backends.cuda.shim import compiler

ARCHITECTURES = (75, 80, 86, 89, 90, 100) if os.environ.get("WEFT_TEST_CUBINS") == "all" else (80,)

FLASH = ("K=f16", "V=f16")
KERNELS: dict[str, tuple[str, tuple[str, ...], str, int, tuple[str, ...]]] = {
    "bytes": ("quantize.cu", ("X=f32", "ALIGNED"), "quantize", 40, ("LDG.128",)),
    "vector": ("gemv.cu", ("W=q4_0", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "vector of 256": ("gemv.cu", ("W=q5_K", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "eight": ("gemv.cu", ("W=q6_K", "COLS=8", "ROWS=1"), "gemv", 255, ("LDG.128", "IDP")),
    "floats": ("gemv_float.cu", ("W=f16", "X=f32", "COLS=1", "ROWS=2"), "gemv_float", 80,
               ("LDG.128",)),
    "tiles": ("gemm.cu", ("W=q4_K", "TILE=128"), "gemm", 255, ("IMMA", "LDSM")),
    "tiles of halves": ("gemm_half.cu", ("X=f32", "TILE=128"), "gemm_half", 255, ("HMMA", "LDSM")),
    "decoded tiles": ("gemm_half.cu", ("X=f32", "DECODED", "W=iq2_s", "USE_iq2_s", "TILE=128"),
                      "gemm_half", 255, ("HMMA", "LDSM")),
    "norm": ("norm.cu", ("X=f32",), "norm_bytes", 64, ("LDG.128",)),
    "gate": ("glu.cu", (), "glu_bytes", 64, ()),
    "vector and sum": ("gemv.cu", ("W=q4_K", "COLS=1", "ROWS=2", "ADDED"), "gemv", 128,
                       ("LDG.128", "IDP")),
    "columns by expert": ("experts.cu", (), "by_expert", 64, ()),
    "tiles of two bits": ("gemm.cu", ("W=q2_K", "TILE=128"), "gemm", 255, ("IMMA", "LDSM")),
    "tiles of three bits": ("gemm.cu", ("W=q3_K", "TILE=128"), "gemm", 255, ("IMMA", "LDSM")),
    "vector of three bits": ("gemv.cu", ("W=q3_K", "COLS=1", "ROWS=2"), "gemv", 128, ("IDP",)),
    "tiles of experts": ("gemm.cu", ("W=q4_K", "TILE=64"), "gemm_experts", 255, ("IMMA", "LDSM")),
    "halves of experts": ("gemm_half.cu", ("X=f32", "TILE=64"), "gemm_half_experts", 255,
                          ("HMMA", "LDSM")),
    "floats of experts": ("gemv_float.cu", ("W=f16", "X=f32", "COLS=1", "ROWS=2"),
                          "gemv_float_experts", 80, ("LDG.128",)),
    "attention": ("flash.cu", (*FLASH, "DK=128", "DV=128", "WARPS=4"), "flash", 255,
                  ("HMMA", "LDSM")),
    "wide heads": ("flash.cu", (*FLASH, "DK=256", "DV=256", "WARPS=4"), "flash", 255,
                   ("HMMA", "LDSM")),
}  # fmt: skip
"""File, defines, kernel, the most registers, and instructions that it must have."""

SHARED = 48 << 10
"""Bytes of shared memory that a block has everywhere."""

_NAMES = {0x226: "IDP", 0x237: "IMMA", 0x23C: "HMMA", 0x83B: "LDSM"}
_LOADS = (0x381, 0x981)


def _instructions(cubin: bytes, kernel: str) -> Counter[str]:
    """Names of a kernel's instructions, 16 bytes each: an opcode in the low 12 bits, and for loads
    their width in bits 73 to 75."""
    at = struct.unpack_from("<Q", cubin, 40)[0]
    size, n, names = struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, at + i * size) for i in range(n)]
    found: Counter[str] = Counter()
    for name, _, _, _, start, length in sections:
        text = cubin[sections[names][4] + name :].split(b"\0", 1)[0].decode()
        if text != f".text.{kernel}":
            continue
        for i in range(start, start + length, 16):
            low, high = struct.unpack_from("<2Q", cubin, i)
            opcode = low & 0xFFF
            if opcode in _LOADS:
                found["LDG.128" if high >> 9 & 7 == 6 else "LDG"] += 1
            found[_NAMES.get(opcode, "other")] += 1
    return found


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("which", KERNELS)
def test_what_nvcc_makes(which: str, architecture: int, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None or compiler() is None:
        pytest.skip("no nvcc (NVIDIA's CUDA toolkit) to compile kernels for GPUs")
    file, defines, kernel, most, instructions = KERNELS[which]
    source, cubin = tmp_path / "kernel.cu", tmp_path / "kernel.cubin"
    folder = Path(assembly.__file__).parent
    header = (folder / "kernels" / DEVICE).read_text()
    # behind a line of its own: functions that a header has for others are no warning
    parts = (f'#line 1 "{DEVICE}"', header, source_of(file, defines))
    source.write_text("\n".join(parts))
    command = [nvcc, "-std=c++17", "-cubin", f"-arch=sm_{architecture}", "-Werror", "all-warnings"]
    command += ["-Xptxas", "-v", *(f"-D{d}" for d in defines), "-o", str(cubin), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]
    words = done.stderr.split(f"Compiling entry function '{kernel}'")[1]
    words = words.split("Compiling entry function")[0]
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", words)]
    registers = int(re.findall(r"Used (\d+) registers", words)[0])
    shared = [int(n) for n in re.findall(r"(\d+) bytes smem", words)]
    assert spills == [0, 0]
    assert registers <= most
    assert sum(shared) <= SHARED
    found = _instructions(cubin.read_bytes(), kernel)
    assert all(found[name] for name in instructions), found
