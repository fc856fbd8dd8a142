"""Loads and runs damaged .pte files, as a process of its own:

    fuzz.py [--container] SEED COUNT MODEL.pte...

Each round takes the file and changes bytes of the delegated blob (or, one round in four, of the
constants), by bits, by interesting words, by cutting and by swapping. Loading may fail and running
may fail; nothing else may happen. The mutation is written down before it is tried, so that a crash
can be looked at: MODEL.pte.last.

With --container all bytes but those change: what ExecuTorch itself reads. Its reader does crash, so
rounds run in children; a crash is counted, and is ours where the delegate is on the stack (asked of
gdb; without gdb it is counted as unknown). Exit status 1: a crash of ours."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run as a file

from tests.fuzz.mutate import mutate_bytes


def main() -> int:
    if sys.argv[1] == "--container":
        return containers(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    first = int(sys.argv.pop(2)) if sys.argv[1] == "--rounds-from" else None
    if first is not None:
        sys.argv.pop(1)
    import weft_executorch

    weft_executorch.load()
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    for name in sys.argv[3:]:
        rounds = range(count) if first is None else range(first, count)
        counts = fuzz(Path(name), seed, rounds, container=first is not None)
        print(name, counts, flush=True)
    return 0


def containers(seed: int, count: int, names: list[str]) -> int:
    """Fuzzes what is around blobs and constants, going on behind each crash."""
    ours = 0
    for name in names:
        crashes = {"executorch": 0, "weft": 0, "unknown": 0}
        first = 0
        while first < count:
            command = [sys.executable, __file__, "--rounds-from", str(first), str(seed), str(count)]
            process = subprocess.run([*command, name], capture_output=True, text=True, check=False)
            if process.returncode == 0:
                print(process.stdout.strip(), flush=True)
                break
            first = int(Path(f"{name}.round").read_text())
            if process.returncode > 0:
                raise SystemExit(f"round {first} of {name}: {process.stderr[-2000:]}")
            again = [*command[:3], str(first), str(seed), str(first + 1), name]
            in_file = Path(f"{name}.phase").read_text() == "load_program"
            crashes["executorch" if in_file else _whose(again)] += 1
            first += 1
        print(name, {"crashes": crashes}, flush=True)
        ours += crashes["weft"]
    return int(ours > 0)


def _whose(command: list[str]) -> str:
    gdb = shutil.which("gdb")
    if gdb is None:
        return "unknown"
    # symbols of these libraries only: PyTorch's take minutes
    steps = [
        "set auto-solib-add off",
        "run",
        "sharedlibrary executorch",
        "sharedlibrary libc",
        "bt",
    ]
    look = [gdb, "-batch", *(part for step in steps for part in ("-ex", step)), "--args", *command]
    stack = subprocess.run(look, capture_output=True, text=True, check=False).stdout
    frames = [line for line in stack.splitlines() if line.startswith("#")]
    if not frames:
        return "unknown"
    return "weft" if any("weft" in frame for frame in frames) else "executorch"


def fuzz(path: Path, seed: int, rounds: range, *, container: bool = False) -> dict[str, int]:
    """How many mutated files were refused, ran, and failed in a run."""
    import torch
    from executorch.runtime import Runtime, Verification

    whole = path.read_bytes()
    blob, constants = spans_of(whole)
    inputs = torch.load(path.with_suffix(".inputs"))
    runtime = Runtime.get()
    counts = {"refused": 0, "ran": 0, "failed": 0}
    outside = around(len(whole), [*blob, *constants])
    for number in rounds:
        Path(f"{path}.round").write_text(str(number))
        rng = random.Random(seed * 1_000_003 + number)
        data = bytearray(whole)
        if container:
            mutate_bytes(data, rng, outside)
        else:
            mutate_bytes(data, rng, constants if constants and rng.randrange(4) == 0 else blob)
        frozen = bytes(data)
        Path(f"{path}.last").write_bytes(frozen)
        phase = Path(f"{path}.phase")
        try:
            phase.write_text("load_program")  # the delegate has no part in that
            program = runtime.load_program(frozen, verification=Verification.InternalConsistency)
            phase.write_text("load_method")
            method = program.load_method(program.method_names.copy().pop())
        except (RuntimeError, MemoryError, LookupError, ValueError):
            counts["refused"] += 1
            continue
        try:
            for _ in range(2):
                method.execute(inputs)
            counts["ran"] += 1
        except (RuntimeError, MemoryError):
            counts["failed"] += 1
        del method, program
    return counts


def around(size: int, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts of a file around some spans."""
    ends = [0, *(end for _, end in sorted(spans))]
    begins = [*(begin for begin, _ in sorted(spans)), size]
    return [(e, b) for e, b in zip(ends, begins, strict=True) if b > e]


def spans_of(pte: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The spans of the delegated blobs and the named data in a file, found by how they begin."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    file = deserialize_pte_binary(pte)
    blobs = [bytes(d.data) for d in file.program.backend_delegate_data]
    spans = [(pte.index(blob), pte.index(blob) + len(blob)) for blob in blobs]
    data = file.named_data.buffers if file.named_data is not None else []
    constants = [(pte.index(bytes(d)), pte.index(bytes(d)) + len(d)) for d in data if len(d) > 15]
    return spans, constants


if __name__ == "__main__":
    sys.exit(main())
