"""`Tower`: an `mmproj` file, or a folder's tower, as config, weights and graph."""

from __future__ import annotations

import os
from collections.abc import Mapping

from weft import graph as G
from weft.errors import FormatError
from weft.frontends.models import open_model
from weft.llm.hub import local_path
from weft.llm.model import Model
from weft.llm.vision.config import projector_of, read_tower_config
from weft.llm.vision.family import Family
from weft.llm.vision.gemma3 import GEMMA3
from weft.llm.vision.llava import LLAVA
from weft.llm.vision.pixtral import PIXTRAL
from weft.llm.vision.qwen import QWEN2VL, QWEN25VL
from weft.llm.vision.qwen3 import QWEN3VL
from weft.llm.weights import Weights, load_weights

__all__ = ["FAMILIES", "Tower"]

FAMILIES: Mapping[str, Family] = {
    "gemma3": GEMMA3,
    "mlp": LLAVA,
    "pixtral": PIXTRAL,
    "qwen2vl_merger": QWEN2VL,
    "qwen2.5vl_merger": QWEN25VL,
    "qwen3vl_merger": QWEN3VL,
}
"""The kinds of towers, by `clip.projector_type`."""


class Tower:
    """The contents of a file, without any state; reads no weight."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file at `path`, or a folder's tower. Raises FormatError for what is missing or
        damaged, and for a tower that is not known."""
        self.file = open_model(local_path(path), tower=True)
        if self.file.architecture != "clip":
            read_tower_config(self.file)
        kind = projector_of(self.file)
        family = FAMILIES.get(kind)
        if family is None:
            raise FormatError(
                f"{self.file.path}: towers of kind {kind!r} are not known; there are "
                f"{', '.join(FAMILIES)}"
            )
        self.family = family
        self.config = read_tower_config(self.file, family.merge)
        self.weights: Weights = load_weights(self.file, family.rows(self.config))

    def require_model(self, model: Model) -> None:
        """Raises FormatError for the tower of another model."""
        ours, n_embd = self.config.n_out, model.config.n_embd
        if ours != n_embd:
            raise FormatError(
                f"{self.file.path}: its rows have {ours} numbers, but those of "
                f"{model.file.path.name} have {n_embd}; it belongs to another model"
            )

    @property
    def n_rows(self) -> int:
        """Most rows of an image of a usual size."""
        return self.family.n_rows(self.config, self.config.image_size, self.config.image_size)

    def build(self) -> G.Graph:
        """The graph from the patches of an image to rows f32 [n, n_out]."""
        c, family = self.config, self.family
        return G.Graph(family.forward(c, self.weights, family.inputs(c)).as_output("rows"))
