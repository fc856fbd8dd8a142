"""Quantizing files: bytes as the reference's tool writes them, and what is left alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from weft import quants
from weft.dtype import DTYPES
from weft.errors import UnsupportedOpError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.mixes import MIXES, Choices, find_mix, mix_types
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.quantize import types_of as file_types
from weft.frontends.gguf.shards import ShardLimits, split_file
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import TensorSource, write_gguf

SOURCE = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


@pytest.mark.parametrize("dtype", ["F16", "Q8_0", "Q4_0"])
def test_same_bytes_as_the_reference(vectors: Path, tmp_path: Path, dtype: str) -> None:
    folder = vectors / "models" / "stories260K"
    out = tmp_path / "out.gguf"
    quantize_file(folder / "stories260K-F32.gguf", out, dtype, choices=Choices(pure=True))
    with open_gguf(out) as ours, open_gguf(folder / f"stories260K-{dtype}.gguf") as theirs:
        assert set(ours.tensors) == set(theirs.tensors)
        for name, t in theirs.tensors.items():
            assert ours.tensors[name].dtype is t.dtype, name
            np.testing.assert_array_equal(ours.tensors[name].data, t.data, err_msg=name)


def test_metadata_vectors_and_norms_stay(tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    report = quantize_file(SOURCE, out, "q4_0")
    with open_gguf(SOURCE) as old, open_gguf(out) as new:
        kept = set(old.metadata) - {"general.file_type", "general.quantization_version"}
        assert all(new.metadata.raw(k) == old.metadata.raw(k) for k in kept)
        assert new.get_int("general.file_type") == 2
        for t in report:
            if "norm" in t.name or "rope_freqs" in t.name:
                assert t.before is t.after
                np.testing.assert_array_equal(new.tensors[t.name].data, old.tensors[t.name].data)
        x = quants.decode(old.tensors["blk.0.attn_q.weight"].data.reshape(-1, 256),
                          old.tensors["blk.0.attn_q.weight"].dtype)  # fmt: skip
        got = new.tensors["blk.0.attn_q.weight"].data
        np.testing.assert_array_equal(got, quants.encode(x, new.tensors["blk.0.attn_q.weight"]
                                                         .dtype).reshape(-1))  # fmt: skip


def test_ternary_files_convert_without_loss(vectors: Path, tmp_path: Path) -> None:
    source = vectors / "models" / "quant" / "bitnet_wide-TQ2_0.gguf"
    out = tmp_path / "i2_s.gguf"
    quantize_file(source, out, "i2_s")
    with open_gguf(source) as old, open_gguf(out) as new:
        converted = [n for n, t in new.tensors.items() if t.dtype.name == "i2_s"]
        assert len(converted) == 14
        for name in converted:
            t = old.tensors[name]
            want = quants.decode(t.data.reshape(-1, t.dtype.row_bytes(t.ne[0])), t.dtype)
            got = quants.decode_i2_s(new.tensors[name].data, t.n_elements)
            np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-3)


def test_every_mix_chooses_types_as_the_reference_does(vectors: Path) -> None:
    """The golden files were quantized by the reference's tool; names and sizes decide alone."""
    compared = 0
    for path in sorted((vectors / "models" / "quant").glob("*.gguf")):
        name = path.stem.partition("-")[2]
        if name.upper() not in MIXES:
            continue
        with open_gguf(path) as file:
            types = mix_types(file.tensors.values(), file.metadata, find_mix(name))
            assert {n: t.name for n, t in types.items()} == {
                n: t.dtype.name for n, t in file.tensors.items()
            }, path.name
        compared += 1
    assert compared >= 18


@pytest.mark.parametrize(
    ("name", "layers", "expected"),
    [
        # bytes of a Q4_K_M file: values and down projections of layers 0, 1, every third, 14, 15
        ("Q4_K_M", 16, {"blk.0.attn_v": "q6_K", "blk.1.ffn_down": "q6_K", "blk.2.attn_v": "q4_K",
                        "blk.4.ffn_down": "q6_K", "blk.5.ffn_down": "q4_K",
                        "blk.15.attn_v": "q6_K", "blk.3.attn_q": "q4_K"}),
        ("q4_k_s", 16, {"blk.3.attn_v": "q5_K", "blk.4.attn_v": "q4_K", "blk.1.ffn_down": "q5_K",
                        "blk.2.ffn_down": "q4_K"}),
        ("Q3_K_L", 16, {"blk.9.attn_v": "q5_K", "blk.9.attn_output": "q5_K",
                        "blk.9.ffn_up": "q3_K"}),
        ("Q2_K", 16, {"blk.9.attn_v": "q4_K", "blk.9.attn_output": "q3_K",
                      "blk.9.ffn_down": "q3_K", "blk.9.ffn_up": "q2_K"}),
        ("iq4_xs", 16, {"blk.9.attn_v": "q5_K", "blk.1.ffn_down": "q5_K",
                        "blk.2.ffn_down": "iq4_xs"}),
    ],
)  # fmt: skip
def test_more_bits_where_they_count(name: str, layers: int, expected: dict[str, str]) -> None:
    types = types_of(name, layers, heads=32, keys=8)
    assert {key: types[f"{key}.weight"] for key in expected} == expected
    assert types["output.weight"] == "q6_K"
    assert types["token_embd.weight"] == find_mix(name).base


def test_models_of_eight_experts_get_more_bits_in_attention() -> None:
    types = types_of("Q4_K_M", 8, heads=32, keys=8, experts=8)
    assert types["blk.3.attn_v.weight"] == types["blk.3.attn_k.weight"] == "q8_0"
    assert types["blk.3.attn_output.weight"] == "q5_K"


def test_one_type_for_all_with_pure() -> None:
    assert set(types_of("Q4_K_M", 4, heads=4, keys=4, pure=True).values()) == {"q4_K"}


def test_narrow_rows_take_types_of_smaller_blocks() -> None:
    assert types_of("Q4_K_M", 4, heads=4, keys=4, width=96)["blk.0.attn_q.weight"] == "q5_0"
    assert types_of("Q4_K_M", 4, heads=4, keys=4, width=97)["blk.0.attn_q.weight"] == "f16"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("q9", "there is no type 'q9'.*; choose one of .*Q4_K_M"),
        ("q4_k_mm", "quantize to; did you mean Q4_K_M[?]$"),
    ],
)
def test_types_that_cannot_be_written(name: str, said: str) -> None:
    with pytest.raises(UnsupportedOpError, match=said):
        find_mix(name)


def test_types_that_need_an_importance_matrix_are_refused_without(tmp_path: Path) -> None:
    source = wide_file(tmp_path)
    with pytest.raises(UnsupportedOpError, match=r"blk\.0\.attn_q\.weight as iq2_xs needs an imp"):
        quantize_file(source, tmp_path / "out.gguf", "IQ2_XS")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("name", "experts", "expected"),
    [
        # as llama-quantize --dry-run lists them
        ("IQ2_M", 0, {"attn_v": "q4_K", "ffn_down": "iq3_s", "attn_output": "iq3_s",
                      "ffn_up": "iq2_s"}),
        ("IQ1_S", 0, {"attn_v": "q4_K", "ffn_down": "q2_K", "attn_output": "iq2_xxs"}),
        ("IQ1_M", 8, {"attn_k": "q4_K", "attn_output": "q5_K"}),
        ("IQ3_XS", 0, {"attn_q": "iq3_xxs", "attn_k": "iq3_xxs", "ffn_up": "iq3_s",
                       "attn_v": "q4_K"}),
        ("IQ3_XXS", 0, {"attn_q": "iq2_s", "ffn_down": "q4_K", "attn_output": "iq3_s"}),
        ("IQ3_M", 8, {"attn_k": "q8_0", "attn_v": "q8_0", "attn_output": "q5_K",
                      "ffn_down": "q4_K"}),
        ("Q2_K_S", 0, {"attn_v": "q4_K", "ffn_down": "q4_K", "attn_output": "q2_K"}),
        ("Q2_0", 0, {"attn_v": "q2_0"}),
    ],
)  # fmt: skip
def test_mixes_of_few_bits(name: str, experts: int, expected: dict[str, str]) -> None:
    types = types_of(name, 16, heads=32, keys=8, experts=experts)
    assert {part: types[f"blk.0.{part}.weight"] for part in expected} == expected
    low = name.startswith(("IQ1", "IQ2")) or name == "IQ3_XXS"
    assert types["output.weight"] == ("q5_K" if low else "q6_K")


def test_an_importance_matrix_changes_mixes() -> None:
    unguided, guided = (
        types_of("IQ3_XXS", 16, heads=8, keys=8, imatrix=on) for on in (False, True)
    )
    assert unguided["blk.9.ffn_down.weight"] == "q3_K" != guided["blk.9.ffn_down.weight"]
    assert unguided["blk.9.attn_v.weight"] == "iq3_s" != guided["blk.9.attn_v.weight"]
    assert types_of("Q4_0", 16, heads=8, keys=8, imatrix=True)["blk.1.ffn_down.weight"] == "q4_1"


def test_what_a_user_chooses_counts_before_the_rules(tmp_path: Path) -> None:
    choices = Choices(
        output=DTYPES["q8_0"], embedding=DTYPES["q5_K"],
        patterns=(
            (re.compile(r"blk\.[01]\.attn_v"), DTYPES["bf16"]),
            (re.compile("attn"), DTYPES["q8_0"]),
        ),
    )  # fmt: skip
    with open_gguf(wide_file(tmp_path)) as file:
        types = file_types(file, "Q4_K_M", choices)
        assert types["output.weight"].name == types["blk.1.attn_q.weight"].name == "q8_0"
        assert types["token_embd.weight"].name == "q5_K"
        assert types["blk.1.attn_v.weight"].name == "bf16"
        assert types["blk.0.ffn_up.weight"].name == "q4_K"
        kept = file_types(file, "Q4_K_M", Choices(leave_output=True))
        assert kept["output.weight"].name == "f16"
        assert {t.name for t in file_types(file, "COPY").values()} == {"f16"}


def test_a_model_of_several_files_can_stay_one(tmp_path: Path) -> None:
    split_file(wide_file(tmp_path), tmp_path / "parts.gguf", ShardLimits(max_tensors=7))
    first = tmp_path / "parts-00001-of-00003.gguf"
    quantize_file(
        first,
        tmp_path / "q.gguf",
        "Q8_0",
        choices=Choices(keep_split=True),
        keys={"general.name": "new"},
    )
    quantize_file(first, tmp_path / "one.gguf", "Q8_0")
    with (
        open_gguf(tmp_path / "q-00001-of-00003.gguf") as parts,
        open_gguf(tmp_path / "one.gguf") as one,
    ):
        assert parts.get_str("general.name") == "new" and len(parts.paths) == 3
        assert list(parts.tensors) == list(one.tensors)
        for name, t in one.tensors.items():
            np.testing.assert_array_equal(parts.tensors[name].data, t.data)


def wide_file(folder: Path) -> Path:
    """A file of two layers with rows of 256 values."""
    names = ["token_embd", "output", *(f"blk.{i}.{part}" for i in (0, 1) for part in PARTS)]
    values = np.random.default_rng(3).normal(size=(2, 256)).astype(np.float16)
    rows: list[TensorSource] = [(f"{name}.weight", "f16", [256, 2], values) for name in names]
    path = folder / "wide.gguf"
    write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2}, rows)
    return path


PARTS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")


def types_of(
    name: str, layers: int, *, heads: int, keys: int, experts: int = 0, width: int = 256,
    pure: bool = False, imatrix: bool = False,
) -> dict[str, str]:  # fmt: skip
    names = [f"blk.{i}.{part}.weight" for i in range(layers) for part in PARTS]
    tensors = [
        TensorInfo(n, DTYPES["f16"], (width, 256, 1, 1), 2, 0, 0, None)  # type: ignore[arg-type]
        for n in ["token_embd.weight", "output.weight", *names]
    ]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.expert_count": experts,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": keys,
    }
    choices = Choices(pure, imatrix=imatrix)
    return {n: t.name for n, t in mix_types(tensors, metadata, find_mix(name), choices).items()}
