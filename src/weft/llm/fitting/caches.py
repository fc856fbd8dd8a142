"""The cost of types of cached keys and values: divergence on a text, and bytes of a context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from weft.dtype import DTYPES
from weft.llm.cache.kv_cache import CACHE_TYPES
from weft.llm.config import ModelConfig
from weft.llm.fitting.baseline import Held
from weft.llm.fitting.measurements import Kept
from weft.llm.quality.divergence import KLDivergence
from weft.records import dataclass

__all__ = ["CachePair", "cache_pairs", "measure_caches", "score_cache", "usual_pairs"]

_ORDER = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Cache types, in falling order of bits."""


@dataclass(frozen=True, slots=True)
class CachePair:
    """The types of keys and of values."""

    type_k: str
    type_v: str

    def __str__(self) -> str:
        return f"{self.type_k}/{self.type_v}"

    @property
    def flags(self) -> str:
        """The options that ask for them."""
        return f"-ctk {self.type_k} -ctv {self.type_v}"


def cache_pairs(config: ModelConfig, *, mixed: bool = True) -> list[CachePair]:
    """The pairs that a model can have, in falling order of bits; with `mixed`, also pairs in which
    values have another type than keys."""
    k = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_k % DTYPES[t].block == 0]
    v = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_v % DTYPES[t].block == 0]
    pairs = [CachePair(a, b) for a, b in product(k, v) if mixed or a == b]
    return sorted(pairs, key=lambda p: -(_bits(p.type_k) + _bits(p.type_v)))


def usual_pairs(config: ModelConfig) -> list[CachePair]:
    """The pairs that are worth a choice, f16 first: equal types, and keys of f16 or q8_0 with
    smaller values, because keys lose more by the same step."""
    return [
        pair
        for pair in cache_pairs(config)
        if pair.type_k not in ("f32", "bf16")
        and pair.type_v not in ("f32", "bf16")
        and (
            pair.type_k == pair.type_v
            or (pair.type_k in ("f16", "q8_0") and _bits(pair.type_v) < _bits(pair.type_k))
        )
    ]


def _bits(name: str) -> float:
    return 8 * DTYPES[name].bytes / DTYPES[name].block


def score_cache(held: Held, pair: CachePair) -> KLDivergence:
    """The figures of the model of `held` with a cache of these types."""
    return held.score(held.model, type_k=pair.type_k, type_v=pair.type_v)


def measure_caches(
    held: Held,
    pairs: Sequence[CachePair],
    kept: Kept,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[CachePair, float]:
    """The divergence of each pair, nats; as `weft.llm.fitting.measured.measure` does for types."""
    found: dict[CachePair, float] = {}
    for done, pair in enumerate(pairs):
        if progress is not None:
            progress(done, len(pairs), f"cache of {pair}")
        key = f"kl cache {pair}"
        known = kept.get(key)
        if known is None:
            known = max(0.0, score_cache(held, pair).kl.value)
            kept.add(key, known)
        found[pair] = known
    return found
