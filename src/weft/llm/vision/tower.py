"""`Tower`: the tower for images of an `mmproj` file as config, weights and graph."""

from __future__ import annotations

from collections.abc import Mapping

from weft.llm.senses.tower import AnyTower
from weft.llm.vision.config import Family, TowerConfig, read_tower_config
from weft.llm.vision.gemma3 import GEMMA3
from weft.llm.vision.gemma4 import GEMMA4, GEMMA4_UNIFIED
from weft.llm.vision.glm4v import GLM4V
from weft.llm.vision.hunyuan import HUNYUAN
from weft.llm.vision.idefics3 import IDEFICS3
from weft.llm.vision.internvl import INTERNVL
from weft.llm.vision.lfm2 import LFM2
from weft.llm.vision.llava import LLAVA
from weft.llm.vision.paddleocr import PADDLEOCR
from weft.llm.vision.pixtral import LIGHTONOCR, PIXTRAL
from weft.llm.vision.qwen import QWEN2VL, QWEN25VL
from weft.llm.vision.qwen3 import QWEN3VL

FAMILIES: Mapping[str, Family] = {
    "gemma3": GEMMA3, "gemma4v": GEMMA4, "gemma4uv": GEMMA4_UNIFIED, "glm4v": GLM4V,
    "hunyuanvl": HUNYUAN, "idefics3": IDEFICS3, "internvl": INTERNVL, "lfm2": LFM2,
    "lightonocr": LIGHTONOCR, "mlp": LLAVA, "paddleocr": PADDLEOCR, "pixtral": PIXTRAL,
    "qwen2vl_merger": QWEN2VL, "qwen2.5vl_merger": QWEN25VL, "qwen2.5o": QWEN25VL,
    "qwen3vl_merger": QWEN3VL,
}  # fmt: skip
"""The kinds of towers, by `clip.projector_type`."""


class Tower(AnyTower):
    """The tower for images of a file, without any state; reads no weight."""

    sense = "vision"
    families = FAMILIES
    family: Family
    config: TowerConfig

    def _read_config(self) -> TowerConfig:
        return read_tower_config(self.file, self.family.merge)

    @property
    def n_rows(self) -> int:
        """Maximum number of rows of an image of a usual size."""
        return self.family.n_rows(self.config, self.config.image_size, self.config.image_size)
