"""The bodies of llama.cpp's own endpoints."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from weft.serve.schema import Body, Generation, Part

_IDLE = frozenset((
    *("id_slot", "slot_id", "n_cache_reuse", "sse_ping_interval", "n_discard", "api_key"),
    *("speculative.n_max", "speculative.n_min", "speculative.p_min", "backend_sampling"),
))  # fmt: skip
"""Fields about slots, caches and drafts, which the engine decides itself."""


class Writing(Generation):
    """The fields that `/completion` and `/infill` share."""

    temperature: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Any = None
    n_probs: Annotated[int, Field(ge=0, le=1000)] = 0
    n_cmpl: Annotated[int, Field(ge=1)] | None = None
    cache_prompt: bool = True
    return_tokens: bool = False
    post_sampling_probs: bool = False
    response_fields: Annotated[list[str], Field(max_length=256)] | None = None

    def ignored(self) -> list[str]:
        """The names of unknown fields; see `Part.ignored`."""
        return [name for name in super().ignored() if name not in _IDLE]


class CompletionRequest(Writing):
    """The body of `/completion`."""

    prompt: Annotated[Any, Field(description="a text, token ids, a list of both, or of prompts")]


class Extra(Part):
    """A file of a project, for `/infill`."""

    text: str
    filename: str | None = None


class InfillRequest(Writing):
    """The body of `/infill`."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[Extra], Field(max_length=1024)] | None = None
    prompt: str | None = None


class EmbeddingRequest(Body):
    """The body of `/embedding`."""

    content: Annotated[
        str | list[int] | list[str], Field(description="a text, token ids, or a list of texts")
    ]
    model: str | None = None
    embd_normalize: int = 2
