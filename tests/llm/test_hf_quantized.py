"""Quantized folders run on the blocks that hold their weights, as the same model in floats does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.adapter_files import adapter_of, write_adapter
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm import Context, Model
from weft.llm.merge import merge_adapters

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
load_file = pytest.importorskip("safetensors.torch").load_file

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SIZES = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64, "head_dim": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A mixture of experts, whose matrices have a tensor each, and its tensors."""
    folder = tmp_path_factory.mktemp("floats")
    kind, options, tokenizer = folders.MODELS["qwen3moe"]
    model = folders.made_model(kind, "ForCausalLM", options | SIZES)
    model.save_pretrained(folder)
    folders.save_tokenizer(tokenizer, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("experts.gate_up_proj")]:  # as published
        both, down = tensors.pop(name), tensors.pop(name.replace("gate_up", "down"))
        stem = name.removesuffix(".gate_up_proj")
        for i, (gate_up, last) in enumerate(zip(both, down, strict=True)):
            for part, t in zip(("gate", "up", "down"), (*gate_up.chunk(2), last), strict=True):
                tensors[f"{stem}.{i}.{part}_proj.weight"] = t.clone()
    return folder, tensors


def int4(weight: Any) -> tuple[dict[str, Any], Any]:
    """The parts of a matrix in pack-quantized, and the values that they stand for."""
    rows = weight.reshape(len(weight), -1, 32)
    scale = (rows.abs().amax(-1) / 7).half()
    codes = (rows / scale.float()[..., None]).round().clamp(-8, 7)
    words = (codes.reshape(len(weight), -1, 8).long() + 8) << (4 * torch.arange(8))
    packed = torch.from_numpy(words.sum(-1).numpy().astype(np.uint32).view(np.int32))
    parts = {"_packed": packed, "_scale": scale, "_shape": torch.tensor(weight.shape)}
    return parts, (codes * scale.float()[..., None]).reshape(weight.shape)


def nvfp4(weight: Any) -> tuple[dict[str, Any], Any]:
    """The same for ModelOpt's NVFP4."""
    rows, over = weight.reshape(len(weight), -1, 16), weight.abs().max() / 2688
    scale = (rows.abs().amax(-1) / 6 / over).to(torch.float8_e4m3fn)
    by = (scale.float() * over)[..., None]
    codes = ((rows / by).abs()[..., None] - E2M1).abs().argmin(-1)
    meant = E2M1[codes] * rows.sign() * by
    flat = (codes + 8 * (rows < 0)).reshape(len(weight), -1).to(torch.uint8)
    parts = {"": flat[:, ::2] | flat[:, 1::2] << 4, "_scale": scale, "_scale_2": over}
    return parts, meant.reshape(weight.shape)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "q4_0": (int4, {"quant_method": "compressed-tensors", "format": "pack-quantized",
                    "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}}}),
    "nvfp4": (nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_runs_on_its_blocks(made: tuple[Path, dict[str, Any]], tmp_path: Path, kind: str) -> None:
    pack, how = CASES[kind]
    source, tensors = made
    exact, quantized = dict(tensors), dict(tensors)
    for name in [n for n in tensors if "proj.weight" in n]:
        del quantized[name]
        parts, exact[name] = pack(tensors[name].float())
        quantized |= {f"{name}{end}": part.clone() for end, part in parts.items()}
    config = json.loads((source / "config.json").read_text())
    for part, kept, more in (
        ("exact", exact, {}),
        ("quantized", quantized, {"quantization_config": how}),
    ):
        folder = tmp_path / part
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | more))
        save_file({n: t.contiguous() for n, t in kept.items()}, folder / "model.safetensors")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((source / name).read_bytes())
    folder, file = tmp_path / "quantized", tmp_path / "m.gguf"
    convert_folder(folder, file)
    want = folders.logits(tmp_path / "exact")
    data = []
    for path in (folder, file):
        found = open_model(path).tensors
        for name in ("attn_q", "ffn_up_exps", "ffn_down_exps"):
            assert found[f"blk.1.{name}.weight"].dtype.name == kind
            assert (f"blk.1.{name}.scale" in found) == (kind == "nvfp4")
            data.append(found[f"blk.1.{name}.weight"].data)
        got = folders.logits(path)
        assert np.abs(got - want).max() < 0.1 * np.abs(want).max()
        assert np.median(np.abs(got - want)) < 1e-2 * np.abs(want).max()
    for of_folder, of_file in zip(data[:3], data[3:], strict=True):
        np.testing.assert_array_equal(of_folder, of_file)


def test_other_types_are_floats(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """A type that is asked for counts, and blocks are made small again."""
    source, tensors = made
    quantized = dict(tensors)
    for name in [n for n in tensors if "proj.weight" in n]:
        del quantized[name]
        quantized |= {
            f"{name}{end}": t.clone() for end, t in int4(tensors[name].float())[0].items()
        }
    config = json.loads((source / "config.json").read_text()) | {
        "quantization_config": CASES["q4_0"][1]
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in quantized.items()}, tmp_path / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    convert_folder(tmp_path, tmp_path / "m.gguf", "f16")
    name = "blk.0.attn_q.weight"
    assert open_model(tmp_path / "m.gguf").tensors[name].dtype.name == "f16"
    assert open_model(tmp_path, "q8_0").tensors[name].dtype.name == "q8_0"


def test_adapters_in_the_weights(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The second scale of NVFP4 stays in a tensor of its own."""
    source, tensors = made
    folder = tmp_path / "folder"
    folder.mkdir()
    quantized = dict(tensors)
    for name in [n for n in tensors if "proj.weight" in n]:
        parts = nvfp4(tensors[name].float())[0]
        quantized |= {f"{name}{end}": part.clone() for end, part in parts.items()}
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = CASES["nvfp4"][1]
    (folder / "config.json").write_text(json.dumps(config))
    save_file({n: t.contiguous() for n, t in quantized.items()}, folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    shapes = {f"blk.1.{n}.weight": (64, 64) for n in ("attn_q", "attn_output")}
    shapes["blk.0.ffn_down_exps.weight"] = (4, 64, 64)
    adapter = adapter_of(1, 2, shapes)
    given = write_adapter(tmp_path / "a.gguf", adapter, alpha=2.0, **{
        "general.architecture": "qwen3moe"})  # fmt: skip
    merge_adapters(folder, tmp_path / "m.gguf", [(given, 0.5)], "auto")
    found = open_model(tmp_path / "m.gguf").tensors
    assert found["blk.1.attn_q.weight"].dtype.name == "f16" and "blk.1.attn_q.scale" in found
    model = Model.open(folder, adapters=[(given, 0.5)])
    want = Context(model, 64, devices=["cpu"], n_threads=1).decode(folders.IDS, outputs="all")
    got, without = folders.logits(tmp_path / "m.gguf"), folders.logits(folder)
    assert np.median(np.abs(got - want)) < 0.2 * np.median(np.abs(without - want))
