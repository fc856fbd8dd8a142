"""Kernels as machine code: no warnings, no spills, the instructions they are for, and the room that
they leave to others.

NVRTC compiles where it is installed, else nvcc; neither needs a GPU. WEFT_TEST_CUBINS=all compiles
for every architecture; else one stands for the others. `make test` compiles a kernel of each file,
the part `devices` all of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from release.cubins import ARCHITECTURES, compiler
from tests.backends.cubin_file import blocks, read_kernel
from tests.shares import share
from weft.backends.cuda import assembly as own
from weft.backends.cuda.assembly import PREFIX, source_of
from weft.backends.cuda.builds import options_of, text_of
from weft.backends.kernels import assembly as shared

OWN = Path(own.__file__).parent / "kernels"

ALL = os.environ.get("WEFT_TEST_CUBINS") == "all"
needs_compiler = pytest.mark.skipif(
    compiler() is None, reason="no compiler for GPUs: nvcc, or nvidia-cuda-nvrtc and cuda-bindings"
)

FLASH = ("K=f16", "V=f16")
KERNELS: dict[str, tuple[str, tuple[str, ...], str, int, tuple[str, ...]]] = {
    "bytes": ("quantize.cu", ("X=f32", "ALIGNED"), "quantize", 40, ("LDG.128",)),
    "vector": ("gemv.cu", ("W=q4_0", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "vector of bytes": ("gemv.cu", ("W=q8_0", "COLS=1", "ROWS=2"), "gemv", 128,
                        ("LDG.128", "IDP")),
    "vector of q4_K": ("gemv.cu", ("W=q4_K", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "vector of 256": ("gemv.cu", ("W=q5_K", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "vector of q6_K": ("gemv.cu", ("W=q6_K", "COLS=1", "ROWS=2"), "gemv", 128, ("LDG.128", "IDP")),
    "eight": ("gemv.cu", ("W=q6_K", "COLS=8", "ROWS=1"), "gemv", 255, ("LDG.128", "IDP")),
    "floats": ("gemv_float.cu", ("W=f16", "X=f32", "COLS=1", "ROWS=2"), "gemv_float", 80,
               ("LDG.128",)),
    "tiles": ("gemm.cu", ("W=q4_K", "TILE=128"), "gemm", 255, ("IMMA", "LDSM")),
    "tiles of q6_K": ("gemm.cu", ("W=q6_K", "TILE=128"), "gemm", 255, ("IMMA", "LDSM")),
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
    "a token's attention": ("flash.cu", (*FLASH, "DK=128", "DV=128", "WARPS=1"), "flash", 255,
                            ("HMMA", "LDSM")),
    "attention": ("flash.cu", (*FLASH, "DK=128", "DV=128", "WARPS=4"), "flash", 255,
                  ("HMMA", "LDSM")),
    "a cache of bytes": ("flash.cu", ("K=q8_0", "V=q8_0", "DK=128", "DV=128", "WARPS=1"), "flash",
                         255, ("HMMA", "LDSM")),
    "narrow heads": ("flash.cu", (*FLASH, "DK=64", "DV=64", "WARPS=4"), "flash", 255,
                     ("HMMA", "LDSM")),
    "wide heads": ("flash.cu", (*FLASH, "DK=256", "DV=256", "WARPS=4"), "flash", 255,
                   ("HMMA", "LDSM")),
    "wide heads with a cap": ("flash.cu", (*FLASH, "DK=256", "DV=256", "WARPS=4", "CAP"), "flash",
                              255, ("HMMA", "LDSM")),
    "norm of floats": ("norm.cl", ("ALL_F32",), "weft_norm_scale", 64, ()),
}  # fmt: skip
"""File, defines, kernel, the most registers, and instructions that it must have."""

OF_EACH_FILE = {file: which for which, (file, *_) in reversed(KERNELS.items())}.values()
"""The first kernel of each file."""

BLOCKS: dict[str, tuple[int, tuple[int, ...]]] = {
    "bytes": (128, (8, 16, 12, 12, 16, 16)),
    "vector": (128, (5, 5, 5, 5, 5, 5)),
    "vector of bytes": (128, (4, 4, 4, 4, 4, 4)),
    "vector of q4_K": (128, (4, 4, 4, 4, 4, 4)),
    "vector of 256": (128, (4, 4, 4, 4, 4, 4)),
    "vector of q6_K": (128, (4, 4, 4, 4, 4, 4)),
    "eight": (128, (2, 2, 2, 2, 2, 2)),
    "floats": (128, (8, 10, 10, 10, 10, 10)),
    "tiles": (256, (1, 1, 1, 1, 1, 1)),
    "tiles of q6_K": (256, (1, 1, 1, 1, 1, 1)),
    "tiles of halves": (256, (1, 2, 2, 2, 1, 2)),
    "a token's attention": (32, (1, 4, 2, 2, 6, 6)),
    "attention": (128, (1, 2, 2, 2, 2, 2)),
    "a cache of bytes": (32, (1, 4, 2, 2, 6, 6)),
    "narrow heads": (128, (1, 3, 2, 2, 3, 3)),
    "wide heads": (128, (1, 2, 2, 2, 2, 2)),
    "wide heads with a cap": (128, (1, 2, 2, 2, 2, 2)),
}
"""Threads of a block, and the least number of blocks that a processor of each architecture holds at
once, on paper."""

SPILLED = {("wide heads", 75): 32, ("wide heads with a cap", 75): 32}
"""Bytes of registers that a thread may keep in local memory, before and behind its loop: without
copies that need no registers, Turing has too few of them for heads of 256."""

COPIED = ("gemm.cu", "gemm_half.cu", "flash.cu")
"""Files whose tiles go to shared memory without registers from sm_80 on."""

SHARED = 48 << 10
"""Bytes of shared memory that a block has everywhere."""


def machine_code(file: str, defines: tuple[str, ...], architecture: int) -> bytes:
    """A kernel file compiled; warnings are errors."""
    make = compiler()
    assert make is not None
    options = ("-Werror=all-warnings", *options_of(defines))
    # a program of another name: functions that a file has for others are no warning
    return make("kernel.cu", text_of(file, defines), options, architecture)


@needs_compiler
@pytest.mark.parametrize("architecture", ARCHITECTURES if ALL else (80,))
@pytest.mark.parametrize("which", share("devices", KERNELS, OF_EACH_FILE))
def test_hot_kernels(which: str, architecture: int) -> None:
    file, defines, name, most, instructions = KERNELS[which]
    kernel = read_kernel(machine_code(file, defines, architecture), name)
    assert kernel.frame <= SPILLED.get((which, architecture), 0), "registers are spilled"
    assert kernel.in_loops == 0, "registers are spilled in a loop"
    assert kernel.registers <= most
    assert kernel.shared <= SHARED
    more = ("LDGSTS",) if file in COPIED and architecture >= 80 and "K=q8_0" not in defines else ()
    assert all(kernel.instructions[i] for i in (*instructions, *more)), kernel.instructions
    if which in BLOCKS:
        threads, least = BLOCKS[which]
        assert blocks(kernel, threads, architecture) >= least[ARCHITECTURES.index(architecture)]


@needs_compiler
def test_what_a_cubin_says() -> None:
    """A kernel that spills, and one with shared memory."""
    text = """
        extern "C" __global__ void __launch_bounds__(256, 8) keeps(float* p) {
          float v[64];
          for (int i = 0; i < 64; i++) v[i] = p[64 * threadIdx.x + i];
          __syncthreads();
          for (int i = 0; i < 64; i++) p[threadIdx.x + 256 * i] = v[i] * v[63 - i];
        }
        extern "C" __global__ void turns(uint4* p) {
          __shared__ uint4 all[256];
          all[threadIdx.x] = p[threadIdx.x];
          __syncthreads();
          p[threadIdx.x] = all[255 - threadIdx.x];
        }"""
    make = compiler()
    assert make is not None
    for architecture in (80, 90):
        cubin = make("test.cu", text, (), architecture)
        keeps, turns = read_kernel(cubin, "keeps"), read_kernel(cubin, "turns")
        assert keeps.registers == 32 and keeps.frame and keeps.in_loops
        assert turns.shared == 4096 and turns.frame == 0 and turns.instructions["LDG.128"] == 1
        assert blocks(keeps, 256, architecture) == 8
        assert blocks(turns._replace(shared=40 << 10), 256, architecture) == 4 + (architecture > 80)


# ---- every file ----------------------------------------------------------------------------------

_DEFINES: dict[str, tuple[str, ...]] = {
    "matmul.cl": ("W=q4_K_planes", "X=f32", "PLANES", "USE_q4_K_planes", "USE_f32", "LANES=32",
                  "COLS=4", "TILE=64"),
    "attention.cl": ("K=f16", "V=f16", "USE_f16", "CELLS=64", "BY_ELEMENT", "CAP"),
    "flash.cl": ("K=f16", "V=f16", "USE_f16", "DK=128", "DV=128", "R=2"),
    "copy.cl": ("W=q6_K", "USE_q6_K", "PUT=q8_0", "PUT_q8_0"),
    "outer.cl": ("W=q6_K", "USE_q6_K"),
    "planes.cl": ("F=q6_K",),
    **dict.fromkeys(("glu.cl", "norm.cl", "quantize.cl"), ("TO_q8_0",)),
    "hyper.cl": ("K=f16", "USE_f16"),
}  # fmt: skip
ARRAYS = {"copy.cl": 128, "gather.cl": 192, "reduce.cl": 32, "rope.cl": 32, "sort.cl": 128,
          "tensor_reduce.cl": 128, "unary.cl": 32}  # fmt: skip
"""Bytes of local memory that a thread has for arrays; sines of large angles have one, too."""
OTHERS = {"gemm.cl", "gemv.cl"}
"""Products of bytes, of which CUDA has kernels of its own."""
FILES = sorted({p.name for p in (Path(shared.__file__).parent / "sources").glob("*.cl")} - OTHERS)


@needs_compiler
@pytest.mark.parametrize("file", share("devices", FILES, FILES[::5]))
def test_what_all_devices_share(file: str) -> None:
    """Without a warning and without spills; each file for another architecture."""
    some = ARCHITECTURES if ALL else ARCHITECTURES[FILES.index(file) % len(ARCHITECTURES) :][:1]
    defines = _DEFINES.get(file, ())
    names = re.findall(rf"__kernel void ({PREFIX}\w+)\(", source_of(file, defines))
    assert names
    for architecture in some:
        cubin = machine_code(file, defines, architecture)
        frames = {name: read_kernel(cubin, name).frame for name in names}
        assert max(frames.values()) <= ARRAYS.get(file, 0), (architecture, frames)


def test_every_file_of_cuda_has_a_row() -> None:
    assert {p.name for p in OWN.glob("*.cu")} == {f for f, *_ in KERNELS.values()} - {"norm.cl"}
