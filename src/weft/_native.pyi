"""The native core: kernels, thread pool and executor."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

def built_for() -> str:
    """
    The system, the processor and the compiler that this module was built for.
    """

def built_from() -> str:
    """
    The commit that this module was built from, with + where files differed from it; empty where it is not known.
    """

class RowConverter:
    """Threads that convert rows of one type to another, as files have them."""

    def __init__(self, n_threads: int, target: str = "") -> None: ...
    def can(self, before: int, after: int, weighted: bool) -> bool: ...
    def convert(
        self,
        before: int,
        after: int,
        src: Annotated[
            NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
        ],
        dst: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        ne0: int,
        rows_per_matrix: int,
        weights: Annotated[
            NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
        ]
        | None = None,
    ) -> int:
        """Returns -1, or the number of a row with a value that is not finite."""

class ExpertStore:
    """Experts in files, and slots for some of them."""

    def __init__(
        self,
        paths: Sequence[str],
        names: Sequence[str],
        stacks: Sequence[Sequence[int]],
        pools: Sequence[tuple[int, int]],
        arena: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        n_readers: int,
        policy: int,
        chooses: bool,
    ) -> None:
        """
        `stacks` has for each tensor: file, offset, bytes of an expert, experts, type, layout, rows, row elements, layer, pool. `pools` has (bytes of a slot, slots). Raises ValueError for a file that cannot be opened, and for numbers that contradict each other.
        """

    def address(self, arg: int, /) -> int: ...
    def read_rows(
        self,
        stack: int,
        expert: int,
        out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
    ) -> None:
        """Reads the rows of an expert from its file; raises ValueError."""

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """
        hits, hits of predictions, misses, predictions read, bytes read, nanoseconds waited.
        """

    @property
    def policy(self) -> int: ...
    def record(self, most: int) -> None:
        """Records routing afresh, at most so many numbers; 0 ends it."""

    def recorded(self) -> list[int]:
        """
        The record: for each step of a layer its number, a count, and so many experts.
        """

def best_expert_policy(
    record: Sequence[int], n_experts: Sequence[int], n_slots: int, now: int
) -> int:
    """
    The policy that does best with a record, or `now` where none is clearly better.
    """

def simulate_experts(
    record: Sequence[int], n_experts: Sequence[int], n_slots: int, policy: int
) -> tuple[int, int, int, int]:
    """
    (asked, hits, predictions, hits of these) of a record over so many slots; policy -1 knows what comes. Raises ValueError for a record of other layers or experts.
    """

def cpu_features() -> list[str]:
    """
    The names of the processor features that kernels use and this machine has.
    """

def targets() -> list[tuple[str, int]]:
    """
    The kernel targets of this build with their scores; 0 when this machine cannot run one.
    """

def own_ops(target: str) -> list[int]:
    """
    The numbers of the ops whose kernels the target does not share with one before it: those of products in a target over another one, otherwise all.
    """

def best_target() -> str:
    """
    The kernel target with the highest score; empty when this machine can run none.
    """

def op_table() -> list[str]:
    """A line for each op, by number, to compare with weft.graph.op_table."""

def type_table() -> list[tuple[int, str, int, int]]:
    """
    The rows of the type table: number, name, elements per block, bytes per block.
    """

def refusal(
    target: str,
    op: int,
    dst: tuple[int, Sequence[int], Sequence[int]],
    src: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    params: Sequence[float],
    layout: int = 0,
) -> str | None:
    """
    None when the target has a kernel that accepts the call, otherwise a sentence that says why not. `layout` is the number of source 0's layout (0: rows).
    """

def scratch_bytes(
    target: str,
    op: int,
    dst: tuple[int, Sequence[int], Sequence[int]],
    src: Sequence[tuple[int, Sequence[int], Sequence[int]]],
    params: Sequence[float],
    n_threads: int,
) -> int:
    """The bytes of scratch memory that the call needs per thread."""

def dequantize(
    target: str,
    type: int,
    data: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Decodes the rows in `data`, of any type, into the floats of `out`."""

def quantize(
    target: str,
    type: int,
    data: Annotated[
        NDArray[numpy.float32], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Encodes the floats in `data` as rows of a type."""

def activation_type(target: str, type: int) -> int:
    """
    The type that activations must have for a native matmul with this weight type.
    """

def interleaved_block(type: int) -> int:
    """
    The number of elements that the length of a row must be a multiple of; 0 for a type without an interleaved layout.
    """

def interleaved_types(target: str) -> list[int]:
    """
    The weight types whose interleaved layout the matmuls of a target read.
    """

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
    Copies matrices, of `rows` rows altogether, into panels of 32 rows, on the threads of a pool.
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

def level_types(target: str) -> list[int]:
    """The weight types whose levels layout the matmuls of a target read."""

def level_bytes(type: int, rows: int, row_elements: int) -> int:
    """
    The bytes of matrices, of `rows` rows altogether, in the levels layout.
    """

def make_levels(
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
    Converts matrices, of `rows` rows altogether, to the levels layout, on the threads of a pool.
    """

def lookup_types(target: str) -> list[int]:
    """The weight types whose lookup layout the MUL_MAT of a target reads."""

def lookup_bytes(type: int, rows: int, row_elements: int) -> int:
    """The bytes of a matrix in the lookup layout."""

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
    """Converts a matrix to the lookup layout, on the threads of a pool."""

class MaskWriter:
    """
    Writes rows of an attention mask: f16 0 for each cell that a token sees, otherwise -inf.
    """

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
        Keeps `pos` [cells], `members` [sequences, cells] and `out`. A token sees only the last `window` positions (0: all), and with `causal` none behind its own; without it, half of the window is on each side.
        """

    def one(self, n_kv: int, position: int, seq: int) -> None:
        """
        Writes a row of `n_kv` cells for one token; raises ValueError when it does not fit.
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
        """Writes a row of `n_kv` cells for each token, one after another."""

class Packer:
    """
    Puts items with a lifetime and a size into memory, each at the lowest offset that no item living at the same time covers.
    """

    def __init__(
        self, sizes: Sequence[int], neighbours: Sequence[Sequence[int]], limit: int
    ) -> None:
        """
        `neighbours`: for each item those that live at the same time; `limit`: bytes of a chunk, unless one item needs more.
        """

    def pack(
        self,
        order: Sequence[int],
        kept: int,
        bound: int,
        offsets: Sequence[int],
        chunk_of: Sequence[int],
    ) -> tuple[list[int], list[int], list[int], list[int], list[int], int]:
        """
        (offsets, chunk_of, chunks, limits, above, excess): the items in this order, of which the first `kept` stay where they are; those that end above `bound`, and by how many bytes, summed.
        """

def measure_peaks(
    target: str, n_threads: int, seconds: float, buffer: int
) -> tuple[float, float, float, float, int]:
    """
    (read, int8, f32, bf16, buffer): bytes read per second, operations per second, and the bytes of the buffer that was read.
    """

def usable_processors() -> int:
    """The number of processors that this process may use."""

def usable_cores() -> int:
    """The number of physical cores that this process may use."""

def usable_cpus() -> list[int]:
    """The numbers of the processors that this process may use."""

def numa_nodes() -> list[list[int]]:
    """The usable processors of each NUMA node."""

def current_cpu() -> int:
    """
    The processor that runs the calling thread; -1 where the system does not say.
    """

def copy_bytes(targets: Sequence[int], sources: Sequence[int], sizes: Sequence[int]) -> None:
    """
    Copies `sizes` bytes from each address of `sources` to that of `targets`; the caller keeps both alive.
    """

class ThreadPool:
    """Persistent threads; the caller is one of them."""

    def __init__(
        self, n_threads: int, poll: int = 50, priority: int = 0, cpus: Sequence[Sequence[int]] = []
    ) -> None:
        """
        `poll` is how long idle threads spin, from 0 (they sleep at once) to 100 (200 us); `priority` is 0 (normal) to 3 (realtime); `cpus` lists the processors of each thread (none: any).
        """

    @property
    def size(self) -> int: ...
    @property
    def warnings(self) -> list[str]:
        """A sentence for each thing that the system refused."""

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
        """
        Reads a program from flat tables; raises ValueError when it is illegal.
        """

class Executor:
    """Runs a program over memory that the caller keeps alive."""

    @staticmethod
    def create(
        program: Program,
        memory: Sequence[tuple[int, int]],
        target: str,
        pool: ThreadPool,
        experts: Sequence[tuple[int, ExpertStore, int]] = [],
    ) -> Executor:
        """
        `memory` has (address, bytes) for each buffer, `experts` (buffer, store, stack) for those whose experts are in a store. Raises ValueError when the target cannot run the program.
        """

    def run(self, values: Sequence[int]) -> bool:
        """
        Runs the program with these symbol values and releases the GIL meanwhile. Returns False when abort() has stopped the run; KeyboardInterrupt stops it too. Raises OSError when experts cannot be read from their file.
        """

    def abort(self) -> None:
        """Stops the current run, or the next one when there is none."""

    def clear_abort(self) -> None:
        """Cancels an abort that has not stopped a run yet."""

    def set_threads(self, n: int) -> None:
        """
        Sets how many threads later runs use, at most those of the pool (0: all of them). Waits for the current run.
        """

    @property
    def scratch_bytes(self) -> int: ...
    @property
    def barriers(self) -> int: ...
    @property
    def step_tasks(self) -> list[int]:
        """
        How the last run shared out each step: a flat list [step][stage, first step of its chain, units, grain, chunk, threads, units of preparation, bytes of scratch memory for each thread, bytes of shared memory]; zeros for an empty step.
        """

    def set_profiling(self, on: bool) -> None: ...
    @property
    def step_seconds(self) -> list[float]: ...
    def record_spans(self, on: bool) -> None:
        """
        Records when each thread works on each step; every call clears the record.
        """

    @property
    def spans(self) -> list[int]:
        """
        The record as a flat list [step][thread][begin, end, busy], in nanoseconds of the steady clock; zeros where a thread had no part.
        """

def strings_end(
    bytes: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    at: int,
    n: int,
) -> int:
    """
    Where the `n` strings at byte `at` end; -1 if one of them is not whole.
    """

def read_strings(
    bytes: Annotated[
        NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)
    ],
    at: int,
    n: int,
    most: int,
) -> tuple[list[bytes], int]:
    """
    The `n` strings at byte `at`, up to `most` bytes of each, and where they end. Raises ValueError if one of them is not whole.
    """
