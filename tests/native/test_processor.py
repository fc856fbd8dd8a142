"""What the module says of the processor, beside what the system says."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from weft.native import _native

CPUINFO = Path("/proc/cpuinfo")
NATIVE = Path(__file__).resolve().parents[2] / "native"

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


def test_targets_that_are_built_are_those_that_run() -> None:
    """The build asks the processor by a list of its own, since the kernels do not exist by then: it
    has the targets of `dispatch.cpp` by the same conditions, and later ones are better."""
    dispatch = (NATIVE / "src/kernels/dispatch.cpp").read_text()
    pattern = r'push_back\(\s*\{"(\w+)", &\w+::table, (?:can\.(\w+)\(\) \? )?(\d+)'
    found = re.findall(pattern, dispatch)
    runs = {name: condition for name, condition, _ in found}
    score = {name: int(n) for name, _, n in found}
    assert len(runs) >= 9 and set(runs) == set(
        re.findall(r"^ *weft_target\((\w+)", (NATIVE / "CMakeLists.txt").read_text(), re.MULTILINE)
    )
    every, best = (NATIVE / "cmake/best_target.cpp").read_text().split("int main")
    condition = r"(?:if \(can\.(\w+)\(\)\) )?"
    printed = re.findall(condition + r'std::printf\("([\w;]+)"\)', every)
    assert {name: c for c, names in printed for name in names.strip(";").split(";")} == runs
    chosen = [
        (names.split(";")[-1], c) for c, names in re.findall(condition + r'best = "([\w;]+)"', best)
    ]
    assert dict(chosen) == {n: c for n, c in runs.items() if n != "amx_shim"}  # never the best
    for arm in (True, False):
        scores = [score[n] for n, _ in chosen if (n in ("neon", "dotprod", "i8mm")) == arm]
        assert scores == sorted(scores)
