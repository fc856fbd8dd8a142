"""Towers for sound in folders, and those of models that also see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers import square
from weft.frontends.hf.towers.family import TowerFamily, count_of, part_of
from weft.frontends.hf.values import Floats, Values

_PART = "audio_config"
_STARTS = ("audio_tower.", "multi_modal_projector.")
_LAYERS = {"audio_tower.layers": "a.blk"}
_NAMES = {
    "audio_tower.conv1": "a.conv1d.1", "audio_tower.conv2": "a.conv1d.2",
    "audio_tower.embed_positions": "a.position_embd", "audio_tower.layer_norm": "a.post_ln",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2",
    "fc1": "ffn_up", "fc2": "ffn_down",
    "multi_modal_projector.linear": "mm.a.fc", "multi_modal_projector.linear_1": "mm.a.mlp.1",
    "multi_modal_projector.linear_2": "mm.a.mlp.2",
}  # fmt: skip
"""Names of the tensors of Whisper's encoder and of projectors."""


def _keys(c: Config, projector: str, *, both: bool = False) -> Pairs:
    """The keys of all towers with Whisper's blocks; `both` is for a file that also has a tower for
    images."""
    yield "general.file_type", 0
    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", count_of(c, _PART, "hidden_size", "d_model")
    yield "audio.feed_forward_length", count_of(c, _PART, "intermediate_size", "encoder_ffn_dim")
    yield "audio.block_count", count_of(c, _PART, "num_hidden_layers", "encoder_layers")
    heads = count_of(c, _PART, "num_attention_heads", "encoder_attention_heads")
    yield "audio.attention.head_count", heads
    yield ("audio.projector_type" if both else "projector_type"), projector
    yield "audio.num_mel_bins", count_of(c, _PART, "num_mel_bins", default=128)
    yield "audio.attention.layer_norm_epsilon", 1e-5


def _change(c: Config, name: str, values: Values) -> Named:
    """A convolution adds its bias to columns."""
    if ".conv1d." in name and name.endswith(".bias"):
        values = values.reshaped(*values.shape, 1)
    return ((name, values),)


def _family(keys: Callable[[Config], Pairs]) -> TowerFamily:
    return TowerFamily(keys, _STARTS, _LAYERS, _NAMES, _change)


def _voxtral_keys(c: Config) -> Pairs:
    yield from _keys(c, "voxtral")
    yield "audio.projector.stack_factor", 4


# -- Qwen3-ASR and Qwen3-Omni ----------------------------------------------------------------------

_QWEN3_NAMES = _NAMES | {
    f"audio_tower.conv2d{number}": f"a.conv2d.{number}" for number in (1, 2, 3)
} | {
    "audio_tower.conv_out": "a.conv_out", "audio_tower.ln_post": "a.post_ln",
    "audio_tower.proj1": "mm.a.mlp.1", "audio_tower.proj2": "mm.a.mlp.2",
}  # fmt: skip
_POSITIONS = 1500
"""Positions that files have, as converters write them."""


def _qwen3_keys(c: Config) -> Pairs:
    audio = part_of(c, _PART)
    windows = {"n_window": 50, "n_window_infer": 800, "activation_function": "gelu"}
    for key, known in windows.items():
        if audio.get(key, known) != known:
            raise c.bad(f"{_PART}.{key}", f"is {audio[key]!r}; files hold towers of {known!r} only")
    if audio.get("scale_embedding"):
        raise c.bad(f"{_PART}.scale_embedding", "is set, which no program computes")
    yield from _keys(c, "qwen3a", both=True)


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


_KERNELS = (".conv2d.", ".conv_out.")


class _Omni(TowerFamily):
    """A tower for images beside one for sound."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors of both."""
        seen = {
            _seen_name(name): values
            for name, values in stored.items()
            if name.removeprefix("thinker.").startswith("visual.")
        }
        yield from square.FAMILIES["Qwen3VLForConditionalGeneration"].tensors(c, seen)
        yield from super().tensors(c, stored)


def _seen_name(name: str) -> str:
    """The name that a tensor of Qwen3-Omni's tower for images has in Qwen3-VL."""
    name = name.removeprefix("thinker.").replace("visual.merger_list.", "deepstack_merger_list.")
    if "merger" in name:
        for mine, other in ((".ln_q.", ".norm."), (".mlp.0.", ".linear_fc1."),
                            (".mlp.2.", ".linear_fc2.")):  # fmt: skip
            name = name.replace(mine, other)
    return name if name.startswith("visual.") else f"visual.{name}"


def _omni_keys(c: Config) -> Pairs:
    for key, value in square.FAMILIES["Qwen3VLForConditionalGeneration"].keys(c):
        yield ("vision.projector_type" if key == "projector_type" else key), value
    for key, value in _qwen3_keys(c):
        if key != "general.file_type":
            yield key, value


FAMILIES = {
    "VoxtralForConditionalGeneration": _family(_voxtral_keys),
    "Qwen2AudioForConditionalGeneration": _family(lambda c: _keys(c, "qwen2a")),
    "Qwen3ASRForConditionalGeneration": TowerFamily(
        _qwen3_keys, _STARTS, _LAYERS, _QWEN3_NAMES, _qwen3_change, kernels=_KERNELS
    ),
    "Qwen3OmniMoeForConditionalGeneration": _Omni(
        _omni_keys, _STARTS, _LAYERS, _QWEN3_NAMES, _qwen3_change, kernels=_KERNELS
    ),
}
