"""The mixes of llama-quantize: file types with more bits for some roles of tensors.

The rules come from llama.cpp's `llama-quant.cpp`; `mixes.py` applies them to the tensors of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from weft.records import dataclass

Role: TypeAlias = Literal[
    "output", "embedding", "value", "key", "query", "attn_out", "ffn_down", "ffn_up", "ffn_gate",
    "other",
]  # fmt: skip
"""The purpose of a matrix. Values include fused queries, keys and values, and the values of latent
attention; `output` includes embeddings that serve as output."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor: the `index`-th of `count` of its role, in a model of that kind."""

    index: int
    count: int
    grouped: bool
    """True if four or more heads share a key."""
    falcon: bool
    n_expert: int
    imatrix: bool

    @property
    def early(self) -> bool:
        """Whether the layer is in the first eighth."""
        return self.index < self.count // 8

    @property
    def middle(self) -> bool:
        """Whether the layer is neither in the first nor in the last eighth."""
        return self.count // 8 <= self.index < 7 * self.count // 8

    @property
    def matters(self) -> bool:
        """Whether the layer is in the first or the last eighth, or every third between."""
        return not self.middle or (self.index - self.count // 8) % 3 == 2


Rule: TypeAlias = Callable[[Place], str | None]
"""The name of the type for a place; None for the mix's base type."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A file type: its name, the number in `general.file_type`, and the type of most matrices."""

    name: str
    number: int
    base: str
    rules: Mapping[Role, Rule] = field(default_factory=dict)
    wide_attention: bool = False
    """True if the attention output of models with eight experts gets q5_K."""
    low: bool = False
    """True if the base type has one or two bits; models with eight experts then have rules of their
    own."""
    output: str = "q6_K"
    """Name of the output's type."""


def _always(name: str) -> Rule:
    return lambda at: name


def _early(name: str) -> Rule:
    return lambda at: name if at.early else None


def _matters(name: str) -> Rule:
    return lambda at: name if at.matters else None


def _middle(name: str) -> Rule:
    return lambda at: name if at.middle else None


def _grouped(name: str, other: str | None = None) -> Rule:
    return lambda at: name if at.grouped else other


def _guided(name: str) -> Rule:
    """More bits for early layers, where an importance matrix alone does not prevent outliers."""
    return lambda at: name if at.imatrix and at.early else None


def _unguided(name: str) -> Rule:
    return lambda at: name if at.early and not at.imatrix else None


def _no_falcon(name: str) -> Rule:
    return lambda at: None if at.falcon else name


def _down_q3_k_m(at: Place) -> str | None:
    if at.index < at.count // 16:
        return "q5_K"
    return "q4_K" if at.matters or not at.falcon else None


def _down_q4_k_m(at: Place) -> str | None:
    if at.falcon and at.index >= at.count // 16:
        return "q5_K" if at.matters else None
    return "q6_K" if at.falcon or at.matters else None


def _down_iq3_m(at: Place) -> str | None:
    return "q4_K" if at.early or (at.n_expert == 8 and at.matters) else None


def _down_iq3_xxs(at: Place) -> str | None:
    return None if at.imatrix else "q4_K" if at.early else "q3_K"


def _value_iq3_xxs(at: Place) -> str | None:
    return "q4_K" if at.grouped else None if at.imatrix else "iq3_s"


def _low(name: str, number: int, base: str, more: str, embedding: str, attn_out: str | None) -> Mix:
    """A mix of one or two bits, in which `more` is the type of values and early layers."""
    return Mix(
        name, number, base,
        {"embedding": _always(embedding),
         "value": lambda at: "q4_K" if at.grouped or at.n_expert >= 4 else more,
         "key": lambda at: "q4_K" if at.n_expert == 8 else None,
         "ffn_down": _early(more),
         "attn_out": lambda at: "q5_K" if at.n_expert == 8 else attn_out},
        low=True, output="q5_K",
    )  # fmt: skip


_IQ4: dict[Role, Rule] = {"value": _grouped("q5_K"), "ffn_down": _unguided("q5_K")}
_TERNARY: dict[Role, Rule] = {"embedding": _always("q4_K")}

_TABLE = (
    Mix("F32", 0, "f32"),
    Mix("F16", 1, "f16"),
    Mix("Q4_0", 2, "q4_0", {"ffn_down": _guided("q4_1")}),
    Mix("Q4_1", 3, "q4_1"),
    Mix("Q8_0", 7, "q8_0"),
    Mix("Q5_0", 8, "q5_0", {"ffn_down": _guided("q5_1")}),
    Mix("Q5_1", 9, "q5_1"),
    Mix(
        "Q2_K", 10, "q2_K",
        {"value": _grouped("q4_K", "q3_K"), "ffn_down": _always("q3_K"),
         "attn_out": _no_falcon("q3_K")},
        wide_attention=True,
    ),
    Mix("Q3_K_S", 11, "q3_K", wide_attention=True),
    Mix(
        "Q3_K_M", 12, "q3_K",
        {"value": lambda at: "q5_K" if at.index < 2 else "q4_K", "ffn_down": _down_q3_k_m,
         "attn_out": _no_falcon("q4_K")},
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
    _low("IQ2_XXS", 19, "iq2_xxs", "q2_K", "q2_K", None),
    _low("IQ2_XS", 20, "iq2_xs", "q2_K", "q2_K", None),
    Mix("Q2_K_S", 21, "q2_K", {"value": _grouped("q4_K"), "ffn_down": _early("q4_K")}),
    Mix(
        "IQ3_XS", 22, "iq3_s",
        {"value": _grouped("q4_K"), "key": _always("iq3_xxs"), "query": _always("iq3_xxs"),
         "ffn_gate": _middle("iq3_xxs"), "ffn_up": _middle("iq3_xxs")},
        wide_attention=True,
    ),
    Mix(
        "IQ3_XXS", 23, "iq3_xxs",
        {"embedding": _always("iq3_s"), "value": _value_iq3_xxs, "key": _always("iq2_s"),
         "query": _always("iq2_s"), "ffn_down": _down_iq3_xxs, "attn_out": _no_falcon("iq3_s")},
        wide_attention=True, output="q5_K",
    ),
    _low("IQ1_S", 24, "iq1_s", "q2_K", "q2_K", "iq2_xxs"),
    Mix("IQ4_NL", 25, "iq4_nl", _IQ4, wide_attention=True),
    Mix("IQ3_S", 26, "iq3_s", {"value": _grouped("q4_K")}, wide_attention=True),
    Mix(
        "IQ3_M", 27, "iq3_s",
        {"value": _always("q4_K"), "ffn_down": _down_iq3_m, "attn_out": _no_falcon("q4_K")},
        wide_attention=True,
    ),
    _low("IQ2_S", 28, "iq2_xs", "iq3_s", "iq3_s", "iq3_s"),
    _low("IQ2_M", 29, "iq2_s", "iq3_s", "iq3_s", "iq3_s"),
    Mix("IQ4_XS", 30, "iq4_xs", _IQ4, wide_attention=True),
    _low("IQ1_M", 31, "iq1_m", "q2_K", "q2_K", "iq2_xxs"),
    Mix("BF16", 32, "bf16"),
    Mix("TQ1_0", 36, "tq1_0", _TERNARY),
    Mix("TQ2_0", 37, "tq2_0", _TERNARY),
    Mix("MXFP4_MOE", 38, "mxfp4"),
    Mix("NVFP4", 39, "nvfp4"),
    Mix("Q1_0", 40, "q1_0"),
    Mix("Q2_0", 41, "q2_0", {"embedding": _always("q4_K")}),
    Mix("I2_S", 40, "i2_s", _TERNARY),
)  # fmt: skip

MIXES = {mix.name: mix for mix in _TABLE}
"""The mixes by name, as llama-quantize spells them; `I2_S`, which shares the number 40 with Q1_0,
is bitnet.cpp's."""
