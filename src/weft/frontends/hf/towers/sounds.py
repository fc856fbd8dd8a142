"""Towers for sound in folders, also of models that see, too, by the names of their classes."""

from __future__ import annotations

from dataclasses import replace

from weft.frontends.hf.towers.conformers import GRANITE_SPEECH, LFM2
from weft.frontends.hf.towers.family import both
from weft.frontends.hf.towers.qwen_sounds import QWEN3VL, OmniSeen, omni25, qwen3
from weft.frontends.hf.towers.whisper import ULTRAVOX, voxtral_keys, whisper_family, whisper_keys

FAMILIES = {
    "GraniteSpeechForConditionalGeneration": GRANITE_SPEECH,
    "AudioFlamingo3ForConditionalGeneration": replace(
        whisper_family(lambda c: whisper_keys(c, "musicflamingo")), kernels=(), f32=(".conv1d.",)
    ),
    "Qwen2_5OmniForConditionalGeneration": omni25(),
    "Qwen2_5OmniModel": omni25(),
    "Lfm2AudioForConditionalGeneration": LFM2,
    "UltravoxModel": ULTRAVOX,
    "VoxtralForConditionalGeneration": whisper_family(voxtral_keys),
    "Qwen2AudioForConditionalGeneration": whisper_family(lambda c: whisper_keys(c, "qwen2a")),
    "Qwen3ASRForConditionalGeneration": qwen3("audio.projector_type"),
    "Qwen3OmniMoeForConditionalGeneration": both(
        OmniSeen(QWEN3VL.keys, (), {}, {}, kernels=QWEN3VL.kernels), qwen3("projector_type")
    ),
}
