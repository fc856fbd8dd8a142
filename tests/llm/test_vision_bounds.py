"""Sizes of images in front of towers: what a graph is planned for, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import ContextError, FormatError
from weft.graph.size import upper
from weft.llm import Tower
from weft.llm.vision import images, step3
from weft.llm.vision.config import TowerConfig
from weft.llm.vision.tower import FAMILIES

pytest.importorskip("PIL.Image")

CONFIG = TowerConfig(
    projector="", n_embd=24, n_ff=32, n_layer=1, n_head=2, n_out=32, eps=1e-6, image_size=32,
    patch_size=4, mean=(0.5,) * 3, std=(0.5,) * 3, act="gelu", merge=2, n_kv=2, n_learned=64,
    n_whole=144, n_projector=32,
)  # fmt: skip
OWN = ["dots_ocr", "exaone4_5", "glm4v", "hunyuanvl", "kimik25", "kimivl", "minimax_m3",
       "nemotron_v2_vl", "paddleocr", "qwen2vl_merger", "qwen3vl_merger"]  # fmt: skip
"""Kinds of towers that take an image in its own proportions."""
SHAPES = [(1, 1), (1, 199), (3, 500), (500, 3), (40, 1), (29, 50), (1, 9000), (300, 200)]


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("limits", [(0, 100), (64, 4096), (5000, 5000), (1, 700)])
def test_a_graph_takes_every_image(kind: str, limits: tuple[int, int]) -> None:
    """Images of few pixels, long ones too, have no more rows than the graph is planned for; only
    images that are far too long are refused."""
    family = FAMILIES[kind]
    c = replace(CONFIG, projector=kind, least_pixels=limits[0], most_pixels=limits[1])
    planned = upper(family.inputs(c)["patches"].ne[1])
    for height, width in SHAPES:
        try:
            seen = family.sized(c, np.zeros((height, width, 3), np.uint8))
        except ContextError as error:
            assert "cut it" in str(error) or "times the other" in str(error)
            assert max(height, width) > 100 * min(height, width)
            continue
        assert seen.shape[0] * seen.shape[1] // c.patch_size**2 <= planned


@pytest.mark.parametrize(("kind", "least"), [("dots_ocr", 49), ("minimax_m3", 4), ("kimivl", 1)])
def test_a_tiny_image_has_few_rows(kind: str, least: int) -> None:
    """A prompt of small images is not refused for the rows of large ones, and a file without a
    size of images opens."""
    tower = object.__new__(Tower)
    tower.family = FAMILIES[kind]
    tower.config = replace(CONFIG, projector=kind, image_size=0 if kind == "dots_ocr" else 896)
    assert tower.least_rows == least


def test_a_long_image_in_a_small_limit() -> None:
    c = replace(CONFIG, merge=4, whole_size=16, tile_size=16)
    sizes = {tile.pixels.shape for tile in step3.tiles(c, np.zeros((40, 9000, 3), np.uint8))}
    assert sizes == {(16, 16, 3), (32, 32, 3)}


@pytest.mark.parametrize("kind", ["dots_ocr", "kimik25", "llama4", "nemotron_v2_vl"])
def test_an_image_is_not_enlarged_without_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "RESIZED_PIXELS", 1000)
    family = FAMILIES[kind]
    c = replace(CONFIG, least_pixels=1 << 20, most_pixels=1 << 21, patch_size=16)
    make = family.tiles if kind == "llama4" else family.sized
    assert make is not None
    with pytest.raises(ContextError, match="more than 1000"):
        make(c, np.zeros((40, 70, 3), np.uint8))


@pytest.mark.parametrize("kind", sorted({*OWN} - {"hunyuanvl", "minimax_m3", "nemotron_v2_vl"}))
def test_heads_that_cannot_turn_by_both_sides(kind: str) -> None:
    with pytest.raises(FormatError, match="have 6 elements; they must be multiples of 4"):
        list(FAMILIES[kind].rows(replace(CONFIG, n_head=4, n_kv=4)))
