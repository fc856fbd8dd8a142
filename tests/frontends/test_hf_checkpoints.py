"""Quantized checkpoints: the values that their formats stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.frontends.hf.checkpoints import readable
from weft.frontends.hf.config import Config
from weft.frontends.hf.safetensors import open_shards

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file


def values(folder: Path, tensors: dict[str, Any], **how: object) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a folder that is quantized so, as float32."""
    save_file(tensors, folder / "model.safetensors")
    config = {"num_hidden_layers": 1, "quantization_config": how}
    read = readable(Config(folder, config), open_shards(folder))
    return {name: v.load() for name, v in read.items()}


def words(codes: np.ndarray[Any, Any], axis: int) -> Any:
    """4-bit codes, eight to a word along `axis`, lowest first, as int32."""
    parts = np.moveaxis(codes, axis, -1).reshape(*np.moveaxis(codes, axis, -1).shape[:-1], -1, 8)
    packed = (parts.astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(-1)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, -1, axis)).astype(np.uint32)
                            .view(np.int32))  # fmt: skip


RANDOM = np.random.default_rng(3)
N_IN, N_OUT, EACH = 64, 24, 32


def grid() -> tuple[Any, Any, Any, Any]:
    """Codes [in, out], zeros and scales [groups, out], and the weights [out, in]."""
    codes = RANDOM.integers(0, 16, (N_IN, N_OUT))
    zeros = RANDOM.integers(1, 16, (N_IN // EACH, N_OUT))
    scales = RANDOM.random((N_IN // EACH, N_OUT)).astype(np.float16)
    spread = [np.repeat(a.astype(np.float32), EACH, 0) for a in (zeros, scales)]
    return codes, zeros, scales, ((codes - spread[0]) * spread[1]).T


def test_fp8_blocks(tmp_path: Path) -> None:
    weight = torch.randn(40, 70).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    tensors = {"a.weight": weight, "a.weight_scale_inv": scale, "a.activation_scale": scale.clone()}
    got = values(tmp_path, tensors, quant_method="fp8", weight_block_size=[32, 32])
    whole = scale.repeat_interleave(32, 0).repeat_interleave(32, 1)[:40, :70]
    assert list(got) == ["a.weight"]
    np.testing.assert_array_equal(got["a.weight"], (weight.float() * whole).numpy())


def test_fp8_rows(tmp_path: Path) -> None:
    weight, scale = torch.randn(4, 6).to(torch.float8_e4m3fn), torch.rand(4, 1)
    tensors = {"a.weight": weight, "a.weight_scale": scale}
    how = {"format": "float-quantized", "config_groups": {"g": {"weights": {"num_bits": 8}}}}
    got = values(tmp_path, tensors, quant_method="compressed-tensors", **how)
    np.testing.assert_array_equal(got["a.weight"], (weight.float() * scale).numpy())


@pytest.mark.parametrize("ordered", [True, False])
def test_gptq(tmp_path: Path, ordered: bool) -> None:
    codes, zeros, scales, want = grid()
    groups = np.arange(N_IN) // EACH
    if not ordered:
        groups = RANDOM.permutation(groups)
        s, z = scales.astype(np.float32)[groups], zeros[groups]
        want = ((codes - z) * s).T
    tensors = {
        "a.qweight": words(codes, 0), "a.qzeros": words(zeros - 1, 1),
        "a.scales": torch.from_numpy(scales), "a.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }  # fmt: skip
    got = values(tmp_path, tensors, quant_method="gptq", bits=4)
    assert list(got) == ["a.weight"]
    np.testing.assert_array_equal(got["a.weight"], want)


def test_awq(tmp_path: Path) -> None:
    codes, zeros, scales, want = grid()
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # of the eight columns that share a word

    def mixed(a: Any) -> Any:
        return words(a.reshape(len(a), -1, 8)[..., order].reshape(a.shape), 1)

    tensors = {"a.qweight": mixed(codes), "a.qzeros": mixed(zeros),
               "a.scales": torch.from_numpy(scales)}  # fmt: skip
    got = values(tmp_path, tensors, quant_method="awq", bits=4)
    np.testing.assert_array_equal(got["a.weight"], want)


def test_packed_groups(tmp_path: Path) -> None:
    codes = RANDOM.integers(0, 16, (N_OUT, N_IN))
    scales = RANDOM.random((N_OUT, N_IN // EACH)).astype(np.float32)
    tensors = {
        "a.weight_packed": words(codes, 1), "a.weight_scale": torch.from_numpy(scales),
        "a.weight_shape": torch.tensor([N_OUT, N_IN]),
    }  # fmt: skip
    weights = {"num_bits": 4, "group_size": EACH, "strategy": "group", "type": "int"}
    how = {"format": "pack-quantized", "config_groups": {"g": {"weights": weights}}}
    got = values(tmp_path, tensors, quant_method="compressed-tensors", **how)
    want = (codes - 8) * np.repeat(scales, EACH, 1)
    np.testing.assert_array_equal(got["a.weight"], want.astype(np.float32))
