"""The native tests that the build has made, run as they are; `make sanitize` runs them checked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parents[2] / "build"


@pytest.mark.parametrize("name", ["pool", "executor", "kernels"])
def test_native(name: str) -> None:
    programs = [
        path
        for path in BUILD.glob(f"*/native/tests/weft_{name}_test")
        if path.parts[-4] not in ("asan", "tsan")
    ]
    if not programs:
        pytest.skip("the native tests are not built; `make native` builds them")
    newest = max(programs, key=lambda path: path.stat().st_mtime)
    process = subprocess.run([newest], capture_output=True, text=True, timeout=900, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
