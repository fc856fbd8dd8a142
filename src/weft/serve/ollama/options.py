"""Ollama's options as fields of the bodies of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.serve.errors import ApiError
from weft.serve.words import shown

__all__ = ["fields_of"]

_DEFAULTS: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
}
"""What Ollama's documents say for options that neither a request nor a model sets."""
_SAME = frozenset((
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty", "seed", "stop"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
))  # fmt: skip
"""Options with the same name and meaning."""
_OF_LOADING = frozenset((
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "use_mmap"),
    *("use_mlock", "low_vram", "f16_kv", "vocab_only", "logits_all", "embedding_only", "num_keep"),
))  # fmt: skip
"""Options of loading, which the command line of the server has instead, and `num_keep`, because
texts end when the context is full."""


def fields_of(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """The fields of `options`, with Ollama's defaults, and the names of options without an effect.

    Raises ApiError for a `num_predict` that is no number."""
    fields, ignored = dict(_DEFAULTS), list[str]()
    for name, value in (options or {}).items():
        if value is None:
            continue
        if name in _SAME:
            fields[name] = value
        elif name == "num_predict":
            fields["max_tokens"] = _limit(value)
        elif name not in _OF_LOADING:
            ignored.append(f"options.{name}")
    return fields, ignored


def _limit(value: Any) -> int:
    """The most tokens; 0 and every number below it mean that there is no limit."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(
            400, f"num_predict is {shown(value)}; it must be a whole number, -1 for no limit",
            "num_predict",
        )  # fmt: skip
    return max(value, -1) or -1
