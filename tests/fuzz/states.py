"""Saved states with changed bytes and good checksums: each is taken, or is a WeftError and leaves
the context as it was; either way the context goes on, and takes a good state."""

from __future__ import annotations

import hashlib
import random
import struct
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.llm.tiny import write_model
from weft.errors import WeftError
from weft.llm import Context, Model

NATIVE = True

EXTREMES = [0, 1, 0x7F, 0x80, 0xFF]


@cache
def _model() -> Model:
    with tempfile.TemporaryDirectory() as folder:
        return Model.open(write_model(Path(folder) / "m.gguf"))


def _context() -> Context:
    context = Context(_model(), 24, n_seq_max=2, devices=["reference"])
    context.decode([1, 260, 261, 262, 263], seqs=[[0, 1]] * 3 + [[0]] * 2)
    return context


@cache
def good() -> bytes:
    """An undamaged state."""
    return _context().save_state()


def mutated(rng: random.Random) -> bytes:
    """A state with some bytes changed, and a checksum that fits."""
    body = bytearray(good()[:-32])
    (length,) = struct.unpack_from("<I", body, 8)
    table = range(12 + length, min(12 + length + 5 * 18 + 2, len(body)))
    for _ in range(rng.randrange(1, 5)):
        at = rng.choice([rng.randrange(len(body)), rng.choice(table), rng.choice(table)])
        width = rng.choice([1, 4, 8])
        body[at : at + width] = bytes([rng.choice([*EXTREMES, rng.randrange(256)])]) * width
    if rng.random() < 0.1:
        header = rng.choice([b"[" * 100_000, b"{}", b"null", b'{"version": 2}', b'{"a":' * 50_000])
        body[8 : 12 + length] = struct.pack("<I", len(header)) + header
    if rng.random() < 0.1:
        del body[rng.randrange(len(body)) :]
    return bytes(body) + hashlib.sha256(body).digest()


def check(data: bytes, seq: int | None = None) -> bool:
    """Whether the state was taken."""
    context = _context()
    before = context.save_state()
    try:
        context.load_state(data, seq)
        taken = True
    except WeftError:
        taken = False
        assert context.save_state() == before, "a refused state has changed the context"
    try:
        context.decode([5])
    except WeftError:
        assert taken, "a refused state has spoilt the context"
    context.load_state(good())
    context.clear()
    assert np.isfinite(context.decode([1, 260])).all()
    return taken


def run(seed: int, n: int) -> int:
    """Tries `n` states; returns how many were taken."""
    rng = random.Random(seed)
    with np.errstate(all="ignore"):
        return sum(check(mutated(rng), rng.choice([None, None, 0, 1])) for _ in range(n))
