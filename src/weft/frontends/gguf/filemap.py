"""One read-only mapped file, and a cursor that never reads past its end."""

from __future__ import annotations

import mmap
import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError, MissingFileError
from weft.frontends.gguf.format import MAX_NAME, MAX_WORK
from weft.mapped_files import remember

__all__ = ["BytesMap", "Cursor", "FileMap", "quoted"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def quoted(name: str) -> str:
    """`name` for a message: quoted, escaped, and cut, since a damaged length makes long names."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}..."


class FileMap:
    """A file mapped into memory; pages are read when they are touched.

    Raises FormatError when `path` is missing, not a plain file, unreadable or empty. The file must
    not shrink while it is mapped: the system kills a process that reads a page that is gone."""

    whole = True
    """False if the file is only the beginning of a file, whose tensors may lie behind its end."""

    def __init__(self, path: str | os.PathLike[str], *, whole: bool = True) -> None:
        self.path = Path(path)
        self.whole = whole
        try:
            # Asked before opening: opening a pipe would wait for a writer.
            mode = os.stat(self.path).st_mode
            if stat.S_ISDIR(mode):
                raise FormatError(f"{self.path} is a directory; give the path of a .gguf file")
            if not stat.S_ISREG(mode):
                raise FormatError(f"{self.path} is not a plain file; copy the model to one")
            with open(self.path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size == 0:
                    raise FormatError(f"{self.path} is empty; download or copy it again")
                self._mmap: mmap.mmap | None = mmap.mmap(
                    file.fileno(), self.size, access=mmap.ACCESS_READ
                )
            remember(self._mmap, self.path)
        except FileNotFoundError:
            raise MissingFileError(f"no such file: {self.path}") from None
        except (OSError, ValueError) as e:  # ValueError: a NUL in the path, a file that shrank
            reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            raise FormatError(f"cannot read {str(self.path)!r}: {reason}") from None

    @property
    def buffer(self) -> mmap.mmap:
        """The map itself; raises FormatError after `close`."""
        if self._mmap is None:
            raise FormatError(f"{self.path} is closed; open it again to read from it")
        return self._mmap

    def view(self, offset: int, n: int) -> NDArray[np.uint8]:
        """Bytes [offset, offset + n) as a read-only array that shares the map. If the file is not
        whole, bytes behind its end are zeros without memory."""
        if not self.whole and offset + n > self.size:
            return np.broadcast_to(np.zeros(1, np.uint8), (n,))
        return np.frombuffer(self.buffer, np.uint8, n, offset)

    def close(self) -> None:
        """Releases the map. Arrays that share it stay valid and keep it alive."""
        if self._mmap is not None:
            try:
                self._mmap.close()
            except BufferError:  # arrays still share the map, which ends with the last of them
                pass
            self._mmap = None

    def error(self, problem: str) -> FormatError:
        """A FormatError that begins with the file's name."""
        return FormatError(f"{self.path}: {problem}")


class BytesMap(FileMap):
    """Bytes in memory in the place of a file; errors name `path`."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path = path
        self.size = len(data)
        self._bytes = data
        self._mmap = None

    @property
    def buffer(self) -> Any:
        """The bytes."""
        return self._bytes


class Cursor:
    """A position in a FileMap; every read is checked against the end of the file."""

    __slots__ = ("at", "map", "work")

    def __init__(self, map_: FileMap, at: int) -> None:
        self.map = map_
        self.at = at
        self.work = MAX_WORK

    def u32(self, what: str) -> int:
        """The next 4 bytes; the error names `what` when they are not there."""
        return int(_U32.unpack_from(self.map.buffer, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        """The next 8 bytes; the error names `what` when they are not there."""
        return int(_U64.unpack_from(self.map.buffer, self.skip(8, what))[0])

    def skip(self, n: int, what: str) -> int:
        """Step over `n` bytes that must be in the file; returns where they begin."""
        start = self.at
        if n > self.map.size - start:
            raise self.map.error(
                f"{what} at byte {start} needs {n} bytes, but the file ends at byte "
                f"{self.map.size}; the file is cut short or damaged: download or copy it again"
            )
        self.at = start + n
        return start

    def spend(self, work: int, what: str) -> None:
        """Count `work` towards MAX_WORK, before doing it."""
        self.work -= work
        if self.work < 0:
            raise self.map.error(
                f"{what} at byte {self.at} is too long: weft reads up to {MAX_WORK} strings, bools "
                "and bytes of names in a file; it is damaged: download or copy it again"
            )

    def name(self, what: str) -> str:
        """The next string, as the name of a key or tensor: UTF-8 of 1 to MAX_NAME bytes."""
        start = self.at
        n = self.u64(f"the length of {what}")
        if not 1 <= n <= MAX_NAME:
            raise self.map.error(
                f"{what} at byte {start} has a length of {n}, and a name has 1 to {MAX_NAME} "
                "bytes; the file is damaged: download or copy it again"
            )
        at = self.skip(n, what)
        self.spend(n, what)
        try:
            return self.map.buffer[at : at + n].decode()
        except UnicodeDecodeError:
            raise self.map.error(
                f"{what} at byte {start} is not UTF-8: {self.map.buffer[at : at + min(n, 64)]!r}; "
                "the file is damaged, or its converter wrote another encoding: convert it again"
            ) from None
