""".pte files whose delegated blob or constants are damaged: refused, failed, or run."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.rounds import Round

NATIVE = True

FILES = Path(__file__).resolve().parents[1] / "data" / "delegate"
REFUSED = (RuntimeError, MemoryError, LookupError, ValueError)


def prepare(folder: Path) -> Round:
    """The files of tests/data/delegate with inputs for the first method of each."""
    from executorch.runtime import Runtime, Verification

    from tests.data.delegate.make import MODELS
    from tests.delegate.fuzz import spans_of

    _load()
    runtime = Runtime.get()
    files = []
    for name, (_, methods, _) in MODELS.items():
        method, (inputs, _) = next(iter(methods.items()))
        data = (FILES / f"{name}.pte").read_bytes()
        files.append((data, spans_of(data), method, list(inputs)))

    def one(rng: random.Random) -> str:
        whole, (blob, constants), name, inputs = rng.choice(files)
        data = bytearray(whole)
        mutate_bytes(data, rng, constants if constants and rng.randrange(4) == 0 else blob)
        frozen = bytes(data)
        try:
            program = runtime.load_program(frozen, verification=Verification.InternalConsistency)
            method: Any = program.load_method(name)
        except REFUSED:
            return "refused"
        try:
            for _ in range(2):
                method.execute(inputs)
        except (RuntimeError, MemoryError):
            return "failed"
        return "ran"

    return one


def _load() -> None:
    """The delegate of this environment, or the one with sanitizers."""
    from weft_executorch import library

    path = os.environ.get("WEFT_FUZZ_DELEGATE")
    if path is not None:
        library.library_path = lambda: Path(path)
    library.load()
