"""Files of a folder of kept texts with changed bytes, good checksums and fitting names: each is
taken up or refused, and the text is written either way; so is the next one."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np

from tests.llm.prefix_texts import END, kept_in, make_lasting, words
from weft.errors import WeftError
from weft.llm import LLM

NATIVE = True

PROMPT = [1, *words(1, 30), END, 5]
NUMBERS = [-1, 0, 1, 2, 31, 33, 34, 1 << 31, 1 << 62, 1 << 70, 0.5, None, True, "x", [], [1 << 40]]


@cache
def _ready() -> tuple[LLM, Path, bytes]:
    """A model with a folder, the file that it writes there, and its contents."""
    folder = Path(tempfile.mkdtemp())
    path = make_lasting("qwen35", folder)
    with LLM(path, n_ctx=64, n_threads=1, cache_dir=folder) as llm:
        llm.generate(PROMPT, max_tokens=1, ignore_eos=True)
    (file,) = kept_in(folder)
    llm = LLM(path, n_ctx=64, n_threads=1, cache_dir=folder)
    return llm, file, file.read_bytes()


def mutated(rng: random.Random, good: bytes) -> bytes:
    """A file with some bytes changed."""
    (length,) = struct.unpack_from("<I", good, 8)
    header, body = json.loads(good[12 : 12 + length]), bytearray(good[12 + length : -32])
    for _ in range(rng.randrange(3)):
        key = rng.choice([*header, "new"])
        header[key] = rng.choice(NUMBERS)
        if key == "checkpoints" and rng.random() < 0.7:
            header[key] = [rng.choice(NUMBERS) for _ in range(rng.randrange(4))]
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(body))
        body[at : at + 4] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])]) * 4
    if rng.random() < 0.2:
        del body[rng.randrange(len(body)) :]
    text = json.dumps(header).encode()
    if rng.random() < 0.1:
        text = rng.choice([b"[" * 100_000, b"{}", b"null", b'{"a":' * 50_000, b""])
    data = good[:8] + struct.pack("<I", len(text)) + text + bytes(body)
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data))]
    return data + hashlib.sha256(data).digest()


def check(data: bytes, name: str) -> bool:
    """Whether the text was taken up."""
    llm, file, good = _ready()
    kept = llm._writing.prefixes
    llm.context.clear()
    kept.memory.clear()
    assert kept.files is not None
    kept.files._known.clear()
    for old in kept_in(file.parent):
        old.unlink()
    (file.parent / name).write_bytes(data)
    try:
        llm.generate(PROMPT, max_tokens=2, ignore_eos=True)
    except WeftError:
        assert llm.stats.n_cached, "a refused file has spoilt the text"
    taken = llm.stats.n_cached > 0
    llm.context.clear()
    kept.memory.clear()
    kept.files.close()
    kept.files._known.clear()
    file.write_bytes(good)
    assert np.isfinite(llm.context.decode([1, 260])).all()
    llm.context.clear()
    llm.generate(PROMPT, max_tokens=2, ignore_eos=True)
    assert llm.stats.n_cached == len(PROMPT) - 1
    return taken


def run(seed: int, n: int) -> int:
    """Tries `n` files; returns how many were taken."""
    rng = random.Random(seed)
    _, file, good = _ready()
    taken = 0
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(n):
            data = mutated(rng, good)
            name = file.name
            if rng.random() < 0.5:  # the name that its tokens have
                (length,) = struct.unpack_from("<I", data, 8)
                tokens = data[12 + length :][: 4 * (len(PROMPT) - 1)]
                digest = hashlib.sha256(b"\0" + tokens).hexdigest()[:32]
                name = f"{file.name[:16]}-{digest}.weftprefix"
            taken += check(data, name)
    return taken
