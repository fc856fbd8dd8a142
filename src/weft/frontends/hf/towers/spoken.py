"""The parts of Pocket TTS that make sound of its states: the flow head of the model's folder, and
the codec, which transformers keeps in a folder of its own, and its makers in the same file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.pockettts import adjacent_rows_of
from weft.frontends.hf.family import Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.family import TowerFamily
from weft.frontends.hf.values import Values

CODEC = "codec."
"""The beginning of the names of the codec's tensors, where they are in a folder of their own."""
CODEC_CLASS = "PocketTTSAudioTokenizerModel"
_USUAL_WINDOW, _USUAL_BASE, _USUAL_RATE = 250, 10000.0, 24000
_BLOCK = {
    "input_layernorm": "ln1", "post_attention_layernorm": "ln2", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "self_attn_layer_scale.scale": "ls1",
    "mlp_layer_scale.scale": "ls2",
    "norm1": "ln1", "norm2": "ln2", "self_attn.out_proj": "attn_out", "linear1": "ffn_up",
    "linear2": "ffn_down", "layer_scale_1.scale": "ls1", "layer_scale_2.scale": "ls2",
}  # fmt: skip
"""Names of a block of the codec's transformers, in transformers and of the makers."""
_FLOW = {
    "input_proj": "input_proj", "cond_proj": "cond_embd", "cond_embed": "cond_embd",
    "final_layer.adaln_proj": "final.ada", "final_layer.adaLN_modulation.1": "final.ada",
    "final_layer.proj": "final.proj", "final_layer.linear": "final.proj",
}  # fmt: skip
_FLOW_BLOCK = {
    "norm": "norm", "fc1": "up", "fc2": "down", "adaln_proj": "ada",
    "in_ln": "norm", "mlp.0": "up", "mlp.2": "down", "adaLN_modulation.1": "ada",
}  # fmt: skip
_FLOW_TIME = {"fc1": "up", "fc2": "down", "mlp.0": "up", "mlp.2": "down"}
_OUTER = {
    "eos_head.": "a.gen.out_eos.", "flow_lm.out_eos.": "a.gen.out_eos.",
    "audio_prompt_proj.weight": "a.speaker_proj.weight",
    "flow_lm.speaker_proj_weight": "a.speaker_proj.weight",
    "audio_latent_proj.weight": "a.gen.input_linear.weight",
    "flow_lm.input_linear.weight": "a.gen.input_linear.weight",
    "latent_mean": "a.gen.emb_mean", "flow_lm.emb_mean": "a.gen.emb_mean",
    "latent_std": "a.gen.emb_std", "flow_lm.emb_std": "a.gen.emb_std",
    "codec.latent_proj.weight": "a.gen.wav.quant_out.weight",
    "mimi.quantizer.output_proj.weight": "a.gen.wav.quant_out.weight",
    "codec.encoder.downsample.conv.weight": "a.downsample.conv.weight",
    "mimi.downsample.conv.conv.weight": "a.downsample.conv.weight",
    "codec.decoder.upsample.conv.weight": "a.gen.wav.upsample.weight",
    "mimi.upsample.convtr.convtr.weight": "a.gen.wav.upsample.weight",
}  # fmt: skip
_UNUSED = ("layers.", "norm.", "embed_tokens.", "bos_latent", "loss_weighting.",
           "latent_stats_num_updates", "flow_lm.transformer.", "flow_lm.out_norm.",
           "flow_lm.bos_", "flow_lm.conditioner.")  # fmt: skip
_TRANSFORMER = re.compile(
    r"(?:codec\.|mimi\.)(?:(?:en|de)coder\.)?(en|de)coder_transformer\.(?:transformer\.)?layers\."
    r"(\d+)\.(.+)"
)
_SEANET = re.compile(
    r"(?:codec\.(?:en|de)coder\.(en|de)coder_seanet\.layers|mimi\.(en|de)coder\.model)\.(\d+)\."
    r"(?:block\.(\d+)\.)?(?:conv\.|convtr\.)+(weight|bias)"
)
_STARTS = {"en": "a", "de": "a.gen.wav"}


class _Spoken(TowerFamily):
    """Flow head and codec."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        last: dict[str, int] = {}
        for full in stored:
            conv = _SEANET.fullmatch(full.removeprefix("model."))
            if conv is not None:
                side = conv[1] or conv[2]
                last[side] = max(last.get(side, 0), int(conv[3]))
        for full, values in stored.items():
            name = full.removeprefix("model.")
            if name.startswith(_UNUSED):
                continue
            try:
                yield from _renamed(c, name, values, last)
            except _PlacelessError:
                if c.cls != "PocketTTSModel":  # the makers' file has tensors of training, too
                    raise


def _renamed(c: Config, name: str, values: Values, last: Mapping[str, int]) -> Named:
    block = _TRANSFORMER.fullmatch(name)
    if block is not None:
        yield from _block(c, name, block, values)
        return
    conv = _SEANET.fullmatch(name)
    if conv is not None:
        side, inner = conv[1] or conv[2], conv[4]
        yield (
            f"{_STARTS[side]}.seanet.{_seanet(c, name, side, int(conv[3]), inner, last)}.{conv[5]}",
            values,
        )
        return
    flow = re.fullmatch(r"(?:flow_head|flow_lm\.flow_net)\.(.+)", name)
    if flow is not None:
        yield _flow(c, name, flow[1]), values
        return
    start = next((start for start in _OUTER if name.startswith(start)), None)
    if start is None:
        raise _placeless(c, name)
    if start.endswith((".output_proj.weight", "latent_proj.weight")) and len(values.shape) == 3:
        values = values.reshaped(*values.shape[:2])
    yield f"{_OUTER[start]}{name.removeprefix(start)}", values


class _PlacelessError(FormatError):
    """A tensor has no place in a file."""


def _placeless(c: Config, name: str) -> FormatError:
    return _PlacelessError(
        f"{c.folder}: tensor {name} has no place in Pocket TTS; leaving it out would give wrong "
        "results"
    )


def _block(c: Config, name: str, found: re.Match[str], values: Values) -> Named:
    side, il, rest = found.groups()
    start = f"a.gen.wav.tfm.blk.{il}" if side == "de" else f"a.blk.{il}"
    part, _, kind = rest.rpartition(".")
    if part == "self_attn.in_proj":
        n = values.shape[0] // 3
        for letter, third in zip("qkv", values.split(n, n, values.shape[0] - 2 * n), strict=True):
            yield f"{start}.attn_{letter}.{kind}", third
    elif rest in _BLOCK:  # a scale
        yield f"{start}.{_BLOCK[rest]}.weight", values
    elif part in _BLOCK:
        if part.endswith(("q_proj", "k_proj")):  # halves rotate in transformers
            rows = adjacent_rows_of(values.shape[0], codec_config(c)["head_dim"])
            values = values.taken(rows, shape=values.shape)
        yield f"{start}.{_BLOCK[part]}.{kind}", values
    else:
        raise _placeless(c, name)


def _seanet(
    c: Config, name: str, side: str, at: int, inner: str | None, last: Mapping[str, int]
) -> str:
    """The name of a convolution, by its place among the layers: a stage has three of them."""
    if inner is None and at in (0, last[side]):
        return "conv_out" if at else "conv_in"
    residual = (at - 1) % 3 == 0 if side == "en" else at % 3 == 0
    if inner in ("1", "3") and residual:
        stage = (at - 1) // 3 if side == "en" else at // 3 - 1
        return f"blk.{stage}.res_conv{1 if inner == '1' else 2}"
    scales = at % 3 == 0 if side == "en" else (at - 2) % 3 == 0
    if inner is None and scales:
        stage = at // 3 - 1 if side == "en" else (at - 2) // 3
        return f"blk.{stage}.scale_conv"
    raise _placeless(c, name)


def _flow(c: Config, name: str, inner: str) -> str:
    part, _, kind = inner.rpartition(".")
    if part in _FLOW:
        return f"a.gen.flow.{_FLOW[part]}.{kind}"
    layer = re.fullmatch(r"(layers|res_blocks|timestep_embeddings|time_embed)\.(\d+)\.(.+)", inner)
    if layer is not None:
        where, number, rest = layer.groups()
        part, _, kind = rest.rpartition(".")
        if where in ("layers", "res_blocks") and part in _FLOW_BLOCK:
            return f"a.gen.flow.blk.{number}.{_FLOW_BLOCK[part]}.{kind}"
        if rest in ("freqs",):
            return f"a.gen.flow.time.{number}.freqs"
        if rest in ("norm.weight", "mlp.3.alpha"):
            return f"a.gen.flow.time.{number}.norm"
        if part in _FLOW_TIME:
            return f"a.gen.flow.time.{number}.{_FLOW_TIME[part]}.{kind}"
    raise _placeless(c, name)


# ---- the codec's folder ------------------------------------------------------------------------


def codec_folder(c: Config) -> Path:
    """The folder of the codec of a model of transformers. Raises FormatError if there is none."""
    if c.further is not None:
        return c.further
    folder = c.folder
    told = folder / "processor_config.json"
    named = read_json(told, "the settings of the processor") if told.is_file() else {}
    part = named.get("audio_tokenizer") if isinstance(named, dict) else None
    name = part.get("audio_tokenizer_name_or_path") if isinstance(part, dict) else None
    name = name if isinstance(name, str) and name and "\0" not in name else ""
    last = Path(name).name
    places = [Path(name)] if Path(name).is_absolute() else []
    places += [folder / "audio_tokenizer"]
    places += [folder / last, folder.resolve().parent / last] if last else []
    for place in places:
        if place != folder and (place / "config.json").is_file():
            return place
    raise FormatError(
        f"{folder}: the folder of its codec ({name or 'pocket-tts-audio-tokenizer'}) is not there; "
        f"put it beside {folder.name}, or into it as audio_tokenizer, or give it as mmproj"
    )


def beside(c: Config) -> Path | None:
    """The folder with the codec's tensors; None: they are in the model's file."""
    return codec_folder(c) if c.cls == "PocketTTSForConditionalGeneration" else None


def codec_config(c: Config) -> dict[str, Any]:
    """The sizes of the codec. Raises FormatError for one that computes otherwise."""
    own = c.get("codec")
    if isinstance(own, dict):
        return own
    path = codec_folder(c) / "config.json"
    given = read_json(path, "the settings of the codec")
    if not isinstance(given, dict) or given.get("architectures") != [CODEC_CLASS]:
        raise FormatError(f"{path}: not of {CODEC_CLASS}, the codec of Pocket TTS")
    usual: dict[str, Any] = {
        "use_causal_conv": True, "pad_mode": "constant", "trim_right_ratio": 1.0,
        "use_conv_shortcut": False, "num_residual_layers": 1, "audio_channels": 1,
        "attention_bias": False, "hidden_act": "gelu_pytorch_tanh", "norm_eps": 1e-5,
    }  # fmt: skip
    for key, value in usual.items():
        if given.get(key, value) != value:
            raise FormatError(f"{path}: {key!r} is {given[key]!r}; weft computes {value!r}")
    sizes = {
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2,
        "num_attention_heads": 8, "sliding_window": _USUAL_WINDOW, "sampling_rate": _USUAL_RATE,
        "upsample_groups": 512, "latent_stride": 16,
    }  # fmt: skip
    out = {key: _count(path, key, given.get(key, value)) for key, value in sizes.items()}
    n_head, width = out["num_attention_heads"], out["hidden_size"]
    for key, wanted in (
        ("num_key_value_heads", n_head), ("head_dim", width // n_head), ("upsample_groups", width),
    ):  # fmt: skip
        if key in given and given[key] not in (None, wanted):
            raise FormatError(f"{path}: {key!r} is {given[key]!r}; weft computes {wanted!r}")
    rope = given.get("rope_parameters")
    rope = rope if isinstance(rope, dict) else {}
    if rope.get("rope_type", "default") != "default":
        raise FormatError(f"{path}: rope_type is {rope['rope_type']!r}; weft computes 'default'")
    return out | {
        "rope_theta": float(rope.get("rope_theta", _USUAL_BASE)),
        "head_dim": width // n_head,
    }


def _count(path: Path, key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value < 1 << 24:
        raise FormatError(f"{path}: {key!r} is {value!r}; it is a count of 1 or more")
    return value


def _keys(c: Config) -> Pairs:
    _check_flow(c)
    codec = codec_config(c)
    hears = c.cls == "PocketTTSModel" or _has_encoder(c)
    sizes = {
        "block_count": codec["num_hidden_layers"], "embedding_length": codec["hidden_size"],
        "feed_forward_length": codec["intermediate_size"],
        "attention.head_count": codec["num_attention_heads"],
    }  # fmt: skip
    yield "general.file_type", 0
    if hears:
        yield "has_audio_encoder", True
        yield "audio.projector_type", "pockettts_spkenc"
        yield "audio.projection_dim", c.n_embd
        for key, value in sizes.items():
            yield f"audio.{key}", value
        yield "audio.attention.layer_norm_epsilon", 1e-5
        yield "audio.num_mel_bins", 1
    yield "has_gen_audio_encoder", True
    yield "gen.audio.projector_type", "pockettts_gen"
    yield "gen.audio.projection_dim", c.n_embd
    for key in ("embedding_length", "feed_forward_length", "block_count", "attention.head_count"):
        yield f"gen.audio.{key}", sizes[key]
    yield "gen.audio.attention.layer_norm_epsilon", 1e-5
    yield "gen.audio.model_variant", c.folder.resolve().name
    for key, name, usual in (
        ("attention.sliding_window", "sliding_window", _USUAL_WINDOW),
        ("rope.freq_base", "rope_theta", _USUAL_BASE),
        ("sample_rate", "sampling_rate", _USUAL_RATE),
    ):  # fmt: skip
        if codec.get(name, usual) != usual:
            yield f"gen.audio.{key}", codec[name]


def _has_encoder(c: Config) -> bool:
    given = read_json(codec_folder(c) / "config.json", "the settings of the codec")
    return not (isinstance(given, dict) and given.get("encoder_config", {}) is None)


def _check_flow(c: Config) -> None:
    """Raises FormatError for a flow head that computes otherwise."""
    flow = c.get("flow_head_config")
    flow = flow if isinstance(flow, dict) else {}
    for key, usual in (("layer_norm_eps", 1e-6), ("rms_norm_eps", 1e-5), ("hidden_act", "silu")):
        if flow.get(key, usual) != usual:
            raise c.bad(f"flow_head_config.{key}", f"is {flow[key]!r}; weft computes {usual!r}")
    kind = flow.get("flow_type", "lsd")
    if kind not in ("lsd", "drifting"):
        raise c.bad("flow_head_config.flow_type", f"is {kind!r}; known are lsd and drifting")


_TOWER = _Spoken(
    _keys, (), {}, {}, kernels=("seanet.", "a.downsample.conv", "a.gen.wav.upsample"),
    f32=(".ls1.", ".ls2."), beside=beside,
)  # fmt: skip
FAMILIES = {"PocketTTSForConditionalGeneration": _TOWER, "PocketTTSModel": _TOWER}
