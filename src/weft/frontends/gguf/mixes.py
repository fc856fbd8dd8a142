"""The type of each tensor under a file type's name, as llama-quantize chooses it.

A mix such as Q4_K_M has a base type for most matrices and more bits for those whose error costs
most: the output, values of attention, and down projections of the first, the last and every third
layer. The rules come from llama.cpp's `llama-quant.cpp`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from weft.dtype import DTYPES, DType
from weft.errors import UnsupportedOpError
from weft.frontends.gguf.mix_table import MIXES, Mix, Place, Role
from weft.frontends.gguf.tensors import TensorInfo
from weft.records import dataclass

__all__ = ["MIXES", "Choices", "Mix", "find_mix", "is_quantized", "mix_types", "named_type",
           "needs_imatrix"]  # fmt: skip

_SOURCES = frozenset(DTYPES) - {"i8", "i16", "i32", "i64", "f64", "q8_1", "q8_K"}
_LEFT_ALONE = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel",
    "per_layer_model_proj", "position_embd", "ssm_conv1d", "shortconv.conv.weight",
    "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight",
    "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight",
    "time_mix_g1.weight", "time_mix_g2.weight", "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight", "attn_rel_b.weight", "sam.pos_embd",
    "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger", "a.rvq.codebook",
    "mm.a.code_embd",
)  # fmt: skip
"""Parts of names of tensors that stay: norms, routers, tables of positions, small matrices."""
_OF_ARCH = {
    "glm5-next": (
        "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj", "indexer_compressor_gate",
        "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight",
        "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight",
        "attn_v_b.weight",
    ),
}  # fmt: skip


def is_quantized(t: TensorInfo, arch: str) -> bool:
    """True if the tensor of a model of architecture `arch` gets another type: matrices, but not
    norms, routers and small ones, by the names of llama.cpp's `llama-quant.cpp`."""
    if t.ne[1:] == (1, 1, 1) or not t.name.endswith("weight") or t.dtype.name not in _SOURCES:
        return False
    if t.name == "token_types.weight":
        return False
    return not any(part in t.name for part in (*_LEFT_ALONE, *_OF_ARCH.get(arch, ())))


@dataclass(frozen=True, slots=True)
class Choices:
    """The wishes of a user for a file, besides the mix; types come before the rules of the mix."""

    pure: bool = False
    """True if every matrix gets the base type of the mix."""
    leave_output: bool = False
    """True if `output.weight` keeps its type."""
    output: DType | None = None
    """The type of `output.weight`, and of embeddings that serve as output."""
    embedding: DType | None = None
    patterns: tuple[tuple[re.Pattern[str], DType], ...] = ()
    """Types of tensors whose name has a match; the first one counts."""
    imatrix: bool = False
    """True if there is an importance matrix, with which some mixes spend bits elsewhere."""
    requantize: bool = True
    """False refuses another type for a tensor that is quantized already."""
    without_layers: tuple[int, ...] = ()
    """Layers that the new file lacks."""
    keep_split: bool = False
    """True if a model of several files stays one of as many."""


ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}

_FALLBACK = {
    "q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0", "q2_0": "q4_0",
    "tq1_0": "q4_0", "tq2_0": "q4_0", "i2_s": "q4_0", "iq1_s": "iq4_nl", "iq1_m": "iq4_nl",
    "iq2_xxs": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_s": "iq4_nl", "iq3_xxs": "iq4_nl",
    "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl",
}  # fmt: skip
"""The types for rows that are not whole blocks of the first."""

_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_NEED = frozenset(("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"))


def find_mix(name: str) -> Mix:
    """The mix called `name`, in any case; `Q4_K` is `Q4_K_M`.

    Raises UnsupportedOpError with the known names."""
    folded = name.upper()
    mix = MIXES.get(ALIASES.get(folded, folded))
    if mix is not None:
        return mix
    from weft.frontends.gguf.row_forms import is_ik_type  # few names need its tables

    if is_ik_type(name):
        raise UnsupportedOpError(
            f"{name} is a type of ik_llama.cpp, which weft reads and does not write; choose one of "
            + ", ".join(MIXES)
        )
    near = "".join(f"; did you mean {n}?" for n in get_close_matches(folded, MIXES, 1))
    raise UnsupportedOpError(
        f"there is no type {name!r} to quantize to{near or '; choose one of ' + ', '.join(MIXES)}"
    )


def needs_imatrix(name: str, dtype: DType, mix: Mix) -> bool:
    """True if a tensor in this type is of no use without an importance matrix."""
    if name == "output.weight" or name in _EMBEDDINGS:
        return False
    return dtype.name in _NEED or (dtype.name == "q2_K" and mix.name == "Q2_K_S")


def mix_types(
    tensors: Iterable[TensorInfo],
    metadata: Mapping[str, Any],
    mix: Mix,
    choices: Choices | None = None,
) -> dict[str, DType]:
    """The type of each tensor, by name; a tensor that is not quantized keeps its own.

    `metadata` is the file's, for the architecture, its experts and heads. Rows that are not whole
    blocks take a type with smaller blocks, or f16. Raises UnsupportedOpError if they do not fit a
    type that `choices` names for them."""
    choices = choices or Choices()
    rows = {t.name: t for t in tensors}
    model = _Kind(metadata, "output.weight" not in rows, choices)
    counts = Counter(_role(name, model.tied) for name in rows)
    n_seen: Counter[Role] = Counter()
    types: dict[str, DType] = {}
    for name in sorted(rows, key=_order):
        t = rows[name]
        if not is_quantized(t, model.arch) or (choices.leave_output and name == "output.weight"):
            types[name] = t.dtype
            continue
        named = _named(t, choices, mix)
        if named is None:
            role = _role(name, model.tied)
            named = DTYPES[mix.base]
            if not choices.pure and named.is_quantized:
                named = DTYPES[_choose(mix, role, t, model, n_seen[role], counts[role])]
                n_seen[role] += 1
            named = _fitting(t, named)
        types[name] = named
    return types


def named_type(t: TensorInfo, choices: Choices) -> DType | None:
    """The type that a user named for a tensor; None: there is none. Raises as `mix_types` does."""
    return _named(t, choices, MIXES["Q8_0"])


def _named(t: TensorInfo, choices: Choices, mix: Mix) -> DType | None:
    """The type that a user chose for a tensor; None: the mix's rules decide.

    As in the reference, patterns do not count when the mix is of floats, nor against a type for
    embeddings, except for the embeddings of layers."""
    match = next((dtype for pattern, dtype in choices.patterns if pattern.search(t.name)), None)
    if t.name in _EMBEDDINGS and choices.embedding is not None:
        return _whole(t, match if match and t.name != _EMBEDDINGS[0] else choices.embedding)
    if t.name == "output.weight" and choices.output is not None:
        return _whole(t, choices.output)
    if match is None or not DTYPES[mix.base].is_quantized:
        return None
    return _fitting(t, match)


def _whole(t: TensorInfo, dtype: DType) -> DType:
    if t.ne[0] % dtype.block:
        raise UnsupportedOpError(
            f"{t.name} has rows of {t.ne[0]} values; {dtype.name} has blocks of {dtype.block}: "
            "choose another type for it"
        )
    return dtype


_HUGE = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
"""Layers of the models of 70 billion weights, in which eight heads share values."""


class _Kind:
    """The facts about a model that the rules ask for."""

    def __init__(self, metadata: Mapping[str, Any], tied: bool, choices: Choices) -> None:
        self.arch = arch = str(metadata.get("general.architecture", ""))

        def number(key: str) -> int:
            value = metadata.get(f"{arch}.{key}", 0)
            if not isinstance(value, int):  # a list for each layer; the first one counts
                value = next(iter(value), 0)
            return int(value)

        self.tied = tied
        self.choices = choices
        self.n_expert = number("expert_count")
        self.n_layer = number("block_count")
        self.falcon = arch == "falcon"
        heads = number("attention.head_count")
        keys = (
            number("attention.head_count_kv")
            if f"{arch}.attention.head_count_kv" in metadata
            else heads
        )
        self.grouped = keys > 0 and heads // keys >= 4
        many = arch != "llama" or heads != keys
        self.huge = many and _HUGE.get(arch) == self.n_layer

    def place(self, index: int, count: int) -> Place:
        """The place of a tensor in this model."""
        return Place(index, count, self.grouped, self.falcon, self.n_expert, self.choices.imatrix)


def _choose(mix: Mix, role: Role, t: TensorInfo, model: _Kind, index: int, count: int) -> str:
    if role == "output":
        if model.choices.output is not None:
            return model.choices.output.name
        whole = t.ne[0] % DTYPES[mix.base].block == 0
        q8_0 = model.falcon or not whole or mix.base == "q8_0" or mix.name == "MXFP4_MOE"
        return "q8_0" if q8_0 else mix.output
    if mix.name == "MXFP4_MOE":
        experts = t.ne[2] > 1 and (model.arch != "bailingmoe3" or role.startswith("ffn"))
        return "mxfp4" if experts else "q8_0"
    if not mix.low and model.n_expert == 8:
        if role in ("value", "key"):
            return "q8_0"
        if role == "attn_out" and not model.falcon:
            return "q5_K" if mix.wide_attention else mix.base
    if role.startswith("ffn"):
        count = model.n_layer
        layer = re.match(r"blk\.(\d+)\.", t.name)
        if model.n_expert > 1 and layer and not mix.low:  # experts may come in any order
            index = int(layer[1])
    rule = mix.rules.get(role)
    chosen = (rule(model.place(index, count)) if rule else None) or mix.base
    more = role == "value" and model.huge and not mix.low and chosen in ("q3_K", "q4_K")
    return "q5_K" if more else chosen


_PARTS: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", "value"), ("attn_kv_b.weight", "value"), ("attn_v.weight", "value"),
    ("attn_k.weight", "key"), ("attn_q.weight", "query"), ("attn_output.weight", "attn_out"),
    ("ffn_up", "ffn_up"), ("ffn_gate", "ffn_gate"), ("ffn_down", "ffn_down"),
)  # fmt: skip


def _role(name: str, tied: bool) -> Role:
    """The role of a tensor, from its name. Embeddings that serve as output have the role of the
    output."""
    if name == "output.weight":
        return "output"
    if name in _EMBEDDINGS:
        return "output" if tied else "embedding"
    return next((role for part, role in _PARTS if part in name), "other")


def _fitting(t: TensorInfo, choice: DType) -> DType:
    while t.ne[0] % choice.block:
        choice = DTYPES[_FALLBACK.get(choice.name, "f16")]
    return choice


def _order(name: str) -> tuple[int, str]:
    """Layer by layer, then by name, as the reference walks through a file."""
    layer = re.match(r"blk\.(\d+)\.", name)
    return (int(layer[1]) if layer else -1, name)
