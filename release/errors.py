"""The error of these tools, and running commands."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ReleaseError", "run"]


class ReleaseError(Exception):
    """What is wrong and what would fix it, in a sentence."""


def run(command: Sequence[str | Path], env: Mapping[str, str] = {}, cwd: Path | None = None) -> str:
    """What a command prints; `env` comes on top of this process's environment. Raises ReleaseError
    with the end of its output where it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=os.environ | env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
