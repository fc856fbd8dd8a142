"""Which file the bytes of an array are mapped from, for devices that have the file themselves."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """Bytes of a file."""

    path: str
    offset: int
    nbytes: int
    size: int
    """The bytes of the whole file."""


_PATHS: weakref.WeakKeyDictionary[mmap.mmap, str] = weakref.WeakKeyDictionary()


def remember(file: mmap.mmap, path: str | os.PathLike[str]) -> None:
    """Keeps the path of a mapped file for as long as it is mapped."""
    _PATHS[file] = os.fspath(path)


def source_of(array: NDArray[Any]) -> Source | None:
    """The file that the bytes of a contiguous array are mapped from; None where there is none."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    path = _PATHS.get(base) if isinstance(base, mmap.mmap) else None
    if path is None or not array.flags.c_contiguous:
        return None
    offset = array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    return Source(path, offset, int(array.nbytes), len(base))
