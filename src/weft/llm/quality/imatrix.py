"""Measures an importance matrix: runs a text through a model and writes what its weights read.

    run = ImatrixRun(model, tokens, "model.imatrix.gguf", text_name="text.txt")
    for progress in run:
        print(progress.n_chunks, progress.ppl)

By llama-imatrix's method and in its file formats (`frontends/gguf/imatrix_file.py`). The file is
written again and again while the run goes on; such an unfinished one has keys `weft.imatrix.*`, by
which the next run with the same model, text and options goes on instead of starting anew, with the
same sums at the end as if nothing had happened.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError
from weft.frontends.gguf.imatrix_file import Imatrix, ImatrixEntry, read_imatrix, write_imatrix
from weft.frontends.gguf.reader import open_gguf
from weft.llm.compute.context import Context
from weft.llm.compute.perplexity import Computed, Perplexity, Totals, chunk_rows, row_nll, together
from weft.llm.model import Model
from weft.llm.quality.input_squares import InputSquares, Sums, names_of
from weft.records import dataclass

_KEY = "weft.imatrix."


@dataclass(frozen=True, slots=True)
class ImatrixOptions:
    """Options for measuring and writing an importance matrix."""

    n_ctx: int = 512
    """Number of tokens in a chunk."""
    n_chunks: int | None = None
    """Maximum number of chunks; None: all."""
    from_chunk: int = 0
    """Number of chunks left out at the beginning of the text."""
    output: bool = False
    """True to measure `output.weight`, too."""
    ppl: bool = True
    """True to score the text as well; without it, logits are not computed."""
    legacy: bool = False
    """True to write the older format, which a later run cannot go on from."""
    output_every: int = 10
    """Number of chunks after which the file is written; 0: at the end alone."""
    save_every: int = 0
    """Number of chunks after which a copy, FILE.at_N, is kept; 0: none."""


@dataclass(frozen=True, slots=True)
class ImatrixProgress:
    """The progress of a measurement."""

    n_chunks: int
    """Number of chunks of the text that are measured."""
    n_all: int
    ppl: Perplexity | None


def merged(files: Sequence[Imatrix], chunk_size: int) -> dict[str, Sums]:
    """The sums of several files together; what the older format has as means is multiplied by its
    calls and `chunk_size` tokens each, as llama-imatrix does.

    Raises FormatError if they have different sizes for one tensor."""
    squares = InputSquares(lambda _: True)
    for file in files:
        for name, entry in file.entries.items():
            scale = chunk_size if file.is_legacy else 1
            try:
                squares.add(name, entry.sums.astype(np.float64) * scale, entry.counts * scale)
            except ContextError as error:
                raise FormatError(f"the files cannot be merged: {error}") from None
    return squares.sums


def as_imatrix(sums: dict[str, Sums], datasets: Sequence[str], chunk_size: int) -> Imatrix:
    """The sums in the form in which they are written. Raises FormatError for such that are too
    large for f32, as a file has them."""
    entries = {}
    for name, s in sorted(sums.items()):
        if s.squares.max() > np.finfo(np.float32).max:
            raise FormatError(
                f"a sum of {name} is {s.squares.max():.3g}, too large for f32; measure the model "
                "on a shorter text"
            )
        rows = s.squares.reshape(len(s.counts), -1).astype(np.float32)
        entries[name] = ImatrixEntry(rows, s.counts)
    most = max((int(s.counts.max()) for s in sums.values()), default=0)
    return Imatrix(entries, tuple(datasets), most // chunk_size, chunk_size, False, True)


class ImatrixRun:
    """A run over a text, which an iteration carries out, chunk after chunk."""

    def __init__(
        self,
        model: Model,
        tokens: Sequence[int],
        path: str | os.PathLike[str],
        options: ImatrixOptions | None = None,
        *,
        bos: int | None = None,
        text_name: str = "",
        in_files: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """`tokens` are the ids of the text; `bos` replaces the first of each chunk. What `in_files`
        have is added to what is measured.

        Raises ContextError for a text that is too short and options out of range, and FormatError
        for `in_files` that cannot be read or are of another model."""
        self.options = options = ImatrixOptions() if options is None else options
        self.path, self.model = Path(path), model
        self._bos = bos
        self._chunks = _chunks(tokens, options)
        self._squares = InputSquares(names_of(model.file.tensors, output=options.output))
        self._datasets: list[str] = []
        self._totals = Totals()
        self._mark = self._print_of(in_files)
        self.n_done = self._resumed()
        """Number of chunks that an earlier run has measured."""
        if not self.n_done:
            files = [read_imatrix(file) for file in in_files]
            self._squares.sums = merged(files, options.n_ctx)
            self._datasets = [name for file in files for name in file.datasets]
            if text_name:
                self._datasets.append(text_name)

    @property
    def n_all(self) -> int:
        """The number of chunks."""
        return len(self._chunks)

    def measure(self, context: Context) -> Iterator[ImatrixProgress]:
        """Measures all chunks with `context` (made with `states`, for sequences with `n_ctx` cells
        each); yields after every chunk, and writes the file as the options say and at the end.

        The context's `eval_callback` is not called meanwhile, and is there again afterwards."""
        n_ctx = self.options.n_ctx
        if not 4 <= n_ctx <= context.n_ctx:
            raise ContextError(
                f"chunks of {n_ctx} tokens, but they must be 4 to `n_ctx` {context.n_ctx}"
            )
        callback = context.eval_callback
        context.set_eval_callback(self._squares)
        try:
            left = self._chunks[self.n_done :]
            for part in together(context, n_ctx, len(left)):
                before = self.n_done
                scores = self._compute(context, left[part])
                ppls = [None if nll is None else self._totals.add(nll) for nll in scores]
                self.n_done += len(scores)
                self._write_between(before)
                for i, ppl in enumerate(ppls, before + 1):
                    yield ImatrixProgress(i, self.n_all, ppl)
        finally:
            context.set_eval_callback(callback)
        self._write(self.path)

    def _compute(
        self, context: Context, chunks: NDArray[np.int64]
    ) -> Sequence[NDArray[np.float64] | None]:
        """Runs `chunks` together; returns -log p of the scored tokens of each, or None for each."""
        options = self.options
        ppl = options.ppl and not context.embeddings
        computed: Computed = "scored" if ppl else "none"
        if options.output or context.embeddings:
            computed = "all"
        scores = []
        for rows, targets in chunk_rows(context, chunks, chunks.shape[1] // 2, self._bos, computed):
            if ppl:
                scores.append(row_nll(rows, targets))
        if not ppl:
            return [None] * len(chunks)
        return list(np.concatenate(scores).reshape(len(chunks), -1))

    def _write_between(self, before: int) -> None:
        every, copies = self.options.output_every, self.options.save_every
        if self.n_done < self.n_all and every and self.n_done // every > before // every:
            self._write(self.path, self._state())
            self._squares.round()
        if copies and self.n_done // copies > before // copies:
            self._write(self.path.with_name(f"{self.path.name}.at_{self.n_done}"))

    def _write(self, path: Path, keys: dict[str, object] | None = None) -> None:
        matrix = as_imatrix(self._squares.sums, self._datasets, self.options.n_ctx)
        if not matrix.entries:
            raise ContextError(
                "nothing was measured: the model has no products with weights called blk.*"
            )
        write_imatrix(path, matrix, legacy=self.options.legacy, keys=keys)

    def _state(self) -> dict[str, object]:
        totals = self._totals
        return {
            f"{_KEY}run": self._mark,
            f"{_KEY}chunks_done": np.uint32(self.n_done),
            f"{_KEY}nll": np.array([totals.total, totals.squares]),
            f"{_KEY}scored": np.array([totals.count, totals.n_chunks], np.uint64),
        }

    def _print_of(self, in_files: Sequence[str | os.PathLike[str]]) -> str:
        """Tells this run from runs with other models, texts and options."""
        file, o = self.model.file, self.options
        tensors = sorted((t.name, t.dtype.name, tuple(t.ne)) for t in file.tensors.values())
        what: list[Any] = [file.path.name, tensors, self._bos, o.n_ctx, o.output, o.ppl,
                           [os.fspath(path) for path in in_files]]  # fmt: skip
        return hashlib.sha256(repr(what).encode() + self._chunks.tobytes()).hexdigest()

    def _resumed(self) -> int:
        """The number of chunks done by an earlier run, whose sums are taken over; 0: none."""
        if self.options.legacy or not self.path.is_file():
            return 0
        try:
            with open_gguf(self.path) as file:
                if file.get_str(f"{_KEY}run", "") != self._mark:
                    return 0
                n = file.get_int(f"{_KEY}chunks_done", 0)
                nll, scored = (np.asarray(file.metadata[f"{_KEY}{k}"]) for k in ("nll", "scored"))
            known = read_imatrix(self.path)
        except (FormatError, KeyError):
            return 0  # it is written anew
        if not 0 < n < self.n_all or nll.shape != (2,) or scored.shape != (2,):
            return 0
        self._totals.total, self._totals.squares = map(float, nll)
        self._totals.count, self._totals.n_chunks = map(int, scored)
        for name, entry in known.entries.items():
            self._squares.add(name, entry.sums.astype(np.float64), entry.counts)
        self._datasets = list(known.datasets)
        return n


def _chunks(tokens: Sequence[int], options: ImatrixOptions) -> NDArray[np.int64]:
    """The whole chunks [n_chunks, n_ctx] that are measured."""
    n_ctx, start = options.n_ctx, options.from_chunk
    if n_ctx < 4:
        raise ContextError(f"is {n_ctx}; chunks must have 4 tokens or more", argument="n_ctx")
    for name in ("from_chunk", "output_every", "save_every"):
        if getattr(options, name) < 0:
            raise ContextError(f"is {getattr(options, name)}; it must be 0 or more", argument=name)
    if options.n_chunks is not None and options.n_chunks < 1:
        raise ContextError(f"is {options.n_chunks}; it must be 1 or more", argument="n_chunks")
    n = len(tokens) // n_ctx - start
    if n < 2:
        left_out = f", of which `from_chunk` leaves out {start * n_ctx}" if start else ""
        raise ContextError(
            f"the text has {len(tokens)} tokens{left_out}, but {2 * n_ctx} are needed, two chunks "
            f"of {n_ctx}; give a longer text or make `n_ctx` smaller"
        )
    n = n if options.n_chunks is None else min(n, options.n_chunks)
    return np.array(tokens[start * n_ctx : (start + n) * n_ctx], np.int64).reshape(n, n_ctx)


# Figures of an importance matrix: how its values are distributed in each tensor.
#
# The values are mean squares of inputs; experts that saw no token are left out. By the definitions
# of `llama-imatrix --show-statistics`, in f64.

_NO_INPUT = 1e-5
"""Mean square up to which a column is inactive."""


@dataclass(frozen=True, slots=True)
class TensorStatistics:
    """Figures of one tensor of weights."""

    name: str
    layer: int | None
    n: int
    """Number of values: columns, times experts that saw tokens."""
    total: float
    minimum: float
    maximum: float
    mean: float
    deviation: float
    active: float
    """Share of values above 1e-5."""
    entropy: float
    """Entropy of the values as shares of their total, in bits."""
    entropy_share: float
    """`entropy` as a share of its maximum."""
    far: float
    """Share of values that lie more than one deviation above the mean."""
    cosine: float
    """Cosine between the sums of this layer and of the layer before; 0 if there is none before."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """Means of a layer's tensors, weighted by their values."""

    layer: int
    total: float
    far: float
    cosine: float


def imatrix_statistics(imatrix: Imatrix) -> list[TensorStatistics]:
    """The figures of each tensor, by kind of tensor, those with the largest totals first.

    Raises FormatError if no tensor has values, or some are not finite."""
    rows = []
    for name, entry in imatrix.entries.items():
        values = _means(entry)
        if values.size:
            rows.append(_figures(name, values, _cosine(imatrix, name, entry)))
    if not rows:
        raise FormatError("the importance matrix has no values: all its counts are 0")
    return sorted(rows, key=lambda row: (_kind(row.name), -row.total))


def layer_statistics(rows: Iterable[TensorStatistics]) -> list[LayerStatistics]:
    """The means of each layer, in order."""
    layers: dict[int, list[TensorStatistics]] = {}
    for row in rows:
        if row.layer is not None:
            layers.setdefault(row.layer, []).append(row)
    found = []
    for layer, own in sorted(layers.items()):
        n = sum(row.n for row in own)
        total, far, cosine = (
            sum(row.n * getattr(row, field) for row in own) / n
            for field in ("total", "far", "cosine")
        )
        found.append(LayerStatistics(layer, total, far, cosine))
    return found


def _means(entry: ImatrixEntry) -> NDArray[np.float64]:
    seen = entry.counts > 0
    sums = entry.sums.astype(np.float64)[seen]
    means = (sums / entry.counts[seen][:, None]).ravel()
    if not np.isfinite(means).all():
        raise FormatError("the importance matrix has values that are not finite; measure it again")
    return means


def _figures(name: str, values: NDArray[np.float64], cosine: float) -> TensorStatistics:
    n, total = values.size, float(values.sum())
    deviation = float(values.std())
    entropy = 0.0
    if total > 0:
        shares = values[values > 0] / total
        entropy = -float((shares * np.log2(shares)).sum())
    far = float(((values - values.mean()) / deviation > 1).mean()) if deviation > 0 else 0.0
    layer = re.search(r"blk\.(\d+)\.", name)
    return TensorStatistics(
        name=name,
        layer=int(layer[1]) if layer else None,
        n=n,
        total=total,
        minimum=float(values.min()),
        maximum=float(values.max()),
        mean=total / n,
        deviation=deviation,
        active=float((np.abs(values) > _NO_INPUT).mean()),
        entropy=entropy,
        entropy_share=entropy / math.log2(n) if n > 1 else 0.0,
        far=far,
        cosine=cosine,
    )


def _cosine(imatrix: Imatrix, name: str, entry: ImatrixEntry) -> float:
    layer = re.search(r"blk\.(\d+)\.", name)
    if not layer:
        return 0.0
    before = f"{name[: layer.start(1)]}{int(layer[1]) - 1}{name[layer.end(1) :]}"
    if before not in imatrix.entries:
        return 0.0
    one = entry.sums.astype(np.float64).ravel()
    other = imatrix.entries[before].sums.astype(np.float64).ravel()
    size = float(np.sqrt((one @ one) * (other @ other))) if one.size == other.size else 0.0
    return float(one @ other) / size if size else 0.0


def _kind(name: str) -> str:
    """The part of a name before `.weight`, e.g. attn_q."""
    parts = name.split(".")
    return parts[parts.index("weight") - 1] if "weight" in parts[1:] else name
