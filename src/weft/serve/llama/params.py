"""The parameters of a text, under the names of llama.cpp's server."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from weft.llm import SamplingParams
from weft.llm.engine import Request

__all__ = ["defaults_shown", "params_shown"]

_NAMES = {"dry_last_n": "dry_penalty_last_n"}
_EMPTY: dict[str, Any] = {"grammar": "", "json_schema": None, "logit_bias": []}


def params_shown(request: Request, *, stream: bool | None = None) -> dict[str, Any]:
    """The parameters of a request, without its prompt."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    return _sampling(request.sampling) | {
        "n_predict": limit,
        "max_tokens": limit,
        "n_keep": 0,
        "stop": list(request.stop),
        "ignore_eos": request.ignore_eos,
        "n_probs": request.logprobs or 0,
        **({} if stream is None else {"stream": stream}),
    }


def defaults_shown() -> dict[str, Any]:
    """The parameters of `/completion` for a request that names none."""
    return params_shown(Request((0,)), stream=False)


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value is None:
            value = _EMPTY.get(field.name)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, dict):
            value = [[token, bias] for token, bias in value.items()]
        shown[_NAMES.get(field.name, field.name)] = value
    shown["seed"] = -1 if sampling.seed is None else sampling.seed
    return shown
