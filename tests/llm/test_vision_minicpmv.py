"""The towers of MiniCPM-V, which see an image and its slices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.errors import ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Tower
from weft.llm.senses.media import Medium

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, MEAN, STD, close, picture  # noqa: E402

IMAGE = 399
SIZES: dict[str, dict[str, int]] = {
    "small": {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
              "num_attention_heads": 2, "patch_size": 4, "image_size": 24},
    "large": {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 4,
              "num_attention_heads": 3, "patch_size": 6, "image_size": 42},
}  # fmt: skip
LARGE: dict[str, Any] = F32 | {"n_ctx": 256, "n_outputs": 256}


def area(size: dict[str, int]) -> int:
    """The side of a square of the area of a slice."""
    return 10 * size["patch_size"]


def make(folder: Path, size: dict[str, int], mode: str) -> Any:
    """The model, which is saved in the folder."""
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
        MiniCPMV4_6ImageProcessorPil,
    )

    text = hf_folders.MODELS["minicpm v4.6"][1] | {"max_position_embeddings": 256}
    config = transformers.MiniCPMV4_6Config(
        text_config=text, vision_config=dict(size), insert_layer_id=1, image_token_id=IMAGE,
        downsample_mode=mode, attn_implementation="eager",
    )  # fmt: skip
    model = vision_models.randomised(transformers.MiniCPMV4_6ForConditionalGeneration(config))
    model.save_pretrained(folder)
    hf_folders.save_tokenizer("qwen2", folder)
    made = MiniCPMV4_6ImageProcessorPil(
        scale_resolution=area(size), patch_size=size["patch_size"], downsample_mode=mode,
        image_mean=MEAN, image_std=STD,
    )  # fmt: skip
    made.save_pretrained(folder)
    return model, made


MADE = [("small", "16x"), ("large", "16x"), ("small", "4x")]


@pytest.fixture(scope="module", params=MADE, ids="-".join)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model, its processor of images and its folder."""
    folder = tmp_path_factory.mktemp("minicpmv")
    return *make(folder, SIZES[request.param[0]], request.param[1]), folder


def test_beside_transformers(made: Any, tmp_path: Path) -> None:
    """Rows of images with and without slices, and logits, through the folder and its file."""
    model, processor, folder = made
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    assert Tower(tmp_path / "f32.gguf").config == Tower(folder).config
    images = [picture(seed, *shape) for seed, shape in enumerate([(20, 33), (50, 110)])]
    seen = processor(images=images, return_tensors="pt")
    given = {key: seen[key] for key in ("pixel_values", "target_sizes")}
    with torch.no_grad():
        want = torch.cat(model.get_image_features(**given).pooler_output)
    for mmproj in (folder, tmp_path / "f32.gguf"):
        with LLM(folder, mmproj=mmproj, **LARGE) as llm:
            close(np.concatenate([llm.sight.rows(pixels) for pixels in images]), want)
            numbers = list(BEFORE)
            for pixels in images:
                numbers += [*llm.sight.ids(pixels), *BEHIND]
            n_vocab = llm.model.config.n_vocab
            prompt = torch.tensor([[IMAGE if id_ >= n_vocab else id_ for id_ in numbers]])
            assert int((prompt == IMAGE).sum()) == len(want)
            with torch.no_grad():
                logits = model(input_ids=prompt, **given).logits[0]
            close(llm.context.decode(numbers, outputs="all"), logits)


@pytest.mark.parametrize(
    "shape", [(29, 50), (20, 33), (90, 91), (6, 40), (300, 33), (47, 310), (2, 150), (50, 50)]
)
def test_pixels_and_text_of_the_processor(made: Any, shape: tuple[int, int]) -> None:
    """Every pixel of the whole and the slices, their order and the text around them."""
    from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor

    _, processor, folder = made
    pixels = picture(1, *shape)
    seen = processor(images=[pixels], return_tensors="np", input_data_format="channels_last")
    tower = Tower(folder)
    family, c = tower.family, tower.config
    assert family.tiles is not None
    tiles = family.tiles(c, pixels)
    p, start, scale, mean = c.patch_size, 0, np.array(STD), np.array(MEAN)
    assert len(tiles) == len(seen["target_sizes"])
    for tile, (h, w) in zip(tiles, seen["target_sizes"], strict=True):
        want = seen["pixel_values"][0, :, :, start : start + h * w * p].reshape(3, p, h, w, p)
        start += h * w * p
        want = want.transpose(2, 1, 3, 4, 0).reshape(h * p, w * p, 3)
        np.testing.assert_array_equal(tile.pixels, np.rint((want * scale + mean) * 255))
    names = ("image_start_token", "image_end_token", "slice_start_token", "slice_end_token")
    tags = dict(zip(names, ("<image>", "</image>", "<slice>", "</slice>"), strict=True))
    own = SimpleNamespace(image_token="·", slice_mode=True, **tags)
    text = MiniCPMV4_6Processor.replace_image_token(own, seen, 0, image_token_divisor=c.merge**2)
    rows = [len(family.values(c, tile.pixels)["places"]) // c.merge**2 for tile in tiles]
    ours = [f"{t.before}{'·' * n}{t.after}" for t, n in zip(tiles, rows, strict=True)]
    assert "".join(ours) == text
    assert family.n_rows(c, *shape) == sum(rows)


def test_numbers_of_images(made: Any) -> None:
    """Each image of a prompt has its number in front."""
    _, _, folder = made
    with LLM(folder, mmproj=folder, **LARGE) as llm:
        media = [Medium("image", picture(seed, 20, 20)) for seed in range(2)]
        ids = llm.senses.prompt(["a", "b", "c"], media)
        text = llm.tokenizer.decode([id_ for id_ in ids if id_ < llm.model.config.n_vocab])
    around = "<image_id>{}</image_id><image></image>"
    assert text == f"a{around.format(0)}b{around.format(1)}c"


def test_what_is_refused(tmp_path: Path) -> None:
    make(tmp_path, SIZES["small"], "16x")
    with pytest.raises(ContextError, match="3 x 700 pixels; one side is more than 200 times"):
        Tower(tmp_path).family.n_rows(Tower(tmp_path).config, 700, 3)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value, why in (
        ("merger_times", 2, r"merger_times' is 2; weft computes 1"),
        ("insert_layer_id", 3, r"wa_layer_indexes must begin with a number below 3"),
        ("merge_kernel_size", [3, 3], r"merge_kernel_size' is \[3, 3\]"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(FormatError, match=why):
            Tower(tmp_path)
