"""LoRA adapters in PEFT's folders: the logits of merged weights, for folders and GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError, MissingFileError
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.hf.convert import convert_adapter, convert_folder
from weft.frontends.models import open_model
from weft.llm import Context
from weft.llm.model import Model

folders = pytest.importorskip("tests.llm.hf_folders")
peft = pytest.importorskip("tests.llm.peft_folders")

IDS = [5, 90, 17, 201, 8, 90, 44, 3, 120, 66, 9, 250]
LEFT_OUT = ("wpe", "token_type", "position", "router", "pooler", "shared_expert_gate")
# what config.json has to say and GGUF files do not
NEED_FOLDERS = {"bamba", "falcon", "falcon2", "qwen3next", "qwen35", "granitehybrid"}
NAMES = [
    "bert", "bloom", "cohere2", "dbrx", "ernie4_5 moe", "gemma3", "glm4", "gpt2", "gptneox",
    "granite", "granitemoe", "lfm2 moe", "llama", "llama biases", "mamba", "mistral3", "mixtral",
    "mpt", "olmo2", "phi2", "phi3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "stablelm",
    *sorted(NEED_FOLDERS),
]  # fmt: skip


def takes_of(model: Any) -> Any:
    """All matrices, but neither half of a tied one."""
    tied = model.config.tie_word_embeddings
    outer = ("embed_tokens", "embed_in", "wte", "word_emb", "embeddings", "lm_head", "embed_out")

    def takes(name: str) -> bool:
        out = any(part in name for part in LEFT_OUT) or name.endswith("mlp.gate")
        return not out and not (tied and any(part in name for part in outer))

    return takes


def rows(path: Path, adapters: Any = None) -> NDArray[np.float32]:
    model = Model.open(path, adapters=adapters)
    context = Context(
        model, 64, type_k="f32", type_v="f32", activations="f32", devices=["reference"]
    )
    return context.decode(IDS, outputs="all")


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_merged_weights(tmp_path: Path, name: str) -> None:
    base, adapter, gguf = tmp_path / "base", tmp_path / "law", tmp_path / "base.gguf"
    base.mkdir()
    model = folders.make_folder(name, base)
    sums = peft.make_peft(adapter, model, takes_of(model), fan_in_fan_out=name == "gpt2")
    plain, straight = rows(base), rows(base, adapter)
    convert_folder(base, gguf, "f32")
    if name not in NEED_FOLDERS:
        np.testing.assert_allclose(rows(gguf, adapter), straight, atol=2e-5, rtol=1e-4)
    else:
        with pytest.raises(FormatError, match=r"config.json is needed.*weft convert --lora"):
            rows(gguf, adapter)
    convert_adapter(adapter, tmp_path / "law.gguf", base)
    for path in (gguf, base):
        made = rows(path, tmp_path / "law.gguf")
        np.testing.assert_allclose(made, straight, atol=2e-5, rtol=1e-4)
    peft.merge_into(model, sums)
    model.save_pretrained(base)
    merged = rows(base)
    assert np.abs(merged - plain).max() > 0.3 * np.abs(plain).max()
    np.testing.assert_allclose(straight, merged, atol=3e-6 * np.abs(merged).max(), rtol=1e-4)


@pytest.mark.parametrize(
    "settings", [{"use_rslora": True}, {"alpha_pattern": {"q_proj": 9.0, "down_proj": 1.0}}]
)
def test_scales(tmp_path: Path, settings: dict[str, Any]) -> None:
    base = tmp_path / "base"
    base.mkdir()
    model = folders.make_folder("qwen3", base)
    sums = peft.make_peft(tmp_path / "law", model, takes_of(model), dtype="bfloat16", **settings)
    got = rows(base, [(tmp_path / "law", -0.5)])
    peft.merge_into(model, sums, -0.5)
    model.save_pretrained(base)
    np.testing.assert_allclose(got, rows(base), atol=3e-6 * np.abs(got).max(), rtol=1e-4)


@pytest.mark.parametrize("to", ["q8_0", "q4_0"])
def test_beside_quantized_weights(tmp_path: Path, to: str) -> None:
    """The sums are those of the adapter and of what the file has, decoded."""
    base, law = tmp_path / "base", tmp_path / "law"
    base.mkdir()
    model = folders.make_folder("llama", base)
    peft.make_peft(law, model, takes_of(model))
    quantize_file(open_model(base, to_write=True), tmp_path / "q.gguf", to)
    quantize_file(tmp_path / "q.gguf", tmp_path / "decoded.gguf", "F32")
    assert open_model(tmp_path / "q.gguf").tensors["blk.0.attn_q.weight"].dtype.name == to
    want = rows(tmp_path / "decoded.gguf", law)
    np.testing.assert_allclose(rows(tmp_path / "q.gguf", law), want, atol=1e-5, rtol=1e-4)


CONFIG = {"peft_type": "LORA", "r": 3, "lora_alpha": 4.0}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"peft_type": "IA3"}, "of type 'IA3'"),
        ({"use_dora": True}, "use_dora"),
        ({"lora_alpha": None}, "lora_alpha is None"),
    ],
)
def test_configurations_that_are_not_plain_lora(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    base, law = tmp_path / "base", tmp_path / "law"
    base.mkdir()
    model = folders.make_folder("llama", base)
    peft.make_peft(law, model, lambda name: name.endswith("q_proj"))
    (law / "adapter_config.json").write_text(json.dumps(CONFIG | config))
    with pytest.raises(FormatError, match=says) as caught:
        Model.open(base, adapters=law)
    assert "law" in str(caught.value)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    base, law = tmp_path / "base", tmp_path / "law"
    base.mkdir()
    model = folders.make_folder("llama", base)

    def refused(tensors: dict[str, Any], says: str) -> None:
        law.mkdir(exist_ok=True)
        peft.safetensors.save_file(tensors, law / "adapter_model.safetensors")
        (law / "adapter_config.json").write_text(json.dumps(CONFIG))
        with pytest.raises(FormatError, match=says) as caught:
            Model.open(base, adapters=law)
        assert "law" in str(caught.value)

    zeros, start = folders.torch.zeros, "base_model.model.model.layers.0.self_attn.q_proj"
    a, b = zeros(3, 32), zeros(32, 3)
    refused({f"{start}.lora_A.weight": a}, "lora_A only")
    refused({f"{start}.lora_A.weight": a, f"{start}.lora_B.weight": zeros(32, 4)}, "no product")
    refused({f"{start}.lora_A.weight": zeros(3, 16), f"{start}.lora_B.weight": b}, "must be")
    other = start.replace(".0.", ".7.")
    refused({f"{other}.lora_A.weight": a, f"{other}.lora_B.weight": b}, "the model does not have")
    other = start.replace("q_proj", "r_proj")
    refused({f"{other}.lora_A.weight": a, f"{other}.lora_B.weight": b}, "has no place")
    refused({"base_model.model.lm_head.weight": zeros(400, 32)}, "whole tensor")
    refused({f"{start}.lora_magnitude_vector": zeros(32)}, "not LoRA's")
    refused({}, "no tensors")
    (law / "adapter_model.safetensors").unlink()
    (law / "adapter_model.bin").touch()
    with pytest.raises(MissingFileError, match="pickle"):
        Model.open(base, adapters=law)
    (law / "adapter_config.json").unlink()
    with pytest.raises(MissingFileError, match=r"without adapter_config\.json"):
        Model.open(base, adapters=law)
    assert model is not None
