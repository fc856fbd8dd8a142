"""Registers, shared memory and occupancy of the CUDA kernels, from machine code; no GPU is needed.

`gpu.py --registers` prints it. The kernels are those of `tests/backends/test_cuda_cubins.py`, which
has each file of `cuda/kernels` with the definitions that are used most. NVRTC compiles them, else
nvcc. Other interfaces do not tell registers: WebGPU has no such query, and lavapipe runs kernels on
the processor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from release.build import JOBS
from release.cubins import compiler
from tests.backends.cubin_file import LIMITS, blocks, read_kernel
from tests.backends.test_cuda_cubins import KERNELS, machine_code

ARCHITECTURES = (80, 89, 90)


@dataclass(frozen=True)
class Use:
    """What a kernel takes on an architecture."""

    kernel: str
    """Its name and the definitions it is compiled with."""
    architecture: int
    threads: int
    """The number of threads of a block."""
    registers: int
    """The number of registers of a thread."""
    shared: int
    """Bytes of shared memory of a block."""
    spilled: int
    """Bytes of local memory of a thread."""
    blocks: int
    """The number of blocks that a multiprocessor holds at once."""

    @property
    def occupancy(self) -> float:
        """The share of the warps of a multiprocessor that these blocks are."""
        return self.blocks * -(-self.threads // 32) / LIMITS[self.architecture].warps


def uses(architectures: Sequence[int] = ARCHITECTURES, only: Sequence[str] = ()) -> Iterator[Use]:
    """Every kernel of `KERNELS` (`only` those named) on every architecture, kernel by kernel."""
    chosen = [row for which, row in KERNELS.items() if not only or which in only]
    jobs = [(row, architecture) for row in chosen for architecture in architectures]
    with ThreadPoolExecutor(int(JOBS)) as pool:
        yield from pool.map(lambda job: _use(*job), jobs)


def _use(row: tuple[str, tuple[str, ...], str, int, tuple[str, ...]], architecture: int) -> Use:
    file, defines, name, *_ = row
    kernel = read_kernel(machine_code(file, defines, architecture), name)
    threads = kernel.threads or 128
    held = blocks(kernel, threads, architecture)
    label = f"{name} {' '.join(defines)}".rstrip()
    return Use(
        label, architecture, threads, kernel.registers, kernel.shared, kernel.frame, held
    )  # fmt: skip


def table(found: Sequence[Use]) -> str:
    """Markdown: a row for each kernel, a column for each architecture."""
    architectures = list(dict.fromkeys(use.architecture for use in found))
    heads = ["kernel", "threads", "shared memory", *(f"sm_{a}" for a in architectures)]
    rows = [_row(heads), "|" + "---|" * len(heads)]
    for kernel in dict.fromkeys(use.kernel for use in found):
        same = [use for use in found if use.kernel == kernel]
        cells = [
            f"{use.registers}, {use.blocks}, {use.occupancy:.0%}"
            + (f" ({use.spilled} B spilled)" if use.spilled else "")
            for use in same
        ]
        rows.append(_row([f"`{kernel}`", str(same[0].threads), f"{same[0].shared} B", *cells]))
    return "\n".join(rows) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def print_table() -> None:
    """Prints the table, and what its cells are; ends the process where there is no compiler."""
    if compiler() is None:
        sys.exit(
            "no compiler for GPUs: pip install nvidia-cuda-nvrtc cuda-bindings, or put nvcc of a "
            "CUDA toolkit into PATH"
        )
    print("registers of a thread, blocks of a multiprocessor, share of its warps\n")
    print(table(list(uses())))
