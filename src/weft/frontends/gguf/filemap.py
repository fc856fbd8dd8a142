"""One read-only mapped file, and a cursor that never reads past its end."""

from __future__ import annotations

import mmap
import os
import stat
import string
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError, MissingFileError
from weft.frontends.gguf.format import MAX_NAME, MAX_WORK
from weft.mapped_files import remember
from weft.options import path_text

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def quoted(name: str) -> str:
    """`name` for a message: quoted, escaped, and cut, since a damaged length makes long names."""
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}..."


class FileMap:
    """A file mapped into memory; pages are read when they are touched.

    Raises ArgumentError for other types than paths, and FormatError when `path` is missing, not a
    plain file, unreadable or empty. The file must not shrink while it is mapped: the system kills a
    process that reads a page that is gone."""

    whole = True
    """False if the file is only the beginning of a file, whose tensors may lie behind its end."""

    def __init__(self, path: str | os.PathLike[str], *, whole: bool = True) -> None:
        self.path = Path(path_text(path))
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
            if self.path.is_symlink():
                raise MissingFileError(
                    f"{self.path} is a link to {os.readlink(self.path)}, which is not there; "
                    "download the file again, or give the path of another"
                ) from None
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


HEAD_BYTES = 512
"""Number of bytes at a file's beginning that `describe_other` reads."""

_CONVERT = "convert the model with llama.cpp's convert_hf_to_gguf.py"
_OLD = "convert the original model again with llama.cpp's convert_hf_to_gguf.py"
_UNPACK = "unpack it first"
_AGAIN = "download the file itself"

_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    # offset, bytes, what it is, what to do
    (0, b"FUGG", "a GGUF file with swapped bytes", "convert it with gguf-convert-endian"),
    (0, b"lmgg", "an unversioned ggml model (before GGUF)", _OLD),
    (0, b"fmgg", "a ggmf model (before GGUF)", _OLD),
    (0, b"tjgg", "a ggjt model (before GGUF)", _OLD),
    (0, b"algg", "a ggla adapter (before GGUF)", "convert it with convert_lora_to_gguf.py"),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch .pt/.bin checkpoint", _CONVERT),
    (0, b"version https://git-lfs", "a git-lfs pointer, not the file itself", "run `git lfs pull`"),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n", "an HDF5 file, such as a Keras model", _CONVERT),
    (0, b"\x93NUMPY", "a NumPy array", "write it into a GGUF as a tensor"),
    (0, b"\x7fELF", "a program or shared library", "give the path of a model"),
    (4, b"TFL3", "a TensorFlow Lite model", "start from the original model; " + _CONVERT),
    (4, b"ET12", "an ExecuTorch program (.pte)", "run it with ExecuTorch"),
)

_TEXT = frozenset(string.printable.encode())


def describe_other(head: bytes) -> str:
    """The apparent format of a file that begins with `head` (up to HEAD_BYTES), and a remedy.

    The head must not begin with the GGUF magic. The result completes "not a GGUF file: "."""
    for offset, magic, what, remedy in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return f"it looks like {what}; {remedy}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"it looks like a web page or a server's reply; {_AGAIN}"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return f"it looks like a safetensors file; {_CONVERT}"
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return f"it looks like a Python pickle, such as an old PyTorch checkpoint; {_CONVERT}"
    if head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x1a", b"\x3a"):
        # protobuf: field 1 (ir_version, a varint), then a length-delimited field of ModelProto
        return f"it looks like an ONNX model; start from the original model and {_CONVERT}"
    if not any(head):
        return "it begins with zeros, as an unfinished download does; download it again"
    if all(c in _TEXT for c in head):
        return f"it looks like text ({head[:24].decode('ascii')!r}...); {_AGAIN}"
    return f"it begins with {head[:4]!r} instead of b'GGUF'; {_CONVERT}"
