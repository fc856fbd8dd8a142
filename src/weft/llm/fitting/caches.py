"""The cost of types of cached keys and values: divergence on a text, and bytes of a context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from weft.dtype import DTYPES
from weft.llm.cache.kv_cache import CACHE_TYPES, CacheTypes
from weft.llm.config import ModelConfig
from weft.llm.fitting.baseline import Held
from weft.llm.fitting.measurements import Kept
from weft.llm.quality.divergence import KLDivergence

__all__ = ["cache_pairs", "measure_caches", "score_cache", "usual_pairs"]

_ORDER = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Cache types, in falling order of bits."""


def cache_pairs(config: ModelConfig, *, mixed: bool = True) -> list[CacheTypes]:
    """The pairs that a model can have, in falling order of bits; with `mixed`, also pairs in which
    values have another type than keys."""
    k = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_k % DTYPES[t].block == 0]
    v = [t for t in _ORDER if t in CACHE_TYPES and config.head_dim_v % DTYPES[t].block == 0]
    pairs = [CacheTypes(a, b) for a, b in product(k, v) if mixed or a == b]
    return sorted(pairs, key=lambda p: -sum(map(_bits, p)))


def usual_pairs(config: ModelConfig) -> list[CacheTypes]:
    """The pairs that are worth a choice, f16 first: equal types, and keys of f16 or q8_0 with
    smaller values, because keys lose more by the same step."""
    return [
        pair
        for pair in cache_pairs(config)
        for k, v in (pair,)
        if not {"f32", "bf16"} & {k, v}
        and (k == v or (k in ("f16", "q8_0") and _bits(v) < _bits(k)))
    ]


def _bits(name: str) -> float:
    return 8 * DTYPES[name].bytes / DTYPES[name].block


def score_cache(held: Held, pair: CacheTypes) -> KLDivergence:
    """The figures of the model of `held` with a cache of these types."""
    return held.score(held.model, **pair._asdict())


def measure_caches(
    held: Held,
    pairs: Sequence[CacheTypes],
    kept: Kept,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[CacheTypes, float]:
    """The divergence of each pair, nats; as `weft.llm.fitting.measured.measure` does for types."""
    found: dict[CacheTypes, float] = {}
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
