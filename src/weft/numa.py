"""Machines with several memory nodes: finds the nodes and places blocks of host memory on them.

    distribute   the pages of a block alternate over all nodes, as threads do
    isolate      blocks go to the caller's node while it has room
    numactl      weft does nothing; blocks go where the process was told to put them

Weights that are used in the mapped file are pages of the system's file cache: a page lies on the
node of the thread that reads it first. System calls are made directly, without libnuma. If the
system refuses a call, memory lies where it is first used; this is slower, never wrong.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from weft.records import dataclass

SYSFS = Path("/sys/devices/system/node")

_MBIND = {"x86_64": 237, "amd64": 237, "aarch64": 235, "arm64": 235, "riscv64": 235}
"""Linux's number of the system call `mbind`, by architecture."""
_PREFERRED, _INTERLEAVE = 1, 3
_MOVE = 2
_LEAST = 1 << 16
"""Bytes. Smaller blocks are not placed."""
_MOST_NODES = 1024

Mbind = Callable[[int, int, int, Sequence[int]], int]
"""`mbind(address, nbytes, mode, nodes)` gives 0 or the system's error number."""


def memory_nodes(usable: Sequence[int], root: Path | None = None) -> dict[int, list[int]]:
    """Maps the number of each memory node to the numbers of its `usable` processors.

    Nodes without usable processors are left out. If the system lists no nodes, node 0 has all
    processors. `root` is the folder to read (default: Linux's)."""
    root = SYSFS if root is None else root
    nodes = {}
    for node in _numbers(root / "online"):
        cpus = set(_numbers(root / f"node{node}" / "cpulist")).intersection(usable)
        if cpus:
            nodes[node] = sorted(cpus)
    return nodes or {0: list(usable)}


def node_of(cpu: int, nodes: Mapping[int, Sequence[int]]) -> int:
    """The node of a processor, or the first node if none lists it."""
    return next((node for node, cpus in nodes.items() if cpu in cpus), next(iter(nodes)))


def _numbers(path: Path) -> list[int]:
    """The numbers that a file lists as `0-3,8`; none if the file cannot be read."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers.extend(range(int(first), min(int(last or first), int(first) + 65536) + 1))
    return numbers


@dataclass(slots=True)
class MemoryPlacement:
    """The memory nodes that new blocks of host memory go to."""

    mode: str
    """`distribute` or `isolate`."""
    nodes: tuple[int, ...]
    """The nodes that blocks may be on."""
    mbind: Mbind = field(default_factory=lambda: _mbind)
    placed_bytes: int = 0
    """Bytes of all blocks placed so far."""
    refused: str = ""
    """The system's reason for its last refusal; empty: it has refused none."""

    def place(self, address: int, nbytes: int) -> bool:
        """Places the whole pages of a block; False if it is too small or the system refuses."""
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
        """Places a block as a trial and gives the system's reason for refusing it, or an empty
        text."""
        with mmap.mmap(-1, 2 * _LEAST) as block:
            view = ctypes.c_char.from_buffer(block)
            self.place(ctypes.addressof(view), 2 * _LEAST)
            del view
        self.placed_bytes = 0
        return self.refused


_current: MemoryPlacement | None = None


def current_placement() -> MemoryPlacement | None:
    """The placement of new blocks of this process; None: they lie where they are first used."""
    return _current


def use_placement(placement: MemoryPlacement | None) -> None:
    """Sets the placement of new blocks of this process; see `current_placement`."""
    global _current
    _current = placement


def place_block(address: int, nbytes: int) -> None:
    """Places a new block, to which nothing was written yet, if this process has a placement."""
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
    failed = call(
        ctypes.c_long(number), ctypes.c_void_p(address), ctypes.c_ulong(nbytes),
        ctypes.c_int(mode), mask, ctypes.c_ulong(_MOST_NODES), ctypes.c_uint(_MOVE),
    )  # fmt: skip
    return ctypes.get_errno() if failed else 0
