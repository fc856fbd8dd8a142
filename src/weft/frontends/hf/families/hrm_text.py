"""HRM-Text: two stacks of layers, which run in turns."""

from __future__ import annotations

import re

from weft.frontends.hf.config import Config
from weft.frontends.hf.family import ROTARY, Family, Named
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

__all__ = ["FAMILIES"]


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


FAMILIES = {
    "hrm_text": Family(
        "hrm_text",
        _keys,
        common=_common,
        change=_change,
        defaults=ROTARY,
    )
}
