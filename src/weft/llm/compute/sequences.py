"""Operations on the sequences of a context, between calls of `decode`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from weft.errors import ContextError
from weft.execute import Session
from weft.llm.cache.cells import Cells
from weft.llm.cache.compaction import compact, pays
from weft.llm.cache.events import CacheEventKind, EventDetails
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.pages import PAGE, STRIP
from weft.llm.cache.uninterrupted import uninterrupted
from weft.llm.compute.counters import Counters
from weft.llm.compute.input_rows import InputRows
from weft.llm.model import Model


class Sequences:
    """Operations on the cached tokens of a context.

    A range covers the positions p0 <= p < p1; p0 < 0 means 0 and p1 < 0 infinity. `seq_rm`,
    `seq_add` and `seq_div` take a sequence below 0 as every sequence. All raise ContextError for a
    sequence that is not in 0..n_seq_max - 1."""

    model: Model
    cache: KVCache
    input_rows: InputRows
    _counters: Counters
    _reads_all: bool
    """True if attention reads every cell up to the last used one, free cells included."""

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Removes the tokens in the range from sequence `seq`, or from every sequence.

        Cells that no sequence has any more are freed. Raises ContextError for a part of a sequence
        with recurrent states."""
        self.cache.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Adds the cells of `src` in the range to `dst`, which shares them; nothing is copied.

        Raises ContextError for a part of a sequence with recurrent states."""
        self.cache.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Removes every other sequence."""
        self.cache.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Adds `delta` to the positions in the range, for all sequences that share the cells.

        Keys are rotated before the next `decode`. Cells whose position would be negative are
        freed. Raises ContextError if a position would be too large."""
        self.cache.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides the positions in the range by `d` >= 1, rounding down; otherwise like
        `seq_add`."""
        self.cache.seq_div(seq, p0, p1, d)

    def pos_min(self, seq: int) -> int:
        """The smallest position of `seq`, -1 when it is empty."""
        return self.cache.pos_min(seq)

    def pos_max(self, seq: int) -> int:
        """The largest position of `seq`, -1 when it is empty."""
        return self.cache.pos_max(seq)

    def clear(self) -> None:
        """Frees every cell."""
        self.cache.clear()

    def beginning(self, prompt: Sequence[int]) -> list[int]:
        """The ids with which the text of a prompt (token ids) begins: the prompt itself, or, where
        there is an encoder to read it, ids that stand for its tokens, and the decoder's first
        token. Decode those of a prompt in one call."""
        config, ids = self.model.config, list(prompt)
        if not config.n_encoder:
            return ids
        rows = np.array(ids, np.float32)[:, None]
        return [*self.input_rows.add(rows.tobytes(), rows, together=True), config.start_token]

    def reuse_prefix(self, seq: int, tokens: ArrayLike) -> int:
        """Keeps the longest prefix of `tokens` (ids [n]) that `seq` holds and removes its other
        tokens. Returns the number of tokens kept, at most n - 1; decode those that follow.

        Only tokens that were decoded in order as the beginning of one text are kept, so results are
        those of a fresh sequence. With recurrent states either the whole sequence is kept or
        nothing. Raises ContextError if `tokens` are not ids."""
        n_kept = self.common_prefix(seq, tokens)
        gone = n_kept <= self.cache.pos_max(seq)
        kind: CacheEventKind = "reused" if n_kept else "removed"
        with self.cache.noting(kind, (seq,), EventDetails(n_saved=n_kept)):
            if gone:
                self.cache.seq_rm(seq, n_kept, -1)
        return n_kept

    def common_prefix(self, seq: int, tokens: ArrayLike) -> int:
        """The number of tokens that `reuse_prefix` would keep; changes nothing."""
        if not self.model.config.causal:
            return 0
        try:
            ids = np.atleast_1d(np.asarray(tokens, np.int64))
        except (OverflowError, ValueError, TypeError):
            raise ContextError("tokens are ids below the size of the vocabulary") from None
        n = self.cache.common_prefix(seq, ids[:-1])
        return n if self.cache.can_cut(seq, n) else 0

    def require_movable(self) -> None:
        """Raises ContextError if the model cannot go on after a text lost its beginning, because of
        recurrent states, learned positions, a prompt that an encoder has read, or images whose
        positions have height and width."""
        config = self.model.config
        seen = bool(config.rope_sections) and self.input_rows.lags
        stays = self.cache.states is not None or self.cache.blocks
        if stays or config.n_positions or config.n_encoder or seen:
            what = "recurrent states" if self.cache.states is not None else "compressed keys"
            what = "learned positions" if config.n_positions else what
            what = "an encoder" if config.n_encoder else what
            what = "images in its texts" if seen else what
            raise ContextError(
                f"a model with {what} cannot go on when its context is full; make `n_ctx` larger"
            )

    def drop_oldest(self, seq: int = 0, n_keep: int = 0, n_drop: int | None = None) -> int:
        """Makes room in a full context: removes `n_drop` tokens after the first `n_keep` (default:
        half of them), and lowers the positions of those that follow. Returns `n_drop`.

        The tokens that stay were computed while the dropped ones were visible, so the text goes on,
        but differently than after a fresh start. Raises ContextError if positions cannot be changed
        (recurrent states, learned positions, cells shared with other sequences) and if there are
        too few tokens to drop."""
        cache, n_past = self.cache, self.cache.pos_max(seq) + 1
        if n_drop is None:
            n_drop = (n_past - n_keep) // 2
        self.require_movable()
        if n_keep < 0 or n_drop < 1 or n_keep + n_drop > n_past:
            raise ContextError(
                f"{n_drop} tokens cannot be dropped after the first {n_keep} of {n_past}; keep "
                "fewer"
            )
        behind = cache.members[seq] & (cache.pos >= n_keep + n_drop)
        if cache.members[:, behind].sum() > behind.sum():
            raise ContextError(
                f"sequence {seq} shares the tokens that would move with other sequences; remove "
                "those first (seq_rm, seq_keep)"
            )
        cache.seq_rm(seq, n_keep, n_keep + n_drop)
        cache.seq_add(seq, n_keep + n_drop, -1, -n_drop)
        return n_drop

    def compact(self) -> int:
        """Removes gaps between used cells, moving keys and values; returns the number of cells
        moved.

        Sequences keep and share the same tokens. With flash attention, all later results are the
        same to the last bit. Flash attention skips free cells and gains next to nothing from this.
        With `flash=False` every token reads all cells up to the last used one, so `decode` compacts
        by itself when that at least halves them. Raises DeviceError if a device fails; the cache is
        empty then."""
        with self.cache.noting("compacted"):
            n_moved = compact(self.cache, STRIP if self._reads_all else PAGE)
        self._counters.compactions += 1
        self._counters.cells_moved += n_moved
        return n_moved

    def _compact_where_it_pays(self) -> None:
        self.cache.freed = False
        if pays(self.cache):
            self.compact()


def rotate_keys(cache: KVCache, session: Session | None) -> None:
    """Rotates the keys of `cache` with `session` (None: the model rotates none).

    Neither Ctrl-C nor `abort` stops it half way, because partly rotated keys are useless. If a
    device fails, the cache is emptied."""
    if session is None or not cache.n_seen:
        cache.shifted()
        return
    try:
        with cache.noting("shifted"):
            uninterrupted(lambda: _rotate(cache, session))
    except KeyboardInterrupt:
        if cache.has_shift:  # the rotation itself raised it and has not ended
            cache.clear()
        raise
    except BaseException:
        cache.clear()
        raise


def _rotate(cache: KVCache, session: Session) -> None:
    values: dict[str, int] = {}
    tables: dict[str, tuple[str, Cells]] = {"shift": ("n_kv", cache)}
    if cache.window is not None:
        tables["window_shift"] = "n_kv_window", cache.window
    for name, (symbol, cells) in tables.items():
        # free cells are rotated too, by any angle
        n = values[symbol] = max(cells.n_seen, 1)
        if name in session.program.inputs:
            session.input_view(name)[:n] = cells.shift[:n]
            session.upload(name)
    session.execute(values)
    cache.shifted()
