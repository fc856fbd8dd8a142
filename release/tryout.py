"""Wheels, installed into empty environments and run: README's first snippet and `weft doctor`."""

from __future__ import annotations

import platform as machine
import shutil
import tempfile
from pathlib import Path

from release.build import SOURCES
from release.errors import run
from release.platforms import Platform
from release.pythons import interpreters
from release.roots import debian_python, missing, try_in_root

__all__ = ["try_out"]


def try_out(wheel: Path, platform: Platform, folder: Path) -> list[str]:
    """What was seen of a wheel in each Python here that it fits and in a bare root of Debian's, or
    what is missing for that."""
    seen = []
    if platform.tag.startswith("manylinux") and platform.processor == machine.machine():
        _, _, python, abi, _ = wheel.stem.split("-")
        lowest = (3, int(python.removeprefix("cp3")))
        fit = [v for v in interpreters() if v == lowest or (abi == "abi3" and v > lowest)]
        seen += [_in_venv(wheel, interpreters()[v], folder) for v in fit]
    lacking = missing(platform)
    if not lacking and debian_python(wheel.name):
        seen.append(try_in_root(wheel, platform, folder))
    return seen or [f"untested: this machine lacks {lacking or 'a Python of its version'}"]


def _in_venv(wheel: Path, python: Path, folder: Path) -> str:
    """Installs a wheel with what it needs into an empty venv, and runs it far from the sources."""
    where = Path(tempfile.mkdtemp(dir=folder))
    try:
        run([python, "-m", "venv", where / "venv"])
        own = where / "venv/bin/python"
        run([own, "-m", "pip", "-q", "--disable-pip-version-check", "install", wheel])
        env = {"PYTHONPATH": "", "XDG_CACHE_HOME": str(where / "cache")}
        said = run([own, SOURCES / "release/snippet.py"], env, cwd=where)
        run([where / "venv/bin/weft", "doctor"], env, cwd=where)
        return f"{said.splitlines()[0]}: README's snippet and weft doctor passed"
    finally:
        shutil.rmtree(where)
