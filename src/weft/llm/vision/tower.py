"""`Tower`: the tower for images of an `mmproj` file as config, weights and graph."""

from __future__ import annotations

from collections.abc import Mapping

from weft.llm.senses.tower import AnyTower
from weft.llm.vision.config import Family, TowerConfig, read_tower_config
from weft.llm.vision.deepseekocr import DEEPSEEKOCR, DEEPSEEKOCR2
from weft.llm.vision.dotsocr import DOTSOCR
from weft.llm.vision.gemma3 import GEMMA3
from weft.llm.vision.gemma4 import GEMMA4, GEMMA4_UNIFIED
from weft.llm.vision.glm4v import GLM4V
from weft.llm.vision.granite4 import GRANITE4
from weft.llm.vision.hunyuan import HUNYUAN
from weft.llm.vision.idefics3 import IDEFICS3
from weft.llm.vision.internvl import INTERNVL
from weft.llm.vision.kimi import KIMIK25, KIMIVL
from weft.llm.vision.lfm2 import LFM2
from weft.llm.vision.llama4 import LLAMA4
from weft.llm.vision.llava import LLAVA
from weft.llm.vision.minicpmv import MINICPMV46
from weft.llm.vision.minimax import MINIMAX_M3
from weft.llm.vision.paddleocr import PADDLEOCR
from weft.llm.vision.pixtral import LIGHTONOCR, PIXTRAL
from weft.llm.vision.qwen import EXAONE45, QWEN2VL, QWEN25VL
from weft.llm.vision.qwen3 import QWEN3VL
from weft.llm.vision.radio import NEMOTRON
from weft.llm.vision.resampler import RESAMPLER
from weft.llm.vision.step3 import STEP3

FAMILIES: Mapping[str, Family] = {
    "deepseekocr": DEEPSEEKOCR, "deepseekocr2": DEEPSEEKOCR2, "dots_ocr": DOTSOCR,
    "dots3note_v": DOTSOCR,
    "exaone4_5": EXAONE45, "gemma3": GEMMA3, "gemma4v": GEMMA4, "gemma4uv": GEMMA4_UNIFIED,
    "glm4v": GLM4V, "granite4_vision": GRANITE4, "hunyuanvl": HUNYUAN,
    "idefics3": IDEFICS3, "internvl": INTERNVL,
    "kimik25": KIMIK25, "kimivl": KIMIVL, "lfm2": LFM2, "lightonocr": LIGHTONOCR,
    "llama4": LLAMA4, "minicpmv4_6": MINICPMV46, "minimax_m3": MINIMAX_M3, "mlp": LLAVA,
    "nemotron_v2_vl": NEMOTRON, "paddleocr": PADDLEOCR, "pixtral": PIXTRAL,
    "qwen2vl_merger": QWEN2VL, "qwen2.5vl_merger": QWEN25VL, "qwen2.5o": QWEN25VL,
    "qwen3vl_merger": QWEN3VL, "resampler": RESAMPLER, "step3vl": STEP3,
}  # fmt: skip
"""The kinds of towers, by `clip.projector_type`."""
_SMALL = (1, 1), (1, 100), (100, 1)
"""Heights and widths of images that have few rows."""


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
        """Number of rows of an image of the size that positions were learned for."""
        return self.family.n_rows(self.config, self.config.image_size, self.config.image_size)

    @property
    def least_rows(self) -> int:
        """Minimum number of rows of an image: of a tiny one, or of a long one, whose grid of tiles
        may have fewer."""
        return min(self.family.n_rows(self.config, *shape) for shape in _SMALL)
