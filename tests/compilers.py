"""Finds compilers that tests ask about sources."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest


def clang(program: str, least: int, takes: Callable[[str], bool] = lambda path: True) -> str:
    """The path of `program` (`clang`, `clang++`), or of its newest version from `least` on that has
    its number in the name, and that `takes` accepts. Skips the test where there is none."""
    for name in (program, *(f"{program}-{n}" for n in range(30, least - 1, -1))):
        path = shutil.which(name)
        if path is not None and takes(path):
            return path
    pytest.skip(f"no {program} from {least} on that takes these sources (Debian: clang)")
