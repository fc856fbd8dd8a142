"""Clang takes the native sources without a warning. It compiles the wheels (as `zig c++`) and what
people build on macOS, while the rest of the suite is compiled by GCC."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.compilers import clang

pytestmark = pytest.mark.part("targets")

ROOT = Path(__file__).resolve().parents[2]


def commands(folder: Path) -> list[list[str]]:
    """What the build would run for each source file, to look at it alone."""
    tools = Path(sys.executable).parent
    configure = [
        str(tools / "cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DCMAKE_CXX_COMPILER={clang('clang++', 15)}",
        f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
        "-DWEFT_PYTHON=OFF", "-DWEFT_TESTS=ON", "-DWEFT_TARGETS=all", "-DWEFT_WERROR=ON",
    ]  # fmt: skip
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = []
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        at = words.index("-o")
        found.append([*words[:at], *words[at + 2 :], "-fsyntax-only"])
    return found


def complaints(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.stderr if done.returncode else ""


def test_clang_takes_every_source_of_every_target(tmp_path: Path) -> None:
    found = commands(tmp_path)
    assert len(found) > 200
    with ThreadPoolExecutor(2) as pool:
        said = [text for text in pool.map(complaints, found) if text]
    assert not said, f"{len(said)} of {len(found)} files; the first: {said[0]}"
