"""The KV cache: a table of cells (`cells.py`) and the memory of their keys and values.

A cell has the key and value of one token in every layer. Tokens of a sequence may be in any cells:
SET_ROWS writes their rows, and a mask tells attention which cells a token sees. So no rows have to
move when tokens are removed; their cells are used again. `weft.llm.cache.pages` chooses the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.backends.memory import BufferType
from weft.dtype import DTYPES, DType
from weft.errors import ContextError
from weft.graph.tensor import Buffer, Tensor
from weft.llm.cache.cache_types import CacheTypes, cache_type
from weft.llm.cache.cells import BlockCells, Cells, WindowCells, block_cells
from weft.llm.cache.memory import PlannedMemory, allocate
from weft.llm.cache.recurrent import StateTable, refuse_part, state_bytes
from weft.llm.cache.uninterrupted import uninterrupted
from weft.llm.config import ModelConfig

_Moves = Callable[[NDArray[np.int64], NDArray[np.int64]], None]


def _leaf(
    name: str, il: int, dtype: DType, n_embd: int, n_rows: int, where: BufferType | None
) -> Tensor:
    """A leaf [n_embd, n_rows] of layer `il`, in memory that is only planned."""
    memory = PlannedMemory(dtype.row_bytes(n_embd) * n_rows)
    of = Buffer("any", where, memory)
    return Tensor(dtype, (n_embd, n_rows, 1, 1), name=f"cache_{name}_{il}", buffer=of)


class KVCache(Cells):
    """A table of cells with their keys and values, one row per cell in leaves of the graphs."""

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
        window_size: int = 0,
    ) -> None:
        """`size` is the number of cells; layers with a sliding window have `window_size` cells (0:
        as many as the others; see `weft.llm.cache.cells`). `buffer_type` is the memory of keys and
        values, for all layers or a list with one per layer; None is host memory. With
        `allocate=False` the cache has no memory until `allocate()`, so that it can be planned.

        Raises ContextError for a type that cannot be cached and OutOfMemoryError if there is not
        enough memory."""
        self.config = config
        k = cache_type("type_k", type_k, config.head_dim_k)
        v = cache_type("type_v", type_v, config.head_dim_v)
        self.types = CacheTypes(k.name, v.name)
        # a compressed key is a sum over blocks of keys, and keys are values as well
        self.rotated = self.types.rotated and config.compression is None
        """True if heads are rotated before they are stored in a quantized type."""

        def rows(il: int) -> int:
            return window_size if window_size and config.is_windowed(il) else size

        n_layer = config.n_layer
        types = list(buffer_type) if isinstance(buffer_type, Sequence) else [buffer_type] * n_layer
        layers = list(enumerate(types))
        self.k = [_leaf("k", il, k, config.n_embd_k(il), rows(il), t) for il, t in layers]
        """The keys: per layer, a leaf of sizes [n_embd_k, size] with one row per cell."""
        self.v = [_leaf("v", il, v, config.n_embd_v(il), rows(il), t) for il, t in layers]
        """The values: per layer, a leaf of sizes [n_embd_v, size] with one row per cell."""
        self.pending: dict[int, Tensor] = {}
        """Per layer with compressed keys, a leaf f32 [width, size] with what they are computed
        from: one row per token, in the same cells as the layer's keys."""
        self.compressed: dict[int, Tensor] = {}
        """Per such layer whose attention sees them, [n_embd_k, n_blocks + 1]: the compressed keys,
        one row per cell of `blocks` and one that no token sees."""
        self.index: dict[int, Tensor] = {}
        """Per layer with an indexer of such keys, [d, n_blocks + 1]: the indexer's keys."""
        compression = config.compression
        if compression is not None:
            for il, where in layers:
                if compression.ratios[il]:
                    n_blocks = block_cells(size, n_seq_max, compression.ratios[il])
                    self._compress(il, rows(il), n_blocks + 1, k, where)
        self.states: StateTable | None = None
        """The states of recurrent layers; None: the model has none."""
        if config.recurrent is not None:
            self.states = StateTable(config, n_seq_max, types)
        self.window: WindowCells | None = None
        """The cells of layers with a sliding window; None: they use the cells of this table."""
        self.blocks: dict[int, BlockCells] = {}
        """The cells of compressed keys, by the number of positions in a block."""
        if compression is not None:
            self.blocks = {
                ratio: BlockCells(size, n_seq_max, ratio, span)
                for ratio, span in compression.tables.items()
            }
        if allocate:
            self.allocate()
        # the table comes last, so that an OutOfMemoryError names a leaf and its bytes
        super().__init__(size, n_seq_max)
        if window_size:
            self.window = WindowCells(window_size, n_seq_max, config.window_kept)
        self.scales: dict[str, NDArray[np.float32]] = {}
        """The scales of adapters and control vectors by sequence, f32 [n_seq_max, n_rows], by the
        graph's input for them."""
        self.lender: KVCache | None = None
        """The cache of another model to which this cache's model attends; see `LentCache`."""

    def _compress(
        self, il: int, n_tokens: int, n_blocks: int, key: DType, where: BufferType | None
    ) -> None:
        """Adds the leaves of layer `il`, whose keys are compressed: `n_tokens` rows of what they
        are computed from, and `n_blocks` compressed keys in the type `key`."""
        config, compression = self.config, self.config.compression
        assert compression is not None
        f32, width = DTYPES["f32"], compression.widths[il]
        self.pending[il] = _leaf("pending", il, f32, width, n_tokens, where)
        if compression.attended:
            n_embd = config.n_embd_k(il)
            self.compressed[il] = _leaf("blocks", il, key, n_embd, n_blocks, where)
        if compression.indexed[il] and config.indexer is not None:
            d = config.indexer.head_dim
            of_index = cache_type("type_k", key, d)
            self.index[il] = _leaf("index", il, of_index, d, n_blocks, where)

    def scale_key(self, seq: int) -> bytes:
        """The scales of a sequence, to tell it from those with which it may not share cells."""
        return b"".join(rows[seq].tobytes() for rows in self.scales.values())

    @property
    def lent(self) -> frozenset[Tensor]:
        """Leaves of another cache to which the model attends."""
        return frozenset()

    def is_small(self, il: int) -> bool:
        """True if layer `il` has its rows in the cells of `window`."""
        return self.window is not None and self.config.is_windowed(il)

    def allocate(self) -> None:
        """Allocates the memory of all leaves; raises OutOfMemoryError if there is not enough."""
        for t, _ in self.row_leaves():
            if t.buffer is not None and isinstance(t.buffer.data, PlannedMemory):
                t.buffer.data = allocate(t.buffer.type, t.buffer.data.nbytes, t.name, "n_ctx")
        if self.states is not None:
            self.states.allocate()

    def leaves(self, il: int) -> list[Tensor]:
        """All leaves of layer `il`: keys, values and recurrent states."""
        more = (t[il] for t in (self.pending, self.compressed, self.index) if il in t)
        leaves = [self.k[il], self.v[il], *more]
        if self.states is not None:
            of = self.states.conv, self.states.state, self.states.dilated
            leaves += [t[il] for t in of if il in t]
        return leaves

    @property
    def nbytes(self) -> int:
        """Bytes of all keys, values and recurrent states."""
        states = self.states.tensors if self.states else []
        rows = [t for t, _ in self.row_leaves()]
        return sum(t.max_bytes for t in (*rows, *states))

    @property
    def _others(self) -> list[Cells]:
        return tables_of(self)[1:]

    def row_leaves(self) -> list[tuple[Tensor, int]]:
        """Each leaf with rows of cells, with the number of its table in `tables_of`."""
        leaves = []
        first = 2 if self.window is not None else 1
        number = {ratio: first + i for i, ratio in enumerate(self.blocks)}
        for il, pair in enumerate(zip(self.k, self.v, strict=True)):
            small = int(self.is_small(il))
            leaves += [(t, small) for t in pair]
            if il in self.pending and self.config.compression is not None:
                leaves.append((self.pending[il], small))
                of = number[self.config.compression.ratios[il]]
                leaves += [(t[il], of) for t in (self.compressed, self.index) if il in t]
        return leaves

    def release(self, cells: NDArray[np.int64]) -> None:
        super().release(cells)
        self._forget()

    def relocate(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Moves cells with their keys and values; Ctrl-C takes effect afterwards. If a device
        fails, the cache is emptied."""
        self._move_rows(False, source, target, super().relocate)

    def relocate_window(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Does `relocate` for cells of `window`."""
        assert self.window is not None
        self._move_rows(True, source, target, self.window.relocate)

    def _move_rows(
        self, small: bool, source: NDArray[np.int64], target: NDArray[np.int64], move: _Moves
    ) -> None:
        leaves = [t for t, table in self.row_leaves() if t.max_bytes and table == int(small)]

        def work() -> None:
            try:
                for t in leaves:
                    write_rows(t, target, read_rows(t, source))
                move(source, target)
            except BaseException:
                self.clear()  # a device failed half way, so no row can be relied on
                raise

        uninterrupted(work)

    def clear(self) -> None:
        super().clear()
        for table in self._others:
            table.clear()
        self._forget()

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """See `Cells`. Raises ContextError for a part of a sequence with recurrent states, and for
        a part of one with compressed keys that has tokens behind it."""
        if self.states is not None or self.blocks:
            hit = self._in_range(p0, p1)
            rows = self.members if seq < 0 else self.members[self._seq(seq)][None]
            kept = ~hit  # what must not stay if a part goes
            if self.states is None:
                kept &= self.pos >= max(p0, 0)
            if ((rows & hit).any(axis=1) & (rows & kept).any(axis=1)).any():
                raise refuse_part("seq_rm") if self.states is not None else refuse_middle("seq_rm")
        super().seq_rm(seq, p0, p1)
        for table in self._others:
            table.seq_rm(seq, p0, p1)
        self._forget()

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """See `Cells`. Raises ContextError for a part of a sequence with recurrent states."""
        if self.states is not None:
            row = self.members[self._seq(src)]
            if (row & ~self._in_range(p0, p1)).any():
                raise refuse_part("seq_cp")
            self.states.slot[self._seq(dst)] = self.states.slot[src]
        if self.blocks and src != dst:
            before = self.members[self._seq(src)] & (self.pos < p0)
            if before.any() or self.members[self._seq(dst)].any():
                raise refuse_middle("seq_cp")
        super().seq_cp(src, dst, p0, p1)
        for table in self._others:
            table.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        super().seq_keep(seq)
        for table in self._others:
            table.seq_keep(seq)
        self._forget()

    def shifted(self) -> None:
        super().shifted()
        for table in self._others:
            table.shifted()

    def _move(
        self, seq: int, p0: int, p1: int, new: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> None:
        if self.blocks:
            raise ContextError(
                "positions of tokens in compressed keys cannot move: a key stands for a whole "
                "block of them; remove the sequence and decode it anew"
            )
        super()._move(seq, p0, p1, new)
        if self.window is not None:
            self.window._move(seq, p0, p1, new)

    def can_cut(self, seq: int, at: int) -> bool:
        """True if `seq` can continue at position `at` after all later tokens were removed."""
        if at == 0 or at > self.pos_max(seq):
            return True
        gone = self.window is not None and not self.window.has_all(self, seq, at)
        return self.states is None and not gone

    def take_back(self, seq: int, start: int, slot: int | None = None) -> int:
        """See `Cells`. With recurrent states, `slot` is the slot that the sequence had before the
        decode of the tokens that are taken back, and nothing must have been decoded since."""
        n = super().take_back(seq, start)
        for table in self._others:
            table.take_back(seq, start)
        if self.states is not None and slot is not None:
            self.states.slot[seq] = slot
        return n

    def _forget(self) -> None:
        """Resets the recurrent states of sequences without cells."""
        if self.states is not None:
            self.states.slot[~self.members.any(axis=1)] = 0


def tables_of(cache: KVCache) -> list[Cells]:
    """All tables of cells: the cache itself, the table of sliding-window layers if there is one,
    and the tables of compressed keys."""
    window = [] if cache.window is None else [cache.window]
    return [cache, *window, *cache.blocks.values()]


def refuse_middle(what: str) -> ContextError:
    """The error for a call on a part of a sequence that would part blocks of compressed keys."""
    return ContextError(
        f"{what} of the middle of a sequence with compressed keys, each of which stands for a "
        "whole block of tokens; name the whole sequence, its end (seq_rm) or its beginning (seq_cp "
        "to an empty one)"
    )


class LentCache(KVCache):
    """The cache of a model that attends to the keys and values of another one: it has the cells
    of `lender`, and takes none."""

    def __init__(self, config: ModelConfig, lender: KVCache) -> None:
        """`config` has no heads of keys and values."""
        super().__init__(config, lender.size, n_seq_max=lender.n_seq_max, allocate=False)
        self.lender = self._source = lender
        self.rotated = lender.rotated
        self.pos, self.members, self.tokens = lender.pos, lender.members, lender.tokens

    @property
    def n_read(self) -> int:
        return self._source.n_read

    @property
    def lent(self) -> frozenset[Tensor]:
        return frozenset((*self._source.k, *self._source.v))


def cache_bytes(
    config: ModelConfig,
    size: int,
    type_k: str | DType = "f16",
    type_v: str | DType = "f16",
    n_seq_max: int = 1,
    window_size: int = 0,
) -> int:
    """Bytes of memory that a cache of `size` cells would take."""
    k = cache_type("type_k", type_k, config.head_dim_k)
    v = cache_type("type_v", type_v, config.head_dim_v)
    rows = 0
    for il in range(config.n_layer):
        n = window_size if window_size and config.is_windowed(il) else size
        rows += n * (k.row_bytes(config.n_embd_k(il)) + v.row_bytes(config.n_embd_v(il)))
        compression = config.compression
        if compression is not None and compression.ratios[il]:
            rows += n * 4 * compression.widths[il]
            n_blocks = block_cells(size, n_seq_max, compression.ratios[il]) + 1
            rows += n_blocks * k.row_bytes(config.n_embd_k(il)) * compression.attended
            if compression.indexed[il] and config.indexer is not None:
                rows += n_blocks * k.row_bytes(config.indexer.head_dim)
    return rows + (2 * n_seq_max + 1) * state_bytes(config)


def row_width(t: Tensor) -> int:
    """Number of elements in a row of a leaf."""
    width = t.ne[0]
    assert isinstance(width, int)
    return width


def read_rows(t: Tensor, cells: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Reads the rows of some cells from a leaf of the cache: [n, bytes]."""
    assert t.buffer is not None
    memory, size = t.buffer.data, t.dtype.row_bytes(row_width(t))
    rows = np.empty((len(cells), size), np.uint8)
    for a, b in _runs(cells):
        rows[a:b] = memory.read(int(cells[a]) * size, (b - a) * size).reshape(b - a, size)
    return rows


def _runs(cells: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Splits cells into runs of consecutive ones, each of which is contiguous in memory."""
    starts = np.flatnonzero(np.diff(cells, prepend=-2) != 1).tolist()
    return list(zip(starts, [*starts[1:], len(cells)], strict=False))


def write_rows(t: Tensor, cells: NDArray[np.int64], rows: NDArray[np.uint8]) -> None:
    """Writes rows, as `read_rows` returns them, to some cells of a leaf."""
    assert t.buffer is not None
    memory = t.buffer.data
    for a, b in _runs(cells):
        memory.write(int(cells[a]) * rows.shape[1], np.ascontiguousarray(rows[a:b]).reshape(-1))
