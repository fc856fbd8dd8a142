"""Settings of config.json that converters leave out: read here, or refused.

A file that a converter made lacks some of a model's settings: the architecture that it names has
them in most models, and the rest would be wrong in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family
from weft.frontends.hf.keys import llama3_factors, long_factors, long_magnitude, yarn_magnitude
from weft.frontends.hf.values import Values

_PATTERN = "attention.sliding_window_pattern"
_GELUS = {"gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python"}
_SILUS = {"silu", "swish", "swiglu"}
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act",
                "hidden_activation_function", "activation")  # fmt: skip
_FIXED = {
    "rope_interleave": (True,),
    "mamba_hidden_act": ("silu",),
    "use_bidirectional_attention": (False,),
}
"""Settings that are the same in all architectures but those whose `Family.fixed` has others."""
# rotary embeddings as they are in training, or without an effect within its length
_PLAIN = {"", "default", "none", "mrope", "dynamic", "ntk", "xdrope"}


def family_metadata(family: Family, c: Config) -> dict[str, object]:
    """Metadata of the architecture, by keys without its name in front.

    Raises FormatError for an activation or a rotary embedding that the architecture has not."""
    keys = dict(family.common(c))
    _check_activation(family, c)
    for name, allowed in {**_FIXED, **(family.fixed or {})}.items():
        if name in c and c[name] not in allowed:
            known = " or ".join(map(str, allowed)) or "null"
            raise c.bad(
                name, f"is {c[name]}; models of the architecture {family.arch} have {known}"
            )
    keys |= dict(family.keys(c))
    keys |= dict(_windows(family, c, keys))
    keys |= dict(_rope(c, keys))
    eps, own = c.get("rms_norm_eps"), family.latent_eps
    if own and "attention.kv_lora_rank" in keys and eps and float(eps) != own:
        keys["attention.latent_norm_rms_epsilon"] = own
    if "ssm.group_count" in keys:
        keys |= dict(_time_steps(c))
    norm = c.get("norm_topk_prob")
    if family.norm_topk is not None and norm is not None and bool(norm) != family.norm_topk:
        keys.setdefault("expert_weights_norm", bool(norm))
    if "suppress_tokens" not in keys:  # Whisper has rules of its own
        keys |= dict(_suppressed(c))
    return keys


def _suppressed(c: Config) -> Iterator[tuple[str, object]]:
    """The tokens that generation_config.json forbids."""
    ids = c.json("generation_config.json").get("suppress_tokens")
    if ids is None:
        return
    if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
        raise c.bad("suppress_tokens", "of generation_config.json must be a list of ids of tokens")
    found = [id_ for id_ in ids if 0 <= id_ < 1 << 31]
    if found:
        yield "tokenizer.ggml.suppress_tokens", np.array(found, np.int32)


def _time_steps(c: Config) -> Iterator[tuple[str, object]]:
    """The bounds of Mamba-2's time steps."""
    limit = c.get("time_step_limit") or (0.0, math.inf)
    if c.get("model_type") == "nemotron_h":
        limit = c.first("time_step_min", "mamba_dt_min") or 0.001, math.inf
    # transformers writes {"__float__": "Infinity"}
    low, high = (float(t["__float__"] if isinstance(t, dict) else t) for t in limit)
    if low > 0.0:
        yield "ssm.time_step_min", low
    if high != math.inf:
        yield "ssm.time_step_max", high


def _check_activation(family: Family, c: Config) -> None:
    known = family.activation
    if not known:
        return
    for name in _ACTIVATIONS:
        act = c.get(name)
        if not isinstance(act, str):
            continue
        same = next((group for group in (_GELUS, _SILUS) if known in group), {known})
        if act.lower() not in same:
            raise c.bad(name, f"is {act!r}; models of the architecture {family.arch} have {known}")


def _windows(family: Family, c: Config, keys: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The window and its layers, where they are others than the architecture takes."""
    if family.windows is None or _PATTERN in keys:
        return
    usual = [family.windows(il) for il in range(c.n_layer)]
    window, flags = c.get("sliding_window"), usual
    kinds, period = c.get("layer_types"), c.get("sliding_window_pattern")
    if not isinstance(window, int):
        flags = [False] * c.n_layer
    elif isinstance(kinds, list) and len(kinds) >= c.n_layer:
        flags = [kind == "sliding_attention" for kind in kinds[: c.n_layer]]
    elif c.get("use_sliding_window") is False:
        flags = [False] * c.n_layer
    elif isinstance(period, int) and period > 0:
        flags = [(il + 1) % period != 0 for il in range(c.n_layer)]
    elif not any(usual):  # all layers, or those behind the first
        first = c.get("max_window_layers", 0) if c.get("use_sliding_window") else 0
        flags = [il >= first for il in range(c.n_layer)]
    length = keys.get("context_length")
    if not any(usual) and isinstance(length, int) and isinstance(window, int) and window >= length:
        return
    if flags != usual:
        if any(flags):
            yield "attention.sliding_window", window
        yield _PATTERN, flags


def _rope(c: Config, keys: dict[str, object]) -> Iterator[tuple[str, object]]:
    """The base of rotary embeddings and the magnitude of scaled ones, where they are others than
    files imply."""
    rope = c.main_rope
    base = rope.get("rope_theta")
    if base and float(base) != 10000.0 and "rope.freq_base" not in keys:
        yield "rope.freq_base", float(base)
    kind = str(rope.get("rope_type") or "").lower()
    if kind in ("dynamic", "ntk") and not rope.get("alpha"):  # which stretches the base once
        yield "rope.scaling.dynamic", True
    if kind == "yarn" and keys.get("rope.scaling.type") == "yarn":
        truncates = bool(c.rope.get("truncate", True))  # not of a kind of layers in transformers
        if truncates is (c.get("model_type") == "gpt_oss"):  # files of gpt-oss imply that it is off
            yield "rope.scaling.yarn_truncate", truncates
        magnitude = yarn_magnitude(c)
        if magnitude is not None and "rope.scaling.yarn_log_multiplier" not in keys:
            yield "rope.scaling.yarn_attn_factor", magnitude
    elif kind in ("su", "longrope"):
        length = rope.get("original_max_position_embeddings")
        if length and length != keys.get("context_length"):
            yield "rope.scaling.original_context_length", length
        if length and long_magnitude(c) != 1.0:
            yield "rope.scaling.attn_factor", long_magnitude(c)


def rotated_elements(c: Config, keys: dict[str, object]) -> int:
    """Number of elements of a head that rotate, by the metadata of the architecture."""
    n = keys.get("rope.dimension_count")
    return n if isinstance(n, int) else c.head_dim


def rope_tensors(family: Family, c: Config, keys: dict[str, object]) -> list[tuple[str, Values]]:
    """The tensors in front of the folder's: divisors of the angles of scaled rotary embeddings
    among them.

    Raises FormatError for a kind of scaling that the architecture has not."""
    tensors = list(family.extra(c))
    if keys.get("rope.scaling.finetuned") is False:  # nothing rotates
        return [t for t in tensors if not t[0].startswith("=rope_f")]
    kind = str(c.main_rope.get("rope_type") or "").lower()
    local = str(c.rope_of("sliding_attention").get("rope_type") or "").lower()
    if local not in _PLAIN:
        raise c.bad("rope_parameters", f"of sliding_attention is {local!r}; layers with a window "
                    "are not scaled")  # fmt: skip
    written = keys.get("rope.scaling.type") or "none"
    if kind in _PLAIN or (kind == written and kind in ("linear", "yarn")):
        return tensors
    if any(name.startswith("=rope_f") for name, _ in tensors):
        return tensors
    one = (
        written in ("none", "longrope")
        and "attention.sliding_window" not in keys
        and not c.rope_of("sliding_attention")
    )
    if one and kind == "llama3":
        return tensors + list(llama3_factors(c, rotated_elements(c, keys)))
    if one and kind in ("su", "longrope"):
        return tensors + list(long_factors(c))
    raise c.bad(
        "rope_scaling", f"is {kind!r}, which models of the architecture {family.arch} do not have"
    )
