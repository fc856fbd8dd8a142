"""Memory shared by programs that run one after another: arenas, and weights sent to devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.backends.memory import AdoptsMemory, BufferType, HostMemory, LoadedMemory, Memory
from weft.errors import DeviceError, WeftError
from weft.graph.size import upper
from weft.program import BufferSpec, Program, TensorSpec

Progress = Callable[[int, int], None]
"""`progress(ready, total)`: bytes of weights that are repacked or sent to a device so far, and in
all."""


class _Sent:
    """Host data that was sent to a device's memory."""

    __slots__ = ("__weakref__", "_type", "data", "memory")

    def __init__(self, data: Any, buffer_type: BufferType, memory: Memory) -> None:
        self.data = weakref.ref(data)
        self.memory = memory
        self._type = buffer_type  # as long as it lives, no other has its id


_all_sent: weakref.WeakValueDictionary[tuple[int, int], _Sent] = weakref.WeakValueDictionary()
"""Sent data of all pools, by the ids of data and buffer type: contexts of a model share weights."""


class ArenaPool:
    """Blocks of device memory by buffer type and number, as big as the biggest program needs.

    Programs that never run at the same time (the regimes of a context) share one pool. Call
    `reserve` for all of them first: a block that must grow is replaced, and a session that is bound
    to the old block keeps it alive."""

    def __init__(self, before_change: Callable[[], None] | None = None) -> None:
        """`before_change` is called before blocks that exist are replaced or dropped."""
        self._before_change = before_change
        self._blocks: dict[tuple[int, int], tuple[BufferType, Memory]] = {}
        # by the ids of data and buffer type; an entry is dropped when the data is freed
        self._sent: dict[tuple[int, int], tuple[_Sent, Any]] = {}
        # repacked or adopted host data, by the data's id; the memory keeps the data alive
        self._repacked: dict[tuple[int, int], Memory] = {}
        self.reallocs = 0
        """The number of blocks that were replaced by bigger ones."""

    def beside(self) -> ArenaPool:
        """Another pool with blocks of its own and the same weights, for programs that run at the
        same time as the programs of this pool."""
        other = ArenaPool()
        other._sent, other._repacked = self._sent, self._repacked
        return other

    def reserve(self, *programs: Program) -> None:
        """Makes every block as big as the biggest of `programs` needs; raises OutOfMemoryError."""
        for buffer_type, number, size in _largest(programs):
            self.block(buffer_type, number, size)

    def block(self, buffer_type: BufferType, number: int, size: int) -> Memory:
        """Block `number` of a buffer type with at least `size` bytes; raises OutOfMemoryError."""
        key = (id(buffer_type), number)
        block = self._blocks.get(key)
        if block is not None and block[1].nbytes >= size:
            return block[1]
        if block is not None:
            self.reallocs += 1
            self._changes()
        memory = _allocate(buffer_type, size)
        self._blocks[key] = (buffer_type, memory)
        return memory

    def sizes(self, buffer_type: BufferType) -> list[int] | None:
        """The bytes of each block of a buffer type; None where it has none."""
        by_number = {n: memory.nbytes for (t, n), (_, memory) in self._blocks.items()
                 if t == id(buffer_type)}  # fmt: skip
        return [by_number[n] for n in sorted(by_number)] if by_number else None

    def replace(self, buffer_type: BufferType, sizes: Sequence[int]) -> None:
        """Drops the blocks of a buffer type and allocates others of exactly these sizes.

        Raises OutOfMemoryError; the buffer type then has no blocks."""
        self.drop(buffer_type)
        try:
            for number, size in enumerate(sizes):
                self._blocks[id(buffer_type), number] = buffer_type, _allocate(buffer_type, size)
        except BaseException:
            self.drop(buffer_type)
            raise

    def drop(self, buffer_type: BufferType) -> None:
        """Drops the blocks of a buffer type."""
        gone = [key for key in self._blocks if key[0] == id(buffer_type)]
        if gone:
            self._changes()
        for key in gone:
            del self._blocks[key]

    def load(self, *programs: Program, progress: Progress | None = None) -> None:
        """Repacks the weights of programs before they are bound, and sends weights to devices.

        Without it, `bound` would do so one by one. Raises OutOfMemoryError; the weights loaded so
        far stay, as `bound` describes."""
        specs = {
            (id(spec.data), id(spec.buffer_type)): spec
            for program in programs
            for spec in program.buffers
            if spec.matrix is not None or _is_sent(spec)
        }
        ready, total = 0, sum(spec.size for spec in specs.values())
        for spec in specs.values():
            self.bound(spec)
            ready += spec.size
            if progress is not None:
                progress(ready, total)

    def bound(self, spec: BufferSpec) -> Memory:
        """The memory of a buffer whose data exists already.

        Host data is used in place where the buffer type is the host's. Otherwise it is sent to the
        device once, on first use, and stays there as long as the data and a pool that uses it
        exist; or it is repacked, or adopted by a device that works in the host's memory, and stays
        as long as the pool exists."""
        data, buffer_type = spec.data, spec.buffer_type
        if spec.matrix is not None:
            return self._load(spec, spec.matrix)
        if not isinstance(data, np.ndarray | HostMemory):
            memory: Memory = data
            return memory
        host = HostMemory(data) if isinstance(data, np.ndarray) else data
        if buffer_type.is_host:
            return host
        key = (id(data), id(buffer_type))
        if key in self._sent:
            return self._sent[key][0].memory
        sent = _all_sent.get(key)
        if sent is not None and sent.data() is data:
            self._sent[key] = sent, self._until_gone(data, key)
            return sent.memory
        block = self._repacked.get(key) or _adopt(spec, host)
        if block is not None:
            self._repacked[key] = block
            return block
        block = _allocate(buffer_type, host.nbytes)
        _send(buffer_type, block, host)
        sent = _all_sent[key] = _Sent(data, buffer_type, block)
        self._sent[key] = sent, self._until_gone(data, key)
        return block

    def _until_gone(self, data: Any, key: tuple[int, int]) -> Any:
        """A weak reference that drops `key` when the data is freed; it keeps nothing alive
        itself."""
        mine = weakref.ref(self)

        def forget(_: object) -> None:
            pool = mine()
            if pool is not None:
                pool._sent.pop(key, None)

        return weakref.ref(data, forget)

    def _load(self, spec: BufferSpec, matrix: TensorSpec) -> Memory:
        key = (id(spec.data), id(spec.buffer_type))
        memory = self._repacked.get(key)
        if memory is None:
            host = spec.data if isinstance(spec.data, np.ndarray) else spec.data.host()
            ne = tuple(upper(n) for n in matrix.ne)
            memory = spec.buffer_type.load(host, matrix.dtype, ne)
            self._repacked[key] = memory
        return memory

    def clear(self) -> None:
        """Drops all memory, as after the loss of a device; the next use allocates and sends
        again."""
        self._changes()
        self._blocks.clear()
        for key in self._sent:
            _all_sent.pop(key, None)
        self._sent.clear()
        for memory in self._repacked.values():
            if isinstance(memory, LoadedMemory):
                memory.forget()
        self._repacked.clear()

    def _changes(self) -> None:
        if self._before_change is not None:
            self._before_change()

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(memory.nbytes for _, memory in self._blocks.values())


def is_at(data: object, buffer_type: BufferType) -> bool:
    """Whether another program has sent this host data to the device's memory already."""
    sent = _all_sent.get((id(data), id(buffer_type)))
    return sent is not None and sent.data() is data


def arena_bytes(*programs: Program) -> int:
    """The bytes of the arenas that these programs share."""
    return sum(size for _, _, size in _largest(programs))


def _largest(programs: Sequence[Program]) -> list[tuple[BufferType, int, int]]:
    """(buffer type, number, bytes) of each block, at the largest size that a program needs."""
    blocks: dict[tuple[int, int], tuple[BufferType, int, int]] = {}
    for program in programs:
        for buffer_type, number, size in arenas_of(program):
            key = (id(buffer_type), number)
            largest = max(size, blocks[key][2]) if key in blocks else size
            blocks[key] = (buffer_type, number, largest)
    return list(blocks.values())


def arenas_of(program: Program) -> list[tuple[BufferType, int, int]]:
    """(buffer type, number of the block, bytes) of each arena of a program, in order."""
    numbers: dict[int, int] = {}
    arenas = []
    for spec in program.buffers:
        if spec.kind == "arena":
            number = numbers.get(id(spec.buffer_type), 0)
            numbers[id(spec.buffer_type)] = number + 1
            arenas.append((spec.buffer_type, number, spec.size))
    return arenas


def _is_sent(spec: BufferSpec) -> bool:
    """Whether the buffer holds weights of the host that a device needs in its own memory."""
    at_host = isinstance(spec.data, np.ndarray | HostMemory)
    return spec.usage == "weights" and at_host and not spec.buffer_type.is_host


def _adopt(spec: BufferSpec, host: HostMemory) -> Memory | None:
    """Constant host data in place, where the device can work with it there; else None."""
    buffer_type = spec.buffer_type
    if spec.usage != "weights" or not isinstance(buffer_type, AdoptsMemory):
        return None
    return buffer_type.adopt(host.host())


def _send(buffer_type: BufferType, memory: Memory, host: HostMemory) -> None:
    try:
        memory.write(0, host.host())
    except WeftError:
        raise
    except Exception as error:
        raise DeviceError(
            f"{buffer_type.name} memory: {host.nbytes} bytes could not be sent: {error!r}"
        ) from error


def _allocate(buffer_type: BufferType, size: int) -> Memory:
    try:
        return buffer_type.allocate(size)
    except WeftError:
        raise
    except Exception as error:
        raise DeviceError(
            f"{buffer_type.name} memory: {size} bytes could not be allocated: {error!r}"
        ) from error
