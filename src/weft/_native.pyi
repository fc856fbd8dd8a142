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

def op_table() -> list[str]:
    """A line for each op, by number: weft.graph.op_table."""

def type_table() -> list[tuple[int, str, int, int]]:
    """Rows (id, name, block, bytes) of the type table."""

def refusal(
    target: str,
    op: int,
    dst: tuple[int, Sequence[int], Sequence[int]],
    src: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    params: Sequence[float],
    layout: int = 0,
) -> str | None:
    """
    None when the target has a kernel for the call, else the sentence it refuses with. `layout`: of source 0, by number (0: rows).
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

def interleaved_block(type: int) -> int:
    """
    Elements that rows must be a multiple of; 0 for a type without an interleaved layout.
    """

def interleaved_types(target: str) -> list[int]:
    """Weight types whose interleaved layout the matmuls of a target read."""

def interleave(
    type: int,
    src: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rows: int,
    row_elements: int,
    pool: ThreadPool,
) -> None:
    """
    Copies matrices (`rows` of all of them) into panels of 32 rows, on the threads of a pool.
    """

def deinterleave(
    type: int,
    src: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rows: int,
    row_elements: int,
    pool: ThreadPool,
) -> None:
    """Copies panels of 32 rows back into matrices."""

def lookup_types(target: str) -> list[int]:
    """Weight types whose lookup layout the MUL_MAT of a target reads."""

def lookup_bytes(type: int, rows: int, row_elements: int) -> int:
    """Bytes of a matrix in the lookup layout."""

def is_ternary(
    type: int,
    src: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    rows: int,
    row_elements: int,
    pool: ThreadPool,
) -> bool:
    """Whether all weights of a matrix are -1, 0 or +1 times a scale."""

def make_lookup(
    type: int,
    src: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    rows: int,
    row_elements: int,
    pool: ThreadPool,
) -> None:
    """Turns a matrix into indices of tables, on the threads of a pool."""

class MaskWriter:
    """Writes which cells tokens see, as f16 0 and -inf."""

    def __init__(
        self,
        pos: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        members: Annotated[
            NDArray[numpy.bool_], dict(shape=(None, None), order="C", device="cpu", writable=False)
        ],
        out: Annotated[NDArray[numpy.uint16], dict(shape=(None,), order="C", device="cpu")],
        window: int,
        causal: bool,
    ) -> None:
        """
        `pos` [cells], `members` [sequences, cells] and `out` are kept; `window`: last positions that a token sees, 0: all; `causal`: not those behind it.
        """

    def one(self, n_kv: int, position: int, seq: int) -> None:
        """
        A row of `n_kv` cells for a token; raises ValueError where it does not fit.
        """

    def all(
        self,
        n_kv: int,
        positions: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        seqs: Annotated[
            NDArray[numpy.int32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
    ) -> None:
        """A row for each token, one after another."""

def measure_peaks(
    target: str, n_threads: int, seconds: float, buffer: int
) -> tuple[float, float, float, float, int]:
    """
    (read, int8, f32, bf16, buffer): bytes and operations per second, bytes that were read.
    """

def usable_processors() -> int:
    """Processors this process may use."""

def usable_cores() -> int:
    """Physical cores among them."""

def usable_cpus() -> list[int]:
    """Their numbers."""

def numa_nodes() -> list[list[int]]:
    """The usable processors of each NUMA node."""

def current_cpu() -> int:
    """The processor that runs this thread; -1: not known."""

class ThreadPool:
    """Persistent threads; the caller is one of them."""

    def __init__(
        self, n_threads: int, poll: int = 50, priority: int = 0, cpus: Sequence[Sequence[int]] = []
    ) -> None:
        """
        `poll`: 0 (sleep at once) to 100; `priority`: 0 (normal) to 3 (realtime); `cpus`: the processors of each thread, empty: any.
        """

    @property
    def size(self) -> int: ...
    @property
    def warnings(self) -> list[str]:
        """What the system refused."""

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

    def run(self, values: Sequence[int]) -> bool:
        """
        Runs with these symbol values, the GIL released; KeyboardInterrupt stops it. False: abort() has stopped it.
        """

    def abort(self) -> None:
        """Stops the run that is going on, or else the next one."""

    def clear_abort(self) -> None:
        """Forgets an abort that no run has seen."""

    def set_threads(self, n: int) -> None:
        """
        Threads of later runs, at most the pool's; 0: all. Waits for a run that is going on.
        """

    @property
    def scratch_bytes(self) -> int: ...
    @property
    def barriers(self) -> int: ...
    @property
    def step_tasks(self) -> list[int]:
        """For each step, the pieces that threads could claim in the last run."""

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
