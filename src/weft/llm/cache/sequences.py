"""What can be done with the sequences that a context holds, between calls of `decode`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from weft.errors import ContextError
from weft.llm.cache.compaction import compact, pays
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.pages import PAGE, STRIP
from weft.llm.compute.counters import Counters
from weft.llm.model import Model

__all__ = ["Sequences"]


class Sequences:
    """Operations on cached tokens. A range means positions p0 <= p < p1; p0 < 0 is 0, p1 < 0
    infinity, and a sequence below 0 is every sequence where that is allowed. All raise ContextError
    for a sequence that is not in 0..n_seq_max - 1."""

    model: Model
    cache: KVCache
    counters: Counters
    _reads_all: bool
    """Whether attention looks at every cell up to the last, free or not."""

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Takes sequence `seq` (or every one) out of the cells in the range; cells without a
        sequence are free. Raises ContextError for a part of a sequence with recurrent states."""
        self.cache.seq_rm(seq, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Makes the cells of `src` in the range cells of `dst` too; nothing is computed again."""
        self.cache.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Removes every other sequence."""
        self.cache.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Moves positions in the range by `delta`, for all sequences that share the cells. Keys are
        rotated before the next `decode`. Cells that would move below 0 are freed."""
        self.cache.seq_add(seq, p0, p1, delta)

    def seq_div(self, seq: int, p0: int, p1: int, d: int) -> None:
        """Divides positions in the range by `d`, rounding down; otherwise as `seq_add`."""
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

    def reuse_prefix(self, seq: int, tokens: ArrayLike) -> int:
        """Keeps the longest beginning of `tokens` that `seq` holds, removes the rest of `seq`, and
        gives the number of tokens kept: decode those from there on.

        At least one token is left to decode, so that there are logits. Only what was decoded as the
        beginning of one text counts, so results are those of a fresh sequence; with recurrent
        states it is all that the sequence holds or nothing."""
        kept = self.common_prefix(seq, tokens)
        if kept <= self.cache.pos_max(seq):
            self.cache.seq_rm(seq, kept, -1)
        return kept

    def common_prefix(self, seq: int, tokens: ArrayLike) -> int:
        """How many tokens `reuse_prefix` would keep; nothing is changed."""
        if not self.model.config.causal:
            return 0
        try:
            ids = np.atleast_1d(np.asarray(tokens, np.int64))
        except (OverflowError, ValueError, TypeError):
            raise ContextError("tokens are ids below the size of the vocabulary") from None
        n = self.cache.common_prefix(seq, ids[:-1])
        return n if self.cache.can_cut(seq, n) else 0

    def require_movable(self) -> None:
        """Raises ContextError for a model whose texts cannot lose their beginning."""
        learned = self.model.config.n_positions
        if self.cache.states is not None or learned:
            what = "learned positions" if learned else "recurrent states"
            raise ContextError(
                f"a model with {what} cannot go on when its context is full; make n_ctx larger"
            )

    def drop_oldest(self, seq: int = 0, n_keep: int = 0, n_drop: int | None = None) -> int:
        """Makes room in a full context: removes the `n_drop` tokens that follow the first `n_keep`
        (default: half of those behind them), moves the later ones down, and gives how many went.

        What stays was computed with what is gone in view, so texts go on, but not as they would
        from a fresh start. Raises ContextError where positions cannot be moved (recurrent states,
        learned positions, cells shared with other sequences) and where nothing can be dropped."""
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
        """Moves the cells of all sequences together, keys and values too; gives how many moved.

        What sequences hold and share stays as it is, and with flash attention everything that is
        decoded later is the same to the last bit. Flash attention skips free cells, so it gains
        next to nothing; with `flash=False` every token looks at all cells up to the last used, and
        `decode` does this by itself when at least half of them would go. Raises DeviceError when a
        device fails; the cache is empty then."""
        unit = STRIP if self._reads_all else PAGE
        moved = compact(self.cache, unit)
        self.counters.compactions += 1
        self.counters.cells_moved += moved
        return moved

    def _compact_where_it_pays(self) -> None:
        self.cache.freed = False
        if pays(self.cache):
            self.compact()
