"""The weight table against files that do and do not match it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.llm.tiny import metadata, weights, write_model
from weft.errors import FormatError
from weft.llm.model import Model


def test_weights_are_the_mapped_file(tmp_path: Path) -> None:
    tensors = weights(metadata())
    model = Model.open(write_model(tmp_path / "m.gguf"))
    assert set(model.weights) == set(tensors)
    leaf = model.weights["blk.1.attn_k.weight"]
    assert leaf.ne == (16, 8, 1, 1)
    assert leaf.buffer is not None
    assert leaf.buffer.usage == "weights"
    assert leaf.buffer.data.tobytes() == tensors["blk.1.attn_k.weight"].tobytes()
    assert not leaf.buffer.data.flags.owndata  # a view of the map, not a copy
    assert model.weights.nbytes == sum(a.nbytes for a in tensors.values())


def test_a_layer_by_the_rest_of_its_names(tmp_path: Path) -> None:
    model = Model.open(write_model(tmp_path / "m.gguf"))
    layer = model.weights.layer(1)
    assert layer["attn_q.weight"] is model.weights["blk.1.attn_q.weight"]
    assert "attn_q.bias" not in layer
    assert len(layer) == 9


def test_a_missing_tensor(tmp_path: Path) -> None:
    tensors = weights(metadata())
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(FormatError, match=r"blk\.1\.ffn_up\.weight of sizes \[24, 16\] is missing"):
        Model.open(write_model(tmp_path / "m.gguf", None, tensors))


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    tensors = weights(metadata())
    tensors["blk.0.attn_k.weight"] = np.zeros((16, 16), np.float32)
    with pytest.raises(
        FormatError, match=r"blk\.0\.attn_k\.weight has sizes \[16, 16\].*asks for \[8, 16\]"
    ):
        Model.open(write_model(tmp_path / "m.gguf", None, tensors))


def test_a_tensor_that_would_be_ignored(tmp_path: Path) -> None:
    tensors = weights(metadata()) | {"blk.0.attn_q_norm.weight": np.ones(4, np.float32)}
    with pytest.raises(FormatError, match="attn_q_norm"):
        Model.open(write_model(tmp_path / "m.gguf", None, tensors))


def test_an_unknown_architecture(tmp_path: Path) -> None:
    meta = metadata(**{"general.architecture": "cubist"})
    with pytest.raises(FormatError, match=r"'cubist'; known architectures: .*gpt-oss, .*llama"):
        Model.open(write_model(tmp_path / "m.gguf", meta, {"x": np.zeros(1, np.float32)}))
