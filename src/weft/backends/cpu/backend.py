"""The nodes that the native kernels take, and the way from a split to a native program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import (
    YES,
    BackendBase,
    DeviceKind,
    Executable,
    Support,
    Use,
    why_not_general,
)
from weft.backends.cpu.experts import ExpertMemory
from weft.backends.cpu.native_program import describe_tensor, native_program
from weft.backends.cpu.order import side_by_side
from weft.backends.cpu.ordered import OrderedBufferType
from weft.backends.cpu.record import best_target, choose, require_usable
from weft.backends.cpu.repack import (
    LevelBufferType,
    LookupBufferType,
    PanelBufferType,
    PanelMemory,
    can_look_up,
    can_repack,
    can_store_levels,
    is_ternary,
)
from weft.backends.cpu.ternary import choose_method
from weft.backends.cpu.threads import ThreadOptions, default_threads
from weft.backends.memory import BufferType, HostMemory, Memory, WeightBufferType
from weft.backends.registry import BackendInfo
from weft.dtype import DTYPES, DType, dtype_from_id
from weft.errors import AbortedError, DeviceError, FormatError, OutOfMemoryError, ProgramError, warn
from weft.flags import FLAGS
from weft.graph.node import make_node
from weft.graph.op import OPS
from weft.graph.op_table import check_native
from weft.graph.params import pack
from weft.graph.rewrite import REWRITES
from weft.graph.rewrite.general import GENERAL
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.native import _native
from weft.options import require_options
from weft.program import LAYOUTS, Layout, Program

Activations = Literal["native", "f32", "bf16"]
"""`native`: matmuls with block-quantized weights quantize their activations, and with bf16 weights
round them to bf16 where the processor has bf16 dot products, as the reference does;
`f32`: weights are decoded and everything is computed in float32 (slower, more exact);
`bf16`: as native, and f16 and f32 weights too are multiplied as bf16 (rounded to 8 bits) where
more than a few columns are computed at once: faster prompts, while single tokens stay exact.
Without bf16 dot products it is native."""

_FEW_COLUMNS = 8
"""The columns up to which reading the weights limits a product: kFewColumns of the kernels."""

_MATMULS = (OPS["MUL_MAT"], OPS["MUL_MAT_ID"])
OPTIONS = ("n_threads", "n_threads_batch", "threads", "target", "activations")
"""The options of `make`, for a device that is made from its name."""
_CACHE_LINE = 64
_NATIVE_TYPES = frozenset(row[0] for row in _native.type_table())
"""The numbers of the types of the native code."""
_VIEWS = tuple(op for op in OPS.values() if op.is_view)

check_native(_native.op_table(), "the native module")


class HostBufferType:
    """Ordinary memory of this process; weights may be memory-mapped files."""

    name = "CPU"
    device = "cpu"
    alignment = 64
    max_size: int | None = None
    is_host = True

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the tensor at its symbols' maxima."""
        return tensor.max_bytes

    def allocate(self, nbytes: int) -> Memory:
        """A zeroed, aligned block."""
        try:
            return HostMemory.zeros(nbytes, self.alignment)
        except MemoryError as error:
            what = (
                f"the host has no {nbytes} bytes left for a buffer; use a smaller context or batch"
            )
            raise OutOfMemoryError(what) from error


_HOST = HostBufferType()


def host_buffer_type() -> BufferType:
    """The one buffer type of host memory; weights and caches that CPU kernels read live in it."""
    return _HOST


class CpuBackend(BackendBase):
    """The native core with a pool of threads (default: physical cores) on one kernel target.

    `n_threads` and `n_threads_batch` replace the numbers of `threads`. Settings of threads that the
    system refuses are a RuntimeWarning. Raises DeviceError for a target that this build or this
    machine does not have or that failed `weft doctor` (not with `even_if_failing`), and for thread
    options out of range."""

    kind: DeviceKind = "CPU"
    runs_stages = True

    def __init__(
        self,
        n_threads: int | None = None,
        target: str | None = None,
        activations: Activations = "native",
        name: str = "cpu",
        n_threads_batch: int | None = None,
        threads: ThreadOptions | None = None,
        even_if_failing: bool = False,
        kernels: Any = None,
    ) -> None:
        """`kernels` answers for the kernels of another machine, which this one may not be able to
        run; the device then plans only."""
        chosen = target or FLAGS.target or best_target()
        if kernels is None:
            require_target(chosen, even_if_failing)
        self._kernels: Any = _native if kernels is None else kernels
        if activations not in ("native", "f32", "bf16"):
            raise DeviceError(f"activations must be 'native', 'f32' or 'bf16', got {activations!r}")
        threads = ThreadOptions() if threads is None else threads
        if not isinstance(threads, ThreadOptions):
            raise DeviceError(
                f"threads must be weft.ThreadOptions, got {threads!r}; n_threads takes a number"
            )
        if n_threads is not None:
            threads = replace(threads, n_threads=n_threads)
        if n_threads_batch is not None:
            threads = replace(threads, n_threads_batch=n_threads_batch)
        self.name = name
        self.target = chosen
        self.threads = threads
        self.n_threads, self.n_threads_batch = threads.resolved()
        self.activations: Activations = activations
        self.buffer_type: BufferType = _HOST
        self.pool, notes = threads.make_pool()
        for note in notes:
            warn(f"{name}: {note}", RuntimeWarning)
        self._panels = PanelBufferType(self.pool)
        self._panel_types = frozenset(self._kernels.interleaved_types(chosen))
        self._levels = LevelBufferType(self.pool)
        self._level_types = frozenset(self._kernels.level_types(chosen))
        self._lookups = LookupBufferType(self.pool)
        self._lookup_types = frozenset(self._kernels.lookup_types(chosen))
        self.rewrites = tuple(REWRITES)
        self.generalizes = frozenset(GENERAL)

    def supports_op(self, node: Tensor) -> Support:
        """Supports nodes that kernels accept, as written or in general form; views need none."""
        why = why_not_general(node, self.generalizes, self.why_not)
        return YES if why is None else Support(False, f"{node.op} on {self.name}: {why}")

    def why_not(self, node: Tensor) -> str | None:
        """The sentence with which the kernel refuses a node; None where it takes it."""
        if node.op in _VIEWS or node.op is OPS["NONE"]:
            return None
        tensors = (t for t in (node, *node.src) if t is not None)
        missing = next((t.dtype for t in tensors if t.dtype.id not in _NATIVE_TYPES), None)
        if missing is not None:
            return (
                f"the native code has no type {missing.name}; add its row and its kernels and "
                "compile them (docs/add-a-format.md), or give the device `reference`, which runs "
                "it slowly"
            )
        why: str | None = self._kernels.refusal(
            self.target,
            node.op.number,
            describe_tensor(node),
            [describe_tensor(s) for s in node.src],
            pack(node.params),
        )
        return why

    def supports_buffer_type(self, buffer_type: BufferType) -> bool:
        """Supports any memory that the host can address."""
        return buffer_type.is_host

    def work_bytes(self, node: Tensor) -> int:
        """The scratch bytes of the node's kernel for all threads, each in cache lines of its
        own."""
        return self.scratch_bytes(node, self.pool.size)

    def scratch_bytes(self, node: Tensor, n_threads: int) -> int:
        """The same for any number of threads."""
        if node.op in _VIEWS:
            return 0
        own = int(
            self._kernels.scratch_bytes(
                self.target,
                node.op.number,
                describe_tensor(node),
                [describe_tensor(s) for s in node.src],
                pack(node.params),
                n_threads,
            )
        )
        return n_threads * -(-own // _CACHE_LINE) * _CACHE_LINE

    def optimize(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        """The nodes with activations quantized once, and independent nodes side by side.

        A step of its own quantizes them for all matmuls with the same source and block type."""
        return side_by_side(self._with_blocks(nodes))

    def _with_blocks(self, nodes: Sequence[Tensor]) -> Sequence[Tensor]:
        quantized: dict[tuple[Tensor, str], Tensor] = {}
        result: list[Tensor] = []
        for node in nodes:
            if node.op in _MATMULS and len(node.src) > 1:
                weights, x = node.src[0], node.src[1]
                assert weights is not None and x is not None
                activation = self._activation_type(weights, x)
                if activation is not x.dtype:
                    key = (x, activation.name)
                    if key not in quantized:
                        quantized[key] = make_node(
                            "QUANTIZE", activation, x.ne, x, name=f"{x.name} ({activation.name})"
                        )
                        result.append(quantized[key])
                    node.src = (weights, quantized[key], *node.src[2:])
            result.append(node)
        return result

    def weight_layout(self, leaf: Tensor, uses: Sequence[Use]) -> WeightBufferType | None:
        """Panels of rows, panels of levels for codebook weights, or indices of tables where these
        are faster for ternary weights, if the kernels of all uses read them; else None."""
        if leaf.dtype.id in self._level_types and can_store_levels(leaf):
            taken = all(use.source == 0 and self._takes(use.node, "levels") for use in uses)
            return self._levels if taken else None
        if leaf.dtype.id in self._lookup_types and self._looks_up(leaf, uses):
            return self._lookups
        if leaf.dtype.id not in self._panel_types or not can_repack(leaf):
            return None
        in_panels = all(use.source == 0 and self._takes(use.node, "interleaved") for use in uses)
        multiplied = any(use.node.op is not OPS["GET_ROWS"] for use in uses)
        return self._panels if in_panels and multiplied else None

    def weight_memory(self, layout: Layout) -> WeightBufferType:
        """The memory for weights in a layout, whoever chose it; raises DeviceError for one that
        this device does not read."""
        known: tuple[WeightBufferType, ...] = (
            self._panels, self._levels, self._lookups, OrderedBufferType()
        )  # fmt: skip
        for memory in known:
            if memory.layout == layout:
                return memory
        raise DeviceError(f"{self.name} reads no weights in the layout {layout}")

    def _looks_up(self, leaf: Tensor, uses: Sequence[Use]) -> bool:
        if not can_look_up(leaf):
            return False
        if not all(use.source == 0 and self._takes(use.node, "lookup") for use in uses):
            return False
        depth, rows = upper(leaf.ne[0]), upper(leaf.ne[1])
        method = choose_method(self.target, leaf.dtype, rows, depth, self.pool)
        return method == "table" and is_ternary(leaf, self.pool)

    def _takes(self, node: Tensor, layout: Layout) -> bool:
        sources = [describe_tensor(s) for s in node.src]
        params = pack(node.params)
        why = self._kernels.refusal(
            self.target, node.op.number, describe_tensor(node), sources, params,
            layout=LAYOUTS.index(layout),
        )  # fmt: skip
        return why is None

    def _activation_type(self, weights: Tensor, x: Tensor) -> DType:
        """The type that the activations of a matmul are converted to; their own where they stay."""
        bf16, f32 = DTYPES["bf16"], DTYPES["f32"]
        if x.dtype is bf16 and weights.dtype.name in ("f16", "f32"):
            return f32  # the kernels would round the weights
        if x.dtype is not f32 or self.activations == "f32":
            return x.dtype
        rounds = self.activations == "bf16" and weights.dtype.name in ("f16", "f32")
        if rounds and weights.op is OPS["NONE"]:
            columns = math.prod(upper(n) for n in x.ne[1:])
            if columns <= _FEW_COLUMNS:
                return f32
            weights_type = bf16
        else:
            weights_type = weights.dtype
        activation = dtype_from_id(self._kernels.activation_type(self.target, weights_type.id))
        return f32 if activation is None else activation

    def lower(self, program: Program, split: int, memories: Sequence[Memory]) -> Executable:
        """The split as a native executor over host memory."""
        return NativeExecutable(self, program, split, memories)


def require_target(chosen: str, even_if_failing: bool) -> None:
    """Raises DeviceError for a target that this build does not have, that this machine cannot run
    or, unless `even_if_failing`, whose kernels failed their check."""
    scores = dict(_native.targets())
    if chosen not in scores:
        raise DeviceError(f"no kernel target {chosen!r}; this build has {', '.join(scores)}")
    if scores[chosen] == 0:
        usable = [t for t, score in scores.items() if score]
        raise DeviceError(
            f"this machine cannot run kernel target {chosen!r}; it can run {', '.join(usable)}"
        )
    if not even_if_failing:
        require_usable(chosen)


class NativeExecutable:
    """A native executor and the memory that it works on."""

    def __init__(
        self, backend: CpuBackend, program: Program, split: int, memories: Sequence[Memory]
    ) -> None:
        lowered = native_program(program, split)
        blocks = []
        experts = []
        for number, index in enumerate(lowered.buffers):
            memory = memories[index]
            if isinstance(memory, ExpertMemory):
                blocks.append((memory.address, memory.nbytes))
                experts.append((number, memory.store, memory.index))
                continue
            host = memory.panels if isinstance(memory, PanelMemory) else memory.host()
            if host is None:
                raise ProgramError(
                    f"split {split} runs on {backend.name} but buffer {index} is "
                    f"{program.buffers[index].buffer_type.name} memory, which it cannot address"
                )
            blocks.append((host.ctypes.data, host.nbytes))
        self._memories = list(memories)  # keeps the addresses alive
        self._symbols = lowered.symbols
        self._backend = backend
        self.steps = lowered.steps
        try:
            self._executor = _native.Executor.create(
                lowered.native, blocks, backend.target, backend.pool, experts
            )
        except ValueError as error:
            raise ProgramError(f"split {split} on {backend.name}: {error}") from error
        self.run_values = self._executor.run
        """The executor's own call, with symbol values in the order of `symbols`; False: stopped."""
        self.abort = self._executor.abort
        """Stops the current run, or else the next one, from any thread."""
        self.clear_abort = self._executor.clear_abort
        """Cancels an abort that has stopped no run."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols, in the order that `run_values` takes them."""
        return self._symbols

    @property
    def barriers(self) -> int:
        """The number of barriers of the last run."""
        return int(self._executor.barriers)

    def step_tasks(self) -> list[int]:
        """How the last run shared out each step, as numbers (`weft.execute.tasks`)."""
        return list(self._executor.step_tasks)

    def use_threads(self, n: int) -> None:
        """Sets the number of threads of later runs, at most the number in the pool; 0: all of
        them."""
        self._executor.set_threads(n)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of scratch memory of all threads, which all programs of the device share."""
        return int(self._executor.scratch_bytes)

    def run(self, values: Mapping[str, int]) -> None:
        """Runs once; raises ProgramError for a symbol value outside the plan, AbortedError when
        `abort` has stopped it."""
        try:
            if not self.run_values([values[s] for s in self._symbols]):
                raise AbortedError("the run was stopped by abort()")
        except OSError as error:
            raise FormatError(str(error)) from None
        except ValueError as error:
            raise ProgramError(str(error)) from error
        except KeyError as error:
            raise ProgramError(f"no value for symbol {error.args[0]}") from error

    def profile(self, on: bool) -> None:
        """Switches the timing of steps on or off; a profiled run has a barrier after every step."""
        self._executor.set_profiling(on)

    def step_seconds(self) -> list[float]:
        """Seconds of each step of the last profiled run."""
        return list(self._executor.step_seconds)

    def record_spans(self, on: bool) -> None:
        """Starts recording afresh when each thread works on each step, or stops; stages run as
        usual."""
        self._executor.record_spans(on)

    def spans(self) -> NDArray[np.int64]:
        """[step, thread, (begin, end, busy)] of the last run since `record_spans`."""
        flat = np.array(self._executor.spans, np.int64)
        return flat.reshape(len(self.steps), -1, 3)


def describe() -> list[BackendInfo]:
    """The one CPU device, with the kernel target it would use."""
    features = " ".join(_native.cpu_features())
    about = f"{default_threads()} threads, kernels {choose().target} ({features})"
    return [BackendInfo("cpu", True, "", about)]


def make(suffix: str | None = None, **options: Any) -> CpuBackend:
    """`cpu`; options are `n_threads`, `n_threads_batch`, `threads`, `target` and `activations`."""
    if suffix is not None:
        raise DeviceError(f"there is one cpu device; write 'cpu', not 'cpu:{suffix}'")
    require_options("cpu", set(options) - {"even_if_failing"}, OPTIONS)
    return CpuBackend(**options)
