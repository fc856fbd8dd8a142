"""Damaged files of logits, importance matrices and tasks: each is read, or is a WeftError."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.fuzz.mutate import mutate_bytes, mutate_text
from weft.errors import WeftError
from weft.frontends.gguf.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    importance_of,
    read_imatrix,
    write_imatrix,
)
from weft.llm.quality.divergence import KLStatistics
from weft.llm.quality.imatrix import as_imatrix, imatrix_statistics, merged
from weft.llm.quality.logits_file import LogitsFile, writing_logits
from weft.llm.quality.tasks import read_hellaswag, read_multiple_choice, read_winogrande

DATA = Path(__file__).parents[1] / "data" / "quality"


def _matrix(path: Path) -> None:
    matrix = read_imatrix(path)
    importance_of(matrix)
    imatrix_statistics(matrix)
    write_imatrix(path, as_imatrix(merged([matrix, matrix], 8), ["t"], 8))


def _logits(path: Path) -> None:
    statistics = KLStatistics()
    rng = np.random.default_rng(1)
    with LogitsFile(path) as file:
        for chunk in file.chunks:
            targets = chunk[file.n_ctx // 2 + 1 :]
            rows = rng.normal(size=(len(targets), file.n_vocab)).astype(np.float32)
            statistics.add(file.read(len(targets)), rows, targets)
    statistics.result().as_dict()


def _tasks(path: Path) -> None:
    read_multiple_choice(path.read_bytes())


def _hellaswag(path: Path) -> None:
    read_hellaswag(path.read_text())


def _winogrande(path: Path) -> None:
    read_winogrande(path.read_text())


@cache
def good() -> list[tuple[object, bytes]]:
    """Undamaged files, and what reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        chunks = np.arange(16, dtype=np.int64).reshape(2, 8)
        with writing_logits(path, chunks, 17) as file:
            file.add(np.random.default_rng(2).normal(size=(6, 17)).astype(np.float32))
        files: list[tuple[object, bytes]] = [(_logits, path.read_bytes())]
        entry = ImatrixEntry(np.ones((2, 3), np.float32), np.array([4, 0]))
        matrix = Imatrix({"blk.0.a.weight": entry}, ("text",), 1, 4, False, True)
        for legacy in (False, True):
            write_imatrix(path, matrix, legacy=legacy)
            files.append((_matrix, path.read_bytes()))
    files.append((_tasks, (DATA / "choices.bin").read_bytes()))
    for read, name in ((_hellaswag, "hellaswag.txt"), (_winogrande, "winogrande.csv")):
        lines = (DATA / name).read_text().splitlines(keepends=True)[:12]
        files.append((read, "".join(lines).encode()))
    return files


def check(read: object, data: bytes) -> bool:
    """Whether the file was read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        try:
            read(path)  # type: ignore[operator]
        except WeftError:
            return False
    return True


def mutated(rng: random.Random) -> tuple[object, bytes]:
    """A damaged file and what reads it."""
    read, data = rng.choice(good())
    if read in (_hellaswag, _winogrande):
        text = mutate_text(data.decode(), rng, ('"', ",", "_", "\n", "0", "1"))
        return read, text.encode("utf-8", "replace")
    changed = bytearray(data)
    if rng.random() < 0.3:
        del changed[rng.randrange(len(changed)) :]
    else:
        spans = [(0, min(64, len(changed))), (0, len(changed))]
        mutate_bytes(changed, rng, spans)
    return read, bytes(changed)


def run(seed: int, n: int) -> int:
    """Tries `n` files; returns how many were read."""
    rng = random.Random(seed)
    return sum(check(*mutated(rng)) for _ in range(n))
