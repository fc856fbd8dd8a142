"""One op, run by the native executor: a step over operands that say where their elements lie.

    out = run_op("ADD", result("f32", (8, 3)), [tensor(a), tensor(b)], target="avx2")

`tensor` describes a contiguous array, `Operand` any strided window of a memory. Operands that hold
the same memory object share it in the run, so views and in-place results can be tested. Every
buffer lies between guard bytes, which must survive, as must the memory of pure sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.targets import TARGETS
from weft import _native
from weft.dtype import find_dtype
from weft.graph import Tensor
from weft.graph.node import make_node
from weft.graph.op import find_op
from weft.graph.op_table import Slot, slots_of
from weft.graph.params import Params, pack
from weft.graph.rewrite.general import GENERAL, general_form

U8 = NDArray[np.uint8]

GUARD = 256
"""Guard bytes on either side of a buffer; a multiple of a cache line."""

MAX_SRC = 10
OP_NUMBERS = {row.split()[0]: number for number, row in enumerate(_native.op_table())}


class Refused(Exception):
    """The kernel's check, or the executor, refused the call."""


def _four(sizes: Iterable[int]) -> tuple[int, int, int, int]:
    a, b, c, d = (*sizes, 1, 1, 1, 1)[:4]
    return a, b, c, d


def contiguous_nb(dtype: str, ne: Sequence[int]) -> tuple[int, int, int, int]:
    """Byte strides of a contiguous tensor, innermost first."""
    dt = find_dtype(dtype)
    ne = _four(ne)
    nb1 = ne[0] // dt.block * dt.bytes
    return dt.bytes, nb1, nb1 * ne[1], nb1 * ne[1] * ne[2]


@dataclass(eq=False)
class Operand:
    """A tensor: a window of `memory` (flat uint8). Sizes innermost first, strides in bytes."""

    memory: U8
    dtype: str
    ne: tuple[int, ...]
    nb: tuple[int, ...] = ()
    offset: int = 0
    layout: int = 0
    """1: interleaved."""

    def __post_init__(self) -> None:
        self.ne = _four(self.ne)
        self.nb = tuple(self.nb) or contiguous_nb(self.dtype, self.ne)

    @property
    def desc(self) -> tuple[int, list[int], list[int]]:
        return int(find_dtype(self.dtype).id), list(self.ne), list(self.nb)

    def read(self, memory: U8 | None = None) -> NDArray[Any]:
        """The elements `[i3, i2, i1, i0]` in the storage type; block types as uint8 rows."""
        dt = find_dtype(self.dtype)
        raw = self.memory if memory is None else memory
        units = (*self.ne[:0:-1], self.ne[0] // dt.block, dt.bytes)
        if 0 in units:
            return np.zeros(self.ne[::-1], dt.storage if dt.block == 1 else np.uint8)
        strided = np.lib.stride_tricks.as_strided(
            raw[self.offset :], units, (*self.nb[::-1], 1), writeable=False
        )
        flat = np.ascontiguousarray(strided).reshape(*units[:3], -1)
        return flat if dt.block > 1 else flat.view(dt.storage)


def tensor(array: NDArray[Any], dtype: str | None = None, ne0: int | None = None) -> Operand:
    """A contiguous array as an operand. `dtype`: needed for bf16 and block types (uint8 rows)."""
    array = np.ascontiguousarray(array)
    name = dtype or {"float32": "f32", "float16": "f16", "float64": "f64"}.get(
        array.dtype.name, array.dtype.name.replace("int", "i")
    )
    dt = find_dtype(name)
    ne = list(array.shape[::-1])
    if dt.block > 1:
        ne[0] = ne[0] // dt.bytes * dt.block
    return Operand(array.reshape(-1).view(np.uint8), name, tuple(ne if ne0 is None else [ne0]))


def result(dtype: str, ne: Sequence[int], nb: Sequence[int] = ()) -> Operand:
    """A destination in fresh memory, filled with a pattern that no result has."""
    ne = _four(ne)
    strides = tuple(nb) or contiguous_nb(dtype, ne)
    dt = find_dtype(dtype)
    steps = (ne[0] // dt.block, *ne[1:])
    size = dt.bytes + sum((n - 1) * s for n, s in zip(steps, strides, strict=True))
    memory = np.full(0 if 0 in ne else size, 0xFF, np.uint8)
    return Operand(memory, dtype, ne, strides)


@cache
def pool(n_threads: int) -> _native.ThreadPool:
    """The thread pool of a size, kept for the whole test run."""
    return _native.ThreadPool(n_threads)


def refusal(
    op: str,
    dst: Operand,
    src: Sequence[Operand | None],
    params: Sequence[float] = (),
    target: str = TARGETS[0],
) -> str | None:
    """The sentence the kernel refuses with; None when it takes the call."""
    descs = [(0, [], []) if s is None else s.desc for s in src]
    return _native.refusal(target, OP_NUMBERS[op], dst.desc, descs, [float(p) for p in params])


class Run:
    """A program of one step over copies of the operands' memories; may be run many times."""

    def __init__(
        self,
        op: str,
        dst: Operand,
        src: Sequence[Operand | None],
        params: Sequence[float] = (),
        target: str = TARGETS[0],
        n_threads: int = 1,
    ) -> None:
        self.dst = dst
        self.sources = [s for s in src if s is not None]
        memories: dict[int, U8] = {id(t.memory): t.memory for t in (dst, *self.sources)}
        self._buffers = {key: _guarded(memory) for key, memory in memories.items()}
        self._originals = memories
        index = {key: i for i, key in enumerate(memories)}
        rows = []
        for t in (dst, *self.sources):
            plain = [int(find_dtype(t.dtype).id), index[id(t.memory)], t.layout]
            for size in (*t.ne, *t.nb, t.offset):
                plain += [size, -1]
            rows.append(plain)
        slots, at = [], 1
        for s in src:
            slots.append(-1 if s is None else at)
            at += s is not None
        slots += [-1] * (MAX_SRC - len(slots))
        try:
            program = _native.Program.from_tables(
                symbols=[],
                exprs=np.zeros((0, 3), np.int64),
                buffers=[m.size for m in memories.values()],
                names=["dst", *(f"src{i}" for i in range(len(self.sources)))],
                tensors=np.array(rows, np.int64),
                steps=np.array([[OP_NUMBERS[op], 0, 0, len(params), *slots]], np.int64),
                stages=np.array([[0, 1]], np.int64),
                params=[float(p) for p in params],
            )
            self._executor = _native.Executor.create(
                program=program,
                memory=[
                    (self._buffers[key].ctypes.data + GUARD, memory.size)
                    for key, memory in memories.items()
                ],
                target=target,
                pool=pool(n_threads),
            )
        except ValueError as error:
            raise Refused(str(error)) from None

    def run(self) -> None:
        self._executor.run([])

    def memory(self, operand: Operand) -> U8:
        """The operand's memory as it is now."""
        return self._buffers[id(operand.memory)][GUARD : GUARD + operand.memory.size]

    def check_guards(self) -> None:
        """Fails if anything outside the destination's memory was written."""
        written = id(self.dst.memory)
        for key, buffer in self._buffers.items():
            size = self._originals[key].size
            assert (buffer[:GUARD] == 0xA5).all(), "bytes before a buffer were written"
            assert (buffer[GUARD + size :] == 0xA5).all(), "bytes after a buffer were written"
            if key != written:
                same = np.array_equal(buffer[GUARD : GUARD + size], self._originals[key])
                assert same, "a source was written"


def run_op(
    op: str,
    dst: Operand,
    src: Sequence[Operand | None],
    params: Sequence[float] = (),
    target: str = TARGETS[0],
    n_threads: int = 1,
    *,
    whole: bool = False,
) -> NDArray[Any]:
    """Runs one op, or what stands for it in general form, and returns the destination's elements
    `[i3, i2, i1, i0]`.

    `whole`: the bytes of the destination's entire memory instead. Raises Refused when the kernel
    does not take the call."""
    if op in GENERAL:
        return _run_general(op, dst, src, params, target, n_threads, whole=whole)
    step = Run(op, dst, src, params, target, n_threads)
    step.run()
    step.check_guards()
    memory = step.memory(dst).copy()
    return memory if whole else dst.read(memory)


def _run_general(
    op: str,
    dst: Operand,
    src: Sequence[Operand | None],
    params: Sequence[float],
    target: str,
    n_threads: int,
    *,
    whole: bool,
) -> NDArray[Any]:
    """The steps of the general form, one after the other; the last that works writes `dst`."""
    known: dict[Tensor, Operand] = {}
    leaves: list[Tensor | None] = []
    for s in src:
        leaf = None if s is None else Tensor(find_dtype(s.dtype), s.ne, nb=s.nb)
        leaves.append(leaf)
        if s is not None and leaf is not None:
            known[leaf] = s
    node = make_node(
        op, find_dtype(dst.dtype), dst.ne, *leaves, params=_record(op, params), nb=dst.nb
    )
    form = general_form(node, GENERAL)
    *_, last = (t for t in form if not t.op.is_view)
    for t in form:
        if t.view_src is not None:
            base = known[t.view_src]
            known[t] = Operand(base.memory, t.dtype.name, t.ne, t.nb, base.offset + t.view_offs)
            continue
        plain = last is form[-1] and t is last
        out = dst if plain else result(t.dtype.name, t.ne, t.nb)
        sources = [None if s is None else known[s] for s in t.src]
        step = Run(t.op.name, out, sources, pack(t.params), target, n_threads)
        step.run()
        step.check_guards()
        memory = step.memory(out).copy()
        known[t] = Operand(memory, out.dtype, out.ne, out.nb, out.offset)
    end = known[form[-1]]
    return end.memory if whole else end.read()


def _record(op: str, params: Sequence[float]) -> Params | None:
    """The parameter record of numbers, one per slot."""
    record = find_op(op).params
    if record is None:
        return None
    values = iter(params)
    fields = {}
    for slot in slots_of(record):
        read = tuple(_parameter(slot, next(values)) for _ in range(slot.count))
        fields[slot.name] = read if slot.count > 1 else read[0]
    return record(**fields)


def _parameter(slot: Slot, value: float) -> Any:
    if slot.members is not None:
        return slot.members(int(value))
    return {"int": int, "float": float, "bool": bool}[slot.kind](value)


def _guarded(memory: U8) -> U8:
    """A copy between guard bytes, its first byte on a cache line."""
    raw = np.full(memory.size + 2 * GUARD + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    buffer = raw[start : start + memory.size + 2 * GUARD]
    buffer[GUARD : GUARD + memory.size] = memory
    return buffer
