"""Files that are damaged, cut short, or made to mislead: FormatError or success, and nothing else,
in bounded work and memory."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from gguf_files import Field, fields, golden, kv, put, raw_file, tensor_info, write_tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.describe import describe
from weft.frontends.gguf.filemap import Cursor
from weft.native import _native

LIES = [0, 1, 2, 5, 0x7F, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
WIDE_LIES = [1 << 32, 1 << 60, (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1]


class Work:
    """Counts the steps of a cursor through a file, and the items that it reads in one go."""

    def __init__(self) -> None:
        self.steps = self.items = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Counts the work of every file that is opened meanwhile."""
    work, skip, spend = Work(), Cursor.skip, Cursor.spend

    def counting_skip(cursor: Cursor, n: int, what: str) -> int:
        work.steps += 1
        return skip(cursor, n, what)

    def counting_spend(cursor: Cursor, n: int, what: str) -> None:
        spend(cursor, n, what)
        work.items += n

    with (
        mock.patch.object(Cursor, "skip", counting_skip),
        mock.patch.object(Cursor, "spend", counting_spend),
    ):
        yield work


def strings_of(path: Path, core: object) -> object:
    """The lists of a file as text, read by `core` or, where it is None, in Python; the message when
    the file is refused."""
    with mock.patch("weft.frontends.gguf.metadata._core", lambda: core):
        try:
            with open_gguf(path) as file:
                return [repr(value) for value in file.metadata.values() if isinstance(value, list)]
        except FormatError as error:
            return str(error)


def read_all(path: Path) -> str | None:
    """Open `path` and use everything in it; the message when it is refused."""
    size = path.stat().st_size
    tracemalloc.start()
    try:
        with counted() as work, open_gguf(path) as file:
            for key in file.metadata:
                _ = file.metadata[key]
            for t in file.tensors.values():
                assert len(t.data) == t.nbytes <= size
                t.data.sum()
            describe(file)
        message = None
    except FormatError as e:
        message = str(e)
        assert str(path) in message and len(message) < 2000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert work.steps <= size and work.items <= 2 * size
    assert strings_of(path, None) == strings_of(path, _native)
    assert peak < 50 * size + 1_000_000
    return message


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "m.gguf"
    path.touch()
    return path


def rewrite(path: Path, data: bytes) -> None:
    """Write in place: opening thousands of times with truncation takes seconds on ext4."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "t.gguf").read_bytes()


def golden_bytes(name: str) -> bytes:
    path = golden(name)
    if path is None:
        pytest.skip("../shared/vectors is absent")
    return path.read_bytes()


def test_every_length_field_may_lie(scratch: Path, tiny: bytes) -> None:
    for field in fields(tiny):
        old = int.from_bytes(tiny[field.offset : field.offset + field.size], "little")
        for lie in [*LIES, *(WIDE_LIES if field.size == 8 else []), old - 1, old + 1]:
            rewrite(scratch, put(tiny, field, lie))
            message = read_all(scratch)
            # A count or length that cannot be in the file is never believed.
            if field.kind in ("count", "length", "size") and lie >= 1 << 31:
                assert message is not None, (field, lie)


FAULTS = pytest.mark.part("faults")
STORIES = "stories260K-Q4_0.gguf"


@pytest.mark.parametrize(
    ("name", "every"),  # one in so many length fields is tried
    [
        ("bert.gguf", 6),
        pytest.param("bert.gguf", 1, marks=FAULTS),
        pytest.param(STORIES, 1, marks=FAULTS),
    ],
)
def test_length_fields_of_a_model_may_lie(scratch: Path, name: str, every: int) -> None:
    data = golden_bytes(name)
    places = fields(data)
    keep = [f for i, f in enumerate(places) if "[" not in f.what or i % 61 == 0][::every]
    rewrite(scratch, data)
    with open(scratch, "r+b", buffering=0) as file:
        for field in keep:
            for lie in (0, 3, (1 << 32) - 1, 1 << 60):
                patch(file.fileno(), field, put(data, field, lie))
                read_all(scratch)
            patch(file.fileno(), field, data)
    assert scratch.read_bytes() == data and read_all(scratch) is None


def patch(fd: int, field: Field, data: bytes) -> None:
    os.pwrite(fd, data[field.offset : field.offset + field.size], field.offset)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=FAULTS)])
def test_cut_anywhere(scratch: Path, tiny: bytes, every: int) -> None:
    rewrite(scratch, tiny)
    with open_gguf(scratch) as file:
        last = max(t.offset + t.nbytes for t in file.tensors.values())
    for n in {*range(0, len(tiny), every), last - 1, last, len(tiny) - 1}:
        rewrite(scratch, tiny[:n])
        message = read_all(scratch)
        # What follows the last tensor is padding, and some writers leave it out.
        assert (message is None) == (n >= last), (n, message)


@settings(max_examples=examples(5.0), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_flipped_bytes(scratch: Path, tiny: bytes, data: st.DataObject) -> None:
    damaged = bytearray(tiny)
    spots = st.tuples(st.integers(0, len(tiny) - 1), st.integers(0, 255))
    for at, byte in data.draw(st.lists(spots, min_size=1, max_size=8)):
        damaged[at] = byte
    rewrite(scratch, damaged)
    read_all(scratch)


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_flipped_bytes_of_a_model(scratch: Path, data: st.DataObject) -> None:
    original = golden_bytes("gptoss-MXFP4_MOE.gguf")
    damaged = bytearray(original)
    end = data.draw(st.sampled_from([64, 1024, 16384, len(original)]))
    spots = st.tuples(st.integers(0, end - 1), st.integers(0, 255))
    for at, byte in data.draw(st.lists(spots, min_size=1, max_size=4)):
        damaged[at] = byte
    rewrite(scratch, damaged[: data.draw(st.integers(32, len(original)))])
    read_all(scratch)


@settings(max_examples=examples(3.0), suppress_health_check=list(HealthCheck))
@given(st.data())
def test_bytes_put_in_or_taken_out(scratch: Path, tiny: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(4, len(tiny)))
    cut = data.draw(st.integers(0, 40))
    rewrite(scratch, tiny[:at] + data.draw(st.binary(max_size=40)) + tiny[at + cut :])
    read_all(scratch)


@settings(max_examples=examples(2.0), suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_bytes_after_the_magic(scratch: Path, tail: bytes) -> None:
    rewrite(scratch, b"GGUF\x03\0\0\0" + tail)
    read_all(scratch)


STR = struct.pack("<Q", 1) + b"s"
F32 = 0
ONE = struct.pack("<f", 1.0)


def nested(depth: int) -> bytes:
    """An array of arrays of ... of an empty u8 array, `depth` arrays in all."""
    return struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQ", 0, 0)


def info(name: str = "w", ne: tuple[int, ...] = (8,), type_: int = F32, offset: int = 0) -> bytes:
    return tensor_info(name, list(ne), type_, offset)


def align_key(n: int, type_: int = 4) -> bytes:
    return kv("general.alignment", type_, struct.pack("<Q", n)[: 8 if type_ > 9 else 4])


BROKEN = {
    "version 1": (raw_file([], [], version=1), "GGUF version 1; .*convert the model again"),
    "version 0": (raw_file([], [], version=0), "GGUF version 0"),
    "version 4": (raw_file([], [], version=4), "GGUF version 4; .*update weft"),
    "big endian": (raw_file([], [], version=3 << 24), "big-endian.*gguf-convert-endian"),
    "only magic": (b"GGUF", "the version at byte 4 needs 4 bytes"),
    "no counts": (b"GGUF\3\0\0\0\0", "the number of tensors at byte 8"),
    "2^60 tensors": (b"GGUF\3\0\0\0" + struct.pack("<QQ", 1 << 60, 0), "number of tensors"),
    "2^60 keys": (b"GGUF\3\0\0\0" + struct.pack("<QQ", 0, 1 << 60), "number of metadata keys"),
    "empty key": (raw_file([kv("", 4, ONE)], []), "key 0 at byte 24 has a length of 0"),
    "long key": (raw_file([kv("k" * 65536, 4, ONE)], []), "a length of 65536"),
    "long key in a message": (
        raw_file([kv("k" * 60000, 13, ONE)], []),
        "'k{100}'... .* type id 13",
    ),
    "long tensor name in a message": (
        raw_file([], [info("n" * 60000, type_=999)], bytes(32)),
        r"tensor 'n{100}'\.\.\. has type id 999",
    ),
    "key not UTF-8": (
        raw_file([struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<I", 4) + ONE], []),
        "key 0 at byte 24 is not UTF-8",
    ),
    "key twice": (raw_file([kv("k", 4, ONE)] * 2, []), "'k' occurs twice"),
    "value type 13": (raw_file([kv("k", 13, ONE)], []), "'k' .* type id 13"),
    "item type 77": (raw_file([kv("k", 9, struct.pack("<IQ", 77, 0))], []), "'k' .* type id 77"),
    "bool 2": (raw_file([kv("k", 7, b"\2")], []), "'k' .* neither 0 nor 1"),
    "bool 2 in array": (
        raw_file([kv("k", 9, struct.pack("<IQ", 7, 3) + b"\1\0\2")], []),
        "'k' .* neither 0 nor 1",
    ),
    "string past the end": (raw_file([kv("k", 8, struct.pack("<Q", 999))], []), "'k' .*999 bytes"),
    "2^60 numbers": (raw_file([kv("k", 9, struct.pack("<IQ", 12, 1 << 60))], []), "'k' .*needs"),
    "2^60 strings": (raw_file([kv("k", 9, struct.pack("<IQ", 8, 1 << 60))], []), "'k' .*needs"),
    "2^60 arrays": (raw_file([kv("k", 9, struct.pack("<IQ", 9, 1 << 60))], []), "'k' .*needs"),
    "string in array past the end": (
        raw_file([kv("k", 9, struct.pack("<IQ", 8, 2) + STR + struct.pack("<Q", 1 << 20))], []),
        "'k', an array of 2 strings at byte .* past the end",
    ),
    "string length 2^64 - 1 in array": (
        raw_file([kv("k", 9, struct.pack("<IQ", 8, 2) + b"\xff" * 16)], []),
        "'k', an array of 2 strings",
    ),
    "arrays 5 deep": (raw_file([kv("k", 9, nested(5))], []), "'k' nests arrays more than 4 deep"),
    "arrays 6 deep": (raw_file([kv("k", 9, nested(6))], []), "'k' nests arrays more than"),
    "arrays 40000 deep": (raw_file([kv("k", 9, nested(40000))], []), "'k' nests arrays more than"),
    "alignment 0": (raw_file([align_key(0)], []), "general.alignment is 0"),
    "alignment 24": (raw_file([align_key(24)], []), "general.alignment is 24"),
    "alignment 4": (raw_file([align_key(4)], []), "general.alignment is 4;"),
    "alignment 2^31": (raw_file([align_key(1 << 31)], []), "general.alignment is 2147483648"),
    "alignment u64": (raw_file([align_key(32, 10)], []), "general.alignment has the type u64"),
    "tensor twice": (
        raw_file([], [info(), info(offset=32)], bytes(64)),
        "two tensors are called 'w'",
    ),
    "empty tensor name": (raw_file([], [info("")], bytes(32)), "tensor 0 .* length of 0"),
    "long tensor name": (raw_file([], [info("n" * 65536)], bytes(32)), "length of 65536"),
    "5 dimensions": (raw_file([], [info(ne=(1,) * 5)], bytes(32)), "'w' has 5 dimensions"),
    "2^32-1 dimensions": (
        raw_file([], [struct.pack("<QsI", 1, b"w", 0xFFFFFFFF)], bytes(64)),
        "'w' has 4294967295 dimensions",
    ),
    "size 0": (raw_file([], [info(ne=(8, 0))], bytes(32)), r"'w' has the sizes \[0, 8\]"),
    "size 2^63": (raw_file([], [info(ne=(1 << 63,))], bytes(32)), "'w' has the sizes"),
    "sizes overflow": (
        raw_file([], [info(ne=(1 << 32, 1 << 32))], bytes(32)),
        "'w' has the sizes .* product",
    ),
    "sizes wrap to 0": (
        raw_file([], [info(ne=(1 << 31, 1 << 31, 4, 1))], bytes(32)),
        "'w' has the sizes",
    ),
    "unknown type": (raw_file([], [info(type_=999)], bytes(32)), "'w' has type id 999, .*quantize"),
    "dropped type": (raw_file([], [info(type_=31)], bytes(32)), r"31 \(q4_0_4_4\).*dropped"),
    "broken block": (
        raw_file([], [info(ne=(40,), type_=2)], bytes(64)),
        "tensor 'w': .*not a multiple of the 32-element blocks of q4_0",
    ),
    "misaligned": (raw_file([], [info(offset=8)], bytes(64)), "'w' has the offset 8, not a mult"),
    "offset outside": (
        raw_file([], [info(offset=64)], bytes(64)),
        r"'w' \(f32 \[8\]\) takes bytes 128 to 160, but the file ends at byte 128",
    ),
    "offset 2^64 - 32": (
        raw_file([], [info(offset=(1 << 64) - 32)], bytes(64)),
        "'w' .* takes bytes 18446744073709551",
    ),
    "data cut short": (raw_file([], [info(ne=(17,))], bytes(64)), "'w' .*cut short"),
    "overlap": (
        raw_file([], [info("a", (9,)), info("b", offset=32)], bytes(64)),
        "tensors 'a' and 'b' share bytes 128 to 132",
    ),
    "same place": (
        raw_file([], [info("a"), info("b")], bytes(64)),
        "tensors 'a' and 'b' share bytes",
    ),
    "split.no missing": (raw_file([kv("split.count", 4, b"\2\0\0\0")], []), r"'split\.no' is miss"),
    "split.count is text": (raw_file([kv("split.count", 8, STR)], []), "'split.count' .*string"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(tmp_path: Path, name: str) -> None:
    data, pattern = BROKEN[name]
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=pattern) as e:
        open_gguf(path)
    assert str(e.value).startswith(f"{path}: ")
    assert read_all(path) is not None


def test_deepest_nesting_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep.gguf"
    path.write_bytes(raw_file([kv("k", 9, nested(4)), kv("j", 4, ONE)], []))
    assert read_all(path) is None


def test_many_short_strings_cost_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "strings.gguf"
    path.write_bytes(raw_file([kv("k", 9, struct.pack("<IQ", 8, 300_000) + bytes(2_400_000))], []))
    tracemalloc.start()
    try:
        open_gguf(path).close()
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def sparse(path: Path, head: bytes, size: int) -> None:
    """A file of `size` bytes, all but `head` zeros, that takes almost no disk."""
    path.write_bytes(head)
    os.truncate(path, size)


@pytest.mark.parametrize(
    ("type_", "item_bytes"), [(7, 1), (8, 8), (9, 12)], ids=["bools", "strings", "nested arrays"]
)
def test_a_sparse_file_is_refused_before_its_items_are_read(
    tmp_path: Path, type_: int, item_bytes: int
) -> None:
    n = 1 << 28
    head = raw_file([kv("k", 9, struct.pack("<IQ", type_, n))], [])
    path = tmp_path / "sparse.gguf"
    sparse(path, head, len(head) + n * item_bytes)
    with counted() as work, pytest.raises(FormatError, match=r"'k' at byte \d+ is too long"):
        open_gguf(path)
    assert work.steps < 20


def test_a_huge_string_is_summarized_without_decoding_it(tmp_path: Path) -> None:
    n = 1 << 32
    path = tmp_path / "sparse.gguf"
    sparse(path, raw_file([kv("k", 8, struct.pack("<Q", n))], [])[:45], n + 45)
    tracemalloc.start()
    try:
        with open_gguf(path) as file:
            assert describe(file).metadata[0].value.startswith(r"\x00\x00")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def others(folder: Path) -> dict[str, tuple[bytes, str]]:
    archive = folder / "a.zip"
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("data.pkl", b"x" * 100)
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    np.save(folder / "a.npy", np.zeros(4))
    return {
        "zip": (archive.read_bytes(), "zip archive.*convert_hf_to_gguf"),
        "safetensors": (struct.pack("<Q", len(header)) + header + bytes(4), "safetensors.*convert"),
        "pickle": (pickle.dumps({"a": 1}, protocol=2), "pickle.*convert"),
        "gzip": (gzip.compress(b"GGUF"), "gzip archive; unpack"),
        "html": (b"\n<!DOCTYPE html>\n<html>", "web page"),
        "xml": (b"<?xml version='1.0'?><Error>", "server's reply"),
        "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        "ggml": (b"lmgg" + bytes(60), "unversioned ggml model"),
        "ggjt": (b"tjgg\3\0\0\0" + bytes(60), "ggjt model"),
        "onnx": (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0", "ONNX"),
        "npy": ((folder / "a.npy").read_bytes(), "NumPy array"),
        "executorch": (b"\x1c\0\0\0ET12" + bytes(40), "ExecuTorch"),
        "swapped": (b"FUGG" + bytes(40), "swapped bytes"),
        "zeros": (bytes(4096), "zeros"),
        "json": (b'{"error": "not found"}', "looks like text"),
        "cut magic": (b"GGU", "looks like text"),
        "noise": (b"\xde\xad\xbe\xef" * 8, "instead of b'GGUF'"),
    }


def test_other_formats_are_named(tmp_path: Path) -> None:
    for name, (data, pattern) in others(tmp_path).items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        with pytest.raises(FormatError, match=f"not a GGUF file: .*{pattern}"):
            open_gguf(path)


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no such file: .*none\.gguf"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(FormatError, match="is a directory"):
        open_gguf(tmp_path)
    with pytest.raises(FormatError, match=r"cannot read 'a.x00b'"):
        open_gguf("a\0b")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(FormatError, match=r"empty\.gguf is empty"):
        open_gguf(tmp_path / "empty.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(FormatError, match="not a plain file"):
        open_gguf(tmp_path / "pipe.gguf")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all files")
def test_unreadable(tmp_path: Path, tiny: bytes) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(tiny)
    path.chmod(0)
    with pytest.raises(FormatError, match="Permission denied"):
        open_gguf(path)
