from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf_files import (
    DATA,
    golden,
    golden_models,
    kv,
    raw_file,
    tensor_info,
    tiny_metadata,
    tiny_tensors,
    write_tiny,
)

from weft.errors import FormatError, MissingFileError
from weft.frontends.gguf import GGUFFile, ValueType, open_gguf
from weft.frontends.gguf.writer import write_gguf

# The PyPI reader needs seconds for these two; test_big_vocabulary reads them another way.
BIG = {"ggml-vocab-llama-bpe.gguf", "ggml-vocab-qwen2.gguf"}
MODELS = [p for p in golden_models() if p.name not in BIG]
needs_golden = pytest.mark.skipif(not MODELS, reason="../shared/vectors is absent")


@pytest.fixture
def tiny(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_tiny(tmp_path / "tiny.gguf"))


@needs_golden
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_equals_the_pypi_reader(path: Path) -> None:
    theirs = GGUFReader(path)
    with open_gguf(path) as ours:
        fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
        assert list(ours.metadata) == list(fields)
        for key, field in fields.items():
            value = ours.metadata[key]
            assert ours.metadata.type_of(key) == field.types[0]
            if isinstance(value, np.ndarray):
                assert value.dtype == np.asarray(field.parts[field.data[0]]).dtype
                value = value.tolist()
            assert value == field.contents(), key
        assert list(ours.tensors) == [t.name for t in theirs.tensors]
        for t in theirs.tensors:
            mine = ours.tensors[t.name]
            assert mine.ne[: mine.n_dims] == tuple(t.shape.tolist())
            assert mine.ne[mine.n_dims :] == (1,) * (4 - mine.n_dims)
            assert mine.dtype.id == t.tensor_type
            assert (mine.offset, mine.nbytes) == (t.data_offset, t.n_bytes)
            assert mine.n_elements == t.n_elements
            assert np.array_equal(mine.data, t.data.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("name", sorted(BIG))
def test_big_vocabulary(name: str) -> None:
    path = golden(name)
    if path is None:
        pytest.skip("../shared/vectors is absent")
    with open_gguf(path) as file:
        tokens = file.get_bytes_list("tokenizer.ggml.tokens")
        merges = file.get_str_list("tokenizer.ggml.merges")
        assert len(tokens) == file.metadata.count_of("tokenizer.ggml.tokens") > 120_000
        assert [t.decode() for t in tokens] == file.get_str_list("tokenizer.ggml.tokens")
        # Both lists, put together again, are the bytes of the file.
        for key, items in (
            ("tokenizer.ggml.tokens", tokens),
            ("tokenizer.ggml.merges", [m.encode() for m in merges]),
        ):
            stored = b"".join(struct.pack("<Q", len(i)) + i for i in items)
            assert file.metadata.raw(key).data == struct.pack("<IQ", 8, len(items)) + stored


def test_opening_decodes_no_array(tmp_path: Path) -> None:
    path = tmp_path / "vocab.gguf"
    write_gguf(path, {"tokens": [f"token {i}" for i in range(50_000)]}, [])
    tracemalloc.start()
    try:
        file = open_gguf(path)
        opened = tracemalloc.get_traced_memory()[1]
        assert len(file.get_str_list("tokens")) == 50_000
        decoded = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert opened < 100_000 < 2_000_000 < decoded


def test_values(tiny: GGUFFile) -> None:
    wanted = tiny_metadata()
    assert list(tiny.metadata) == list(wanted)
    for key, value in tiny.metadata.items():
        if isinstance(wanted[key], np.ndarray | list) and isinstance(value, np.ndarray):
            assert value.tolist() == np.asarray(wanted[key]).tolist()
            assert not value.flags.writeable
        elif key not in ("t.raw", "t.strings"):
            assert value == wanted[key]
    assert tiny.metadata["t.none"].dtype == np.int32
    assert tiny.metadata["t.bools"].dtype == np.bool_
    assert tiny.metadata["t.true"] is True
    assert isinstance(tiny.metadata["t.u8"], int) and isinstance(tiny.metadata["t.f64"], float)


def test_strings_that_are_not_utf8_are_kept(tiny: GGUFFile) -> None:
    assert tiny.get_bytes("t.raw") == b"\xff\xfea"
    assert tiny.get_str("t.raw").encode("utf-8", "surrogateescape") == b"\xff\xfea"
    pieces = [b"<unk>", b"", "ö".encode(), b"\xe2\x96", "\u2581the".encode()]
    assert tiny.get_bytes_list("t.strings") == pieces
    assert [s.encode("utf-8", "surrogateescape") for s in tiny.get_str_list("t.strings")] == pieces


def test_peek_and_types(tiny: GGUFFile) -> None:
    meta = tiny.metadata
    assert meta.peek("t.strings", 3, 3) == ["<un", "", "ö"]
    assert meta.peek("t.ints", 2, 0).tolist() == [1, -2]
    assert meta.peek("t.ints", 9, 0).tolist() == [1, -2, 3]
    assert meta.peek("general.name", 0, 2) == "ti"
    assert meta.peek("t.u8", 2, 0) == 200
    assert meta.count_of("t.strings") == 5 and meta.count_of("t.u8") == 1
    assert meta.type_of("t.i16") is ValueType.I16
    assert meta.item_type_of("t.floats") is ValueType.F32 and meta.item_type_of("t.u8") is None
    assert meta.label_of("t.strings") == "array of string"
    assert "t.u8" in meta and "t.u9" not in meta


def test_tensor_data_shares_the_map(tiny: GGUFFile) -> None:
    whole = np.memmap(tiny.path, np.uint8, "r")
    for name, dtype, ne, data in tiny_tensors():
        t = tiny.tensors[name]
        assert (t.name, t.dtype.name, t.ne[: t.n_dims]) == (name, dtype, ne)
        assert t.shape == ne[::-1]
        assert t.offset % tiny.alignment == 0
        assert np.array_equal(t.data, data)
        assert np.array_equal(whole[t.offset : t.offset + t.nbytes], data)
        assert not t.data.flags.writeable and not t.data.flags.owndata
        assert np.shares_memory(t.data, t.data)
    assert tiny.alignment == 64 and tiny.version == 3


def test_close(tiny: GGUFFile) -> None:
    t = tiny.tensors["output_norm.weight"]
    kept = t.data
    copy = kept.copy()
    with tiny as same:
        assert same is tiny
    assert np.array_equal(kept, copy)
    with pytest.raises(FormatError, match=r"tiny\.gguf is closed"):
        _ = t.data
    with pytest.raises(FormatError, match="closed"):
        _ = tiny.metadata["t.strings"]
    tiny.close()


def test_getters(tiny: GGUFFile) -> None:
    assert tiny.get_int("t.i64") == -(1 << 62)
    assert tiny.get_float("t.f64") == 0.1
    assert tiny.get_float("t.i8") == -100.0 and isinstance(tiny.get_float("t.i8"), float)
    assert tiny.get_bool("t.false") is False
    assert tiny.get_str("general.name") == "tiny"
    assert tiny.get_array("t.ints").tolist() == [1, -2, 3]
    assert tiny.get_int("none", 7) == 7
    assert tiny.get_int("none", False) is False
    assert tiny.get_float("none", None) is None
    assert tiny.get_array("none", None) is None
    assert tiny.get_bytes_list("none", None) is None
    assert tiny.get_bytes("none", b"x") == b"x"


@pytest.mark.parametrize(
    ("getter", "key", "found", "wanted"),
    [
        ("get_int", "t.f32", "f32", "an integer"),
        ("get_int", "t.true", "bool", "an integer"),
        ("get_int", "t.ints", "array of i32", "an integer"),
        ("get_float", "t.true", "bool", "a float"),
        ("get_float", "general.name", "string", "a float"),
        ("get_bool", "t.u8", "u8", "a bool"),
        ("get_str", "t.strings", "array of string", "a string"),
        ("get_bytes", "t.u8", "u8", "a string"),
        ("get_array", "t.strings", "array of string", "an array of numbers"),
        ("get_array", "t.u8", "u8", "an array of numbers"),
        ("get_str_list", "t.ints", "array of i32", "an array of strings"),
        ("get_bytes_list", "general.name", "string", "an array of strings"),
    ],
)
def test_getters_refuse_other_types(
    tiny: GGUFFile, getter: str, key: str, found: str, wanted: str
) -> None:
    with pytest.raises(FormatError) as e:
        getattr(tiny, getter)(key)
    for part in ("tiny.gguf", repr(key), f"the type {found},", wanted):
        assert part in str(e.value)


@pytest.mark.parametrize(
    "getter",
    "int float bool str bytes array str_list bytes_list".split(),
)
def test_getters_refuse_a_missing_key(tiny: GGUFFile, getter: str) -> None:
    with pytest.raises(FormatError, match=r"tiny\.gguf: the metadata key 'no\.key' is missing"):
        getattr(tiny, f"get_{getter}")("no.key")


def test_mapping_raises_key_error_like_any_mapping(tiny: GGUFFile) -> None:
    with pytest.raises(KeyError):
        _ = tiny.metadata["no.key"]
    assert tiny.metadata.get("no.key") is None


def test_kind_and_architecture(tmp_path: Path, tiny: GGUFFile) -> None:
    assert (tiny.architecture, tiny.kind) == ("llama", "model")
    path = tmp_path / "a.gguf"
    write_gguf(path, {}, [])
    with open_gguf(path) as file:
        assert file.kind == "vocab"
        with pytest.raises(FormatError, match=r"'general\.architecture' is missing"):
            _ = file.architecture
    write_gguf(path, {"general.type": "adapter"}, [])
    with open_gguf(path) as file:
        assert file.kind == "adapter"


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path: Path, version: int) -> None:
    path = tmp_path / "v.gguf"
    write_gguf(path, tiny_metadata(), tiny_tensors(), version=version)
    with GGUFFile.open(path) as file:
        assert file.version == version and len(file.tensors) == 3


def test_committed_file_reads_the_same() -> None:
    with open_gguf(DATA / "tiny.gguf") as file:
        assert file.get_int("t.u64") == 1 << 63
        assert file.get_float("t.f32") == pytest.approx(1e-5)
        assert file.tensors["blk.0.attn_q.weight"].ne == (4, 3, 2, 1)
        assert file.tensors["token_embd.weight"].nbytes == 4 * 2 * 18
        assert int(file.tensors["output_norm.weight"].data.sum()) == int(
            np.asarray(tiny_tensors()[1][3]).sum()
        )


def test_nested_arrays(tmp_path: Path) -> None:
    inner = [struct.pack("<IQ", 5, 2) + struct.pack("<2i", i, -i) for i in range(3)]
    words = struct.pack("<IQ", 8, 2) + struct.pack("<Q2sQ1s", 2, b"ab", 1, b"c")
    path = tmp_path / "nested.gguf"
    path.write_bytes(
        raw_file(
            [
                kv("ints", 9, struct.pack("<IQ", 9, 3) + b"".join(inner)),
                kv("mixed", 9, struct.pack("<IQ", 9, 2) + words + inner[1]),
                kv("after", 4, struct.pack("<I", 7)),
            ],
            [],
        )
    )
    with open_gguf(path) as file:
        assert [a.tolist() for a in file.metadata["ints"]] == [[0, 0], [1, -1], [2, -2]]
        strings, ints = file.metadata["mixed"]
        assert strings == ["ab", "c"] and ints.tolist() == [1, -1]
        assert file.get_int("after") == 7
        with pytest.raises(FormatError, match="array of array"):
            file.get_str_list("mixed")


def test_tensor_without_dimensions_is_a_scalar(tmp_path: Path) -> None:
    path = tmp_path / "scalar.gguf"
    path.write_bytes(raw_file([], [tensor_info("s", [], 0, 0)], struct.pack("<f", 2.5)))
    with open_gguf(path) as file:
        t = file.tensors["s"]
        assert (t.ne, t.n_dims, t.shape, t.nbytes) == ((1, 1, 1, 1), 0, (), 4)
        assert t.data.view("<f4")[0] == 2.5


def test_i2_s_has_32_bytes_more(tmp_path: Path) -> None:
    path = tmp_path / "i2.gguf"
    path.write_bytes(raw_file([], [tensor_info("w", [128, 3], 36, 0)], bytes(range(128))))
    with open_gguf(path) as file:
        assert file.tensors["w"].nbytes == 128 * 3 // 4 + 32
    path.write_bytes(raw_file([], [tensor_info("w", [128, 3], 36, 0)], bytes(127)))
    with pytest.raises(FormatError, match=r"'w' \(i2_s \[3, 128\]\)"):
        open_gguf(path)


def test_offsets_need_not_be_in_order(tmp_path: Path) -> None:
    path = tmp_path / "order.gguf"
    infos = [tensor_info("b", [8], 24, 32), tensor_info("a", [4], 24, 0)]
    path.write_bytes(raw_file([], infos, bytes(range(40))))
    with open_gguf(path) as file:
        assert file.tensors["b"].data.tolist() == list(range(32, 40))
        assert file.tensors["a"].data.tolist() == list(range(4))


def test_the_beginning_of_a_file_is_enough_for_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    rows = [("a", "f32", (4,), bytes(16)), ("b", "f16", (8, 2), bytes(32))]
    write_gguf(path, {"general.architecture": "x"}, rows)
    with open_gguf(path) as file:
        whole = {t.name: (t.ne, t.offset, t.nbytes) for t in file.tensors.values()}
        cut = file.tensors["b"].offset
        assert file.n_missing == 0
    path.write_bytes(path.read_bytes()[: cut + 1])
    with pytest.raises(FormatError, match="the file is cut short"):
        open_gguf(path)
    with open_gguf(path, whole=False) as file:
        assert {t.name: (t.ne, t.offset, t.nbytes) for t in file.tensors.values()} == whole
        assert file.n_missing == 31
        assert file.tensors["b"].data.shape == (32,) and not file.tensors["b"].data.any()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FormatError, match="cut short"):
        open_gguf(path, whole=False)


def test_a_link_to_nothing(tmp_path: Path) -> None:
    link = tmp_path / "m.gguf"
    link.symlink_to("blob")
    with pytest.raises(MissingFileError, match=r"m\.gguf is a link to blob, which is not there"):
        open_gguf(link)
