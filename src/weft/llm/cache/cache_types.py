"""The types of cached keys and values, and whether heads are rotated before they are stored.

A block of 32 numbers is rounded in steps of its largest one, so an outlier takes the bits of its
neighbours. So heads are rotated before they are stored in a quantized type (QuaRot, arXiv
2404.00456): a Hadamard matrix spreads outliers over all numbers of a block of the head. Queries are
rotated like keys, which leaves their products as they are, and what attention returns is rotated
back. `weft.llm.models.common` does all of it.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.dtype import DType, find_dtype
from weft.errors import ContextError, GraphError
from weft.flags import FLAGS

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types of stored keys and values. A quantized block holds 32 numbers of one head."""


_MOST_V = 64
"""Maximum length of the blocks in which values are rotated, the same as in llama.cpp."""


def rotated_block(dtype: DType, d: int, *, values: bool = False) -> int:
    """The length of the blocks in which heads of `d` keys (or values) are rotated before they are
    stored in a type; 0: they are not, because the type is a float type."""
    if not dtype.is_quantized:
        return 0
    largest = d & -d  # the largest power of two that divides d
    return min(largest, _MOST_V) if values else largest


class CacheTypes(NamedTuple):
    """The types of cached keys and values, called as the options of a context."""

    type_k: str = "f16"
    type_v: str = "f16"

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def rotated(self) -> bool:
        """True if heads are rotated before they are stored in a quantized type."""
        return not FLAGS.attn_rot_disable and any(find_dtype(t).is_quantized for t in self)

    @property
    def stored(self) -> str:
        """The types, and whether heads are rotated: figures of a cache depend on both."""
        return f"{self} rotated" if self.rotated else str(self)

    @property
    def flags(self) -> str:
        """The flags that ask for these types."""
        return f"-ctk {self.type_k} -ctv {self.type_v}"


def cache_type(argument: str, name: str | DType, head_dim: int) -> DType:
    """The type that the option `argument` names, for heads of `head_dim` numbers. Raises
    ContextError for a type that cannot be cached, and for blocks that do not divide the heads."""
    try:
        dtype = find_dtype(name)
    except GraphError as e:
        raise ContextError(f": {e}", argument=argument) from None
    if dtype.name not in CACHE_TYPES:
        raise ContextError(
            f"is {dtype.name}; it must be {' or '.join(CACHE_TYPES)}", argument=argument
        )
    if head_dim % dtype.block:
        raise ContextError(
            f"{argument} is {dtype.name}, which has blocks of {dtype.block} numbers, but heads of "
            f"this model have {head_dim}; use f16, bf16 or f32"
        )
    return dtype
