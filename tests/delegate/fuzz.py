"""Loads and runs damaged .pte files, as a process of its own: fuzz.py SEED COUNT MODEL.pte...

Each round takes the file and changes bytes of the delegated blob (or, one round in four, of the
constants), by bits, by interesting words, by cutting and by swapping. Loading may fail and running
may fail; nothing else may happen. The mutation is written down before it is tried, so that a crash
can be looked at: MODEL.pte.last."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

WORDS = (0, 1, 2, 3, 7, 8, 31, 32, 127, 128, 255, 256, 65535, 65536, 1 << 20, (1 << 31) - 1,
         1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63)  # fmt: skip


def mutate(data: bytearray, spans: list[tuple[int, int]], rng: random.Random) -> None:
    """Changes a few places of one span, without changing the file's length."""
    begin, end = rng.choice(spans)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(begin, end)
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((1, 2, 4, 8))
            at -= at % width
            word = struct.pack("<Q", rng.choice(WORDS))[:width]
            data[at : min(at + width, end)] = word[: max(0, min(width, end - at))]
        elif kind == 3:
            length = rng.randrange(1, 64)
            source = rng.randrange(begin, end)
            piece = data[source : min(source + length, end)][: end - at]
            data[at : at + len(piece)] = piece
        else:
            length = min(rng.randrange(1, 64), end - at)
            data[at : at + length] = bytes(length)


def main() -> int:
    import weft_executorch

    weft_executorch.load()
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[3:]:
        print(name, fuzz(Path(name), seed, count), flush=True)
    return 0


def fuzz(path: Path, seed: int, count: int) -> dict[str, int]:
    """How many mutated files were refused, ran, and failed in a run."""
    import torch
    from executorch.runtime import Runtime, Verification

    whole = path.read_bytes()
    blob, constants = spans_of(whole)
    inputs = torch.load(path.with_suffix(".inputs"))
    runtime = Runtime.get()
    done = {"refused": 0, "ran": 0, "failed": 0}
    for number in range(count):
        rng = random.Random(seed * 1_000_003 + number)
        data = bytearray(whole)
        mutate(data, constants if constants and rng.randrange(4) == 0 else blob, rng)
        frozen = bytes(data)
        Path(f"{path}.last").write_bytes(frozen)
        try:
            program = runtime.load_program(frozen, verification=Verification.InternalConsistency)
            method = program.load_method(program.method_names.copy().pop())
        except RuntimeError:
            done["refused"] += 1
            continue
        try:
            for _ in range(2):
                method.execute(inputs)
            done["ran"] += 1
        except RuntimeError:
            done["failed"] += 1
        del method, program
    return done


def spans_of(pte: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Where the delegated blobs and the named data are in a file, by what they begin with."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(pte)
    blobs = [bytes(d.data) for d in file.program.backend_delegate_data]
    found = [(pte.index(blob), pte.index(blob) + len(blob)) for blob in blobs]
    data = file.named_data.buffers if file.named_data is not None else []
    constants = [(pte.index(bytes(d)), pte.index(bytes(d)) + len(d)) for d in data if len(d) > 15]
    return found, constants


if __name__ == "__main__":
    sys.exit(main())
