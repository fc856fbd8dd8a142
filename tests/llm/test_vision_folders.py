"""Towers of images beside transformers, each in two sizes, from folders and from the
files that folders convert to."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.towers import llama4 as llama4_tower
from weft.llm import LLM, Tower

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from PIL import Image  # noqa: E402

from tests.llm import hf_folders  # noqa: E402
from tests.llm import vision_folders as made_towers  # noqa: E402
from tests.llm.vision_folders import IMAGE, SIZES  # noqa: E402
from tests.llm.vision_models import (  # noqa: E402
    BEFORE,
    BEHIND,
    F32,
    close,
    picture,
    pixel_values,
)  # fmt: skip

LONG = F32 | {"n_ctx": 256, "n_outputs": 256}


def patches(pixels: NDArray[np.uint8], p: int) -> Any:
    """The patches of an image in their lines, as transformers takes them."""
    h, w = (side // p for side in pixels.shape[:2])
    values = pixel_values(pixels)[0].reshape(3, h, p, w, p).permute(1, 3, 0, 2, 4)
    return values.reshape(h * w, 3, p, p)


def kimi_seen(pixels: NDArray[np.uint8], p: int) -> dict[str, Any]:
    grid = [[1, pixels.shape[0] // p, pixels.shape[1] // p]]
    return {"pixel_values": patches(pixels, p), "image_grid_thw": torch.tensor(grid)}


@pytest.fixture(scope="module", params=SIZES)
def kimi(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Any, Path]]:
    """Pixels of a patch's side, the model and its folder."""
    folder = tmp_path_factory.mktemp("kimi")
    yield int(SIZES[request.param]["patch_size"]), made_towers.kimi(request.param, folder), folder


def test_kimi_beside_transformers(kimi: tuple[int, Any, Path], tmp_path: Path) -> None:
    """The rows of an image with fewer lines and more places than learned positions, the logits of
    a prompt with it, and the rows of the file and of Kimi-VL's folder and file."""
    p, model, folder = kimi
    pixels = picture(0, 4 * p, 10 * p)
    with LLM(folder, mmproj=folder, **LONG) as llm:
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        prompt = torch.tensor([[*BEFORE, *[IMAGE] * len(ids), *BEHIND]])
        with torch.no_grad():
            want = model(input_ids=prompt, **kimi_seen(pixels, p))
        close(rows, want.image_hidden_states[0])
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    old = tmp_path / "old"
    old.mkdir()
    for path in folder.iterdir():
        (old / path.name).write_bytes(path.read_bytes())
    made_towers.as_kimi_vl(old)
    for source, kind in ((folder, "kimik25"), (old, "kimivl")):
        out = tmp_path / f"{kind}.gguf"
        convert_folder(source, out, "f32", mmproj=True)
        towers = Tower(source), Tower(out)
        assert towers[0].config == towers[1].config
        assert towers[0].config.projector == kind
        for path in (source, out):
            with LLM(folder, mmproj=path, **LONG) as llm:
                np.testing.assert_allclose(
                    llm.sight.rows(pixels), rows, atol=1e-4 * np.abs(rows).max()
                )


def test_names_of_kimis_file(kimi: tuple[int, Any, Path], tmp_path: Path) -> None:
    """Converters keep one matrix of queries, keys and values for Kimi K2.5, and three for
    Kimi-VL."""
    _, _, folder = kimi
    names = set(Tower(folder).file.tensors)
    assert "v.blk.0.attn_qkv.weight" in names and "v.blk.0.attn_q.weight" not in names
    assert {"v.position_embd.weight", "v.post_ln.bias", "mm.input_norm.weight", "mm.1.weight",
            "mm.2.bias", "v.blk.0.ffn_up.bias", "v.blk.0.ln1.weight"} <= names  # fmt: skip
    meta = Tower(folder).file.metadata
    assert meta["vision.pos_emb_height"] and "clip.vision.image_max_pixels" in meta


@pytest.mark.parametrize("size", [(16, 24), (29, 50), (130, 71), (3, 40), (9, 1000)])
def test_pixels_of_kimis_processor(kimi: tuple[int, Any, Path], size: tuple[int, int]) -> None:
    """Every pixel of an image that is shrunk as it has to be, and filled up."""
    p, _, folder = kimi
    resize = made_towers.function_of("kimi_k25.image_processing_kimi_k25", "navit_resize")
    pixels = picture(1, *size)
    tower = Tower(folder)
    c, family = tower.config, tower.family
    small = family.sized(c, pixels)
    inner, outer = resize(*size, p, 2, 400, 512)
    assert small.shape == (*outer, 3)
    assert family.n_rows(c, *size) == outer[0] * outer[1] // (2 * p) ** 2
    want = np.zeros_like(small)
    shrunk = Image.fromarray(pixels).resize(inner[::-1], Image.Resampling.BICUBIC)
    want[: inner[0], : inner[1]] = np.asarray(shrunk)
    np.testing.assert_array_equal(small, want)
    order = family.values(c, small)
    at = order["lines"] * (outer[1] // p) + order["places"]
    got = order["patches"].reshape(-1, 3, p, p)
    np.testing.assert_allclose(got, patches(want, p)[at], atol=1e-6)


def test_kimis_folders_that_are_refused(kimi: tuple[int, Any, Path], tmp_path: Path) -> None:
    _, _, folder = kimi
    given = json.loads((folder / "config.json").read_text())
    for name in ("model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for key, value in (("pos_emb_width", 9), ("merge_kernel_size", [1, 2]), ("hidden_act", "relu"),
                       ("num_attention_heads", 16)):  # fmt: skip
        config = given | {"vision_config": given["vision_config"] | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(FormatError, match=f"{key}|must be multiples of 4"):
            Tower(tmp_path)


def in_transformers(ids: list[int]) -> Any:
    """The ids of a prompt as transformers takes them, with one id for all rows of images."""
    return torch.tensor([[IMAGE if i >= hf_folders.SHAPE["vocab_size"] else i for i in ids]])


def check_file(folder: Path, out: Path, pixels: NDArray[np.uint8], rows: NDArray[Any]) -> Tower:
    """The file that the folder converts to has the same configuration and makes the same rows."""
    convert_folder(folder, out, "f32", mmproj=True)
    towers = Tower(folder), Tower(out)
    assert towers[0].config == towers[1].config
    with LLM(folder, mmproj=out, **LONG) as llm:
        np.testing.assert_allclose(llm.sight.rows(pixels), rows, atol=1e-4 * np.abs(rows).max())
    return towers[1]


@pytest.fixture(scope="module", params=SIZES)
def step3(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Any, Path]]:
    """Pixels of a patch's side, the model and its folder."""
    folder = tmp_path_factory.mktemp("step3")
    yield int(SIZES[request.param]["patch_size"]), made_towers.step3(request.param, folder), folder


def test_step3_beside_transformers(step3: tuple[int, Any, Path], tmp_path: Path) -> None:
    """The rows of two windows and of the whole image, the logits of a prompt with all of them, and
    the rows of the file."""
    p, model, folder = step3
    pixels = picture(0, 4 * p, 8 * p)
    with LLM(folder, mmproj=folder, **LONG) as llm:
        tower = llm.sight.tower
        parts = tower.family.tiles(tower.config, pixels)
        assert [len(part.pixels) // p for part in parts] == [4, 4, 8]
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        seen = [pixel_values(part.pixels) for part in parts]
        with torch.no_grad():
            want = model(
                input_ids=in_transformers([*BEFORE, *ids, *BEHIND]), pixel_values=seen[2],
                pixel_values_local=torch.cat(seen[:2]), num_local_patches=[2],
            )  # fmt: skip
            features = model.model.get_image_features(seen[2], torch.cat(seen[:2]), [2])
        close(rows, features.pooler_output[0])
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    made = check_file(folder, tmp_path / "f32.gguf", pixels, rows)
    assert {"v.blk.0.attn_qkv.bias", "v.blk.0.ls1.weight", "v.pre_ln.weight", "mm.0.bias",
            "mm.1.weight", "mm.model.fc.weight"} <= set(made.file.tensors)  # fmt: skip


@pytest.mark.parametrize(
    "size", [(20, 30), (32, 16), (8, 60), (16, 33), (50, 45), (100, 35), (200, 110), (33, 200)]
)
def test_windows_of_step3s_processor(step3: tuple[int, Any, Path], size: tuple[int, int]) -> None:
    """Every pixel of every window and of the whole, and where lines of windows end."""
    p, _, folder = step3
    names = ("_is_extreme_aspect", "_plan_patches")
    plan = made_towers.function_of("step3p7.image_processing_step3p7", *names)
    extreme = made_towers.function_of("step3p7.image_processing_step3p7", names[0])
    own = SimpleNamespace(_is_extreme_aspect=extreme, max_image_size=30 * p)
    whole, cut, window, n_x, n_y, square = plan(own, size[1], size[0], 8 * p, 4 * p)
    tower, pixels = Tower(folder), picture(2, *size)
    parts = tower.family.tiles(tower.config, pixels)
    image = Image.fromarray(pixels)
    if square:
        image = Image.new("RGB", (max(size), max(size)))
        image.paste(Image.fromarray(pixels), (0, 0))

    def shrunk(image: Any, *size: int) -> Any:
        return image.resize(size, Image.Resampling.BILINEAR)

    np.testing.assert_array_equal(parts[-1].pixels, shrunk(shrunk(image, *whole), 8 * p, 8 * p))
    assert len(parts) == (n_x * n_y if window else 0) + 1
    cells = shrunk(image, *cut)
    for i, part in enumerate(parts[:-1]):
        y, x = divmod(i, n_x)
        box = (x * window, y * window, min((x + 1) * window, cut[0]), min((y + 1) * window, cut[1]))
        np.testing.assert_array_equal(part.pixels, shrunk(cells.crop(box), 4 * p, 4 * p))
        assert ("<patch_newline>" in part.after) == (x == n_x - 1 and y < n_y - 1)
    n = tower.family.n_rows(tower.config, *size)
    assert n == 4 + len(parts[:-1])


def test_sides_that_cannot_be_halved_twice(step3: tuple[int, Any, Path], tmp_path: Path) -> None:
    p, _, folder = step3
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    seen = json.loads((tmp_path / "preprocessor_config.json").read_text()) | {"patch_size": 3 * p}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(seen))
    with pytest.raises(FormatError, match="must be multiples of 4 patches"):
        Tower(tmp_path)


@pytest.fixture(scope="module", params=SIZES)
def nemotron(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Any, Path]]:
    """Pixels of a patch's side, the model and its folder."""
    folder = tmp_path_factory.mktemp("nemotron")
    patch = int(SIZES[request.param]["patch_size"])
    yield patch, made_towers.nemotron(request.param, folder), folder


def test_nemotron_beside_transformers(nemotron: tuple[int, Any, Path], tmp_path: Path) -> None:
    """The rows of an image with fewer lines and places than the largest, the logits of a prompt
    with it, and the rows of the file."""
    p, model, folder = nemotron
    pixels = picture(0, 6 * p, 10 * p)
    with LLM(folder, mmproj=folder, **LONG) as llm:
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        seen = {"pixel_values": patches(pixels, p).flatten(1),
                "image_grid_hw": torch.tensor([[6, 10]])}  # fmt: skip
        with torch.no_grad():
            want = model(input_ids=in_transformers([*BEFORE, *ids, *BEHIND]), **seen)
            close(rows, model.get_image_features(**seen).pooler_output[0])
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    made = check_file(folder, tmp_path / "f32.gguf", pixels, rows)
    assert made.file.tensors["v.position_embd.weight"].ne[1] == 64
    assert made.file.tensors["v.position_embd_whole.weight"].ne[1] == 144


@pytest.mark.parametrize("size", [(10, 12), (29, 50), (130, 71), (3, 40), (20, 999), (24, 40)])
def test_pixels_of_nemotrons_processor(
    nemotron: tuple[int, Any, Path], size: tuple[int, int]
) -> None:
    """The size of an image in its own proportions, and its values, which may overshoot."""
    p, _, folder = nemotron
    name = "get_patch_grid_size"
    grid = made_towers.function_of("nemotron_h_omni.image_processing_nemotron_h_omni", name)
    h, w = (n * p for n in grid(*size, p, 2, 24, 200))
    tower, pixels = Tower(folder), picture(1, *size)
    small = tower.family.sized(tower.config, pixels)
    assert small.shape == (h, w, 3)
    assert tower.family.n_rows(tower.config, *size) == h * w // (2 * p) ** 2
    values = torch.tensor(pixels).permute(2, 0, 1)[None].double()
    how = {"mode": "bicubic", "antialias": True, "align_corners": False}
    want = torch.nn.functional.interpolate(values, (h, w), **how)[0].permute(1, 2, 0)
    np.testing.assert_allclose(small, want if size != (h, w) else pixels, atol=1e-3)


def test_nemotron_in_tiles(nemotron: tuple[int, Any, Path], tmp_path: Path) -> None:
    """The model before takes tiles, whose positions are spread from the first to the last."""
    p, model, folder = nemotron
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["NemotronH_Nano_VL_V2"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    pixels = picture(0, 8 * p, 16 * p)
    with LLM(tmp_path, mmproj=tmp_path, **LONG) as llm:
        assert "v.position_embd_whole.weight" not in llm.sight.tower.file.tensors
        rows, whole = llm.sight.rows(pixels), llm.sight.rows(pixels[:, : 8 * p])
        assert len(rows) == 3 * 16 and len(whole) == 16
        np.testing.assert_array_equal(rows[:16], whole)
    table = model.vision_model.embeddings.position_embedding
    with torch.no_grad():
        square = table.data.reshape(1, 12, 12, -1).permute(0, 3, 1, 2)
        spread = torch.nn.functional.interpolate(
            square, (8, 8), mode="bilinear", align_corners=True
        )
        model.vision_model.embeddings._interpolate_position_embedding = lambda *_: spread.flatten(
            2
        ).permute(0, 2, 1)
        seen = patches(pixels[:, : 8 * p], p).flatten(1)
        want = model.get_image_features(seen, torch.tensor([[8, 8]])).pooler_output[0]
        del model.vision_model.embeddings._interpolate_position_embedding
    close(whole, want)
    check_file(tmp_path, tmp_path / "f32.gguf", pixels, rows)


@pytest.fixture(scope="module", params=SIZES)
def llama4(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Any, Path]]:
    """Pixels of a tile's side, the model and its folder."""
    folder = tmp_path_factory.mktemp("llama4")
    side = 4 * int(SIZES[request.param]["patch_size"])
    yield side, made_towers.llama4(request.param, folder), folder


def test_llama4_beside_transformers(
    llama4: tuple[int, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of two tiles and of the whole, the logits of a prompt with them, and the rows of
    the file."""
    side, model, folder = llama4
    pixels = picture(0, 2 * side, side)
    with LLM(folder, mmproj=folder, **LONG) as llm:
        tower = llm.sight.tower
        parts = tower.family.tiles(tower.config, pixels)
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        seen = torch.cat([pixel_values(part.pixels) for part in parts])
        assert len(parts) == 3 and tower.family.n_rows(tower.config, *pixels.shape[:2]) == 12
        with torch.no_grad():
            encoded = model.vision_model(seen).last_hidden_state
            features = model.multi_modal_projector(encoded).flatten(0, 1)
            prompt = in_transformers([*BEFORE, *ids, *BEHIND])
            embedded = model.get_input_embeddings()(prompt)
            embedded[prompt == IMAGE] = features
            want = model.language_model(inputs_embeds=embedded)
        close(rows, features)
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    made = check_file(folder, tmp_path / "f32.gguf", pixels, rows)
    # newer converters of the reference call the second norm otherwise
    monkeypatch.setitem(llama4_tower._LLAMA4, "post_attention_layernorm", "attn_post_norm")
    with LLM(folder, mmproj=folder, **LONG) as llm:
        assert "v.blk.0.attn_post_norm.bias" in llm.sight.tower.weights
        np.testing.assert_array_equal(llm.sight.rows(pixels), rows)
    assert {"v.class_embd", "mm.model.mlp.1.weight", "mm.model.mlp.2.weight", "mm.model.fc.weight",
            "v.blk.0.attn_q.bias"} <= set(made.file.tensors)  # fmt: skip


@pytest.mark.parametrize(
    "size", [(16, 16), (7, 9), (20, 33), (40, 20), (100, 35), (65, 66), (9, 200), (300, 3)]
)
def test_tiles_of_llama4s_processor(llama4: tuple[int, Any, Path], size: tuple[int, int]) -> None:
    """Every pixel of every tile and of the whole, and the tokens behind tiles."""
    side, _, folder = llama4
    module = "llama4.image_processing_llama4"
    square = namedtuple("Square", "height width")(side, side)
    sizes = made_towers.function_of(module, "get_factors", "find_supported_resolutions")(6, square)
    canvas = made_towers.function_of(module, "get_best_fit")(size, torch.tensor(sizes)).tolist()
    inside = [min(max(n, side), m) for n, m in zip(size, canvas, strict=True)]
    h, w = made_towers.function_of(module, "get_max_res_without_distortion")(size, inside)
    tower, pixels = Tower(folder), picture(2, *size)
    parts = tower.family.tiles(tower.config, pixels)
    image, filled = Image.fromarray(pixels), Image.new("RGB", canvas[::-1])
    filled.paste(image.resize((max(w, 1), max(h, 1)), Image.Resampling.BILINEAR), (0, 0))
    n_lines, n_places = (n // side for n in canvas)
    assert len(parts) == n_lines * n_places + (n_lines * n_places > 1)
    for i in range(n_lines * n_places):
        y, x = divmod(i, n_places)
        want = filled.crop((x * side, y * side, (x + 1) * side, (y + 1) * side))
        np.testing.assert_array_equal(parts[i].pixels, want)
        if len(parts) > 1:
            axis = "x" if x < n_places - 1 else "y"
            assert parts[i].after == f"<|tile_{axis}_separator|>"
    if len(parts) > 1:
        whole = image.resize((side, side), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(parts[-1].pixels, whole)
    assert parts[-1].before == "<|image|>"


@pytest.fixture(scope="module", params=SIZES)
def minimax(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, Any, Path]]:
    """Pixels of a patch's side, the model and its folder."""
    folder = tmp_path_factory.mktemp("minimax")
    patch = int(SIZES[request.param]["patch_size"])
    yield patch, made_towers.minimax(request.param, folder), folder


def squares(pixels: NDArray[np.uint8], p: int) -> dict[str, Any]:
    """An image as transformers takes it, square after square of 2 by 2 patches, in two frames."""
    h, w = (side // p for side in pixels.shape[:2])
    values = pixel_values(pixels)[0].reshape(3, h // 2, 2, p, w // 2, 2, p)
    values = values.permute(1, 4, 2, 5, 0, 3, 6).unsqueeze(5)
    values = values.expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(h * w, -1)
    return {"pixel_values": values, "image_grid_thw": torch.tensor([[1, h, w]])}


def test_minimax_m3_beside_transformers(minimax: tuple[int, Any, Path], tmp_path: Path) -> None:
    """The rows of an image, the logits of a prompt with it, and the rows of the file."""
    p, model, folder = minimax
    pixels = picture(0, 8 * p, 10 * p)
    seen = squares(pixels, p)
    with LLM(folder, mmproj=folder, **LONG) as llm:
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        with torch.no_grad():
            want = model(input_ids=in_transformers([*BEFORE, *ids, *BEHIND]), **seen)
            close(rows, model.get_image_features(**seen).pooler_output[0])
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    made = check_file(folder, tmp_path / "f32.gguf", pixels, rows)
    assert {"v.patch_embd.weight.1", "mm.merger.fc1.bias", "v.pre_ln.weight"} <= set(
        made.file.tensors
    )


@pytest.mark.parametrize("size", [(10, 12), (29, 50), (130, 71), (200, 33)])
def test_pixels_of_minimaxs_processor(
    minimax: tuple[int, Any, Path], size: tuple[int, int]
) -> None:
    p, _, folder = minimax
    resize = made_towers.function_of("minimax_m3_vl.image_processing_minimax_m3_vl", "smart_resize")
    h, w = resize(*size, 2 * p, 600, 9000)
    tower, pixels = Tower(folder), picture(1, *size)
    small = tower.family.sized(tower.config, pixels)
    want = Image.fromarray(pixels).resize((w, h), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(small, want)
    assert tower.family.n_rows(tower.config, *size) == h * w // (2 * p) ** 2


@pytest.mark.parametrize("size", SIZES)
def test_exaone_beside_transformers(tmp_path: Path, size: str) -> None:
    """The rows of an image of several windows, the logits of a prompt with it, and the rows of the
    file."""
    model = made_towers.exaone(size, tmp_path)
    p = 28 if size == "small" else 14
    pixels = picture(0, 6 * p, 10 * p)
    seen = squares(pixels, p)
    with LLM(tmp_path, mmproj=tmp_path, **LONG) as llm:
        rows, ids = llm.sight.rows(pixels), llm.sight.ids(pixels)
        with torch.no_grad():
            want = model(input_ids=in_transformers([*BEFORE, *ids, *BEHIND]), **seen)
            close(rows, torch.cat(list(model.get_image_features(**seen).pooler_output)))
        close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want.logits[0])
    made = check_file(tmp_path, tmp_path / "f32.gguf", pixels, rows)
    assert made.config.full_every == 2 and made.config.n_kv == 2
    convert_folder(tmp_path, tmp_path / "f16.gguf", "f16", mmproj=True)
    tensors = Tower(tmp_path / "f16.gguf").file.tensors
    names = ("v.patch_embd.weight", "v.patch_embd.weight.1", "mm.0.weight", "mm.0.bias")
    assert [tensors[name].dtype.name for name in names] == ["f16", "f16", "f16", "f32"]


def test_tiles_without_whole_squares(llama4: tuple[int, Any, Path], tmp_path: Path) -> None:
    side, _, folder = llama4
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["image_size"] = side + 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("model.safetensors", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(FormatError, match=rf"images of {side + 1} pixels each side, in squares of"):
        Tower(tmp_path)
