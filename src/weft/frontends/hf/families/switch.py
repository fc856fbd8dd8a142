"""Granite Switch: Granite with adapters of its own."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import FAMILIES as LLAMA
from weft.frontends.hf.families.llama import granite_keys
from weft.frontends.hf.family import Named, adjacent_rows
from weft.frontends.hf.keys import Pairs, common_keys
from weft.frontends.hf.values import Values

_FUSED = {"self_attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
          "shared_mlp.input_linear": ("ffn_gate", "ffn_up")}  # fmt: skip
_SINGLE = {"self_attn.o_proj": "attn_output", "shared_mlp.output_linear": "ffn_down"}


def _common(c: Config) -> Pairs:
    """A layer of config.json stands for the head that chooses an adapter."""
    for key, value in common_keys(c):
        if key == "block_count":
            value = c.n_layer - 1
        if key not in ("attention.key_length", "attention.value_length"):
            yield key, value


def _keys(c: Config) -> Pairs:
    if c.get("projection_head_dim") not in (None, c.head_dim):
        raise c.bad("projection_head_dim", f"is not the size of heads, {c.head_dim}")
    if c.n_expert:
        raise c.bad("num_local_experts", "is not 0, which weft needs here")
    yield from granite_keys(c)
    yield "expert_used_count", 0
    yield "adapters.count", c["num_adapters"]
    yield "adapters.lora_rank", c["max_lora_rank"]
    yield "adapters.token_ids_activate", c["adapter_token_ids"]
    yield "adapters.token_ids_substitute", c["adapter_substitute_token_ids"]
    yield "adapters.router_gain", float(c.get("control_token_gain", 15.0))


def _change(c: Config, name: str, values: Values) -> Named:
    bare = name.removeprefix("model.")
    if bare.startswith("switch.") or bare.endswith(("adapter_token_ids", "substitute_lut")):
        return
    if name == "lm_head.weight":
        return  # the embedding
    found = re.fullmatch(
        r"layers\.(\d+)\.([a-z_]+\.\w+?)\.(?:(base_layer)\.weight|lora_([AB])(?:_slices\.(\d+))?)",
        bare,
    )
    if found is None:
        yield name, values
        return
    il, module, base, matrix, part = found.groups()
    if module in _FUSED:
        names = _FUSED[module]
    elif module in _SINGLE:
        names = (_SINGLE[module],)
    else:
        raise FormatError(f"{c.folder}: tensor {name} has no place in a model of graniteswitch")
    if not base:
        target = names[int(part or 0)]
        yield f"=blk.{il}.{target}.lora_{matrix.lower()}", _with_none(c, target, matrix, values)
    elif len(names) == 3:
        order = _order(c)
        yield f"=blk.{il}.attn_qkv.weight", values.taken(order, shape=values.shape)
    elif len(names) == 2:
        n = values.shape[0] // 2
        for target, cut in zip(names, values.split(n, n), strict=True):
            yield f"=blk.{il}.{target}.weight", cut
    else:
        yield f"=blk.{il}.{names[0]}.weight", values


def _order(c: Config) -> NDArray[np.intp]:
    """The rows of queries, keys and values, in the order in which adjacent pairs rotate."""
    n_q, n_kv, d = c.n_head * c.head_dim, c.n_head_kv * c.head_dim, c.head_dim
    q, k = adjacent_rows(c, n_q, d), adjacent_rows(c, n_kv, d)
    return np.concatenate([q, n_q + k, np.arange(n_q + n_kv, n_q + 2 * n_kv)])


def _with_none(c: Config, target: str, matrix: str, values: Values) -> Values:
    """The matrices of adapters [n, 1, rows, columns] behind adapter 0, which is none."""
    n, rows, columns = values.shape[0], *values.shape[-2:]
    order: NDArray[np.intp] = np.arange(rows)
    if matrix == "B" and target in ("attn_q", "attn_k"):
        order = adjacent_rows(c, rows, c.head_dim)

    def joined(x: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.zeros((n + 1, rows, columns), np.float32)
        out[1:] = x.reshape(n, rows, columns)[:, order]
        return out

    return values.through(joined, (n + 1, rows, columns))


FAMILIES = {
    "graniteswitch": replace(
        LLAMA["granite"], arch="graniteswitch", common=_common, keys=_keys, change=_change,
        adjacent=False,
    ),
}  # fmt: skip
