"""`BoundProgram`: a program over memory, split by split, for sessions and schedulers to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Executable
from weft.backends.memory import DirectMemory, Memory
from weft.errors import AbortedError, DeviceError, FormatError, ProgramError, WeftError
from weft.execute.arena import ArenaPool, arenas_of
from weft.execute.values import read_array, tensor_bytes
from weft.graph.size import evaluate, upper
from weft.program import CopySpec, Program, SplitSpec, StepSpec, TensorSpec
from weft.records import dataclass


@dataclass(slots=True)
class Moved:
    """The copies that were made between memories."""

    copies: int = 0
    """Tensors copied, whole or in part."""
    nbytes: int = 0
    experts: int = 0
    """Experts copied, from weights of which only the used experts are copied."""

    def add(self, other: Moved) -> None:
        """Adds the counts of `other`."""
        self.copies += other.copies
        self.nbytes += other.nbytes
        self.experts += other.experts


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of a split, with its memories.

    `plan` is (source offset, destination offset, bytes) where no symbol decides; `experts` are the
    tensors of ids that say which part is copied."""

    name: str
    index: int
    src: Memory
    dst: Memory
    direct: DirectMemory | None
    """The destination, if it can take bytes from other devices."""
    plan: tuple[int, int, int] | None
    experts: tuple[int, ...] | None


class BoundProgram:
    """A program, the memory of its buffers, and an executable for each split.

    Every failure of a device is a DeviceError that names the split, its device and the node, or the
    nodes between which it happened."""

    def __init__(self, program: Program, pool: ArenaPool) -> None:
        """Takes arenas from the pool and sends weights to devices that need their own copy.

        Raises OutOfMemoryError when memory cannot be had, DeviceError when a device fails,
        ProgramError when a device refuses the program."""
        self.program = program
        self._backends = {b.name: b for b in program.devices}
        self._nodes = [_in_node_order(split) for split in program.splits]
        self.memories: list[Memory] = self._find_memories(pool)
        self.executables: list[Executable] = [
            self._lower(program, i, i, self.where(i)) for i in range(len(program.splits))
        ]
        self._copies = [self._bind_copies(i) for i in range(len(program.splits))]
        self._extents: dict[tuple[int, int], tuple[Mapping[str, int], tuple[int, int, int]]] = {}
        """The extents of the last copies that depend on symbols, with the values they are of."""
        self._parts: dict[tuple[int, int, int], Executable] = {}

    # ---- running ---------------------------------------------------------------------------------

    def copy_inputs(
        self, split: int, values: Mapping[str, int], which: Sequence[int] | None = None
    ) -> Moved:
        """Makes the copies that `split` needs, or only those with these numbers."""
        moved = Moved()
        copies = self._copies[split]
        for copy in copies if which is None else [copies[i] for i in which]:
            try:
                self._copy(split, copy, values, moved)
            except Exception as error:
                raise named_fault(f"{self.where(split)}: copy of {copy.name}", error) from error
        return moved

    def run(self, split: int, values: Mapping[str, int]) -> None:
        """Runs a split whose inputs are in place."""
        try:
            self.executables[split].run(values)
        except Exception as error:
            raise named_fault(self.where(split), error) from error

    def run_steps(self, split: int, begin: int, end: int, values: Mapping[str, int]) -> None:
        """Runs nodes `begin` to `end` (views not counted) of a split in their own order, and keeps
        the executable for them."""
        if begin >= end:
            return
        if (begin, end) == (0, len(self.program.splits[split].steps)):
            self.run(split, values)
            return
        where = self.where(split, begin, end)
        key = (split, begin, end)
        executable = self._parts.get(key)
        if executable is None:
            part = _part(self.program.splits[split], self._nodes[split][begin:end])
            program = replace(self.program, splits=(part,), plan=None)
            executable = self._parts[key] = self._lower(program, 0, split, where)
        try:
            executable.run(values)
        except Exception as error:
            raise named_fault(where, error) from error

    def write(self, name: str, spec: TensorSpec, start: int, data: NDArray[np.uint8]) -> None:
        """Writes bytes of an input from byte `start` of its buffer on."""
        try:
            self.memories[spec.buffer].write(start, data)
        except Exception as error:
            where = self.program.buffers[spec.buffer].buffer_type.name
            raise named_fault(f"input {name} to {where} memory", error) from error

    def touched(self, split: int, index: int) -> list[int]:
        """The tensors whose memory the host itself accesses for a copy; none if devices make the
        copy."""
        copy = self._copies[split][index]
        if copy.direct is not None and copy.experts is None:
            return []
        spec = self.program.splits[split].copies[index]
        return [spec.src, spec.dst, *(copy.experts or ())]

    def chooses(self, split: int, index: int) -> bool:
        """Whether ids that are computed say which part a copy takes."""
        return self._copies[split][index].experts is not None

    # ---- naming ----------------------------------------------------------------------------------

    def where(self, split: int, begin: int = 0, end: int | None = None) -> str:
        """The name of a split or some of its nodes, such as `split 2 on opencl (nodes ffn_up ..
        l_out-3)`."""
        names = [self.program.tensors[step.dst].name for step in self._nodes[split][begin:end]]
        if not names:
            return f"split {split} on {self.program.splits[split].device}"
        nodes = f"node {names[0]}" if len(names) == 1 else f"nodes {names[0]} .. {names[-1]}"
        return f"split {split} on {self.program.splits[split].device} ({nodes})"

    def _user(self, buffer: int) -> str:
        """The name of the first split that uses a buffer, with the first node that does."""
        tensors = self.program.tensors
        for number, spec in enumerate(self.program.splits):
            if any(tensors[copy.dst].buffer == buffer for copy in spec.copies):
                return self.where(number)
            for i, step in enumerate(self._nodes[number]):
                used = (step.dst, *(s for s in step.src if s >= 0))
                if any(tensors[t].buffer == buffer for t in used):
                    return self.where(number, i, i + 1)
        return "the graph"

    # ---- binding ---------------------------------------------------------------------------------

    def _find_memories(self, pool: ArenaPool) -> list[Memory]:
        arenas = iter(arenas_of(self.program))
        memories = []
        for number, spec in enumerate(self.program.buffers):
            try:
                if spec.kind == "arena":
                    memories.append(pool.block(*next(arenas)))
                else:
                    memories.append(pool.bound(spec))
            except Exception as error:
                what = f"{spec.size} bytes of {spec.buffer_type.name} memory"
                raise named_fault(f"{self._user(number)} needs {what}", error) from error
        return memories

    def _lower(self, program: Program, index: int, split: int, where: str) -> Executable:
        device = self.program.splits[split].device
        try:
            lowered: Executable = self._backends[device].lower(program, index, self.memories)
            return lowered
        except Exception as error:
            raise named_fault(where, error) from error

    def _bind_copies(self, split: int) -> list[_Copy]:
        tensors = self.program.tensors
        copies = []
        for index, copy in enumerate(self.program.splits[split].copies):
            src, dst = tensors[copy.src], tensors[copy.dst]
            fixed = all(isinstance(n, int) for n in (*src.ne, *src.nb, src.offset, dst.offset))
            plan = self._extent(split, index, {}) if fixed else None
            experts = _expert_ids(self.program, split, copy)
            source, target = self.memories[src.buffer], self.memories[dst.buffer]
            direct = target if isinstance(target, DirectMemory) else None
            copies.append(_Copy(src.name, index, source, target, direct, plan, experts))
        return copies

    def _extent(self, split: int, index: int, values: Mapping[str, int]) -> tuple[int, int, int]:
        copy = self.program.splits[split].copies[index]
        src, dst = self.program.tensors[copy.src], self.program.tensors[copy.dst]
        ne, nb, offset = src.at(values)
        return offset, evaluate(dst.offset, values), tensor_bytes(src.dtype, ne, nb)

    def _copy(self, split: int, copy: _Copy, values: Mapping[str, int], moved: Moved) -> None:
        plan = copy.plan
        if plan is None:
            known = self._extents.get((split, copy.index))
            if known is None or known[0] != values:
                known = (dict(values), self._extent(split, copy.index, values))
                self._extents[split, copy.index] = known
            plan = known[1]
        moved.copies += 1
        if copy.experts is None:
            _transfer(copy, plan[0], plan[1], plan[2])
            moved.nbytes += plan[2]
            return
        spec = self.program.tensors[self.program.splits[split].copies[copy.index].src]
        stride, n_expert = evaluate(spec.nb[2], values), evaluate(spec.ne[2], values)
        for first, last in _used_runs(copy.experts, self.program, self.memories, values, n_expert):
            begin = first * stride
            nbytes = min(last * stride, plan[2]) - begin
            _transfer(copy, plan[0] + begin, plan[1] + begin, nbytes)
            moved.nbytes += nbytes
            moved.experts += last - first


def _transfer(copy: _Copy, src_offset: int, dst_offset: int, nbytes: int) -> None:
    """Copies bytes between memories, by the shortest way that both offer."""
    if nbytes == 0:
        return
    direct = copy.direct
    if direct is not None and direct.copy_from(dst_offset, copy.src, src_offset, nbytes):
        return
    host = copy.src.host()
    if host is not None:
        copy.dst.write(dst_offset, host[src_offset : src_offset + nbytes])
    else:
        copy.dst.write(dst_offset, copy.src.read(src_offset, nbytes))


def _in_node_order(spec: SplitSpec) -> list[StepSpec]:
    if not spec.nodes:
        return list(spec.steps)
    return [step for _, step in sorted(zip(spec.nodes, spec.steps, strict=True), key=itemgetter(0))]


def _part(spec: SplitSpec, steps: Sequence[StepSpec]) -> SplitSpec:
    """A split of these steps alone, each in a stage of its own."""
    stages = tuple((i, i + 1) for i in range(len(steps)))
    return replace(spec, copies=(), steps=tuple(steps), stages=stages, nodes=())


def named_fault(where: str, error: Exception) -> WeftError:
    """The error with `where` in its text.

    It keeps its class if that is a DeviceError, a ProgramError (a wrong input, or a
    program that the device refuses) or an AbortedError; any other becomes a DeviceError. A
    FormatError, which names a file, stays as it is."""
    if isinstance(error, FormatError):
        return error
    if isinstance(error, DeviceError | ProgramError | AbortedError):
        return type(error)(f"{where}: {error}")
    why = str(error) if isinstance(error, WeftError) else repr(error)
    return DeviceError(f"{where}: {why}")


def _expert_ids(program: Program, split: int, copy: CopySpec) -> tuple[int, ...] | None:
    """The i32 tensors whose ids decide which part of `copy` (made before `split`) is read.

    A host weight [n, m, n_expert] that only MUL_MAT_ID nodes read on a device is copied there
    before a split. The ids name the experts that those nodes use, so only these are copied: a batch
    of one token with 8 of 128 experts copies a sixteenth. The rest of the copy keeps old bytes that
    no node reads. None: the whole tensor is copied, because it is not a weight, because something
    else reads it too, or because the ids are computed after the copy."""
    source = program.tensors[copy.src]
    buffer = program.buffers[source.buffer]
    if buffer.usage != "weights" or source.dtype.tail or not _is_plain(source):
        return None
    id_tensors: list[int] = []
    source_of = {c.dst: c.src for c in program.splits[split].copies}
    written: list[int] = []
    for number in range(split, len(program.splits)):
        spec = program.splits[number]
        if number > split:
            written += (c.dst for c in spec.copies)
        for step in spec.steps:
            if copy.dst in step.src:
                if step.op.name != "MUL_MAT_ID" or step.src.count(copy.dst) > 1:
                    return None
                if step.src[0] != copy.dst:
                    return None
                ids = source_of.get(step.src[2], -1)
                if ids < 0:
                    ids = step.src[2]
                    if any(_overlap(program.tensors[ids], program.tensors[w]) for w in written):
                        return None  # computed after the copy
                if ids not in id_tensors:
                    id_tensors.append(ids)
            written.append(step.dst)
    return tuple(id_tensors) or None


def _used_runs(
    ids: Sequence[int],
    program: Program,
    memories: Sequence[Memory],
    values: Mapping[str, int],
    n_expert: int,
) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive experts that the ids name, in order.

    Ids outside 0..n_expert-1 are skipped here; the kernel refuses them."""
    used = np.zeros(n_expert, np.bool_)
    for index in ids:
        spec = program.tensors[index]
        named = read_array(spec, memories[spec.buffer], values).reshape(-1)
        used[named[(named >= 0) & (named < n_expert)]] = True
    edges = np.flatnonzero(np.diff(used, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _is_plain(spec: TensorSpec) -> bool:
    """Whether experts lie one after the other."""
    sizes = (*spec.ne, *spec.nb, spec.offset)
    if not all(isinstance(n, int) for n in sizes) or spec.ne[3] != 1:
        return False
    return upper(spec.nb[2]) >= upper(spec.nb[1]) * upper(spec.ne[1])


def _overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two tensors may share bytes."""
    if a.buffer != b.buffer:
        return False
    (a_low, a_high), (b_low, b_high) = a.extent, b.extent
    return a_low < b_high and b_low < a_high
