from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf_files import DATA, golden, random_bytes, tiny_metadata, tiny_tensors, write_tiny

from weft.dtype import DTYPES
from weft.errors import FormatError, GraphError
from weft.frontends.gguf import RawValue, ValueType, open_gguf
from weft.frontends.gguf.writer import encode_value, write_gguf


def test_bytes_are_those_of_the_committed_file(tmp_path: Path) -> None:
    written = write_tiny(tmp_path / "t.gguf").read_bytes()
    assert written == (DATA / "tiny.gguf").read_bytes()


def test_every_type_comes_back(tmp_path: Path) -> None:
    rows = []
    for i, dtype in enumerate(d for d in DTYPES.values() if not d.only_in_memory):
        ne = (2 * dtype.block, 3, 1 + i % 2, 1)
        rows.append((f"w.{dtype.name}", dtype, ne, random_bytes(dtype.name, ne)))
    path = tmp_path / "all.gguf"
    write_gguf(path, {"general.architecture": "test"}, rows)
    with open_gguf(path) as file:
        assert list(file.tensors) == [r[0] for r in rows]
        for name, dtype, ne, data in rows:
            t = file.tensors[name]
            assert (t.dtype, t.ne) == (dtype, ne)
            assert np.array_equal(t.data, data)


def test_the_pypi_reader_reads_what_we_write(tmp_path: Path) -> None:
    # Its q8_1 is 40 bytes a block, a layout that ggml left long ago for one of 36.
    known = {t.value for t in GGMLQuantizationType} - {DTYPES["q8_1"].id}
    dtypes = [d for d in DTYPES.values() if d.id in known]
    assert len(dtypes) > 25
    rows = [(d.name, d, (d.block, 2), random_bytes(d.name, (d.block, 2))) for d in dtypes]
    path = tmp_path / "all.gguf"
    write_gguf(path, tiny_metadata() | {"t.raw": "raw", "t.strings": ["a", "ö", ""]}, rows)
    reader = GGUFReader(path)
    assert reader.fields["t.u64"].contents() == 1 << 63
    assert reader.fields["t.strings"].contents() == ["a", "ö", ""]
    assert reader.fields["t.bools"].contents() == [True, False, True]
    assert reader.fields["t.ints"].contents() == [1, -2, 3]
    for tensor, (name, dtype, ne, data) in zip(reader.tensors, rows, strict=True):
        assert (tensor.name, tensor.tensor_type) == (name, dtype.id)
        assert tuple(tensor.shape.tolist()) == ne
        assert np.array_equal(tensor.data.reshape(-1).view(np.uint8), data)


def test_copying_a_model_gives_the_same_bytes(tmp_path: Path) -> None:
    source = golden("gptoss-MXFP4_MOE.gguf")
    if source is None:
        pytest.skip("../shared/vectors is absent")
    with open_gguf(source) as file:
        rows = [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()]
        write_gguf(tmp_path / "copy.gguf", file.metadata, rows, version=file.version)
    assert (tmp_path / "copy.gguf").read_bytes() == source.read_bytes()


def test_copy_with_another_type(tmp_path: Path) -> None:
    with open_gguf(write_tiny(tmp_path / "a.gguf")) as file:
        metadata = {**file.copy_metadata(), "general.file_type": 7}
        t = file.tensors["token_embd.weight"]
        rows = [(t.name, "q8_0", t.ne, random_bytes("q8_0", t.ne))]
        write_gguf(tmp_path / "b.gguf", metadata, rows)
        with open_gguf(tmp_path / "b.gguf") as copy:
            assert list(copy.metadata) == [*file.metadata, "general.file_type"]
            for key in file.metadata:
                assert copy.metadata.raw(key) == file.metadata.raw(key)
            assert copy.get_int("general.file_type") == 7
            assert copy.metadata.type_of("general.file_type") is ValueType.U32
            assert copy.alignment == 64


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (1, "u32"),
        (-1, "i32"),
        (1 << 32, "u64"),
        (-(1 << 40), "i64"),
        (1.5, "f32"),
        (1e300, "f64"),
        (-1e300, "f64"),
        (float("inf"), "f32"),
        (True, "bool"),
        ("a", "string"),
        (b"a", "string"),
        (np.bool_(True), "bool"),
        (np.float64(1), "f64"),
        (np.int64(1), "i64"),
        (np.array(["a"])[0], "string"),
        ([1, 2], "array of i32"),
        ([1, 1 << 40], "array of i64"),
        ([1 << 31], "array of i64"),
        ([-(1 << 31), (1 << 31) - 1], "array of i32"),
        ([-1e300, 1.0], "array of f64"),
        ([1, 2.5], "array of f32"),
        ([True], "array of bool"),
        (("a", b"b"), "array of string"),
        (np.arange(3, dtype=">u2"), "array of u16"),
        (np.zeros(0, np.float32), "array of f32"),
        (RawValue(ValueType.U8, b"\1"), "u8"),
    ],
    ids=repr,
)
def test_types_of_python_values(tmp_path: Path, value: object, label: str) -> None:
    path = tmp_path / "v.gguf"
    write_gguf(path, {"k": value, "after": 3}, [])
    with open_gguf(path) as file:
        assert file.metadata.label_of("k") == label
        assert file.get_int("after") == 3
        if isinstance(value, np.ndarray | list) and label != "array of string":
            assert file.get_array("k").tolist() == np.asarray(value).tolist()
        elif isinstance(value, int | float | str):
            assert file.metadata["k"] == value


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ([], "empty list"),
        ([1, "a"], "a list of int, str"),
        ([[1]], "a list of list"),
        (None, "a NoneType"),
        (1j, "a complex"),
        (1 << 64, "64 bits"),
        ([1 << 70], "64 bits"),
        (np.zeros(2, np.float16), "no type for float16"),
        (np.zeros((2, 2), np.float32), r"no type for float32 \[2, 2\]"),
        (np.array(["a"]), "no type for <U1"),
    ],
    ids=repr,
)
def test_values_that_cannot_be_stored(value: object, pattern: str) -> None:
    with pytest.raises(FormatError, match=f"'some.key': .*{pattern}"):
        encode_value("some.key", value)


F32 = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    ("metadata", "tensors", "pattern"),
    [
        ({}, [("w", "f32", (9,), F32)], r"'w' \(f32 \[9\]\) has 32 bytes of data, and needs 36"),
        ({}, [("w", "q4_0", (8,), bytes(18))], "'w': a row of 8 elements"),
        ({}, [("w", "i2_s", (128,), bytes(32))], "needs 64"),
        ({}, [("w", "f32", (8,), F32)] * 2, "two tensors are called 'w'"),
        ({}, [("w", "f32", (), F32)], "'w' has the sizes"),
        ({}, [("w", "f32", (8, 0), F32)], "'w' has the sizes"),
        ({}, [("w", "f32", (8, 1, 1, 1, 1), F32)], "'w' has the sizes"),
        ({}, [("w", "f32", (4,), F32[::2])], "C-contiguous"),
        ({}, [("w", "f32", (8,), F32.astype(">f4"))], "little endian"),
        ({}, [("", "f32", (8,), F32)], "tensor '' has 0 bytes"),
        ({"k" * 65536: 1}, [], "has 65536 bytes"),
        ({"\udcff": 1}, [], "UTF-8"),
        ({"general.alignment": 24}, [], "general.alignment is 24"),
        ({"general.alignment": np.uint64(32)}, [], "must be u32, not u64"),
    ],
)
def test_refused_writes_leave_no_file(
    tmp_path: Path, metadata: dict[str, object], tensors: list[object], pattern: str
) -> None:
    path = tmp_path / "w.gguf"
    path.write_bytes(b"old")
    with pytest.raises(FormatError, match=pattern):
        write_gguf(path, metadata, tensors)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["w.gguf"]


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="unknown type 'q9'"):
        write_gguf(tmp_path / "w.gguf", {}, [("w", "q9", (8,), F32)])
    with pytest.raises(FormatError, match="version 4"):
        write_gguf(tmp_path / "w.gguf", {}, [], version=4)
    with pytest.raises(FormatError, match=r"cannot write .*none.*No such file"):
        write_gguf(tmp_path / "none" / "w.gguf", {}, [])


def test_data_is_asked_for_in_turn_and_a_failure_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    asked = []

    def make(i: int) -> np.ndarray:
        asked.append(i)
        if i == 2:
            raise RuntimeError("no more")
        return np.full(8, i, np.float32)

    rows = [(f"w{i}", "f32", (8,), lambda i=i: make(i)) for i in range(3)]
    write_gguf(path, {}, rows[:2])
    with open_gguf(path) as file:
        assert file.tensors["w1"].data.view("<f4").tolist() == [1.0] * 8
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="no more"):
        write_gguf(path, {}, rows)
    assert asked == [0, 1, 0, 1, 2]
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["w.gguf"]


def test_a_file_can_be_replaced_while_it_is_open(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "t.gguf")
    with open_gguf(path) as file:
        rows = [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()]
        write_gguf(path, {"general.name": "new"}, rows[:1])
        assert np.array_equal(file.tensors["output_norm.weight"].data, tiny_tensors()[1][3])
    with open_gguf(path) as file:
        assert file.get_str("general.name") == "new" and len(file.tensors) == 1
