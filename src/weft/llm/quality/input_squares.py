"""Collects the sums of squares of the inputs of products with weights, while a model computes.

An `InputSquares` is a callback (`Context.set_eval_callback`): it asks to see what products read,
once where several read the same, and adds up squares in f64; squares within one ubatch are added in
f32. Experts have sums and counts of their own, of the tokens that were sent to them. Every token
counts; llama-imatrix leaves out the last ones of a chunk where fewer than 16 are left for a ubatch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import WatchedTensor
from weft.execute.watch import Reader
from weft.records import dataclass


@dataclass(slots=True)
class Sums:
    """The measurements of one tensor of weights."""

    squares: NDArray[np.float64]
    """Sums of squares of the inputs, [n_matrices, n_columns]."""
    counts: NDArray[np.int64]
    """Number of tokens of each matrix; one number if all have seen the same."""


@dataclass(slots=True)
class _Mixture:
    """The inputs of experts, until both parts are computed."""

    n_experts: int
    x: NDArray[np.float32] | None = None
    ids: NDArray[np.int32] | None = None


class InputSquares:
    """The sums by the name of the weights, and the callback that adds to them."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        """`wanted` says of the name of weights whether they count."""
        self.sums: dict[str, Sums] = {}
        self._wanted = wanted
        self._mixtures: dict[str, _Mixture] = {}

    def __call__(self, tensor: WatchedTensor, ask: bool) -> bool:
        """The callback."""
        if ask:
            return any(self._counts(tensor, reader) for reader in tensor.readers)
        value = tensor.numbers()
        dense: dict[tuple[int, int], list[str]] = {}
        for reader in tensor.readers:
            if not self._counts(tensor, reader):
                continue
            if reader.op == "MUL_MAT_ID":
                self._part_of_mixture(reader, value)
            elif reader.place == 1:
                sizes = reader.first_shape[0], reader.first_shape[1]
                dense.setdefault(sizes, []).append(reader.first)
        for sizes, names in dense.items():
            self._add_dense(names, sizes, value)
        return True

    def _counts(self, tensor: WatchedTensor, reader: Reader) -> bool:
        if reader.op == "MUL_MAT_ID":
            return reader.place in (1, 2) and self._wanted(reader.first)
        is_product = reader.op == "MUL_MAT" and reader.place == 1
        return is_product and tensor.dtype.name == "f32" and self._wanted(reader.first)

    def _add_dense(self, names: list[str], sizes: tuple[int, int], x: NDArray[Any]) -> None:
        """Adds x [.., n_tokens, n_columns] to weights of `sizes`[0] * `sizes`[1] matrices."""
        x = x.reshape(*(1,) * (4 - x.ndim), *x.shape)
        n_outer, n_inner = sizes
        n_matrices, n_columns = n_outer * n_inner, x.shape[3]
        squares = np.zeros((n_matrices, n_columns))
        for i3 in range(x.shape[0]):
            for i2 in range(x.shape[1]):
                squares[i3 % n_outer * n_inner + i2 % n_inner] += _squares(x[i3, i2])
        n = x.shape[0] * x.shape[1] * x.shape[2] // n_matrices
        for name in names:
            self.add(name, squares, np.array([n]))

    def _part_of_mixture(self, reader: Reader, value: NDArray[Any]) -> None:
        mixture = self._mixtures.setdefault(reader.first, _Mixture(reader.first_shape[1]))
        if reader.place == 1:
            mixture.x = value
        else:
            mixture.ids = value
        if mixture.x is not None and mixture.ids is not None:
            del self._mixtures[reader.first]
            self._add_mixture(reader.first, mixture.n_experts, mixture.x, mixture.ids)

    def _add_mixture(
        self, name: str, n_experts: int, x: NDArray[np.float32], ids: NDArray[np.int32]
    ) -> None:
        """Adds x [n_tokens, n_used or less, n_columns] for experts `ids` [n_tokens, n_used]."""
        ids = ids.reshape(-1, ids.shape[-1]) if ids.ndim > 1 else ids.reshape(1, -1)
        n_tokens, n_used = ids.shape
        n_columns = x.shape[-1]
        rows = x.reshape(n_tokens, -1, n_columns)
        tokens, used = np.divmod(np.arange(n_tokens * n_used), n_used)
        of = (tokens * rows.shape[1] + used % rows.shape[1])[np.argsort(ids, axis=None)]
        counts = np.bincount(ids.ravel(), minlength=n_experts)
        flat = rows.reshape(-1, n_columns)
        squares = np.zeros((n_experts, n_columns))
        start = 0
        for expert in np.flatnonzero(counts):
            squares[expert] = _squares(flat[of[start : start + counts[expert]]])
            start += counts[expert]
        self.add(name, squares, counts.astype(np.int64))

    def add(self, name: str, squares: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Adds sums of squares [n_matrices, n_columns] and counts to the sums and counts of weights
        `name`.

        Raises ContextError for sums that are not finite, or of other sizes than those known."""
        if not np.isfinite(squares).all():
            raise ContextError(
                f"the inputs of {name} are infinite or not a number; the file may be damaged"
            )
        known = self.sums.get(name)
        if known is None:
            self.sums[name] = Sums(squares.copy(), counts.copy())
            return
        known.counts = _alike(known.counts, len(counts))
        if known.squares.size != squares.size or len(known.counts) != len(counts):
            raise ContextError(
                f"{name} has {squares.size} columns in {len(counts)} matrices here, but "
                f"{known.squares.size} in {len(known.counts)} in what was read from a file; they "
                "are of different models"
            )
        known.squares = known.squares.reshape(squares.shape) + squares
        known.counts = known.counts + counts

    def round(self) -> None:
        """Rounds the sums to f32, as a file has them, so that a run that goes on from the file
        gives the same sums as this one."""
        for sums in self.sums.values():
            sums.squares = sums.squares.astype(np.float32).astype(np.float64)


def _alike(counts: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """`counts` as `n` of them: files may have one for all experts, or one each for matrices that
    have all seen the same tokens."""
    if len(counts) == 1 and n > 1:
        return np.repeat(counts, n)
    if n == 1 and (counts == counts[0]).all():
        return counts[:1]
    return counts


def _squares(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of squares of each column of x [n, n_columns]."""
    sums: NDArray[np.float32] = np.einsum("ij,ij->j", x, x)
    return sums.astype(np.float64)


def names_of(names: Collection[str], *, output: bool) -> Callable[[str], bool]:
    """Wants the weights `names` of layers, and with `output` the weights of the output
    projection."""
    chosen = frozenset(
        name for name in names if name.startswith("blk.") or (output and name == "output.weight")
    )
    return chosen.__contains__
