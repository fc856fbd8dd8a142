"""Towers of models that read documents, from folders, beside transformers: each in two sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Tower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, MEAN, STD, close, picture  # noqa: E402

IMAGE = 399
SMALL = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
         "num_attention_heads": 2, "patch_size": 4}  # fmt: skip
LARGE = {"hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
         "num_attention_heads": 3, "patch_size": 6}  # fmt: skip
LEAST, MOST = 64, 4096
"""Pixels of an image."""


@dataclass
class Kind:
    """A kind of model, and how transformers takes its images."""

    name: str
    """Of the classes of transformers."""
    tokenizer: str
    text: dict[str, Any]
    vision: Callable[[dict[str, Any]], dict[str, Any]]
    more: dict[str, Any]
    flat: bool
    """True if a patch is a row of numbers."""
    processor: str


def _sections(kind: str, sections: list[int], **more: object) -> dict[str, Any]:
    rope = {"rope_type": kind, "rope_theta": 1000.0, "mrope_section": sections, **more}
    return {"head_dim": 8, "rope_parameters": rope, "max_position_embeddings": 256}


ENDS = {"vision_start_token_id": IMAGE - 2, "vision_end_token_id": IMAGE - 3}
KINDS = {
    "paddleocr": Kind(
        "PaddleOCRVL", "pieces", _sections("default", [2, 1, 1]),
        lambda size: size | {"image_size": 6 * size["patch_size"]},
        ENDS | {"video_token_id": IMAGE - 1}, False, "paddleocr_vl",
    ),
    "hunyuan_vl": Kind(
        "HunYuanVL", "gpt2",
        _sections("dynamic", [1, 1, 1, 1], alpha=3.0, factor=1.0) | {"pad_token_id": 0},
        lambda size: size | {"max_image_size": 6 * size["patch_size"], "text_hidden_size": 32},
        {"im_start_id": IMAGE - 2, "im_end_id": IMAGE - 3}, True, "hunyuan_vl",
    ),
}  # fmt: skip
SIZES = {"small": SMALL, "large": LARGE}


def make(kind: Kind, size: dict[str, Any], folder: Path) -> Any:
    """The model, which is saved in the folder."""
    config = getattr(transformers, f"{kind.name}Config")(
        text_config=hf_folders.SHAPE | kind.text, vision_config=kind.vision(dict(size)),
        image_token_id=IMAGE, attn_implementation="eager", tie_word_embeddings=False, **kind.more,
    )  # fmt: skip
    model = vision_models.randomised(
        getattr(transformers, f"{kind.name}ForConditionalGeneration")(config)
    )
    model.save_pretrained(folder)
    hf_folders.save_tokenizer(kind.tokenizer, folder)
    seen = {"image_mean": MEAN, "image_std": STD, "min_pixels": LEAST, "max_pixels": MOST}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    if kind.name == "HunYuanVL":  # sections are of pairs, as the configuration says of them
        model.model.language_model.rotary_emb.recomposition_frequencies = lambda freq: torch.cat(
            [m[i] for i, m in enumerate(freq.split([1, 1, 1, 1], -1))] * 2, -1
        )
    return model


@pytest.fixture(scope="module", params=[(k, s) for k in KINDS for s in SIZES], ids="-".join)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Kind, int, Any, Path]]:
    """The kind, pixels of a patch's side, the model and its folder."""
    name, size = request.param
    folder = tmp_path_factory.mktemp("documents")
    patch = int(SIZES[size]["patch_size"])
    yield KINDS[name], patch, make(KINDS[name], SIZES[size], folder), folder


def patches(kind: Kind, pixels: NDArray[np.uint8], p: int) -> tuple[Any, list[int]]:
    """An image as transformers takes it, and its moments, lines and places."""
    h, w = (side // p for side in pixels.shape[:2])
    values = vision_models.pixel_values(pixels)[0].reshape(3, h, p, w, p).permute(1, 3, 0, 2, 4)
    values = values.reshape(h * w, 3, p, p)
    return values.reshape(h * w, -1) if kind.flat else values, [1, h, w]


def test_beside_transformers(made: tuple[Kind, int, Any, Path]) -> None:
    """The rows of two images with fewer and more lines than learned positions, and the logits of a
    prompt with both."""
    kind, p, model, folder = made
    parts, grids, rows = [], [], []
    prompt, ours, types = list(BEFORE), list(BEFORE), [0] * len(BEFORE)
    with LLM(folder, mmproj=folder, **F32 | {"n_ctx": 128, "n_outputs": 128}) as llm:
        for seed, (height, width) in enumerate([(4 * p, 10 * p), (10 * p, 6 * p)]):
            pixels = picture(seed, height, width)
            rows.append(llm.sight.rows(pixels))
            ids = llm.sight.ids(pixels)
            prompt += [IMAGE - 2, *[IMAGE] * len(ids), IMAGE - 3, *BEHIND]
            ours += [IMAGE - 2, *ids, IMAGE - 3, *BEHIND]
            types += [0, *[1] * len(ids), 0, *[0] * len(BEHIND)]
            values, grid = patches(kind, pixels, p)
            parts.append(values)
            grids.append(grid)
        seen = {"pixel_values": torch.cat(parts), "image_grid_thw": torch.tensor(grids)}
        with torch.no_grad():
            features = model.get_image_features(**seen).pooler_output
            want = model(
                input_ids=torch.tensor([prompt]),
                mm_token_type_ids=torch.tensor([types], dtype=torch.int32),
                **seen,
            ).logits[0]
        close(np.concatenate(rows), torch.cat(list(features)))
        close(llm.context.decode(ours, outputs="all"), want)


def test_its_file(made: tuple[Kind, int, Any, Path], tmp_path: Path) -> None:
    """The file that the folder converts to has the same configuration and makes the same rows."""
    _, p, _, folder = made
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    towers = [Tower(path) for path in (folder, tmp_path / "f32.gguf")]
    assert towers[0].config == towers[1].config
    pixels = picture(0, 4 * p, 6 * p)
    rows = [LLM(folder, mmproj=t.file.path, n_ctx=64).sight.rows(pixels) for t in towers]
    np.testing.assert_allclose(rows[0], rows[1], atol=5e-3 * np.abs(rows[0]).max())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [(29, 50), (70, 71), (6, 40), (200, 33)])
def test_pixels_of_the_processor(name: str, size: tuple[int, int]) -> None:
    """Every pixel of an image in the size in which the tower takes it."""
    kind, p, merge = KINDS[name], 4, 2
    module = __import__(
        f"transformers.models.{kind.processor}.image_processing_pil_{kind.processor}",
        fromlist=["x"],
    )
    made = getattr(module, f"{kind.name}ImageProcessorPil")(
        min_pixels=LEAST, max_pixels=MOST, patch_size=p, merge_size=merge, image_mean=MEAN,
        image_std=STD,
    )  # fmt: skip
    pixels = picture(1, *size)
    want = made(images=[pixels], return_tensors="np")
    h, w = want["image_grid_thw"][0][1:]
    want = want["pixel_values"].reshape(h // merge, merge, w // merge, merge, 3, p, p)
    want = want.transpose(0, 2, 1, 3, 4, 5, 6).reshape(h * w, 3, p * p)
    config = _config(name, p, merge)
    family = Tower.families[config.projector]
    small = family.sized(config, pixels)
    assert small.shape == (h * p, w * p, 3)
    got = family.values(config, small)["patches"].reshape(h * w, 3, p * p)
    np.testing.assert_allclose(got, want, atol=1e-6)
    scale, mean = np.array(STD)[:, None], np.array(MEAN)[:, None]
    whole = [np.rint((x * scale + mean) * 255) for x in (got, want)]
    np.testing.assert_array_equal(*whole)


def _config(name: str, p: int, merge: int) -> Any:
    from weft.llm.vision.config import TowerConfig

    projector = {"hunyuan_vl": "hunyuanvl"}.get(name, name)
    return TowerConfig(
        projector=projector, n_embd=24, n_ff=40, n_layer=2, n_head=2, n_out=32, eps=1e-6,
        image_size=24, patch_size=p, mean=tuple(MEAN), std=tuple(STD), act="gelu", merge=merge,
        n_learned=36, least_pixels=LEAST, most_pixels=MOST,
    )  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    make(KINDS["hunyuan_vl"], SMALL, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["interpolate_mode"] = "bicubic"
    config["text_config"]["rope_parameters"]["mrope_section"] = [2, 2]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="interpolate_mode' must be 'bilinear'"):
        Tower(tmp_path)
    with pytest.raises(FormatError, match=r"has the sections \[2, 2\]; weft computes four"):
        LLM(tmp_path)


@pytest.mark.parametrize("size", SIZES)
def test_lightonocr(tmp_path: Path, size: str) -> None:
    """Pixtral's tower with another projector, before Qwen3: rows, logits and the file."""
    p = int(SIZES[size]["patch_size"])
    text = hf_folders.SHAPE | {"head_dim": 8, "rms_norm_eps": 1e-6, "max_position_embeddings": 256}
    config = transformers.LightOnOcrConfig(
        text_config=text | {"model_type": "qwen3"}, image_token_id=IMAGE,
        vision_config=SIZES[size] | {
            "model_type": "pixtral", "image_size": 12 * p, "hidden_act": "silu", "head_dim":
            SIZES[size]["hidden_size"] // SIZES[size]["num_attention_heads"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        attn_implementation="eager", tie_word_embeddings=False,
    )  # fmt: skip
    model = vision_models.randomised(transformers.LightOnOcrForConditionalGeneration(config))
    model.save_pretrained(tmp_path)
    hf_folders.save_tokenizer("qwen2", tmp_path)
    seen = {"image_mean": MEAN, "image_std": STD}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(seen))
    pixels = picture(0, 4 * p, 10 * p)
    given = {"pixel_values": vision_models.pixel_values(pixels),
             "image_sizes": torch.tensor([[4 * p, 10 * p]])}  # fmt: skip
    with LLM(tmp_path, mmproj=tmp_path, **F32 | {"n_ctx": 128, "n_outputs": 128}) as llm:
        ids = llm.sight.ids(pixels)
        prompt = torch.tensor([[*BEFORE, *[IMAGE] * len(ids), *BEHIND]])
        with torch.no_grad():
            features = model.get_image_features(**given).pooler_output
            want = model(input_ids=prompt, **given).logits[0]
        close(llm.sight.rows(pixels), torch.cat(list(features)))
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want)
    convert_folder(tmp_path, tmp_path / "f32.gguf", "f32", mmproj=True)
    made = Tower(tmp_path / "f32.gguf")
    assert made.config == Tower(tmp_path).config and made.config.projector == "lightonocr"
