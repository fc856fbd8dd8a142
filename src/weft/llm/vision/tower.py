"""`Tower`: the tower for images of an `mmproj` file as config, weights and graph."""

from __future__ import annotations

import os
from collections.abc import Mapping

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.llm.senses.tower import (
    AnyTower,
    family_of,
    open_mmproj,
    require_tower,
    tower_weights,
)
from weft.llm.vision.config import read_tower_config
from weft.llm.vision.family import Family
from weft.llm.vision.gemma3 import GEMMA3
from weft.llm.vision.gemma4 import GEMMA4
from weft.llm.vision.glm4v import GLM4V
from weft.llm.vision.idefics3 import IDEFICS3
from weft.llm.vision.internvl import INTERNVL
from weft.llm.vision.lfm2 import LFM2
from weft.llm.vision.llava import LLAVA
from weft.llm.vision.pixtral import PIXTRAL
from weft.llm.vision.qwen import QWEN2VL, QWEN25VL
from weft.llm.vision.qwen3 import QWEN3VL

__all__ = ["FAMILIES", "Tower"]

FAMILIES: Mapping[str, Family] = {
    "gemma3": GEMMA3,
    "gemma4v": GEMMA4,
    "glm4v": GLM4V,
    "idefics3": IDEFICS3,
    "internvl": INTERNVL,
    "lfm2": LFM2,
    "mlp": LLAVA,
    "pixtral": PIXTRAL,
    "qwen2vl_merger": QWEN2VL,
    "qwen2.5vl_merger": QWEN25VL,
    "qwen3vl_merger": QWEN3VL,
}
"""The kinds of towers, by `clip.projector_type`."""


class Tower(AnyTower):
    """The tower for images of a file, without any state; reads no weight."""

    what = "images"

    def __init__(self, path: str | os.PathLike[str] | GGUFFile) -> None:
        """Opens the file at `path`. Raises FormatError for a file that is missing or damaged, and
        for a tower that is not known."""
        super().__init__()
        self.file = open_mmproj(path)
        require_tower(self.file, "vision")
        self.family = family_of(self.file, "vision", FAMILIES)
        self.config = read_tower_config(self.file, self.family.merge)
        self.weights = tower_weights(self.file, "vision", self.family.rows(self.config))

    @property
    def n_out(self) -> int:
        """Width of the text model."""
        return self.config.n_out

    @property
    def n_rows(self) -> int:
        """Most rows of an image of a usual size."""
        return self.family.n_rows(self.config, self.config.image_size, self.config.image_size)

    def build(self) -> G.Graph:
        """The graph from the patches of an image to rows f32 [n, n_out]."""
        c, family = self.config, self.family
        return G.Graph(family.forward(c, self.weights, family.inputs(c)).as_output("rows"))
