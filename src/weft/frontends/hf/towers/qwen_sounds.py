"""Towers for sound of Qwen3-ASR and of models called Omni, which see, too, in folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers import square
from weft.frontends.hf.towers.family import TowerFamily, both
from weft.frontends.hf.towers.whisper import (
    LAYERS,
    NAMES,
    STARTS,
    change,
    require_known,
    whisper_keys,
)
from weft.frontends.hf.values import Floats, Values

# -- Qwen3-ASR and Qwen3-Omni ----------------------------------------------------------------------

_QWEN3_NAMES = NAMES | {
    f"audio_tower.conv2d{number}": f"a.conv2d.{number}" for number in (1, 2, 3)
} | {
    "audio_tower.conv_out": "a.conv_out", "audio_tower.ln_post": "a.post_ln",
    "audio_tower.proj1": "mm.a.mlp.1", "audio_tower.proj2": "mm.a.mlp.2",
}  # fmt: skip
_POSITIONS = 1500
"""Positions that files have, as converters write them."""


_QWEN3_KNOWN = {
    "n_window": 50, "n_window_infer": 800, "activation_function": "gelu", "scale_embedding": False,
}  # fmt: skip


def qwen3(projector: str) -> TowerFamily:
    """The family whose key of the projector has this name."""

    def keys(c: Config) -> Pairs:
        require_known(c, _QWEN3_KNOWN)
        for key, value in whisper_keys(c, "qwen3a"):
            yield (projector if key == "projector_type" else key), value

    return TowerFamily(
        keys, STARTS, LAYERS, _QWEN3_NAMES, _qwen3_change, kernels=(".conv2d.", ".conv_out.")
    )


def _qwen3_change(c: Config, name: str, values: Values) -> Named:
    """The first convolutions add their biases to planes. The positions, which folders lack, come
    with the matrix behind the convolutions, which has their width."""
    if ".conv2d." in name and name.endswith(".bias"):
        values = values.reshaped(*values.shape, 1, 1)
    yield name, values
    if name == "a.conv_out.weight":
        yield "a.position_embd.weight", _waves(values.shape[0])


def _waves(width: int) -> Values:
    """Sines and cosines of positions whose lengths of wave go from 2 pi to 20000 pi."""

    def load() -> Floats:
        half = width // 2
        step = np.float32(np.log(10000) / max(half - 1, 1))
        turns = np.exp(-step * np.arange(half, dtype=np.float32))
        at = np.arange(_POSITIONS, dtype=np.float32)[:, None] * turns
        return np.concatenate([np.sin(at), np.cos(at)], axis=1).astype(np.float32)

    return Values((_POSITIONS, width // 2 * 2), "f32", load)


QWEN3VL = square.FAMILIES["Qwen3VLForConditionalGeneration"]


class OmniSeen(TowerFamily):
    """Qwen3-VL's tower under other names."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors of Qwen3-VL's tower."""
        seen = {
            _seen_name(name): values
            for name, values in stored.items()
            if name.removeprefix("thinker.").startswith("visual.")
        }
        yield from QWEN3VL.tensors(c, seen)


def _seen_name(name: str) -> str:
    """The name that a tensor of Qwen3-Omni's tower for images has in Qwen3-VL."""
    name = name.removeprefix("thinker.").replace("visual.merger_list.", "deepstack_merger_list.")
    if "merger" in name:
        for mine, other in ((".ln_q.", ".norm."), (".mlp.0.", ".linear_fc1."),
                            (".mlp.2.", ".linear_fc2.")):  # fmt: skip
            name = name.replace(mine, other)
    return name if name.startswith("visual.") else f"visual.{name}"


# -- Qwen2.5-Omni ----------------------------------------------------------------------------------

_OMNI_KNOWN = {"n_window": 100, "activation_function": "gelu", "scale_embedding": False}
_QWEN25VL = square.FAMILIES["Qwen2_5_VLForConditionalGeneration"]


class _Omni25Seen(TowerFamily):
    """Qwen2.5-VL's tower under other names."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors of Qwen2.5-VL's tower."""
        seen = {name.removeprefix("thinker."): values for name, values in stored.items()}
        yield from _QWEN25VL.tensors(c, seen)


def _omni25_keys(c: Config) -> Pairs:
    require_known(c, _OMNI_KNOWN)
    yield from whisper_keys(c, "qwen2.5o")


def _omni25_change(c: Config, name: str, values: Values) -> Named:
    """The positions, which folders lack, come with the norm behind the blocks."""
    yield from change(c, name, values)
    if name == "a.post_ln.weight":
        yield "a.position_embd.weight", _waves(values.shape[0])


_OMNI25 = TowerFamily(
    _omni25_keys, STARTS, LAYERS,
    NAMES | {"audio_tower.ln_post": "a.post_ln", "audio_tower.proj": "mm.a.fc"}, _omni25_change,
    unused=("audio_tower.audio_bos_eos_token.",), kernels=(".conv1d.",),
)  # fmt: skip


def omni25() -> TowerFamily:
    """Both towers, whose kind is one in files."""
    found = both(_Omni25Seen(_QWEN25VL.keys, (), {}, {}), _OMNI25)

    def keys(c: Config) -> Pairs:
        for key, value in found.keys(c):
            if key == "vision.projector_type":
                yield "projector_type", "qwen2.5o"
            elif key != "audio.projector_type":
                yield key, value

    return replace(found, keys=keys)
