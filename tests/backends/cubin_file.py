"""What machine code for a GPU says of a kernel, and how many of its blocks a processor holds, on
paper."""

from __future__ import annotations

import struct
from collections import Counter
from math import prod
from typing import NamedTuple

_NAMES = {
    0x226: "IDP", 0x237: "IMMA", 0x23C: "HMMA", 0x83B: "LDSM", 0xFAE: "LDGSTS",
    0x381: "LDG", 0x981: "LDG", 0x387: "local", 0x983: "local",
}  # fmt: skip
_PRODUCTS = ("IDP", "IMMA", "HMMA")
_REGISTERS, _FRAME, _MOST_THREADS = 0x2F, 0x11, 0x05
"""Attributes of the sections `.nv.info`: the first two have a symbol and a number each, the third
three sizes."""


class Kernel(NamedTuple):
    """A kernel of a cubin."""

    registers: int
    """Of a thread."""
    frame: int
    """Bytes of local memory of a thread: spilled registers and arrays."""
    shared: int
    """Bytes of shared memory of a block, without what the driver keeps."""
    instructions: Counter[str]
    in_loops: int
    """Reads and writes of local memory between the first and the last product."""
    threads: int = 0
    """The most threads of a block, as the kernel declares it; 0: it does not."""


class Limits(NamedTuple):
    """A streaming multiprocessor (CUDA C++ Programming Guide, table of compute capabilities)."""

    warps: int
    blocks: int
    shared: int
    """Bytes."""
    kept: int
    """Bytes of shared memory that the driver keeps for each block."""


LIMITS = {
    75: Limits(32, 16, 64 << 10, 0),
    80: Limits(64, 32, 164 << 10, 1 << 10),
    86: Limits(48, 16, 100 << 10, 1 << 10),
    89: Limits(48, 24, 100 << 10, 1 << 10),
    90: Limits(64, 32, 228 << 10, 1 << 10),
    100: Limits(64, 32, 228 << 10, 1 << 10),
}
_QUARTER = 16 << 10
"""Registers of a quarter of a processor; a warp takes them 256 at a time."""


def blocks(kernel: Kernel, threads: int, architecture: int) -> int:
    """The blocks of a kernel that a processor holds at once."""
    limits, warps = LIMITS[architecture], -(-threads // 32)
    of_warp = -(-kernel.registers * 32 // 256) * 256
    by_registers = 4 * (_QUARTER // of_warp) // warps
    by_shared = limits.shared // max(1, -(-kernel.shared // 256) * 256 + limits.kept)
    return min(limits.warps // warps, limits.blocks, by_registers, by_shared)


def read_kernel(cubin: bytes, name: str) -> Kernel:
    """A kernel of a cubin: an ELF file with a section of code for each."""
    sections = _sections(cubin)
    symbols = _symbols(cubin, sections)
    about = {_REGISTERS: 0, _FRAME: 0}
    data = _bytes(cubin, sections[".nv.info"])
    for at, attribute in _attributes(data):
        if attribute in about:
            symbol, number = struct.unpack_from("<II", data, at)
            if symbols[symbol] == name:
                about[attribute] = number
    driver_keeps = 1 << 10 if ".nv.shared.reserved.0" in sections else 0
    shared = sections.get(f".nv.shared.{name}", (0,) * 6)[5]
    code = _instructions(_bytes(cubin, sections[f".text.{name}"]))
    products = [i for i, instruction in enumerate(code) if instruction in _PRODUCTS]
    within = code[products[0] : products[-1]] if products else code
    return Kernel(
        about[_REGISTERS],
        about[_FRAME],
        max(0, shared - driver_keeps),
        Counter(code),
        within.count("local"),
        _most_threads(cubin, sections, name),
    )


def _most_threads(cubin: bytes, sections: dict[str, Section], name: str) -> int:
    if f".nv.info.{name}" not in sections:
        return 0
    data = _bytes(cubin, sections[f".nv.info.{name}"])
    found = (at for at, attribute in _attributes(data) if attribute == _MOST_THREADS)
    at = next(found, None)
    return 0 if at is None else prod(struct.unpack_from("<3I", data, at))


Section = tuple[int, ...]
"""Name, kind, flags, address, place, size, ... of an ELF file of 64 bits."""


def _sections(cubin: bytes) -> dict[str, Section]:
    at = struct.unpack_from("<Q", cubin, 40)[0]
    size, n, names = struct.unpack_from("<3H", cubin, 58)
    every = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(n)]
    return {_text(cubin, every[names][4] + section[0]): section for section in every}


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _bytes(cubin: bytes, section: Section) -> bytes:
    return cubin[section[4] : section[4] + section[5]]


def _symbols(cubin: bytes, sections: dict[str, Section]) -> list[str]:
    table, names = _bytes(cubin, sections[".symtab"]), sections[".strtab"][4]
    starts = (struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24))
    return [_text(cubin, names + start) for start in starts]


def _attributes(data: bytes) -> list[tuple[int, int]]:
    """(place of the value, number) of each attribute; a value of kind 4 has a length."""
    at, found = 0, []
    while at < len(data):
        kind, attribute, length = struct.unpack_from("<BBH", data, at)
        found.append((at + 4, attribute))
        at += 4 + (length if kind == 4 else 0)
    return found


def _instructions(code: bytes) -> list[str]:
    """Names of instructions, 16 bytes each: an opcode in the low 12 bits, and for loads their width
    in bits 73 to 75."""
    found = []
    for low, high in struct.iter_unpack("<2Q", code):
        name = _NAMES.get(low & 0xFFF, "other")
        found.append("LDG.128" if name == "LDG" and high >> 9 & 7 == 6 else name)
    return found
