"""The type of each tensor under a file type's name, as llama-quantize chooses it.

A mix such as Q4_K_M has a base type for most matrices and more bits for those whose error costs
most: the output, values of attention, and down projections of the first, the last and every third
layer. The rules are those of llama.cpp's `llama-quant.cpp`, for a file without importance
matrix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias

from weft.dtype import DTYPES, DType
from weft.errors import UnsupportedOpError
from weft.frontends.gguf.tensors import TensorInfo
from weft.records import dataclass

__all__ = ["MIXES", "Mix", "find_mix", "mix_types"]

Role: TypeAlias = Literal["output", "embedding", "value", "key", "attn_out", "ffn_down", "other"]


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor: the `index`-th of `count` of its role, in a model of that kind."""

    index: int
    count: int
    grouped: bool
    """Four or more heads share a key."""
    falcon: bool

    @property
    def early(self) -> bool:
        """Whether the layer is in the first eighth."""
        return self.index < self.count // 8

    @property
    def matters(self) -> bool:
        """Whether the layer is in the first or the last eighth, or every third between."""
        i, n = self.index, self.count
        return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


Rule: TypeAlias = Callable[[_Place], str | None]
"""The name of the type for a place; None for the mix's base type."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A file type: its name, the number in `general.file_type`, and the type of most matrices."""

    name: str
    number: int
    base: str
    rules: Mapping[Role, Rule] = field(default_factory=dict)
    wide_attention: bool = False
    """The attention output of models with eight experts gets q5_K."""


def _always(name: str) -> Rule:
    return lambda at: name


def _early(name: str) -> Rule:
    return lambda at: name if at.early else None


def _matters(name: str) -> Rule:
    return lambda at: name if at.matters else None


def _grouped(name: str, other: str | None = None) -> Rule:
    return lambda at: name if at.grouped else other


def _down_q3_k_m(at: _Place) -> str | None:
    if at.index < at.count // 16:
        return "q5_K"
    return "q4_K" if at.matters or not at.falcon else None


def _down_q4_k_m(at: _Place) -> str | None:
    if at.falcon and at.index >= at.count // 16:
        return "q5_K" if at.matters else None
    return "q6_K" if at.falcon or at.matters else None


_IQ4: dict[Role, Rule] = {"value": _grouped("q5_K"), "ffn_down": _early("q5_K")}
_TERNARY: dict[Role, Rule] = {"embedding": _always("q4_K")}

_TABLE = (
    Mix("F32", 0, "f32"),
    Mix("F16", 1, "f16"),
    Mix("Q4_0", 2, "q4_0"),
    Mix("Q4_1", 3, "q4_1"),
    Mix("Q8_0", 7, "q8_0"),
    Mix("Q5_0", 8, "q5_0"),
    Mix("Q5_1", 9, "q5_1"),
    Mix(
        "Q2_K", 10, "q2_K",
        {"value": _grouped("q4_K", "q3_K"), "ffn_down": _always("q3_K"),
         "attn_out": lambda at: None if at.falcon else "q3_K"},
        wide_attention=True,
    ),
    Mix("Q3_K_S", 11, "q3_K", wide_attention=True),
    Mix(
        "Q3_K_M", 12, "q3_K",
        {"value": lambda at: "q5_K" if at.index < 2 else "q4_K", "ffn_down": _down_q3_k_m,
         "attn_out": lambda at: None if at.falcon else "q4_K"},
        wide_attention=True,
    ),
    Mix(
        "Q3_K_L", 13, "q3_K",
        {"value": _always("q5_K"), "ffn_down": lambda at: "q4_K" if at.falcon else "q5_K",
         "attn_out": lambda at: "q4_K" if at.falcon else "q5_K"},
    ),
    Mix(
        "Q4_K_S", 14, "q4_K",
        {"value": lambda at: "q5_K" if at.index < 4 else None,
         "ffn_down": lambda at: "q5_K" if at.early and not at.falcon else None},
        wide_attention=True,
    ),
    Mix("Q4_K_M", 15, "q4_K", {"value": _matters("q6_K"), "ffn_down": _down_q4_k_m},
        wide_attention=True),
    Mix("Q5_K_S", 16, "q5_K"),
    Mix("Q5_K_M", 17, "q5_K", {"value": _matters("q6_K"), "ffn_down": _matters("q6_K")}),
    Mix("Q6_K", 18, "q6_K"),
    Mix("IQ4_NL", 25, "iq4_nl", _IQ4, wide_attention=True),
    Mix("IQ4_XS", 30, "iq4_xs", _IQ4, wide_attention=True),
    Mix("BF16", 32, "bf16"),
    Mix("TQ1_0", 36, "tq1_0", _TERNARY),
    Mix("TQ2_0", 37, "tq2_0", _TERNARY),
    Mix("MXFP4_MOE", 38, "mxfp4"),
    Mix("I2_S", 40, "i2_s", _TERNARY),
)  # fmt: skip

MIXES = {mix.name: mix for mix in _TABLE}
"""The mixes by name, as llama-quantize spells them; `I2_S` is bitnet.cpp's."""

ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}
_NOT_YET = re.compile(r"IQ[123]_\w+|Q2_K_S|NVFP4|Q[12]_0")

_FALLBACK = {"q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0",
             "iq4_xs": "iq4_nl", "tq1_0": "q4_0", "tq2_0": "q4_0", "i2_s": "q4_0"}  # fmt: skip
"""The types for rows that are not whole 256-element blocks."""


def find_mix(name: str) -> Mix:
    """The mix called `name`, in any case; `Q4_K` is `Q4_K_M`.

    Raises UnsupportedOpError with the known names."""
    folded = name.upper()
    mix = MIXES.get(ALIASES.get(folded, folded))
    if mix is not None:
        return mix
    names = ", ".join(MIXES)
    if _NOT_YET.fullmatch(folded):
        raise UnsupportedOpError(f"weft cannot write {name} yet; choose one of {names}")
    near = "".join(f"; did you mean {n}?" for n in get_close_matches(folded, MIXES, 1))
    raise UnsupportedOpError(
        f"there is no type {name!r} to quantize to{near or '; choose one of ' + names}"
    )


def mix_types(
    tensors: Iterable[TensorInfo], metadata: Mapping[str, Any], mix: Mix, *, pure: bool = False
) -> dict[str, DType]:
    """The type of each tensor, by name; a tensor that is not quantized keeps its own.

    `metadata` is the file's, for the architecture, its experts and heads. `pure` takes the base
    type for every matrix. Rows that are not whole blocks take a type with smaller blocks, or
    f16."""
    rows = {t.name: t for t in tensors}
    model = _Kind(metadata, tied="output.weight" not in rows)
    counts = Counter(_role(name, model.tied) for name in rows)
    n_seen: Counter[Role] = Counter()
    types: dict[str, DType] = {}
    for name in sorted(rows, key=_order):
        t = rows[name]
        if not _is_quantized(t):
            types[name] = t.dtype
            continue
        role = _role(name, model.tied)
        chosen = mix.base
        if not pure and DTYPES[mix.base].is_quantized:
            chosen = _choose(mix, role, t, model, n_seen[role], counts[role])
        n_seen[role] += 1
        types[name] = _fitting(t, DTYPES[chosen])
    return types


class _Kind:
    """The facts about a model that the rules ask for."""

    def __init__(self, metadata: Mapping[str, Any], tied: bool) -> None:
        arch = str(metadata.get("general.architecture", ""))

        def number(key: str) -> int:
            value = metadata.get(f"{arch}.{key}", 0)
            return int(value) if isinstance(value, int) else int(max(value, default=0))

        self.tied = tied
        self.n_expert = number("expert_count")
        self.n_layer = number("block_count")
        self.falcon = arch == "falcon"
        heads, keys = number("attention.head_count"), number("attention.head_count_kv")
        self.grouped = heads >= 4 * (keys or heads) > 0
        self.huge = arch in ("llama", "qwen2") and self.n_layer == 80 and heads != keys


def _choose(mix: Mix, role: Role, t: TensorInfo, model: _Kind, index: int, count: int) -> str:
    if role == "output":
        whole = t.ne[0] % DTYPES[mix.base].block == 0
        q8_0 = model.falcon or not whole or mix.base == "q8_0" or mix.name == "MXFP4_MOE"
        return "q8_0" if q8_0 else "q6_K"
    if mix.name == "MXFP4_MOE":
        return "mxfp4" if t.ne[2] > 1 else "q8_0"
    if model.n_expert == 8 and role in ("value", "key"):
        return "q8_0"
    if model.n_expert == 8 and role == "attn_out" and not model.falcon:
        return "q5_K" if mix.wide_attention else mix.base
    if role == "ffn_down":
        count = model.n_layer
        layer = re.match(r"blk\.(\d+)\.", t.name)
        if model.n_expert > 1 and layer:  # experts may come in any order
            index = int(layer[1])
    rule = mix.rules.get(role)
    chosen = rule(_Place(index, count, model.grouped, model.falcon)) if rule else None
    chosen = chosen or mix.base
    return "q5_K" if role == "value" and model.huge and chosen in ("q3_K", "q4_K") else chosen


def _role(name: str, tied: bool) -> Role:
    """The role of a tensor, from its name. Embeddings that serve as output have the role of the
    output."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "output" if tied else "embedding"
    if any(f"{part}.weight" in name for part in ("attn_qkv", "attn_kv_b", "attn_v")):
        return "value"
    if "attn_k.weight" in name:
        return "key"
    if "attn_output.weight" in name:
        return "attn_out"
    return "ffn_down" if "ffn_down" in name else "other"


_SOURCES = frozenset(DTYPES) - {"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"}
_LEFT_ALONE = (
    "_norm.weight", "ffn_gate_inp", "ffn_gate_tid2eid", "altup", "laurel", "per_layer_model_proj",
    "position_embd", "token_types", "ssm_conv1d", "shortconv.conv", "indexer.k_proj.weight",
    "indexer.q_proj.weight", "time_mix_first", "time_mix_w0", "time_mix_w1", "time_mix_w2",
    "time_mix_v0", "time_mix_v1", "time_mix_v2", "time_mix_a0", "time_mix_a1", "time_mix_a2",
    "time_mix_g1", "time_mix_g2", "time_mix_decay_w1", "time_mix_decay_w2", "time_mix_lerp_fused",
    "attn_rel_b", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd",
    ".patch_merger", "a.rvq.codebook", "mm.a.code_embd",
)  # fmt: skip
"""Parts of names of tensors that stay: norms, routers, tables of positions, small matrices."""


def _is_quantized(t: TensorInfo) -> bool:
    if t.n_dims < 2 or not t.name.endswith("weight") or t.dtype.name not in _SOURCES:
        return False
    return not any(part in t.name for part in _LEFT_ALONE)


def _fitting(t: TensorInfo, choice: DType) -> DType:
    while t.ne[0] % choice.block:
        choice = DTYPES[_FALLBACK.get(choice.name, "f16")]
    return choice


def _order(name: str) -> tuple[int, str]:
    """Layer by layer, then by name, as the reference walks through a file."""
    layer = re.match(r"blk\.(\d+)\.", name)
    return (int(layer[1]) if layer else -1, name)
