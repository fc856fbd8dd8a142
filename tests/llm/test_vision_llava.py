"""The towers of LLaVA, Pixtral and Mistral Small beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.llava_models import BREAK, END, make_llava, make_pixtral
from tests.llm.made_models import keys_of
from tests.llm.tiny import write_model
from weft.errors import FormatError
from weft.llm import LLM, Medium, Tower
from weft.llm.vision import llava, pixtral

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import vision_models as models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, close, picture, pixel_values  # noqa: E402


@pytest.mark.parametrize("merge", [1, 2])
def test_pixtral_beside_transformers(tmp_path: Path, merge: int) -> None:
    """Two images of several lines, one of which shrinks; a token stands between lines."""
    model, text, tower = make_pixtral(tmp_path, merge)
    llm = LLM(text, mmproj=tower, n_outputs=128, **F32 | {"n_ctx": 128})
    prompt, ours, values, sizes, rows = list(BEFORE), list(BEFORE), [], [], []
    for seed, (height, width) in enumerate([(32, 48), (96, 32)]):
        pixels = picture(seed, height, width)
        c = llm.sight.tower.config
        seen = pixtral.PIXTRAL.sized(c, pixels)
        rows.append(llm.sight.rows(pixels))
        ours += [*llm.sight.ids(pixels), *BEHIND]
        h, w = (side // (8 * merge) for side in seen.shape[:2])
        prompt += ([models.IMAGE] * w + [BREAK]) * (h - 1) + [models.IMAGE] * w + BEHIND
        pad = np.zeros((48, 48, 3), np.uint8)
        pad[: seen.shape[0], : seen.shape[1]] = seen
        values.append(pixel_values(pad))
        sizes.append(seen.shape[:2])
    assert sizes == [(32, 48), (48, 16)]
    seen_by: dict[str, Any] = {"pixel_values": torch.cat(values)}
    seen_by["image_sizes"] = torch.tensor(sizes)
    close(np.concatenate(rows), torch.cat(list(model.get_image_features(**seen_by).pooler_output)))
    want = model(input_ids=torch.tensor([prompt]), **seen_by).logits[0]
    close(llm.context.decode(ours, outputs="all"), want)
    assert (
        llm.sight.ids(picture(0, 32, 48))
        == ours[len(BEFORE) : len(BEFORE) + 24 // merge**2 + 4 // merge - 1]
    )
    prompt_ids = llm.senses.prompt(["a", "b"], [Medium("image", picture(0, 32, 48))])
    assert END in prompt_ids


@pytest.mark.parametrize(("swapped", "layers"), [(True, []), (False, [1, 2])])
def test_llava_beside_transformers(tmp_path: Path, swapped: bool, layers: list[int]) -> None:
    """With the matrices' names of old files, and with the outputs of two layers."""
    model, text, tower = make_llava(tmp_path, swapped=swapped, layers=layers)
    llm = LLM(text, mmproj=tower, n_outputs=64, **F32)
    pixels = picture()
    ids = llm.sight.ids(pixels)
    assert len(ids) == 16
    prompt = torch.tensor([[*BEFORE, *[models.IMAGE] * 16, *BEHIND]])
    want = model(input_ids=prompt, pixel_values=pixel_values(pixels)).logits[0]
    close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want)


def test_llava_pads_images_to_squares(tmp_path: Path) -> None:
    _, _, path = make_llava(tmp_path, swapped=False, layers=[])
    c = Tower(path).config
    pixels = picture(0, 16, 32)
    square = llava.sized(c, pixels)
    np.testing.assert_array_equal(square[8:24], pixels)
    mean = [int(255 * value) for value in models.MEAN]
    assert (square[:8] == mean).all() and (square[24:] == mean).all()
    line = llava.sized(c, np.zeros((1, 60000, 3), np.uint8))  # no square of 10 GB
    assert line.shape == (32, 32, 3) and (line[:15] == mean).all()


@pytest.mark.parametrize(
    ("sides", "how", "message"),
    [([32, 64, 32], "spatial_unpad", "pairs of widths"), ([], "spatial_unpad", "pairs of widths"),
     ([32, 40], "spatial_unpad", "32 x 40 pixels"), ([32, -32], "spatial_unpad", "32 x -32"),
     ([32, 32 * 65], "spatial_unpad", "at most 64 tiles"), ([32, 64] * 600, "", "at most 512"),
     ([32, 64], "flat", "'flat'")],
)  # fmt: skip
def test_tiles_that_are_refused(tmp_path: Path, sides: list[int], how: str, message: str) -> None:
    keys = {"clip.vision.image_size": 32, "clip.vision.patch_size": 8, "clip.use_gelu": False,
            "clip.vision.embedding_length": 16, "clip.vision.feed_forward_length": 24,
            "clip.vision.block_count": 1, "clip.vision.attention.head_count": 2,
            "clip.vision.mm_patch_merge_type": how,
            "clip.vision.image_grid_pinpoints": np.array(sides, np.int32)}  # fmt: skip
    path = models.write_tower(tmp_path / "a.gguf", "mlp", {"x": np.zeros(1, np.float32)}, **keys)
    with pytest.raises(FormatError, match=message):
        Tower(path)


def test_a_text_model_without_ends_of_lines_is_refused(tmp_path: Path) -> None:
    model, text, tower = make_pixtral(tmp_path, 1)
    keys = keys_of("llama", {"embedding_length": 32, "block_count": 3, "rope.dimension_count": 8})
    tensors = models.text_tensors(model, models.LAYER)
    plain = write_model(tmp_path / "plain.gguf", keys, tensors)
    assert text != plain
    with pytest.raises(FormatError, match=r"no token \[IMG_BREAK\]"):
        LLM(plain, mmproj=tower, **F32)
