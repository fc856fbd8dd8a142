"""The KV cache: which cell holds which position of which sequences, and the memory of the cells.

A cell is one token's key and value in every layer. Cells are found by index, not by position: rows
are written with SET_ROWS, and a mask tells attention which cells a token may see. So nothing ever
moves, and a hole left by a removed token is filled by the next one.

    token t (position p, first sequence s) sees cell c   if  s in members(c) and pos(c) <= p
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import BufferType, HostMemory, Memory
from weft.dtype import DType, find_dtype
from weft.errors import ContextError, GraphError, OutOfMemoryError
from weft.graph.tensor import Buffer, Tensor
from weft.llm.config import ModelConfig
from weft.llm.memory import PlannedMemory
from weft.llm.recurrent import StateTable, refuse_part, state_bytes

__all__ = ["CACHE_TYPES", "KVCache", "cache_bytes"]

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Types that keys and values can be stored in. Blocks are of 32 numbers of one head."""

_FREE = -1
_END = np.iinfo(np.int32).max
_MINUS_INF = np.float16(-np.inf).view(np.uint16)


class KVCache:
    """`size` cells. Positions and sequences live here, in NumPy; keys and values in leaves.

    Every method that takes a range means positions p0 <= p < p1; p0 < 0 is 0, p1 < 0 infinity, and
    a sequence below 0 is every sequence (as llama.cpp's `llama_memory_seq_*`)."""

    def __init__(
        self,
        config: ModelConfig,
        size: int,
        *,
        n_seq_max: int = 1,
        type_k: str | DType = "f16",
        type_v: str | DType = "f16",
        buffer_type: BufferType | Sequence[BufferType | None] | None = None,
        allocate: bool = True,
    ) -> None:
        """`buffer_type`: where keys and values live, all or of each layer; None: plain host memory.
        Without `allocate` there is no memory until `allocate()`, so that it can be planned.

        Raises ContextError for a type that cannot be cached, OutOfMemoryError without room."""
        self.size = size
        self.n_seq_max = n_seq_max
        self.type_k = _cache_type("type_k", type_k, config.head_dim_k)
        self.type_v = _cache_type("type_v", type_v, config.head_dim_v)

        def leaf(name: str, dtype: DType, n_embd: int, where: BufferType | None) -> Tensor:
            memory = PlannedMemory(dtype.row_bytes(n_embd) * size)
            return Tensor(
                dtype, (n_embd, size, 1, 1), name=name, buffer=Buffer("any", where, memory)
            )

        n_layer = config.n_layer
        types = list(buffer_type) if isinstance(buffer_type, Sequence) else [buffer_type] * n_layer
        layers = list(enumerate(types))
        self.k = [leaf(f"cache_k_{il}", self.type_k, config.n_embd_k(il), t) for il, t in layers]
        """Per layer, a leaf of sizes [n_embd_k, size]: a row a cell."""
        self.v = [leaf(f"cache_v_{il}", self.type_v, config.n_embd_v(il), t) for il, t in layers]
        """Per layer, a leaf of sizes [n_embd_v, size]."""
        self.states: StateTable | None = None
        """States of recurrent layers, where the model has such."""
        if config.recurrent is not None:
            self.states = StateTable(config, n_seq_max, types)
        if allocate:
            self.allocate()
        # the tables of cells come last: without room, the message names a leaf and its bytes
        self.pos: NDArray[np.int32] = _table((size,), np.int32, _FREE)
        """Position of each cell; -1: free."""
        self.members: NDArray[np.bool_] = _table((n_seq_max, size), np.bool_)
        """members[s, c]: whether sequence s has cell c."""
        self.shift: NDArray[np.int32] = _table((size,), np.int32)
        """How far the position of each cell has moved since its key was rotated."""
        self.has_shift = False
        """Whether keys must be rotated by `shift` before they are read again."""
        self._low = 0  # no free cell is below this one
        self._top = 0  # no used cell is from here on

    def allocate(self) -> None:
        """Gives the leaves their memory; raises OutOfMemoryError without room."""
        for t in (*self.k, *self.v):
            if t.buffer is not None and isinstance(t.buffer.data, PlannedMemory):
                t.buffer.data = _allocate(t.buffer.type, t.buffer.data.nbytes, t.name)
        if self.states is not None:
            self.states.allocate()

    def leaves(self, il: int) -> list[Tensor]:
        """Everything that is kept of layer `il`."""
        found = [self.k[il], self.v[il]]
        if self.states is not None:
            found += [t[il] for t in (self.states.conv, self.states.state) if il in t]
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        states = self.states.tensors if self.states else []
        return sum(t.max_bytes for t in (*self.k, *self.v, *states))

    @property
    def n_used(self) -> int:
        """Cells that hold a token."""
        return int(np.count_nonzero(self.pos != _FREE))

    @property
    def n_seen(self) -> int:
        """One more than the highest used cell: attention looks at the cells below it."""
        return self._top

    def find_free(self, n: int) -> NDArray[np.int64]:
        """The `n` lowest free cells; raises ContextError with both numbers when there are fewer."""
        if n == 1 and self._low < self.size and self.pos[self._low] == _FREE:
            return np.array([self._low], np.int64)
        free = self._low + np.flatnonzero(self.pos[self._low :] == _FREE)
        if len(free) < n:
            raise ContextError(
                f"{n} tokens do not fit into the context: {len(free)} of its {self.size} cells are "
                "free; make n_ctx larger, or remove tokens first (seq_rm, clear)"
            )
        return free[:n]

    def occupy(
        self, cells: NDArray[np.int64], positions: NDArray[np.int32], seq: NDArray[np.bool_]
    ) -> None:
        """Marks cells from `find_free` as used. `seq` [n_seq_max, n]: who has them."""
        self.pos[cells] = positions
        self.members[:, cells] = seq
        self.shift[cells] = 0
        last = int(cells[-1]) + 1
        self._low = last  # they were the lowest free ones
        self._top = max(self._top, last)

    def release(self, cells: NDArray[np.int64]) -> None:
        """Frees cells."""
        self.pos[cells] = _FREE
        self.members[:, cells] = False
        self._forget()
        self._find_bounds()

    def clear(self) -> None:
        """Frees every cell."""
        self.pos[:] = _FREE
        self.members[:] = False
        self._low = self._top = 0
        self._forget()
        self.shifted()

    def shifted(self) -> None:
        """Says that the keys have been rotated."""
        self.shift[:] = 0
        self.has_shift = False

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Takes sequence `seq` out of the cells in the range; cells without a sequence are free."""
        hit = self._in_range(p0, p1)
        if self.states is not None:
            rows = self.members if seq < 0 else self.members[self._seq(seq)][None]
            if ((rows & hit).any(axis=1) & (rows & ~hit).any(axis=1)).any():
                raise refuse_part("seq_rm")
        if seq < 0:
            self.members[:, hit] = False
        else:
            self.members[self._seq(seq), hit] = False
        self._free_orphans()

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Makes the cells of `src` in the range members of `dst` too; nothing is computed again."""
        row = self.members[self._seq(src)] & self._in_range(p0, p1)
        if self.states is not None:
            if (row != self.members[src]).any():
                raise refuse_part("seq_cp")
            self.states.slot[self._seq(dst)] = self.states.slot[src]
        self.members[self._seq(dst)] |= row

    def seq_keep(self, seq: int) -> None:
        """Removes every other sequence."""
        kept = self.members[self._seq(seq)].copy()
        self.members[:] = False
        self.members[seq] = kept
        self._free_orphans()

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves the positions in the range by `delta`, for all sequences that share the cells.

        Keys are rotated before the next decode. Cells that would move below 0 are freed."""
        self._move(seq, p0, p1, lambda pos: pos + delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in the range by `d`, rounding down; otherwise as `seq_add`."""
        if d < 1:
            raise ContextError(f"positions cannot be divided by {d}; it must be 1 or more")
        self._move(seq, p0, p1, lambda pos: pos // d)

    def _move(
        self, seq: int, p0: int, p1: int, new: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> None:
        hit = self._in_range(p0, p1)
        hit &= self.members.any(axis=0) if seq < 0 else self.members[self._seq(seq)]
        cells = np.flatnonzero(hit)
        old = self.pos[cells].astype(np.int64)
        moved = new(old)
        if moved.max(initial=0) >= _END:
            raise ContextError(f"positions would move beyond {_END - 1}")
        self.pos[cells] = moved
        self.shift[cells] += (moved - old).astype(np.int32)
        self.has_shift |= bool((moved != old).any())
        if moved.min(initial=0) < 0:
            self.release(cells[moved < 0])

    def cells_of(self, seq: int) -> NDArray[np.int64]:
        """The cells of sequence `seq`, in order of position."""
        cells = np.flatnonzero(self.members[self._seq(seq)])
        return cells[np.argsort(self.pos[cells], kind="stable")]

    def pos_min(self, seq: int) -> int:
        """The smallest position of `seq`, -1 when it is empty."""
        found = self.pos[self.members[self._seq(seq)]]
        return int(found.min()) if len(found) else -1

    def pos_max(self, seq: int) -> int:
        """The largest position of `seq`, -1 when it is empty."""
        found = self.pos[self.members[self._seq(seq)]]
        return int(found.max()) if len(found) else -1

    def fill_mask(
        self,
        out: NDArray[np.float16],
        positions: NDArray[np.int32],
        seqs: NDArray[np.int32],
        window: int = 0,
        *,
        distances: bool = False,
        causal: bool = True,
    ) -> None:
        """Writes 0 where a token may see a cell and -inf elsewhere.

        `out` [n_tokens, n_kv]; `positions` and `seqs` (first sequence) [n_tokens]. With `window` a
        token sees only the last `window` positions, its own included. With `distances` it is how
        far back the cell is, negative, instead of 0 (ALiBi).
        Without `causal` it sees those behind it, too."""
        pos, p = self.pos[: out.shape[1]], positions[:, None]
        # A free cell has no members, so its position of -1 does not matter.
        seen = self.members[seqs, : out.shape[1]]
        if causal:
            seen &= pos <= p
        if window:
            seen &= pos > p - window
        if distances:
            out[:] = np.where(seen, -np.abs(pos - p), -np.inf)
        else:
            np.multiply(~seen, _MINUS_INF, out=out.view(np.uint16))

    def _in_range(self, p0: int, p1: int) -> NDArray[np.bool_]:
        low, high = max(p0, 0), p1 if p1 >= 0 else _END
        return (self.pos >= low) & (self.pos < high)

    def _seq(self, seq: int) -> int:
        if not 0 <= seq < self.n_seq_max:
            raise ContextError(
                f"sequence {seq} is not in 0..{self.n_seq_max - 1}; make n_seq_max larger"
            )
        return seq

    def _forget(self) -> None:
        """Sequences without cells start anew."""
        if self.states is not None:
            self.states.slot[~self.members.any(axis=1)] = 0

    def _free_orphans(self) -> None:
        self._forget()
        self.pos[~self.members.any(axis=0)] = _FREE
        self._find_bounds()

    def _find_bounds(self) -> None:
        used = self.pos != _FREE
        at = np.flatnonzero(used)
        self._top = int(at[-1]) + 1 if len(at) else 0
        self._low = int(used.argmin()) if not used.all() else self.size


def cache_bytes(
    config: ModelConfig,
    size: int,
    type_k: str | DType = "f16",
    type_v: str | DType = "f16",
    n_seq_max: int = 1,
) -> int:
    """Bytes that a cache of `size` cells takes, before one is made."""
    k = _cache_type("type_k", type_k, config.head_dim_k)
    v = _cache_type("type_v", type_v, config.head_dim_v)
    rows = sum(
        k.row_bytes(config.n_embd_k(il)) + v.row_bytes(config.n_embd_v(il))
        for il in range(config.n_layer)
    )
    return size * rows + (2 * n_seq_max + 1) * state_bytes(config)


def _cache_type(argument: str, name: str | DType, head_dim: int) -> DType:
    try:
        dtype = find_dtype(name)
    except GraphError as e:
        raise ContextError(f"{argument}: {e}") from None
    if dtype.name not in CACHE_TYPES:
        raise ContextError(f"{argument} is {dtype.name}; it must be {' or '.join(CACHE_TYPES)}")
    if head_dim % dtype.block:
        raise ContextError(
            f"{argument} is {dtype.name}, which has blocks of {dtype.block} numbers, but heads of "
            f"this model have {head_dim}; use f16, bf16 or f32"
        )
    return dtype


def _table(shape: tuple[int, ...], dtype: type[np.generic], value: int = 0) -> NDArray[Any]:
    try:
        return np.full(shape, value, dtype)
    except (MemoryError, ValueError):  # ValueError: more than an address space holds
        raise OutOfMemoryError(f"no room for {shape} numbers; make n_ctx smaller") from None


def _allocate(buffer_type: BufferType | None, nbytes: int, name: str) -> Memory:
    try:
        return HostMemory.zeros(nbytes) if buffer_type is None else buffer_type.allocate(nbytes)
    except (MemoryError, ValueError):  # ValueError: more than an address space holds
        raise OutOfMemoryError(
            f"no room for {nbytes} bytes of {name}; make n_ctx smaller"
        ) from None
