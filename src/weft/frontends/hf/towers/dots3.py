"""The towers of dots.3 Note in folders, for images and for sound."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import (
    ANY_SIZE,
    TowerFamily,
    both,
    count_of,
    image_processor,
    part_of,
    vision_keys,
)
from weft.frontends.hf.values import Values, stacked

_SEEN, _HEARD = "vision_config", "audio_config"
_EXPERT = re.compile(r"(vision_encoder\.blocks\.\d+\.mlp\.experts)\.(\d{1,4})\.(\w+)\.weight")
_SEEN_NAMES = {
    "vision_encoder.patch_embed.proj": "v.patch_embd",
    "vision_encoder.patch_embed.norm": "v.pre_ln",
    "vision_encoder.post_trunk_norm": "mm.post_norm",
    "vision_encoder.adapter.ln_q": "mm.input_norm", "vision_encoder.adapter.mlp.0": "mm.0",
    "vision_encoder.adapter.mlp.2": "mm.2",
    "norm_1": "ln1", "norm_2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm", "mlp.fc1": "ffn_gate",
    "mlp.fc2": "ffn_down", "mlp.fc3": "ffn_up", "mlp.gate_weight": "ffn_gate_inp.weight",
    "mlp.router_bias": "exp_probs_b.weight", "mlp.experts.fc1": "ffn_gate_exps",
    "mlp.experts.fc2": "ffn_down_exps", "mlp.experts.fc3": "ffn_up_exps",
}  # fmt: skip
_ENCODER = "audio_encoder.dots_encoder.speech_encoder"
_HEARD_NAMES = {
    **{f"{_ENCODER}.conv2d{number}": f"a.conv2d.{number}" for number in (1, 2, 3)},
    f"{_ENCODER}.conv_out": "a.conv_out", f"{_ENCODER}.layer_norm": "a.post_ln",
    **{
        f"audio_encoder.audio_adapter.proj.{number}": file
        for number, file in ((0, "mm.a.norm_pre"), (1, "mm.a.mlp.1"), (3, "mm.a.mlp.3"))
    },
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "self_attn_layer_norm": "ln1", "final_layer_norm": "ln2",
    "fc1": "ffn_gate_up", "fc2": "ffn_down",
}  # fmt: skip
_SEEN_KNOWN = {
    "adapter_type": "patch_merger", "pre_pixel_shuffle": True, "router_scoring_func": "sigmoid",
    "router_scale": 1.0, "temporal_patch_size": 1, "use_bias": False, "use_qk_norm": True,
}  # fmt: skip
_HEARD_KNOWN = {
    "use_conv2d_stem": True, "use_rope": True, "use_rms_norm": True, "use_causal": False,
    "merge_factor": 1, "chunk_seconds": 60,
}  # fmt: skip
_ROPE = {"partial_rotary_factor": 0.5, "rope_theta": 10000.0}
_WHISPER = {"activation_function": "swiglu"}


def _require(c: Config, part: str, given: Mapping[str, Any], known: Mapping[str, object]) -> None:
    """Raises FormatError for a value that differs from the one that files cannot state."""
    for key, value in known.items():
        if given.get(key, value) != value:
            raise c.bad(f"{part}.{key}", f"is {given[key]!r}; files hold towers of {value!r} only")


class _Seen(TowerFamily):
    """The tower for images, each of whose experts has matrices of its own in folders."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors, with the experts of a layer in one."""
        experts: dict[str, dict[int, Values]] = {}
        others: dict[str, Values] = {}
        for name, values in stored.items():
            if found := _EXPERT.fullmatch(name.removeprefix("model.")):
                experts.setdefault(f"{found[1]}.{found[3]}.weight", {})[int(found[2])] = values
            else:
                others[name] = values
        for name, parts in experts.items():
            each = [parts.get(i) for i in range(len(parts))]
            if None in each or len({values.shape for values in parts.values()}) > 1:
                raise FormatError(
                    f"{c.folder}: the experts {name} are not all there in one size; download the "
                    "folder again"
                )
            others[name] = stacked([values for values in each if values is not None])
        yield from super().tensors(c, others)


def _seen_keys(c: Config) -> Pairs:
    vision = part_of(c, _SEEN)
    _require(c, _SEEN, vision, _SEEN_KNOWN)
    numbers = vision.get("pyramid_num_routed")
    if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
        raise c.bad(f"{_SEEN}.pyramid_num_routed", "must have the number of experts of each layer")
    processor = image_processor(c)
    inner = processor.get(_SEEN)
    processor = {**processor, **(inner if isinstance(inner, dict) else {})}
    for key, value in vision_keys(
        c, "dots3note_v", image_size=ANY_SIZE, mean=processor.get("image_mean", ()),
        std=processor.get("image_std", ()),
    ):  # fmt: skip
        if key == "vision.embedding_length":  # folders call the width of the text model hidden_size
            value = count_of(c, _SEEN, "embed_dim")
        yield key, value
    yield "use_silu", True
    yield "vision.spatial_merge_size", count_of(c, _SEEN, "spatial_merge_size")
    for end in ("min", "max"):
        value = processor.get(f"{end}_pixels")
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise c.bad(f"{end}_pixels", f"of the image processor is {value!r}; it is a count")
        yield f"vision.image_{end}_pixels", value
    yield "vision.expert_count_per_layer", np.array([max(n, 0) for n in numbers], np.int32)
    yield "vision.expert_used_count", count_of(c, _SEEN, "capacity_factor")


def _heard_keys(c: Config) -> Pairs:
    audio = part_of(c, _HEARD)
    whisper, rope = (audio.get(key, {}) for key in ("whisper_config", "rope_parameters"))
    if not isinstance(whisper, dict) or not isinstance(rope, dict):
        raise c.bad(f"{_HEARD}.whisper_config", "must be an object, as must rope_parameters")
    _require(c, _HEARD, audio, _HEARD_KNOWN)
    _require(c, f"{_HEARD}.rope_parameters", rope, _ROPE)
    _require(c, f"{_HEARD}.whisper_config", whisper, _WHISPER)

    def count(key: str) -> int:
        value = whisper.get(key)
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise c.bad(f"{_HEARD}.whisper_config.{key}", f"is {value!r}; it is a count")
        return value

    yield "has_audio_encoder", True
    yield "audio.projection_dim", c.n_embd
    yield "audio.embedding_length", count("d_model")
    yield "audio.feed_forward_length", count("encoder_ffn_dim")
    yield "audio.block_count", count("encoder_layers")
    yield "audio.attention.head_count", count("encoder_attention_heads")
    yield "projector_type", "dots3note_a"
    yield "audio.num_mel_bins", count("num_mel_bins")
    yield "audio.attention.layer_norm_epsilon", 1e-6


def _heard_change(c: Config, name: str, values: Values) -> Named:
    """Gate and up are apart in files."""
    if ".ffn_gate_up." not in name:
        yield name, values
        return
    half = values.shape[0] // 2
    for part, new in zip(values.split(half, half), ("gate", "up"), strict=True):
        yield name.replace("gate_up", new), part


_TOWERS = both(
    _Seen(_seen_keys, ("vision_encoder.",), {"vision_encoder.blocks": "v.blk"}, _SEEN_NAMES),
    TowerFamily(
        _heard_keys, ("audio_encoder.",), {f"{_ENCODER}.layers": "a.blk"}, _HEARD_NAMES,
        _heard_change, f32=(".conv2d.", "^a.conv_out.", ".ffn_gate_inp.", ".exp_probs_b."),
    ),
)  # fmt: skip
FAMILIES = {"Dots3NoteForCausalLM": _TOWERS, "Dots3NoteForConditionalGeneration": _TOWERS}
