"""Files of requests and of answers with changed bytes: every line has one row, and rows that were
there stay, or the file of answers is refused and left as it was."""

from __future__ import annotations

import asyncio
import io
import json
import random
import tempfile
from pathlib import Path

from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.fuzz.rounds import Round, rounds
from weft.batch import Answer, Journal, Line, read_lines, run_batch
from weft.errors import WeftError
from weft.serve.endpoints import BATCHABLE

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
NAMES = ("custom_id", "method", "url", "body", "stream")
MOST = 300
"""Bytes of a line."""


def requests(rng: random.Random) -> bytes:
    """A file of a few requests, damaged."""
    rows = []
    for number in range(rng.randrange(1, 8)):
        row = REQUEST | {"custom_id": f"r{rng.choice((number, 0))}"}
        if rng.random() < 0.4:
            row = mutate_json(row, rng, NAMES)
        rows.append(json.dumps(row).encode() + rng.choice((b"\n", b"\n", b"\r\n", b"\n\n", b"")))
    if rng.random() < 0.1:
        rows.insert(rng.randrange(len(rows)), b"[" * rng.choice((100, 100_000)) + b"\n")
    data = bytearray(b"".join(rows))
    if rng.random() < 0.4:
        mutate_bytes(data, rng)
    return bytes(data)


async def _handle(line: Line) -> Answer:
    return Answer(200 if line.number % 3 else 400, "req", {"echo": line.body})


def _run(path: Path, data: bytes) -> None:
    with Journal(path) as journal:
        lines = read_lines(io.BytesIO(data), BATCHABLE, most_bytes=MOST)
        asyncio.run(run_batch(lines, journal, _handle, parallel=2))


def prepare(folder: Path) -> Round:
    """Batches in a folder."""
    path = folder / "out.jsonl"

    def one(rng: random.Random) -> str:
        path.unlink(missing_ok=True)
        data = requests(rng)
        _run(path, data)
        want = [line.id for line in read_lines(io.BytesIO(data), BATCHABLE, most_bytes=MOST)]
        before = path.read_bytes()
        rows = [json.loads(row) for row in before.splitlines()]
        assert sorted(row["id"] for row in rows) == sorted(want)
        assert all((row["response"] is None) != (row["error"] is None) for row in rows)
        damaged = bytearray(before[: rng.randrange(len(before) + 1)])
        if damaged and rng.random() < 0.5:
            mutate_bytes(damaged, rng)
        path.write_bytes(damaged)
        try:
            _run(path, data)
        except WeftError:
            assert path.read_bytes().startswith(damaged[: damaged.rfind(b"\n") + 1])
            return "refused"
        whole = damaged[: damaged.rfind(b"\n") + 1]
        after = path.read_bytes()
        assert after.startswith(whole)
        ids = [json.loads(row)["id"] for row in after.splitlines()]
        assert len(ids) == len(set(ids)) and set(want) <= set(ids)
        return "gone on"

    return one


def run(seed: int, n: int) -> None:
    """Tries `n` damaged pairs of files."""
    with tempfile.TemporaryDirectory() as folder:
        rounds(prepare(Path(folder)), seed, 0, most=n)
