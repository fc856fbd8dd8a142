"""What the module says of the processor, beside what the system says."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from weft.native import _native

CPUINFO = Path("/proc/cpuinfo")

# the system's names, where they differ
X86 = {"sse4.2": "sse4_2", "avxvnni": "avx_vnni"} | {
    name: name for name in ("avx", "avx2", "fma", "f16c")
}
WIDE = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"} | {
    f"avx512{part}": f"avx512{part}" for part in ("f", "bw", "vl", "dq")
}
TILES = {f"amx{part}": f"amx_{part}" for part in ("tile", "int8", "bf16")}
ARM = {"fp16": "asimdhp", "dotprod": "asimddp", "neon": "asimd"} | {
    name: name for name in ("i8mm", "bf16", "sve", "sve2")
}


def test_features_are_those_that_the_system_names() -> None:
    names = {"x86_64": X86 | WIDE | TILES, "aarch64": ARM}.get(platform.machine(), {})
    if not names or not CPUINFO.exists():
        pytest.skip("the system lists no flags that are known here")
    lines = CPUINFO.read_text().splitlines()
    flags = next(line for line in lines if line.startswith(("flags", "Features"))).split()
    wanted = {name for name, flag in names.items() if flag in flags}
    assert set(_native.cpu_features()) == wanted
