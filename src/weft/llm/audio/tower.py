"""`SoundTower`: the tower for sound of an `mmproj` file as config, weights and graph."""

from __future__ import annotations

from collections.abc import Mapping

from weft.llm.audio.family import SoundConfig, SoundFamily, read_sound_config
from weft.llm.audio.whisper import QWEN2AUDIO, VOXTRAL
from weft.llm.senses.tower import AnyTower

__all__ = ["FAMILIES", "SoundTower"]

FAMILIES: Mapping[str, SoundFamily] = {"voxtral": VOXTRAL, "qwen2a": QWEN2AUDIO}
"""The kinds of towers, by `clip.projector_type`."""


class SoundTower(AnyTower):
    """The tower for sound of a file, without any state; reads no weight."""

    sense = "audio"
    families = FAMILIES
    family: SoundFamily
    config: SoundConfig

    def _read_config(self) -> SoundConfig:
        return read_sound_config(self.file)
