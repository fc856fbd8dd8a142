"""The metadata that most architectures have, in the order in which converters write it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from weft.errors import FormatError
from weft.frontends.hf.config import Config

__all__ = ["Pairs", "common_keys", "drafting", "n_draft", "pooling_keys", "window_keys"]

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
