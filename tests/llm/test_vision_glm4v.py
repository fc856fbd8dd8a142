"""The tower of GLM-4.1V and GLM-4.5V beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.llm import LLM
from weft.llm.vision import glm4v

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, close, picture, pixel_values  # noqa: E402

IMAGE = 399
TOWER: dict[str, Any] = {
    "depth": 2, "hidden_size": 16, "num_heads": 2, "out_hidden_size": 32, "intermediate_size": 24,
    "image_size": 24, "patch_size": 4,
}  # fmt: skip


def make(folder: Path, kind: str = "Glm4v") -> tuple[Any, Path]:
    """The model, whose text is in the folder, and the tower's file."""
    name = "glm4 moe images" if kind == "Glm4vMoe" else "glm4 images"
    _, text, tokenizer = hf_folders.MODELS[name]
    if kind == "GlmOcr":  # with heads of any width
        sections = text["rope_parameters"] | {"mrope_section": [2, 1, 1]}
        text = text | {"head_dim": 16, "rope_parameters": sections}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text | {"max_position_embeddings": 256},
        vision_config=TOWER, image_token_id=IMAGE, video_token_id=IMAGE - 1,
        image_start_token_id=IMAGE - 2, image_end_token_id=IMAGE - 3,
        attn_implementation="eager",
    )  # fmt: skip
    model = vision_models.randomised(
        getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    )
    model.save_pretrained(folder)
    hf_folders.save_tokenizer(tokenizer, folder)
    tower = vision_models.write_tower(
        folder / "mmproj.gguf", "glm4v", vision_models.tower_tensors(model, 2),
        **{"clip.use_silu": True, "clip.vision.image_size": 24, "clip.vision.patch_size": 4,
           "clip.vision.embedding_length": 16, "clip.vision.feed_forward_length": 24,
           "clip.vision.block_count": 2, "clip.vision.attention.head_count": 2,
           "clip.vision.projection_dim": 32, "clip.vision.attention.layer_norm_epsilon": 1e-5},
    )  # fmt: skip
    return model, tower


@pytest.mark.parametrize("kind", ["Glm4v", "Glm4vMoe", "GlmOcr"])
def test_beside_transformers(tmp_path: Path, kind: str) -> None:
    """Images with fewer and more lines than learned positions, in a prompt."""
    model, tower = make(tmp_path, kind)
    patches, grids, rows = [], [], []
    prompt, ours = list(BEFORE), list(BEFORE)
    with LLM(tmp_path, mmproj=tower, **F32 | {"n_ctx": 128, "n_outputs": 128}) as llm:
        for seed, (height, width) in enumerate([(16, 40), (32, 24)]):
            pixels = picture(seed, height, width)
            rows.append(llm.sight.rows(pixels))
            ids = llm.sight.ids(pixels)
            prompt += [IMAGE - 2, *[IMAGE] * len(ids), IMAGE - 3, *BEHIND]
            ours += [IMAGE - 2, *ids, IMAGE - 3, *BEHIND]
            h, w = height // 8, width // 8
            values = pixel_values(pixels)[0].reshape(3, h, 2, 4, w, 2, 4)
            values = values.permute(1, 4, 2, 5, 0, 3, 6).reshape(h * w * 4, 3, 1, 4, 4)
            patches.append(values.repeat(1, 1, 2, 1, 1).reshape(h * w * 4, -1))
            grids.append([1, h * 2, w * 2])
        seen = {"pixel_values": torch.cat(patches), "image_grid_thw": torch.tensor(grids)}
        features = model.get_image_features(*seen.values())
        close(np.concatenate(rows), torch.cat(list(features.pooler_output)))
        inputs = torch.tensor([prompt])
        types = (inputs == IMAGE).int()
        with torch.no_grad():
            want = model(input_ids=inputs, mm_token_type_ids=types, **seen).logits[0]
        close(llm.context.decode(ours, outputs="all"), want)


def test_the_size_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    from weft.llm import Tower

    _, tower = make(tmp_path)
    c = Tower(tower).config
    for height, width in [(480, 640), (3, 100), (100, 100), (9000, 2000)]:
        want = smart_resize(2, height, width, 2, 8, 2 * 8 * 64, 2 * 6144 * 64)
        assert glm4v.size_of(c, height, width) == want
