"""The metadata that most architectures have, in the order in which converters write it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import MOST_WIDTH, Config
from weft.frontends.hf.values import Values

Pairs = Iterable[tuple[str, object]]
"""Metadata keys without the architecture in front, and their values."""

_GATES = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}
_POOLING = {"mean": 1, "cls": 2, "lasttoken": 3}

# Keys and the names of config.json that stand for them, the first that there is.
_SIZES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("context_length", ("max_position_embeddings", "n_ctx", "n_positions", "max_length",
                        "max_sequence_length", "model_max_length")),
    ("embedding_length", ("hidden_size", "n_embd", "dim")),
    ("feed_forward_length", ("prefix_dense_intermediate_size", "dense_intermediate_size",
                             "intermediate_size", "n_inner", "hidden_dim")),
    ("attention.head_count", ("num_attention_heads", "n_head", "n_heads")),
    ("attention.head_count_kv", ("num_key_value_heads", "n_kv_heads")),
)  # fmt: skip
_REST: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("expert_count", ("num_local_experts", "num_experts", "n_routed_experts")),
    ("expert_used_count", ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")),
    ("expert_group_count", ("n_group",)),
    ("expert_group_used_count", ("topk_group",)),
)
_EPSILONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention.layer_norm_rms_epsilon", ("rms_norm_eps", "norm_eps")),
    ("attention.layer_norm_epsilon", ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")),
)
_YARN = (
    ("rope.scaling.yarn_ext_factor", ("extrapolation_factor",)),
    ("rope.scaling.yarn_attn_factor", ("attention_factor", "attn_factor")),
    ("rope.scaling.yarn_beta_fast", ("beta_fast",)),
    ("rope.scaling.yarn_beta_slow", ("beta_slow",)),
)


def common_keys(c: Config) -> Iterator[tuple[str, object]]:
    """Sizes, rotary embedding, norms and experts, as far as config.json has them."""
    yield "block_count", c.n_layer
    yield from _given(c, _SIZES)
    if c.get("is_causal") is False:
        yield "attention.causal", False
    yield from rope_keys(c)
    for key, names in _EPSILONS:
        value = c.first(*names)
        if value is not None:
            yield key, float(value)
    yield from _given(c, _REST)
    gate = c.first("score_function", "scoring_func", "score_func", "moe_router_activation",
                   "moe_router_activation_func", "expert_selection_fn")  # fmt: skip
    if gate is not None:
        if gate not in _GATES:
            raise c.bad("scoring_func", f"is {gate!r}; known are {', '.join(_GATES)}")
        yield "expert_gating_func", _GATES[gate]
    head = c.get("head_dim")
    if head is not None:
        yield "attention.key_length", head
        yield "attention.value_length", head
    yield "general.file_type", None


def drafting(c: Config) -> Pairs:
    """The common metadata; layers that draft tokens are counted, too."""
    for key, value in common_keys(c):
        yield key, value if key != "block_count" else c.n_layer + n_draft(c)


def n_draft(c: Config) -> int:
    """Layers that draft tokens."""
    return int(c.get("num_nextn_predict_layers", 0))


def _given(c: Config, table: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, object]]:
    for key, names in table:
        value = c.first(*names)
        if value is not None:
            yield key, value


def rope_keys(c: Config) -> Iterator[tuple[str, object]]:
    """The rotary embedding: how positions are scaled, and the base."""
    rope = c.main_rope
    kind, factor = rope.get("rope_type"), rope.get("factor")
    if kind == "linear" and factor is not None:
        yield "rope.scaling.type", "linear"
        yield "rope.scaling.factor", float(factor)
    elif kind == "yarn" and factor is not None:
        yield "rope.scaling.type", "yarn"
        yield "rope.scaling.factor", float(factor)
        original = rope.get("original_max_position_embeddings")
        if original is None:
            raise c.bad("rope_scaling", "has no original_max_position_embeddings, which yarn needs")
        yield "rope.scaling.original_context_length", original
        for key, names in _YARN:
            value = next((rope[name] for name in names if rope.get(name) is not None), None)
            if value is not None:
                yield key, float(value)
    elif kind in ("su", "longrope"):
        yield "rope.scaling.type", "longrope"
    sections = c.rope.get("mrope_section")
    if sections:
        yield "rope.dimension_sections", [*sections, 0, 0, 0, 0][:4]
    for key, of in (
        ("rope.freq_base", rope),
        ("rope.freq_base_swa", c.rope_of("sliding_attention")),
    ):
        if of.get("rope_theta") is not None:
            yield key, float(of["rope_theta"])


def window_keys(c: Config, default: Callable[[int], bool] | None = None) -> Pairs:
    """The sliding window, and which layers have it: those that `layer_types` says, or `default` by
    number."""
    if c.get("sliding_window") is None:
        return
    yield "attention.sliding_window", c["sliding_window"]
    kinds = c.get("layer_types")
    if kinds:
        yield "attention.sliding_window_pattern", [kind == "sliding_attention" for kind in kinds]
    elif default is not None:
        yield "attention.sliding_window_pattern", [default(il) for il in range(c.n_layer)]


def pooling_keys(c: Config, *, classifiers: bool = True) -> Iterator[tuple[str, object]]:
    """The pooling by which sentence-transformers makes the embedding of a text from the embeddings
    of its tokens, and with `classifiers` the pooling in front of a classifier."""
    modules = c.folder / "modules.json"
    if modules.is_file():
        from weft.files import read_json

        for module in read_json(modules, "a file of the model"):
            if str(module.get("type", "")).endswith("Pooling"):
                yield "pooling_type", _pooling(c, str(module.get("path", "")))
                break
    classifier = c.get("classifier_pooling") if classifiers else None
    if classifier is not None:
        if classifier not in ("cls", "mean"):
            raise c.bad("classifier_pooling", f"is {classifier!r}; known are cls and mean")
        yield "classifier.pooling_type", _POOLING[classifier]


def _pooling(c: Config, path: str) -> int:
    pooling = c.json(f"{path}/config.json")
    for name, key in (("mean", "mean_tokens"), ("cls", "cls_token"), ("lasttoken", "lasttoken")):
        if pooling.get(f"pooling_mode_{key}"):
            return _POOLING[name]
    mode = str(pooling.get("pooling_mode"))
    if mode in _POOLING:
        return _POOLING[mode]
    raise FormatError(f"{c.folder / path}: unknown pooling; known are mean, cls and last token")


# Scaled rotary embeddings: the divisors of angles that files have as tensors, and magnitudes.

Named = Iterable[tuple[str, Values]]


def llama3_factors(c: Config, n_rotated: int = 0) -> Named:
    """LLaMA 3.1's divisors of the rotary frequencies, if the model has them: 1 for wavelengths that
    training has seen often, `factor` for those it has not, and something between. `n_rotated`
    elements of a head rotate (0: all).

    Source: `_compute_llama3_parameters` in transformers."""
    rope = c.main_rope
    if str(rope.get("rope_type", "")).lower() != "llama3":
        return
    base, dim = float(rope.get("rope_theta", 10000.0)), n_rotated or c.head_dim
    if dim > MOST_WIDTH:
        raise c.bad("head_dim", f"is {dim}; a head has at most {MOST_WIDTH} elements")
    # single precision, step by step, as the reference's converter computes them
    powers = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = np.float32(1.0) / np.power(base, powers.astype(np.float64)).astype(np.float32)
    factor = rope.get("factor", 8.0)
    low, high = rope.get("low_freq_factor", 1.0), rope.get("high_freq_factor", 4.0)
    seen = rope.get("original_max_position_embeddings", 8192)
    factors = []
    one = np.float32(1)  # quotients are products with reciprocals there
    for frequency in frequencies:
        length = np.float32(2 * math.pi) * (one / frequency)
        if length < np.float32(seen / high):
            factors.append(np.float32(1))
        elif length > np.float32(seen / low):
            factors.append(np.float32(factor))
        else:
            smooth = (np.float32(seen) * (one / length) - np.float32(low)) / np.float32(high - low)
            inverse = (np.float32(1) - smooth) / np.float32(factor) + smooth
            factors.append(np.float32(1) / inverse)
    array = np.array(factors, np.float32)
    yield "=rope_freqs.weight", Values(array.shape, "f32", lambda: array)


def long_factors(c: Config) -> Named:
    """LongRoPE's divisors of angles, for texts within the original context and beyond."""
    if c.main_rope.get("rope_type") == "default":
        return
    for kind in ("long", "short"):
        factors = np.array(c.main_rope.get(f"{kind}_factor") or (), np.float32)
        if len(factors):
            yield f"=rope_factors_{kind}.weight", Values(factors.shape, "f32", factors.copy)


def original_length(c: Config) -> int:
    """The length of texts in training, before positions were scaled."""
    given = c.main_rope.get("original_max_position_embeddings")
    return int(given or c["max_position_embeddings"])


def long_magnitude(c: Config) -> float:
    """LongRoPE's factor of rotated vectors, where the context is longer than it was in training."""
    rope, original = c.main_rope, original_length(c)
    if c.get("model_type") == "phimoe" and "long_mscale" in rope:  # the only class that reads it
        if rope["long_mscale"] != rope.get("short_mscale"):
            raise c.bad("rope_scaling", "must have the same short_mscale and long_mscale here")
        return float(rope["long_mscale"])
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    scale = max(float(rope.get("factor") or c["max_position_embeddings"] / original), 1.0)
    if rope.get("rope_type") == "yarn":
        return 0.1 * math.log(scale) + 1.0
    return math.sqrt(1 + math.log(scale) / math.log(original))


def yarn_magnitude(c: Config) -> float | None:
    """YaRN's factor of rotated vectors, where config.json states it by two multipliers of its
    logarithm; None: it does not."""
    rope = c.main_rope
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    if rope.get("attention_factor") is not None or not over or not under:
        return None
    log = 0.1 * math.log(max(float(rope["factor"]), 1.0))
    return float((log * over + 1.0) / (log * under + 1.0))
