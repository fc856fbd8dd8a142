"""Bodies of requests. Unknown fields are refused by name; those of the OpenAI API that change
nothing here (`user`, `store`, ...) are taken and ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

__all__ = [
    "ChatBody",
    "CompletionBody",
    "DetokenizeBody",
    "EmbeddingBody",
    "Generation",
    "ResponseFormat",
    "TokenizeBody",
]

Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[int, Field(ge=0)]


def _is_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As it was sent, since templates write it into the prompt."""
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ValueError('a tool is {"type": "function", "function": {...}}')
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise ValueError("the function of a tool has no name")
    if not isinstance(function.get("parameters", {}), dict):
        raise ValueError("the parameters of a function are a JSON schema, an object")
    return tool


Tool = Annotated[dict[str, Any], AfterValidator(_is_tool)]


class Body(BaseModel):
    """Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False


class Generation(Body):
    """What chat and completions share."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[TokenId, Bias] | None = None
    ignore_eos: bool = False
    grammar: str | None = None
    regex: str | None = None
    # change nothing here
    user: str | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionBody(Generation):
    """`/v1/completions`."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: str | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class ChatBody(Generation):
    """`/v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class EmbeddingBody(Body):
    """`/v1/embeddings`."""

    model: str | None = None
    input: str | list[str] | list[TokenId] | list[list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class TokenizeBody(Body):
    """`/tokenize`."""

    content: str
    add_special: bool = True
    parse_special: bool = False


class DetokenizeBody(Body):
    """`/detokenize`."""

    tokens: list[TokenId]
    special: bool = False
