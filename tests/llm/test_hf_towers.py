"""Towers for images in Hugging Face folders: the tensors and keys of mmproj files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_mmproj
from weft.llm import LLM, Tower

folders = pytest.importorskip("tests.llm.hf_folders")
pytest.importorskip("PIL.Image")
pytest.importorskip("gguf")

from tests.llm import vision_models as models  # noqa: E402
from tests.llm.llava_models import make_llava, make_pixtral  # noqa: E402
from tests.llm.peft_folders import make_peft  # noqa: E402
from tests.llm.vision_models import picture  # noqa: E402

Made = tuple[Any, Path, Path]
MAKERS: dict[str, Callable[[Path], Made]] = {
    "gemma3": models.gemma3,
    "qwen2vl": lambda folder: models.qwen(folder, "qwen2vl"),
    "qwen2.5vl": lambda folder: models.qwen(folder, "qwen2.5vl"),
    "qwen3vl": lambda folder: models.qwen(folder, "qwen3vl"),
    "pixtral": lambda folder: make_pixtral(folder, 1),
    "mistral3": lambda folder: make_pixtral(folder, 2),
    "llava": lambda folder: make_llava(folder, swapped=False, layers=[]),
    "llava of two layers": lambda folder: make_llava(folder, swapped=False, layers=[1, 2]),
}
OF_THE_TEST = {  # keys that the files of these tests have otherwise than converters
    "clip.use_gelu", "clip.use_silu",
    "clip.vision.spatial_merge_size", "clip.vision.projection_dim",
    "clip.vision.feed_forward_length",
}  # fmt: skip


def saved(folder: Path, model: Any) -> Path:
    """The model as a folder, with the colours of `vision_models`."""
    model.save_pretrained(folder)
    seen = {"image_mean": models.MEAN, "image_std": models.STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(seen))
    return folder


def same(got: GGUFFile, want: GGUFFile) -> None:
    assert set(got.tensors) == set(want.tensors)
    for name, tensor in want.tensors.items():
        assert got.tensors[name].ne == tensor.ne, name
        np.testing.assert_array_equal(got.tensors[name].data, tensor.data, err_msg=name)
    keys = [{key for key in f.metadata if key.startswith("clip.")} for f in (got, want)]
    assert keys[0] ^ keys[1] <= OF_THE_TEST
    for key in keys[1] - OF_THE_TEST:
        np.testing.assert_array_equal(got.metadata[key], want.metadata[key], err_msg=key)


@pytest.mark.parametrize("name", MAKERS)
def test_folders_are_their_mmproj_files(tmp_path: Path, name: str) -> None:
    """As a folder and as the file that it converts to: the file that names say; and rows."""
    model, _, path = MAKERS[name](tmp_path)
    folder, want = saved(tmp_path / "hf", model), Tower(path)
    same(open_mmproj(folder), want.file)
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    converted = Tower(tmp_path / "f32.gguf")
    if name != "gemma3":  # whose projection is always f16
        same(converted.file, want.file)
    for tower in (Tower(folder), converted):
        assert tower.config == want.config


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of LLaVA with a tokenizer."""
    folder = tmp_path_factory.mktemp("llava")
    model = make_llava(folder, swapped=False, layers=[])[0]
    model.resize_token_embeddings(400)
    saved(folder / "hf", model)
    folders.save_tokenizer("gpt2", folder / "hf")
    return folder / "hf"


def test_a_folder_sees(llava: Path, tmp_path: Path) -> None:
    """The folder and its two files, f32 and q8_0, from the command line."""
    from PIL import Image

    Image.fromarray(picture()).save(tmp_path / "a.png")
    asked = ("--image", tmp_path / "a.png", "-p", "the sun", "-n", 6, "--temp", 0, "-q")
    ran = [weft("run", llava, "--mmproj", llava, *asked)]
    for kind in ("f32", "q8_0"):
        text, tower = tmp_path / f"{kind}.gguf", tmp_path / f"mmproj-{kind}.gguf"
        assert weft("convert", llava, text, "--type", kind).returncode == 0
        done = weft("convert", llava, tower, "--type", kind, "--mmproj")
        assert done.returncode == 0 and f"{tower}: " in done.stderr, done.stderr
        ran.append(weft("run", text, "--mmproj", tower, *asked))
    assert [done.returncode for done in ran] == [0, 0, 0], [done.stderr for done in ran]
    assert ran[0].stdout == ran[1].stdout
    shown = weft("explain", llava, "--mmproj", tower, "--brief").stdout
    assert "tower" in shown
    done = weft("explain", Path("examples/weft-demo.gguf"), "--mmproj", tower)
    assert "its rows have 32 numbers, but those of weft-demo.gguf have 128" in done.stderr
    done = weft("convert", llava, tmp_path / "x.gguf", "--mmproj", "--type", "q4_K_M")
    assert "--type q4_K_M does not go with --mmproj" in done.stderr


def test_rows_of_16_bits(llava: Path, tmp_path: Path) -> None:
    rows = []
    for kind in ("f32", "f16", "bf16", "q8_0"):
        convert_folder(llava, tmp_path / f"{kind}.gguf", kind, mmproj=True)
        with LLM(llava, mmproj=tmp_path / f"{kind}.gguf", n_ctx=64) as llm:
            rows.append(llm.sight.rows(picture()))
    for other in rows[1:]:
        assert 0 < np.abs(other - rows[0]).max() < 0.1 * np.abs(rows[0]).max()


def test_adapters_of_towers_are_refused(llava: Path, tmp_path: Path) -> None:
    model = folders.transformers.LlavaForConditionalGeneration.from_pretrained(llava)
    make_peft(tmp_path / "text", model, lambda name: "language_model" in name and "q_proj" in name)
    make_peft(tmp_path / "all", model, lambda name: "q_proj" in name)
    LLM(llava, mmproj=llava, adapters=[tmp_path / "text"], n_ctx=64).close()
    with pytest.raises(FormatError, match="q_proj, a part of the tower for images"):
        LLM(llava, mmproj=llava, adapters=[tmp_path / "all"], n_ctx=64)


def change(folder: Path, **values: object) -> Path:
    """A folder with other values in config.json; `vision_` are those of the tower."""
    config = json.loads((folder / "config.json").read_text())
    for name, value in values.items():
        if name.startswith("tower_"):
            config["vision_config"][name.removeprefix("tower_")] = value
        else:
            config[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tower": ({"vision_config": None}, "'vision_config' must be an object"),
    "unknown": ({"tower_model_type": "nose"}, "is 'nose'; known towers are clip_vision"),
    "sizes": ({"tower_patch_size": "8"}, "'patch_size' is '8'"),
    "no patches": ({"tower_patch_size": 0}, "'patch_size' of the tower is 0"),
    "norm": ({"tower_layer_norm_eps": [1]}, "must be a number"),
    "layers": ({"vision_feature_layer": 9}, "'vision_feature_layer' is 9, of 3 layers"),
    "the class's row": ({"vision_feature_select_strategy": "full"}, "must be 'default'"),
    "tiles": ({"image_grid_pinpoints": [[32, 64]]}, "tiles"),
    "activation": ({"tower_hidden_act": "tanh"}, "'tanh'; known here are quick_gelu"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_configurations(llava: Path, tmp_path: Path, name: str) -> None:
    values, message = WRONG[name]
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((llava / file).read_bytes())
    with pytest.raises(FormatError, match=message):
        Tower(change(tmp_path, **values))


def test_wrong_colours_and_windows(llava: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((llava / file).read_bytes())
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": "grey"}')
    with pytest.raises(FormatError, match="'image_mean' of the image processor is 'grey'"):
        Tower(tmp_path)
    folder = saved(tmp_path / "hf", models.qwen(tmp_path, "qwen2.5vl")[0])
    with pytest.raises(FormatError, match="weft knows one in so many layers"):
        Tower(change(folder, tower_fullatt_block_indexes=[0, 3]))
