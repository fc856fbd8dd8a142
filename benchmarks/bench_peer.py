"""A peer of `compare.py` that is an executable with llama-bench's command line, such as that of
ik_llama.cpp: it is run anew for every sample, and works only while the engines sleep.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OPTIONS = {"ik": ("-rtr", "1", "-fa", "1")}
"""Of peers by name, when none are given: what suits them best."""


class PeerError(Exception):
    """A peer that could not be run, or did not say how fast it was."""


def parse_peer(text: str) -> tuple[str, list[str]]:
    """`ik=PATH`, or `NAME=PATH OPTIONS`, as the name and the command. Raises ValueError."""
    name, _, command = text.partition("=")
    words = shlex.split(command)
    if not name or not words:
        raise ValueError(f"--peer is {text!r}; it is NAME=PATH, of a llama-bench executable")
    return name, words if len(words) > 1 else [*words, *OPTIONS.get(name, ())]


def build_clock(folder: Path) -> Path:
    """Compiles `processor_clock.c` there, as a library to be preloaded. Raises PeerError."""
    library = folder / "processor_clock.so"
    source = Path(__file__).with_name("processor_clock.c")
    command = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", library, source]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        raise PeerError(f"--processor-time needs a C compiler (CC): {e}") from e
    return library


class BenchPeer:
    """Answers `load`, `pp` and `tg` as an engine's process does. `clock` is the library of
    `build_clock`, for seconds of the processor."""

    def __init__(self, name: str, command: Sequence[str], clock: Path | None = None) -> None:
        self.name, self.command, self.clock = name, list(command), clock
        self.about = {"version": self.command[0], "kernels": " ".join(self.command[1:])}
        self.path = ""

    def ask(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """Raises PeerError."""
        if kind == "load":
            self.path = arguments["path"]
            return {}
        return {"seconds": self._seconds(kind, arguments["n"], arguments["threads"])}

    def quit(self) -> None:
        """Nothing runs between samples."""

    def _seconds(self, test: str, n: int, threads: int) -> float:
        sizes = ["-p", str(n if test == "pp" else 0), "-n", str(n if test == "tg" else 0)]
        command = [*self.command, "-m", self.path, *sizes, "-t", str(threads)]
        preload = {"LD_PRELOAD": str(self.clock)} if self.clock else {}
        try:
            run = subprocess.run(
                [*command, "-r", "1", "-o", "json"], capture_output=True, text=True, check=True,
                env={**os.environ, **preload},
            )  # fmt: skip
            answer = json.loads(run.stdout)[-1]
            build = f"{answer.get('build_number', '')} ({answer.get('build_commit', 'unknown')})"
            self.about["version"] = f"build {build}"
            return n / float(answer["avg_ts"])
        except subprocess.CalledProcessError as e:
            last = e.stderr.strip().splitlines()[-1:]
            raise PeerError(f"{self.name} ended with code {e.returncode}: {''.join(last)}") from e
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError) as e:
            raise PeerError(f"{shlex.join(command)} said no speed ({e})") from e
