"""The only file that reads the environment. Each flag is typed and has a one-line meaning."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields

__all__ = ["FLAGS", "Flags", "describe_flags"]


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings from the environment, read once when weft is imported."""

    check: bool = False
    """WEFT_CHECK=1: check graphs and memory plans again between all stages."""
    threads: int = 0
    """WEFT_THREADS=N: threads of the cpu device where nothing else says; 0: the physical cores."""
    target: str = ""
    """WEFT_TARGET=NAME: kernel target of the cpu device; empty: the best this machine can run."""
    devices: str = ""
    """WEFT_DEVICES=a,b: device list where nothing else says; empty: cpu."""
    rewrites: str = ""
    """WEFT_REWRITES=a,-b: rewrites to use; `all`, `none`, names; -name leaves one out."""
    cache: str = ""
    """WEFT_CACHE=DIR: folder for what is kept between runs; empty: `weft` in the user's cache."""
    ternary: str = ""
    """WEFT_TERNARY=table|multiply|auto: how ternary weights are multiplied; empty: auto."""
    graph_reuse: bool = True
    """WEFT_GRAPH_REUSE=0: place, plan and lower every graph anew, also one that came before."""
    sched_debug: int = 0
    """WEFT_SCHED_DEBUG=1|2: print the splits of each graph that is placed; 2: and its nodes."""


_MEANING = {
    "check": "check graphs and memory plans again between all stages (0 or 1)",
    "threads": "threads of the cpu device where nothing else says; 0: the physical cores",
    "target": "kernel target of the cpu device; empty: the best this machine can run",
    "devices": "device list where nothing else says, e.g. `opencl,cpu`; empty: cpu",
    "rewrites": "rewrites to use: `all`, `none` or names; `-name` leaves one out; empty: all",
    "cache": "folder for what is kept between runs; empty: `weft` in the user's cache folder",
    "ternary": "how ternary weights are multiplied: `table` or `multiply`; empty: the faster",
    "graph_reuse": "0: place, plan and lower every graph anew, also one that came before (0 or 1)",
    "sched_debug": "1: print the splits of each graph that is placed, to stderr; 2: and its nodes",
}


def _read() -> Flags:
    def text(name: str) -> str:
        return os.environ.get(f"WEFT_{name.upper()}", "").strip()

    threads, debug = text("threads"), text("sched_debug")
    return Flags(
        check=text("check") not in ("", "0"),
        threads=int(threads) if threads.isdigit() else 0,
        target=text("target"),
        devices=text("devices"),
        rewrites=text("rewrites"),
        cache=text("cache") or _user_cache(),
        ternary=text("ternary"),
        graph_reuse=text("graph_reuse") != "0",
        sched_debug=int(debug) if debug.isdigit() else 0,
    )


def _user_cache() -> str:
    """`weft` in the folder that the system's conventions name for caches of this user."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        folder = os.path.join(home, "Library", "Caches")
    elif sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(folder, "weft")


def describe_flags() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of every flag, for the documentation."""
    defaults = Flags()
    return [
        (f"WEFT_{f.name.upper()}", str(getattr(defaults, f.name)), _MEANING[f.name])
        for f in fields(Flags)
    ]


FLAGS = _read()
