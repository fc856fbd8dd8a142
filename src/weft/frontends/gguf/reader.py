"""Opens a GGUF file, or all files of a model that was cut into shards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType

from weft.frontends.gguf.filemap import HEAD_BYTES, Cursor, FileMap, describe_other, quoted
from weft.frontends.gguf.format import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_KEYS,
    MAX_TENSORS,
    VERSIONS,
    RawValue,
    ValueType,
    alignment_problem,
)
from weft.frontends.gguf.metadata import Metadata, read_metadata
from weft.frontends.gguf.tensors import TensorInfo, read_tensors

_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class GGUFFile:
    """An open GGUF file: its metadata and its tensors, mapped into memory.

    Use it as a context manager or call `close`. Arrays taken from it outlive it."""

    def __init__(self, parts: list[_Part]) -> None:
        """Made by `open_gguf`; `parts` are the shards in order."""
        self._parts = parts
        first = parts[0]
        self.path: Path = first.map.path
        """Path of the file, or of its first shard."""
        self.paths: tuple[Path, ...] = tuple(p.map.path for p in parts)
        """Paths of the file, or of all its shards in order."""
        self.version: int = first.version
        """The format version, 2 or 3."""
        self.alignment: int = first.alignment
        """Tensor offsets are multiples of this many bytes."""
        self.nbytes: int = sum(p.map.size for p in parts)
        """Number of bytes of the file, or of all its shards together."""
        self.metadata: Metadata = first.metadata
        """Keys and values (of the first shard: the others have none of their own)."""
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {name: tensor for part in parts for name, tensor in part.tensors.items()}
        )
        """Tensors by name, in file order."""
        self.notes: tuple[str, ...] = ()
        """Sentences about what does not come from the file itself."""
        # The metadata's typed getters.
        self.get_int = self.metadata.get_int
        self.get_float = self.metadata.get_float
        self.get_bool = self.metadata.get_bool
        self.get_str = self.metadata.get_str
        self.get_bytes = self.metadata.get_bytes
        self.get_array = self.metadata.get_array
        self.get_str_list = self.metadata.get_str_list
        self.get_bytes_list = self.metadata.get_bytes_list

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GGUFFile:
        """The same as `open_gguf(path)`."""
        return open_gguf(path)

    @property
    def architecture(self) -> str:
        """`general.architecture`; raises FormatError when the key is missing or not a string."""
        return self.metadata.get_str("general.architecture")

    @property
    def n_missing(self) -> int:
        """Bytes of tensors that lie behind the end of the file; 0 for a whole file."""
        ends = [
            max((t.extent[1] for t in part.tensors.values()), default=0) - part.map.size
            for part in self._parts
            if not part.map.whole
        ]
        return sum(max(n, 0) for n in ends)

    @property
    def kind(self) -> str:
        """`general.type` (`model`, `adapter`, ...); without it `model`, or `vocab` when the file
        has no tensors."""
        return self.metadata.get_str("general.type", "model" if self.tensors else "vocab")

    def copy_metadata(self) -> dict[str, RawValue]:
        """All metadata as stored, for `write_gguf`, without the `split.*` keys (what is written
        is one file)."""
        return {k: self.metadata.raw(k) for k in self.metadata if not k.startswith("split.")}

    def tensors_by_file(self) -> list[list[TensorInfo]]:
        """The tensors of each file that has any."""
        return [list(part.tensors.values()) for part in self._parts if part.tensors]

    def presented(self, metadata: Metadata, tensors: Iterable[TensorInfo]) -> GGUFFile:
        """The same file with other metadata and tensors; see `present_as_gguf`."""
        file = present_as_gguf(self.path, metadata, tensors, [part.map for part in self._parts])
        file.notes = self.notes
        return file

    def close(self) -> None:
        """Releases the file. Reading from it then raises FormatError; arrays stay valid."""
        for part in self._parts:
            part.map.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<GGUFFile {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"
        )


def present_as_gguf(
    path: Path, metadata: Metadata, tensors: Iterable[TensorInfo], files: Sequence[FileMap]
) -> GGUFFile:
    """A model that is stored in another way, with the metadata and tensors that its GGUF file would
    have. `path` is its name; `files` are closed with it."""
    parts = [_Part(file) for file in files]
    for part in parts:
        part.metadata = metadata
    parts[0].version = max(VERSIONS)
    parts[0].tensors = {tensor.name: tensor for tensor in tensors}
    file = GGUFFile(parts)
    file.path = path
    return file


def open_gguf(path: str | os.PathLike[str], *, whole: bool = True) -> GGUFFile:
    """Open the GGUF file at `path`, version 2 or 3, little endian.

    Any shard of a model that was cut into several files opens all of them; they must lie in one
    folder. Everything that later reads rely on is checked here; tensor data is not read. With
    `whole` False the file may end behind its metadata and list of tensors, which is enough for a
    plan: bytes of tensors that are not there are read as zeros.

    Raises FormatError, naming the file, the key or tensor, and what would fix it."""
    part = _Part(FileMap(path, whole=whole))
    parts = [part]
    try:
        part.read()
        count = part.metadata.get_int("split.count", 1)
        if count > 1:
            parts = _open_shards(part, count, parts)
        return GGUFFile(parts)
    except BaseException:
        for p in parts:
            p.map.close()
        raise


class _Part:
    """One file, read and checked on its own."""

    def __init__(self, map_: FileMap) -> None:
        self.map = map_
        self.version = 0
        self.alignment = DEFAULT_ALIGNMENT
        self.metadata: Metadata
        self.tensors: dict[str, TensorInfo] = {}

    def read(self) -> None:
        head = self.map.buffer[:HEAD_BYTES]
        if not head.startswith(MAGIC):
            raise self.map.error(f"not a GGUF file: {describe_other(head)}")
        cursor = Cursor(self.map, len(MAGIC))
        self.version = self._read_version(cursor)
        n_tensors = self._read_count(cursor, "tensors", MAX_TENSORS)
        n_keys = self._read_count(cursor, "metadata keys", MAX_KEYS)
        self.metadata = read_metadata(cursor, n_keys)
        self.alignment = self._find_alignment()
        self.tensors = read_tensors(cursor, n_tensors, self.alignment)

    def _read_version(self, cursor: Cursor) -> int:
        version = cursor.u32("the version")
        if version in VERSIONS:
            return version
        if version & 0xFFFF == 0 and version:
            raise self.map.error(
                "this is a big-endian GGUF file, and weft reads little-endian ones; convert it "
                "with gguf-convert-endian"
            )
        remedy = "convert the model again" if version < min(VERSIONS) else "update weft"
        raise self.map.error(f"GGUF version {version}; weft reads versions 2 and 3: {remedy}")

    def _read_count(self, cursor: Cursor, what: str, most: int) -> int:
        at = cursor.at
        n = cursor.u64(f"the number of {what}")
        if n > most:
            raise self.map.error(
                f"the number of {what} at byte {at} is {n}, and {most} is the most that weft "
                "takes; the file is damaged: download or copy it again"
            )
        return n

    def _find_alignment(self) -> int:
        key = "general.alignment"
        if key in self.metadata and self.metadata.type_of(key) is not ValueType.U32:
            raise self.map.error(
                f"{key} has the type {self.metadata.label_of(key)}, and must be u32; convert the "
                "model again"
            )
        alignment = self.metadata.get_int(key, DEFAULT_ALIGNMENT)
        problem = alignment_problem(alignment)
        if problem is not None:
            raise self.map.error(f"{problem}; convert the model again")
        return alignment


def _open_shards(first: _Part, count: int, opened: list[_Part]) -> list[_Part]:
    """All shards in order; those opened here are added to `opened` as well."""
    index = first.metadata.get_int("split.no")
    match = _SHARD_NAME.fullmatch(first.map.path.name)
    if match is None or (int(match[2]), int(match[3])) != (index + 1, count):
        raise first.map.error(
            f"this is shard {index + 1} of {count}, and the others cannot be found from its name; "
            f"rename it to end in -{index + 1:05d}-of-{count:05d}.gguf"
        )
    parts: list[_Part] = []
    for i in range(count):
        if i == index:
            parts.append(first)
            continue
        path = first.map.path.with_name(f"{match[1]}-{i + 1:05d}-of-{count:05d}.gguf")
        if not path.exists():
            raise first.map.error(
                f"shard {i + 1} of {count} is missing: {path}; put all shards into one folder"
            )
        part = _Part(FileMap(path, whole=first.map.whole))
        opened.append(part)
        part.read()
        numbers = part.metadata.get_int("split.no", -1), part.metadata.get_int("split.count", -1)
        if numbers != (i, count):
            raise part.map.error(
                f"its metadata says split.no={numbers[0]}, split.count={numbers[1]}, but its name "
                f"and {first.map.path.name} say {i} and {count}; the files are not of one model: "
                "download all shards again"
            )
        parts.append(part)
    _check_shard_tensors(parts)
    return parts


def _check_shard_tensors(parts: list[_Part]) -> None:
    owner: dict[str, _Part] = {}
    for part in parts:
        for name in part.tensors:
            if name in owner:
                raise part.map.error(
                    f"tensor {quoted(name)} is also in {owner[name].map.path.name}; the files are "
                    "not of one model: download all shards again"
                )
            owner[name] = part
    total = parts[0].metadata.get_int("split.tensors.count", len(owner))
    if total != len(owner):
        raise parts[0].map.error(
            f"split.tensors.count is {total}, but the {len(parts)} shards hold {len(owner)} "
            "tensors; the files are not of one model: download all shards again"
        )
