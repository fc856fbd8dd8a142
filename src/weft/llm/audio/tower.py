"""`SoundTower`: the tower for sound of an `mmproj` file as config, weights and graph."""

from __future__ import annotations

import os
from collections.abc import Mapping

from weft import graph as G
from weft.frontends.gguf import GGUFFile
from weft.llm.audio.config import read_sound_config
from weft.llm.audio.family import SoundFamily
from weft.llm.audio.whisper import QWEN2AUDIO, VOXTRAL
from weft.llm.senses.tower import (
    AnyTower,
    family_of,
    open_mmproj,
    require_tower,
    tower_weights,
)

__all__ = ["FAMILIES", "SoundTower"]

FAMILIES: Mapping[str, SoundFamily] = {"voxtral": VOXTRAL, "qwen2a": QWEN2AUDIO}
"""The kinds of towers, by `clip.projector_type`."""


class SoundTower(AnyTower):
    """The tower for sound of a file, without any state; reads no weight."""

    what = "sound"

    def __init__(self, path: str | os.PathLike[str] | GGUFFile) -> None:
        """Opens the file at `path`. Raises FormatError for a file that is missing or damaged, and
        for a tower that is not known."""
        super().__init__()
        self.file = open_mmproj(path)
        require_tower(self.file, "audio")
        self.family = family_of(self.file, "audio", FAMILIES)
        self.config = read_sound_config(self.file)
        self.weights = tower_weights(self.file, "audio", self.family.rows(self.config))

    @property
    def n_out(self) -> int:
        """Width of the text model."""
        return self.config.n_out

    def build(self) -> G.Graph:
        """The graph from the spectrogram of a part of a sound to rows f32 [n, n_out]."""
        c, family = self.config, self.family
        return G.Graph(family.forward(c, self.weights, family.inputs(c)).as_output("rows"))
