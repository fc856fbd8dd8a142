"""Arena memory, shared by the sessions that run one after another."""

from __future__ import annotations

from weft.backends.base import BufferType, Memory

__all__ = ["ArenaPool"]


class ArenaPool:
    """Blocks of device memory by buffer type and number, as big as the biggest program needs.

    Programs that never run at the same time (the regimes of a context) share one pool. Reserve the
    biggest first: a block that must grow is replaced, and sessions bound to the old one keep it."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], tuple[BufferType, Memory]] = {}
        self.reallocs = 0
        """How often a block had to be replaced by a bigger one."""

    def block(self, buffer_type: BufferType, number: int, size: int) -> Memory:
        """Block `number` of a buffer type with at least `size` bytes; raises OutOfMemoryError."""
        key = (id(buffer_type), number)
        found = self._blocks.get(key)
        if found is not None and found[1].nbytes >= size:
            return found[1]
        if found is not None:
            self.reallocs += 1
        memory = buffer_type.allocate(size)
        self._blocks[key] = (buffer_type, memory)
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return sum(memory.nbytes for _, memory in self._blocks.values())
