"""LoRA adapters (arXiv 2106.09685): low-rank sums beside the matrices of a model.

An adapted matrix W computes W x + B (s * (A x)). The A of all adapters are stacked, and so are the
B, so that each matrix costs two small products, however many adapters there are. `s` has a number
for every row of A and every token: the scale of the adapter for that token, or 0. Texts with
different adapters, or none, so share a batch and a plan.

Files are GGUF as llama.cpp's converter writes them: `general.type` "adapter", `adapter.type`
"lora", `adapter.lora.alpha`, and for each matrix NAME the tensors NAME.lora_a [rank, n_in] and
NAME.lora_b [n_out, rank].
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.dtype import find_dtype
from weft.errors import ArgumentError, ContextError, FormatError
from weft.frontends.gguf import GGUFFile, open_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.graph.tensor import Buffer, Tensor
from weft.llm.weights import Weights
from weft.quants import decode
from weft.records import dataclass

__all__ = ["Adapter", "AdapterFiles", "Adapters", "Chosen", "open_adapters"]

F32 = NDArray[np.float32]
AdapterFile = str | os.PathLike[str]
AdapterFiles = (
    AdapterFile
    | Mapping[str, AdapterFile | tuple[AdapterFile, float]]
    | Sequence[AdapterFile | tuple[AdapterFile, float]]
)
"""A file; a list of files, each alone or with its scale; or these by name."""
Chosen = str | Mapping[str, float] | Sequence[str]
"""The adapters of a text: a name, a list of names, or scales by name."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter whose matrices fit the model."""

    name: str
    path: Path
    scale: float
    """The scale where a text names no adapters."""
    alpha: float
    rank: int
    """The greatest rank of its matrices."""
    pairs: dict[str, tuple[F32, F32]]
    """By the name of the matrix, A [rank, n_in] and B [n_out, rank], with B times alpha / rank."""


class Adapters:
    """The adapters of a model, in the order in which they were given."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.all = tuple(adapters)
        self.n_rows = sum(adapter.rank for adapter in self.all)
        """Rows of A of all adapters, each with its greatest rank."""

    def leaves(self) -> dict[str, Tensor]:
        """The stacked matrices as leaves: NAME.lora_a [n_in, n_rows] and NAME.lora_b [n_rows,
        n_out] for each adapted matrix NAME. An adapter that leaves a matrix alone has zeros."""
        leaves: dict[str, Tensor] = {}
        for name in {name: None for adapter in self.all for name in adapter.pairs}:
            n_in, n_out = next(
                (a.shape[1], b.shape[0])
                for adapter in self.all
                for a, b in [adapter.pairs.get(name, (None, None))]
                if a is not None and b is not None
            )
            a_all = np.zeros((self.n_rows, n_in), np.float32)
            b_all = np.zeros((n_out, self.n_rows), np.float32)
            start = 0
            for adapter in self.all:
                if name in adapter.pairs:
                    a, b = adapter.pairs[name]
                    a_all[start : start + len(a)] = a
                    b_all[:, start : start + len(a)] = b
                start += adapter.rank
            leaves[f"{name}.lora_a"] = _leaf(f"{name}.lora_a", a_all)
            leaves[f"{name}.lora_b"] = _leaf(f"{name}.lora_b", b_all)
        return leaves

    def row(self, chosen: Chosen | None = None) -> F32:
        """The scales [n_rows] of a text with the adapters `chosen`; None: with all, at the scales
        that they were given with.

        Raises ContextError for an unknown name and for a scale that is no number."""
        scales = {a.name: a.scale for a in self.all} if chosen is None else self._scales(chosen)
        parts = [np.full(a.rank, scales.get(a.name, 0.0), np.float32) for a in self.all]
        return np.concatenate(parts)

    def _scales(self, chosen: Chosen) -> dict[str, float]:
        names = [chosen] if isinstance(chosen, str) else chosen
        scales = {n: names[n] if isinstance(names, Mapping) else 1.0 for n in names}
        known = [a.name for a in self.all]
        for name, scale in scales.items():
            if name not in known:
                raise ContextError(f"there is no adapter {name!r}; loaded are {', '.join(known)}")
            if not isinstance(scale, int | float) or not math.isfinite(scale):
                raise ContextError(f"the scale of adapter {name} is {scale!r}; it must be a number")
        return scales

    def fingerprint(self, rows: F32) -> str:
        """Tells adapters and the scales `rows` apart from others, in saved states."""
        digest = hashlib.sha256(rows.tobytes())
        for adapter in self.all:
            digest.update(adapter.name.encode())
            for name, pair in adapter.pairs.items():
                digest.update(name.encode())
                for part in pair:
                    digest.update(part.tobytes())
        return digest.hexdigest()[:16]


def _leaf(name: str, array: F32) -> Tensor:
    ne = (array.shape[1], array.shape[0], 1, 1)
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return Tensor(find_dtype("f32"), ne, name=name, buffer=Buffer("weights", data=data))


def open_adapters(files: AdapterFiles, architecture: str, weights: Weights) -> Adapters:
    """Reads adapters for a model of `architecture` with `weights`.

    Raises ArgumentError for something else than files, ContextError for two of one name or a scale
    that is no number, and FormatError for a file that is no adapter or does not fit the model."""
    adapters: list[Adapter] = []
    for name, path, scale in _listed(files):
        if any(name == other.name for other in adapters):
            raise ContextError(
                f"two adapters are called {name}; give them as a mapping of names to files"
            )
        with open_gguf(path) as file:
            try:
                adapters.append(_read(file, name, scale, architecture, weights))
            except FormatError as e:
                at = f"{file.path}: "
                raise e if str(e).startswith(at) else FormatError(f"{at}{e}") from None
    return Adapters(adapters)


def _listed(files: AdapterFiles) -> list[tuple[str, Path, float]]:
    given: Any = [files] if isinstance(files, str | os.PathLike) else files
    if not isinstance(given, Mapping | Sequence) or not given:
        raise ArgumentError(
            f"adapters is {files!r:.60}; it must be a file, a list of files or of (file, scale), "
            "or a mapping of names to these"
        )
    named = given.items() if isinstance(given, Mapping) else [(None, entry) for entry in given]
    listed = []
    for name, entry in named:
        path, scale = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"an adapter is {entry!r:.60}; it must be a file or (file, scale)")
        path = Path(path)
        if not isinstance(scale, int | float) or not math.isfinite(scale):
            raise ContextError(f"the scale of adapter {path} is {scale!r}; it must be a number")
        listed.append((path.stem if name is None else name, path, float(scale)))
    return listed


def _read(file: GGUFFile, name: str, scale: float, architecture: str, weights: Weights) -> Adapter:
    meta = file.metadata
    kind = meta["general.type"] if "general.type" in meta else "model"
    if kind != "adapter":
        raise FormatError(f"this is a {kind}, not an adapter; give it as the model")
    how = meta.get_str("adapter.type")
    if how != "lora":
        raise FormatError(f"the adapter is of type {how}; weft reads those of type lora")
    if file.architecture != architecture:
        raise FormatError(
            f"the adapter is for architecture {file.architecture}, the model is {architecture}; "
            "use the model that it was trained on"
        )
    alpha = meta.get_float("adapter.lora.alpha")
    if not math.isfinite(alpha):
        raise FormatError(f"adapter.lora.alpha is {alpha}; it must be a number")
    pairs: dict[str, tuple[F32, F32]] = {}
    for tensor in file.tensors:
        matrix, _, end = tensor.rpartition(".")
        if end not in ("lora_a", "lora_b"):
            raise FormatError(
                f"tensor {tensor} is neither a .lora_a nor a .lora_b, which weft cannot apply"
            )
        if matrix not in pairs:
            pairs[matrix] = _pair(file, matrix, alpha, weights)
    if not pairs:
        raise FormatError("the adapter has no tensors; convert it again")
    rank = max(len(a) for a, _ in pairs.values())
    return Adapter(name, file.path, scale, alpha, rank, pairs)


def _pair(file: GGUFFile, matrix: str, alpha: float, weights: Weights) -> tuple[F32, F32]:
    a, b = (file.tensors.get(f"{matrix}.{end}") for end in ("lora_a", "lora_b"))
    if a is None or b is None:
        there = "lora_a" if b is None else "lora_b"
        raise FormatError(f"{matrix} has a .{there} only; convert the adapter again")
    if matrix == "token_embd.weight":
        raise FormatError(f"it changes {matrix}, which weft cannot yet; merge it into the model")
    if matrix not in weights:
        raise FormatError(
            f"it changes {matrix}, which the model does not have; use the model that it was "
            "trained on"
        )
    base = weights[matrix].ne
    if base[2] != 1 or a.ne[2] != 1 or b.ne[2] != 1:
        raise FormatError(
            f"it changes {matrix}, the matrices of experts, which weft cannot yet; merge it into "
            "the model"
        )
    rank = a.ne[1]
    if a.ne[0] != base[0] or b.ne[1] != base[1] or b.ne[0] != rank or rank < 1:
        raise FormatError(
            f"{matrix} is {list(base[:2])} in the model, so that its lora_a must be [{base[0]}, "
            f"rank] and its lora_b [rank, {base[1]}]; they are {list(a.ne[:2])} and "
            f"{list(b.ne[:2])}"
        )
    # llama.cpp too takes an alpha of 0 as none
    return _values(a), _values(b) * np.float32(alpha / rank if alpha else 1.0)


def _values(info: TensorInfo) -> F32:
    values = decode(info.data.reshape(info.ne[1], -1), info.dtype, info.ne[0])
    if not np.isfinite(values).all():
        raise FormatError(f"tensor {info.name} has values that are not numbers; download it again")
    return values.astype(np.float32)
