"""`SoundTower`: the tower for sound of a file, and the table of the kinds of towers."""

from __future__ import annotations

from collections.abc import Mapping

from weft.llm.audio import conformer, dots3, gemma4, granite, projectors, qwen3, whisper
from weft.llm.audio.whisper import SoundConfig, SoundFamily
from weft.llm.senses.tower import AnyTower

FAMILIES: Mapping[str, SoundFamily] = {
    "voxtral": whisper.VOXTRAL, "qwen2a": whisper.QWEN2AUDIO, "qwen3a": qwen3.QWEN3AUDIO,
    "gemma4a": gemma4.GEMMA4AUDIO, "gemma4ua": gemma4.GEMMA4_UNIFIED,
    "musicflamingo": projectors.FLAMINGO, "qwen2.5o": projectors.QWEN25OMNI,
    "ultravox": projectors.ULTRAVOX,
    "granite_speech": granite.GRANITE, "lfm2a": conformer.LFM2AUDIO, "dots3note_a": dots3.DOTS3NOTE,
}  # fmt: skip
"""The kinds of towers, by `clip.projector_type`."""


class SoundTower(AnyTower):
    """The tower for sound of a file, without any state; reads no weight."""

    sense = "audio"
    families = FAMILIES
    family: SoundFamily
    config: SoundConfig

    def _read_config(self) -> SoundConfig:
        return self.family.read(self.file)
