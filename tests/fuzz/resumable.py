"""What a killed writer left beside its target, damaged: the next one writes the same file."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.rounds import Round
from weft.errors import FormatError
from weft.frontends.gguf.resumable import ResumableFile

NATIVE = False


class _Rows:
    nbytes = 64

    def __init__(self, seed: int) -> None:
        self._data = np.random.default_rng(seed).integers(0, 256, 64, np.uint8)

    def bytes(self) -> memoryview:
        return memoryview(self._data).cast("B")


class _Layout:
    """Stands in for the layout of a file: a head, and four tensors."""

    head = b"head"
    rows = tuple(map(_Rows, range(4)))
    starts = (4, 96, 160, 256)
    size = 320


def _write(target: Path, most: int) -> int:
    """Writes `most` tensors, and ends the file if these are all; the tensors that were there."""
    layout: Any = _Layout()
    n_done = 0
    try:
        with ResumableFile(target, layout, "about") as file:
            n_done = file.n_done
            for n, _ in enumerate(file.write(), 1):
                if n == most:
                    raise KeyboardInterrupt
            file.finish()
    except KeyboardInterrupt:
        pass
    return n_done


def prepare(folder: Path) -> Round:
    """A target in a folder."""
    target = folder / "out.gguf"
    partial, journal = (folder / f".out.gguf.{end}" for end in ("partial", "journal"))
    _write(target, 9)
    good = target.read_bytes()

    def damage(path: Path, rng: random.Random) -> None:
        data = bytearray(path.read_bytes() if path.exists() else b"")
        if path == journal and rng.randrange(2):
            lines = [json.loads(line) for line in data.splitlines()]
            lines = mutate_json(lines, rng, ("stamp", "crc32"))
            lines = lines if isinstance(lines, list) else [lines]
            data = bytearray(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        elif data and rng.randrange(4):
            mutate_bytes(data, rng)
        data = data[: rng.randrange(len(data) + 1)] if rng.randrange(4) == 0 else data
        data += rng.choice((b"", b"", b"[" * 100_000, b"\0" * 1000, b'{"crc32": 1e999}\n'))
        path.unlink(missing_ok=True)
        kind = rng.randrange(12)
        if kind == 0:
            os.symlink(folder / "theirs", path)
        elif kind == 1:
            os.mkfifo(path)
        elif kind > 2:
            path.write_bytes(data)

    def one(rng: random.Random) -> str:
        (folder / "theirs").write_bytes(b"mine")
        target.unlink(missing_ok=True)
        _write(target, rng.randrange(1, 5))
        if partial.exists():
            for path in rng.sample((partial, journal), rng.randrange(3)):
                damage(path, rng)
        try:
            outcome = "gone on" if _write(target, 9) else "begun"
            assert target.read_bytes() == good
        except FormatError:
            outcome = "refused"
        assert (folder / "theirs").read_bytes() == b"mine"
        for path in (partial, journal):
            path.unlink(missing_ok=True)
        return outcome

    return one
