"""The body of `/v1/responses`. What it asks for that is not here is a 400."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from weft.serve.schema import Metadata, Part, Sampled

_INCLUDABLE = frozenset((
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    # of tools that are not here
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
))  # fmt: skip


LEFT_OUT = frozenset((
    *("web_search_call", "file_search_call", "computer_call", "computer_call_output", "compaction"),
    *("image_generation_call", "code_interpreter_call", "mcp_list_tools", "mcp_call"),
    *("mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output"),
    *("compaction_summary", "context_compaction", "ghost_snapshot", "compaction_trigger"),
    *("program", "program_output", "additional_tools", "agent_message", "configuration_update"),
))  # fmt: skip
"""Items of tools that OpenAI runs itself: they are left out, with a note."""


def _is_plain(value: Any) -> Any:
    """Checks that a value, which the answer repeats, is JSON."""
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError(
            "it has NaN or Infinity, which are not JSON, or is nested deeply"
        ) from None
    return value


def _is_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Checks a tool; those that OpenAI runs itself are not here, and left out."""
    if not isinstance(tool.get("type"), str):
        raise ValueError(
            'a tool has no type; tools are {"type": "function", "name": NAME, "parameters": SCHEMA}'
        )
    inner = tool.get("tools")
    if tool["type"] == "namespace" and isinstance(inner, list):
        if not isinstance(tool.get("name"), str):
            raise ValueError("a namespace of tools has no name")
        for one in inner:
            if isinstance(one, dict) and one.get("type") == "function":
                _is_tool(one)
    if tool["type"] != "function":
        return tool
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise ValueError("a function of tools has no name")
    if not isinstance(tool.get("parameters") or {}, dict):
        raise ValueError("the parameters of a function are a JSON schema, an object")
    _is_plain(tool)
    return tool


def _is_known(names: list[str]) -> list[str]:
    for name in names:
        if name not in _INCLUDABLE:
            raise ValueError(f"include has {name[:60]!r}, which is not known")
    return names


def full_name(call: Mapping[str, Any]) -> str:
    """The name by which templates and models know a function: behind its namespace, if any."""
    name, space = str(call.get("name")), call.get("namespace")
    return f"{space}{'' if space.endswith('_') else '.'}{name}" if isinstance(space, str) else name


Tool = Annotated[dict[str, Any], AfterValidator(_is_tool)]


class Format(Part):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema"), AfterValidator(_is_plain)] = (
        None
    )
    strict: bool | None = None
    description: str | None = None


class Text(Part):
    format: Format | None = None
    verbosity: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields that are known, for an answer."""
        names = {"type", "name", "schema_", "strict", "description"}
        whole = self.model_dump(
            by_alias=True, exclude_none=True, include={"format": names, "verbosity": True}
        )
        return {"format": {"type": "text"}} | whole


class Reasoning(Part):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class StreamOptions(Part):
    include_obfuscation: bool = False


class CountBody(Sampled):
    """The body of `/v1/responses/input_tokens`."""

    model: str | None = None
    input: Annotated[
        str | Annotated[list[dict[str, Any]], Field(fail_fast=True)],
        AfterValidator(_is_plain),
        Field(description="a text or a list of items, objects"),
    ] = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | dict[str, Any] | None,
        AfterValidator(_is_plain),
        Field(description='"none", "auto", "required" or a function'),
    ] = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None

    def functions(self) -> Iterator[tuple[str, dict[str, Any], dict[str, str]]]:
        """Each function of the client, with the name by which the model knows it, and the names
        that its calls have. A function of a namespace is known by both names."""
        for tool in self.tools or ():
            if tool["type"] == "function":
                yield tool["name"], tool, {"name": tool["name"]}
            inner = tool.get("tools") if tool["type"] == "namespace" else None
            for one in inner if isinstance(inner, list) else ():
                if isinstance(one, dict) and one.get("type") == "function":
                    names = {"name": one["name"], "namespace": str(tool.get("name"))}
                    yield full_name(names), one, names

    def ignored(self) -> list[str]:
        """The names of unknown fields, and tools and items that are left out."""
        items = self.input if isinstance(self.input, list) else ()
        left = [
            f"input.{i}.{item['type'][:40]}"
            for i, item in enumerate(items) if item.get("type") in LEFT_OUT
        ]  # fmt: skip
        spaces = any("namespace" in names for _, _, names in self.functions())
        hosted = self._hosted(("function", "namespace") if spaces else ("function",))
        return [*super().ignored(), *hosted, *left]


class ResponsesBody(CountBody):
    """The body of `/v1/responses`."""

    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    include: Annotated[list[str], AfterValidator(_is_known)] | None = None
    metadata: Metadata | None = None
    background: bool | None = None
    prompt: Any = None
    # these have no effect here
    max_tool_calls: int | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    context_management: list[Any] | None = None
    client_metadata: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """True if log-probabilities are asked for."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)
