"""The native core: kernels, thread pool and executor."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def cpu_features() -> list[str]:
    """Names of the CPU features that kernels care about."""

def targets() -> list[tuple[str, int]]:
    """
    Kernel targets of this build with their score; 0: this machine cannot run it.
    """

def best_target() -> str:
    """The kernel target with the highest score."""

def usable_processors() -> int:
    """Processors this process may use."""

def usable_cores() -> int:
    """Physical cores among them."""

def op_names() -> list[str]:
    """The ops, by number."""

def type_table() -> list[tuple[int, str, int, int]]:
    """Rows (id, name, block, bytes) of the type table."""

def refusal(
    target: str,
    op: int,
    dst: tuple[int, Sequence[int], Sequence[int]],
    src: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    params: Sequence[float],
) -> str | None:
    """
    None when the target has a kernel for the call, else the sentence it refuses with.
    """

def scratch_bytes(
    target: str,
    op: int,
    dst: tuple[int, Sequence[int], Sequence[int]],
    src: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    params: Sequence[float],
    n_threads: int,
) -> int:
    """Scratch bytes per thread that the call needs."""

def dequantize(
    target: str,
    type: int,
    data: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Decodes rows of any type into floats."""

def quantize(
    target: str,
    type: int,
    data: Annotated[
        NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Encodes floats with the run-time converter of a type."""

def activation_type(target: str, type: int) -> int:
    """
    The type activations must have for a native matmul with this weight type.
    """

def measure_peaks(
    target: str, n_threads: int, seconds: float, buffer: int
) -> tuple[float, float, float, float, int]:
    """
    (read, int8, f32, bf16, buffer): bytes and operations per second, bytes that were read.
    """

class ThreadPool:
    """Persistent threads; the caller is one of them."""

    def __init__(self, n_threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class Program:
    """A checked program of one split."""

    @staticmethod
    def from_tables(
        symbols: Sequence[tuple[str, int, int]],
        exprs: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        buffers: Sequence[int],
        names: Sequence[str],
        tensors: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        steps: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        stages: Annotated[
            NDArray[numpy.int64], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        params: Sequence[float],
    ) -> Program:
        """A program from flat tables; raises ValueError saying what is illegal."""

class Executor:
    """Runs a program over memory that the caller keeps alive."""

    @staticmethod
    def create(
        program: Program, memory: Sequence[tuple[int, int]], target: str, pool: ThreadPool
    ) -> Executor:
        """
        `memory`: (address, bytes) per buffer. Raises ValueError on a bad program.
        """

    def run(self, values: Sequence[int]) -> None:
        """
        Runs with these symbol values, the GIL released; KeyboardInterrupt stops it.
        """

    @property
    def scratch_bytes(self) -> int: ...
    @property
    def barriers(self) -> int: ...
    def set_profiling(self, on: bool) -> None: ...
    @property
    def step_seconds(self) -> list[float]: ...
    def record_spans(self, on: bool) -> None:
        """
        Records when each thread works on each step; starts anew with every call.
        """

    @property
    def spans(self) -> list[int]:
        """
        [step][thread][begin, end, busy], flat: nanoseconds of the steady clock, 0: no part.
        """
