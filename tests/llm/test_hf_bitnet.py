"""Folders of BitNet, as in transformers: squared ReLU or SiLU, weights to be rounded or packed."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft as command
from weft import quants
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm.models import ARCHITECTURES

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
load_file = pytest.importorskip("safetensors.torch").load_file

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "hidden_act": "x"}
SCALE = 0.0625
"""The magnitude of the ternary weights; bf16 has it and its reciprocal."""
PACKED = {"quant_method": "bitnet", "quantization_mode": "offline"}


def bitnet(folder: Path, act: str, zeros: float = 0.0, tokenizer: str = "llama3") -> Any:
    """Saves a model whose matrices have one magnitude, and a share of zeros; returns it."""
    folder.mkdir(exist_ok=True)
    model = folders.made_model("BitNet", "ForCausalLM", folders.SHAPE | SIZES | {"hidden_act": act})
    torch.manual_seed(2)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("_proj.weight"):
                p.copy_(torch.sign(p) * SCALE * (torch.rand_like(p) >= zeros))
    model.save_pretrained(folder)
    folders.save_tokenizer(tokenizer, folder)
    return model


def logits_of(model: Any) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return model(torch.tensor([folders.IDS])).logits[0].numpy()


def pack(folder: Path, by: float, **how: object) -> None:
    """Stores the matrices as transformers does: codes of a byte are a quarter of the rows apart."""
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        codes = (torch.sign(tensors[name]) + 1).to(torch.uint8).chunk(4)
        tensors[name] = codes[0] | codes[1] << 2 | codes[2] << 4 | codes[3] << 6
        tensors[f"{name}_scale"] = torch.tensor([by], dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = PACKED | how
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("act", "arch", "tokenizer"), [("relu2", "bitnet-b1.58", "llama3"), ("silu", "bitnet", "model")]
)
def test_logits_of_transformers(tmp_path: Path, act: str, arch: str, tokenizer: str) -> None:
    want = logits_of(bitnet(tmp_path / "f", act, tokenizer=tokenizer))
    assert open_model(tmp_path / "f").metadata["general.architecture"] == arch
    near = 5e-5 * np.abs(want).max()
    np.testing.assert_allclose(folders.logits(tmp_path / "f"), want, atol=near, rtol=0)
    convert_folder(tmp_path / "f", tmp_path / "m.gguf", "f32")
    np.testing.assert_allclose(folders.logits(tmp_path / "m.gguf"), want, atol=near, rtol=0)


def test_both_activations_matter(tmp_path: Path) -> None:
    """The same weights: a graph with the wrong one would be far away."""
    one, other = (logits_of(bitnet(tmp_path / act, act)) for act in ("relu2", "silu"))
    assert np.abs(one - other).max() > 0.1 * np.abs(one).max()


@pytest.mark.parametrize(
    ("kind", "by"), [("autobitlinear", SCALE), ("bitlinear", 1 / SCALE), (None, 1 / SCALE)]
)
def test_packed_weights(tmp_path: Path, kind: str | None, by: float) -> None:
    """A third of the weights is zero, so that rounding them once more would change the scale."""
    want = logits_of(bitnet(tmp_path / "f", "relu2", zeros=1 / 3))
    copyfile(tmp_path / "f/model.safetensors", tmp_path / "plain.safetensors")
    pack(tmp_path / "f", by, **({"linear_class": kind} if kind else {}))
    most = np.abs(want).max()
    convert_folder(tmp_path / "f", tmp_path / "m.gguf", "f32")
    np.testing.assert_allclose(folders.logits(tmp_path / "m.gguf"), want, atol=5e-5 * most, rtol=0)
    done = command("convert", tmp_path / "f", tmp_path / "m.gguf", "--type", "i2_s")
    assert done.returncode == 0, done.stderr
    weights = load_file(tmp_path / "plain.safetensors")
    with open_gguf(tmp_path / "m.gguf") as file:
        for part in ("gate", "up", "down"):
            stored = file.tensors[f"blk.1.ffn_{part}.weight"]
            assert stored.dtype.name == "i2_s"
            np.testing.assert_array_equal(
                quants.decode_i2_s(stored.data, stored.n_elements),
                weights[f"model.layers.1.mlp.{part}_proj.weight"].numpy().reshape(-1),
            )
    # products of bf16 round activations
    np.testing.assert_allclose(folders.logits(tmp_path / "f"), want, atol=0.02 * most, rtol=0)


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    bitnet(tmp_path / "f", "relu2")
    pack(tmp_path / "f", SCALE, use_rms_norm=True)
    with pytest.raises(FormatError, match="use_rms_norm"):
        open_model(tmp_path / "f")


def test_names_of_bitnet_cpp() -> None:
    assert ARCHITECTURES["bitnet-25"] is ARCHITECTURES["bitnet-b1.58"]
    assert ARCHITECTURES["bitnet-b1.58"] is not ARCHITECTURES["bitnet"]
