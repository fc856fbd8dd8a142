"""Files beside a model's, each with a name and a scale, of which every text chooses some: LoRA
adapters and control vectors."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.dtype import find_dtype
from weft.errors import ArgumentError, ContextError
from weft.graph.tensor import Buffer, Tensor

F32 = NDArray[np.float32]
ScaledFile = str | os.PathLike[str]
ScaledFiles = (
    ScaledFile
    | Mapping[str, ScaledFile | tuple[ScaledFile, float]]
    | Sequence[ScaledFile | tuple[ScaledFile, float]]
)
"""A file or a folder; a list of these, each alone or with its scale; or these by name."""
Chosen = str | Mapping[str, float] | Sequence[str]
"""The files of a text: a name, a list of names, or scales by name."""
_FILE_ENDS = (".gguf", ".safetensors")


class _Loaded(Protocol):
    """What was read of a file."""

    @property
    def name(self) -> str: ...
    @property
    def scale(self) -> float: ...
    @property
    def n_rows(self) -> int: ...
    def arrays(self) -> Iterator[tuple[str, F32]]:
        """What tells it from others."""


T = TypeVar("T", bound=_Loaded)


class ScaledSet(Generic[T]):
    """What the files of one kind hold, in the order in which they were given."""

    WHAT: ClassVar[str]
    """The kind, for errors."""
    INPUT: ClassVar[str]
    """The graph's input f32 [n_tokens, n_rows] with the scales of every token."""

    def __init__(self, loaded: Sequence[T]) -> None:
        self.all = tuple(loaded)
        self.n_rows = sum(one.n_rows for one in self.all)
        """The number of scales of a token."""

    def row(self, chosen: Chosen | None = None) -> F32:
        """The scales [n_rows] of a text with the files `chosen`; None: with all, at the scales that
        they were given with.

        Raises ContextError for an unknown name and for a scale that is no number."""
        scales = {one.name: one.scale for one in self.all} if chosen is None else self._own(chosen)
        parts = [np.full(one.n_rows, scales.get(one.name, 0.0), np.float32) for one in self.all]
        return np.concatenate(parts)

    def _own(self, chosen: Chosen) -> dict[str, float]:
        names = [chosen] if isinstance(chosen, str) else chosen
        scales = {n: names[n] if isinstance(names, Mapping) else 1.0 for n in names}
        known = [one.name for one in self.all]
        for name, scale in scales.items():
            if name not in known:
                loaded = ", ".join(known)
                raise ContextError(f"there is no {self.WHAT} {name!r}; loaded are {loaded}")
            if not isinstance(scale, int | float) or not math.isfinite(scale):
                raise ContextError(
                    f"the scale of {self.WHAT} {name} is {scale!r}; it must be a number"
                )
        return scales

    def fingerprint(self, rows: F32) -> str:
        """Tells these and the scales `rows` apart from others, in saved states."""
        digest = hashlib.sha256(rows.tobytes())
        for one in self.all:
            digest.update(one.name.encode())
            for name, array in one.arrays():
                digest.update(name.encode())
                digest.update(array.tobytes())
        return digest.hexdigest()[:16]


def listed_files(files: ScaledFiles, argument: str, what: str) -> list[tuple[str, Path, float]]:
    """Name, path and scale of each of `files`, which were given as the argument of that name.

    Raises ArgumentError for something else than files, and ContextError for two of one name or a
    scale that is no number."""
    given: Any = [files] if isinstance(files, str | os.PathLike) else files
    if not isinstance(given, Mapping | Sequence) or not given:
        raise ArgumentError(
            f"{argument} is {files!r:.60}; it must be a file, a list of files or of (file, scale), "
            "or a mapping of names to these"
        )
    named = given.items() if isinstance(given, Mapping) else [(None, entry) for entry in given]
    listed: dict[str, tuple[str, Path, float]] = {}
    for name, entry in named:
        path, scale = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        if not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"of {argument}, one is {entry!r:.60}; it must be a file or "
                                "(file, scale)")  # fmt: skip
        path = Path(path)
        if not isinstance(scale, int | float) or not math.isfinite(scale):
            raise ContextError(f"the scale of {what} {path} is {scale!r}; it must be a number")
        own = path.stem if path.suffix in _FILE_ENDS else path.resolve().name
        name = own if name is None else name
        if name in listed:
            raise ContextError(
                f"two {what}s are called {name}; give them as a mapping of names to files"
            )
        listed[name] = (name, path, float(scale))
    return list(listed.values())


def made_leaf(name: str, array: F32) -> Tensor:
    """An array of at most three dimensions as a leaf of a graph, as weights are."""
    ne = (*array.shape[::-1], 1)[:3]
    data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return Tensor(find_dtype("f32"), (*ne, 1), name=name, buffer=Buffer("weights", data=data))
