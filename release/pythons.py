"""The Pythons of this machine: headers to compile with, interpreters to test with."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from release.errors import ReleaseError

__all__ = ["headers", "interpreters"]

NEWEST = 20
"""No minor version of Python 3 from this one on is looked for."""


def _candidates(minor: int) -> Iterator[Path]:
    found = shutil.which(f"python3.{minor}")
    if found:
        yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"))


@functools.cache
def interpreters() -> dict[tuple[int, int], Path]:
    """By version, an interpreter that runs and has its headers, from 3.11 on: in PATH, then those
    of pyenv."""
    found = {}
    ask = (
        "import os, sysconfig; d = sysconfig.get_path('include');"
        "print(d if os.path.exists(d + '/Python.h') else '')"
    )
    for minor in range(11, NEWEST):
        for python in _candidates(minor):
            done = subprocess.run([python, "-Ic", ask], capture_output=True, text=True)
            if done.returncode == 0 and done.stdout.strip():
                found[3, minor] = python
                break
    return found


def headers(python: tuple[int, int]) -> Path:
    """The folder of Python.h for a version: of 3.12, those of any later version will do, since the
    stable ABI is asked for by its number. Raises ReleaseError where there are none."""
    known = interpreters()
    fit = sorted(v for v in known if v == python or (v > python >= (3, 12)))
    if not fit:
        text = ".".join(map(str, python))
        later = " or later" if python >= (3, 12) else ""
        raise ReleaseError(
            f"no Python {text}{later} with headers is in PATH or in pyenv's folder; install "
            f"python{text} and its headers (Debian: python{text}-dev; pyenv install {text})"
        )
    ask = "import sysconfig; print(sysconfig.get_path('include'))"
    return Path(subprocess.check_output([known[fit[0]], "-Ic", ask], text=True).strip())
