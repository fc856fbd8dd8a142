"""The options of `LLM.generate`, as a type, for the methods that pass them on."""

from __future__ import annotations

from collections.abc import Sequence

from weft.execute import Progress
from weft.llm.sampling import SamplingOptions, SamplingParams

__all__ = ["GenerateOptions"]


class GenerateOptions(SamplingOptions, total=False):
    """See `LLM.generate`."""

    max_tokens: int | None
    stop: str | Sequence[str]
    parse_special: bool
    ignore_eos: bool
    special: bool
    sampling: SamplingParams | None
    logprobs: int | None
    cache_prompt: bool
    progress: Progress | None
