"""Towers of models that read documents, which transformers has not: beside their makers' equations,
each in two sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Tower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import hf_folders, vision_models  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, MEAN, STD, close, picture  # noqa: E402

SIZES: dict[str, dict[str, int]] = {
    "small": {"embed_dim": 24, "intermediate_size": 40, "num_hidden_layers": 2,
              "num_attention_heads": 2, "patch_size": 4, "spatial_merge_size": 2},
    "large": {"embed_dim": 48, "intermediate_size": 56, "num_hidden_layers": 3,
              "num_attention_heads": 3, "patch_size": 6, "spatial_merge_size": 3},
}  # fmt: skip
LEAST, MOST = 64, 4096
"""Pixels of an image."""
Weights = dict[str, Any]


def random_weights(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Weights that make a difference, by name."""
    torch.manual_seed(3)
    return {
        name: torch.randn(shape) * (1.2 / np.prod(shape[1:]) ** 0.5 if len(shape) > 1 else 0.2)
        + (len(shape) == 1 and "bias" not in name)
        for name, shape in shapes.items()
    }


def text_logits(model: Any, ids: list[int], rows: Any) -> Any:
    """The logits of the text model for a prompt whose negative ids stand for rows of images."""
    with torch.no_grad():
        embedded = model.get_input_embeddings()(torch.tensor(ids).clamp(min=0))
        embedded[torch.tensor(ids) < 0] = rows
        return model(inputs_embeds=embedded[None]).logits[0]


def save(folder: Path, model: Any, weights: Weights, **changes: object) -> None:
    """Adds the tensors of a tower and settings to the folder of a text model."""
    from safetensors.torch import save_file

    model.save_pretrained(folder)
    own = {name: p.contiguous() for name, p in model.state_dict().items()}
    save_file(own | weights, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    hf_folders.save_tokenizer("qwen2", folder)


# --- dots.ocr ---------------------------------------------------------------------------------


def dots_shapes(size: dict[str, int], n_out: int) -> dict[str, tuple[int, ...]]:
    n, ff, p = size["embed_dim"], size["intermediate_size"], size["patch_size"]
    wide = n * size["spatial_merge_size"] ** 2
    out: dict[str, tuple[int, ...]] = {
        "patch_embed.patchifier.proj.weight": (n, 3, p, p), "post_trunk_norm.weight": (n,),
        "patch_embed.patchifier.proj.bias": (n,), "patch_embed.patchifier.norm.weight": (n,),
        "merger.ln_q.weight": (n,), "merger.ln_q.bias": (n,), "merger.mlp.0.weight": (wide, wide),
        "merger.mlp.0.bias": (wide,), "merger.mlp.2.weight": (n_out, wide),
        "merger.mlp.2.bias": (n_out,),
    }  # fmt: skip
    for il in range(size["num_hidden_layers"]):
        shapes = {"norm1": (n,), "norm2": (n,), "attn.qkv": (3 * n, n), "attn.proj": (n, n),
                  "mlp.fc1": (ff, n), "mlp.fc2": (n, ff), "mlp.fc3": (ff, n)}  # fmt: skip
        out |= {f"blocks.{il}.{name}.weight": shape for name, shape in shapes.items()}
    return {f"vision_tower.{name}": shape for name, shape in out.items()}


def dots_rows(w: Weights, size: dict[str, int], pixels: Any) -> Any:
    """The rows of an image by the equations of the model's card (modeling_dots_vision.py)."""
    from torch.nn import functional as F
    from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

    w = {name.removeprefix("vision_tower."): p for name, p in w.items()}
    n, p, m = size["embed_dim"], size["patch_size"], size["spatial_merge_size"]
    heads = size["num_attention_heads"]
    h, width = (side // p for side in pixels.shape[:2])

    def squares(x: Any) -> Any:
        """Patches [h, w, ...], square after square."""
        return x.reshape(h // m, m, width // m, m, -1).permute(0, 2, 1, 3, 4).reshape(h * width, -1)

    def rms(name: str, x: Any) -> Any:
        return F.rms_norm(x, (n,), w[f"{name}.weight"], 1e-5)

    x = vision_models.pixel_values(pixels)[0].reshape(3, h, p, width, p).permute(1, 3, 0, 2, 4)
    kernel = w["patch_embed.patchifier.proj.weight"].reshape(n, -1)
    x = squares(x.reshape(h, width, -1)) @ kernel.T + w["patch_embed.patchifier.proj.bias"]
    x = rms("patch_embed.patchifier.norm", x)
    frequencies = 1 / 10000 ** (torch.arange(0, n // heads // 2, 2) / (n // heads // 2))
    places = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(width), indexing="ij"), -1)
    angles = (squares(places)[:, :, None] * frequencies).reshape(h * width, -1)
    angles = torch.cat([angles, angles], -1)
    for il in range(size["num_hidden_layers"]):
        at = f"blocks.{il}"
        qkv = rms(f"{at}.norm1", x) @ w[f"{at}.attn.qkv.weight"].T
        q, k, v = qkv.reshape(h * width, 3, heads, -1).unbind(1)
        q, k = apply_rotary_pos_emb_vision(q, k, angles.cos(), angles.sin())
        y = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (q, k, v)))
        x = x + y.transpose(0, 1).reshape(h * width, n) @ w[f"{at}.attn.proj.weight"].T
        y = rms(f"{at}.norm2", x)
        y = F.silu(y @ w[f"{at}.mlp.fc1.weight"].T) * (y @ w[f"{at}.mlp.fc3.weight"].T)
        x = x + y @ w[f"{at}.mlp.fc2.weight"].T
    x = rms("post_trunk_norm", x)
    x = F.layer_norm(x, (n,), w["merger.ln_q.weight"], w["merger.ln_q.bias"], 1e-6)
    x = x.reshape(-1, n * m * m)
    x = F.gelu(x @ w["merger.mlp.0.weight"].T + w["merger.mlp.0.bias"])
    return x @ w["merger.mlp.2.weight"].T + w["merger.mlp.2.bias"]


def make_dots(folder: Path, size: dict[str, int]) -> tuple[Any, Weights]:
    """The text model and the tower's weights, which are saved in the folder."""
    text = hf_folders.SHAPE | {"max_position_embeddings": 256, "tie_word_embeddings": False}
    model = hf_folders.made_model("Qwen2", "ForCausalLM", text)
    weights = random_weights(dots_shapes(size, model.config.hidden_size))
    vision = size | {"hidden_size": model.config.hidden_size, "rms_norm_eps": 1e-5}
    save(
        folder, model, weights, architectures=["DotsOCRForCausalLM"], model_type="dots_ocr",
        vision_config=vision,
    )  # fmt: skip
    seen = {"image_mean": MEAN, "image_std": STD, "min_pixels": LEAST, "max_pixels": MOST}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    return model, weights


@pytest.fixture(scope="module", params=SIZES)
def dots(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The size, the text model, the tower's weights and the folder."""
    folder, size = tmp_path_factory.mktemp("dots"), SIZES[request.param]
    return size, *make_dots(folder, size), folder


def test_dots_ocr(dots: Any, tmp_path: Path) -> None:
    """Rows, logits of a prompt with two images, and the file that the folder converts to."""
    size, model, weights, folder = dots
    side = size["patch_size"] * size["spatial_merge_size"]
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    assert Tower(tmp_path / "f32.gguf").config == Tower(folder).config
    images = [picture(seed, h * side, w * side) for seed, (h, w) in enumerate([(2, 5), (4, 1)])]
    want = torch.cat([dots_rows(weights, size, pixels) for pixels in images])
    for mmproj in (folder, tmp_path / "f32.gguf"):
        with LLM(folder, mmproj=mmproj, **F32 | {"n_ctx": 128, "n_outputs": 128}) as llm:
            close(np.concatenate([llm.sight.rows(pixels) for pixels in images]), want)
            ids, prompt = list(BEFORE), list(BEFORE)
            for pixels in images:
                rows = llm.sight.ids(pixels)
                ids += [*rows, *BEHIND]
                prompt += [*[-1] * len(rows), *BEHIND]
            got = llm.context.decode(ids, outputs="all")
            close(got, text_logits(model, prompt, want))
            assert llm.sight.before == "<|img|>" and llm.sight.after == "<|endofimg|>"


@pytest.mark.parametrize("shape", [(29, 50), (70, 71), (6, 40), (200, 33)])
def test_pixels_of_dots_ocr(dots: Any, shape: tuple[int, int]) -> None:
    """Every pixel of an image in the size in which the tower takes it."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size, _, _, folder = dots
    p, m = size["patch_size"], size["spatial_merge_size"]
    made = Qwen2VLImageProcessorPil(
        min_pixels=LEAST, max_pixels=MOST, patch_size=p, merge_size=m, temporal_patch_size=1,
        image_mean=[0, 0, 0], image_std=[1, 1, 1],
    )  # fmt: skip
    pixels = picture(1, *shape)
    want = made(images=[pixels], return_tensors="np")
    config = Tower(folder).config
    family = Tower.families["dots_ocr"]
    small = family.sized(config, pixels)
    h, w = want["image_grid_thw"][0][1:]
    assert small.shape == (h * p, w * p, 3)
    assert family.n_rows(config, *shape) == h * w // m**2
    got = family.values(config, small)["patches"].reshape(h * w, 3, p * p)
    got = (got * np.array(STD)[:, None] + np.array(MEAN)[:, None]).reshape(h * w, -1)
    np.testing.assert_array_equal(np.rint(got * 255), np.rint(want["pixel_values"] * 255))


def test_what_dots_ocr_refuses(tmp_path: Path) -> None:
    make_dots(tmp_path, SIZES["small"])
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["temporal_patch_size"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="temporal_patch_size' must be 1"):
        Tower(tmp_path)
