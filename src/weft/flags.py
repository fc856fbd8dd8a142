"""The only file that reads the environment. Each flag is typed and has a one-line meaning."""

from __future__ import annotations

import os
import sys
from dataclasses import field, fields
from typing import Any

from weft.records import dataclass


def _flag(default: bool | int | str, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class Flags:
    """Settings from the environment, read once when weft is imported.

    A field `name` is the variable WEFT_NAME."""

    check: bool = _flag(False, "check graphs and memory plans again between all stages (0 or 1)")
    threads: int = _flag(
        0, "threads of the cpu device where nothing else says; 0: the physical cores"
    )
    target: str = _flag("", "kernel target of the cpu device; empty: the best this machine can run")
    devices: str = _flag("", "device list where nothing else says, e.g. `opencl,cpu`; empty: cpu")
    rewrites: str = _flag(
        "", "rewrites to use: `all`, `none` or names; `-name` leaves one out; empty: all"
    )
    cache: str = _flag(
        "", "folder for what is kept between runs; empty: `weft` in the user's cache folder"
    )
    cuda_one_order: bool = _flag(
        False,
        "CUDA sums in one order, however many columns a product has; tokens take longer (0 or 1)",
    )
    ternary: str = _flag(
        "", "how ternary weights are multiplied: `table` or `multiply`; empty: the faster"
    )
    graph_reuse: bool = _flag(
        True, "0: place, plan and lower every graph anew, also one that came before (0 or 1)"
    )
    op_offload_min_batch: int = _flag(
        0,
        "least batch for which devices take ops of models whose weights are in host memory, also "
        "read from GGML_OP_OFFLOAD_MIN_BATCH; 0: as each device decides",
    )
    attn_rot_disable: bool = _flag(
        False,
        "1: keys and values of a quantized cache are stored as they are, not rotated, also read "
        "from LLAMA_ATTN_ROT_DISABLE (0 or 1)",
    )
    machine_key: str = _flag(
        "", "the key of --machines and `weft worker`, 64 hexadecimal digits; empty: none"
    )
    machine_timeout: int = _flag(
        10, "seconds without a sign of life after which another machine counts as lost"
    )
    sched_debug: int = _flag(
        0, "1: print the splits of each graph that is placed, to stderr; 2: and its nodes"
    )
    cache_debug: int = _flag(
        0, "1: print each update of a context's cache, to stderr; 2: and the map of its cells"
    )


_ALSO = {
    "op_offload_min_batch": "GGML_OP_OFFLOAD_MIN_BATCH",
    "attn_rot_disable": "LLAMA_ATTN_ROT_DISABLE",
}
"""Variables of other programs that are read where ours is not set."""


def _read() -> Flags:
    values = {f.name: _value(f.name, f.default) for f in fields(Flags)}
    return Flags(**values | {"cache": values["cache"] or _user_cache()})


def _value(name: str, default: Any) -> Any:
    """The value of a flag: `default` where its variable is unset or empty, or not a number."""
    text = os.environ.get(f"WEFT_{name.upper()}", "").strip()
    if not text and name in _ALSO:
        text = os.environ.get(_ALSO[name], "").strip()
    if isinstance(default, bool):
        return text != "0" if text else default
    if isinstance(default, int):
        return int(text) if text.isdigit() else default
    return text or default


def _user_cache() -> str:
    """The folder `weft` in the place where this system keeps the user's caches."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        folder = os.path.join(home, "Library", "Caches")
    elif sys.platform == "win32":
        folder = os.environ.get("LOCALAPPDATA") or os.path.join(home, "AppData", "Local")
    else:
        folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return os.path.join(folder, "weft")


def said_to_others(name: str) -> str:
    """A variable that other programs obey, as `; NAME=value`, for messages; empty where unset."""
    value = os.environ.get(name)
    return "" if value is None else f"; {name}={value}"


def describe_flags() -> list[tuple[str, str, str]]:
    """(variable, default, meaning) of every flag, for the documentation."""
    defaults = Flags()
    return [
        (f"WEFT_{f.name.upper()}", str(getattr(defaults, f.name)), f.metadata["meaning"])
        for f in fields(Flags)
    ]


FLAGS = _read()
