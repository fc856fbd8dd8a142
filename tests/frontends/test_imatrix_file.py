"""Importance matrices: both formats in and out, and files that are none."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    chosen,
    imatrix_keys,
    importance_of,
    read_imatrix,
    write_imatrix,
)
from weft.frontends.gguf.writer import write_gguf

SUMS = np.arange(1, 33, dtype=np.float32).reshape(4, 8)
ENTRIES = {
    "blk.0.ffn_up.weight": ImatrixEntry(SUMS[:1] * 3, np.array([512])),
    "blk.0.ffn_down_exps.weight": ImatrixEntry(SUMS, np.array([512, 0, 3, 9])),
}
MEASURED = Imatrix(ENTRIES, ("a.txt", "b.txt"), 3, 512, False, True)


def test_gguf_files_come_back(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_imatrix(path, MEASURED)
    read = read_imatrix(path)
    assert list(read.entries) == sorted(ENTRIES)
    assert (read.datasets, read.chunk_count, read.chunk_size) == (("a.txt", "b.txt"), 3, 512)
    assert read.has_metadata and not read.is_legacy
    for name, entry in ENTRIES.items():
        np.testing.assert_array_equal(read.entries[name].sums, entry.sums)
        np.testing.assert_array_equal(read.entries[name].counts, entry.counts)
    with open_gguf(path) as file:
        assert file.get_str("general.type") == "imatrix"
        assert file.tensors["blk.0.ffn_down_exps.weight.in_sum2"].ne == (8, 4, 1, 1)
        assert file.tensors["blk.0.ffn_down_exps.weight.counts"].ne == (1, 4, 1, 1)


def test_the_older_format_has_the_same_weights(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", MEASURED)
    write_imatrix(tmp_path / "i.dat", MEASURED, legacy=True)
    old = read_imatrix(tmp_path / "i.dat")
    assert (old.is_legacy, old.datasets, old.chunk_count) == (True, ("b.txt",), 3)
    ours, theirs = importance_of(read_imatrix(tmp_path / "i.gguf")), importance_of(old)
    assert ours.keys() == theirs.keys()
    for name, weights in ours.items():
        np.testing.assert_allclose(weights, theirs[name], rtol=1e-6)
    # an expert that saw nothing counts everywhere alike
    np.testing.assert_array_equal(ours["blk.0.ffn_down_exps.weight"][8:16], np.ones(8))
    np.testing.assert_array_equal(ours["blk.0.ffn_down_exps.weight"][16:24], SUMS[2] / 3)


def test_the_older_format_byte_for_byte(tmp_path: Path) -> None:
    data = struct.pack("<i", 1) + struct.pack("<i", 1) + b"w" + struct.pack("<ii2f", 4, 2, 8, 20)
    path = tmp_path / "i.dat"
    path.write_bytes(data)  # without the text's name
    read = read_imatrix(path)
    assert (read.chunk_count, read.datasets) == (0, ())
    np.testing.assert_array_equal(importance_of(read)["w"], [2, 5])
    path.write_bytes(data + struct.pack("<ii", 7, 3) + b"txt")
    read = read_imatrix(path)
    assert (read.chunk_count, read.datasets) == (7, ("txt",))
    write_imatrix(tmp_path / "again.dat", read, legacy=True)
    assert (tmp_path / "again.dat").read_bytes() == path.read_bytes()


def test_files_cut_short_anywhere_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    write_imatrix(path, MEASURED, legacy=True)
    data = path.read_bytes()
    end_of_entries = len(data) - 8 - len("b.txt")
    for n in range(1, end_of_entries):
        path.write_bytes(data[:n])
        with pytest.raises(FormatError, match=r"i\.dat"):
            read_imatrix(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (struct.pack("<i", 0), "neither GGUF nor the older format"),
        (struct.pack("<i", 1 << 30), "neither GGUF nor the older format"),
        (b"hello, world, this is a text", "neither GGUF nor the older format"),
        (struct.pack("<ii", 1, -5), "needs -5 bytes"),
        (struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 0), "has 0 values"),
        (struct.pack("<ii", 1, 1) + b"w" + struct.pack("<ii", 1, 1 << 30), "needs 4294967296"),
    ],
)
def test_what_is_no_importance_matrix(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=said):
        read_imatrix(path)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"w": np.ones(4, "f4")}, "no tensor that ends in .in_sum2"),
        ({"w.in_sum2": np.ones(4, "f4")}, "w must have two f32 tensors"),
        ({"w.in_sum2": np.ones(4, "f4"), "w.counts": np.ones(3, "f4")}, "4 sums and 3 counts"),
        ({"w.in_sum2": np.ones(4, "f4"), "w.counts": np.full(1, np.nan, "f4")}, "not counts"),
        ({"w.in_sum2": np.full(4, np.inf, "f4"), "w.counts": np.ones(1, "f4")}, "not finite"),
    ],
)
def test_gguf_files_that_are_damaged(
    tmp_path: Path, tensors: dict[str, np.ndarray], said: str
) -> None:
    path = tmp_path / "i.gguf"
    write_gguf(path, {"general.type": "imatrix"}, [(n, "f32", x.shape, x) for n, x in
                                                   tensors.items()])  # fmt: skip
    with pytest.raises(FormatError, match=said):
        importance_of(read_imatrix(path))


def test_parts_of_names_choose(tmp_path: Path) -> None:
    weights = importance_of(MEASURED)
    assert list(chosen(weights, include=["exps"])) == ["blk.0.ffn_down_exps.weight"]
    assert list(chosen(weights, exclude=["ffn_down", "attn"])) == ["blk.0.ffn_up.weight"]
    assert len(chosen(weights)) == 2


def test_keys_of_the_quantized_file() -> None:
    keys = imatrix_keys("x" * 200, MEASURED, 2)
    assert keys == {
        "quantize.imatrix.file": b"x" * 127,
        "quantize.imatrix.dataset": b"a.txt",
        "quantize.imatrix.entries_count": 2,
        "quantize.imatrix.chunks_count": 3,
    }
