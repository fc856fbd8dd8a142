"""Folders of recurrent models with layers that draft tokens, which transformers leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.frontends.hf.convert import convert_folder
from weft.llm.model import Model

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


# what is copied to be the layer, which other tensors it has, and what config.json says
QWEN = (
    {"model.layers.3.": "mtp.layers.0."},
    {"norm": (32,), "pre_fc_norm_embedding": (32,), "pre_fc_norm_hidden": (32,), "fc": (32, 64)},
)
NEMOTRON = (
    {"backbone.layers.2.": "mtp.layers.0.", "backbone.layers.4.": "mtp.layers.1."},
    {"layers.0.enorm": (32,), "layers.0.hnorm": (32,), "layers.0.eh_proj": (32, 64),
     "layers.1.final_layernorm": (32,)},
)  # fmt: skip
Draft = tuple[dict[str, str], dict[str, tuple[int, ...]]]


def add_draft(folder: Path, draft: Draft, keys: dict[str, object]) -> None:
    """Adds a layer that drafts tokens, and keys of config.json."""
    tensors = safetensors.load_file(folder / "model.safetensors")
    for old, new in draft[0].items():
        layer = {name: t for name, t in tensors.items() if name.startswith(old)}
        tensors |= {name.replace(old, new): t.clone() for name, t in layer.items()}
    tensors |= {f"mtp.{name}.weight": torch.ones(sizes) for name, sizes in draft[1].items()}
    safetensors.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | keys))


@pytest.mark.parametrize(
    ("name", "draft", "keys"),
    [
        ("qwen3next", QWEN, {}),
        ("qwen35", QWEN, {"mtp_num_hidden_layers": 1}),
        ("nemotron_h latent", NEMOTRON, {"num_nextn_predict_layers": 1}),
    ],
)
def test_layers_that_draft_are_kept_and_not_used(
    tmp_path: Path, name: str, draft: Draft, keys: dict[str, object]
) -> None:
    folders.make_folder(name, tmp_path)
    want: NDArray[np.float32] = folders.logits(tmp_path, device="reference")
    add_draft(tmp_path, draft, keys)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        model = Model.open(path)
        assert len(model.config.unused_layers) == 1
        # on the reference device, since results are compared to the bit
        np.testing.assert_array_equal(folders.logits(path, device="reference"), want)
    own = [n for n in model.file.tensors if n.startswith(f"blk.{model.config.n_layer}.")]
    assert any("nextn.eh_proj" in n for n in own) and any("ffn_" in n for n in own)
