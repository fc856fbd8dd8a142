"""Kernels that were compiled before, when weft's wheel was made (release/cubins.py).

The folder `cubins` has a file for each architecture and kernel file. What was compiled is found by
the hash of its source, options and architecture, so one of another source is never taken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "cubins"


def key_of(text: str, options: tuple[str, ...], architecture: int) -> str:
    """The name of what a compiler makes of a source."""
    return sha256("\0".join((str(architecture), *options, text)).encode()).hexdigest()


def pack(images: Mapping[str, bytes]) -> bytes:
    """A file of images by their keys: a line with the offset of each, then all images."""
    index, at = {}, 0
    for key, image in images.items():
        index[key] = (at, len(image))
        at += len(image)
    import lzma

    line = json.dumps(index, separators=(",", ":")).encode() + b"\n"
    return lzma.compress(line + b"".join(images.values()), preset=9 | lzma.PRESET_EXTREME)


@lru_cache(maxsize=4)
def _unpacked(file: Path) -> tuple[dict[str, tuple[int, int]], bytes]:
    import lzma  # some Pythons are built without it

    line, _, images = lzma.decompress(file.read_bytes()).partition(b"\n")
    return json.loads(line), images


def architectures(folder: Path) -> list[int]:
    """The architectures that a folder has kernels for; none if weft was built without a
    compiler."""
    if not folder.is_dir():
        return []
    return sorted(int(part.name[3:]) for part in folder.iterdir() if part.name.startswith("sm_"))


def fitting(architecture: int, folder: Path = FOLDER) -> list[int]:
    """The architectures whose machine code a device runs, the best first: its own, and older ones
    of the same generation (8.0 on 8.6)."""
    known = [
        a for a in architectures(folder) if a <= architecture and a // 10 == architecture // 10
    ]
    return known[::-1]


def packed(
    file: str, text: str, options: tuple[str, ...], architecture: int, folder: Path
) -> bytes:
    """Machine code for a device of an architecture; empty where there is none of this source."""
    for known in fitting(architecture, folder):
        place = folder / f"sm_{known}" / f"{file}.xz"
        if not place.is_file():
            continue
        index, images = _unpacked(place)
        found = index.get(key_of(text, options, known))
        if found is not None:
            return images[found[0] : found[0] + found[1]]
    return b""
