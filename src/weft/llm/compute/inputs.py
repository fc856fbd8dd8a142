"""`Regime`: a compiled graph for a range of batch sizes; `Inputs` writes into its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import ArenaPool, Session
from weft.graph.size import evaluate
from weft.llm.cache.cells import BlockCells, Cells
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.rollback import BlockPlaces, Places
from weft.llm.config import ModelConfig
from weft.llm.config_parts import BlockConfig, NgramConfig
from weft.native import _native
from weft.program import Program

_FORCED = 1e30
"""What is added to the scores of blocks that are chosen in any case."""


class Inputs:
    """The inputs of one session. Inputs that the graph does not have are skipped."""

    def __init__(self, session: Session, cache: KVCache, config: ModelConfig) -> None:
        self._session = session
        self._config = config
        self._small = cache.window
        names = session.program.inputs
        self._views = views = {name: session.input_view(name) for name in names}
        self._sent = [name for name in names if session.needs_upload(name)]
        masks: dict[str, tuple[Cells, int]] = {
            "mask": (cache, 0),
            "window_mask": (cache.window or cache, config.window),
        }
        masks |= {f"block_mask_{ratio}": (cells, 0) for ratio, cells in cache.blocks.items()}
        self._masks = {name: cells for name, cells in masks.items() if name in names}
        self._writers: dict[str, _native.MaskWriter] = {}
        for name, (cells, window) in self._masks.items():
            # masks with distances or chunks are written by `Cells.fill_mask`
            if config.alibi_bias <= 0 and not (window and config.chunked):
                out = views[name].view(np.uint16)
                self._writers[name] = _native.MaskWriter(
                    cells.pos, cells.members, out, window, config.causal
                )
        self.takes_one = (
            "tokens" in views and "types" not in views and cache.window is None and not cache.blocks
            and "buckets" not in views and "states_in" not in views and "places" not in views
            and "ngram_rows" not in views
            and len(self._writers) == len(self._masks)
        )  # fmt: skip
        """True if `write_one` can be used."""
        self._distances: Distances | None = None
        if "buckets" in views:
            both = not config.causal or "cross_mask" not in views
            self._distances = Distances(config.n_buckets, both=both)
        self._scales = [(views[name], rows) for name, rows in cache.scales.items() if name in views]
        self._cache = cache
        unused = np.zeros(1, np.int64)
        self._token, self._position, self._cell, self._out_id, self._read, self._written = (
            views.get(name, unused)
            for name in ("tokens", "positions", "cells", "out_ids", "state_in", "state_out")
        )
        self._rows = [writer.one for writer in self._writers.values()]

    def write_one(
        self, token: int, position: int, seq: int, cell: int, n_kv: int, slots: tuple[int, int]
    ) -> None:
        """Writes the inputs of a single token whose row is wanted. It is a fast path: these writes
        are most of the time that generating text takes outside of kernels."""
        self._token[0] = token
        self._position[0] = position
        self._cell[0] = cell
        self._out_id[0] = 0
        self._read[0], self._written[0] = slots
        for view, rows in self._scales:
            view[: rows.shape[1]] = rows[seq]
        for row in self._rows:
            row(n_kv, position, seq)
        for name in self._sent:
            self._session.upload(name)

    def write(self, ubatch: Ubatch, places: Places, out_ids: NDArray[np.intp]) -> None:
        """Writes the inputs of a ubatch whose cells are occupied. `out_ids` are the numbers of the
        tokens whose rows are wanted."""
        n, views = len(ubatch), self._views
        if ubatch.is_rows:
            views["embd"][: ubatch.tokens.size] = ubatch.tokens.reshape(-1)
        elif "tokens" in views:  # states alone may be read, too
            views["tokens"][:n] = ubatch.tokens
        if "states_in" in views:
            if ubatch.states is None:
                raise ContextError(
                    "a layer that drafts reads states beside tokens; give Batch.states"
                )
            views["states_in"][: ubatch.states.size] = ubatch.states.reshape(-1)
        if "cells" in views:
            views["cells"][:n] = places.cells
        if "window_cells" in views:
            views["window_cells"][:n] = places.window_cells
        for ratio, blocks in places.blocks.items():
            self._write_blocks(ratio, ubatch, blocks)
        if places.slots is not None:
            views["state_in"][: ubatch.n_seqs], views["state_out"][: ubatch.n_seqs] = places.slots
        if "positions" in views:  # a model without rotation does not read them
            self._write_positions(ubatch)
        if "types" in views:
            views["types"][:n] = ubatch.types
        for view, rows in self._scales:
            scales = rows[ubatch.first].reshape(-1)
            view[: len(scales)] = scales
        # the graph computes at least one row, even if none is wanted
        views["out_ids"][: len(out_ids) or 1] = out_ids if len(out_ids) else 0
        for name, (cells, window) in self._masks.items():
            self._write_mask(name, ubatch, cells, window)
            alike = not name.startswith("block")
            if ubatch.together and alike and (window or self._config.rows_join == "all"):
                small = name == "window_mask" and cells is self._small
                self._join(name, ubatch, places.window_cells if small else places.cells, window)
        if self._distances is not None:
            self._write_distances(ubatch, self._distances)
        if "places" in views and self._config.chosen_blocks is not None:
            self._write_places(ubatch, self._config.chosen_blocks)
        if "ngram_rows" in views and self._config.ngrams is not None:
            self._write_ngrams(ubatch, self._config.ngrams)
        for name in self._sent:
            self._session.upload(name)

    def _write_blocks(self, ratio: int, ubatch: Ubatch, blocks: BlockPlaces) -> None:
        """Writes where compressed keys go and what they are computed from."""
        sources = blocks.sources.reshape(-1)
        for name, values in (
            ("cells", blocks.cells),
            ("sources", np.maximum(sources, 0)),
            ("bias", np.where(sources < 0, np.float32(-np.inf), np.float32(0))),
            ("positions", blocks.positions),
            ("places", ubatch.positions % ratio),
        ):
            view = self._views.get(f"block_{name}_{ratio}")
            if view is not None:
                view[: len(values)] = values
        view = self._views.get(f"block_rows_{ratio}")
        if view is not None:
            self._write_rows(view, ubatch, self._cache.blocks[ratio])

    def _write_rows(self, view: NDArray[Any], ubatch: Ubatch, blocks: BlockCells) -> None:
        """Writes the row of the block that each cell is in, for each sequence of a ubatch."""
        cache, n_kv, n_each = self._cache, self._cache.n_read, len(ubatch) // ubatch.n_seqs
        rows = view[: ubatch.n_seqs * n_kv].reshape(-1, n_kv)
        rows[:] = blocks.n_read
        for row, seq in zip(rows, ubatch.first[::n_each].tolist(), strict=True):
            whole = np.flatnonzero(blocks.members[seq])
            own = np.flatnonzero(cache.members[seq, :n_kv])
            numbers = cache.pos[own] // blocks.ratio
            of_block = np.full(numbers.max(initial=0) + 1, blocks.n_read, np.int32)
            of_block[blocks.pos[whole] // blocks.ratio] = whole
            row[own] = of_block[numbers]

    def _write_distances(self, ubatch: Ubatch, buckets: Distances) -> None:
        """Writes the buckets of distances, and parts the mask where there is an encoder."""
        views, n, n_kv = self._views, len(ubatch), self._cache.n_read
        p = ubatch.positions
        if "mask" not in views:  # an encoder
            views["buckets"][: n * n] = buckets(p, p).reshape(-1)
            return
        views["buckets"][: n * n_kv] = buckets(self._cache.pos[:n_kv], p).reshape(-1)
        if "cross_mask" in views:
            encoded = self._cache.tokens[:n_kv] >= self._config.n_vocab
            own, other = (
                views[name].view(np.float16)[: n * n_kv].reshape(n, n_kv)
                for name in ("mask", "cross_mask")
            )
            other[:] = np.where(encoded, own, -np.inf)
            own[:, encoded] = -np.inf

    def _write_places(self, ubatch: Ubatch, blocks: BlockConfig) -> None:
        """Writes the cells of the positions of each token's text by blocks, and which blocks are
        chosen in any case. Blocks are counted from the first that the text has."""
        n, n_kv, cache = len(ubatch), self._cache.n_read, self._cache
        n_blocks = blocks.n_blocks(cache.size)
        places = self._views["places"][: n * n_blocks * blocks.size].reshape(n, -1)
        forced = self._views["forced_blocks"][: n * n_blocks].reshape(n, -1)
        places[:], forced[:] = n_kv, 0.0
        for seq in np.unique(ubatch.first):
            cells = np.flatnonzero(cache.members[seq, :n_kv])
            held, rows = cache.pos[cells], np.flatnonzero(ubatch.first == seq)
            first = held.min() // blocks.size * blocks.size
            if held.max() - first >= n_blocks * blocks.size:
                raise ContextError(
                    f"sequence {seq} has positions {held.min()} to {held.max()}, which are further "
                    f"apart than the {cache.size} cells of the context; give it positions in a row"
                )
            row = np.full(n_blocks * blocks.size, n_kv, np.int32)
            row[held - first] = cells
            places[rows] = row
            last = (ubatch.positions[rows] - first) // blocks.size
            for back in range(blocks.n_local):
                forced[rows, np.maximum(last - back, 0)] = _FORCED

    def _write_ngrams(self, ubatch: Ubatch, ngrams: NgramConfig) -> None:
        """Writes the rows of the n-grams that end with each token of its text."""
        cache, positions = self._cache, ubatch.positions
        grams = np.empty((len(ubatch), ngrams.size), np.int64)
        for seq in np.unique(ubatch.first):
            own = np.flatnonzero(ubatch.first == seq)
            p = positions[own]
            low, high = int(p.min()) - ngrams.size + 1, int(p.max())
            cells = np.flatnonzero(cache.members[seq] & (cache.pos >= low) & (cache.pos <= high))
            cells = cells[np.argsort(cache.pos[cells], kind="stable")]
            tokens = cache.tokens[cells]
            known = (tokens >= 0) & (tokens < self._config.n_vocab)
            tokens = np.where(known, tokens, ngrams.image)
            wanted = p[:, None] - np.arange(ngrams.size)
            at = np.minimum(np.searchsorted(cache.pos[cells], wanted), len(cells) - 1)
            grams[own] = np.where(cache.pos[cells[at]] == wanted, tokens[at], -1)
        rows = ngrams.rows(grams).reshape(-1)
        self._views["ngram_rows"][: len(rows)] = rows

    def _write_positions(self, ubatch: Ubatch) -> None:
        n, view, planes = len(ubatch), self._views["positions"], ubatch.planes
        if ubatch.is_rows and self._config.rope_sections:
            if planes is None:
                planes = np.repeat(ubatch.positions[:, None], 4, axis=1)
            view[: 4 * n] = planes.T.reshape(-1)
        else:
            view[:n] = ubatch.positions if planes is None else planes[:, 0]

    def _write_mask(self, name: str, ubatch: Ubatch, cells: Cells, window: int) -> None:
        writer, n_kv = self._writers.get(name), cells.n_read
        if writer is not None:
            writer.all(n_kv, ubatch.positions, ubatch.first)
            return
        view: NDArray[Any] = self._views[name]
        out = view[: len(ubatch) * n_kv].reshape(-1, n_kv)
        c, positions = self._config, ubatch.positions
        distances = c.alibi_bias > 0
        cells.fill_mask(
            out,
            positions,
            ubatch.first,
            window,
            distances=distances,
            causal=c.causal,
            chunked=c.chunked,
        )

    def _join(self, name: str, ubatch: Ubatch, own: NDArray[np.int64] | None, window: int) -> None:
        """Lets the rows of an image see its later rows too, in the cells `own`."""
        n, p = len(ubatch), ubatch.positions
        n_kv = self._masks[name][0].n_read
        out = self._views[name].view(np.float16)[: n * n_kv].reshape(n, n_kv)
        seen = p > p[:, None] - window if window else np.ones((n, n), np.bool_)
        out[:, own] = np.where(seen, 0, -np.inf)


class Regime:
    """A compiled graph for up to `max_tokens` tokens, its inputs and its output."""

    __slots__ = ("inputs", "max_tokens", "one_row", "output", "program", "rows", "session",
                 "states")  # fmt: skip

    def __init__(
        self,
        max_tokens: int,
        program: Program,
        arenas: ArenaPool,
        cache: KVCache,
        config: ModelConfig,
        session: Session | None = None,
    ) -> None:
        """`session` runs a program with the inputs and outputs of `program`; None: a plain one."""
        self.max_tokens = max_tokens
        self.program = program
        self.session = Session(program, arenas) if session is None else session
        program = self.session.program
        self.inputs = Inputs(self.session, cache, config)
        self.output: str = next(name for name in program.outputs if name != "states")
        """Name of the output with the rows that `decode` returns."""
        self.states: NDArray[Any] | None = None
        """What is kept of the tokens of the last run [n_tokens * width], if anything is."""
        if "states" in program.outputs:
            self.states = self.session.output_view("states")
        rows = program.tensors[program.outputs[self.output]]
        self.rows: NDArray[Any] | None = None
        """The output of the last run [rows * width], or None if it cannot be read in place."""
        if program.buffers[rows.buffer].buffer_type.is_host:
            self.rows = self.session.output_view(self.output)
        self.one_row: NDArray[Any] | None = None
        """The first row of the output of the last run [1, width]."""
        if self.rows is not None:
            width = evaluate(rows.ne[0], {})
            self.one_row = self.rows[:width].reshape(1, width)

    def states_of(self, n: int) -> NDArray[Any] | None:
        """What is kept of the `n` tokens of the last run, [n, width]; None: nothing is."""
        if self.states is None:
            return None
        width = evaluate(self.program.tensors[self.program.outputs["states"]].ne[0], {})
        return self.states[: n * width].reshape(n, width)

    @property
    def takes_one(self) -> bool:
        """True if a single token can be written, and its row read, directly in memory."""
        return self.inputs.takes_one and self.one_row is not None


FARTHEST = 128
"""The shortest distance whose tokens are in the last bucket."""


class Distances:
    """Buckets of distances between tokens, for which T5 (arXiv 1910.10683) has learned biases: one
    for each of the shortest distances, wider ones up to `FARTHEST`, and the last for the others.

    With `both`, as in encoders, each side of a token has buckets of its own."""

    def __init__(self, n_buckets: int, *, both: bool) -> None:
        n = n_buckets // 2 if both else n_buckets
        away = np.arange(FARTHEST + 1, dtype=np.float32)
        exact = np.float32(n // 2)
        wider = np.log(np.maximum(away, exact) / exact) / np.float32(np.log(FARTHEST / exact))
        wide = (wider * np.float32(n - n // 2)).astype(np.int32) + n // 2
        before = np.where(away < exact, away, np.minimum(wide, n - 1)).astype(np.int32)
        # tokens behind, which a decoder does not see, share the bucket of no distance
        behind = before[1:] + n if both else np.zeros(FARTHEST, np.int32)
        self._table = np.concatenate([before[::-1], behind]).astype(np.int32)

    def __call__(self, seen: NDArray[np.int32], positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """The bucket [n, n_kv] of each position `seen` [n_kv] from each of `positions` [n]."""
        apart = seen - positions[:, None]
        buckets: NDArray[np.int32] = self._table[np.clip(apart, -FARTHEST, FARTHEST) + FARTHEST]
        return buckets
