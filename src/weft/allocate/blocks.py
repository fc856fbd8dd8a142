"""Free blocks of one buffer type: the best-fit allocator of ggml's graph planner.

It computes offsets and allocates nothing, by the rules of ggml_dyn_tallocr (ggml 0.25).
"""

from __future__ import annotations

from weft.allocate.result import padded

# A virtual buffer of the reference has at most 16 chunks; the last one takes everything that
# fits into no other.
_MAX_CHUNKS = 16
_NO_LIMIT = 2**63 - 1


class Chunk:
    """One block of memory: its free ranges by address, and the largest offset ever used."""

    __slots__ = ("max_size", "offsets", "sizes")

    def __init__(self, capacity: int) -> None:
        self.offsets = [0]
        self.sizes = [capacity]
        self.max_size = 0


class BlockAllocator:
    """Hands out places as (chunk, offset), and grows where nothing fits."""

    __slots__ = ("alignment", "chunks", "max_chunk_size")

    def __init__(self, alignment: int, max_size: int | None) -> None:
        self.alignment = alignment
        self.max_chunk_size = _NO_LIMIT if max_size is None else min(max_size, _NO_LIMIT)
        self.chunks: list[Chunk] = []

    def reset(self) -> None:
        """Frees every block and drops all chunks."""
        self.chunks = []

    def alloc(self, size: int) -> tuple[int, int]:
        """A place for `size` bytes (rounded up to the alignment)."""
        size = padded(size, self.alignment)
        number, block = self._best_hole(size)
        if block == -1:
            number, block = self._best_end(size)
        if block == -1:
            number, block = self._new_chunk(size), 0
        chunk = self.chunks[number]
        offset = chunk.offsets[block]
        if chunk.sizes[block] == size:
            del chunk.offsets[block], chunk.sizes[block]
        else:
            chunk.offsets[block] = offset + size
            chunk.sizes[block] -= size
        chunk.max_size = max(chunk.max_size, offset + size)
        return number, offset

    def _best_hole(self, size: int) -> tuple[int, int]:
        """The smallest fitting block that is not the last of its chunk; of equal ones the later.

        The comparison restarts in every chunk, so that any fit in a later chunk wins."""
        place = (-1, -1)
        for number, chunk in enumerate(self.chunks):
            best = -1
            sizes = chunk.sizes
            for i in range(len(sizes) - 1):
                if sizes[i] >= size and (best < 0 or sizes[i] <= best):
                    best = sizes[i]
                    place = (number, i)
        return place

    def _best_end(self, size: int) -> tuple[int, int]:
        """The last block of a chunk that wastes least of the chunk's size, or grows it least."""
        place = (-1, -1)
        best: int | None = None
        for number, chunk in enumerate(self.chunks):
            if not chunk.sizes or chunk.sizes[-1] < size:
                continue
            spare = chunk.max_size - chunk.offsets[-1] - size
            if best is None or (best < 0 and spare > best) or 0 <= spare < best:
                place = (number, len(chunk.sizes) - 1)
                best = spare
        return place

    def _new_chunk(self, size: int) -> int:
        capacity = max(size, self.max_chunk_size)
        if len(self.chunks) >= _MAX_CHUNKS - 1:
            capacity = max(size, _NO_LIMIT)
        self.chunks.append(Chunk(capacity))
        return len(self.chunks) - 1

    def free(self, number: int, offset: int, size: int) -> None:
        """Returns `size` bytes (rounded up); neighbouring free blocks become one."""
        size = padded(size, self.alignment)
        chunk = self.chunks[number]
        offsets, sizes = chunk.offsets, chunk.sizes
        end = offset + size
        for i, start in enumerate(offsets):
            if start + sizes[i] == offset:
                sizes[i] += size
                if i + 1 < len(offsets) and start + sizes[i] == offsets[i + 1]:
                    sizes[i] += sizes[i + 1]
                    del offsets[i + 1], sizes[i + 1]
                return
            if start == end:
                offsets[i] = offset
                sizes[i] += size
                if i > 0 and offsets[i - 1] + sizes[i - 1] == offset:
                    sizes[i - 1] += sizes[i]
                    del offsets[i], sizes[i]
                return
        at = 0
        while at < len(offsets) and offsets[at] < offset:
            at += 1
        offsets.insert(at, offset)
        sizes.insert(at, size)
