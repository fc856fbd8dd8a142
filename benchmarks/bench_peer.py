"""A peer of `compare.py` that is an executable with llama-bench's command line, such as that of
ik_llama.cpp: it is run anew for every sample, and works only while the engines sleep.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
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


class BenchPeer:
    """Answers `load`, `pp` and `tg` as an engine's process does."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.command = name, list(command)
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
        try:
            run = subprocess.run(
                [*command, "-r", "1", "-o", "json"], capture_output=True, text=True, check=True
            )
            return n / float(json.loads(run.stdout)[-1]["avg_ts"])
        except subprocess.CalledProcessError as e:
            last = e.stderr.strip().splitlines()[-1:]
            raise PeerError(f"{self.name} ended with code {e.returncode}: {''.join(last)}") from e
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError) as e:
            raise PeerError(f"{shlex.join(command)} said no speed ({e})") from e
