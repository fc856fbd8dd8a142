"""Files of bitnet.cpp in TL1 and TL2: weights in an order that the file does not tell.

`tl1` and `tl2` lay weights out as bitnet.cpp's converter does (microsoft/BitNet,
utils/convert-hf-to-gguf-bitnet.py), for the sizes of blocks that its kernel_config.ini has.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf_files import kv, raw_file, tensor_info
from numpy.typing import NDArray

import weft
from tests.cli.in_process import weft as command
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf

Signs = NDArray[np.int64]
TL1, TL2, MXFP4, IQ4_NL_8_8 = 38, 39, 39, 38
REFUSED = {TL1: "TL1 of bitnet.cpp (type id 38)", TL2: "TL2 of bitnet.cpp (type id 39)"}


def signs(rows: int, depth: int) -> Signs:
    return np.random.default_rng(rows + depth).integers(-1, 2, (rows, depth))


def tl1(w: Signs, bm: int, bk: int, lanes: int) -> bytes:
    """Blocks of `bm` rows and `bk` columns, in them of `lanes` rows and 256 / lanes columns."""
    rows, depth = w.shape
    pairs = 3 * w[:, ::2] + w[:, 1::2] + 4
    at = pairs.reshape(
        rows // bm, bm // lanes, lanes // 16, 16, depth // bk, bk * lanes // 256, 64 // lanes, 2
    )
    nibbles = at.transpose(0, 4, 1, 5, 2, 6, 3, 7).reshape(-1, 2)
    return (nibbles[:, 0] << 4 | nibbles[:, 1]).astype(np.uint8).tobytes()


def tl2(w: Signs, bm: int, bk: int) -> bytes:
    """As many whole blocks of `bk` columns as there are in threes, the other columns in twos."""
    rows, depth = w.shape
    threes = depth // bk * bk
    a, b, c = (w[:, i:threes:3] for i in range(3))
    value = 9 * a + 3 * b + c
    data = _rows_of_32(np.abs(value), bm, bk // 3)
    minus = (value < 0).reshape(rows // bm, bm // 32, 2, 16, threes // bk, bk // 24, 8)
    bits = minus.transpose(0, 4, 1, 5, 3, 6, 2).reshape(-1, 16)
    data += (bits << np.arange(15, -1, -1)).sum(1).astype("<u2").tobytes()
    if threes < depth:
        data += _rows_of_32(3 * w[:, threes::2] + w[:, threes + 1 :: 2] + 4, bm, 16)
    return data.ljust((depth - 256) * rows // 3 * 5 // 8 + 256 * rows // 2 * 4 // 8, b"\0")


def _rows_of_32(codes: Signs, bm: int, per_block: int) -> bytes:
    """Two codes to a byte; of 32 rows, 8 to 15 and 16 to 23 change places."""
    rows, n = codes.shape
    at = codes.reshape(rows // bm, bm // 32, 4, 8, n // per_block, per_block // 2, 2)
    at = at.transpose(0, 4, 1, 5, 2, 3, 6)[:, :, :, :, [0, 2, 1, 3]]
    return (at[..., 0] << 4 | at[..., 1]).astype(np.uint8).tobytes()


def model_file(
    path: Path, type_: int, data: bytes, *, rows: int, depth: int, arch: str = "bitnet-b1.58"
) -> Path:
    """A weight and its scale, as the converter writes them."""
    name = arch.encode()
    keys = [
        kv("general.architecture", 8, struct.pack("<Q", len(name)) + name),
        kv("general.file_type", 4, struct.pack("<I", type_)),
    ]
    at = -(-len(data) // 32) * 32
    infos = [
        tensor_info("blk.0.attn_q.weight", [depth, rows], type_, 0),
        tensor_info("blk.0.attn_q.weight_scale", [], 0, at),
    ]
    path.write_bytes(raw_file(keys, infos, data.ljust(at, b"\0") + struct.pack("<f", 0.7)))
    return path


def test_two_orders_of_the_same_weights_look_alike() -> None:
    """Which is why such a file cannot be read: both sizes of blocks are in use for this shape."""
    w = signs(256, 768)
    assert len(tl1(w, 256, 128, 64)) == len(tl1(w, 256, 128, 32)) == w.size // 4
    assert tl1(w, 256, 128, 64) != tl1(w, 256, 128, 32) != tl1(w, 128, 64, 32)
    assert len(tl2(w, 256, 96)) == len(tl2(w, 128, 96)) and tl2(w, 256, 96) != tl2(w, 128, 96)


@pytest.mark.parametrize("arch", ["bitnet-b1.58", "bitnet", "llama"])
@pytest.mark.parametrize(
    ("rows", "depth", "bm", "bk"), [(256, 768, 128, 96), (1536, 1536, 128, 192),
                                    (320, 3200, 320, 96), (256, 4096, 256, 96)],
)  # fmt: skip
def test_they_are_refused_by_name(
    tmp_path: Path, arch: str, rows: int, depth: int, bm: int, bk: int
) -> None:
    w = signs(rows, depth)
    for type_, data in ((TL1, tl1(w, bm, 64, 32)), (TL2, tl2(w, bm, bk))):
        path = model_file(tmp_path / "m.gguf", type_, data, rows=rows, depth=depth, arch=arch)
        with pytest.raises(FormatError) as error:
            open_gguf(path)
        said = str(error.value)
        assert f"'blk.0.attn_q.weight' is {REFUSED[type_]}" in said
        assert "kernel_config.ini" in said and "--type i2_s" in said and "damaged" not in said


def test_a_file_that_is_cut_short_is_still_what_it_is(tmp_path: Path) -> None:
    w = signs(256, 768)
    path = model_file(tmp_path / "m.gguf", TL2, tl2(w, 128, 96), rows=256, depth=768)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(FormatError, match=r"is TL2 of bitnet\.cpp"):
        open_gguf(path)


def test_a_weight_without_its_scale_is_known_by_its_size(tmp_path: Path) -> None:
    """llama-quantize of bitnet.cpp counts 32 bytes more for the scale."""
    w = signs(128, 768)
    for type_, data in ((TL1, tl1(w, 128, 64, 32)), (TL2, tl2(w, 128, 96))):
        for more in (0, 32):
            path = tmp_path / "m.gguf"
            infos = [tensor_info("w", [768, 128], type_, 0)]
            path.write_bytes(raw_file([], infos, data + bytes(more)))
            with pytest.raises(FormatError, match=f"'w' is TL{type_ - 37} of bitnet.cpp"):
                open_gguf(path)


def test_ggml_s_types_with_the_same_numbers(tmp_path: Path) -> None:
    """mxfp4 is read, also beside a scale of its name; it is damaged where its bytes are missing."""
    path, n = tmp_path / "m.gguf", 768 * 128
    data = bytes(n // 32 * 17)
    model_file(path, MXFP4, data, rows=128, depth=768, arch="gpt-oss")
    with open_gguf(path) as file:
        assert file.tensors["blk.0.attn_q.weight"].dtype.name == "mxfp4"
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(FormatError, match="cut short or damaged"):
        open_gguf(path)
    model_file(path, IQ4_NL_8_8, bytes(n // 32 * 18), rows=128, depth=768, arch="llama")
    with pytest.raises(FormatError, match=r"iq4_nl_8_8\), which ggml has dropped"):
        open_gguf(path)


def test_a_dropped_type_is_not_read_as_i2_s(tmp_path: Path) -> None:
    path, n = tmp_path / "m.gguf", 768 * 128
    path.write_bytes(raw_file([], [tensor_info("w", [768, 128], 36, 0)], bytes(n // 32 * 18)))
    with pytest.raises(FormatError, match=r"iq4_nl_4_4\), which ggml has dropped"):
        open_gguf(path)
    path.write_bytes(raw_file([], [tensor_info("w", [768, 128], 36, 0)], bytes(n // 4 + 32)))
    with open_gguf(path) as file:
        assert file.tensors["w"].dtype.name == "i2_s"


@pytest.mark.parametrize(
    "arguments",
    [["inspect"], ["gguf", "check"], ["gguf", "split", "--split-max-size", "1M"], ["explain"],
     ["run", "-p", "a"], ["bench"], ["tokenize"], ["serve", "--port", "0"], ["quantize"]],
    ids=lambda a: " ".join(a[:2]),
)  # fmt: skip
def test_every_command_says_it(tmp_path: Path, arguments: list[str]) -> None:
    w = signs(256, 768)
    path = model_file(tmp_path / "m.gguf", TL2, tl2(w, 128, 96), rows=256, depth=768)
    last = {"quantize": ["out.gguf", "Q8_0"], "tokenize": ["a"]}.get(arguments[0], [])
    if "split" in arguments:
        last = [str(tmp_path / "part")]
    at = 2 if arguments[0] == "gguf" else 1
    done = command(*arguments[:at], path, *last, *arguments[at:])
    said = " ".join((done.stderr + done.stdout).split())
    assert done.returncode and "is TL2 of bitnet.cpp (type id 39)" in said
    assert "damaged" not in said and "Traceback" not in said


def test_a_program_is_told(tmp_path: Path) -> None:
    w = signs(256, 768)
    path = model_file(tmp_path / "m.gguf", TL1, tl1(w, 128, 64, 32), rows=256, depth=768)
    with pytest.raises(FormatError, match=r"is TL1 of bitnet\.cpp"):
        weft.LLM(path)
