"""Models that draft for one other model: EAGLE-3, the assistants of Gemma 4, and DFlash.

Their folders have no tokenizer, or a copy of their target's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.gemma import GEMMA4
from weft.frontends.hf.families.gpt import tied
from weft.frontends.hf.families.llama import llama_keys
from weft.frontends.hf.family import DERIVED, Family, Named
from weft.frontends.hf.keys import Pairs, llama3_factors
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary, has


def no_vocabulary(c: Config) -> Vocabulary:
    """The tokens are the target's."""
    return iter(())


# EAGLE-3, as its makers, SpecForge and speculators write it.


def _eagle_keys(c: Config) -> Pairs:
    if c.n_layer != 1:
        raise c.bad("num_hidden_layers", f"is {c.n_layer}; EAGLE-3 has one layer")
    yield from llama_keys(c)
    layers = c.get("eagle_aux_hidden_state_layer_ids") or (c.get("eagle_config") or {}).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    if layers:
        yield "target_layers", np.array(layers, np.int32)
    if c.get("target_hidden_size") is not None:
        yield "target_hidden_size", c.count("target_hidden_size")
    for key in ("norm_before_residual", "norm_before_fc"):
        yield key, bool(c.get(key, False))


def _eagle_change(c: Config, name: str, values: Values) -> Named:
    bare = name.removeprefix("model.")
    if bare == "t2d":  # says which tokens the other table has
        return
    if bare == "d2t":
        yield "=d2t", _ids(c, values)
        return
    yield bare.replace("midlayer.", "layers.0.", 1), values


def _ids(c: Config, values: Values) -> Values:
    """The ids of the own vocabulary, which folders store as differences to their places."""
    n, stored = values.size, values.stored

    def ids() -> NDArray[np.int64]:
        kinds = {"I64": "<i8", "I32": "<i4"}
        if stored is None or stored.kind not in kinds:
            raise c.bad("draft_vocab_size", "has a tensor d2t that is not of integers")
        found = np.frombuffer(stored.data, kinds[stored.kind]).astype(np.int64) + np.arange(n)
        if found.min(initial=0) < 0 or found.max(initial=0) >= c["vocab_size"]:
            raise c.bad("vocab_size", f"is {c['vocab_size']}, and tensor d2t has an id beyond it")
        return found

    return Values(
        (n,), "i64", lambda: ids().astype(np.float32), packed=lambda: ids().view(np.uint8)
    )


# Gemma 4's assistants: a few layers of it without keys and values.

_PROJECTIONS = {name: f"nextn.{name}" for name in ("pre_projection", "post_projection")}


def _assistant_keys(c: Config) -> Pairs:
    yield from GEMMA4.keys(c)
    yield "attention.shared_kv_layers", c.n_layer
    yield "embedding_length_out", c.count("backbone_hidden_size")
    yield "nextn_predict_layers", c.n_layer
    if not has(c, "tokenizer.json"):
        yield "vocab_size", c.count("vocab_size")


def _assistant_change(c: Config, name: str, values: Values) -> Named:
    if "masked_embedding." not in name:  # groups of tokens, of which only likely ones are computed
        yield from GEMMA4.change(c, name, values)


def _assistant_vocab(c: Config) -> Vocabulary:
    if has(c, "tokenizer.json"):
        yield from GEMMA4.vocab(c)


# DFlash.


def _of_dflash(c: Config, key: str) -> Any:
    return (c.get("dflash_config") or {}).get(key, c.get(key))


def _dflash_keys(c: Config) -> Pairs:
    yield from llama_keys(c)
    yield "block_size", _of_dflash(c, "block_size") or 16
    layers = _of_dflash(c, "target_layer_ids")
    if not isinstance(layers, list) or not layers:
        raise c.bad("target_layer_ids", "is missing; it names the layers that DFlash reads")
    yield "target_layers", np.array([il + 1 for il in layers], np.int32)
    for key in ("attention_value_scale", "output_multiplier", "final_logit_softcapping",
                "input_embedding_scale", "conv_kernel_size", "markov_head_type"):  # fmt: skip
        if _of_dflash(c, key) not in (None, 0, 1, 1.0):
            raise c.bad(key, "is set, which weft does not read in DFlash")
    window = _of_dflash(c, "swa_window_size") or c.get("sliding_window")
    whole = bool(_of_dflash(c, "use_swa"))
    if window and (whole or c.get("use_sliding_window")):
        kinds = c.get("layer_types") or []
        windowed = [whole or kind == "sliding_attention" for kind in kinds] or [whole] * c.n_layer
        yield "attention.sliding_window", window
        yield "attention.sliding_window_pattern", windowed
    causal = c.get("is_causal", _of_dflash(c, "causal"))
    yield "attention.causal", bool(causal)


def _dflash_change(c: Config, name: str, values: Values) -> Named:
    if "embed_tokens" not in name or c.get("has_embed_tokens", True):
        yield from tied(c, name, values) if not c.get("has_lm_head", True) else ((name, values),)


def _dflash_vocab(c: Config) -> Vocabulary:
    mask = _of_dflash(c, "mask_token_id")
    if mask is not None:
        yield "tokenizer.ggml.mask_token_id", mask


FAMILIES = {
    "eagle3": Family(
        "eagle3", _eagle_keys, names={"hidden_norm": "attn_norm_2"},
        outer={"fc": "fc", "input_norm": "enc.output_norm"}, change=_eagle_change,
        extra=llama3_factors, vocab=no_vocabulary, defaults=DERIVED, adjacent=True,
    ),
    "gemma4-assistant": Family(
        "gemma4-assistant", _assistant_keys, names=GEMMA4.names, outer=_PROJECTIONS,
        extra=GEMMA4.extra, change=_assistant_change, vocab=_assistant_vocab,
        defaults=GEMMA4.defaults, activation="gelu",
    ),
    "dflash": Family(
        "dflash", _dflash_keys, outer={"fc": "fc", "hidden_norm": "enc.output_norm"},
        change=_dflash_change, vocab=_dflash_vocab, defaults=DERIVED,
    ),
}  # fmt: skip
