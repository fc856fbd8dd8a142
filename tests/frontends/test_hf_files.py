"""Files of Hugging Face folders: what converting them gives, and what damaged ones say."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.filemap import FileMap
from weft.frontends.hf.checkpoints import mxfp4_blocks
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.safetensors import open_shards, read_safetensors
from weft.frontends.hf.values import decode_f8
from weft.frontends.hf.vocab import read_pieces
from weft.frontends.models import open_model
from weft.quants import decode

DATA = Path(__file__).parents[1] / "data" / "hf"
CONVERTED: dict[str, str] = json.loads((DATA / "converted.json").read_text())
"""SHA-256 of the files that the reference's converter makes, by folder and type."""
LLAMA = "Llama-3.1-Tiny-Instruct"


@pytest.mark.parametrize("case", CONVERTED)
def test_bytes_of_the_reference(tmp_path: Path, case: str) -> None:
    pytest.importorskip("gguf")
    name, kind = case.split()
    convert_folder(DATA / name, tmp_path / "m.gguf", kind)
    assert hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest() == CONVERTED[case]


def write(path: Path, header: Any, data: bytes = b"", n: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if n is None else n) + text + data)
    return path


ROW = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
BAD_HEADERS: dict[str, tuple[Any, str]] = {
    "not JSON": (b"{", "not JSON"),
    "deep": (b"[" * 100_000, "not JSON|not a JSON object"),
    "list": ([], "not a JSON object"),
    "no type": ({"x": {**ROW, "dtype": 4}}, "wrongly"),
    "unknown type": ({"x": {**ROW, "dtype": "F4"}}, "'F4'"),
    "negative": ({"x": {**ROW, "shape": [-2, -2]}}, "wrongly"),
    "floats": ({"x": {**ROW, "shape": [2.0, 2]}}, "wrongly"),
    "huge": ({"x": {**ROW, "shape": [1 << 61, 1 << 61]}}, "cut short or damaged"),
    "three offsets": ({"x": {**ROW, "data_offsets": [0, 16, 32]}}, "wrongly"),
    "past the end": ({"x": {**ROW, "data_offsets": [8, 24]}}, "cut short or damaged"),
    "too few bytes": ({"x": {**ROW, "data_offsets": [0, 12]}}, "cut short or damaged"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_damaged_headers(tmp_path: Path, name: str) -> None:
    header, message = BAD_HEADERS[name]
    path = write(tmp_path / "m.safetensors", header, bytes(16))
    with pytest.raises(FormatError, match=message) as error:
        read_safetensors(FileMap(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("n", [1 << 63, 200, 0])
def test_lengths_that_lie(tmp_path: Path, n: int) -> None:
    with pytest.raises(FormatError):
        read_safetensors(FileMap(write(tmp_path / "m", {"x": ROW}, bytes(16), n)))


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(DATA / name, tmp_path / name))


def test_missing_parts(tmp_path: Path) -> None:
    folder = copied(tmp_path, "qwen3-tiny-moe")
    shards = sorted(folder.glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(FormatError, match=f"1 of 3 files are missing .{shards[1].name}"):
        open_shards(folder)
    index = folder / "model.safetensors.index.json"
    index.unlink()
    (folder / f"{shards[1].name}.incomplete").write_text("")
    with pytest.raises(FormatError, match=rf"1 of 3 files .*{shards[1].name}.*not ended"):
        open_shards(folder)
    shards[0].unlink()
    shards[2].unlink()
    with pytest.raises(FormatError, match=r"download is not finished: .*\.incomplete is there"):
        open_shards(folder)
    index.write_text('{"weight_map": {"x": "../../etc/passwd"}}')
    with pytest.raises(FormatError, match="weight_map"):
        open_shards(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FormatError, match=r"without config\.json"):
        open_model(folder)


def test_folders_of_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"]}')
    with pytest.raises(FormatError, match=r"'NoSuchForCausalLM'.*it knows \d+ classes"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}'
    )
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(FormatError, match="pickle"):
        open_model(tmp_path)


def change(folder: Path, name: str, **values: object) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_wrong_configurations(tmp_path: Path) -> None:
    folder = copied(tmp_path, LLAMA)
    change(folder, "config.json", num_hidden_layers="two")
    with pytest.raises(FormatError, match=r"config\.json: 'n_layers' is None|'two'"):
        open_model(folder)
    change(folder, "config.json", num_hidden_layers=1, quantization_config={"quant_method": "aqlm"})
    with pytest.raises(FormatError, match="'aqlm'; weft reads fp8"):
        open_model(folder)


@pytest.mark.parametrize(
    "values", [{"rms_norm_eps": "x"}, {"rope_parameters": {"rope_theta": []}},
               {"quantization_config": 4}],
)  # fmt: skip
def test_values_of_a_wrong_kind(tmp_path: Path, values: dict[str, object]) -> None:
    folder = copied(tmp_path, LLAMA)
    change(folder, "config.json", **values)
    with pytest.raises(FormatError, match=r"config\.json or .* have a value of a wrong kind"):
        open_model(folder)


def test_pointers_of_git_lfs(tmp_path: Path) -> None:
    folder = copied(tmp_path, LLAMA)
    next(folder.glob("*.safetensors")).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(FormatError, match=r"not a safetensors file: .*git-lfs pointer"):
        open_model(folder)


def test_unknown_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary whose pre-tokenizer nobody knows."""
    folder = copied(tmp_path, LLAMA)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": "x+"},
        "behavior": "Isolated",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert open_model(folder).get_str("tokenizer.ggml.pre") == "huggingface"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FormatError, match=r"asks for what only the package tokenizers.*x\+.*pip"):
        open_model(folder)


def test_a_folder_looks_like_its_file(tmp_path: Path) -> None:
    """The same keys and tensors, but for names and what queries and keys are stored as."""
    pytest.importorskip("gguf")
    convert_folder(DATA / LLAMA, tmp_path / "m.gguf")
    folder, file = open_model(DATA / LLAMA), open_gguf(tmp_path / "m.gguf")
    assert list(folder.tensors) == list(file.tensors)
    for name, tensor in file.tensors.items():
        own = folder.tensors[name]
        assert (own.dtype, own.ne) == (tensor.dtype, tensor.ne)
        if "attn_q" not in name and "attn_k" not in name:
            np.testing.assert_array_equal(own.data, tensor.data)
    extra = {key for key in folder.metadata if key not in file.metadata}
    assert extra == {"weft.rope_halves"}
    own_keys = [k for k in file.metadata if not k.startswith("general.")]
    assert [k for k in folder.metadata if k in own_keys] == own_keys
    assert all(folder.metadata.raw(k) == file.metadata.raw(k) for k in own_keys)


def test_a_vocabulary_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def counted(path: Path, what: str) -> Any:
        names.append(path.name)
        return read_json(path, what)

    monkeypatch.setattr("weft.frontends.hf.config.read_json", counted)
    open_model(DATA / LLAMA)
    assert names.count("tokenizer.json") == names.count("tokenizer_config.json") == 1


def test_float8() -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(256, dtype=np.uint8)
    kinds = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
    for kind, theirs in kinds.items():
        want = torch.from_numpy(codes).view(theirs).float().numpy()
        np.testing.assert_array_equal(decode_f8(codes, kind), want)


def test_mxfp4_blocks() -> None:
    random = np.random.default_rng(1)
    codes = random.integers(0, 256, (3, 2, 16), np.uint8)
    scales = random.integers(120, 130, (3, 2), np.uint8)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    each = np.stack((codes & 15, codes >> 4), -1).reshape(3, 2, 32)
    want = values[each] * np.ldexp(np.float32(1), scales.astype(int) - 127)[..., None]
    np.testing.assert_array_equal(decode(mxfp4_blocks(codes, scales), "mxfp4"), want.reshape(3, 64))


@pytest.mark.parametrize(
    "data", [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x7f", b"\xff" * 20, b"hello"]
)
def test_damaged_pieces(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"SentencePiece|no tokens"):
        read_pieces(path)
