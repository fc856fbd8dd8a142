"""MiniMax-M3."""

from __future__ import annotations

from weft.frontends.hf.config import Config
from weft.frontends.hf.families.qwen import split_experts
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values

_INDEXER = {
    "head_count": ("index_n_heads", "sparse_num_index_heads"),
    "key_length": ("index_head_dim", "sparse_index_dim"),
    "top_k": ("index_topk_blocks", "sparse_topk_blocks"),
    "block_size": ("index_block_size", "sparse_block_size"),
    "local_blocks": ("index_local_blocks", "sparse_local_block"),
}
"""Keys, and the names that folders of transformers and of the makers have for them."""


def _keys(c: Config) -> Pairs:
    for key, value in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if abs(float(c.get(key, value)) - value) > 1e-6:
            raise c.bad(key, f"is {c[key]}, which must be {value} here")
    width, n_shared = c["intermediate_size"], c.get("n_shared_experts", 1)
    part = c.rope.get("partial_rotary_factor")
    n_rotated = c.get("rotary_dim", c.head_dim) if part is None else int(c.head_dim * part)
    yield "expert_feed_forward_length", width
    yield "rope.dimension_count", n_rotated
    yield "expert_gating_func", 2
    yield "expert_shared_count", n_shared
    if c.get("shared_intermediate_size", width) != width:
        yield "expert_shared_feed_forward_length", c["shared_intermediate_size"] * n_shared
    yield "expert_weights_scale", float(c["routed_scaling_factor"])
    yield "expert_weights_norm", True
    sparse = c.get("sparse_attention_config") or {}
    for key, (own, theirs) in _INDEXER.items():
        yield f"attention.indexer.{key}", sparse[theirs] if theirs in sparse else c[own]
    flags = c.get("moe_layer_freq") or [k == "sparse" for k in c.get("mlp_layer_types") or ()]
    yield "leading_dense_block_count", next((il for il, f in enumerate(flags) if f), len(flags))


def _change(c: Config, name: str, values: Values) -> Named:
    if name.startswith(("mtp.", "model.mtp.")):
        return
    name = name.replace("self_attn.index_", "self_attn.indexer.")
    if name.endswith("norm.weight"):
        values = values.through(lambda x: x + 1)
    stem, found, kind = name.partition(".gate_up_proj")
    if not found or stem.endswith(".experts"):
        yield from split_experts(c, name, values)
        return
    n = values.shape[0] // 2
    for part, cut in zip(("gate", "up"), values.split(n, n), strict=True):
        yield f"{stem}.{part}_proj{kind}", cut


FAMILIES = {
    "minimax-m3": Family(
        "minimax-m3", _keys, change=_change, defaults=ROTARY, experts=("w1", "w2", "w3"),
        activation="", f32=("indexer.",), names={
            f"self_attn.indexer.{part}_{kind}": f"indexer.{part}_{kind}"
            for part in ("q", "k") for kind in ("proj", "norm")
        },
    ),
}  # fmt: skip
