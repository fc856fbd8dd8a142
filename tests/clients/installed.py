"""Programs of others, installed into folders of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

KEPT = ROOT / "build" / "clients"
"""The folder of what was installed, for the next run, too."""
_TIMEOUT_S = 600


def python_with(name: str, *packages: str) -> Path:
    """The Python of an environment with `packages`. Skips the test where pip cannot bring them."""
    folder = KEPT / name
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", folder], name)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        _run([*pip, *packages], name)
        (folder / "whole").touch()
    return python


def node_program(package: str, program: str) -> Path:
    """A program of an npm package. Skips the test where npm cannot bring it."""
    folder = KEPT / program
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    if not (folder / "whole").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", package], program)
        (folder / "whole").touch()
    return folder / "node_modules" / ".bin" / program


def _run(words: list[str | Path], name: str) -> None:
    try:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False, env=os.environ | {"PYTHONPATH": ""},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{name} cannot be installed: {error}")
    if done.returncode:
        pytest.skip(f"{name} cannot be installed: {done.stderr.strip()[-200:]}")
