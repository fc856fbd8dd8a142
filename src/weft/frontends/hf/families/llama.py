"""LLaMA, and models with its tensors: Mistral, Mixtral, Arcee, SmolLM3, Granite, BitNet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named, never
from weft.frontends.hf.keys import Pairs, pooling_keys, window_keys
from weft.frontends.hf.rope import llama3_factors
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import Values, stored_values
from weft.frontends.hf.vocab import llama, sentencepiece

__all__ = ["DERIVED", "FAMILIES", "ROTARY", "granite_keys", "granite_parts", "llama_keys"]

ROTARY = {"rope_theta": 10000.0}
DERIVED = {**ROTARY, "head_dim": 0}


def llama_keys(c: Config) -> Pairs:
    """The vocabulary's size, and that whole heads rotate."""
    yield "vocab_size", c.count("vocab_size")
    yield "rope.dimension_count", c.head_dim


def _smollm3_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    rotates = c.get("no_rope_layers")  # GGUF has no key for it, and every fourth layer does not
    if rotates and [bool(r) for r in rotates] != [(il + 1) % 4 != 0 for il in range(c.n_layer)]:
        raise c.bad("no_rope_layers", "is not every fourth layer, which weft needs here")


def _mistral3_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    if c.get("model_type") == "ministral3":
        if "mscale_all_dim" in c.rope:
            yield "rope.scaling.yarn_log_multiplier", float(c.rope["mscale_all_dim"])
        yield "attention.temperature_scale", float(c.rope["llama_4_scaling_beta"])
        yield "rope.scaling.original_context_length", c.rope["original_max_position_embeddings"]


def _minicpm_keys(c: Config) -> Pairs:
    yield "embedding_scale", float(c["scale_emb"])
    yield "residual_scale", c["scale_depth"] / c.n_layer**0.5
    yield "logit_scale", c.n_embd / c["dim_model_base"]


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


def _granite_swa_keys(c: Config) -> Pairs:
    yield from granite_keys(c)
    yield from window_keys(c, lambda il: il % 4 != 0)
    rotates = c.get("no_rope_layers")
    if rotates:
        yield "attention.rope_pattern", [bool(r) for r in rotates]


def _named_sinks(c: Config, name: str, values: Values) -> Named:
    yield (f"{name}.weight" if name.endswith("sinks") else name), values


def granite_parts(c: Config, name: str, values: Values) -> Named:
    """Takes gate and up apart, which Granite's mixtures have as one matrix."""
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


def _ternary(c: Config, name: str, values: Values) -> Named:
    """BitNet's weights are trained as -1, 0 or 1 times the mean magnitude of the matrix, and stored
    as they were before rounding."""

    def rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
        scale = np.float32(1) / np.maximum(np.abs(x).mean(dtype=np.float32), np.float32(1e-5))
        return np.asarray(np.clip(np.rint(x * scale), -1, 1) / scale, np.float32)

    yield name, values.through(rounded) if name.endswith("_proj.weight") else values


def _jais2_keys(c: Config) -> Pairs:
    yield "rope.dimension_count", c.head_dim


def _bitnet_keys(c: Config) -> Pairs:
    yield "rope.scaling.type", "linear"
    yield "rope.scaling.factor", 1.0


_MIXTRAL = {**DERIVED, "rope_theta": 1e6}
_MIXTRAL.pop("head_dim")
_EXPERTS = ("w1", "w2", "w3")
_GRANITE_NAMES = {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
}

FAMILIES = {
    "llama": Family(
        "llama", llama_keys, extra=llama3_factors, vocab=llama, defaults=DERIVED, adjacent=True
    ),
    "internlm3": Family("llama", llama_keys, vocab=sentencepiece, defaults=DERIVED, adjacent=True),
    "mistral": Family(
        "llama",
        llama_keys,
        extra=llama3_factors,
        vocab=llama,
        defaults=DERIVED,
        adjacent=True,
        windows=never,
    ),
    "mistral3": Family(
        "mistral3",
        _mistral3_keys,
        extra=llama3_factors,
        vocab=llama,
        defaults=DERIVED,
        adjacent=True,
        windows=never,
    ),
    "mixtral": Family(
        "llama",
        llama_keys,
        extra=llama3_factors,
        vocab=llama,
        defaults=_MIXTRAL,
        adjacent=True,
        experts=_EXPERTS,
        windows=never,
    ),
    "arcee": Family(
        "arcee",
        _arcee_keys,
        extra=llama3_factors,
        vocab=llama,
        defaults=DERIVED,
        adjacent=True,
        activation="relu2",
    ),
    "smollm3": Family(
        "smollm3",
        _smollm3_keys,
        extra=llama3_factors,
        vocab=llama,
        defaults={"rope_theta": 2e6, "use_sliding_window": False},
        adjacent=True,
        windows=never,
    ),
    "granite": Family(
        "granite", granite_keys, extra=llama3_factors, vocab=llama, defaults=ROTARY, adjacent=True
    ),
    "granitemoe": Family(
        "granitemoe",
        granite_keys,
        names=_GRANITE_NAMES,
        change=granite_parts,
        extra=llama3_factors,
        vocab=llama,
        defaults=ROTARY,
        adjacent=True,
    ),
    "minicpm": Family("minicpm", _minicpm_keys, vocab=llama, defaults=ROTARY, adjacent=True),
    "apertus": Family(
        "apertus",
        llama_keys,
        first=_xielu_keys,
        names={"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"},
        change=_without_xielu,
        extra=llama3_factors,
        vocab=llama,
        defaults={"rope_theta": 12e6},
        activation="",
    ),
    "granite_swa": Family(
        "granite_swa",
        _granite_swa_keys,
        change=_named_sinks,
        extra=llama3_factors,
        vocab=llama,
        defaults={**ROTARY, "sliding_window": 128},
        adjacent=True,
    ),
    "jais2": Family("jais2", _jais2_keys, defaults=ROTARY, activation="relu2"),
    "bitnet": Family(
        "bitnet",
        _bitnet_keys,
        change=_ternary,
        vocab=sentencepiece,
        names={
            "self_attn.attn_sub_norm": "attn_sub_norm",
            "self_attn.inner_attn_ln": "attn_sub_norm",
            "mlp.ffn_sub_norm": "ffn_sub_norm",
            "mlp.ffn_layernorm": "ffn_sub_norm",
        },
        defaults=ROTARY,
        activation="relu2",
    ),
}
