"""Token ids beyond the vocabulary, which stand for rows that a tower made of an image or a sound.

A prompt with an image is a list of ids like any other: its tokens, and where the image is, an id
for each of its rows. The ids follow from the hash of the image, so that prefixes are compared,
shared and kept as those of text are, and an image is the same one in every turn.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.errors import ContextError
from weft.llm.cache.cells import Cells
from weft.records import dataclass

MOST_BYTES = 256 << 20
"""Maximum number of bytes of rows that are kept for further turns."""
_SPREAD = (1 << 30) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The rows of one image."""

    ids: tuple[int, ...]
    rows: NDArray[np.float32]
    """[n, n_embd]"""
    together: bool
    """True if each row sees all others, so that they are computed in one ubatch."""
    width: int = 0
    """Rows of each line of the image, for models whose positions have height and width; 0: none."""
    framed: bool = False
    """True if a row stands in front of the lines and one behind them, and if a row of a line has
    the position of a token, its place, its line and the number of the image in the text."""


class InputRows:
    """The rows that a context knows, by their ids; the longest unused ones are forgotten."""

    def __init__(self, n_vocab: int, n_embd: int, most_bytes: int = MOST_BYTES) -> None:
        """Ids begin at `n_vocab`; rows are f32 [n, n_embd]."""
        self.n_vocab = n_vocab
        self.n_embd = n_embd
        self.most_bytes = most_bytes
        self._runs: OrderedDict[bytes, Run] = OrderedDict()
        self._where: dict[int, tuple[Run, int]] = {}
        self._lags: dict[int, int] = {}  # by the last id of an image; never forgotten

    def find(self, key: bytes) -> list[int] | None:
        """The ids of the rows called `key`, if they are known."""
        run = self._runs.get(key)
        if run is None:
            return None
        self._runs.move_to_end(key)
        return list(run.ids)

    def add(
        self,
        key: bytes,
        rows: ArrayLike,
        *,
        together: bool = False,
        width: int = 0,
        framed: bool = False,
    ) -> list[int]:
        """Keeps rows [n, n_embd] and returns their ids, which depend on `key` and n only. With
        `together`, each row sees all others in attention, as Gemma 3 does with images. `width` and
        `framed` are stored in the `Run`.

        Raises ContextError for rows of another size."""
        known = self.find(key)
        if known is not None:
            return known
        values = np.array(rows, np.float32)
        if values.ndim != 2 or len(values) == 0 or values.shape[1] != self.n_embd:
            raise ContextError(
                f"rows of an image or a sound are {list(values.shape)}, but the model takes "
                f"[n, {self.n_embd}]; the tower is of another model"
            )
        run = Run(self._ids(key, len(values)), values, together, width, framed)
        if width:
            n = len(values)
            self._lags[run.ids[-1]] = 0 if framed else max(width, n // width) - n
        self._runs[key] = run
        self._where.update((id_, (run, i)) for i, id_ in enumerate(run.ids))
        while len(self._runs) > 1 and self.nbytes > self.most_bytes:
            self._forget(next(iter(self._runs)))
        return list(run.ids)

    def __contains__(self, id_: object) -> bool:
        return id_ in self._where

    @property
    def nbytes(self) -> int:
        """Bytes of all rows that are kept."""
        return sum(run.rows.nbytes for run in self._runs.values())

    def spans(
        self, ids: Sequence[int] | NDArray[np.int32]
    ) -> Iterator[tuple[int, int, Run | None]]:
        """Cuts ids into parts (start, end, run) of tokens, where run is None, and of rows.

        Raises ContextError for ids of rows that were forgotten."""
        numbers = np.asarray(ids)
        start, n = 0, len(numbers)
        odd = np.flatnonzero(numbers >= self.n_vocab)
        while start < n:
            at = int(np.searchsorted(odd, start))
            first = int(odd[at]) if at < len(odd) else n
            if first > start:
                yield start, first, None
                start = first
                continue
            run, i = self._of(int(numbers[start]))
            end = start + 1
            while end < n and i + 1 < len(run.ids) and numbers[end] == run.ids[i + 1]:
                i, end = i + 1, end + 1
            yield start, end, run
            start = end

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """The rows of ids of one run, in order."""
        run, i = self._of(int(ids[0]))
        return run.rows[i : i + len(ids)]

    @property
    def lags(self) -> bool:
        """True if there are images that have fewer positions than rows."""
        return bool(self._lags)

    def planes(
        self,
        ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        first: NDArray[np.int32],
        cells: Cells,
    ) -> NDArray[np.int32]:
        """The rotary positions [n, 4] of tokens of a call: time, height, width, and one that is not
        used. An image is one moment; the text behind it goes on behind its larger side. Rows of a
        framed image (see `Run`) have other positions."""
        out = np.repeat(positions[:, None], 4, axis=1)
        for seq in np.unique(first):
            mine = np.flatnonzero(first == seq)
            held = np.flatnonzero(cells.members[seq] & (cells.tokens >= self.n_vocab))
            new = mine[ids[mine] >= self.n_vocab]
            numbers = np.concatenate([cells.tokens[held], ids[new]]).tolist()
            at = np.concatenate([cells.pos[held], positions[new]]).tolist()
            pairs = zip(at, numbers, strict=True)
            ends = sorted((p, self._lags[id_]) for p, id_ in pairs if id_ in self._lags)
            sums = np.concatenate([[0], np.cumsum([lag for _, lag in ends])]).astype(np.int32)
            last = np.array([p for p, _ in ends])
            out[mine] += sums[np.searchsorted(last, positions[mine])][:, None]
            for i in new.tolist():
                run, n = self._of(int(ids[i]))
                if run.framed:
                    line, place = divmod(n - 1, run.width)
                    if 0 < n < len(run.ids) - 1:
                        number = np.searchsorted(last, positions[i] - n)  # images that ended
                        out[i, 1:] = place, line, number
                elif run.width:
                    start = positions[i] - n
                    start += sums[np.searchsorted(last, start)]
                    out[i] = start, start + n // run.width, start + n % run.width, start
        return out

    def _of(self, id_: int) -> tuple[Run, int]:
        found = self._where.get(id_)
        if found is None:
            raise ContextError(
                f"id {id_} is beyond the vocabulary of {self.n_vocab} tokens and of no image or "
                "sound that is kept; give it again"
            )
        return found

    def _ids(self, key: bytes, n: int) -> tuple[int, ...]:
        for salt in range(256):  # two images with one id in common are as good as impossible
            digest = hashlib.shake_256(bytes([salt]) + key).digest(4 * n)
            ids = (np.frombuffer(digest, "<u4") & _SPREAD) + self.n_vocab
            if len(set(ids.tolist())) == n and not any(id_ in self._where for id_ in ids.tolist()):
                break
        return tuple(int(id_) for id_ in ids)

    def _forget(self, key: bytes) -> None:
        for id_ in self._runs.pop(key).ids:
            del self._where[id_]
