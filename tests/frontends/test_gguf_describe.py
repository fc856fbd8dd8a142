from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
from gguf_files import write_tiny

from weft.frontends.gguf import RawValue, ValueType, open_gguf
from weft.frontends.gguf.describe import TypeTotal, describe, printable
from weft.frontends.gguf.writer import write_gguf


def test_tiny(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    with open_gguf(path) as file:
        d = describe(file)
    rows = {r.key: (r.type, r.value) for r in d.metadata}
    assert rows["t.u8"] == ("u8", "200")
    assert rows["t.f32"] == ("f32", "1e-05")
    assert rows["t.false"] == ("bool", "false")
    assert rows["t.raw"] == ("string", r"\udcff\udcfea")
    assert rows["t.strings"] == ("string[5]", r"['<unk>', '', 'ö', '\udce2\udc96', '▁the']")
    assert rows["t.bools"] == ("bool[3]", "[true, false, true]")
    assert rows["t.none"] == ("i32[0]", "[]")
    assert [dataclasses.astuple(t)[:4] for t in d.tensors] == [
        ("token_embd.weight", "q4_0", (4, 64), 144),
        ("output_norm.weight", "f32", (5,), 20),
        ("blk.0.attn_q.weight", "f16", (2, 3, 4), 48),
    ]
    assert d.tensors[0].bits_per_weight == 4.5
    assert d.totals[0] == TypeTotal("q4_0", 1, 256, 144, 4.5)
    assert [t.type for t in d.totals] == ["q4_0", "f16", "f32"]
    assert (d.elements, d.tensor_nbytes) == (256 + 5 + 24, 212)
    assert d.bits_per_weight == 8 * 212 / 285
    assert (d.kind, d.architecture, d.version, d.nbytes) == (
        "model",
        "llama",
        3,
        path.stat().st_size,
    )
    assert json.loads(json.dumps(dataclasses.asdict(d)))["paths"] == [str(path)]


def test_long_values_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    metadata = {"s": "x" * 500, "a": np.arange(1000), "t": ["y" * 100] * 9, "n": [1, 2, 3, 4, 5, 6]}
    write_gguf(path, metadata, [])
    with open_gguf(path) as file:
        rows = {r.key: r.value for r in describe(file, width=30).metadata}
    assert rows["s"] == "x" * 27 + "..."
    assert rows["a"] == "[0, 1, 2, 3, 4, 5, ...]"
    assert rows["t"] == "['" + "y" * 25 + "..."
    assert rows["n"] == "[1, 2, 3, 4, 5, 6]"


def test_nested_arrays_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    inner = struct.pack("<IQ", ValueType.U8, 2) + b"ab"
    nested = struct.pack("<IQ", ValueType.ARRAY, 2) + 2 * inner
    write_gguf(path, {"k": RawValue(ValueType.ARRAY, nested)}, [])
    with open_gguf(path) as file:
        row = describe(file).metadata[0]
    assert (row.type, row.value) == ("array[2]", "2 arrays")


def test_nothing_reaches_the_terminal_raw(tmp_path: Path) -> None:
    path = tmp_path / "evil.gguf"
    metadata = {"a\x1b[2J": "b\r\n\x1b]0;title\x07", "general.type": "x\n", "l": ["\x1b"]}
    write_gguf(path, metadata, [("w\x00\x9b", "f32", (1,), bytes(4))])
    with open_gguf(path) as file:
        d = describe(file)
    assert d.metadata[0].key == r"a\x1b[2J"
    assert d.metadata[0].value == r"b\r\n\x1b]0;title\x07"
    assert d.metadata[2].value == r"['\x1b']"
    assert d.tensors[0].name == r"w\x00\x9b"
    assert d.kind == r"x\n"
    assert printable("ö ▁ 日") == "ö ▁ 日"


def test_odd_general_keys_do_not_stop_it(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    write_gguf(path, {"general.architecture": 5, "general.type": [1]}, [])
    with open_gguf(path) as file:
        d = describe(file)
    assert (d.architecture, d.kind, d.bits_per_weight) == (None, "vocab", 0.0)
