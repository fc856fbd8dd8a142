"""The towers of Idefics3, SmolVLM and InternVL, which see tiles, beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.towers import open_tower_folder
from weft.llm import LLM, Tower
from weft.llm.vision import lfm2
from weft.llm.vision.config import normalised

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("gguf")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.tower_files import require_same_towers  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, close, picture  # noqa: E402

IMAGE = 399
TOWER: dict[str, Any] = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "image_size": 32, "patch_size": 4,
}  # fmt: skip
COLOURS = {"image_mean": [0.5, 0.4, 0.6], "image_std": [0.3, 0.2, 0.25]}
LARGE: dict[str, Any] = F32 | {"n_ctx": 256, "n_outputs": 256}


def make(kind: str, folder: Path) -> Any:
    """Saves a model with a tower; returns it."""
    internvl = kind == "InternVL"
    options = hf_folders.SHAPE | {"max_position_embeddings": 256}
    text = transformers.Qwen2Config if internvl else transformers.LlamaConfig
    tower = TOWER | {"use_qk_norm": True, "attention_bias": True} if internvl else TOWER
    config = getattr(transformers, f"{kind}Config")(
        text_config=text(**options), vision_config=tower, image_token_id=IMAGE,
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    model = vision_models.randomised(model)
    model.save_pretrained(folder)
    hf_folders.save_tokenizer("qwen2" if internvl else "llama3", folder)
    about = COLOURS | ({} if internvl else {"size": {"longest_edge": 64}})
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    if internvl:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"max_dynamic_patch": 4}))
    return model


def pixels_of(kind: str, pixels: NDArray[np.uint8]) -> Any:
    """The tiles of an image that transformers makes, [n, 3, height, width]."""
    if kind == "InternVL":
        processor = transformers.GotOcr2ImageProcessorPil(
            size={"height": 32, "width": 32}, crop_to_patches=True, max_patches=4, **COLOURS
        )
        return processor(Image.fromarray(pixels), return_tensors="pt").pixel_values
    processor = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, **COLOURS
    )
    return processor([[Image.fromarray(pixels)]], return_tensors="pt").pixel_values[0]


@pytest.mark.parametrize("kind", ["Idefics3", "SmolVLM", "InternVL"])
def test_beside_transformers(tmp_path: Path, kind: str) -> None:
    """Images of several proportions: their tiles, rows and logits."""
    model = make(kind, tmp_path)
    with LLM(tmp_path, mmproj=tmp_path, **LARGE) as llm:
        family, c = llm.sight.tower.family, llm.sight.tower.config
        assert family.tiles is not None
        for height, width in [(24, 48), (40, 31), (32, 32), (100, 90)]:
            pixels = picture(height, height, width)
            tiles = family.tiles(c, pixels)
            want = pixels_of(kind, pixels)
            ours = np.stack([normalised(c, tile.pixels).transpose(2, 0, 1) for tile in tiles])
            np.testing.assert_allclose(ours, want, atol=0.02)  # a step of a colour
            given = torch.tensor(ours)
            features = model.get_image_features(given if kind == "InternVL" else given[None])
            rows = llm.sight.rows(pixels)
            wanted = torch.cat([part.reshape(-1, 32) for part in features.pooler_output])
            close(rows, wanted)
            assert len(rows) == family.n_rows(c, height, width) == 16 * len(tiles)
        pixels = picture(24, 24, 48)
        tiles = [normalised(c, tile.pixels).transpose(2, 0, 1) for tile in family.tiles(c, pixels)]
        given = torch.tensor(np.stack(tiles))
        ids = llm.sight.ids(pixels)
        numbers = [*BEFORE, *ids, *BEHIND]
        n_vocab = llm.model.config.n_vocab
        prompt = torch.tensor([[IMAGE if id_ >= n_vocab else id_ for id_ in numbers]])
        seen = given if kind == "InternVL" else given[None]
        with torch.no_grad():
            want = model(input_ids=prompt, pixel_values=seen).logits[0]
        close(llm.context.decode(numbers, outputs="all"), want)
        llm.context.clear()
    with LLM(tmp_path, mmproj=tmp_path, **LARGE | {"n_ctx": 40}) as small:
        with pytest.raises(ContextError, match="rows, but the context holds 40"):
            small.sight.ids(pixels)


LFM2 = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_patches": 36, "patch_size": 4,
}  # fmt: skip


def test_lfm2_beside_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are smaller and larger than the learned positions, and one in tiles."""
    for name, value in {"LEAST": 4, "MOST": 16, "TILE": 32, "TILES": (2, 4)}.items():
        monkeypatch.setattr(lfm2, name, value)
    _, text, tokenizer = hf_folders.MODELS["lfm2"]
    config = transformers.Lfm2VlConfig(
        text_config=transformers.Lfm2Config(**text | {"max_position_embeddings": 256}),
        vision_config=transformers.Siglip2VisionConfig(**LFM2), image_token_id=IMAGE,
        projector_hidden_size=28, attn_implementation="eager",
    )  # fmt: skip
    model = vision_models.randomised(transformers.Lfm2VlForConditionalGeneration(config))
    model.save_pretrained(tmp_path)
    hf_folders.save_tokenizer(tokenizer, tmp_path)
    with LLM(tmp_path, mmproj=tmp_path, **LARGE) as llm:
        family, c = llm.sight.tower.family, llm.sight.tower.config
        assert family.tiles is not None
        for height, width in [(20, 14), (30, 40), (60, 90)]:
            pixels, rows = picture(height, height, width), []
            tiles = family.tiles(c, pixels)
            for tile in tiles:
                h, w = (side // 4 for side in tile.pixels.shape[:2])
                patches = normalised(c, tile.pixels).reshape(h, 4, w, 4, 3).transpose(0, 2, 1, 3, 4)
                features = model.get_image_features(
                    torch.tensor(patches.reshape(1, h * w, -1)), torch.tensor([[h, w]]),
                    torch.ones(1, h * w, dtype=torch.int32),
                )  # fmt: skip
                rows.append(features.pooler_output[0])
            assert len(tiles) == (5 if height == 60 else 1)  # 2 by 2, and the whole
            close(llm.sight.rows(pixels), torch.cat(rows))
            assert len(torch.cat(rows)) == family.n_rows(c, height, width)
        ids = llm.sight.ids(pixels)
        n_vocab = llm.model.config.n_vocab
        numbers = [*BEFORE, *ids, *BEHIND]
        embeds = model.get_input_embeddings()(
            torch.tensor([[min(id_, n_vocab - 1) for id_ in numbers]])
        ).detach()
        embeds[0, [id_ >= n_vocab for id_ in numbers]] = torch.cat(rows).detach()
        with torch.no_grad():
            want = model(inputs_embeds=embeds).logits[0]
        close(llm.context.decode(numbers, outputs="all"), want)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32", mmproj=True)
    require_same_towers(open_tower_folder(tmp_path), open_gguf(tmp_path / "m.gguf"))


def test_the_text_around_tiles(tmp_path: Path) -> None:
    make("SmolVLM", tmp_path)
    tower = Tower(tmp_path)
    assert tower.family.tiles is not None
    tiles = tower.family.tiles(tower.config, picture(0, 48, 24))
    around = "<fake_token_around_image>"
    assert [(tile.before, tile.after) for tile in tiles] == [
        (f"{around}<row_1_col_1>", "\n"), (f"{around}<row_2_col_1>", "\n"),
        (f"\n{around}<global-img>", around),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["SmolVLM", "InternVL"])
def test_a_folder_is_its_file(tmp_path: Path, kind: str) -> None:
    make(kind, tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32", mmproj=True)
    require_same_towers(open_tower_folder(tmp_path), open_gguf(tmp_path / "m.gguf"))
    Tower(tmp_path / "m.gguf")
