"""Blocks of memory in a worker, and the buffer types that make them.

Weights are loaded from the worker's own file where it has the same one, or else are sent once and
kept there on disk. Copies from one worker's memory to another's go straight there.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BlockBase, BufferTypeBase, Memory, require_inside
from weft.backends.remote.machine import Machine
from weft.dtype import DType
from weft.errors import DeviceError, OutOfMemoryError
from weft.file_hashes import file_hash
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.mapped_files import source_of
from weft.program import Layout

Bytes = NDArray[np.uint8]

_PIECE = 8 << 20
"""Bytes that are written or read at a time."""
_NOTHING = np.empty(0, np.uint8)
_KEPT = 4 << 10
"""Weights of fewer bytes are not kept on the worker's disk."""


class RemoteMemory(BlockBase):
    """A block of a worker's memory. Writes are enqueued; a read waits for all work before it."""

    def __init__(self, machine: Machine, number: int, nbytes: int, keep: object = None) -> None:
        """Stands for block `number`, which the worker has; `keep` stays alive as long as this."""
        self.machine, self.number, self.nbytes = machine, number, nbytes
        self._connection, self._keep = machine.connection, keep
        gone = weakref.finalize(self, machine.forget, self._connection, "free", number)
        gone.atexit = False

    def _here(self) -> Machine:
        if self.machine.connection is not self._connection or self.machine.is_lost:
            if not self.machine.is_lost:
                raise DeviceError(f"{self.machine.name} was lost, and this memory with it")
        return self.machine

    @property
    def is_there(self) -> bool:
        """Whether the worker still has the block."""
        return self.machine.connection is self._connection and not self.machine.is_lost

    def put(self, offset: int, data: Bytes) -> None:
        """Enqueues the bytes, which may change after the call."""
        machine = self._here()
        for at in range(0, data.nbytes, _PIECE):
            piece = data[at : at + _PIECE].copy()
            machine.post(["write", self.number, offset + at], piece)

    def get(self, offset: int, nbytes: int) -> Bytes:
        """The bytes, once all work before is done."""
        machine = self._here()
        if nbytes <= _PIECE:
            return self._piece(machine, offset, nbytes)
        whole = np.empty(nbytes, np.uint8)
        for at in range(0, nbytes, _PIECE):
            n = min(_PIECE, nbytes - at)
            whole[at : at + n] = self._piece(machine, offset + at, n)
        return whole

    def _piece(self, machine: Machine, offset: int, nbytes: int) -> Bytes:
        if nbytes == 0:
            return np.empty(0, np.uint8)
        return _bytes_of(machine, nbytes, machine.call(["read", self.number, offset, nbytes]))

    def read_later(self, offset: int, nbytes: int) -> Callable[[], Bytes]:
        """Asks for the bytes as all work so far leaves them; the function waits for them."""
        require_inside(offset, nbytes, self.nbytes)
        machine = self._here()
        sizes = [min(_PIECE, nbytes - at) for at in range(0, nbytes, _PIECE)]
        answers = [
            machine.ask(["read", self.number, offset + i * _PIECE, n]) for i, n in enumerate(sizes)
        ]

        def wait() -> Bytes:
            pieces = [
                _bytes_of(machine, n, answer()) for n, answer in zip(sizes, answers, strict=True)
            ]
            return pieces[0] if len(pieces) == 1 else np.concatenate([_NOTHING, *pieces])

        return wait

    def copy_from(self, offset: int, source: Memory, source_offset: int, nbytes: int) -> bool:
        """Copies within the worker, or straight from another; False where that one does not reach
        this one, and for memory of this process."""
        if not isinstance(source, RemoteMemory):
            return False
        require_inside(offset, nbytes, self.nbytes)
        require_inside(source_offset, nbytes, source.nbytes)
        machine, other = self._here(), source._here()
        if machine is other:
            machine.post(["copy", self.number, offset, source.number, source_offset, nbytes])
            return True
        stream = machine.stream_from(other)
        if stream is None:
            return False
        stream.copy((source.number, source_offset), (self.number, offset), nbytes)
        return True


def _bytes_of(machine: Machine, nbytes: int, answer: tuple[Any, list[Any]]) -> Bytes:
    """The bytes that a worker has answered with."""
    arrays = answer[1]
    if len(arrays) != 1 or memoryview(arrays[0]).nbytes != nbytes:
        raise DeviceError(f"{machine.name} did not answer with the {nbytes} bytes asked for")
    return np.frombuffer(arrays[0], np.uint8)


class RemoteBufferType(BufferTypeBase):
    """The memory of one device of a worker."""

    shares = True
    """Weights are used where the worker has them."""

    def __init__(self, machine: Machine, name: str, number: int, facts: Mapping[str, Any]) -> None:
        """`number` counts the worker's devices, `facts` are the worker's properties of this one."""
        self.machine = machine
        self.name = self.device = name
        self.number = number
        self.alignment = int(facts.get("alignment", 64))
        self.max_size: int | None = facts.get("max_size")
        self.in_use = 0
        """The bytes of the blocks that exist, weights in the worker's files left out."""

    def alloc_size(self, tensor: Tensor) -> int:
        """The tensor's bytes at its symbols' maxima."""
        return tensor.max_bytes

    def create(self, nbytes: int) -> RemoteMemory:
        """A zeroed block; raises OutOfMemoryError where the worker has no room."""
        self.machine.revive()
        if nbytes >= 1 << 60:
            raise OutOfMemoryError(f"{self.device} has no room for {nbytes} bytes")
        number = self.machine.new_id()
        self.machine.call(["alloc", number, self.number, nbytes])
        memory = RemoteMemory(self.machine, number, nbytes)
        self.in_use += nbytes
        weakref.finalize(memory, self._give_back, nbytes).atexit = False
        return memory

    def _give_back(self, nbytes: int) -> None:
        self.in_use -= nbytes

    def adopt(self, data: Bytes, *, raw: bool = False) -> RemoteMemory | None:
        """Constant bytes of the host as the worker's own: from its file, or from its disk, where
        they are sent at most once. None for few bytes. With `raw` they stay in the memory of the
        worker's process, to be loaded from there."""
        source = source_of(data)
        if source is None and data.nbytes < _KEPT:
            return None
        self.machine.revive()
        number = self.machine.new_id()
        if source is not None and self._has_file(source.path, source.size):
            where = [file_hash(source.path), source.size, source.offset, source.nbytes, raw]
            if self.machine.call(["map", number, self.number, *where])[0] is True:
                return RemoteMemory(self.machine, number, data.nbytes, data)
        if data.nbytes < _KEPT:
            return None
        self._send(number, data, raw)
        return RemoteMemory(self.machine, number, data.nbytes, data)

    def staged(self, data: Bytes) -> RemoteMemory:
        """A copy of a few bytes in the memory of the worker's process."""
        self.machine.revive()
        number = self.machine.new_id()
        self.machine.call(["alloc", number, self.number, data.nbytes, True])
        memory = RemoteMemory(self.machine, number, data.nbytes)
        memory.write(0, data)
        return memory

    def _has_file(self, path: str, size: int) -> bool:
        """Whether hashing the file may save sending it."""
        known: dict[tuple[object, str], bool] = self.__dict__.setdefault("_files", {})
        key = (id(self.machine.connection), path)
        if key not in known:
            known[key] = self.machine.call(["has", size])[0] is True
        return known[key]

    def _send(self, number: int, data: Bytes, raw: bool) -> None:
        name = hashlib.sha256(data.data).hexdigest()
        stored = ["stored", number, self.number, name, data.nbytes, raw]
        if self.machine.call(stored)[0] is True:
            return
        for at in range(0, data.nbytes, _PIECE):
            piece = data[at : at + _PIECE]
            self.machine.call(["store", number, name, data.nbytes, at], piece)
        if self.machine.call(stored)[0] is not True:
            raise DeviceError(f"{self.machine.name} did not keep {data.nbytes} bytes of weights")


class RemoteWeights:
    """Memory of a worker's device that keeps weights in a layout of its own."""

    alignment = 64
    max_size: int | None = None
    is_host = False

    def __init__(self, home: RemoteBufferType, inner: Any) -> None:
        """`inner` is the buffer type of a local device of that kind, which computes sizes."""
        self.name = f"{home.device} {inner.name}"
        self.device = home.device
        self.layout: Layout = inner.layout
        self._home, self._inner = home, inner

    def alloc_size(self, tensor: Tensor) -> int:
        """The bytes of the tensor in this layout."""
        return int(self._inner.alloc_size(tensor))

    def allocate(self, nbytes: int) -> Memory:
        """Raises DeviceError, because this memory holds only weights that `load` repacks."""
        raise DeviceError(f"{self.name} memory holds repacked weights only, see load()")

    def load(self, source: NDArray[Any], dtype: DType, ne: tuple[int, ...]) -> Memory:
        """The tensor, repacked by the worker from its own file or from what it is sent."""
        data = source.reshape(-1).view(np.uint8)
        home = self._home
        raw = home.adopt(data, raw=True) or home.staged(data)
        number = home.machine.new_id()
        sizes = [upper(n) for n in ne]
        home.machine.call(["load", number, home.number, raw.number, self.layout, dtype.id, sizes])
        return RemoteMemory(home.machine, number, data.nbytes, source)

    def __repr__(self) -> str:
        return self.name
