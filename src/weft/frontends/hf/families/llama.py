"""LLaMA and models of its shape, from Mistral and Apertus to Granite, Orion and DeciLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import DERIVED, NORM_BEHIND, ROTARY, Family, Named, never
from weft.frontends.hf.keys import Pairs, common_keys, llama3_factors, pooling_keys, window_keys
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.special import SpecialTokens
from weft.frontends.hf.values import Values, stored_values
from weft.frontends.hf.vocab import (
    Vocabulary,
    base_tokens,
    bpe,
    llama,
    read_normalizer,
    sentencepiece,
)


def llama_keys(c: Config) -> Pairs:
    """The vocabulary's size, and that whole heads rotate."""
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim


def _smollm3_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    rotates = [bool(r) for r in c.get("no_rope_layers") or ()]  # 1: it rotates
    if rotates and rotates != [(il + 1) % 4 != 0 for il in range(c.n_layer)]:
        yield "attention.rope_pattern", rotates


def _mistral3_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    if c.get("model_type") == "ministral3":
        if "mscale_all_dim" in c.rope:
            yield "rope.scaling.yarn_log_multiplier", float(c.rope["mscale_all_dim"])
        yield "attention.temperature_scale", float(c.rope["llama_4_scaling_beta"])
        yield "rope.scaling.original_context_length", c.rope["original_max_position_embeddings"]


_XIELU = ("alpha_n", "alpha_p", "beta", "eps")


def _xielu_keys(c: Config) -> Pairs:
    """Apertus' activation has parameters per layer, which are metadata."""
    stored = open_shards(c.folder)
    for name in _XIELU:
        each = [stored.get(f"model.layers.{il}.mlp.act_fn.{name}") for il in range(c.n_layer)]
        column = [stored_values(t).load().item() for t in each if t is not None]
        if len(column) < c.n_layer:
            raise FormatError(f"{c.folder}: tensors mlp.act_fn.{name} are missing")
        yield f"xielu.{name}", np.array(column, np.float32)


def _without_xielu(c: Config, name: str, values: Values) -> Named:
    if ".mlp.act_fn." not in name:
        yield name, values


def _arcee_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield from pooling_keys(c)


def _ternary(c: Config, name: str, values: Values) -> Named:
    """BitNet's weights are trained as -1, 0 or 1 times the mean magnitude of the matrix, and stored
    as they were before rounding."""

    def rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
        scale = np.float32(1) / np.maximum(np.abs(x).mean(dtype=np.float32), np.float32(1e-5))
        return np.asarray(np.clip(np.rint(x * scale), -1, 1) / scale, np.float32)

    how = c.get("quantization_config") or {}
    packed = how.get("quant_method") == "bitnet" and how.get("quantization_mode") != "online"
    matrix = name.endswith("_proj.weight") and not packed
    yield name, values.through(rounded) if matrix else values


def head_keys(c: Config) -> Pairs:
    """The number of elements that rotate: whole heads."""
    yield "rope.dimension_count", c.head_dim


def _bitnet_keys(c: Config) -> Pairs:
    yield "rope.scaling.type", "linear"
    yield "rope.scaling.factor", 1.0


_LAYOUT = "Meta AI original pth"


def _layout(c: Config) -> Pairs:
    yield "tensor_data_layout", _LAYOUT
    yield "rope.dimension_count", c.n_embd // c.n_head


def _plain_pieces(c: Config) -> Vocabulary:
    """XVERSE's vocabulary, whose pieces have no scores."""
    tokens, kinds = base_tokens(c, ())
    yield "tokenizer.ggml.model", "llama"
    yield "tokenizer.ggml.pre", "default"
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from SpecialTokens(c, n_vocab=len(tokens)).keys()


def _internlm_vocab(c: Config) -> Vocabulary:
    """Chat models end a text where their turn ends."""
    pairs = dict(sentencepiece(c))
    tokens, kinds = pairs["tokenizer.ggml.tokens"], pairs["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(kinds, np.ndarray)
    for i, text in enumerate(tokens):
        if text == "\0":  # an empty text in C
            tokens[i] = "\U0001f409"
        elif text.startswith("[UNUSED"):
            kinds[i] = 5
    end, added = "tokenizer.ggml.eos_token_id", c.json("tokenizer_config.json")
    for id_, row in (added.get("added_tokens_decoder") or {}).items():
        if end in pairs and row["content"] == "<|im_end|>":
            pairs[end] = int(id_)
    for key, value in pairs.items():
        yield key, value
        if key == "tokenizer.ggml.token_type":
            prefix = read_normalizer(c.folder / "tokenizer.model").get(3, 1)
            yield "tokenizer.ggml.add_space_prefix", bool(prefix)


# **** Projections that are fused ****


def _packed(c: Config, name: str, values: Values) -> Named:
    """Baichuan's W_pack."""
    stem, found, kind = name.partition("W_pack")
    if not found:
        yield name, values
        return
    n = values.shape[0] // 3
    for part, cut in zip("qkv", values.split(n, n, n), strict=True):
        yield f"{stem}{part}_proj{kind}", cut


def _grouped(c: Config, name: str, values: Values) -> Named:
    """InternLM 2's wqkv: for each key head, its query heads, the key and the value."""
    stem, found, kind = name.partition("attention.wqkv")
    if not found:
        yield name, values
        return
    n, per = c.n_head_kv, c.n_head // c.n_head_kv
    d, rest = c.n_embd // c.n_head, values.shape[1:]

    def of(start: int, stop: int) -> Values:
        rows = n * (stop - start) * d
        return values.through(
            lambda x: x.reshape(n, per + 2, d, *rest)[:, start:stop].reshape(rows, *rest),
            (rows, *rest),
        )

    for part, start, stop in (("q", 0, per), ("k", per, per + 1), ("v", per + 1, per + 2)):
        yield f"{stem}self_attn.{part}_proj{kind}", of(start, stop)


def _refact_parts(c: Config, name: str, values: Values) -> Named:
    for fused, parts in (("attn.kv.", "kv"), ("mlp.gate_up_proj.", ("gate", "up"))):
        stem, found, kind = name.partition(fused)
        if found:
            n = c.n_embd // c.n_head if parts == "kv" else values.shape[0] // 2
            head = f"{stem}self_attn." if parts == "kv" else f"{stem}mlp."
            for part, cut in zip(parts, values.split(n, values.shape[0] - n), strict=True):
                yield f"{head}{part}_proj.{kind}", cut
            return
    yield name, values


# **** Metadata ****


def _orion_keys(c: Config) -> Pairs:
    yield "general.file_type", None
    yield "tensor_data_layout", _LAYOUT
    longest = c.first("max_sequence_length", "max_position_embeddings", "model_max_length")
    yield "context_length", longest
    yield "embedding_length", c.n_embd
    yield "block_count", c.n_layer
    yield "feed_forward_length", c["intermediate_size"]
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", c.n_head_kv
    yield "attention.layer_norm_epsilon", float(c["rms_norm_eps"])  # norms are LayerNorms


def _refact_keys(c: Config) -> Pairs:
    yield "context_length", c["n_positions"]
    yield "embedding_length", c.n_embd
    yield "feed_forward_length", -(-int(8 * c.n_embd / 3) // 256) * 256
    yield "block_count", c.n_layer
    yield "attention.head_count", c.n_head
    yield "attention.head_count_kv", 1
    yield "attention.layer_norm_rms_epsilon", float(c["layer_norm_epsilon"])
    yield "general.file_type", None


def _refact_vocab(c: Config) -> Vocabulary:
    yield from bpe(c)
    for kind, id_ in (("prefix", 1), ("suffix", 3), ("middle", 2)):
        yield f"tokenizer.ggml.{kind}_token_id", id_


def _deci_blocks(c: Config) -> tuple[list[int], list[int], list[int]]:
    """Heads, key heads and the width of the feed-forward layer, by layer."""
    heads, heads_kv, widths = [], [], []
    for block in c["block_configs"]:
        group = block["attention"]["n_heads_in_group"]
        linear = bool(block["attention"].get("replace_with_linear"))
        heads.append(c.n_head if group or linear else 0)
        heads_kv.append(c.n_head // group if group else 0)
        width = int(2 * (block["ffn"]["ffn_mult"] or 0) * c.n_embd / 3)
        widths.append(-(-width // 256) * 256)
    return heads, heads_kv, widths


def _deci_common(c: Config) -> Pairs:
    blocks = _deci_blocks(c) if "block_configs" in c else None
    each = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
    for key, value in common_keys(c):
        if blocks and key in each:
            value = blocks[each.index(key)]
        yield key, value
    if blocks:
        yield each[1], blocks[1]
        yield each[2], blocks[2]
    elif "num_key_value_heads_per_layer" in c:
        yield each[1], c["num_key_value_heads_per_layer"]
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim


def _deci_change(c: Config, name: str, values: Values) -> Named:
    yield name.replace("self_attn.linear_attn", "self_attn.o_proj"), values


def _deci_vocab(c: Config) -> Vocabulary:
    return llama(c) if c.count("vocab_size") != 128256 else bpe(c)


_LLAMA = Family(
    "llama", llama_keys, extra=llama3_factors, vocab=llama, defaults=DERIVED, adjacent=True
)
_MISTRAL = replace(_LLAMA, windows=never)


# Granite, with experts or a sliding window, and MiniCPM.


def _minicpm_keys(c: Config) -> Pairs:
    yield "embedding_scale", float(c["scale_emb"])
    yield "residual_scale", c["scale_depth"] / c.n_layer**0.5
    yield "logit_scale", c.n_embd / c["dim_model_base"]


def granite_keys(c: Config) -> Pairs:
    """Granite's factors, and the width of its shared experts."""
    yield from llama_keys(c)
    for key, name in (
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_shared_feed_forward_length", "shared_intermediate_size"),
    ):
        value = c.get(name)
        if value:
            yield key, value if isinstance(c.get(name), int) and "length" in key else float(value)
    if c.get("shared_intermediate_size") and not c.n_expert:
        yield "feed_forward_length", c["shared_intermediate_size"]
    if c.get("deepstack_layer_map"):
        mapping = [-1] * c.n_layer
        for part, stream in enumerate(granite_streams(c)):
            mapping[stream.layer] = part or -1  # the first is the input
        yield "deepstack_mapping", mapping


class Stream(NamedTuple):
    """A projector of Granite 4 Vision."""

    layer: int
    """The layer of the text model in front of which its rows are added."""
    seen: int
    """The layer of the tower whose output it sees."""
    name: str
    """The beginning of the names of its tensors."""
    corner: int
    """The patch of each 2 x 2 that it takes; -1: the mean of them."""


def granite_streams(c: Config) -> list[Stream]:
    """The projectors of Granite 4 Vision in the order of the text model's layers. Raises
    FormatError for layers that are not there, and for streams that no file can say."""
    key, corners = "deepstack_layer_map", c.get("spatial_target_layers", [12, 15, 18, 21])
    vision, pairs, last = c.get("vision_config"), c[key], c.get("spatial_vision_layer", -1)
    n_seen = vision.get("num_hidden_layers") if isinstance(vision, dict) else None
    known = isinstance(pairs, list) and isinstance(corners, list) and len(corners) <= 4
    given: list[Any] = [*pairs, *([last, layer] for layer in corners)] if known else [None]
    if type(n_seen) is not int or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        for pair in given
    ):
        raise c.bad(
            key, "must be pairs of a layer of the tower and one of the text model, and "
            "spatial_target_layers at most 4 layers of it"
        )  # fmt: skip
    out = []
    for i, (seen, layer) in enumerate(given):
        # hidden states count from the embeddings on, layers of a file from the first layer on
        own = seen + n_seen if seen < 0 else seen - 1
        if not 0 <= own < n_seen or not 0 <= layer < c.n_layer:
            raise c.bad(
                key, f"and spatial_target_layers join {seen} to {layer}; layers are missing"
            )
        corner = i - len(pairs)
        name = f"layerwise_projectors.{i}" if corner < 0 else f"spatial_projectors.{corner}"
        out.append(Stream(layer, own, name, max(corner, -1)))
    out.sort()
    if out[0].layer or len({stream.layer for stream in out}) < len(out):
        raise c.bad(key, "and spatial_target_layers must have layer 0 and no layer twice")
    return out


def _granite_swa_keys(c: Config) -> Pairs:
    pairs = [*granite_keys(c)]
    widths = [pair for pair in pairs if pair[0].endswith("feed_forward_length")]  # come last
    yield from (pair for pair in pairs if pair not in widths)
    yield from window_keys(c, lambda il: il % 4 != 0)
    bases, rotates = c.get("layer_rope_theta") or (), c.get("no_rope_layers")
    others = {float(base) for base in bases if base} - {float(c.main_rope.get("rope_theta", 0.0))}
    if others:
        raise c.bad("layer_rope_theta", f"has {others.pop()} beside rope_theta, which weft lacks")
    if rotates or not all(bases):  # a base of 0: the layer does not rotate
        yield "attention.rope_pattern", [bool(r) for r in rotates or bases]
    yield from widths


def _named_sinks(c: Config, name: str, values: Values) -> Named:
    yield from granite_parts(c, f"{name}.weight" if name.endswith("sinks") else name, values)


def granite_parts(c: Config, name: str, values: Values) -> Named:
    """Takes gate and up apart, which Granite's mixtures have as one matrix."""
    if name.endswith("block_sparse_moe.experts.gate_up_proj"):
        name = name.replace("experts.gate_up_proj", "input_linear.weight")
    elif name.endswith("block_sparse_moe.experts.down_proj"):
        name = name.replace("experts.down_proj", "output_linear.weight")
    kind = ("shexp" if c.n_expert else "") if "shared_mlp." in name else "exps"
    layer = f"model.layers.{name.split('.layers.')[-1].split('.')[0]}"
    blk = layer.replace("model.layers", "=blk")
    if name.endswith("input_linear.weight"):
        n = values.shape[-2] // 2
        for part, start in (("gate", 0), ("up", n)):
            shape = (*values.shape[:-2], n, values.shape[-1])
            cut = values.taken(..., slice(start, start + n), slice(None), shape=shape)
            yield f"{blk}.ffn_{part}{'_' if kind else ''}{kind}.weight", cut
    elif name.endswith("output_linear.weight"):
        yield f"{blk}.ffn_down{'_' if kind else ''}{kind}.weight", values
    else:
        yield name, values


def _granite_change(c: Config, name: str, values: Values) -> Named:
    """Granite Speech's encoder of sounds is a tower."""
    if not name.removeprefix("model.").startswith("encoder."):
        yield name, values


_GRANITE = Family(
    "granite", granite_keys, extra=llama3_factors, vocab=llama, defaults=ROTARY, adjacent=True,
    change=_granite_change,
)  # fmt: skip


# HRM-Text: two stacks of layers, which run in turns.


def _per_stack(c: Config) -> int:
    return c.count("num_layers_per_stack", "num_hidden_layers")


def _common(c: Config) -> Pairs:
    """The layers are counted as often as they run."""
    n = _per_stack(c) * c["H_cycles"] * (c["L_cycles"] + 1)
    for key, value in common_keys(c):
        yield key, n if key == "block_count" else value


def _keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim
    yield "embedding_scale", float(c["embedding_scale"])
    yield "hrm.layers_per_stack", _per_stack(c)
    yield "hrm.h_cycles", c["H_cycles"]
    yield "hrm.l_cycles", c["L_cycles"]
    yield "hrm.prefix_lm", bool(c.get("prefix_lm", False))


def _change(c: Config, name: str, values: Values) -> Named:
    layer = re.fullmatch(r"model\.([LH])_module\.layers\.(\d+)\.(.+)", name)
    if layer is None:
        yield ("=hrm.z_l_init" if name == "model.z_L_init" else name), values
        return
    il = int(layer[2]) + (_per_stack(c) if layer[1] == "H" else 0)
    rest = layer[3].replace("attn.", "self_attn.")
    for fused, parts in (("gqkv_proj", "gqkv"), ("gate_up_proj", ("gate", "up"))):
        if fused in rest:
            n = values.shape[0] // len(parts)
            for part, cut in zip(parts, values.split(*[n] * len(parts)), strict=True):
                yield f"model.layers.{il}.{rest.replace(fused, f'{part}_proj')}", cut
            return
    yield f"model.layers.{il}.{rest}", values


# Nanbeige, Chameleon and CogVLM.


def _nanbeige_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield "num_loops", max(int(c.get("num_loops") or 1), 1)
    yield "skip_loop_final_norm", bool(c.get("skip_loop_final_norm", False))


def _chameleon_keys(c: Config) -> Pairs:
    yield "swin_norm", bool(c.get("swin_norm", False))


_COGVLM = {
    "self_attn.language_expert_query_key_value": "attn_qkv",
    "self_attn.language_expert_dense": "attn_output",
    "self_attn.vision_expert_query_key_value": "vis_attn_qkv",
    "self_attn.vision_expert_dense": "vis_attn_output",
    "mlp.language_mlp.gate_proj": "ffn_gate", "mlp.language_mlp.up_proj": "ffn_up",
    "mlp.language_mlp.down_proj": "ffn_down", "mlp.vision_mlp.gate_proj": "vis_gate",
    "mlp.vision_mlp.up_proj": "vis_up", "mlp.vision_mlp.down_proj": "vis_down",
}  # fmt: skip


# -- Ultravox --------------------------------------------------------------------------------------


def _elsewhere(c: Config) -> Pairs:
    """Raises FormatError: the folder has a tower alone."""
    raise FormatError(
        f"{c.folder}: a tower for sound without a text model of LLaMA's kind; give the text model "
        f"({str(c.get('text_model_id', 'a folder of its own'))[:60]}) as the model, and this "
        "folder as --mmproj (mmproj=)"
    )


def _with_text(config: Mapping[str, Any]) -> str:
    text = config.get("text_config")
    return "llama" if isinstance(text, dict) and text.get("model_type") == "llama" else ""


FAMILIES = {
    "llama": _LLAMA,
    "ultravox": Family(
        "llama", common=_elsewhere, variant=_with_text, defaults={"num_hidden_layers": 0}
    ),
    "nanbeige": replace(_LLAMA, arch="nanbeige", keys=_nanbeige_keys),
    "chameleon": Family("chameleon", _chameleon_keys, defaults=ROTARY, adjacent=True),
    "cogvlm": replace(_LLAMA, arch="cogvlm", names=_COGVLM, adjacent=False),
    "internlm3": Family("llama", llama_keys, vocab=sentencepiece, defaults=DERIVED, adjacent=True),
    "mistral": _MISTRAL,
    "mistral3": replace(_MISTRAL, arch="mistral3", keys=_mistral3_keys),
    "mixtral": replace(_MISTRAL, defaults={"rope_theta": 1e6}, experts=("w1", "w2", "w3")),
    "arcee": replace(_LLAMA, arch="arcee", keys=_arcee_keys, activation="relu2"),
    "smollm3": replace(
        _MISTRAL, arch="smollm3", keys=_smollm3_keys,
        defaults={"rope_theta": 2e6, "use_sliding_window": False},
    ),
    "apertus": Family(
        "apertus", llama_keys, first=_xielu_keys, change=_without_xielu, extra=llama3_factors,
        vocab=llama, defaults={"rope_theta": 12e6}, activation="xielu",
    ),
    "jais2": Family("jais2", head_keys, defaults=ROTARY, activation="relu2"),
    "bitnet": Family(
        "bitnet", _bitnet_keys, change=_ternary, vocab=sentencepiece, defaults=ROTARY,
        variant=lambda c: "bitnet-b1.58" if c.get("hidden_act", "relu2") == "relu2" else "",
    ),
    "bitnet-b1.58": Family(
        "bitnet-b1.58", head_keys, change=_ternary, vocab=llama, activation="relu2",
        defaults={"rope_theta": 500000.0},
    ),
    "baichuan": Family(
        "baichuan", _layout, change=_packed, vocab=sentencepiece, defaults=ROTARY, adjacent=True,
    ),
    "internlm2": Family(
        "internlm2", change=_grouped, vocab=_internlm_vocab, defaults=ROTARY, adjacent=True,
    ),
    "orion": Family("orion", common=_orion_keys, vocab=sentencepiece, defaults=ROTARY),
    "refact": Family(
        "refact", common=_refact_keys, change=_refact_parts, vocab=_refact_vocab, activation="",
    ),
    "xverse": Family("xverse", _layout, vocab=_plain_pieces, defaults=ROTARY, adjacent=True),
    "seed_oss": Family("seed_oss", names=NORM_BEHIND, defaults={**ROTARY, "head_dim": 128}),
    "deci": Family(
        "deci", common=_deci_common, change=_deci_change, extra=llama3_factors, vocab=_deci_vocab,
        defaults=DERIVED, adjacent=True,
    ),
    "granite": _GRANITE,
    "granitemoe": replace(_GRANITE, arch="granitemoe", change=granite_parts),
    "minicpm": Family("minicpm", _minicpm_keys, vocab=llama, defaults=ROTARY, adjacent=True),
    "granite_swa": replace(
        _GRANITE, arch="granite_swa", keys=_granite_swa_keys, change=_named_sinks,
        defaults={**ROTARY, "sliding_window": 128},
    ),
    "hrm_text": Family("hrm_text", _keys, common=_common, change=_change, defaults=ROTARY),
}  # fmt: skip
