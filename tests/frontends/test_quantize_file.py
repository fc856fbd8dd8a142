"""Quantizing files: bytes as the reference's tool writes them, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from weft import quants
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.quantize import quantize_file

SOURCE = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


@pytest.mark.parametrize("dtype", ["F16", "Q8_0", "Q4_0"])
def test_same_bytes_as_the_reference(vectors: Path, tmp_path: Path, dtype: str) -> None:
    folder = vectors / "models" / "stories260K"
    out = tmp_path / "out.gguf"
    quantize_file(folder / "stories260K-F32.gguf", out, dtype, pure=True)
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
