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


# --- learned queries: files of MiniCPM-V 2.5 to 4.5 -----------------------------------------------


def resampler(wide: int, n_embd: int) -> dict[str, Any]:
    """Random weights of the queries, by their names in checkpoints."""
    torch.manual_seed(4)
    shapes = {
        "query": (5, wide), "proj": (wide, wide), "kv_proj.weight": (wide, n_embd),
        "attn.in_proj_weight": (3 * wide, wide), "attn.in_proj_bias": (3 * wide,),
        "attn.out_proj.weight": (wide, wide), "attn.out_proj.bias": (wide,),
        **{f"ln_{x}.{end}": (wide,) for x in ("q", "kv", "post") for end in ("weight", "bias")},
    }  # fmt: skip
    return {
        name: torch.randn(shape) * (1.2 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2)
        + (len(shape) == 1 and name.endswith("weight"))
        for name, shape in shapes.items()
    }


def resampled(w: dict[str, Any], x: Any, h: int, width: int) -> Any:
    """Rows of patches x by the model's card (resampler.py)."""
    from torch.nn import functional as F

    n = w["proj"].shape[0]

    def norm(name: str, x: Any) -> Any:
        return F.layer_norm(x, (n,), w[f"ln_{name}.weight"], w[f"ln_{name}.bias"], 1e-6)

    omega = 1 / 10000 ** (torch.arange(n // 4) / (n / 4))
    places = torch.arange(width).repeat(h), torch.arange(h).repeat_interleave(width)
    turns = [place[:, None] * omega for place in places]
    waves = torch.cat([part for t in turns for part in (t.sin(), t.cos())], dim=1)
    v = norm("kv", x @ w["kv_proj.weight"].T)
    out = F.multi_head_attention_forward(
        norm("q", w["query"]), v + waves, v, n, n // 128, w["attn.in_proj_weight"],
        w["attn.in_proj_bias"], None, None, False, 0.0, w["attn.out_proj.weight"],
        w["attn.out_proj.bias"], training=False, need_weights=False,
    )[0]  # fmt: skip
    return norm("post", out) @ w["proj"]


def write_resampler(
    path: Path, model: Any, w: dict[str, Any], size: dict[str, int], **keys: Any
) -> Path:
    """The file that the reference's converter writes of a checkpoint taken apart."""
    tensors = {}
    for name, p in model.state_dict().items():
        if not name.startswith("model.vision_tower.") or "vit_merger" in name:
            continue
        for old, new in (
            ("model.vision_tower.", "v."), ("encoder.layers", "blk"), ("embeddings.", ""),
            ("_proj", ""), ("self_attn.", "attn_"), ("layer_norm", "ln"), ("layernorm", "ln"),
            ("mlp.fc1", "ffn_down"), ("mlp.fc2", "ffn_up"), ("embedding", "embd"),
        ):  # fmt: skip
            name = name.replace(old, new)
        tensors[name] = p.detach().numpy()
    for name, p in w.items():
        if "in_proj" in name:
            end = name.rpartition("_")[2]
            for x, part in zip("qkv", p.chunk(3), strict=True):
                tensors[f"resampler.attn.{x}.{end}"] = part.numpy().copy()
        elif name == "proj":
            tensors["resampler.proj.weight"] = p.T.contiguous().numpy()
        else:
            tensors[f"resampler.{name.replace('_proj', '')}"] = p.numpy()
    return vision_models.write_tower(
        path, "resampler", tensors,
        **{"clip.vision.projection_dim": 0, "clip.vision.image_size": area(size),
           "clip.vision.patch_size": size["patch_size"], "clip.use_gelu": True,
           "clip.vision.embedding_length": size["hidden_size"],
           "clip.vision.feed_forward_length": size["intermediate_size"],
           "clip.vision.block_count": size["num_hidden_layers"],
           "clip.vision.attention.head_count": size["num_attention_heads"], **keys},
    )  # fmt: skip


@pytest.mark.parametrize(("size", "wide", "version"), [("small", 128, 2), ("large", 256, 6)])
def test_learned_queries(tmp_path: Path, size: str, wide: int, version: int) -> None:
    """Rows of an image and its slices, beside SigLIP of transformers and the maker's equations."""
    model, _ = make(tmp_path / "m", SIZES[size], "4x")
    w = resampler(wide, SIZES[size]["hidden_size"])
    path = write_resampler(
        tmp_path / "mmproj.gguf", model, w, SIZES[size], **{"clip.minicpmv_version": version}
    )
    text = hf_folders.SHAPE | {
        "hidden_size": wide,
        "num_hidden_layers": 1,
        "max_position_embeddings": 256,
    }
    hf_folders.made_model("Llama", "ForCausalLM", text).save_pretrained(tmp_path / "text")
    hf_folders.save_tokenizer("llama3", tmp_path / "text")
    pixels = picture(3, 50, 110)
    with LLM(tmp_path / "text", mmproj=path, **LARGE) as llm:
        tower = llm.sight.tower
        assert tower.family.tiles is not None
        tiles, want = tower.family.tiles(tower.config, pixels), []
        assert len(tiles) > 2
        for tile in tiles:
            p = SIZES[size]["patch_size"]
            h, width = (side // p for side in tile.pixels.shape[:2])
            values = vision_models.pixel_values(tile.pixels)[0].reshape(3, h, p, width, p)
            values = values.permute(0, 2, 1, 3, 4).reshape(1, 3, p, h * width * p)
            with torch.no_grad():
                seen = model.model.vision_tower(
                    values, target_sizes=torch.tensor([[h, width]]), use_vit_merger=False
                ).last_hidden_state[0]
                want.append(resampled(w, seen, h, width))
        close(llm.sight.rows(pixels), torch.cat(want))
        assert tower.family.n_rows(tower.config, 50, 110) == 5 * len(tiles)
        ids = llm.senses.prompt(["a", "b"], [Medium("image", pixels)])
        n_vocab = llm.model.config.n_vocab
        shown = llm.tokenizer.decode([id_ for id_ in ids if id_ < n_vocab])
    assert sum(id_ >= n_vocab for id_ in ids) == 5 * len(tiles)
    whole, slice_ = "<image></image>", "<slice></slice>"
    if version == 2:  # <slice> is around all slices, which are images
        assert shown.startswith(f"a{whole}<slice>{whole}") and shown.endswith("</slice>b")
    else:
        assert shown.startswith(f"a<image_id>0</image_id>{whole}{slice_}")


def test_versions_that_are_refused(tmp_path: Path) -> None:
    model, _ = make(tmp_path / "m", SIZES["small"], "4x")
    path = write_resampler(
        tmp_path / "mmproj.gguf", model, resampler(128, 24), SIZES["small"],
        **{"clip.minicpmv_version": 1},
    )  # fmt: skip
    with pytest.raises(FormatError, match="minicpmv_version"):
        Tower(path)


def test_sizes_beyond_all_images_are_refused(tmp_path: Path) -> None:
    """A small image is enlarged to the size that a file states."""
    path = vision_models.write_tower(
        tmp_path / "mmproj.gguf", "minicpmv4_6", {"x": np.zeros(4, np.float32)},
        **{"clip.vision.image_size": 6000, "clip.vision.patch_size": 14},
    )  # fmt: skip
    with pytest.raises(FormatError, match=r"vision.image_size"):
        Tower(path)
