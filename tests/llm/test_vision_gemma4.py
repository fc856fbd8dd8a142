"""Gemma 4's tower, read from a folder, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.towers import open_tower_folder
from weft.llm import LLM, Tower
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.vision import gemma4

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")
pytest.importorskip("gguf")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.tower_files import require_same_towers  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, close, picture  # noqa: E402

IMAGE = 379
TOWER: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 8, "patch_size": 4, "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}  # fmt: skip


def make(name: str, folder: Path, **tower: Any) -> Any:
    """Saves a model with the text of `hf_folders.MODELS`; returns it."""
    _, text, tokenizer = hf_folders.MODELS[name]
    if name == "gemma4 moe":
        text = text | {"use_bidirectional_attention": "vision", "sliding_window": 20}
    config = transformers.Gemma4Config(
        text_config=text | {"pad_token_id": 0}, vision_config=TOWER | tower, image_token_id=IMAGE,
        boi_token_id=IMAGE - 1, eoi_token_id=IMAGE - 2, audio_token_id=IMAGE - 3,
        video_token_id=IMAGE - 4, attn_implementation="eager",
    )  # fmt: skip
    model = vision_models.randomised(transformers.Gemma4ForConditionalGeneration(config))
    for key, value in model.named_buffers():
        if key.endswith(("_min", "_max")):
            value.fill_(1.5 if key.endswith("max") else -1.2)
        if "std_" in key:
            torch.manual_seed(2)
            value.copy_(torch.randn_like(value) * 0.2 + key.endswith("scale"))
    model.save_pretrained(folder)
    hf_folders.save_tokenizer(tokenizer, folder)
    return model


def seen_by(c: Any, pixels: Any) -> dict[str, Any]:
    """The inputs of transformers for an image in its size."""
    p = c.patch_size
    h, w = pixels.shape[0] // p, pixels.shape[1] // p
    patches = pixels.reshape(h, p, w, p, 3).transpose(0, 2, 1, 3, 4).reshape(1, h * w, -1) / 255
    x, y = np.meshgrid(np.arange(w), np.arange(h))
    places = np.stack([x, y], -1).reshape(1, -1, 2)
    return {
        "pixel_values": torch.tensor(patches, dtype=torch.float32),
        "image_position_ids": torch.tensor(places),
    }


@pytest.mark.parametrize("name", ["gemma4", "gemma4 moe"])
def test_beside_transformers(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models see the rows of an image in order, large ones together where layers have
    windows."""
    bounds = {"use_clipped_linears": True, "standardize": True} if name == "gemma4" else {}
    monkeypatch.setattr(gemma4, "MOST", 15)  # as many squares as the image has
    model = make(name, tmp_path, **bounds)
    keys = {"n_ctx": 64, "n_outputs": 64}
    with LLM(tmp_path, mmproj=tmp_path, **F32 | keys) as llm:
        c = llm.sight.tower.config
        pixels = picture(0, 24, 40)
        features = seen_by(c, pixels)
        close(llm.sight.rows(pixels), model.get_image_features(**features).pooler_output[0])
        ids = llm.sight.ids(pixels)
        assert len(ids) == 15
        prompt = torch.tensor([[*BEFORE, *[IMAGE] * len(ids), *BEHIND]])
        types = (prompt == IMAGE).long()
        mask = torch.ones_like(prompt)
        with torch.no_grad():
            want = model(
                input_ids=prompt, attention_mask=mask, mm_token_type_ids=types, **features
            ).logits[0]
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want)


def test_the_size_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import (
        get_aspect_ratio_preserving_size as size,
    )

    make("gemma4", tmp_path, pooling_kernel_size=3)
    c = Tower(tmp_path).config
    for height, width in [(480, 640), (100, 100), (31, 997), (5, 4000), (3000, 7), (2000, 1500)]:
        want = size(height, width, c.patch_size, 280 * 9, 3)
        assert gemma4.size_of(c, height, width) == want
        pixels = gemma4.GEMMA4.sized(c, picture(0, height, width))
        assert pixels.shape[:2] == want


def test_a_folder_is_its_file(tmp_path: Path) -> None:
    make("gemma4", tmp_path, use_clipped_linears=True, standardize=True)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32", mmproj=True)
    require_same_towers(open_tower_folder(tmp_path), open_gguf(tmp_path / "m.gguf"))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vision_config"]["pooling_kernel_size"] == 2


UNIFIED: dict[str, Any] = {
    "patch_size": 4, "pooling_kernel_size": 2, "mm_embed_dim": 24, "mm_posemb_size": 16,
    "output_proj_dims": 24,
}  # fmt: skip


def make_unified(folder: Path, **tower: Any) -> Any:
    """Saves a model of the 12B's class; returns it."""
    text = {
        key: value
        for key, value in hf_folders.MODELS["gemma4 moe"][1].items()
        if "expert" not in key and key not in ("moe_intermediate_size", "enable_moe_block")
        and "per_layer" not in key
    }  # fmt: skip
    config = transformers.Gemma4UnifiedConfig(
        text_config=text | {"pad_token_id": 0, "sliding_window": 20},
        vision_config=UNIFIED | tower, audio_config=None, image_token_id=IMAGE,
        boi_token_id=IMAGE - 1, eoi_token_id=IMAGE - 2, attn_implementation="eager",
    )  # fmt: skip
    kind = transformers.Gemma4UnifiedForConditionalGeneration
    model = vision_models.randomised(kind(config))
    model.save_pretrained(folder)
    hf_folders.save_tokenizer("pieces", folder)
    return model


@pytest.mark.parametrize(("patch", "merge", "width"), [(4, 2, 24), (2, 3, 40)])
def test_the_12b_model_beside_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: int, merge: int, width: int
) -> None:
    """Its text alone, the rows of an image, and both together."""
    sizes = {"patch_size": patch, "pooling_kernel_size": merge}
    model = make_unified(tmp_path, **sizes, mm_embed_dim=width, output_proj_dims=width)
    unit = patch * merge
    monkeypatch.setattr(gemma4, "MOST", 15)
    with LLM(tmp_path, mmproj=tmp_path, **F32 | {"n_ctx": 64, "n_outputs": 64}) as llm:
        ids = [*BEFORE, *BEHIND, 7, 90]
        with torch.no_grad():
            want = model(input_ids=torch.tensor([ids])).logits[0]
        close(llm.context.decode(ids, outputs="all"), want)
        llm.context.clear()
        pixels = picture(0, 3 * unit, 5 * unit)
        squares = pixels.reshape(3, unit, 5, unit, 3).transpose(0, 2, 1, 3, 4)
        x, y = np.meshgrid(np.arange(5), np.arange(3))
        features = {
            "pixel_values": torch.tensor(squares.reshape(1, 15, -1) / 255, dtype=torch.float32),
            "image_position_ids": torch.tensor(np.stack([x, y], -1).reshape(1, -1, 2)),
        }
        with torch.no_grad():
            want = model.get_image_features(**features).pooler_output[0]
        close(llm.sight.rows(pixels), want)
        seen = llm.sight.ids(pixels)
        prompt = torch.tensor([[*BEFORE, *[IMAGE] * len(seen), *BEHIND]])
        types = (prompt == IMAGE).long()
        masks = model.create_masks_for_generate(  # those of `generate`: rows join in windows
            config=model.config, inputs_embeds=model.get_input_embeddings()(prompt),
            attention_mask=torch.ones_like(prompt), cache=None,
            position_ids=torch.arange(prompt.shape[1])[None], mm_token_type_ids=types,
        )  # fmt: skip
        with torch.no_grad():
            want = model(
                input_ids=prompt, attention_mask=masks, mm_token_type_ids=types, **features
            ).logits[0]
        close(llm.context.decode([*BEFORE, *seen, *BEHIND], outputs="all"), want)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32", mmproj=True)
    require_same_towers(open_tower_folder(tmp_path), open_gguf(tmp_path / "m.gguf"))


def test_tokens_that_the_12b_model_never_writes(tmp_path: Path) -> None:
    """generation_config.json forbids tokens, in the folder and in its file."""
    model = make_unified(tmp_path)
    ids = [*BEFORE, *BEHIND]
    with torch.no_grad():
        best = model(input_ids=torch.tensor([ids])).logits[0, -1].argsort(descending=True)
    path, forbidden = tmp_path / "generation_config.json", best[:2].tolist()
    path.write_text(json.dumps({"suppress_tokens": forbidden}))
    convert_folder(tmp_path, tmp_path / "f32.gguf", "f32")
    for source in (tmp_path, tmp_path / "f32.gguf"):
        with LLM(source, **F32) as llm:
            logits = llm.context.decode(ids)[-1]
            greedy = Sampler(SamplingParams(temperature=0.0), llm.tokenizer)
            assert llm.tokenizer.vocab.suppressed == tuple(sorted(forbidden))
            assert greedy.sample(logits) == int(best[2])
    path.write_text(json.dumps({"suppress_tokens": ["a"]}))
    with pytest.raises(FormatError, match=r"suppress_tokens.*must be a list"):
        LLM(tmp_path, **F32)
