"""The files of a model on machines that may lack them.

Who has a file describes it by its size and by the hashes of its parts. A machine that has a file of
that content at the same path uses it. Others fetch it once, part by part through Ray's object
store, check each part, and keep it in a folder named by the hash. The processes of a machine take
turns, so that the second one finds what the first one fetched.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path

from weft.errors import DeviceError, FormatError
from weft.file_hashes import part_hash, part_hashes, part_of
from weft.file_lock import locked
from weft.files import write_text
from weft.records import dataclass

PART = 64 << 20
"""Number of bytes in a part of a file."""
TURN_SECONDS = 24 * 3600.0
"""Maximum number of seconds that a process waits until another process of its machine has fetched a
file."""
_IGNORED = (".cache", ".git")
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.DOTALL)
ReadPart = Callable[[str, int], bytes]
"""Gives part `n` of the file at a path of the machine that described it."""


@dataclass(frozen=True, slots=True)
class FileParts:
    """A file by its content."""

    name: str
    """The path of the file inside the folder, or its name."""
    size: int
    hashes: tuple[str, ...]
    """A hash of each part of `PART` bytes, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A file with its shards, or a folder, on the machine that described it."""

    path: str
    is_folder: bool
    files: tuple[FileParts, ...]

    @property
    def hash(self) -> str:
        """A hash of all content and names."""
        about = [(f.name, f.size, f.hashes) for f in self.files]
        return blake2b(repr(about).encode(), digest_size=16).hexdigest()

    def paths(self) -> list[str]:
        """The paths of all files on the machine that described them."""
        base = Path(self.path) if self.is_folder else Path(self.path).parent
        return [str(base / file.name) for file in self.files]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def describe_files(path: str | os.PathLike[str], cache: Path) -> ModelFiles:
    """Describes a model: a folder, or a file and the shards beside it. Reads all of it, unless the
    folder `cache` has the hashes of a file of this size and time.

    Raises FormatError if it cannot be read."""
    path = Path(path)
    try:
        if path.is_dir():
            names = sorted(_inside(path))
            return ModelFiles(str(path), True, tuple(_parts(path, n, cache) for n in names))
        names = [shard.name for shard in _shards(path)]
        return ModelFiles(str(path), False, tuple(_parts(path.parent, n, cache) for n in names))
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}") from None


def have_files(files: ModelFiles, cache: Path, read: ReadPart | None) -> Path:
    """The path of the model on this machine: its own files, or ones that `read` gives.

    Raises DeviceError if there are neither, or a part that came is not the one described."""
    own = Path(files.path)
    if _is_there(files, own if files.is_folder else own.parent, cache):
        return own
    if read is None:
        raise DeviceError(f"{own}: this machine has no such file of that content")
    folder = cache / "models" / files.hash
    try:
        with locked(cache / "models" / f"{files.hash}.lock", TURN_SECONDS):
            if not (folder / "whole").exists():
                _fetch(files, folder, read)
    except OSError as error:
        raise DeviceError(
            f"{own}: cannot be kept in {folder}: {error.strerror or error}; WEFT_CACHE names "
            "another folder"
        ) from None
    return folder / "files" if files.is_folder else folder / "files" / own.name


def read_part(path: str, n: int) -> bytes:
    """Part `n` of a file."""
    return part_of(path, n, PART)


def _fetch(files: ModelFiles, folder: Path, read: ReadPart) -> None:
    free = shutil.disk_usage(folder.parent).free
    if free < files.size:
        raise DeviceError(
            f"{files.path}: {files.size} bytes to fetch, and {folder.parent} has {free} free; "
            "WEFT_CACHE names another folder"
        )
    for path, file in zip(files.paths(), files.files, strict=True):
        target = folder / "files" / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            for n, expected in enumerate(file.hashes):
                data = read(path, n)
                if part_hash(data) != expected:
                    raise DeviceError(
                        f"{path}: part {n} that came is not the one that was "
                        "described; the file has changed since; start again"
                    )
                out.write(data)
            out.flush()
            os.fsync(out.fileno())
    write_text(folder / "whole", "")


def _is_there(files: ModelFiles, base: Path, cache: Path) -> bool:
    """True if the files below `base` have the content described."""
    try:
        if any((base / f.name).stat().st_size != f.size for f in files.files):
            return False
        return all(_parts(base, f.name, cache) == f for f in files.files)
    except (OSError, FormatError):
        return False


def _inside(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(part in _IGNORED for part in name.parts):
            yield name.as_posix()


def _shards(path: Path) -> list[Path]:
    """The file, or all files of the set of which it is one, as far as they are there."""
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    names = (f"{match[1]}-{i:05d}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1))
    return [path.with_name(name) for name in names if path.with_name(name).exists()]


def _parts(base: Path, name: str, cache: Path) -> FileParts:
    size, hashes = part_hashes(base / name, PART, cache)
    return FileParts(name, size, hashes)
