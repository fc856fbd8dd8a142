"""GGUF files for tests: where the golden ones are, a small one made here, and a second, independent
walk over the format that says where each field of a file lies."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.dtype import DTYPES
from weft.frontends.gguf.format import tensor_bytes
from weft.frontends.gguf.writer import TensorSource, write_gguf

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"


def golden_models() -> list[Path]:
    """The golden GGUF files; none when `../shared` is absent."""
    for base in (ROOT.parent, ROOT.parent.parent):
        paths = sorted((base / "shared" / "vectors" / "models").rglob("*.gguf"))
        if paths:
            return paths
    return []


def golden(name: str) -> Path | None:
    return next((p for p in golden_models() if p.name == name), None)


def random_bytes(name: str, ne: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *name.encode()])
    return rng.integers(0, 256, tensor_bytes(DTYPES[name], ne), np.uint8)


def tiny_metadata() -> dict[str, object]:
    """A key of every value type."""
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.alignment": np.uint32(64),
        "t.u8": np.uint8(200),
        "t.i8": np.int8(-100),
        "t.u16": np.uint16(60000),
        "t.i16": np.int16(-30000),
        "t.u32": np.uint32(4_000_000_000),
        "t.i32": np.int32(-2_000_000_000),
        "t.u64": np.uint64(1 << 63),
        "t.i64": np.int64(-(1 << 62)),
        "t.f32": np.float32(1e-5),
        "t.f64": np.float64(0.1),
        "t.true": True,
        "t.false": False,
        "t.empty": "",
        "t.raw": b"\xff\xfea",
        "t.strings": ["<unk>", "", "ö", b"\xe2\x96", "\u2581the"],
        "t.bools": [True, False, True],
        "t.ints": [1, -2, 3],
        "t.floats": [0.5, -1.25],
        "t.none": np.zeros(0, np.int32),
    }


def tiny_tensors() -> list[TensorSource]:
    """Three tensors, the middle one with a length that needs padding."""
    return [
        ("token_embd.weight", "q4_0", (64, 4), random_bytes("q4_0", (64, 4))),
        ("output_norm.weight", "f32", (5,), random_bytes("f32", (5,))),
        ("blk.0.attn_q.weight", "f16", (4, 3, 2), random_bytes("f16", (4, 3, 2))),
    ]


def write_tiny(path: Path) -> Path:
    write_gguf(path, tiny_metadata(), tiny_tensors())
    return path


class Field(NamedTuple):
    kind: str  # "length", "count", "type", ...
    what: str
    offset: int
    size: int


_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def fields(data: bytes) -> list[Field]:
    """Every number of a valid file that says how the rest is to be read."""
    return list(_walk(data))


def _walk(data: bytes) -> Iterator[Field]:
    at = 4

    def number(kind: str, what: str, size: int) -> tuple[int, Field]:
        nonlocal at
        value = int.from_bytes(data[at : at + size], "little")
        at += size
        return value, Field(kind, what, at - size, size)

    def text(what: str) -> tuple[str, Field]:
        nonlocal at
        n, field = number("length", what, 8)
        at += n
        return data[at - n : at].decode("utf-8", "replace"), field

    def value(type_: int, what: str) -> Iterator[Field]:
        nonlocal at
        if type_ == 8:
            yield text(what)[1]
        elif type_ == 9:
            item, field = number("type", what, 4)
            yield field
            n, field = number("count", what, 8)
            yield field
            for i in range(n):
                yield from value(item, f"{what}[{i}]")
        else:
            at += _SIZES[type_]

    yield number("version", "version", 4)[1]
    n_tensors, field = number("count", "tensors", 8)
    yield field
    n_keys, field = number("count", "keys", 8)
    yield field
    for _ in range(n_keys):
        key, field = text("key")
        yield field
        type_, field = number("type", key, 4)
        yield field
        yield from value(type_, key)
    for _ in range(n_tensors):
        name, field = text("tensor name")
        yield field
        n_dims, field = number("dims", name, 4)
        yield field
        for _ in range(n_dims):
            yield number("size", name, 8)[1]
        yield number("type", name, 4)[1]
        yield number("offset", name, 8)[1]


def put(data: bytes, field: Field, value: int) -> bytes:
    """`data` with another number in `field`."""
    new = (value % (1 << (8 * field.size))).to_bytes(field.size, "little")
    return data[: field.offset] + new + data[field.offset + field.size :]


def kv(key: str, type_: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", type_) + payload


def tensor_info(name: str, ne: list[int], type_: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(ne)}Q", len(ne), *ne)
    return struct.pack("<Q", len(name)) + name.encode() + sizes + struct.pack("<IQ", type_, offset)


def raw_file(
    keys: list[bytes], infos: list[bytes], data: bytes = b"", *, align: int = 32, version: int = 3
) -> bytes:
    """A file put together by hand, valid or not."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(keys)) + b"".join(keys + infos)
    return head.ljust(-(-len(head) // align) * align, b"\0") + data
