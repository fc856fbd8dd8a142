"""Towers with LLaVA 1.6's tiles beside transformers, from folders and from their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.families import find_family
from weft.llm import LLM, Tower
from weft.llm.model import Model
from weft.llm.vision import granite4 as granite4_tower
from weft.quants import decode

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from transformers.models.llava_next.image_processing_pil_llava_next import (  # noqa: E402
    LlavaNextImageProcessorPil,
)

from tests.llm import anyres_models as made_models  # noqa: E402
from tests.llm import vision_models as models  # noqa: E402
from tests.llm.anyres_models import SHAPES, SIDE  # noqa: E402
from tests.llm.tiny import write_model  # noqa: E402
from tests.llm.vision_folders import IMAGE  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, F32, MEAN, STD, close, picture  # noqa: E402

LONG = F32 | {"n_ctx": 256, "n_outputs": 256}
SIZES = [(24, 48), (20, 14), (60, 33), (33, 61), (7, 90), (1, 100), (100, 1), (23, 71), (150, 150)]


def seen(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """An image as transformers' processor gives it to the model."""
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaNextImageProcessorPil(
        size=size, crop_size=size, image_grid_pinpoints=SHAPES, image_mean=MEAN, image_std=STD
    )
    return dict(processor(pixels, return_tensors="pt", input_data_format="channels_last"))


def in_transformers(ids: list[int]) -> Any:
    """The ids of a prompt as transformers takes them, with one id for all rows of images."""
    return torch.tensor([[IMAGE if i >= 400 else i for i in ids]])


@pytest.fixture(scope="module", params=made_models.NEXT)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Any, Path]]:
    """The kind of tower, the model and its folder."""
    folder = tmp_path_factory.mktemp("next")
    yield request.param, made_models.llava_next(request.param, folder), folder


def test_llava_next_beside_transformers(made: tuple[str, Any, Path], tmp_path: Path) -> None:
    """The rows of images of several shapes, the logits of a prompt with two of them, and the rows
    of the file."""
    _, model, folder = made
    out = tmp_path / "f32.gguf"
    convert_folder(folder, out, "f32", mmproj=True)
    assert Tower(folder).config == Tower(out).config
    with LLM(folder, mmproj=folder, **LONG) as llm:
        family, c = llm.sight.tower.family, llm.sight.tower.config
        for size in SIZES:
            pixels = picture(0, *size)
            with torch.no_grad():
                want = model.get_image_features(**seen(pixels)).pooler_output[0]
            rows = llm.sight.rows(pixels)
            assert len(rows) == family.n_rows(c, *size) == len(llm.sight.ids(pixels))
            close(rows, want)
        images = [picture(1, 33, 61), picture(2, 30, 30)]
        ids = [*BEFORE, *llm.sight.ids(images[0]), 5, *llm.sight.ids(images[1]), *BEHIND]
        features = [seen(image) for image in images]
        n = max(len(f["pixel_values"][0]) for f in features)
        values = torch.zeros(2, n, 3, SIDE, SIDE)
        for i, f in enumerate(features):
            values[i, : len(f["pixel_values"][0])] = f["pixel_values"][0]
        with torch.no_grad():
            logits = model(
                input_ids=in_transformers(ids), pixel_values=values,
                image_sizes=torch.cat([f["image_sizes"] for f in features]),
            ).logits[0]  # fmt: skip
        close(llm.context.decode(ids, outputs="all"), logits)
    with LLM(folder, mmproj=out, **LONG) as llm:
        np.testing.assert_allclose(llm.sight.rows(pixels), rows, atol=1e-4 * np.abs(rows).max())


@pytest.mark.parametrize("size", SIZES)
def test_pixels_of_llava_nexts_processor(
    made: tuple[str, Any, Path], size: tuple[int, int]
) -> None:
    """Every value of the whole and of every tile."""
    pixels, tower = picture(3, *size), Tower(made[2])
    got = [models.pixel_values(tile.pixels)[0] for tile in tower.family.tiles(tower.config, pixels)]
    torch.testing.assert_close(torch.stack(got), seen(pixels)["pixel_values"][0], atol=1e-5, rtol=0)


def test_old_files_of_llava_next(made: tuple[str, Any, Path], tmp_path: Path) -> None:
    """The reference's converter of old has other names, and calls the GELU of SigLIP CLIP's."""
    tower, tensors = Tower(made[2]), {}
    for name, info in tower.file.tensors.items():
        if ".ffn_" in name:
            up = "ffn_up" in name
            name = name.replace(*("ffn_up", "ffn_down") if up else ("ffn_down", "ffn_up"))
        tensors[name.replace("v.image", "model.image")] = decode(
            np.asarray(info.data), info.dtype
        ).reshape(info.ne[::-1])
    meta = tower.file.metadata
    keys = {key: meta[key] for key in meta if key.startswith("clip.") and "merge" not in key}
    old = models.write_tower(tmp_path / "old.gguf", "mlp", tensors, **keys | {
        "clip.use_gelu": False})  # fmt: skip
    pixels = picture(0, 33, 61)
    rows = []
    for path in (made[2], old):
        with LLM(made[2], mmproj=path, **LONG) as llm:
            rows.append(llm.sight.rows(pixels))
    np.testing.assert_allclose(*rows, atol=1e-5 * np.abs(rows[0]).max())


@pytest.mark.parametrize(
    ("file", "part", "change", "message"),
    [("config", "", {"vision_feature_select_strategy": "half"}, "must be '(default|full)'"),
     ("config", "", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
     ("config", "", {"image_grid_pinpoints": [[24, 48, 24]]}, "pairs of a height and a width"),
     ("config", "", {"image_grid_pinpoints": [[24, 36]]}, "36 x 24 pixels"),
     ("config", "text_config", {"model_type": "gpt2", "architectures": None}, "LLaVA over llama"),
     ("preprocessor_config", "", {"crop_size": {"height": 36}}, "but the tower takes 24")],
)  # fmt: skip
def test_folders_that_are_refused(
    made: tuple[str, Any, Path], tmp_path: Path, file: str, part: str,
    change: dict[str, Any], message: str,
) -> None:  # fmt: skip
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((made[2] / name).read_bytes())
    path = tmp_path / f"{file}.json"
    config = json.loads(path.read_text())
    (config[part] if part else config).update(change)
    path.write_text(json.dumps(config))
    with pytest.raises(FormatError, match=message):
        Tower(tmp_path)


def test_sizes_that_llavas_config_leaves_out() -> None:
    """Published folders leave out what transformers has by default."""
    config = {"architectures": ["LlavaNextForConditionalGeneration"], "text_config": {
        "model_type": "mistral", "architectures": ["MistralForCausalLM"]}}  # fmt: skip
    defaults = find_family(config).defaults or {}
    want = transformers.MistralConfig().to_dict()
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_key_value_heads",
                "max_position_embeddings", "rms_norm_eps"):  # fmt: skip
        assert defaults[key] == want[key], key
    assert "hidden_size" not in (find_family({"architectures": ["MistralForCausalLM"]}).defaults
                                 or {})  # fmt: skip


@pytest.fixture(scope="module", params=made_models.GRANITE4)
def granite4(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Path]]:
    """The model and its folder."""
    folder = tmp_path_factory.mktemp("granite4")
    yield made_models.granite4(request.param, folder), folder


def test_granite4_beside_transformers(granite4: tuple[Any, Path], tmp_path: Path) -> None:
    """The rows of all projectors for images of several shapes, the logits of a prompt with one,
    and the same of both files."""
    model, folder = granite4
    text, tower = tmp_path / "text.gguf", tmp_path / "tower.gguf"
    convert_folder(folder, text, "f32")
    convert_folder(folder, tower, "f32", mmproj=True)
    assert Tower(folder).config == Tower(tower).config
    with LLM(folder, mmproj=folder, **LONG) as llm:
        family, c = llm.sight.tower.family, llm.sight.tower.config
        for size in [(33, 61), (24, 48), (60, 20), (1, 100)]:
            pixels = picture(0, *size)
            with torch.no_grad():
                streams = model.model.get_image_features(**seen(pixels)).deepstack_features
            want = torch.cat([rows[0] for _, rows in sorted(streams, key=lambda s: s[0])], 1)
            rows = llm.sight.rows(pixels)
            assert len(rows) == family.n_rows(c, *size)
            close(rows, want)
    pixels = picture(0, 33, 61)
    for paths in ((folder, folder), (text, tower)):
        with LLM(paths[0], mmproj=paths[1], **LONG) as llm:
            ids = [*BEFORE, *llm.sight.ids(pixels), *BEHIND]
            with torch.no_grad():
                logits = model(input_ids=in_transformers(ids), **seen(pixels)).logits[0]
            close(llm.context.decode(ids, outputs="all"), logits)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [("", {"downsample_rate": "half"}, "as '4/8'"), ("", {"downsample_rate": "3/5"}, "do not fit"),
     ("", {"vision_feature_select_strategy": "default"}, "must be 'full'"),
     ("", {"deepstack_layer_map": [[-1, 0], [-2, 99]]}, "layers are missing"),
     ("", {"deepstack_layer_map": [[-1, 1]], "spatial_target_layers": []}, "must have layer 0"),
     ("", {"deepstack_layer_map": [[-1, 0], [-2, 2], [-1, 2]]}, "no layer twice"),
     ("", {"deepstack_layer_map": [[0, 0]]}, "layers are missing"),
     ("", {"deepstack_layer_map": [0]}, "must be pairs"),
     ("", {"spatial_target_layers": [0, 1, 2, 3, 4]}, "at most 4"),
     ("", {"image_grid_pinpoints": None}, "shapes of tiles"),
     ("qformer_config", {"num_hidden_layers": 2}, "weft knows 1 only"),
     ("vision_config", {"model_type": "clip_vision_model"}, "'siglip_vision_model' only")],
)  # fmt: skip
def test_folders_of_granite4_that_are_refused(
    granite4: tuple[Any, Path], tmp_path: Path, part: str, change: dict[str, Any], message: str
) -> None:
    for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((granite4[1] / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (config[part] if part else config).update(change)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=message):
        Tower(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("vision.projector.spatial_offsets", [4], "from -1 to 3"),
     ("vision.projector.spatial_offsets", [-1, -1], "a corner for each layer"),
     ("vision.projector.query_side", 5, "do not fit"),
     ("vision.projector.window_side", 0, "do not fit"),
     ("vision.image_grid_pinpoints", None, "shapes of tiles"),
     ("vision.feature_layer vision.projector.spatial_offsets", None, "a corner for each layer"),
     ("vision.feature_layer", [0] * 40, "at most 64"),
     ("vision.feature_layer", [3], "a projector sees layer 3")],
)  # fmt: skip
def test_files_of_granite4_that_are_refused(
    granite4: tuple[Any, Path], tmp_path: Path, key: str, value: Any, message: str
) -> None:
    """Lists have the given numbers for each projector."""
    tower = Tower(granite4[1])
    if isinstance(value, list):
        value = np.array(value * len(tower.config.layers), np.int32)
    meta = tower.file.metadata
    keys = {name: meta[name] for name in meta if name.startswith("clip.")}
    keys |= {f"clip.{name}": value for name in key.split()}
    given = {name: value for name, value in keys.items() if value is not None}
    tensors = {
        name: decode(np.asarray(info.data), info.dtype).reshape(info.ne[::-1])
        for name, info in tower.file.tensors.items()
    }
    path = models.write_tower(tmp_path / "a.gguf", "granite4_vision", tensors, **given)
    with pytest.raises(FormatError, match=message):
        Tower(path)


def test_numbers_of_parts_that_are_refused(granite4: tuple[Any, Path], tmp_path: Path) -> None:
    convert_folder(granite4[1], tmp_path / "text.gguf", "f32")
    file = open_gguf(tmp_path / "text.gguf")
    keys = {name: file.metadata[name] for name in file.metadata}
    n_layer = len(keys["granite.deepstack_mapping"])
    for given, message in (
        ([1, *[-1] * (n_layer - 1)], "each number from 1 on once"),
        ([-1, 2, *[-1] * (n_layer - 2)], "each number from 1 on once"),
        ([-1, 1, 1, *[-1] * (n_layer - 3)], "each number from 1 on once"),
        ([-1], f"{n_layer} integers"),
    ):
        keys["granite.deepstack_mapping"] = np.array(given, np.int32)
        path = write_model(tmp_path / "other.gguf", keys, {"x": np.zeros(1, np.float32)})
        with pytest.raises(FormatError, match=message):
            Model(open_gguf(path))


def test_means_of_too_many_patches_are_refused(
    granite4: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    c = Tower(granite4[1]).config
    monkeypatch.setattr(granite4_tower, "POOLED_SHARES", (c.side * granite4_tower.side(c)) ** 2)
    Tower(granite4[1])
    monkeypatch.setattr(granite4_tower, "POOLED_SHARES", (c.side * granite4_tower.side(c)) ** 2 - 1)
    with pytest.raises(FormatError, match="shares"):
        Tower(granite4[1])
