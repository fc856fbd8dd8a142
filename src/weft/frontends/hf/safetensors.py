"""Reads the headers of safetensors files, and opens the files of a folder; tensors stay mapped.

A file is the length of its header (8 bytes, little endian), the header as JSON, and the data:

    {"name": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [0, 33554432]}, ...}

The package `safetensors` reads these files too, but not without a copy: NumPy has no bfloat16.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.gguf.filemap import HEAD_BYTES, FileMap, describe_other, quoted
from weft.frontends.hf.pickles import read_pickled
from weft.records import dataclass

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes of an element, by the names of types in headers."""
MAX_HEADER = 100_000_000  # bytes; the reference implementation's limit
_INDEX = "model.safetensors.index.json"
_PICKLED_INDEX = "pytorch_model.bin.index.json"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.(safetensors|bin)", re.DOTALL)
_UNFINISHED = ("*.incomplete", "*.part", "*.crdownload", "*.aria2", "*.tmp",
               ".cache/huggingface/download/*.incomplete")  # fmt: skip
_AGAIN = "download or copy it again"


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a safetensors file, as the header describes it."""

    name: str
    kind: str
    """The type, a key of `ITEM_BYTES`."""
    shape: tuple[int, ...]
    """Sizes, outermost first."""
    offset: int
    """Byte offset from the start of the file."""
    nbytes: int
    file: FileMap

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes, uint8 `[nbytes]`, read-only, sharing the mapped file."""
        return self.file.view(self.offset, self.nbytes)


def read_safetensors(file: FileMap) -> dict[str, Stored]:
    """The tensors of a mapped file, by name and in order of names.

    Raises FormatError, which names the file and the tensor, for a file that is damaged."""
    header, start = _header(file)
    rows = {
        name: _stored(file, name, row, start)
        for name, row in header.items()
        if name != "__metadata__"
    }
    return dict(sorted(rows.items()))


def read_checkpoint(file: FileMap) -> dict[str, Stored]:
    """The tensors of a mapped file of safetensors or, where its name ends so, of a `.bin` file of
    PyTorch."""
    if file.path.suffix != ".bin":
        return read_safetensors(file)
    return {
        name: Stored(name, t.kind, t.shape, t.offset, t.nbytes, file)
        for name, t in read_pickled(file).items()
    }


def metadata_of(file: FileMap) -> Mapping[str, Any]:
    """The metadata in the header of a mapped file. Raises FormatError for a file that
    is damaged."""
    found = _header(file)[0].get("__metadata__") or {}
    if not isinstance(found, dict):
        raise file.error(f"the metadata of the header is not a JSON object; {_AGAIN}")
    return found


def _header(file: FileMap) -> tuple[dict[str, Any], int]:
    """The header, and the byte at which the data begins."""
    if file.size < 8:
        raise file.error(f"not a safetensors file: it has {file.size} bytes; {_AGAIN}")
    n = int.from_bytes(file.buffer[:8], "little")
    if n > min(file.size - 8, MAX_HEADER):
        head = bytes(file.buffer[:HEAD_BYTES])
        if head[:8].isascii():  # no length of a header
            raise file.error(f"not a safetensors file: {describe_other(head)}")
        raise file.error(
            f"not a safetensors file, or cut short: its header should have {n} bytes, and "
            f"{file.size - 8} follow; {_AGAIN}"
        )
    try:
        header = json.loads(file.buffer[8 : 8 + n])
    except (ValueError, RecursionError) as e:
        raise file.error(f"the header is not JSON ({e}); {_AGAIN}") from None
    if not isinstance(header, dict):
        raise file.error(f"the header is not a JSON object; {_AGAIN}")
    return header, 8 + n


def _stored(file: FileMap, name: str, row: Any, start: int) -> Stored:
    try:
        kind, shape = row["dtype"], tuple(row["shape"])
        begin, end = row["data_offsets"]
        counts = (*shape, begin, end)
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in counts) or not isinstance(
            kind, str
        ):
            raise TypeError
    except (TypeError, KeyError, ValueError):
        raise file.error(f"the header describes tensor {quoted(name)} wrongly; {_AGAIN}") from None
    if kind not in ITEM_BYTES:
        raise file.error(
            f"tensor {quoted(name)} has the type {quoted(kind)}; weft reads {', '.join(ITEM_BYTES)}"
        )
    nbytes = ITEM_BYTES[kind] * prod(shape)
    if end - begin != nbytes or start + end > file.size:
        raise file.error(
            f"tensor {quoted(name)} ({kind} {list(shape)}, {nbytes} bytes) is said to take bytes "
            f"{start + begin} to {start + end} of {file.size}; the file is cut short or damaged: "
            f"{_AGAIN}"
        )
    return Stored(name, kind, shape, start + begin, nbytes, file)


def open_shards(folder: Path) -> dict[str, Stored]:
    """The tensors of all safetensors files of a model's folder or, if there are none, of its
    `pytorch_model*.bin`: file after file, in order of names.

    Raises FormatError if there are none, a file of the index is missing, or two files have tensors
    of the same name."""
    files = _shard_names(folder)
    tensors: dict[str, Stored] = {}
    for name in files:
        for stored in read_checkpoint(FileMap(folder / name)).values():
            if stored.name in tensors:
                raise stored.file.error(
                    f"tensor {quoted(stored.name)} is also in "
                    f"{tensors[stored.name].file.path.name}; the files are not of one model: "
                    "download all again"
                )
            tensors[stored.name] = stored
    return tensors


def _shard_names(folder: Path) -> list[str]:
    index = folder / _INDEX
    if index.is_file():
        return _indexed(folder, index)
    names = sorted(p.name for p in folder.glob("model*.safetensors"))
    if not names:
        index = folder / _PICKLED_INDEX
        if index.is_file():
            return _indexed(folder, index)
        names = sorted(p.name for p in folder.glob("pytorch_model*.bin"))
    gone = _gone_shards(names)
    if gone:
        raise _missing(folder, gone, len(names) + len(gone))
    if not names and (unfinished := _unfinished(folder)):
        raise FormatError(
            f"{folder}: the download is not finished: {unfinished} is there, and no "
            "model*.safetensors; go on with the download"
        )
    if not names:
        others = sorted(p.name for end in ("bin", "pt", "pth") for p in folder.glob(f"*.{end}"))
        hint = (
            f"{others[0]} has a name that weft does not know: save the model with "
            "save_pretrained(..., safe_serialization=True)"
            if others
            else "give a folder with config.json and model.safetensors, or a .gguf file"
        )
        raise FormatError(f"{folder}: no model*.safetensors in this folder; {hint}")
    return names


def _indexed(folder: Path, index: Path) -> list[str]:
    try:
        listed = json.loads(index.read_text("utf-8"))["weight_map"]
        names = sorted(set(listed.values()))
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{index}: no table `weight_map` of file names; {_AGAIN}") from None
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise _missing(folder, missing, len(names))
    _check_listed(folder, index, listed, names)
    return names


def _gone_shards(names: list[str]) -> list[str]:
    """The files of a model that was cut into several whose numbers are not among `names`."""
    shards = [match for match in map(_SHARD.fullmatch, names) if match]
    if not shards:
        return []
    stem, count, end = shards[0][1], int(shards[0][3]), shards[0][4]
    wanted = (f"{stem}-{i:05d}-of-{count:05d}.{end}" for i in range(1, count + 1))
    return [name for name in wanted if name not in names]


def _unfinished(folder: Path) -> str:
    """The name of a file that a download left behind; empty: there is none."""
    found = (path for pattern in _UNFINISHED for path in sorted(folder.glob(pattern)))
    return next((path.name for path in found), "")


def _missing(folder: Path, missing: list[str], n: int) -> FormatError:
    began = _unfinished(folder)
    return FormatError(
        f"{folder}: {len(missing)} of {n} files are missing ({', '.join(missing[:3])}"
        f"{', ...' if len(missing) > 3 else ''}); "
        + (f"{began} is of a download that has not ended: " if began else "")
        + "download them into this folder"
    )


def _check_listed(folder: Path, index: Path, listed: Mapping[str, str], names: list[str]) -> None:
    """Raises FormatError unless the files have the tensors that the index says."""
    for file in names:
        there = read_checkpoint(FileMap(folder / file))
        gone = [name for name, at in listed.items() if at == file and name not in there]
        if gone:
            raise FormatError(
                f"{folder / file}: {len(gone)} tensors that {index.name} lists are missing "
                f"({', '.join(gone[:3])}); {_AGAIN}"
            )
