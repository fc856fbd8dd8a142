"""Writes a model with adapters in its weights: each adapted matrix W becomes W + B A, with B times
the adapter's scale, added up in f32 and rounded to the matrix's type."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.errors import FormatError
from weft.frontends.gguf.quantize import floats_of, quantize_file
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.gguf.shards import UNLIMITED, ShardLimits, write_shards
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource
from weft.frontends.hf.convert import OUTPUT_TYPES, convert_folder
from weft.frontends.hf.values import Values
from weft.frontends.models import open_model
from weft.llm.adapter_files import open_adapters
from weft.llm.adapters import EMBEDDINGS
from weft.llm.model import Model
from weft.records import dataclass

F32 = NDArray[np.float32]
OUTPUT = "output.weight"
_AT_ONCE = 1 << 22  # elements of B A computed at a time: 16 MiB


@dataclass(frozen=True, slots=True)
class MergedTensor:
    """A tensor that was written."""

    name: str
    dtype: DType
    nbytes: int
    changed: bool
    """True if an adapter changed it."""
    n_done: int
    """So many tensors are written, of `n_all`."""
    n_all: int


def merge_adapters(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    adapters: Sequence[tuple[str | os.PathLike[str], float]],
    to: str = "auto",
    *,
    name: str | None = None,
    limits: ShardLimits = UNLIMITED,
    progress: Callable[[MergedTensor], None] | None = None,
) -> int:
    """Writes the model `source`, a GGUF file or a Hugging Face folder, to `target` with the
    adapters (path, scale) in its weights. Returns the number of matrices that were changed.

    `auto` keeps the types of a file, and the 16-bit type of a folder; else `to` is a type of
    `convert_folder` for a folder, or a mix of `quantize_file`. `name`, for folders, replaces the
    model's name; `limits` cut what is written into files, except with a mix.
    One tensor is in memory at a time, besides the adapters; nothing is left of a file that could
    not be finished. `progress` is called after each tensor.

    Raises FormatError for files that do not fit each other or a type that cannot be written."""
    path = Path(target)
    if path.resolve() == Path(source).resolve():
        raise FormatError(f"{str(target)!r} is the file being read; write to another name")
    with open_model(source, to_write=True) as file:
        sums = _Sums(file, adapters)
        infos, n = sums.infos(file), 0

        def done(tensor: str, dtype: DType, nbytes: int) -> None:
            nonlocal n
            n += 1
            if progress is not None:
                changed = tensor in sums.pairs
                progress(MergedTensor(tensor, dtype, nbytes, changed, n, len(infos)))

        if to.lower() in OUTPUT_TYPES and Path(source).is_dir():
            convert_folder(
                source, target, to.lower(), name=name, limits=limits, change=sums.values,
                progress=lambda t: done(t.name, t.after, t.nbytes),
            )  # fmt: skip
        elif to.lower() == "auto":
            rows = [_row(info, sums, done) for info in infos]
            write_shards(target, file.copy_metadata(), rows, limits)
        else:
            merged = file.presented(file.metadata, [sums.in_f32(t) for t in infos])
            quantize_file(merged, target, to, progress=lambda t: done(t.name, t.after, t.new_bytes))
        return len(sums.pairs)


class _Sums:
    """What adapters add to the matrices of a model."""

    def __init__(
        self, file: GGUFFile, adapters: Sequence[tuple[str | os.PathLike[str], float]]
    ) -> None:
        model = Model(file)
        named = {f"{i} {path}": entry for i, entry in enumerate(adapters) for path in [entry[0]]}
        loaded = open_adapters(named, file, model.config, model.weights)
        self.pairs: dict[str, list[tuple[F32, F32]]] = {}
        """A and B by matrix, with B times the scale."""
        for adapter in loaded.all:
            for name, (a, b) in adapter.pairs.items():
                self.pairs.setdefault(name, []).append((a, b * np.float32(adapter.scale)))
        self._scales = {name: _scale_of(file, name) for name in self.pairs}
        self._splits = EMBEDDINGS in self.pairs and OUTPUT not in file.tensors and model.writes
        if self._splits and model.config.n_encoder:
            raise FormatError(
                f"{file.path}: an adapter changes {EMBEDDINGS}, which the output shares, and this "
                "architecture has no output of its own then; apply the adapter at run time"
            )

    def infos(self, file: GGUFFile) -> list[TensorInfo]:
        """The tensors of the file. Where the output shares embeddings that are changed, it becomes
        a tensor of its own, because adapters change the embeddings alone."""
        made = list(file.tensors.values())
        if self._splits:
            at = [t.name for t in made].index(EMBEDDINGS)
            made.insert(at + 1, replace(made[at], name=OUTPUT))
        return made

    def values(self, tensors: list[tuple[str, Values]]) -> list[tuple[str, Values]]:
        """The tensors of a folder, as `infos` has those of a file, with the sums."""
        made = []
        for name, values in tensors:
            added = values
            if name in self.pairs:
                added = values.bare().through(self._adding(name))
            made.append((name, added))
            if name == EMBEDDINGS and self._splits:
                made.append((OUTPUT, values))
        return made

    def in_f32(self, info: TensorInfo) -> TensorInfo:
        """A tensor with what is added to it, as one in f32; the others as they are."""
        if info.name not in self.pairs:
            return info

        def make() -> NDArray[np.uint8]:
            whole = np.empty((info.n_elements // info.ne[0], info.ne[0]), np.float32)
            at = 0
            for rows in self.rows(info):
                whole[at : at + len(rows)] = rows
                at += len(rows)
            return whole.reshape(-1).view(np.uint8)

        nbytes = info.n_elements * 4
        return replace(info, dtype=find_dtype("f32"), offset=-1, nbytes=nbytes, _make=make)

    def rows(self, info: TensorInfo) -> Iterator[F32]:
        """The rows of a matrix with what is added to them, some at a time."""
        start = 0
        for rows in floats_of(info):
            self._add(info.name, rows, start)
            start += len(rows)
            yield rows

    def _adding(self, name: str) -> Callable[[F32], F32]:
        def added(w: F32) -> F32:
            w = np.array(w)
            self._add(name, w.reshape(-1, w.shape[-1]), 0)
            return w

        return added

    def _add(self, name: str, rows: F32, start: int) -> None:
        """Adds to rows of a matrix, those of experts one behind the other, from `start` on."""
        for a, b in self.pairs[name]:
            if name == EMBEDDINGS:
                a, b = b.T, a  # A [n_vocab, rank] is by rows, B [n_embd, rank] by columns
            n_out, (rank, n_in) = b.shape[-2], a.shape[-2:]
            left, right = b.reshape(-1, n_out, rank), a.reshape(-1, rank, n_in)
            scales = self._scales[name](len(left))
            at = 0
            while at < len(rows):
                expert, i = divmod(start + at, n_out)
                n = min(len(rows) - at, n_out - i, max(1, _AT_ONCE // n_in))
                rows[at : at + n] += (left[expert, i : i + n] / scales[expert]) @ right[expert]
                at += n


def _scale_of(file: GGUFFile, name: str) -> Callable[[int], F32]:
    """The factors of a matrix's products, one for each expert: adapters are added behind them."""
    info = file.tensors.get(f"{name.removesuffix('.weight')}.scale")
    if info is None:
        return lambda n: np.ones(n, np.float32)
    factors = quants.decode(info.data.reshape(1, -1), info.dtype).astype(np.float32).reshape(-1)
    if not factors.all() or not np.isfinite(factors).all():
        raise FormatError(
            f"{file.path}: {info.name} has a 0 or what is no number, so that no adapter can be "
            f"merged into {name}; apply it at run time"
        )
    return lambda n: np.broadcast_to(factors, n) if len(factors) == 1 else factors


def _row(info: TensorInfo, sums: _Sums, done: Callable[[str, DType, int], None]) -> TensorSource:
    """A tensor to write, in its own type."""
    if info.name in sums.pairs and not quants.can_encode(info.dtype):
        raise FormatError(
            f"{info.path}: an adapter changes {info.name}, whose type {info.dtype.name} weft "
            "cannot write; choose another with --type, such as Q8_0"
        )

    def make() -> NDArray[np.uint8]:
        data = info.data
        if info.name in sums.pairs:
            data, at = np.empty(info.nbytes, np.uint8), 0
            for rows in sums.rows(info):
                part = quants.encode(rows, info.dtype).reshape(-1).view(np.uint8)
                data[at : at + len(part)] = part
                at += len(part)
        done(info.name, info.dtype, data.nbytes)
        return data

    return info.name, info.dtype, info.ne[: max(1, info.n_dims)], make
