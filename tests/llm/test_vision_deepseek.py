"""The towers of Unlimited-OCR (DeepSeek-OCR's) and DeepSeek-OCR 2 beside transformers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.towers import open_tower_folder
from weft.llm import LLM, Tower
from weft.llm.vision.config import TowerConfig, normalised
from weft.llm.vision.deepseekocr import grid_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.tower_files import require_same_towers  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, MEAN, STD, close, picture  # noqa: E402

IMAGE = 399
Sizes = tuple[dict[str, Any], dict[str, Any]]


def sizes(kind: str, size: str) -> Sizes:
    """SAM's and the second encoder's."""
    small = size == "small"
    width = 16 if small else 24
    # DeepSeek-OCR 2 has 144 queries for 12 x 12 rows of a tile, and 256 for 16 x 16 of the whole
    side = 64 if kind == "DeepseekOcr2" else 32
    patch = 2 if small else 3
    sam = {
        "hidden_size": 24 if small else 16, "num_hidden_layers": 3 if small else 4,
        "num_attention_heads": 1 if kind == "DeepseekOcr2" else 2,
        "image_size": side * patch, "patch_size": patch,
        "output_channels": 8, "downsample_channels": [12, width], "mlp_dim": 32,
        "window_size": 14 if small else 5, "global_attn_indexes": [2],
    }  # fmt: skip
    second = {"hidden_size": width, "intermediate_size": 40, "num_hidden_layers": 2,
              "num_attention_heads": 4}  # fmt: skip
    if kind == "DeepseekOcr2":
        rope = {"rope_type": "default", "rope_theta": 1e6}
        return sam, second | {
            "num_key_value_heads": 2 if small else 1,
            "vocab_size": 8,
            "rope_parameters": rope,
        }
    return sam, second | {"image_size": 8 * 7, "patch_size": 7}


def make(folder: Path, kind: str, size: str) -> Any:
    """The model, which is saved in the folder."""
    sam, second = sizes(kind, size)
    text = hf_folders.MODELS["deepseek2 ocr"][1] | {
        "max_position_embeddings": 1024,
        "num_key_value_heads": 4,
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config={"sam_config": sam, "encoder_config": second},
        image_token_id=IMAGE, attn_implementation="eager",
    )  # fmt: skip
    model = vision_models.randomised(
        getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    )
    model.save_pretrained(folder)
    hf_folders.save_tokenizer("qwen2", folder)
    seen = {"image_mean": MEAN, "image_std": STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    return model


CASES = [(kind, size) for kind in ("UnlimitedOcr", "DeepseekOcr2") for size in ("small", "large")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kind, the model and its folder."""
    folder = tmp_path_factory.mktemp("deepseek")
    return request.param[0], make(folder, *request.param), folder


def as_seen(tower: Tower, pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """An image as transformers takes it."""
    assert tower.family.tiles is not None
    tiles = [
        torch.tensor(normalised(tower.config, tile.pixels)).permute(2, 0, 1)
        for tile in tower.family.tiles(tower.config, pixels)
    ]
    out: dict[str, Any] = {
        "pixel_values": tiles[-1][None], "num_local_patches": [len(tiles) - 1]
    }  # fmt: skip
    if len(tiles) > 1:
        out["pixel_values_local"] = torch.stack(tiles[:-1])
    return out


def test_beside_transformers(made: Any, tmp_path: Path) -> None:
    """Rows and logits of an image with tiles, and of one without; the folder is its file."""
    kind, model, folder = made
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    require_same_towers(open_tower_folder(folder), open_gguf(tmp_path / "f32.gguf"))
    tower = Tower(tmp_path / "f32.gguf")
    assert tower.config == Tower(folder).config
    side = tower.config.image_size
    shapes = (
        [(side // 2, side)] if kind == "DeepseekOcr2" else [(side, side), (side // 2, side // 3)]
    )
    for height, width in shapes:
        pixels = picture(height, height, width)
        given = as_seen(tower, pixels)
        if kind == "UnlimitedOcr":
            lines, places = grid_of(tower.config, height, width)
            given["patches_grid"] = [[places, lines]]
        with torch.no_grad():
            seen = model.get_image_features(**given)
        want = torch.cat(seen.pooler_output)
        with LLM(folder, mmproj=tower.file.path, **F32 | {"n_ctx": 1024, "n_batch": 1024}) as llm:
            close(llm.sight.rows(pixels), want)
            ids = [*BEFORE, *llm.sight.ids(pixels), *BEHIND]
            n_vocab = llm.model.config.n_vocab
            prompt = torch.tensor([[IMAGE if id_ >= n_vocab else id_ for id_ in ids]])
            with torch.no_grad():
                logits = model(input_ids=prompt, mm_encoder_outputs={"image": seen}).logits[0, -1:]
            close(llm.context.decode(ids), logits)


SHAPES = [(12, 11), (112, 62), (129, 129), (50, 312), (81, 80), (97, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_of_the_processor(shape: tuple[int, int]) -> None:
    """Every pixel of the tiles and of the whole, and the number of tokens; an eighth of published
    sizes."""
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
        DeepseekOcr2ImageProcessorPil,
    )
    from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
    from transformers.models.unlimited_ocr.processing_unlimited_ocr import UnlimitedOcrProcessor

    pixels = picture(1, *shape)
    for kind, most, tile in (("deepseekocr2", 6, 96), ("deepseekocr", 9, 80), ("", 32, 80)):
        made = DeepseekOcr2ImageProcessorPil(
            max_patches=most,
            tile_size=tile,
            size={"height": 128, "width": 128},
            image_mean=[0, 0, 0],
            image_std=[1, 1, 1],
        )
        seen = made([pixels], return_tensors="np", input_data_format="channels_last")
        want = [*seen.get("pixel_values_local", ()), seen["pixel_values"][0]]
        family = Tower.families[kind or "deepseekocr"]
        c = published(kind, most)
        assert family.tiles is not None
        tiles = family.tiles(c, pixels)
        for got, values in zip(tiles, want, strict=True):
            np.testing.assert_array_equal(got.pixels, np.rint(values * 255).transpose(1, 2, 0))
        own = SimpleNamespace(image_processor=made, patch_size=2, downsample_ratio=4,
                              image_token="·")  # fmt: skip
        if kind == "deepseekocr2":
            text = DeepseekOcr2Processor.replace_image_token(own, seen, 0)
        else:
            lines, places = grid_of(c, *shape)
            seen["patches_grid"] = [[places, lines]]
            text = UnlimitedOcrProcessor.replace_image_token(own, seen, 0)
        assert family.n_rows(c, *shape) == len(text)


def published(kind: str, most: int) -> TowerConfig:
    """The sizes of a tower that preprocessing needs."""
    return TowerConfig(
        projector="", n_embd=16, n_ff=16, n_layer=1, n_head=1, n_out=16, eps=1e-6, image_size=128,
        patch_size=2, mean=(0, 0, 0), std=(1, 1, 1), act="gelu", merge=1, most_tiles=most,
        n_queries=(144, 256) if kind == "deepseekocr2" else (0, 0),
    )  # fmt: skip


def as_published(folder: Path, kind: str) -> None:
    """Writes config.json as the makers do."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    vision = config["vision_config"]
    sam, second = vision["sam_config"], vision["encoder_config"]
    width: dict[str, Any] = {"sam_vit_b": {
        "layers": sam["num_hidden_layers"], "width": sam["hidden_size"],
        "heads": sam["num_attention_heads"], "global_attn_indexes": [2, 5, 8, 11]}}  # fmt: skip
    config["vision_config"] = {"image_size": sam["image_size"], "width": width,
                               "window_size": sam["window_size"]}  # fmt: skip
    if kind == "UnlimitedOcr":
        config["architectures"] = ["UnlimitedOCRForCausalLM"]
        width["clip-l-14-224"] = {
            "layers": second["num_hidden_layers"], "width": second["hidden_size"],
            "heads": second["num_attention_heads"], "image_size": 56, "patch_size": 7}  # fmt: skip
    else:
        config["architectures"] = ["DeepseekOCR2ForCausalLM"]
        width["qwen2-0-5b"] = {"dim": second["hidden_size"]}
        names = ("num_attention_heads", "intermediate_size", "num_hidden_layers")
        config["vision_config"] |= {"patch_size": sam["patch_size"], "layers": 2} | {
            name: second[name] for name in names}  # fmt: skip
    config["language_config"] = config.pop("text_config") | {"use_mla": False}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("kind", ["UnlimitedOcr", "DeepseekOcr2"])
def test_published_folders(tmp_path: Path, kind: str) -> None:
    """As makers publish them, and what is refused."""
    make(tmp_path, kind, "small")
    want = Tower(tmp_path).config
    as_published(tmp_path, kind)
    assert Tower(tmp_path).config == want
    config = json.loads((tmp_path / "config.json").read_text())
    sam = config["vision_config"]["width"]["sam_vit_b"]
    for key, value, why in (
        ("global_attn_indexes", [0, 1], r"global_attn_indexes' is \[0, 1\]"),
        ("heads", 5, "vision.sam.head_count"), ("layers", 0, "and must be 1 or more"),
    ):  # fmt: skip
        before, sam[key] = sam[key], value
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(FormatError, match=why):
            Tower(tmp_path)
        sam[key] = before
