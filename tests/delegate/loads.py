"""Loads, runs and drops a .pte file again and again, as a process of its own:

    loads.py COUNT MODEL.pte

Prints by how many KiB resident memory grew over COUNT loads, after a tenth as many to warm up. What
other work leaves behind would be measured too, so nothing else runs here."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    import torch
    from executorch.runtime import Runtime

    import weft_executorch

    weft_executorch.load()
    count, path = int(sys.argv[1]), Path(sys.argv[2])
    pte = path.read_bytes()
    inputs = torch.load(path.with_suffix(".inputs"))

    def cycle(times: int) -> int:
        for _ in range(times):
            program = Runtime.get().load_program(pte)
            program.load_method("forward").execute(inputs)
        return resident_kib()

    before = cycle(count // 10)
    print(cycle(count) - before)
    return 0


def resident_kib() -> int:
    """This process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


if __name__ == "__main__":
    raise SystemExit(main())
