"""The options of `LLM.generate`, as a type, for the methods that pass them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from weft.execute import Progress

__all__ = ["GenerateOptions"]


class GenerateOptions(TypedDict, total=False):
    """See `LLM.generate`."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    parse_special: bool
    ignore_eos: bool
    cache_prompt: bool
    progress: Progress | None
