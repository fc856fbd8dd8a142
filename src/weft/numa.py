"""Machines with several memory nodes: which there are, and where blocks of host memory lie.

    distribute   pages of a block take turns over all nodes, as threads do
    isolate      on the node of the caller, as far as it has room
    numactl      where the process has been put; nothing is done

Weights that are used in the mapped file belong to the system's cache of files: their pages lie
where they are first read, which the threads do. System calls are made directly, without libnuma.
Where the system refuses, memory lies where it is first used, which is always right, only slower.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["MemoryPlacement", "current_placement", "memory_nodes", "node_of", "place_block",
           "use_placement"]  # fmt: skip

SYSFS = Path("/sys/devices/system/node")

_MBIND = {"x86_64": 237, "amd64": 237, "aarch64": 235, "arm64": 235, "riscv64": 235}
"""Numbers of the system call on Linux."""
_PREFERRED, _INTERLEAVE = 1, 3
_MOVE = 2
_LEAST = 1 << 16
"""Smaller blocks stay where they are."""
_MOST_NODES = 1024

Mbind = Callable[[int, int, int, Sequence[int]], int]
"""`mbind(address, nbytes, mode, nodes)`: 0, or the system's error number."""


def memory_nodes(usable: Sequence[int], root: Path | None = None) -> dict[int, list[int]]:
    """Number of each memory node -> the processors of `usable` there; those without any are left
    out. One node 0 with all where the system says nothing. `root`: default: Linux's folder."""
    root = SYSFS if root is None else root
    wanted, found = set(usable), {}
    for node in _numbers(root / "online"):
        own = [cpu for cpu in _numbers(root / f"node{node}" / "cpulist") if cpu in wanted]
        if own:
            found[node] = own
    return found or {0: list(usable)}


def node_of(cpu: int, nodes: Mapping[int, Sequence[int]]) -> int:
    """The node of a processor; the first one where it is on none."""
    return next((node for node, cpus in nodes.items() if cpu in cpus), next(iter(nodes)))


def _numbers(path: Path) -> list[int]:
    """`0-3,8` in a file -> its numbers; none from a file that cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.extend(range(int(first), min(int(last or first), int(first) + 65536) + 1))
    return found


@dataclass(slots=True)
class MemoryPlacement:
    """Where new blocks of host memory go."""

    mode: str
    """`distribute` or `isolate`."""
    nodes: tuple[int, ...]
    """Those that they may be on."""
    mbind: Mbind = field(default_factory=lambda: _mbind)
    placed_bytes: int = 0
    """Of all blocks so far."""
    refused: str = ""
    """Why the system placed none, the last time that it did not."""

    def place(self, address: int, nbytes: int) -> bool:
        """Places the whole pages of a block; whether the system did."""
        page = mmap.PAGESIZE
        start, end = -(-address // page) * page, (address + nbytes) // page * page
        if end - start < _LEAST:
            return False
        mode = _INTERLEAVE if self.mode == "distribute" else _PREFERRED
        error = self.mbind(start, end - start, mode, self.nodes)
        if error:
            self.refused = os.strerror(error)
            return False
        self.placed_bytes += end - start
        return True

    def try_out(self) -> str:
        """Places a block that is not needed; what the system says against it, or nothing."""
        with mmap.mmap(-1, 2 * _LEAST) as block:
            view = ctypes.c_char.from_buffer(block)
            self.place(ctypes.addressof(view), 2 * _LEAST)
            del view
        self.placed_bytes = 0
        return self.refused


_current: MemoryPlacement | None = None


def current_placement() -> MemoryPlacement | None:
    """What decides about new blocks of this process."""
    return _current


def use_placement(placement: MemoryPlacement | None) -> None:
    """Has new blocks of the process placed so from now on; None: where they are first used."""
    global _current
    _current = placement


def place_block(address: int, nbytes: int) -> None:
    """Places a new block that nothing was written to, where a placement says so."""
    if _current is not None:
        _current.place(address, nbytes)


def _mbind(address: int, nbytes: int, mode: int, nodes: Sequence[int]) -> int:
    number = _MBIND.get(platform.machine().lower())
    if not sys.platform.startswith("linux") or number is None or ctypes.sizeof(ctypes.c_long) != 8:
        return errno.ENOSYS
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    mask = (ctypes.c_ulong * (_MOST_NODES // bits))()
    for node in nodes:
        if 0 <= node < _MOST_NODES:
            mask[node // bits] |= 1 << (node % bits)
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    done = call(
        ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(nbytes),
        ctypes.c_int(mode), mask, ctypes.c_ulong(_MOST_NODES), ctypes.c_uint(_MOVE),
    )  # fmt: skip
    return ctypes.get_errno() if done else 0
